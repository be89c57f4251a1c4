"""The environment of a workload, as MAD scripts expect it, and which variable came from where.

Names and values: madengine's container environment (docs/differences.md lists what differs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from madlite.model import Card, EnvValue, Machine, Value
from madlite.plan.context import Context, Options
from madlite.plan.images import credential_env, secret_args
from madlite.plan.inputs import RunInputs
from madlite.secrets import guard

INHERITED = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "NODE_RANK",
    "NNODES",
    "NPROC_PER_NODE",
    "MAD_MULTI_NODE_RUNNER",
    "MAD_COLLECT_METRICS",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_NET_GDR_LEVEL",
    "PRIMUS_CONFIG_PATH",
    "PRIMUS_CLI_EXTRA",
    "TORCH_ELASTIC_RDZV_TIMEOUT",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "MIOPEN_USER_DB_PATH",
]
PYTHON = "MADLITE_PYTHON"
"""The variable that names a rendered run's interpreter."""
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
    *,
    n_gpus: int,
    launcher: str,
    data_env: Mapping[str, EnvValue],
    host_env: Mapping[str, str],
    set_env: Mapping[str, str],
) -> Environment:
    """Return the workload's environment; later wins: MAD's, the environment's, the card's, the backend's, the user's,
    its tools' as madengine has it, and --set.

    `host_env` is what the runtime `host` adds to the backend's.
    """
    values: dict[str, EnvValue] = {}
    origins: dict[str, str] = {}
    for origin, more in (
        *_from_outside(inputs, n_gpus, launcher),
        ("data.json", data_env),
        ("recipe", inputs.draft.env),
        ("runtime host", host_env),
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
    """Yield what MAD's scripts are given by whoever runs them, with its origin."""
    card, context, environ = inputs.request.card, inputs.context, inputs.options.environ
    yield "madlite", _mad(card, inputs.machine, inputs.options, n_gpus, launcher)
    yield context.origins.get("multi_node_args", "context"), _v1_runner(context, n_gpus)
    yield context.origins.get("guest_os", "madlite"), {"MAD_GUEST_OS": context.known.guest_os or "UBUNTU"}
    yield "environment", guard({name: environ[name] for name in INHERITED if name in environ})
    tokens = {name: environ[name] for name in _HUB_TOKENS if name in environ}
    yield "environment", {**secret_args(environ), **guard(tokens)}
    yield f"credential {card.cred}", credential_env(card, inputs.credentials or {})


def _from_user(inputs: RunInputs) -> _Sources:
    variables = inputs.context.known.docker_env_vars.items()
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


def visible_devices(machine: Machine, gpu_ids: tuple[int, ...]) -> dict[str, str]:
    """Return the variable that hides a host's other GPUs; nothing where all of them, counted from 0, are granted."""
    if machine.vendor == "CPU" or gpu_ids == tuple(range(len(machine.gpus))):
        return {}
    name = "HIP_VISIBLE_DEVICES" if machine.vendor == "AMD" else "CUDA_VISIBLE_DEVICES"
    return {name: ",".join(map(str, gpu_ids))}


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
    """Return what MAD's scripts are told of the machine that they run on."""
    return {
        "MAD_GPU_VENDOR": machine.vendor,
        "MAD_SYSTEM_NGPUS": str(len(machine.gpus)),
        "MAD_SYSTEM_GPU_ARCHITECTURE": machine.architecture,
        "MAD_SYSTEM_GPU_PRODUCT_NAME": machine.product,
        "MAD_SYSTEM_HIP_VERSION": _release(machine),
    }


def _v1_runner(context: Context, n_gpus: int) -> dict[str, EnvValue]:
    """Return madengine 1's launcher of a node, where the context has its `multi_node_args`."""
    inputs = context.known.multi_node_args
    if inputs is None:
        return {}
    asked = {**_ONE_NODE, "MAD_RUNTIME_NGPUS": str(n_gpus), **{name: str(value) for name, value in inputs.items()}}
    interfaces = f"NCCL_SOCKET_IFNAME={asked['NCCL_SOCKET_IFNAME']} GLOO_SOCKET_IFNAME={asked['GLOO_SOCKET_IFNAME']}"
    if asked["RUNNER"] == "mpirun":
        ranks = int(asked["NNODES"]) * int(asked["MAD_RUNTIME_NGPUS"])
        hosts = asked["HOST_LIST"] or f"localhost:{asked['MAD_RUNTIME_NGPUS']}"
        return {"MAD_MULTI_NODE_RUNNER": f"mpirun -np {ranks} --host {hosts}"}
    return {"MAD_MULTI_NODE_RUNNER": f"{interfaces} {_TORCHRUN.format(**asked)}"}


def _release(machine: Machine) -> str:
    """Return major.minor of ROCm or CUDA."""
    return ".".join((machine.rocm_version or machine.cuda_version).split(".")[:2])
