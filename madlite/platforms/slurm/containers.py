"""The containers of a run on nodes, by flavour: what is started on each node before it, and what runs in it.

`docker` and `podman` hold a container open on each node, in which actions run; `pyxis` is srun's own and `apptainer`
starts each action in the image.  `none` has no container.  Formats: docs/slurm.md.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from madlite.errors import UsageProblem
from madlite.model import RunPlan, Value
from madlite.plan.container import RDMA
from madlite.platforms.docker.request import split_words
from madlite.platforms.sessions import container_mounts
from madlite.store.folder import FOLDER_LABEL, RUN_LABEL

FLAVOURS = ("none", "docker", "podman", "pyxis", "apptainer")
ON_STEPS = ("podman", "pyxis", "apptainer")  # no engine serves them: also a run on one node is a step of srun
VARIABLE = "MADLITE_CONTAINER"
OPTIONS_VARIABLE = "MADLITE_CONTAINER_OPTIONS"


RANK = "{rank}"  # in a command: the node's number
WHERE_RDMA = "{rdma}"  # before a word of a container's start: for nodes with RDMA devices alone
OF_GPUS = "{{gpus {ids} {renders}}}"  # before a word of it: for each GPU that the run has on the node; agent.sh


def container_name(plan: RunPlan) -> str:
    """Return the name of a run's container, another one on each node."""
    return f"madlite-{plan.id}-{RANK}"


class Container(Value, frozen=True):
    """What the containers of one run are, as words of commands of one node each; of the node itself there are none."""

    step_options: tuple[str, ...] = ()  # of srun itself
    start: tuple[str, ...] = ()  # starts a container; none where nothing is held open
    enter: tuple[str, ...] = ()  # stands before a command that runs in it
    remove: tuple[str, ...] = ()  # ends what was started
    is_there: bool = False  # else commands are the node's own
    signals_inside: bool = False  # whether processes are known by other numbers inside


