"""Checks of the software: plugins, leases of GPUs, optional packages, container engine, torch, hub, scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from madlite.assets.paths import find_token, hub_endpoint, is_offline, stored_token
from madlite.doctor.check import UNREADABLE, Answer, Target
from madlite.errors import RuntimeProblem
from madlite.machine.host import ToolOutput, find_tool, run_tool
from madlite.machine.products import Peak, find_peak
from madlite.machine.sources.base import parse_float
from madlite.model import Machine
from madlite.text import change, counted, figure, percent

_DEVELOPERS = ("dev", "testing")  # extras that nobody needs who measures
_EXTRA = re.compile(r"([\w.-]+).*;.*\bextra == ['\"]([\w.-]+)['\"]")
_TORCH = (
    "import torch; build = torch.version.hip or torch.version.cuda; "
    "print('torch', torch.__version__, build, torch.cuda.device_count())"
)
_NO_TORCH = "No module named 'torch'"
_NODE = 8  # GPUs
_HEALTH_S = 120.0  # for measuring a GPU, or all of them together
_SCHEDULERS = (("spur", "version"), ("scontrol", "--version"))  # SPUR has Slurm's commands too: it is asked first


def leases(target: Target, right: str) -> Answer | None:
    """Check that no run has a GPU."""
    if not target.gpus:
        return None
    return Answer("; ".join(target.leases_held) or "none held", not target.leases_held)


def plugins(target: Target, right: str) -> Answer:
    """Check that all plugins can be loaded."""
    problems = target.plugin_problems
    return Answer("; ".join(problems) or f"{target.plugins} loaded", not problems)


def extras(target: Target, right: str) -> Answer:
    """Report which optional packages are installed."""
    try:
        lines = metadata.requires("madlite") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return Answer(UNREADABLE)
    needed: dict[str, list[str]] = {}
    for match in filter(None, map(_EXTRA.match, lines)):
        needed.setdefault(match[2], []).append(match[1])
    installed = [
        name for name, packages in needed.items() if name not in _DEVELOPERS and all(map(_is_installed, packages))
    ]
    lacking = [name for name in needed if name not in (*installed, *_DEVELOPERS)]
    absent = f"; not installed: {', '.join(lacking)}" if lacking else ""
    return Answer(f"{', '.join(installed) or 'none'}{absent}", True)


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def engine(target: Target, right: str) -> Answer:
    """Check that a container engine answers; one that is not installed is not missed."""
    from madlite.images.client import ANSWER_LIMIT_S, connected, docker_address

    env = target.host.env
    if not (env.get("DOCKER_HOST") or any(find_tool(target.host, tool) for tool in ("docker", "podman"))):
        return Answer("none is installed")
    try:
        with connected(env, ANSWER_LIMIT_S) as client:
            client.ping()
    except RuntimeProblem as problem:
        return Answer(problem.message, False, fix=problem.hint if problem.hint.startswith("sudo") else "")
    return Answer(docker_address(env), True)


def torch(target: Target, right: str) -> Answer:
    """Check that the torch of python3, which runs without a container use, sees the GPUs."""
    output = run_tool(target.host, "python3", "-c", _TORCH)
    if output.problem:
        return Answer("python3 has no torch" if _NO_TORCH in output.problem else output.problem)
    facts = re.search(r"^torch (\S+) (\S+) (\d+)$", output.text, re.MULTILINE)
    if facts is None:
        return Answer(UNREADABLE)
    version, build, count = facts.groups()
    text = f"{version}, {'for CPUs' if build == 'None' else f'built for {build}'}, {counted(int(count), 'GPU')}"
    return Answer(text, int(count) == len(target.gpus), counted(len(target.gpus), "GPU"))


def gemm(target: Target, right: str) -> Answer | None:
    """Measure the GPUs' matrix units, also as a part of the data sheet's peak."""
    machine = Machine(vendor=target.vendor, device=target.device, gpus=target.gpus)
    peak = find_peak(machine, [gpu.index for gpu in target.gpus], "BF16")
    return _speeds(target, "gemm", right, peak.tflops if isinstance(peak, Peak) else 0.0)


def copy(target: Target, right: str) -> Answer | None:
    """Measure the GPUs' memory."""
    return _speeds(target, "copy", right)


