"""The one table of the keys of a plan: options, context keys and lines of `explain` are made of it.

To add an option of the plan, add an entry here and use its value.  An entry makes `--set key=…`, the key of a recipe
and of a context's `settings`, the option of its own, and, where it names a field of RunPlan, its way into the plan and
its line in `explain`; the default stands in RunPlan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.model import Scalar, Value, Variant

if TYPE_CHECKING:
    from madlite.model import RunPlan

# Sizes as text, `500M` or `2G`.

_UNITS = "KMGT"
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:(?P<unit>[KMGT])(?:i?B)?)?", re.IGNORECASE)
LEAST_BYTES = 16 << 10  # of a limit: less has no room for a beginning and an end
_MOST_BYTES = 1 << 60  # more is a slip, and more than programs count in


class Size(int):
    """The type of a key that is a limit in bytes, 0 for none; its values are plain numbers."""


def as_size(text: str) -> int:
    """Return the bytes of `500M`, `1.5 GiB` and `65536`, each unit 1024 of the one before.

    Raises:
        ValueError: it is no size, or too small a limit.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    power = 1 + _UNITS.index(found["unit"].upper()) if found["unit"] else 0
    whole, _, part = found["number"].partition(".")
    number, parts = int(whole + part), 10 ** len(part)
    count: int = number * 1024**power // parts
    if number and not LEAST_BYTES <= count <= _MOST_BYTES:
        raise ValueError(text)
    return count


def size_words(count: int) -> str:
    """Return a size as `as_size` reads it, in the largest unit of which it is a whole number; "none" for no limit."""
    if not count:
        return "none"
    power = max(n for n in range(len(_UNITS) + 1) if count % 1024**n == 0)
    return f"{count // 1024**power}{' KMGT'[power].strip()}"


# Parts as text, `0.5%`.

_PERCENT = re.compile(r"(?P<number>[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%")
LARGEST_PART = 0.2  # a half-width beyond this is no precision
_SMALLEST_PART = 1e-5


class Part(float):
    """The type of a key that is a part, written in percent, 0 for none; its values are plain numbers."""


def as_part(text: str) -> float:
    """Return the part that `0.5%` is; it may be `0`.

    Raises:
        ValueError: it is no percentage, or none from 0.001 % to 20 %.
    """
    if text.strip() == "0":
        return 0.0
    found = _PERCENT.fullmatch(text.strip())
    if found is None or not _SMALLEST_PART <= (part := float(found["number"]) / 100) <= LARGEST_PART:
        raise ValueError(text)
    return part


def part_text(part: float) -> str:
    """Return a part as `as_part` reads it."""
    return f"{100 * part:.6g}%"


# The table.


class PlanOption(Value, frozen=True):
    """An option of the command line; what it takes follows from the type of its field."""

    name: str  # as typed: --seq-len; a bool has --no-… too
    help: str
    metavar: str = ""

    @property
    def dest(self) -> str:
        """Return the name of its value in a command."""
        return self.name.removeprefix("--").replace("-", "_")


class PlanField(Value, frozen=True):
    """One key of a plan.

    `target` is the field of RunPlan that has its value as it is; "" where it is decided together with others.
    """

    key: str
    type: type
    least: float | None = None
    aliases: tuple[str, ...] = ()  # other spellings: frameworks' names, and the variables of their scripts
    option: PlanOption | None = None
    of_context: bool = False  # whether it also stands at the top of a context, not below `settings` alone
    target: str = ""
    off: str = ""  # what `explain` calls a value of 0


