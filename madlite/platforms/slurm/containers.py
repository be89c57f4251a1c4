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
from madlite.model import RunPlan
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


class Container:
    """What the containers of one run are, commands of one node each; of the node itself there are none."""

    is_there = False  # else commands are the node's own
    signals_inside = False  # whether processes are known by other numbers inside

    def step_options(self) -> list[str]:
        """Return options for srun itself."""
        return []

    def start(self) -> list[str]:
        """Return the command that starts a container; none where nothing is held open."""
        return []

    def enter(self) -> list[str]:
        """Return what stands before a command that runs in it."""
        return []

    def remove(self) -> list[str]:
        """Return the command that ends what was started."""
        return []


class EngineContainer(Container):
    """A container of docker or podman that is held open on each node."""

    is_there = signals_inside = True

    def __init__(self, engine: str, plan: RunPlan, options: Sequence[str], environ: Mapping[str, str]) -> None:
        self._engine, self._plan, self._options, self._environ = engine, plan, options, environ

    def start(self) -> list[str]:
        """Return `docker run`: what the docker runtime asks its engine for, in the words of the command line."""
        plan, asked = self._plan, self._plan.engine_options
        image = plan.image.ref if plan.image is not None else ""
        lists = (
            ("--group-add", self._groups()),
            ("--cap-add", asked.cap_add),
            ("--security-opt", asked.security_opt),
            ("--ulimit", asked.ulimits),
            (
                "--device",
                (device for device in plan.devices if device not in _render_nodes(plan, plan.place.gpu_ids).values()),
            ),
        )
        return [
            *(self._engine, "run", "--detach", "--init", "--pull=never", "--name", container_name(plan)),
            *("--label", f"{RUN_LABEL}={plan.id}", "--label", f"{FOLDER_LABEL}={plan.folder}"),
            *("--user", asked.user, "--network", asked.network, "--ipc", asked.ipc, "--workdir", plan.inside),
            *(f"{name}={value}" for name, values in lists for value in values),
            *([f"--cpuset-cpus={asked.cpuset}"] if asked.cpuset else []),
            *([f"--cpuset-mems={asked.cpuset_mems}"] if asked.cpuset_mems else []),
            *self._gpus(),
            *self._rdma(),
            *(word for text in _mounts(plan) for word in ("--volume", text)),
            *split_words(asked.extra, self._environ),
            *self._options,
            *("--entrypoint", "sleep", image, "infinity"),
        ]

    def enter(self) -> list[str]:
        """Return `docker exec`."""
        return [self._engine, "exec", container_name(self._plan)]

    def remove(self) -> list[str]:
        """Return `docker rm`."""
        return [self._engine, "rm", "--force", "--volumes", container_name(self._plan)]

    def _gpus(self) -> list[str]:
        """Return the word of the run's GPUs, which each node fills in with those that Slurm gives it there."""
        plan = self._plan
        ids = ",".join(str(index) for index in plan.place.gpu_ids)
        if plan.machine.vendor == "AMD":
            nodes = _render_nodes(plan, (gpu.index for gpu in plan.machine.gpus))
            renders = ",".join(f"{index}:{name.removeprefix(_RENDER)}" for index, name in nodes.items())
            word = f"--device={_RENDER}{{render}}" if renders else ""
        else:
            renders, word = "", "--device=nvidia.com/gpu={id}"
            if self._engine == "docker":  # the value is a line of CSV: without quotes a comma ends the list
                word = '--gpus="device={ids}"'
        return [OF_GPUS.format(ids=ids, renders=renders) + word] if ids and word else []

    def _rdma(self) -> list[str]:
        """Return what a container of several nodes needs of the network cards, for nodes that have some: they know it.

        A rootless podman may not raise the limit of what is pinned: its containers have the caller's.
        """
        plan, extra = self._plan, self._plan.engine_options.extra
        if plan.place.nodes < 2 or plan.machine.vendor == "CPU":
            return []
        words = [] if str(RDMA) in extra else [f"--device={RDMA}"]
        words.append("--cap-add=IPC_LOCK")
        if "memlock" not in extra and not self._is_rootless:
            words.append("--ulimit=memlock=-1")
        return [f"{WHERE_RDMA}{word}" for word in words]

    @property
    def _is_rootless(self) -> bool:
        return self._engine == "podman" and os.geteuid() != 0

    def _groups(self) -> tuple[str, ...]:
        """Return the groups of the container: a rootless podman has the caller's own, under no name of the image."""
        asked = self._plan.engine_options.group_add
        return ("keep-groups",) if asked and self._is_rootless else asked


