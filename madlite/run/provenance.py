"""What a run ran on and with, put together from its plan, its machine and what its probe reported."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.errors import RuntimeProblem
from madlite.machine.foreign_processes import OwnProcesses
from madlite.machine.host import Host
from madlite.machine.host_facts import host_facts, host_warnings
from madlite.machine.telemetry.sampler import Sampler, SamplingTarget, used_gpus
from madlite.machine.telemetry.summary import TelemetrySummary, packages, summarise, telemetry_findings
from madlite.measure.nodes import slow_findings, with_slow
from madlite.model import (
    Action,
    Chunk,
    EnvValue,
    GpuStart,
    Machine,
    Provenance,
    Quantity,
    Result,
    RunPlan,
    Say,
    Secret,
    Session,
    Settling,
    Sink,
    Telemetry,
    Value,
    Window,
)
from madlite.run import probe_inside
from madlite.run.node_telemetry import NodeSampler
from madlite.run.probe_inside import shortened
from madlite.run.screen import Planned
from madlite.safe_files import Folder
from madlite.safe_read import digest_of
from madlite.secrets import MASK, is_secret
from madlite.workspace.folder import RUN_MARK

if TYPE_CHECKING:
    from madlite.run.settle import Settle
    from madlite.run.stop import StopControl

# One short probe in a run's session before its model: what is there that the number depends on?
#
# It can fail in every way without a consequence but a note: the workload neither sees nor waits for more than its
# limit.

LIMIT_S = 8.0
KILLED = 137  # 128 + SIGKILL
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
    *(
        "NVIDIA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
        "NODE_RANK",
        "NNODES",
        "NPROC_PER_NODE",
    ),
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
_START = 'PYTHONDONTWRITEBYTECODE=1 exec python3 -B -c "$1" "$2" "$1"'
# a python3 of the workspace's or the image's may be anything, and wait: without timeout(1) nothing is asked here.  What
# timeout starts has a process group of its own, which it ends: signals to the session are passed on to it.
_JOINED = """probe=$1 request=$2 folder=$3 limit=$4
shift 4
"$@" || exit
command -v timeout > /dev/null || exit 0
exec 2> /dev/null
CDPATH='' cd -- "$folder" || exit 0
printf 'madlite-probe-begins\\n'
PYTHONDONTWRITEBYTECODE=1 timeout -s KILL "$limit" python3 -B -c "$probe" "$request" "$probe" < /dev/null &
asked=$!
trap 'kill "$asked"' INT TERM
wait "$asked"
printf '\\nmadlite-probe-ended %s\\n' "$?"
"""
_BEGINS = b"madlite-probe-begins\n"
_ENDED = re.compile(rb"\nmadlite-probe-ended (\d+)\n$")
# names what a rendered script runs with; a card's own script knows nothing of the variable
PYTHON = "MADLITE_PYTHON"


class ProbedFacts(Value, frozen=True):
    """What is where the workload runs, as reported by the probe."""

    inside: dict[str, str] = {}
    packages: dict[str, str] = {}
    repositories: dict[str, str] = {}
    environment: dict[str, str] = {}
    notes: tuple[str, ...] = ()


def probe(session: Session, plan: RunPlan, action: Action) -> ProbedFacts:
    """Ask in the folder and with the environment of the action that is to follow."""
    output = bytearray()

    def collect(chunk: Chunk) -> None:
        if (chunk.node, chunk.stream) == (0, 1) and len(output) < MOST_BYTES:
            output.extend(chunk.data[: MOST_BYTES - len(output)])

    argv = ("sh", "-c", _START, "madlite-probe", _probe_source(), json.dumps(_probe_request(plan)))
    try:
        ended = session.run(replace(action, kind="prepare", argv=argv, timeout_s=LIMIT_S), collect)
    except RuntimeProblem as problem:  # of a container that is gone the workload will say so itself
        return ProbedFacts(notes=(f"the environment of the run could not be probed: {problem.message}",))
    return read_answer(bytes(output), ended.code)


def joined_probe(plan: RunPlan, preparation: Action, action: Action) -> Action | None:
    """Return a preparation that asks as well, at its end, in the folder and with the environment of the next action.

    An action costs a container some 0.1 s.  None where the probe has to be an action of its own, as on other machines:
    their runtimes may run the plan's own actions alone.
    """
    same_place = preparation.cwd == "." and "{" not in action.cwd and preparation.env == action.env
    if not (plan.probe and plan.traits.local and same_place and (preparation.kind, action.kind) == ("prepare", "run")):
        return None
    if preparation.argv[:2] != ("bash", "-c"):  # of another command it is told whether it can be started
        return None
    words = (_probe_source(), json.dumps(_probe_request(plan)), action.cwd, f"{LIMIT_S:g}")
    limit_s = preparation.timeout_s + LIMIT_S if preparation.timeout_s is not None else None
    return replace(preparation, argv=("bash", "-c", _JOINED, "prepare", *words, *preparation.argv), timeout_s=limit_s)


class JoinedAnswer:
    """Takes the output of a joined preparation: what it prints itself is passed on, what the probe answers is kept."""

    def __init__(self, out: Sink, on_begun: Callable[[], object]) -> None:
        self._out, self._on_begun = out, on_begun
        self._begun: set[int] = set()  # nodes
        self._held: dict[int, Chunk] = {}  # the end of a node's output, which may be the beginning of the mark
        self._kept = bytearray()

    def __call__(self, chunk: Chunk) -> None:
        """Take a piece."""
        if chunk.stream != 1:
            self._out(chunk)
        elif chunk.node in self._begun:
            self._keep(chunk.node, chunk.data)
        else:
            held = self._held.pop(chunk.node, None)
            self._look(replace(chunk, data=held.data + chunk.data) if held else chunk)

    def _look(self, chunk: Chunk) -> None:
        own, mark, answer = chunk.data.partition(_BEGINS)
        if mark:
            self._begun.add(chunk.node)
            if chunk.node == 0:
                self._on_begun()
            self._keep(chunk.node, answer)
        else:
            size = next((n for n in range(len(_BEGINS) - 1, 0, -1) if own.endswith(_BEGINS[:n])), 0)
            own, rest = own[: len(own) - size], own[len(own) - size :]
            if rest:
                self._held[chunk.node] = replace(chunk, data=rest)
        if own:
            self._out(replace(chunk, data=own))

    def _keep(self, node: int, data: bytes) -> None:
        if node == 0 and len(self._kept) < MOST_BYTES:
            self._kept.extend(data[: MOST_BYTES - len(self._kept)])

    def flush(self) -> None:
        """Pass on what was held back, at the end of the output."""
        for chunk in self._held.values():
            self._out(chunk)
        self._held.clear()

    def facts(self) -> ProbedFacts | None:
        """Return what was answered; None where the preparation did not come so far."""
        if 0 not in self._begun:
            return None
        found = _ENDED.search(self._kept)
        return read_answer(bytes(self._kept), int(found[1]) if found else KILLED)


def read_answer(output: bytes, code: int) -> ProbedFacts:
    """Return the answer in what the probe printed, beside whatever else was printed there."""
    mark = probe_inside.MARK.encode()
    lines = [line[len(mark) :] for line in output.split(b"\n") if line.startswith(mark)]
    try:
        return msgspec.json.decode(lines[-1], type=ProbedFacts)
    except (IndexError, msgspec.DecodeError, UnicodeDecodeError):
        why = "there is no Python" if code == 127 else f"the probe ended with exit code {code}"
        return ProbedFacts(notes=(f"the environment of the run is unknown: {why}",))


def _probe_source() -> str:
    return Path(probe_inside.__file__).read_text(encoding="utf-8")


def _probe_request(plan: RunPlan) -> dict[str, object]:
    """Return what to look for; on a host the user's other repositories must not be reported."""
    in_container = plan.traits.containerised
    return {
        "packages": PACKAGES,
        "prefixes": PREFIXES,
        "names": NAMES,
        "up": [".", *([plan.inside] if in_container else [])],
        "below": [*BELOW, plan.inside] if in_container else [],
        "python": [PYTHON] if plan.templates else [],
    }


