"""The container of a plan: image, devices, mounts, options and names, as MAD defines them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.files import is_file
from madlite.machine.host import BY_BUS, CUDA_ORDER, hiding_variables
from madlite.machine.host_facts import NumaPlace
from madlite.model import Card, EngineOptions, EnvValue, Image, Machine, Mount, RunPlan, Value
from madlite.plan.context import Context, Options
from madlite.plan.fields import Resolved
from madlite.plan.images import built_image, credential_env, flat, image_name, secret_args
from madlite.plan.inputs import RunInputs
from madlite.secrets import guard

RDMA, PINS_MEMORY = Path("/dev/infiniband"), "IPC_LOCK"


def choose_image(inputs: RunInputs, resolved: Resolved) -> tuple[Image | None, str]:
    """Return a run's image, None without a container, and its origin.

    It is the requested one, a prebuilt one, its Dockerfile's, or its backend's or card's.
    """
    spec, context, in_container = inputs.spec, inputs.context, inputs.runtime.traits.containerised
    image = Image(ref=spec.image) if spec.image else None
    origin = spec.origin.partition(" (")[0] if spec.image != inputs.request.card.image else "card"
    if inputs.options.image:
        image, origin = Image(ref=inputs.options.image), "--image"
    elif requested := str(resolved.plan.get("image", "")):
        image, origin = Image(ref=requested), resolved.origins["image"]
    elif of_context := context.typed.MAD_CONTAINER_IMAGE:
        image, origin = Image(ref=of_context, from_context=True), context.origins.get("MAD_CONTAINER_IMAGE", "context")
    elif inputs.built is not None:
        image, origin = inputs.built, "build manifest"
    elif inputs.dockerfile is not None:
        origin, machine, credentials = "card's Dockerfile", inputs.machine, inputs.credentials or {}
        if in_container:
            architecture = machine.architecture if machine.gpus else ""
            of_card = (inputs.request.card, inputs.dockerfile, inputs.options, context, credentials)
            image = built_image(*of_card, architecture=architecture)
    return image if in_container else None, origin


def _mounts(inputs: RunInputs) -> Iterator[Mount]:
    """Yield the context's mounts, and the key file that the card's clone needs, at the path that credential.json names.

    A relative path is below the workspace: docker would take it for a volume's name.
    """
    for inside, host in inputs.context.typed.docker_mounts.items():
        yield Mount(source=str(inputs.options.workspace / host), target=inside)
    key = (inputs.credentials or {}).get(inputs.request.card.cred, {}).get("ssh_key_file", "")
    if key.startswith("/") and is_file(Path(key)) and inputs.request.card.url:
        yield Mount(source=key, target=key, read_only=True)


def make_devices(machine: Machine, gpu_ids: tuple[int, ...]) -> tuple[str, ...]:
    """Return device files: /dev/fuse as MAD asks for, and AMD's /dev/kfd and render nodes."""
    if machine.vendor == "CPU":
        return ()
    if machine.vendor == "NVIDIA":
        return ("/dev/fuse",)
    minors = [gpu.render_minor for gpu in machine.gpus if gpu.index in gpu_ids and gpu.render_minor is not None]
    return ("/dev/fuse", "/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in minors))


def add_rdma(plan: RunPlan) -> RunPlan:
    """Return the plan of one of several nodes with the network cards that its container needs between them.

    RDMA pins memory, so that the limit of what may be pinned goes.  The card's and user's own options come after these.
    """
    if plan.place.whole:
        return plan
    if not RDMA.is_dir():
        text = f"one of {plan.place.nodes} nodes, and {RDMA} is not here: between nodes RCCL and NCCL use sockets alone"
        return replace(plan, notes=(*plan.notes, text))
    options = plan.engine_options
    extra = options.extra
    return replace(
        plan,
        devices=plan.devices if str(RDMA) in extra else (*plan.devices, str(RDMA)),
        engine_options=replace(
            options,
            cap_add=(*options.cap_add, PINS_MEMORY),
            ulimits=options.ulimits if "memlock" in extra else (*options.ulimits, "memlock=-1"),
        ),
    )


def container_fields(
    inputs: RunInputs, gpu_ids: tuple[int, ...], mounts: tuple[Mount, ...], image: Image | None
) -> dict[str, Any]:
    """Return the fields of a plan that a container adds to it; `mounts` are those of its data."""
    return {
        "mounts": (*mounts, *_mounts(inputs)),
        "devices": make_devices(inputs.machine, gpu_ids),
        "engine_options": _engine_options(inputs),
        "name": container_name(image, inputs.options.contract),
        "give_back": inputs.options.user if inputs.options.user[0] != 0 else None,
    }


def _engine_options(inputs: RunInputs) -> EngineOptions:
    """Return how the container is started: the privileges MAD gives to each vendor's tools, none on a CPU."""
    vendor = inputs.machine.vendor
    caps = {"AMD": ("SYS_PTRACE", "SYS_ADMIN"), "NVIDIA": ("SYS_PTRACE", "SYS_ADMIN", "SYS_NICE"), "CPU": ()}[vendor]
    shared_memory = inputs.context.typed.SHM_SIZE
    own = inputs.context.typed.additional_docker_run_options
    extra = " ".join(filter(None, (inputs.request.card.additional_docker_run_options, own)))
    return EngineOptions(
        ipc="" if shared_memory else "host",
        group_add=("video",) if vendor == "AMD" else (),
        cap_add=caps,
        security_opt=("seccomp=unconfined", "apparmor=unconfined") if vendor != "CPU" else (),
        cpuset=(inputs.context.typed.docker_cpus or "").replace(" ", ""),
        extra=f"{extra} --shm-size={shared_memory}" if shared_memory else extra,
    )


def container_name(image: Image | None, contract: int = 0) -> str:
    """Return the container's name as MAD's tooling looks for it; that of version 1 has not the image's `ci-`."""
    if image is None:
        return ""
    name = flat(image.ref)
    return f"container_{name.removeprefix('ci-') if contract == 1 and image.dockerfile else name}"


def log_name(card: Card, image: Image | None) -> str:
    """Return what the names of a run's logs in the workspace begin with, as MAD's tooling looks for them."""
    if image is None:
        return f"{flat(card.name)}_host"
    own = f"{image_name(card.name, '')}_"  # the rest of such a name: the Dockerfile, and what GPUs it was built for
    if image.dockerfile is not None:
        built_for = image.ref.startswith(own)
        part = image.ref.removeprefix(own) if built_for else image.dockerfile.name.removesuffix(".Dockerfile")
    else:
        part = flat(image.ref)
    return flat(f"{card.name}_{part}")


# The environment of a workload, as MAD scripts expect it, and which variable came from where.
#
# Names and values: madengine's container environment (docs/differences.md lists what differs).

INHERITED = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "NNODES", "NPROC_PER_NODE"),
    *("MAD_MULTI_NODE_RUNNER", "MAD_COLLECT_METRICS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG"),
    *("NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL", "PRIMUS_CONFIG_PATH"),
    *("PRIMUS_CLI_EXTRA", "TORCH_ELASTIC_RDZV_TIMEOUT", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("CUDA_VISIBLE_DEVICES", "MIOPEN_USER_DB_PATH"),
)
PYTHON = "MADLITE_PYTHON"
"""The variable that names a rendered run's interpreter."""
BY_HOST = "runtime host"
"""The origin of what a run without a container is given of its machine."""
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_DETECTED = "ROCM_PATH"  # a null asks for the image's own; others arrive as madengine's do: None, True, False
_RUNNERS = {"deepspeed": "deepspeed --num_gpus={n}", "vllm": "", "sglang": "", "sglang-disagg": "", "primus": ""}

