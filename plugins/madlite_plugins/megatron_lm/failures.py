"""Lines by which the fork's scripts, and Megatron from 2024 to core 0.16, say why they failed."""

from __future__ import annotations

from madlite import FailureRule

RULES = (
    FailureRule(
        pattern=r"^madlite: (?:no Megatron-LM at|\S+ has none of) ",
        cause="missing_package",
        hint="name an image that has it with --image, or the folder with --set megatron_root=",
    ),
    FailureRule(
        pattern=r"\btorchrun: (?:command )?not found",
        cause="missing_package",
        hint="install PyTorch where the run happens, with torchrun on PATH, or name an image that has it with --image",
    ),
    FailureRule(
        pattern=r"^Model size not supported|^invalid model size",
        cause="bad_option",
        hint="--set model_size=: 8 or 70 for Llama 3, 7 or 70 for Llama 2, 7 or 72 for Qwen, 8x7B or 8x22B for Mixtral",
    ),
    FailureRule(
        pattern=r"global batch size \(\d+\) is not divisible by micro batch size \(\d+\)",
        cause="bad_option",
        hint="--set global_batch= to a multiple of micro batch × data-parallel size",
    ),
    FailureRule(
        pattern=r"found NaN in local forward loss|Unexpected result nan on rank",
        cause="nan_loss",
        hint="the model diverged; the scripts have no variable for the learning rate: try --precision BF16",
    ),
    FailureRule(
        pattern=r"Bootstrap : no socket interface found",
        cause="network",
        hint="--set nccl_socket_ifname= and gloo_socket_ifname= to an interface that `ip a` shows",
    ),
)
