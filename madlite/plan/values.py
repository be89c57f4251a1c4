"""Which source decides each value: layers of key=value over a backend's spec, later wins, origins recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from madlite.backends.base import has_own_option
from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.model import Scalar, Value, Variant
from madlite.plan.fields import ALIASES, BY_KEY, PLAN_KEYS, VARIANT_KEYS, Part, Size, as_part, as_size
from madlite.text import scalar_text

_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")  # more is a slip, and more than programs count in
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""The name of an environment variable."""


class Layer(Value, frozen=True):
    """Values of one source; `strict` where an unknown key is the user's mistake."""

    origin: str
    values: dict[str, Scalar]
    strict: bool = True


class Resolved(Value, frozen=True):
    """The result of all layers: the variant, the backend's settings, plan fields and environment, with origins."""

    variant: Variant | None
    settings: dict[str, Scalar]
    plan: dict[str, Scalar]
    env: dict[str, str]
    origins: dict[str, str]


def requested_values(layers: Iterable[Layer]) -> dict[str, str]:
    """Return the values that the layers request, for choosing a recipe: as text, by variant and setting key.

    Spellings are those that `resolve` takes: `variant.release`, `PRECISION`, `recipe-device`, `batch_size`.
    """
    return {
        canonical_key(given): scalar_text(value).strip() for layer in layers for given, value in layer.values.items()
    }


def requested_origins(layers: Iterable[Layer]) -> dict[str, str]:
    """Return the origin of each of `requested_values`: the layer whose value wins."""
    return {canonical_key(given): layer.origin for layer in layers for given in layer.values}


def canonical_key(given: str) -> str:
    """Return the key that a spelling stands for; a backend's own keys are in lower case."""
    name = given.strip().removeprefix("variant.").removeprefix("settings.")
    if name.startswith("env."):
        return name
    name = name.replace("-", "_").lower()
    return ALIASES.get(name, name)


def resolve(
    variant: Variant | None,
    settings: Mapping[str, Scalar],
    layers: Iterable[Layer],
    base_origin: str,
    locked_keys: Collection[str] = (),
    foreign_settings: Collection[str] = (),
    hint: str = "",
) -> Resolved:
    """Overlay a spec's variant and settings by the layers, in order; `locked_keys` keep their values.

    `foreign_settings` are keys of other runs of the same card, ignored here.  `hint` is what else an unknown key may
    be meant for.

    Raises:
        UsageProblem: a strict layer has an unknown key, or a value does not fit its key's type.
    """
    chosen: dict[str, Scalar] = {}
    origins: dict[str, str] = {}
    known = _known(variant, settings)
    for layer in layers:
        for given, value in layer.values.items():
            if canonical_key(given) in foreign_settings or (key := _key(given, known, settings, layer, hint)) is None:
                continue
            if key in locked_keys and not str(value).strip():
                raise UsageProblem(f"{layer.origin} {given}= is empty", "leave it out, or name a value")
            if key not in locked_keys:
                said = f"{value}" if has_own_option(layer.origin) else f"{given}={value}"
                chosen[key] = _fit(key, value, settings, f"{layer.origin} {said}")
            origins[_dotted(key, settings)] = layer.origin
    short = base_origin.partition(" (")[0]  # a recipe's publication is shown once, beside its name
    base = {f"variant.{name}": short for name in VARIANT_KEYS} if variant else {}
    base |= {f"settings.{name}": base_origin if name == "recipe" else short for name in settings}
    changes = {name: value for name, value in chosen.items() if name in VARIANT_KEYS and name not in settings}
    return Resolved(
        variant=msgspec.structs.replace(variant, **changes) if variant else None,
        settings={name: chosen.get(name, value) for name, value in settings.items()},
        plan={name: value for name, value in chosen.items() if name in PLAN_KEYS and name not in settings},
        env={name[4:]: str(value) for name, value in chosen.items() if name.startswith("env.")},
        origins={**base, **origins},
    )


def _known(variant: Variant | None, settings: Mapping[str, Scalar]) -> list[str]:
    return [*(VARIANT_KEYS if variant else ()), *settings, *PLAN_KEYS]