# madengine 1's defaults of multi_node_args, but for the GPUs: those of the run, not of the machine
_ONE_NODE = {
    "RUNNER": "torchrun",
    "NNODES": "1",
    "NODE_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "6006",
    "HOST_LIST": "",
    "NCCL_SOCKET_IFNAME": "",
    "GLOO_SOCKET_IFNAME": "",
}
_TORCHRUN = (
    "torchrun --nproc_per_node {MAD_RUNTIME_NGPUS} --nnodes {NNODES} --node_rank {NODE_RANK} "
    "--master_addr {MASTER_ADDR} --master_port {MASTER_PORT}"
)


class Environment(Value, frozen=True):
    """Variables and the origin of each."""

    values: dict[str, EnvValue]
    origins: dict[str, str]


def make_environment(
    inputs: RunInputs,
    gpu_ids: tuple[int, ...],
    launcher: str,
    data_env: Mapping[str, EnvValue],
    set_env: Mapping[str, str],
) -> Environment:
    """Return the workload's environment; later wins: MAD's, the environment's, the card's, the backend's, what a run
    without a container has of its machine, the user's, its tools' as madengine has it, and --set.
    """
    values: dict[str, EnvValue] = {}
    origins: dict[str, str] = {}
    host_env: dict[str, str] = {}
    if not inputs.runtime.traits.containerised:
        host_env = visible_devices(inputs.machine, gpu_ids, inputs.options.environ) | {PYTHON: inputs.options.python}
    for origin, more in (
        *_from_outside(inputs, len(gpu_ids), launcher),
        ("data.json", data_env),
        ("recipe", inputs.spec.env),
        (BY_HOST, host_env),
        ("environment", guard(_exported_python(inputs))),
        *_from_user(inputs),
        ("--set", guard(set_env)),
    ):
        values.update(more)
        origins.update(dict.fromkeys(more, origin))
    if values.get("HIP_VISIBLE_DEVICES"):
        values.setdefault("RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES", "")
    return Environment(values=values, origins={f"env.{name}": origin for name, origin in origins.items()})


