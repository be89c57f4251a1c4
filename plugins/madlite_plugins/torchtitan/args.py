"""What speaks against a card's own arguments: options of another era, and options that the result's row would hide."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.torchtitan.eras import ERAS, converter_fits, float8_converter, quantises, unknown_options

_OF_THE_ROW = {
    "training.steps": "steps",
    "training.seq_len": "seq_len",
    "training.batch_size": "micro_batch",
    "training.local_batch_size": "micro_batch",
    "training.global_batch_size": "global_batch",
}


def arg_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with the options that follow torchtitan's command line."""
    options = _options(plan.run_args)
    converters = options.get("model.converters", "").replace(",", " ").split()
    era = str(plan.settings["era"])
    hidden = sorted(set(options) & set(_OF_THE_ROW))
    if hidden:
        sets = " ".join(f"--set {name}=N" for name in dict.fromkeys(_OF_THE_ROW[option] for option in hidden))
        yield Finding(
            message=f"args set {', '.join(f'--{name}' for name in hidden)}, which the result's row does not show",
            hint=f"{sets} instead",
        )
    if era in ERAS:
        yield from _slips(options, converters, era)
    precision = plan.variant.precision if plan.variant else ""
    if precision != "FP8" and any(map(quantises, converters)):
        yield Finding(
            message=f"args quantise, and the result's row would have {precision}", hint="--precision FP8", fatal=True
        )


def _slips(options: dict[str, str], converters: list[str], era: str) -> Iterator[Finding]:
    for option in unknown_options(options, era):
        yield Finding(
            message=f"torchtitan {ERAS[era]} has no option --{option.name}",
            hint=f"--set {option.instead} is right in every era",
            fatal=True,
        )
    for name in converters:
        if not converter_fits(name, era):
            yield Finding(
                message=f"torchtitan {ERAS[era]} has no converter {name}: it calls FP8's {float8_converter(era)}",
                hint="--precision FP8 sets it",
                fatal=True,
            )


def _options(args: str) -> dict[str, str]:
    """Return the options by their names with their words; `-` and `_` are the same to torchtitan."""
    try:
        words = shlex.split(args)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            given, _, value = word[2:].partition("=")
            name = given.replace("-", "_")
            found[name] = value
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found