def container_of(flavour: str, plan: RunPlan, environ: Mapping[str, str], image_file: str = "") -> Container:
    """Return the container of a plan; `image_file` is where one that starts from a file has its image.

    Raises:
        UsageProblem: there is no such flavour, or its options cannot be read.
    """
    if flavour in ("", "none"):
        return Container()
    try:
        options = shlex.split(environ.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise UsageProblem(f"${OPTIONS_VARIABLE} cannot be read: {error}") from None
    if flavour in ("docker", "podman"):
        return _of_engine(flavour, plan, [*split_words(plan.engine_options.extra, environ), *options])
    image = image_file or (plan.image.ref if plan.image is not None else "")
    if flavour == "pyxis":
        return _of_pyxis(plan, options, image)
    if flavour == "apptainer":
        return _of_apptainer(plan, options, image)
    what = f"${VARIABLE} is {flavour!r}, no container of nodes"
    raise UsageProblem(what, f"one of {', '.join(FLAVOURS)}; container in cluster.toml sets it")


def _of_engine(engine: str, plan: RunPlan, options: Sequence[str]) -> Container:
    """Return a container of docker or podman that is held open on each node.

    It is started with what the docker runtime asks its engine for, in the words of the command line.
    """
    asked, name, is_rootless = plan.engine_options, container_name(plan), engine == "podman" and os.geteuid() != 0
    image = plan.image.ref if plan.image is not None else ""
    of_run = _render_nodes(plan, plan.place.gpu_ids).values()
    lists = (
        # a rootless podman has the caller's own groups, under no name of the image
        ("--group-add", ("keep-groups",) if asked.group_add and is_rootless else asked.group_add),
        ("--cap-add", asked.cap_add),
        ("--security-opt", asked.security_opt),
        ("--ulimit", asked.ulimits),
        ("--device", (device for device in plan.devices if device not in of_run)),
        ("--cpuset-cpus", filter(None, [asked.cpuset])),
        ("--cpuset-mems", filter(None, [asked.cpuset_mems])),
    )
    return Container(
        start=(
            *(engine, "run", "--detach", "--init", "--pull=never", "--name", name),
            *("--label", f"{RUN_LABEL}={plan.id}", "--label", f"{FOLDER_LABEL}={plan.folder}"),
            *("--user", asked.user, "--network", asked.network, "--ipc", asked.ipc, "--workdir", plan.inside),
            *(f"{option}={value}" for option, values in lists for value in values),
            *_gpus(plan, engine),
            *_rdma(plan, is_rootless=is_rootless),
            *(word for text in _mounts(plan) for word in ("--volume", text)),
            *options,
            *("--entrypoint", "sleep", image, "infinity"),
        ),
        enter=(engine, "exec", name),
        remove=(engine, "rm", "--force", "--volumes", name),
        is_there=True,
        signals_inside=True,
    )


def _gpus(plan: RunPlan, engine: str) -> list[str]:
    """Return the word of the run's GPUs, which each node fills in with those that Slurm gives it there."""
    ids = ",".join(str(index) for index in plan.place.gpu_ids)
    if plan.machine.vendor == "AMD":
        nodes = _render_nodes(plan, (gpu.index for gpu in plan.machine.gpus))
        renders = ",".join(f"{index}:{name.removeprefix(_RENDER)}" for index, name in nodes.items())
        word = f"--device={_RENDER}{{render}}" if renders else ""
    else:
        renders, word = "", "--device=nvidia.com/gpu={id}"
        if engine == "docker":  # the value is a line of CSV: without quotes a comma ends the list
            word = '--gpus="device={ids}"'
    return [OF_GPUS.format(ids=ids, renders=renders) + word] if ids and word else []


def _rdma(plan: RunPlan, *, is_rootless: bool) -> list[str]:
    """Return what a container of several nodes needs of the network cards, for nodes that have some: they know it.

    A rootless podman may not raise the limit of what is pinned: its containers have the caller's.
    """
    extra = plan.engine_options.extra
    if plan.place.nodes < 2 or plan.machine.vendor == "CPU":
        return []
    words = [] if str(RDMA) in extra else [f"--device={RDMA}"]
    words.append("--cap-add=IPC_LOCK")
    if "memlock" not in extra and not is_rootless:
        words.append("--ulimit=memlock=-1")
    return [f"{WHERE_RDMA}{word}" for word in words]


def _of_pyxis(plan: RunPlan, options: Sequence[str], image: str) -> Container:
    """Return a container of enroot that srun's plugin pyxis starts; as it has a name, it stays while the job goes on.

    The first step unpacks the image.  What was unpacked is removed by pyxis's names of it: a job's, and a node's.
    """
    names = f"^pyxis_([0-9]+_)?madlite-{re.escape(plan.id)}$"
    return Container(
        step_options=(
            *(f"--container-image={image}", f"--container-name=madlite-{plan.id}"),
            *(f"--container-mounts={','.join(_mounts(plan))}", f"--container-workdir={plan.inside}"),
            *("--container-remap-root", "--no-container-entrypoint", "--container-writable", *options),
        ),
        start=("true",),
        remove=("bash", "-c", 'enroot list | grep -E "$1" | xargs -r enroot remove --force', "enroot", names),
        is_there=True,
    )


_HAND_ON = (
    "for name in ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; do "
    '[ -z "${!name-}" ] || export "APPTAINERENV_$name=${!name}"; done; exec "$@"'
)


def _of_apptainer(plan: RunPlan, options: Sequence[str], image: str) -> Container:
    """Return a container of Apptainer, one for each action; what an action writes outside of mounts is gone after it.

    Of the node's environment it has what hides the GPUs that are others'.
    """
    vendor = {"AMD": ["--rocm"], "NVIDIA": ["--nv"]}.get(plan.machine.vendor, [])
    return Container(
        enter=(
            *("bash", "-c", _HAND_ON, "bash"),
            *("apptainer", "exec", "--no-home", "--writable-tmpfs", "--cleanenv", *vendor),
            *(word for text in _mounts(plan) for word in ("--bind", text)),
            *("--pwd", plan.inside, *options, image),
        ),
        is_there=True,
    )


_RENDER = "/dev/dri/renderD"


def _render_nodes(plan: RunPlan, gpu_ids: Iterable[int]) -> dict[int, str]:
    """Return the render nodes of GPUs of AMD, on the node that madlite is on, by their numbers."""
    minors = {gpu.index: gpu.render_minor for gpu in plan.machine.gpus}
    known = ((index, minors.get(index)) for index in gpu_ids)
    return {index: f"{_RENDER}{minor}" for index, minor in known if minor is not None}


def _mounts(plan: RunPlan) -> Iterator[str]:
    for mount in container_mounts(plan):
        yield f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
