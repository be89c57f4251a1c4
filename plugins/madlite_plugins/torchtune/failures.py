"""Lines by which torchtune says why it failed, and what madlite's own files of a run say."""

from __future__ import annotations

from madlite import FailureRule

_TORCHAO = "torchtune is no longer developed: 0.6.1 starts with torchao up to 0.15, so pip install torchao==0.14.1"
_SEPARATE = "; PEFT wants a newer one, so the two need environments of their own"

RULES = (
    FailureRule(
        pattern=r"madlite: torchtune is not installed here|No module named '?torchtune\b",
        cause="missing_package",
        hint="pip install torchtune==0.6.1 torchao==0.14.1 where the run happens, or name an image with --image",
    ),
    FailureRule(
        pattern=r"madlite: torchtune \S+ does not start with torchao|"
        r"cannot import name '\w+' from 'torchao\b|No module named '?torchao\.(?:dtypes|quantization)",
        cause="package_conflict",
        hint=_TORCHAO + _SEPARATE,
    ),
    FailureRule(
        pattern=r"\btorchao not installed\.|No module named '?torchao'?$|madlite: torchao is not installed",
        cause="missing_package",
        hint=_TORCHAO,
    ),
    FailureRule(
        pattern=r"No module named '?(?:omegaconf|torchdata|sentencepiece|tiktoken|blobfile|kagglehub|torchvision)\b",
        cause="missing_package",
        hint="torchtune needs it: pip install torchtune==0.6.1 without --no-deps, torchvision for vision models",
    ),
    FailureRule(
        pattern=r"madlite: torchtune in \S+ has no configs/|madlite: TORCHTUNE_ROOT names",
        cause="missing_file",
        hint="this image's torchtune lacks the model: another --image-release, or TORCHTUNE_ROOT= for another tree",
    ),
    FailureRule(
        pattern=r"madlite: torchtune in \S+ has a \S+ that does not know enable_fp8_training",
        cause="bad_option",
        hint="--precision BF16, or an image of v25.7 and later: torchtune 0.6.1 trains in no FP8",
    ),
    FailureRule(
        pattern=r"madlite: torchtune in \S+ has a \S+ that does not know tensor_parallel_dim",
        cause="bad_option",
        hint="--set tp=1: in 0.6.1 the full recipe alone is tensor-parallel",
    ),
    FailureRule(
        pattern=r"madlite: \S+ has no .* --set weights_files=",
        cause="missing_file",
        hint="the configuration wants other files than were fetched: name them with --set weights_files=",
    ),
    FailureRule(
        pattern=r"Logging memory stats is not supported on CPU devices",
        cause="no_gpu",
        hint="torchtune's distributed recipes want GPUs: on a CPU --set recipe=tiny_full",
    ),
    FailureRule(
        pattern=r"bf16 precision was requested but not available",
        cause="bad_option",
        hint="--precision FP32",
    ),
    FailureRule(
        pattern=r"Unable to locate checkpoint file|No such file or directory: '[^']*(?:safetensors|consolidated|\.bin)",
        cause="missing_file",
        hint="weights are missing: madlite prepare fetches them, --set weights_path= names a folder of them",
    ),
    FailureRule(
        pattern=r"Tensor parallelism is currently incompatible with fused optimizer",
        cause="bad_option",
        hint="--set fused=false, or --set tp=1",
    ),
    FailureRule(
        pattern=r"foreach_norm\.Scalar got mixed torch\.Tensor and DTensor",
        cause="bad_option",
        hint="0.6.1 clips no gradients of tensor parallelism: --set max_norm=0, or --set tp=1",
    ),
    FailureRule(
        pattern=r"Dataset sample is too long \(\d+ > \d+\)",
        cause="bad_option",
        hint="a longer --seq-len, or --set packed=false",
    ),
)
