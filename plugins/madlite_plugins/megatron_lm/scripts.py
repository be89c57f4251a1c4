"""What the fork's training scripts take: scripts.toml as values, and the variables of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec

from madlite import PluginError, RunPlan, Scalar

_PLANNED = {
    **{key: key for key in ("micro_batch", "global_batch", "seq_len", "steps", "model_size", "tp", "pp", "cp", "ep")},
    **dict.fromkeys(("te_fp8", "pr"), "precision"),
}
_FILE = Path(__file__).with_name("scripts.toml")


class Script(msgspec.Struct, frozen=True):
    """One training script; empty tuples and 0 stand for no limit."""

    takes: str  # name of its list of variables
    also: tuple[str, ...] = ()  # other names of the same script
    sizes: tuple[str, ...] = ()  # values of MODEL_SIZE
    precisions: tuple[str, ...] = ()
    most_steps: int = 0
    prepare: str = ""  # the script that fetches a data set
    fixed: dict[str, int] = {}  # parallel degrees that no variable changes
    sets_devices: bool = False
    since: dict[str, str] = {}  # variable → first image release in which it counts


class Variable(msgspec.Struct, frozen=True):
    """One variable of a script: its name, the key of the plan's value, and how a switch is written."""

    name: str
    key: str
    kind: str = ""


class _Scripts(msgspec.Struct, frozen=True):
    variables: dict[str, str]
    script: dict[str, Script]


@cache
def read_scripts() -> dict[str, Script]:
    """Return the known scripts by path."""
    return _read().script


def variables_of(script: Script) -> str:
    """Return a script's list of variables, on one line."""
    return " ".join(_read().variables[script.takes].split())


def parse_variables(text: str) -> Iterator[Variable]:
    """Yield the variables of a list; what is no `NAME=key` in it is left out."""
    for word in text.split():
        name, _, rest = word.partition("=")
        key, _, kind = rest.partition(":")
        if name and key:
            yield Variable(name=name, key=key, kind=kind)


def planned_variables() -> dict[str, str]:
    """Return the variables of all scripts that the plan decides, each with its key."""
    found = {variable.name: variable.key for text in _read().variables.values() for variable in parse_variables(text)}
    return {name: _PLANNED[key] for name, key in found.items() if key in _PLANNED}


def plan_variables(plan: RunPlan) -> tuple[Variable, ...]:
    """Return the variables that a plan's script takes."""
    return tuple(parse_variables(str(plan.settings["variables"])))


def plan_values(plan: RunPlan) -> dict[str, Scalar]:
    """Return the values that variables can be given, by key."""
    variant = plan.variant
    of_run: dict[str, Scalar | None] = {"nnodes": plan.place.nodes}
    if variant:
        of_run |= {key: getattr(variant, key) for key in ("micro_batch", "global_batch", "seq_len", "steps")}
        of_run |= {key: plan.settings.get(key) or text for key, text in spell_precision(variant.precision).items()}
    return {**plan.settings, **{key: value for key, value in of_run.items() if value is not None}}


def spell_precision(precision: str) -> dict[str, str]:
    """Return a precision as the scripts spell it, by key."""
    return {"te_fp8": str(int(precision == "FP8")), "pr": precision.lower()}


def script_name(plan: RunPlan) -> str:
    """Return the script's name for people."""
    return PurePosixPath(str(plan.settings["script"])).name


@cache
def _read() -> _Scripts:
    import tomli

    try:
        return msgspec.convert(tomli.loads(_FILE.read_text(encoding="utf-8")), _Scripts)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise PluginError(f"scripts {_FILE}: {error}") from None
