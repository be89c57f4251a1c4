"""Options of their own for keys of a plan: what they set is what --set KEY=VALUE would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from madlite.errors import UsageProblem

# option's value → the key of the plan that it sets
_KEYS = {
    "mode": "mode",
    "precision": "precision",
    "seq_len": "seq_len",
    "batch_size": "micro_batch",
    "steps": "steps",
    "image_release": "release",
    "mock_data": "mock_data",
    "silence_limit": "silence_s",
    "start_silence_limit": "start_silence_s",
    "telemetry": "telemetry",
    "log_limit": "log_limit",
}
_WHOLE = click.IntRange(1)
_WHOLE.name = "whole number"  # what a message calls it
NAMED = (
    click.option("--mode", metavar="NAME", help="Run only this mode, e.g. pretrain."),
    click.option("--precision", metavar="NAME", help="Run only this precision: BF16, FP8, MXFP8, …"),
    click.option("--seq-len", type=_WHOLE, metavar="N", help="Sequence length in tokens."),
    click.option("--batch-size", type=_WHOLE, metavar="N", help="Micro batch: sequences per GPU and pass."),
    click.option("--steps", type=_WHOLE, metavar="N", help="Training steps."),
    click.option("--image-release", metavar="NAME", help="Recipes and image of this release, e.g. v25.10."),
    click.option("--mock-data/--no-mock-data", default=None, help="Train on made-up data, or on the recipe's."),
    click.option(
        "--silence-limit",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Longest time without a training step, or 20 median steps if longer; 0 none.  [default: 300]",
    ),
    click.option(
        "--start-silence-limit",
        type=click.FloatRange(0),
        metavar="SECONDS",
        help="Longest time without output before the first step; 0 none.  [default: 1800]",
    ),
    click.option(
        "--telemetry/--no-telemetry",
        default=None,
        help="Sample power, clocks and throttling of the GPUs.  [default: on]",
    ),
    click.option(
        "--log-limit",
        metavar="SIZE",
        help="Most of run.log that is kept, its beginning and its end, e.g. 500M; 0 all of it.  [default: 2G]",
    ),
    click.option(
        "--no-lint", "lint", flag_value=False, type=bool, default=True, help="Start also what a check finds wrong."
    ),
)


def named_values(given: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield option, key and value of each that was given.

    Raises:
        UsageProblem: one was given without a value, or with a list of them.
    """
    for name, key in _KEYS.items():
        value, option = given[name], f"--{name.replace('_', '-')}"
        if value == "":
            raise UsageProblem(f"{option} is empty", "leave it out, or name a value: an unset variable may stand there")
        if "," in str(value):
            raise UsageProblem(f"{option} '{value}': one value, no list", f"leave {option} out for all of a tag's runs")
        if isinstance(value, bool):
            yield option if value else f"--no-{option[2:]}", key, str(value).lower()
        elif value is not None:
            yield option, key, str(value)