FIELDS = (
    PlanField("model", str),
    PlanField("mode", str, option=PlanOption("--mode", "Run only this mode, e.g. pretrain.", "NAME")),
    PlanField(
        "precision", str, option=PlanOption("--precision", "Run only this precision: BF16, FP8, MXFP8, …", "NAME")
    ),
    PlanField("seq_len", int, 1, ("seq_length",), PlanOption("--seq-len", "Sequence length in tokens.", "N")),
    PlanField(
        "micro_batch",
        int,
        1,
        ("batch_size", "local_batch_size", "micro_batch_size", "mbs"),
        PlanOption("--batch-size", "Micro batch: sequences per GPU and pass.", "N"),
    ),
    PlanField("global_batch", int, 1, ("global_batch_size", "bs", "gbs")),
    PlanField("steps", int, 1, ("train_iters", "total_iters"), PlanOption("--steps", "Training steps.", "N")),
    PlanField("warmup_steps", int, 0),
    PlanField(
        "release", str, option=PlanOption("--image-release", "Recipes and image of this release, e.g. v25.10.", "NAME")
    ),
    # a setting of the backends that can
    PlanField("mock_data", bool, option=PlanOption("--mock-data", "Train on made-up data, or on the recipe's.")),
    PlanField("timeout_s", float, 0, ("timeout",)),
    PlanField(
        "silence_s",
        float,
        0,
        option=PlanOption(
            "--silence-limit",
            "Longest time without a training step, or 20 median steps if longer; 0 none.  [default: 300]",
            "SECONDS",
        ),
        of_context=True,
        target="silence_s",
        off="none",
    ),
    PlanField(
        "start_silence_s",
        float,
        0,
        option=PlanOption(
            "--start-silence-limit",
            "Longest time without output before the first step; 0 none.  [default: 1800]",
            "SECONDS",
        ),
        of_context=True,
        target="start_silence_s",
        off="none",
    ),
    PlanField("stop_grace_s", float, 0, of_context=True, target="stop_grace_s", off="0"),
    PlanField(
        "until",
        Part,
        option=PlanOption(
            "--until",
            "End a run once the 95 % interval of the full run's steady median is within ± this, e.g. 0.5%, after 60 s "
            "or a fifth of the steps; 0 never.  [default: 0]",
            "PERCENT",
        ),
        of_context=True,
        target="until",
        off="off",
    ),
    PlanField(
        "profile",
        bool,
        option=PlanOption("--profile", "Profile three steps more, after the measured ones: where a step's time goes."),
        of_context=True,
        target="profile",
    ),
    PlanField(
        "telemetry",
        bool,
        option=PlanOption("--telemetry", "Sample power, clocks and throttling of the GPUs.  [default: on]"),
        of_context=True,
    ),
    PlanField("telemetry_s", float, 0, of_context=True, target="telemetry_s", off="off"),
    PlanField("probe", bool, of_context=True, target="probe", off="off"),
    PlanField(
        "log_limit",
        Size,
        option=PlanOption(
            "--log-limit",
            "Most of run.log that is kept, its beginning and its end, e.g. 500M; 0 all of it.  [default: 2G]",
            "SIZE",
        ),
        of_context=True,
        target="log_limit_bytes",
        off="none",
    ),
    PlanField("image", str),
    PlanField("launcher", str),
    PlanField("n_gpus", int, -1),
    PlanField("args", str),
)
BY_KEY: Mapping[str, PlanField] = {field.key: field for field in FIELDS}
VARIANT_KEYS = tuple(Variant.__struct_fields__)
BACKEND = "backend"  # a key that no field of a plan has
PLAN_KEYS = tuple(name for name in BY_KEY if name not in (*VARIANT_KEYS, "mock_data"))
CONTEXT_KEYS = tuple(field.key for field in FIELDS if field.of_context)
ALIASES = {alias: field.key for field in FIELDS for alias in field.aliases}
OPTIONS: Mapping[str, tuple[PlanField, PlanOption]] = {
    field.option.dest: (field, field.option) for field in FIELDS if field.option
}


_SHOWN: Mapping[type, Callable[[Any], str]] = {Size: size_words, Part: part_text, bool: lambda value: "on"}


def targeted_values(resolved: Resolved) -> dict[str, Any]:
    """Return the fields of RunPlan that take their values unchanged; `telemetry=off` is an interval of 0."""
    given = {key: value for key, value in resolved.plan.items() if BY_KEY[key].target}
    if not resolved.plan.get("telemetry", True):
        given["telemetry_s"] = 0.0
    return {BY_KEY[key].target: value for key, value in given.items()}


def targeted_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield key, value as text and origin of each of these fields, for `explain`; switches only when off."""
    for field in FIELDS:
        if not field.target or (field.key == "telemetry_s" and not plan.place.gpu_ids):
            continue
        value: Scalar = getattr(plan, field.target)
        if field.type is bool and bool(value) is bool(field.off):  # its default
            continue
        switch = plan.origins.get("telemetry") if field.key == "telemetry_s" else None
        shown = field.off if not value else _SHOWN.get(field.type, "{:g}".format)(value)
        yield field.key, shown, switch or plan.origins.get(field.key, "default")


# Which source decides each value: layers of key=value over a backend's spec, later wins, origins recorded.

_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")  # more is a slip, and more than programs count in
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""The name of an environment variable."""


class Layer(Value, frozen=True):
    """Values of one source; `strict` where an unknown key is a mistake, `of_command` where the command sets them."""

    origin: str
    values: dict[str, Scalar]
    strict: bool = True
    of_command: bool = True


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
    from madlite.text import scalar_text

    return {
        canonical_key(given): scalar_text(value).strip() for layer in layers for given, value in layer.values.items()
    }