_MOST_LABELS = 64
_GIB = 1 << 30
# user and password of a URL; a password can hold a / or an @, a port is none; bounded, for labels are of any length
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@[]*:(?!\d{1,5}/)\S{1,500})(?=@)")


def make_provenance(
    planned: Planned, plugins: Plugins, labels: Mapping[str, str], inside: ProbedFacts, facts: Mapping[str, str]
) -> Provenance:
    """Return where a run's number comes from.

    `labels` are its image's, `inside` what its probe reported, `facts` what its GPUs' driver reports.
    """
    script, digest = _script(planned)
    shown = dict(list(labels.items())[:_MOST_LABELS])
    return Provenance(
        versions=versions(plugins),
        script=script,
        script_sha256=digest,
        files=_started_files(planned.plan),
        labels={name: _shown(name, text) for name, text in shown.items()},
        repositories=inside.repositories,
        packages=inside.packages,
        inside=inside.inside,
        host=host_facts() if planned.plan.traits.local else {},
        gpu=gpu_facts(planned.plan.machine, planned.plan.place.gpu_ids, facts),
        environment={
            name: _shown(name, text)
            for name, text in sorted((inside.environment or relevant(planned.plan.env)).items())
        },
        notes=inside.notes,
    )


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


def _script(planned: Planned) -> tuple[str, str]:
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


def _started_files(plan: RunPlan) -> dict[str, str]:
    """Return the user's script that a rendered one starts, by the setting `script`, where the workspace has it."""
    name = str(plan.settings.get("script", ""))
    if not name or name.startswith(("-", "{")) or not plan.templates:
        return {}
    digest = digest_of(plan.workspace / name)
    return {name: digest} if digest else {}


# What a run's GPUs do while its model runs: sampled by a thread, told as the result's telemetry.

TELEMETRY = "telemetry.jsonl"  # in the run folder


