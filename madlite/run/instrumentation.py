"""What is observed around a run's own step: what it ran on and with is probed before it, GPUs are sampled beside it."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import cast

import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.cancellation import in_thread
from madlite.errors import MadliteError, RuntimeProblem
from madlite.files import Folder, digest_of, read_plain
from madlite.machine.host import Host, ToolOutput, visible_gpus
from madlite.machine.host_facts import host_facts, host_warnings
from madlite.machine.processes import RUN_MARK, OwnProcesses
from madlite.machine.sources.base import Reading, Sample
from madlite.machine.telemetry import (
    TOOLS,
    Sampler,
    SamplingTarget,
    Settle,
    StartReader,
    packages,
    settling_text,
    summarise,
    telemetry_findings,
)
from madlite.measure.steps import slow_findings, with_slow
from madlite.model import (
    Action,
    Chunk,
    EnvValue,
    Exit,
    Gpu,
    GpuStart,
    GpuUse,
    Machine,
    NodeUse,
    Provenance,
    Quantity,
    Result,
    RunPlan,
    Say,
    Secret,
    Session,
    Settling,
    Telemetry,
    Window,
)
from madlite.model.protocols import GpuSession
from madlite.plan.container import PYTHON
from madlite.plan.submission import PlannedRun
from madlite.run import probe_inside
from madlite.run.probe_inside import shortened
from madlite.run.stop import StopControl
from madlite.secrets import MASK, is_secret

# What a run ran on and with: its plan, its machine, and what a short probe in its session finds before its model.
#
# The probe can fail in every way without a consequence but a note: the workload neither sees nor waits for more than
# its limit.


LIMIT_S = 8.0
MOST_BYTES = 256 << 10
# what of the environment can change a training's speed: names that begin so, and whole ones
PREFIXES = (
    *("NCCL_", "RCCL_", "HSA_", "HIP_", "ROCR_", "ROCM_", "GPU_", "AMD_", "CUDA_", "NVIDIA_TF32", "NVTE_", "TE_"),
    *("TORCH", "PYTORCH_", "TRITON_", "MIOPEN_", "ROCBLAS_", "HIPBLAS", "TENSILE_", "CUBLAS_", "CUDNN_"),
    *("OMP_", "MKL_", "KMP_", "GLOO_", "UCX_", "FI_", "OMPI_", "MAD_", "PRIMUS_", "MEGATRON_", "XLA_", "FSDP_"),
    *("HF_HUB_", "HF_DATASETS_", "ACCELERATE_", "DEEPSPEED_", "CK_", "AITER_"),
)
NAMES = (
    *("HF_HOME", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("NVIDIA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "NNODES"),
    "NPROC_PER_NODE",
)
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "torchtitan", "torchao", "torchtune", "torchdata", "torchcodec"),
    *("transformers", "accelerate", "peft", "trl", "datasets", "tokenizers", "safetensors", "huggingface-hub"),
    *("diffusers", "deepspeed", "bitsandbytes", "megatron-core", "megatron-bridge", "nemo-toolkit", "primus"),
    *("primus-turbo", "triton", "pytorch-triton-rocm", "pytorch-triton", "transformer-engine"),
    *("transformer-engine-torch", "flash-attn", "xformers", "apex", "aiter", "grouped-gemm", "mamba-ssm"),
    *("causal-conv1d", "liger-kernel", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12"),
    *("nvidia-cudnn-cu13", "nvidia-cublas-cu12", "fairscale", "fbgemm-gpu", "torchrec", "lightning"),
)
BELOW = ("/workspace", "/opt", "~")  # where images keep what they brought
# by the Python that the workload is started with, where its real name is one: any other launcher may start the workload
_START = """
python=$(command -v -- "NAMED")
case $(readlink -f -- "$python") in
  */python | */python[0-9] | */python[0-9].[0-9]* | */pypy*) ;;
  *) python=python3 ;;