def canonical_key(given: str, known: Collection[str] = ()) -> str:
    """Return the key that a spelling stands for; those that are `known` are no spelling of another one."""
    name = given.strip().removeprefix("variant.").removeprefix("settings.")  # as explain shows them
    if name.startswith("env.") or name in known:
        return name
    name = name.replace("-", "_").lower()  # as a framework's script spells its variables: MBS, SEQ_LEN
    return name if name in known else ALIASES.get(name, name)


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
    known = [*(VARIANT_KEYS if variant else ()), *settings, *PLAN_KEYS]
    for layer in layers:
        try:
            for given, value in layer.values.items():
                is_foreign = canonical_key(given) in foreign_settings
                key = None if is_foreign else _key(given, known, settings, layer, hint)
                if key is None:
                    continue
                if key not in locked_keys:
                    chosen[key] = _fit(key, value, settings, layer, given)
                elif not str(value).strip():
                    raise UsageProblem(f"{layer.origin} {given}= is empty", "leave it out, or name a value")
                origins[_dotted(key, settings)] = layer.origin
        except UsageProblem as problem:
            problem.keys = None if layer.of_command else ()
            raise
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


def _key(given: str, known: list[str], settings: Mapping[str, Scalar], layer: Layer, hint: str) -> str | None:
    """Return the key a user's spelling stands for; None where an unknown one may pass."""
    from madlite.backends.base import has_own_option  # not for the help of the command line

    name = canonical_key(given, known)
    if name in known or (name.startswith("env.") and len(name) > 4):
        return name
    if not layer.strict:
        return None
    what = f"{layer.origin} has no key '{given}' to set"
    if has_own_option(layer.origin):
        what = f"{layer.origin} {layer.values[given]} means nothing to this run: it has no '{given}' to set"
    if not settings:
        raise UsageProblem(
            what, "its own script decides that; --backend NAME renders a card that a backend has recipes for"
        )
    near = did_you_mean(name, [*known, *ALIASES]) or f"keys: {', '.join(known)}, env.NAME"
    raise UsageProblem(what, one_hint(near, hint, "madlite explain TAG --all shows every key"))


def _dotted(key: str, settings: Mapping[str, Scalar]) -> str:
    if key in settings:
        return f"settings.{key}"
    return f"variant.{key}" if key in VARIANT_KEYS else key


def _fit(key: str, value: Scalar, settings: Mapping[str, Scalar], layer: Layer, given: str) -> Scalar:
    """Return the value in the type its key has; `true`, `8` and `1e-3` are read from text."""
    from madlite.backends.base import has_own_option  # not for the help of the command line

    where = f"{layer.origin} {value}" if has_own_option(layer.origin) else f"{layer.origin} {given}={value}"
    if key.startswith("env."):
        return _variable(key[4:], value, where)
    noun, read = _TYPES[type(settings[key]) if key in settings else BY_KEY[key].type]
    if isinstance(value, (Mapping, list)):  # of a context, whose text may be secret
        raise UsageProblem(f"{layer.origin} {given}: {key} takes {noun}")
    try:
        fitted = read(str(value))
    except (ValueError, OverflowError):
        raise UsageProblem(f"{where}: {key} takes {noun}") from None
    if key == "precision" and key not in settings:
        fitted = fitted.strip().upper()
    least = BY_KEY[key].least if key not in settings else None
    if least is not None and fitted < least:
        raise UsageProblem(f"{where}: {key} takes {noun} of at least {least}")
    return fitted  # type: ignore[no-any-return]


def _variable(name: str, value: Scalar, where: str) -> str:
    if not VARIABLE.fullmatch(name) or "\0" in str(value):
        raise UsageProblem(f"{where.partition('=')[0]}: no environment variable can have this name or value")
    return str(value)


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


def _whole(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


# what a value of each type is called, and how it is read from text
_TYPES: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", as_bool),
    int: ("a whole number", _whole),
    float: ("a number", _finite),
    str: ("text", str),
    Part: ("a percentage from 0.001% to 20% such as 0.5%, or 0 for none", as_part),
    Size: ("a size of at least 16K, such as 500M or 2G, or 0 for no limit", as_size),
}


# A limit of silence of a run whose steps nobody reads: it concerns any output, and there is none by default.

START, STEP = "start_silence_s", "silence_s"
NO_READER = "default: no reader finds steps in its log"


def with_output_limit(resolved: Resolved) -> Resolved:
    """Return the values of a run whose steps are not read; of two limits that of steps counts for its output."""
    key = STEP if STEP in resolved.plan else START
    limits = {START: resolved.plan.get(key, 0.0), STEP: resolved.plan.get(STEP, 0.0)}
    origins = {START: resolved.origins.get(key, NO_READER), STEP: resolved.origins.get(STEP, NO_READER)}
    return msgspec.structs.replace(resolved, plan={**resolved.plan, **limits}, origins={**resolved.origins, **origins})