class TelemetryRecorder:
    """Samples the GPUs of one run; without a GPU, and switched off, it does nothing."""

    def __init__(self, plan: RunPlan, host: Host, now: Callable[[], float]) -> None:
        self._plan, self._host, self._now = plan, host, now
        sampled = plan.telemetry_s > 0 and plan.traits.local and not plan.machine.pretended
        self._gpus = used_gpus(plan) if sampled else ()
        self._sampler: Sampler | None = None
        self._start: tuple[GpuStart, ...] = ()
        self._settling: Settling | None = None
        self.notes: tuple[str, ...] = ()  # about the start

    def begin(self, stop: StopControl, settle: Settle | None, say: Say) -> None:
        """Note what the GPUs are like right before the workload begins; with `settle` once they have cooled down."""
        if settle is None and not self._gpus:
            return
        from madlite.machine.telemetry.start import StartReader

        reader = StartReader(self._plan.machine.vendor, self._gpus, self._host)
        try:
            if settle is None:
                self._start = reader.read()
                return
            over = Event()
            with stop.passing_to(lambda reason: over.set()):
                self._start, self._settling = settle.wait(reader.read, lambda: reader.interval_s, over, say)
        finally:
            reader.close()
        from madlite.run.settle import settling_text

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
        target = SamplingTarget(
            vendor=self._plan.machine.vendor,
            gpus=self._gpus,
            interval_s=self._plan.telemetry_s,
            own=own,
            host=self._host,
        )
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
        summary = summarise(list(sampler.samples), indexes, began_s, ended_s, machine.vendor, parts)
        return Telemetry(
            source=sampler.source,
            interval_s=sampler.interval_s,
            samples=summary.samples,
            over=summary.over if summary.samples else "",
            gpus=summary.gpus if summary.samples else (),
            power_w=summary.power_w,
            tokens_per_joule=self._tokens_per_joule(window, summary),
            throttled=summary.throttled,
            throttled_by=summary.throttled_by,
            power_cap=summary.power_cap,
            foreign_processes=sampler.foreign_processes,
            processes_known=sampler.processes_known,
            cost=sampler.core_share,
            start=self._start,
            settling=self._settling,
            problem="; ".join(
                filter(None, (sampler.problem, _missing_samples(sampler.source, summary), summary.problem))
            ),
        )

    def _tokens_per_joule(self, window: Window | None, summary: TelemetrySummary) -> float | None:
        """Return tokens by the energy of the same time: not of a window by that of the whole run."""
        if window is None or window.quantity != Quantity.TOKENS_PER_S_PER_GPU or summary.over != "window":
            return None
        return window.median / summary.power_w if summary.power_w else None


def _missing_samples(source: str, summary: TelemetrySummary) -> str:
    return f"{source} reports no {summary.unreported}" if summary.unreported else ""


NOT_PROBED = "the environment of the run was not probed: probe is switched off"


class Instrumentation:
    """Probe and sample around a run's own step; nothing of it can fail the run."""

    def __init__(
        self, planned: Planned, plugins: Plugins, host: Host, now: Callable[[], float], settle: Settle | None = None
    ) -> None:
        self._one, self._plugins = planned, plugins
        self._settle = None if planned.plan.study is not None and planned.plan.study.warm_up else settle
        self._telemetry = TelemetryRecorder(planned.plan, host, now)
        self._nodes = NodeSampler(planned.plan, now)
        self._inside: ProbedFacts | None = None

    def joined(self, preparation: Action, action: Action) -> Action | None:
        """Return a preparation that asks as well what is there; None where that is to be asked by itself."""
        return joined_probe(self._one.plan, preparation, action)

    def take(self, answer: JoinedAnswer) -> None:
        """Take what a joined preparation's probe answered."""
        self._inside = answer.facts()

    def probe(self, session: Session, action: Action) -> None:
        """Ask what is there, before the model's own step, unless it is known or that is switched off."""
        plan = self._one.plan
        if self._inside is not None:
            return
        self._inside = probe(session, plan, action) if plan.probe else ProbedFacts(notes=(NOT_PROBED,))

    def begin(self, stop: StopControl, say: Say) -> None:
        """Note what the GPUs are like right before the model's own step, once they have settled if that is wanted."""
        self._telemetry.begin(stop, self._settle, say)

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self._telemetry.sampling(session, folder), self._nodes.sampling(session):
            yield

    @property
    def foreign_processes(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None if unknown."""
        return self._telemetry.foreign_processes

    def annotate(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self._telemetry.telemetry(result.window)
        quantity = result.window.quantity if result.window is not None else None
        nodes = with_slow(self._nodes.over(result.nodes, result.window), quantity)
        labels = result.image.labels
        inside = self._inside or ProbedFacts()
        provenance = make_provenance(self._one, self._plugins, labels, inside, self._telemetry.facts)
        probed = self._inside is not None and self._one.plan.traits.local
        doubts = host_warnings(self._one.plan.machine, provenance.host) if probed else ()
        return replace(
            result,
            telemetry=telemetry,
            nodes=nodes,
            provenance=provenance,
            image=replace(result.image, labels={}),
            findings=(
                *result.findings,
                *slow_findings(nodes),
                *self._telemetry.notes,
                *telemetry_findings(telemetry),
                *doubts,
            ),
        )