def all_reduce(target: Target, right: str) -> Answer | None:
    """Measure the links between the GPUs."""
    count = len(target.gpus)
    return _judged({f"{count} GPUs": _speed_of(target, "reduce", count)}, right) if count > 1 else None


def all_reduce_large(target: Target, right: str) -> Answer | None:
    """Measure the links between eight GPUs with a message of 8 GiB, for which alone there is a figure."""
    count = len(target.gpus)
    return _judged({f"{count} GPUs": _speed_of(target, "reduce", count, "8192")}, right) if count == _NODE else None


def _speeds(target: Target, what: str, right: str, peak: float = 0.0) -> Answer | None:
    """Measure each GPU in a process of its own, all at once: one whose driver hangs is ended."""
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda gpu: _speed_of(target, what, gpu), range(len(target.gpus))))
    return _judged({f"GPU {gpu}": output for gpu, output in enumerate(outputs)}, right, peak) if outputs else None


def _speed_of(target: Target, what: str, number: int, *more: str) -> ToolOutput:
    patient = replace(target.host, limit_s=_HEALTH_S)
    return run_tool(patient, "python3", str(Path(__file__).with_name("health.py")), what, str(number), *more)


def _judged(outputs: Mapping[str, ToolOutput], right: str, peak: float = 0.0) -> Answer:
    """Return the median of the figures, the lowest with its distance from it, and what part of a peak the median is."""
    if any(_NO_TORCH in output.problem for output in outputs.values()):
        return Answer("python3 has no torch")
    last = {name: parse_float((output.text.splitlines() or [""])[-1]) for name, output in outputs.items()}
    values = {name: value for name, value in last.items() if value is not None and not outputs[name].problem}
    if failed := [f"{name}: {outputs[name].problem or 'no figure'}" for name in outputs if name not in values]:
        return Answer("; ".join(failed), False, "a figure of each")
    middle, lowest = median(values.values()), min(values, key=lambda name: values[name])
    text = figure(middle)
    if len(values) > 1:
        text += f", of {counted(len(values), 'GPU')} {lowest} the least with {figure(values[lowest])}"
        text += f" ({change(values[lowest] / middle - 1)})"
    return Answer(
        text + (f", {percent(middle / peak)} of the data sheet's {figure(peak)}" if peak else ""),
        values[lowest] >= float(right) if right else None,
        f"{right} at least" if right else "",
    )


def token(target: Target, right: str) -> Answer:
    """Check that a token of the Hugging Face hub is set."""
    own = find_token(target.host.env) or stored_token()
    return Answer(f"set by {own.origin}" if own else "none", own is not None)


def hub(target: Target, right: str) -> Answer | None:
    """Check that the hub answers and knows the token."""
    from madlite.assets.web import client, is_foreign, status_of

    own = find_token(target.host.env) or stored_token()
    if own is None or is_offline(target.host.env):
        return None
    endpoint = hub_endpoint(target.host.env)
    try:
        client().HfApi(endpoint=endpoint, token=own.value.reveal()).whoami()
    except Exception as error:
        if not is_foreign(error):
            raise
        status = status_of(error)
        return Answer(f"{endpoint} answers {status}" if status else f"{endpoint} does not answer", False)
    return Answer(f"{endpoint} knows the token", True)


def scheduler(target: Target, right: str) -> Answer | None:
    """Report the scheduler of the cluster."""
    texts = (run_tool(target.host, *command).text.strip() for command in _SCHEDULERS)
    text = next(filter(None, texts), "")
    return Answer(text.splitlines()[0], True) if text else None


def mpi(target: Target, right: str) -> Answer | None:
    """Check that srun can start ranks by PMIx."""
    return _srun(target, "--mpi=list", "pmix")


def containers(target: Target, right: str) -> Answer | None:
    """Check that srun can start containers."""
    return _srun(target, "--help", "--container-image")


def _srun(target: Target, option: str, word: str) -> Answer | None:
    output = run_tool(target.host, "srun", option)
    listed = Answer(word if word in output.text else f"no {word}", word in output.text)
    return None if output.absent else Answer(output.problem) if output.problem else listed