esac
PYTHONDONTWRITEBYTECODE=1 exec "$python" -B -c "$1" "$2"
"""


def probe(session: Session, plan: RunPlan, action: Action) -> Provenance:
    """Return what is in the folder and the environment of the action that is to follow."""
    output = bytearray()

    def collect(chunk: Chunk) -> None:
        if (chunk.node, chunk.stream) == (0, 1) and len(output) < MOST_BYTES:
            output.extend(chunk.data[: MOST_BYTES - len(output)])

    named = f"${{{PYTHON}:-python3}}" if plan.templates else "python3"  # a card's own script knows nothing of it
    script, source = _START.replace("NAMED", named), Path(probe_inside.__file__).read_text(encoding="utf-8")
    argv = ("sh", "-c", script, "madlite-probe", source, json.dumps(_probe_request(plan)))
    try:
        ended = session.run(replace(action, kind="prepare", argv=argv, timeout_s=LIMIT_S), collect)
    except RuntimeProblem as problem:  # of a container that is gone the workload will say so itself
        return Provenance(notes=(f"the environment of the run could not be probed: {problem.message}",))
    return read_answer(bytes(output), ended)


def read_answer(output: bytes, ended: Exit) -> Provenance:
    """Return the answer in what the probe printed, beside whatever else was printed there."""
    mark = probe_inside.MARK.encode()
    lines = [line[len(mark) :] for line in output.split(b"\n") if line.startswith(mark)]
    try:
        return msgspec.json.decode(lines[-1], type=Provenance)
    except (IndexError, msgspec.DecodeError, UnicodeDecodeError):
        why = "there is no Python" if ended.code == 127 else f"the probe ended with exit code {ended.code}"
        why = f"the probe did not end within {LIMIT_S:g} s" if ended.timed_out else why
        return Provenance(notes=(f"the environment of the run is unknown: {why}",))


def _probe_request(plan: RunPlan) -> dict[str, object]:
    """Return what to look for; on a host the user's other repositories must not be reported."""
    in_container = plan.traits.containerised
    return {
        "packages": PACKAGES,
        "prefixes": PREFIXES,
        "names": NAMES,
        "up": [".", *([plan.inside] if in_container else [])],
        "below": [*BELOW, plan.inside] if in_container else [],
    }


# What the record has of it.

_MOST_LABELS = 64
_GIB = 1 << 30
# user and password of a URL; a password can hold a / or an @, a port is none; bounded, for labels are of any length
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@[]*:(?!\d{1,5}/)\S{1,500})(?=@)")


def make_provenance(
    planned: PlannedRun, plugins: Plugins, labels: Mapping[str, str], inside: Provenance, facts: Mapping[str, str]
) -> Provenance:
    """Return where a run's number comes from.

    `labels` are its image's, `inside` what its probe reported, `facts` what its GPUs' driver reports.
    """
    script, digest = _script(planned)
    started = [script] if script and not planned.plan.templates else _started_script(planned.plan)
    shown = dict(list(labels.items())[:_MOST_LABELS])
    return Provenance(  # of what the probe answered only what it is asked for: a workload can print an answer
        inside=inside.inside,
        packages=inside.packages,
        repositories=inside.repositories,
        notes=inside.notes,
        versions=versions(plugins),
        script=script,
        script_sha256=digest,
        files=python_files(planned.plan.workspace, started),
        labels={name: _shown(name, text) for name, text in shown.items()},
        host=_host_facts(planned.plan),
        gpu=gpu_facts(planned.plan.machine, planned.plan.place.gpu_ids, facts),
        environment={
            name: _shown(name, text)
            for name, text in sorted((inside.environment or relevant(planned.plan.env)).items())
        },
    )


def _host_facts(plan: RunPlan) -> dict[str, str]:
    if not plan.traits.local:
        return {}
    if plan.machine.vendor == "CPU":
        return host_facts()
    from madlite.doctor.examine import recorded_facts  # with every check of a machine

    return recorded_facts()