class PyxisContainer(Container):
    """A container of enroot that srun's plugin pyxis starts; under its name it stays as it is while the job goes on."""

    is_there = True

    def __init__(self, plan: RunPlan, options: Sequence[str], image: str) -> None:
        self._plan, self._options, self._image = plan, options, image

    def step_options(self) -> list[str]:
        """Return the options of pyxis."""
        plan = self._plan
        mounts = ",".join(_mounts(plan))
        return [
            *(f"--container-image={self._image}", f"--container-name=madlite-{plan.id}"),
            *(f"--container-mounts={mounts}", f"--container-workdir={plan.inside}"),
            *("--container-remap-root", "--no-container-entrypoint", "--container-writable", *self._options),
        ]

    def start(self) -> list[str]:
        """Return nothing's start: the first step unpacks the image, and what is unpacked stays as it has a name."""
        return ["true"]

    def remove(self) -> list[str]:
        """Return the removal of what was unpacked, by pyxis's names of it in enroot: a job's, and a node's."""
        names = f"^pyxis_([0-9]+_)?madlite-{re.escape(self._plan.id)}$"
        return ["bash", "-c", 'enroot list | grep -E "$1" | xargs -r enroot remove --force', "enroot", names]


_HAND_ON = (
    "for name in ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; do "
    '[ -z "${!name-}" ] || export "APPTAINERENV_$name=${!name}"; done; exec "$@"'
)


class ApptainerContainer(Container):
    """A container of Apptainer, one for each action; what an action writes outside of mounts is gone after it."""

    is_there = True

    def __init__(self, plan: RunPlan, options: Sequence[str], image: str) -> None:
        self._plan, self._options, self._image = plan, options, image

    def enter(self) -> list[str]:
        """Return `apptainer exec`, which of the node's environment has what hides the GPUs that are others'."""
        vendor = {"AMD": ["--rocm"], "NVIDIA": ["--nv"]}.get(self._plan.machine.vendor, [])
        binds = [word for text in _mounts(self._plan) for word in ("--bind", text)]
        return [
            *("bash", "-c", _HAND_ON, "bash"),
            *("apptainer", "exec", "--no-home", "--writable-tmpfs", "--cleanenv", *vendor, *binds),
            *("--pwd", self._plan.inside, *self._options, self._image),
        ]


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
        return EngineContainer(flavour, plan, options, environ)
    image = image_file or (plan.image.ref if plan.image is not None else "")
    if flavour == "pyxis":
        return PyxisContainer(plan, options, image)
    if flavour == "apptainer":
        return ApptainerContainer(plan, options, image)
    what = f"${VARIABLE} is {flavour!r}, no container of nodes"
    raise UsageProblem(what, f"one of {', '.join(FLAVOURS)}; container in cluster.toml sets it")


_RENDER = "/dev/dri/renderD"


def _render_nodes(plan: RunPlan, gpu_ids: Iterable[int]) -> dict[int, str]:
    """Return the render nodes of GPUs of AMD, on the node that madlite is on, by their numbers."""
    minors = {gpu.index: gpu.render_minor for gpu in plan.machine.gpus}
    known = ((index, minors.get(index)) for index in gpu_ids)
    return {index: f"{_RENDER}{minor}" for index, minor in known if minor is not None}


def _mounts(plan: RunPlan) -> Iterator[str]:
    for mount in container_mounts(plan):
        yield f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")
