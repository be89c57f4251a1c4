"""Lines by which torchtitan says why it failed, as versions 0.1 to 0.3 print them."""

from __future__ import annotations

from madlite import FailureRule

_ERA = "the run was rendered for another era of torchtitan"
_ERAS = "--set era=0.2 for 0.2.1 and 0.2.2, 0.2.0, 0.1, or 0.0 for an older one"

RULES = (
    FailureRule(
        pattern=r"No module named '?torch\b(?!itan)",
        cause="missing_package",
        hint="install PyTorch for your GPUs where the run happens, or name an image that has it with --image",
    ),
    FailureRule(
        pattern=r"No module named '?torchtitan\b",
        cause="missing_package",
        hint="install torchtitan==0.2.2 where the run happens",
    ),
    FailureRule(
        pattern=r"torchao is not installed|No module named '?torchao\b",
        cause="missing_package",
        hint="FP8 needs torchao where the run happens: pip install torchao, or --precision BF16",
    ),
    FailureRule(
        pattern=r"madlite: torchtitan here does not know",
        cause="bad_option",
        hint=f"{_ERA}: set the one that the line names",
    ),
    FailureRule(pattern=r"Invalid field names in .* data: ", cause="bad_option", hint=f"{_ERA}: {_ERAS}"),
    FailureRule(
        pattern=r"Unrecognized options: ", cause="bad_option", hint=f"look at the card's args; or {_ERA}: {_ERAS}"
    ),
    FailureRule(
        pattern=r"KeyError: 'float8'",
        cause="bad_option",
        hint="0.2 calls this converter quantize.linear.float8; --set precision=FP8 sets it",
    ),
    FailureRule(
        pattern=r"madlite: (?:TORCHTITAN_ROOT names|\S+ is not here: this runs in the image)",
        cause="missing_file",
        hint="run in the release's image (docker), or choose another --image-release",
    ),
    FailureRule(pattern=r"Loss is not finite \(global_avg_loss=", cause="nan_loss", hint="try a lower --set lr="),
    FailureRule(
        pattern=r"Cannot use ReduceOp\.PREMUL_SUM with Gloo",
        cause="bad_option",
        hint="sharded training needs GPUs; on a CPU use one rank",
    ),
)