def _key(given: str, known: list[str], settings: Mapping[str, Scalar], layer: Layer, hint: str) -> str | None:
    """Return the key a user's spelling stands for; None where an unknown one may pass."""
    given = given.strip().removeprefix("variant.").removeprefix("settings.")  # as explain shows them
    name = given.replace("-", "_") if given not in settings else given
    if name in known or (name.startswith("env.") and len(name) > 4):
        return name
    lower = name.lower()  # as a framework's script spells its variables: MBS, SEQ_LEN
    if lower in known or ALIASES.get(lower) in known:
        return lower if lower in known else ALIASES[lower]
    if not layer.strict:
        return None
    what = f"{layer.origin} has no key '{given}' to set"
    if has_own_option(layer.origin):
        what = f"{layer.origin} {layer.values[given]} means nothing to this run: it has no '{given}' to set"
    if not settings:
        raise UsageProblem(
            what, "its own script decides that; --backend NAME renders a card that a backend has recipes for"
        )
    raise UsageProblem(
        what,
        one_hint(_suggestion(name, known), hint, "madlite explain TAG --all shows every key"),
    )


def _suggestion(name: str, known: list[str]) -> str:
    return did_you_mean(name, [*known, *ALIASES]) or f"keys: {', '.join(known)}, env.NAME"


def _dotted(key: str, settings: Mapping[str, Scalar]) -> str:
    if key in settings:
        return f"settings.{key}"
    return f"variant.{key}" if key in VARIANT_KEYS else key


def _fit(key: str, value: Scalar, settings: Mapping[str, Scalar], where: str) -> Scalar:
    """Return the value in the type its key has; `true`, `8` and `1e-3` are read from text."""
    if key.startswith("env."):
        return _variable(key[4:], value, where)
    wanted = type(settings[key]) if key in settings else BY_KEY[key].type
    try:
        fitted = _convert(value, wanted)
    except (ValueError, OverflowError):
        raise UsageProblem(f"{where}: {key} takes {_NOUNS[wanted]}") from None
    if key == "precision" and key not in settings:
        fitted = str(fitted).strip().upper()
    least = BY_KEY[key].least if key not in settings else None
    if least is not None and fitted < least:  # type: ignore[operator]
        raise UsageProblem(f"{where}: {key} takes {_NOUNS[wanted]} of at least {least}")
    return fitted


def _variable(name: str, value: Scalar, where: str) -> str:
    if not VARIABLE.fullmatch(name) or "\0" in str(value):
        raise UsageProblem(f"{where.partition('=')[0]}: no environment variable can have this name or value")
    return str(value)


_NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Part: "a percentage from 0.001% to 20% such as 0.5%, or 0 for none",
    Size: "a size of at least 16K, such as 500M or 2G, or 0 for no limit",
}
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def as_bool(value: Scalar) -> bool:
    """Return the meaning of `true`, `off`, `1` and the like.

    Raises:
        ValueError: it is no such word.
    """
    word = str(value).strip().lower()
    if word not in _WORDS:
        raise ValueError(word)
    return _WORDS[word]


def _convert(value: Scalar, wanted: type) -> Scalar:
    if wanted is bool:
        return as_bool(value)
    if wanted is Part:
        return as_part(str(value))
    if wanted is Size:
        return as_size(str(value))
    if wanted is int:
        return int(str(value)) if _WHOLE_NUMBER.fullmatch(str(value).strip()) else _reject(value)
    if wanted is float:
        number = float(value)
        return number if math.isfinite(number) else _reject(value)
    return value if isinstance(value, str) else str(value)


def _reject(value: Scalar) -> Scalar:
    raise ValueError(value)


# How long a run may be silent before it counts as hung, and where that limit comes from.

START, STEP = "start_silence_s", "silence_s"
_DEFAULT_S = {START: 1800.0, STEP: 300.0}  # those of RunPlan
NO_READER = "default: no reader finds steps in its log"


class SilenceLimits(Value, frozen=True):
    """Seconds without output before the first step, and without a step after it; 0 without limit."""

    start_s: float
    step_s: float
    origins: dict[str, str]


def silence_limits(resolved: Resolved, *, reads_steps: bool) -> SilenceLimits:
    """Return the requested limits, else the defaults.

    Without a step reader there is none by default, and a requested limit concerns any output: of two the
    smaller one counts, for output that does not come is no step either.
    """
    requested = {name: float(resolved.plan[name]) for name in (START, STEP) if name in resolved.plan}
    origins = {name: resolved.origins[name] for name in requested}
    if reads_steps:
        limits = {**_DEFAULT_S, **requested}
        return SilenceLimits(
            start_s=limits[START], step_s=limits[STEP], origins={**dict.fromkeys(_DEFAULT_S, "default"), **origins}
        )
    on = {name: limit_s for name, limit_s in requested.items() if limit_s}
    least = min(on or requested, key=lambda name: requested[name], default=START)
    return SilenceLimits(
        start_s=requested.get(least, 0.0),
        step_s=requested.get(STEP, 0.0),
        origins={**dict.fromkeys(_DEFAULT_S, NO_READER), **origins, START: origins.get(least, NO_READER)},
    )