_Sources = Iterator[tuple[str, Mapping[str, EnvValue]]]


def _from_outside(inputs: RunInputs, n_gpus: int, launcher: str) -> _Sources:
    """Yield the variables that MAD's scripts expect from their caller, with origins."""
    card, context, environ = inputs.request.card, inputs.context, inputs.options.environ
    yield "madlite", _mad(card, inputs.machine, inputs.options, n_gpus, launcher)
    yield context.origins.get("multi_node_args", "context"), _v1_runner(context, n_gpus)
    yield context.origins.get("guest_os", "madlite"), {"MAD_GUEST_OS": context.typed.guest_os or "UBUNTU"}
    nodes = inputs.nodes
    yield from ((nodes.origins[name], {name: text}) for name, text in nodes.variables.items())
    yield "environment", guard(_inherited(inputs))
    tokens = {name: environ[name] for name in _HUB_TOKENS if name in environ}
    yield "environment", {**secret_args(environ), **guard(tokens)}
    yield f"credential {card.cred}", credential_env(card, inputs.credentials or {})


def _inherited(inputs: RunInputs) -> dict[str, str]:
    """Return what a run has of its caller's environment.

    What hides GPUs there has decided which ones the run gets: a container counts its own from 0, and on the host
    `visible_devices` says it anew.
    """
    machine, environ = inputs.machine, inputs.options.environ
    decided = () if machine.pretended else hiding_variables(machine.vendor)
    return {name: environ[name] for name in INHERITED if name in environ and name not in decided}


def _from_user(inputs: RunInputs) -> _Sources:
    variables = inputs.context.typed.docker_env_vars.items()
    user = {name: str(value) for name, value in variables if value is not None or name != _DETECTED}
    yield inputs.context.origins.get("docker_env_vars", "context"), guard(user)
    yield "tools", guard(inputs.tools.env)


def _exported_python(inputs: RunInputs) -> dict[str, str]:
    """Return the interpreter that the caller's shell names, as run.sh takes it: on the host, where its path is good."""
    exported = inputs.options.environ.get(PYTHON, "")
    if not exported or inputs.runtime.traits.containerised:
        return {}
    is_path = "/" in exported  # from where the command was typed, which is not where run.sh runs
    return {PYTHON: str(inputs.options.workspace / exported) if is_path else exported}


