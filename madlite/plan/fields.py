"""The one table of the keys of a plan: options, context keys and lines of `explain` are made of it.

To add an option of the plan, add an entry here and use its value.  An entry makes `--set key=…`, the key of a recipe
and of a context's `settings`, the option of its own, and, where it names a field of RunPlan, its way into the plan and
its line in `explain`; the default stands in RunPlan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from madlite.model import Scalar, Value, Variant

if TYPE_CHECKING:
    from madlite.model import RunPlan
    from madlite.plan.values import Resolved

# Sizes as text, `500M` or `2G`.

_UNITS = "KMGT"
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(?:(?P<unit>[KMGT])(?:i?B)?)?", re.IGNORECASE)
LEAST_BYTES = 16 << 10  # of a limit: less has no room for a beginning and an end
_MOST_BYTES = 1 << 60  # more is a slip, and more than programs count in


class Size(int):
    """A limit in bytes; 0 is none."""


def as_size(text: str) -> Size:
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
    count = number * 1024**power // parts
    if number and not LEAST_BYTES <= count <= _MOST_BYTES:
        raise ValueError(text)
    return Size(count)


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
    """A part that is written in percent; 0 is none."""


def as_part(text: str) -> Part:
    """Return the part that `0.5%` is; it may be `0`.

    Raises:
        ValueError: it is no percentage, or none from 0.001 % to 20 %.
    """
    if text.strip() == "0":
        return Part(0.0)
    found = _PERCENT.fullmatch(text.strip())
    if found is None or not _SMALLEST_PART <= (part := float(found["number"]) / 100) <= LARGEST_PART:
        raise ValueError(text)
    return Part(part)


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
    PlanField(
        "seq_len",
        int,
        1,
        ("seq_length",),
        PlanOption("--seq-len", "Sequence length in tokens.", "N"),
    ),
    PlanField(
        "micro_batch",
        int,
        1,
        ("batch_size", "local_batch_size", "micro_batch_size", "mbs"),
        PlanOption("--batch-size", "Micro batch: sequences per GPU and pass.", "N"),
    ),
    PlanField("global_batch", int, 1, ("global_batch_size", "bs", "gbs")),
    PlanField(
        "steps",
        int,
        1,
        ("train_iters", "total_iters"),
        PlanOption("--steps", "Training steps.", "N"),
    ),
    PlanField("warmup_steps", int, 0),
    PlanField(
        "release",
        str,
        option=PlanOption("--image-release", "Recipes and image of this release, e.g. v25.10.", "NAME"),
    ),
    PlanField(
        "mock_data", bool, option=PlanOption("--mock-data", "Train on made-up data, or on the recipe's.")
    ),  # a setting of the backends that can
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
PLAN_KEYS = tuple(name for name in BY_KEY if name not in (*VARIANT_KEYS, "mock_data"))
CONTEXT_KEYS = tuple(field.key for field in FIELDS if field.of_context)
ALIASES = {alias: field.key for field in FIELDS for alias in field.aliases}
OPTIONS: Mapping[str, tuple[PlanField, PlanOption]] = {
    field.option.dest: (field, field.option) for field in FIELDS if field.option
}


_SHOWN: Mapping[type, Callable[[Any], str]] = {Size: size_words, Part: part_text}


def targeted_values(resolved: Resolved) -> dict[str, Any]:
    """Return the fields of RunPlan that take their values unchanged; `telemetry=off` is an interval of 0."""
    given = {key: value for key, value in resolved.plan.items() if BY_KEY[key].target}
    if not resolved.plan.get("telemetry", True):
        given["telemetry_s"] = 0.0
    return {BY_KEY[key].target: _plain(value) for key, value in given.items()}


def _plain(value: Scalar) -> Scalar:
    """Return a value as plans have it: without the type that says how it is written."""
    if isinstance(value, Size):
        return int(value)
    return float(value) if isinstance(value, Part) else value


def targeted_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield key, value as text and origin of each of these fields, for `explain`; switches only when off."""
    for field in FIELDS:
        if not field.target or (field.key == "telemetry_s" and not plan.place.gpu_ids):
            continue
        value: Scalar = getattr(plan, field.target)
        if field.type is bool and value:
            continue
        switch = plan.origins.get("telemetry") if field.key == "telemetry_s" else None
        shown = field.off if not value else _SHOWN.get(field.type, "{:g}".format)(value)
        yield field.key, shown, switch or plan.origins.get(field.key, "default")