def gpu_facts(machine: Machine, gpu_ids: Iterable[int], driver_facts: Mapping[str, str]) -> dict[str, str]:
    """Return what the run's GPUs are, as detected, and what their driver `driver_facts`; nothing without a GPU."""
    used = [gpu for gpu in machine.gpus if gpu.index in tuple(gpu_ids)]
    if not used:
        return {}
    sizes = dict.fromkeys(f"{gpu.memory_bytes / _GIB:.1f}" for gpu in used if gpu.memory_bytes)
    values = {
        "count": str(len(used)),
        "product": machine.product,
        "architecture": machine.architecture,
        "memory_gib": ", ".join(sizes),
        "driver": machine.driver_version,
        "rocm": machine.rocm_version,
        "cuda": machine.cuda_version,
        **driver_facts,
    }
    return {name: text for name, text in values.items() if text}


def relevant(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Return the variables of a plan that can change a training's speed, for a run that was not probed."""
    return {
        name: MASK.decode() if isinstance(value, Secret) else value
        for name, value in env.items()
        if name in NAMES or name.startswith(PREFIXES)
    }


def _shown(name: str, text: str) -> str:
    """Return a value without what is secret in it: all of it under a name that says so, else a URL's user."""
    if is_secret(name, text):
        return MASK.decode()
    return shortened(_USER.sub(MASK.decode(), text))


def versions(plugins: Plugins) -> dict[str, str]:
    """Return the version of madlite and of each plugin's distribution."""
    from madlite import __version__

    found = plugins.loaded.values()
    others = {plugin.distribution: plugin.version for plugin in found if plugin.distribution and plugin.version}
    unknown = {f"plugin {plugin.name}": "unknown" for plugin in found if plugin.distribution not in others}
    return {**others, **unknown, "madlite": __version__}


def _script(planned: PlannedRun) -> tuple[str, str]:
    """Return the script that runs, relative to the workspace, and its SHA-256; of a folder it is the run.sh in it."""
    plan = planned.plan
    rendered = next((file for file in planned.files if file.path == "run.sh"), None)
    if rendered is not None:
        return str(plan.folder.relative_to(plan.workspace) / rendered.path), hashlib.sha256(rendered.data).hexdigest()
    path = plan.card.scripts
    if not path:
        return "", ""
    digests = ((name, digest_of(plan.workspace / name)) for name in (path, f"{path}/run.sh"))
    return next(((name, digest) for name, digest in digests if digest), ("", ""))


def _started_script(plan: RunPlan) -> list[str]:
    """Return the user's script that a rendered one starts, by the setting `script`."""
    name = str(plan.settings.get("script", ""))
    return [name] if name and not name.startswith(("-", "{")) and plan.templates else []


# The files of a training beside its script: what a run of the same card reads when they were edited.

_MOST_FILES = 200
_MOST_BYTES = 4 << 20  # of a script that is read for what it starts and imports
_STARTED = re.compile(r"[\w./-]+\.(?:py|sh)\b")
_MODULE = re.compile(r"(?<=-m )\s*[A-Za-z_][\w.]*")


def python_files(workspace: Path, scripts: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of user's scripts, what they start, and the Python files below their folders that they import.

    Names are relative to the workspace.  A shell script is searched for names of scripts and for `-m module`; imports
    are read and never executed, so that one which is computed is not seen.
    """
    found: dict[str, str] = {}
    for script in scripts:
        folder = (workspace / script).parent
        left = [workspace / script]
        while left and len(found) < _MOST_FILES:
            path = left.pop()
            name = os.path.relpath(path, workspace)
            if name in found or name.startswith("..") or not (digest := digest_of(path)):
                continue
            found[name] = digest
            left += (item for item in _named_in(path, folder, workspace) if item.is_relative_to(folder))
    return found


def _named_in(path: Path, folder: Path, workspace: Path) -> Iterator[Path]:
    """Yield where files may be that a script starts or imports."""
    try:
        data = read_plain(path, links=False, limit_bytes=_MOST_BYTES)
    except OSError:
        return
    if path.suffix == ".py":
        yield from _imported(data, path, folder)
        return
    text = data.decode(errors="replace")
    for name in _STARTED.findall(text):
        # behind a variable or a command it begins with a slash: "$(dirname "$0")/train.py"
        yield from (base / os.path.normpath(name.lstrip("/")) for base in (folder, workspace))
    for module in _MODULE.findall(text):
        yield from _files_of(folder, module.strip())


def _imported(data: bytes, path: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _files_of(folder, name.name)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else folder
            for name in node.names:
                yield from _files_of(base, ".".join(filter(None, (node.module, name.name))))


def _files_of(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files of a module and of the packages that it is in."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:count])
        yield from (place / "__init__.py", place / "__main__.py", place.with_name(f"{place.name}.py"))


# The instruments themselves.


def used_gpus(plan: RunPlan) -> tuple[Gpu, ...]:
    """Return the GPUs of a run: what it is granted, less what its environment hides.

    A container counts the GPUs it is given from 0, a process of the host those of the machine.  A list that names no
    GPU of ours is the workload's own business: then the granted ones are meant.
    """
    allocated = [gpu for gpu in plan.machine.gpus if gpu.index in plan.place.gpu_ids]
    counted = allocated if plan.traits.containerised else plan.machine.gpus
    left = visible_gpus(plan.machine.vendor, counted, plan.env)
    return tuple(left or allocated) if allocated else ()


LEAST_INTERVAL_S = 10.0  # a question is a step of the scheduler on each node
REST = 9  # times as long as a node's answer took, in which it is not asked
MOST_NODES = 64  # that are asked: each is a process of this machine
_LIMIT_S = 30.0  # for a tool to answer
_LEAVE_S = 2.0  # for the threads to end
_EVERY = range(1024)  # numbers that a tool may give to a node's GPUs
_LOG = logging.getLogger(__name__)


class NodeSampler:
    """Samples the GPUs of several nodes while `sampling`; elsewhere, and where sampling is off, it does nothing."""

    def __init__(self, plan: RunPlan, now: Callable[[], float]) -> None:
        self._plan, self._now = plan, now
        place = plan.place
        several = 1 < place.spanned <= MOST_NODES and place.gpus_per_node > 0
        self._is_on = several and plan.telemetry_s > 0 and plan.traits.sees_processes
        self._nodes: list[_Node] = []
        self._over = threading.Event()

    @contextmanager
    def sampling(self, session: Session) -> Iterator[None]:
        """Sample while the block runs, each node by a thread of its own: one that does not answer can be left."""
        numbers = range(len(session.nodes)) if self._is_on else ()
        self._nodes = [_Node(session, number, self._plan, self._over, self._now) for number in numbers]
        threads = [in_thread(node.sample, "madlite-node-telemetry") for node in self._nodes]
        try:
            yield
        finally:
            self._over.set()
            wait(threads, _LEAVE_S)

    def over(self, nodes: Sequence[NodeUse], window: Window | None) -> tuple[NodeUse, ...]:
        """Return the nodes with what their GPUs did over the steady window, else over the run."""
        known = {node.number: list(node.samples) for node in self._nodes}
        return tuple(self._with_gpus(node, known.get(node.node, []), window) for node in nodes)

    def _with_gpus(self, node: NodeUse, samples: list[Sample], window: Window | None) -> NodeUse:
        if not samples:
            return node
        began_s, ended_s = (window.began_s, window.ended_s) if window else (None, None)
        machine, ids = self._plan.machine, self._plan.place.gpu_ids
        found = summarise(samples, ids, began_s, ended_s, machine.vendor, packages(machine.gpus))
        return replace(
            node,
            samples=found.samples,
            clock_mhz=_mean(found.gpus, "clock_mhz"),
            power_w=found.power_w,
            utilization_percent=_mean(found.gpus, "utilization_percent"),
            temperature_c=max((gpu.temperature_c for gpu in found.gpus if gpu.temperature_c is not None), default=None),
        )


class _Node:
    """One node's GPUs, by its vendor's tool."""

    def __init__(
        self, session: Session, number: int, plan: RunPlan, over: threading.Event, now: Callable[[], float]
    ) -> None:
        self.number, self.samples = number, list[Sample]()
        self._session, self._over, self._now = session, over, now
        self._interval_s = max(LEAST_INTERVAL_S, plan.telemetry_s)
        self._planned = plan.place.gpu_ids
        self._ids: tuple[int, ...] | None = None
        self._named_by = cast("GpuSession", session) if plan.traits.names_gpus else None
        self._most = 0  # GPUs that its tool has reported at a time
        host = Host(limit_s=_LIMIT_S, call=self._call)
        self._tool = TOOLS[plan.machine.vendor](host, _EVERY, over)

    def sample(self) -> None:
        """Take samples until the run is over, or the tool does not answer."""
        wait_s = 0.0
        while not self._over.wait(wait_s):
            begun_s = time.monotonic()
            try:
                readings = self._tool.read().readings
                own = self._own(readings)
            except Exception:  # noqa: BLE001 - the border to a plugin's runtime: asked again, as one that was disturbed
                _LOG.debug("node %s: its GPUs could not be sampled", self.number, exc_info=True)
            else:
                if not readings:
                    return
                self.samples += [Sample(t_s=round(self._now(), 3), gpus=own)] if own else []
            wait_s = max(self._interval_s, REST * (time.monotonic() - begun_s))

    def _own(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        """Return the readings of the run's GPUs, by the plan's numbers; none where they may be another's.

        A tool that reports as many as the run has reports the run's, however it counts them: as in a container, or in
        a step that may open no others.
        """
        self._most = max(self._most, len(readings))
        if self._most > len(self._planned):
            if self._ids is None and self._named_by is not None:
                self._ids = self._named_by.gpu_ids(self.number)
            readings = [reading for reading in readings if reading.index in (self._ids or ())]
        if len(readings) != len(self._planned):
            return ()
        ordered = sorted(readings, key=lambda reading: reading.index)
        return tuple(replace(item, index=index) for item, index in zip(ordered, self._planned, strict=True))

    def _call(self, command: Sequence[str], limit_s: float) -> ToolOutput:
        if self._over.is_set():
            return ToolOutput(problem="the run is over")
        try:
            done = self._session.probe(command, self.number, limit_s)
        except MadliteError as problem:
            _LOG.debug("node %s: %s", self.number, problem.message)
            return ToolOutput(problem=problem.message)
        text = done.stdout.decode("utf-8", "replace")
        return ToolOutput(text=text, problem="" if done.code == 0 else f"exit code {done.code}", hung=done.code is None)


def _mean(gpus: Sequence[GpuUse], field: str) -> float | None:
    values = [value for gpu in gpus if (value := getattr(gpu, field)) is not None]
    return fmean(values) if values else None


TELEMETRY = "telemetry.jsonl"  # in the run folder


class TelemetryRecorder:
    """Samples the GPUs of one run; without a GPU, and switched off, it does nothing."""

    def __init__(self, plan: RunPlan, host: Host, now: Callable[[], float], settle: Settle | None = None) -> None:
        self._plan, self._host, self._now, self._settle = plan, host, now, settle
        sampled = plan.telemetry_s > 0 and plan.traits.local and not plan.machine.pretended
        self._gpus = used_gpus(plan) if sampled else ()
        self._sampler: Sampler | None = None
        self._start: tuple[GpuStart, ...] = ()
        self._settling: Settling | None = None
        self.notes: tuple[str, ...] = ()  # about the start

    def begin(self, stop: StopControl, say: Say) -> None:
        """Note what the GPUs are like right before the workload begins, once they have settled if that is wanted."""
        settle = self._settle
        if settle is None and not self._gpus:
            return
        with closing(StartReader(self._plan.machine.vendor, self._gpus, self._host)) as reader:
            if settle is None:
                self._start = reader.read()
                return
            over = stop.cancellation.asked
            self._start, self._settling = settle.wait(reader.read, lambda: reader.interval_s, over, say)
        if over.is_set():  # nothing began
            return
        text = settling_text(self._settling) if self._settling is not None else settle.unknown()
        self.notes = (text,) if text else ()

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample while the block runs."""
        if not self._gpus:
            yield
            return
        in_container = self._plan.traits.containerised
        own = OwnProcesses(
            mark=f"{RUN_MARK}={self._plan.id}",
            container=session.handle if in_container else "",
            ancestor=os.getpid(),  # of a container's run too: the tools that we ask can be listed themselves
        )
        vendor, interval_s = self._plan.machine.vendor, self._plan.telemetry_s
        target = SamplingTarget(vendor=vendor, gpus=self._gpus, interval_s=interval_s, own=own, host=self._host)
        self._sampler = Sampler(target, folder, TELEMETRY, self._now)
        self._sampler.start()
        try:
            yield
        finally:
            self._sampler.stop()

    @property
    def foreign_processes(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None if unknown."""
        sampler = self._sampler
        return sampler.foreign_processes if sampler is not None and sampler.processes_known else None

    @property
    def facts(self) -> dict[str, str]:
        """What the GPUs' driver reports of them."""
        return dict(self._sampler.facts) if self._sampler else {}

    def telemetry(self, window: Window | None) -> Telemetry | None:
        """Return what the GPUs did, over the steady window where samples fall into it; None without sampling."""
        sampler = self._sampler
        if sampler is None:
            return None
        began_s, ended_s = (window.began_s, window.ended_s) if window else (None, None)
        indexes = [gpu.index for gpu in self._gpus]
        machine = self._plan.machine
        parts = packages(machine.gpus)
        summary = summarise(list(sampler.samples), indexes, began_s, ended_s, machine.vendor, parts, sampler.source)
        return replace(
            summary,
            interval_s=sampler.interval_s,
            tokens_per_joule=self._tokens_per_joule(window, summary),
            foreign_processes=sampler.foreign_processes,
            processes_known=sampler.processes_known,
            cost=sampler.core_share,
            start=self._start,
            settling=self._settling,
            problem="; ".join(filter(None, (sampler.problem, summary.problem))),
        )

    def _tokens_per_joule(self, window: Window | None, summary: Telemetry) -> float | None:
        """Return tokens by the energy of the same time: not of a window by that of the whole run."""
        if window is None or window.quantity != Quantity.TOKENS_PER_S_PER_GPU or summary.over != "window":
            return None
        return window.median / summary.power_w if summary.power_w else None


NOT_PROBED = Provenance(notes=("the environment of the run was not probed: probe is switched off",))


class Instrumentation:
    """Probe and sample around a run's own step; nothing of it can fail the run."""

    def __init__(
        self, planned: PlannedRun, plugins: Plugins, host: Host, now: Callable[[], float], settle: Settle | None = None
    ) -> None:
        self._planned, self._plugins = planned, plugins
        settle = None if planned.plan.study is not None and planned.plan.study.warm_up else settle
        self._nodes = NodeSampler(planned.plan, now)
        self.telemetry = TelemetryRecorder(planned.plan, host, now, settle)
        self._inside: Provenance | None = None

    def probe(self, session: Session, action: Action) -> None:
        """Ask what is there, before the model's own step, unless that is switched off."""
        plan = self._planned.plan
        self._inside = probe(session, plan, action) if plan.probe else NOT_PROBED

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self.telemetry.sampling(session, folder), self._nodes.sampling(session):
            yield

    def annotate(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self.telemetry.telemetry(result.window)
        quantity = result.window.quantity if result.window is not None else None
        nodes = with_slow(self._nodes.over(result.nodes, result.window), quantity)
        labels = result.image.labels
        inside = self._inside or Provenance()
        provenance = make_provenance(self._planned, self._plugins, labels, inside, self.telemetry.facts)
        probed = self._inside is not None and self._planned.plan.traits.local
        warnings = host_warnings(self._planned.plan.machine, provenance.host) if probed else ()
        return replace(
            result,
            telemetry=telemetry,
            nodes=nodes,
            provenance=provenance,
            image=replace(result.image, labels={}),
            findings=(
                *result.findings,
                *slow_findings(nodes),
                *self.telemetry.notes,
                *(telemetry_findings(telemetry) if telemetry is not None else ()),
                *warnings,
            ),
        )