def visible_devices(machine: Machine, gpu_ids: tuple[int, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hide a host's other GPUs; nothing where all of them, counted from 0, are granted.

    Those that the caller's environment has are among them, for a process of the host would have them otherwise.
    """
    inherited = [name for name in hiding_variables(machine.vendor) if name in environ and not machine.pretended]
    if machine.vendor == "CPU" or (not inherited and gpu_ids == tuple(range(len(machine.gpus)))):
        return {}
    ids = ",".join(map(str, gpu_ids))
    if machine.vendor == "NVIDIA":
        return {CUDA_ORDER: BY_BUS, "CUDA_VISIBLE_DEVICES": ids}  # as what listed them counts
    if "ROCR_VISIBLE_DEVICES" not in inherited:
        return dict.fromkeys(("HIP_VISIBLE_DEVICES", *inherited), ids)
    counted = ",".join(map(str, range(len(gpu_ids))))  # of those that the first one leaves
    return {"ROCR_VISIBLE_DEVICES": ids, **{name: counted for name in ("HIP_VISIBLE_DEVICES", *inherited[1:])}}


def _mad(card: Card, machine: Machine, options: Options, n_gpus: int, launcher: str) -> dict[str, EnvValue]:
    runner = _RUNNERS.get(launcher, "torchrun --standalone --nproc_per_node={n}").format(n=max(1, n_gpus))
    values: dict[str, EnvValue] = {
        "MAD_MODEL_NAME": card.name,
        "JENKINS_BUILD_NUMBER": options.environ.get("BUILD_NUMBER", "0"),
        **machine_variables(machine),
        "MAD_RUNTIME_NGPUS": str(n_gpus),
        "MAD_MULTI_NODE_RUNNER": runner,
    }
    of_card = {"MAD_OUTPUT_CSV": card.multiple_results, "MAD_DATANAME": ",".join(card.data)}
    return values | {name: text for name, text in of_card.items() if text}


def machine_variables(machine: Machine) -> dict[str, str]:
    """Return the variables that describe the machine to MAD's scripts."""
    return {
        "MAD_GPU_VENDOR": machine.vendor,
        "MAD_SYSTEM_NGPUS": str(len(machine.gpus)),
        "MAD_SYSTEM_GPU_ARCHITECTURE": machine.architecture,
        "MAD_SYSTEM_GPU_PRODUCT_NAME": machine.product,
        "MAD_SYSTEM_HIP_VERSION": ".".join((machine.rocm_version or machine.cuda_version).split(".")[:2]),
    }


def _v1_runner(context: Context, n_gpus: int) -> dict[str, EnvValue]:
    """Return madengine 1's launcher of a node, where the context has its `multi_node_args`."""
    arguments = context.typed.multi_node_args
    if arguments is None:
        return {}
    values = {**_ONE_NODE, "MAD_RUNTIME_NGPUS": str(n_gpus), **{name: str(value) for name, value in arguments.items()}}
    interfaces = f"NCCL_SOCKET_IFNAME={values['NCCL_SOCKET_IFNAME']} GLOO_SOCKET_IFNAME={values['GLOO_SOCKET_IFNAME']}"
    if values["RUNNER"] == "mpirun":
        ranks = int(values["NNODES"]) * int(values["MAD_RUNTIME_NGPUS"])
        hosts = values["HOST_LIST"] or f"localhost:{values['MAD_RUNTIME_NGPUS']}"
        return {"MAD_MULTI_NODE_RUNNER": f"mpirun -np {ranks} --host {hosts}"}
    return {"MAD_MULTI_NODE_RUNNER": f"{interfaces} {_TORCHRUN.format(**values)}"}


# Other GPUs than those that a plan was made with: the ones that are free when its run starts.


def with_devices(plan: RunPlan, machine: Machine, gpu_ids: tuple[int, ...]) -> RunPlan:
    """Return the plan with the device files of other GPUs, or of another machine's, in the place of its own."""
    old = make_devices(plan.machine, plan.place.gpu_ids)
    rest = (device for device in plan.devices if device not in old)
    return replace(plan, devices=(*make_devices(machine, gpu_ids), *rest) if plan.devices else ())


def is_pinned(plan: RunPlan) -> bool:
    """Return whether a run has to have the GPUs of its plan: what the user set of it counts them."""
    return any(
        name in plan.env and plan.origins.get(f"env.{name}") != BY_HOST
        for name in hiding_variables(plan.machine.vendor)
    )


def bind_gpus(plan: RunPlan, gpu_ids: tuple[int, ...], environ: Mapping[str, str]) -> RunPlan:
    """Return the plan of a run that gets these GPUs, as many as it has: its devices, and what hides the others.

    One that `is_pinned` can have no others than its own.
    """
    if gpu_ids == plan.place.gpu_ids:
        return plan
    hiding: dict[str, EnvValue] = {}
    if not plan.traits.containerised:
        hiding.update(visible_devices(plan.machine, gpu_ids, environ))
    names = {*hiding_variables(plan.machine.vendor)}
    names |= {CUDA_ORDER} if plan.origins.get(f"env.{CUDA_ORDER}") == BY_HOST else set()
    rest = {name: value for name, value in plan.env.items() if name not in names}
    return replace(
        with_devices(plan, plan.machine, gpu_ids),
        place=replace(plan.place, gpu_ids=gpu_ids),
        env={**rest, **hiding},
        origins={**plan.origins, **{f"env.{name}": BY_HOST for name in hiding}},
    )


def bind_numa(plan: RunPlan, near: NumaPlace) -> RunPlan:
    """Return the plan with the CPUs and the memory that its run is kept to; CPUs that the user chose stay."""
    options = plan.engine_options
    if options.cpuset or "--cpuset" in options.extra:
        return plan
    return replace(plan, engine_options=replace(options, cpuset=near.cpus, cpuset_mems=near.nodes))
