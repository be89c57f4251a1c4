"""One short probe in a run's session before its model: what is there that the number depends on?

It can fail in every way without a consequence but a note: the workload neither sees nor waits for more than its limit.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.model import Action, Chunk, Exit, RunPlan, Session, Value
from madlite.run import probe_inside

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
    return read_answer(bytes(output), ended)


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
        "python": [PYTHON] if plan.templates else [],
    }
