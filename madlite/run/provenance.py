"""What a run ran on and with: its plan, its machine, and what a short probe in its session finds before its model.

The probe can fail in every way without a consequence but a note: the workload neither sees nor waits for more than its
limit.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.doctor.examine import recorded_facts
from madlite.errors import RuntimeProblem
from madlite.files import Folder, digest_of, read_plain
from madlite.model import Action, Chunk, EnvValue, Exit, Machine, Provenance, RunPlan, Secret, Session, Value
from madlite.plan.container import PYTHON
from madlite.plan.submission import PlannedRun
from madlite.run import probe_inside
from madlite.run.probe_inside import shortened
from madlite.secrets import MASK, is_secret

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
_START = 'PYTHONDONTWRITEBYTECODE=1 exec python3 -B -c "$1" "$2" "$1"'
ANSWER = ".madlite-probe"  # in what a container sees of the run's folder
_BEHIND = """answer=$1 folder=$2 limit=$3 probe=$4 request=$5
shift 5
"$@" || exit
export PYTHONDONTWRITEBYTECODE=1
{
  CDPATH='' cd -- "$folder" && timeout -s KILL "$limit" python3 -B -c "$probe" "$request" "$probe"
  printf '\\n%s' "$?"
} 2> /dev/null > "$answer" < /dev/null
exit 0
"""


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
    return read_answer(bytes(output), ended)


def with_probe(plan: RunPlan, preparation: Action, action: Action) -> Action:
    """Return a container's last preparation before a run with the probe behind it, whose output is in the file ANSWER.

    The probe as a command of its own costs a container 0.04 s.  Anything else is returned as it is.
    """
    is_here = plan.probe and plan.traits.local and plan.traits.containerised and plan.traits.shares_files
    is_joinable = preparation.kind == "prepare" and preparation.env == action.env and preparation.argv[0] == "bash"
    if not (is_here and is_joinable and action.kind == "run" and preparation.cwd == "." and "{" not in action.cwd):
        return preparation
    words = (f"{plan.folder_inside}/{ANSWER}", action.cwd, f"{LIMIT_S:g}", _probe_source())
    argv = ("bash", "-c", _BEHIND, "prepare", *words, json.dumps(_probe_request(plan)), *preparation.argv)
    return replace(preparation, argv=argv)


def read_file_answer(folder: Path) -> ProbedFacts | None:
    """Return the answer in the file that the last preparation left in a run's folder, and remove it."""
    try:
        with Folder.open(folder) as work:
            output, _, code = work.read(ANSWER, MOST_BYTES).rpartition(b"\n")
            work.remove(ANSWER)
        if code == b"127":  # without timeout(1) it is asked by itself, where the runtime has the limit
            return None
        return read_answer(output, Exit(code=int(code or 0), duration_s=0.0, timed_out=code == b"137"))
    except (OSError, ValueError):
        return None


def read_answer(output: bytes, ended: Exit) -> ProbedFacts:
    """Return the answer in what the probe printed, beside whatever else was printed there."""
    mark = probe_inside.MARK.encode()
    lines = [line[len(mark) :] for line in output.split(b"\n") if line.startswith(mark)]
    try:
        return msgspec.json.decode(lines[-1], type=ProbedFacts)
    except (IndexError, msgspec.DecodeError, UnicodeDecodeError):
        why = "there is no Python" if ended.code == 127 else f"the probe ended with exit code {ended.code}"
        why = f"the probe did not end within {LIMIT_S:g} s" if ended.timed_out else why
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
        "python": [PYTHON] if plan.templates else [],  # a card's own script knows nothing of the variable
    }


# What the record has of it.

_MOST_LABELS = 64
_GIB = 1 << 30
# user and password of a URL; a password can hold a / or an @, a port is none; bounded, for labels are of any length
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@[]*:(?!\d{1,5}/)\S{1,500})(?=@)")


def make_provenance(
    planned: PlannedRun, plugins: Plugins, labels: Mapping[str, str], inside: ProbedFacts, facts: Mapping[str, str]
) -> Provenance:
    """Return where a run's number comes from.

    `labels` are its image's, `inside` what its probe reported, `facts` what its GPUs' driver reports.
    """
    script, digest = _script(planned)
    started = [script] if script and not planned.plan.templates else _started_script(planned.plan)
    shown = dict(list(labels.items())[:_MOST_LABELS])
    return Provenance(
        versions=versions(plugins),
        script=script,
        script_sha256=digest,
        files=python_files(planned.plan.workspace, started),
        labels={name: _shown(name, text) for name, text in shown.items()},
        repositories=inside.repositories,
        packages=inside.packages,
        inside=inside.inside,
        host=recorded_facts() if planned.plan.traits.local else {},
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
