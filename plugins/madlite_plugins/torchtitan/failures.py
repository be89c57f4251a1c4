"""Lines by which torchtitan says why it failed, as versions 0.1 to 0.3 print them."""

from __future__ import annotations

from madlite import FailureRule

_VERSION = "the run is rendered for torchtitan 0.2.1 and 0.2.2: install torchtitan==0.2.2"

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
    FailureRule(pattern=r"Unrecognized options: ", cause="bad_option", hint=f"look at the card's args; {_VERSION}"),
    FailureRule(pattern=r"Invalid field names in .* data: ", cause="bad_option", hint=_VERSION),
    FailureRule(
        pattern=r"KeyError: 'float8'",
        cause="bad_option",
        hint="0.2 calls this converter quantize.linear.float8; --set precision=FP8 sets it",
    ),
    FailureRule(pattern=r"Loss is not finite \(global_avg_loss=", cause="nan_loss", hint="try a lower --set lr="),
    FailureRule(
        pattern=r"Cannot use ReduceOp\.PREMUL_SUM with Gloo",
        cause="bad_option",
        hint="sharded training needs GPUs; on a CPU use one rank",
    ),
)
