"""How lines of a log say steps: patterns with names of numbers, their units, whose line it is, and what was missed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from madlite.errors import PluginError
from madlite.model import QUANTITIES, Line, Quantity, Step
from madlite.rank_labels import is_label, without_label
from madlite.text import group_texts, without_groups

# Units behind the numbers of a log's steps: which one the name of a group means, and which make it another number.

_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_STEP = r"(?i:its?|iters?|iterations?|steps?|batch(?:es)?)"
_TOK = r"(?:t|(?i:toks?|tokens?))"
_SAMPLE = r"(?i:samples?|seqs?|sequences?|imgs?|images?)"  # an image is a sample
_GPU = r"(?i:gpu|device|gcd|chip|rank)"
_S = r"(?i:s|secs?|seconds?)"
_MS = r"(?i:ms|msecs?|millis|milliseconds?)"
_TIME = (
    r"(?i:[nu\u00b5\u03bcm]?(?:s|secs?)|(?:nano|micro|milli)?seconds?|millis|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
)
_COUNTED = rf"(?:{_TOK}|{_SAMPLE}|{_STEP}|(?i:frames?|epochs?))"
_SCOPE = rf"(?:/(?:{_GPU}|(?i:node|host)))?"
_FLOPS = r"(?i:flops?)(?:/(?i:s|sec))?"
_LETTER = r"[kKMGTPE]"
_SCALE = rf"{_LETTER}|(?i:kilo|mega|giga|tera|peta|thousands?|[mb]illions?)"
# what is a unit at all
_KNOWN = (
    rf"{_SCALE}|{_LETTER}/s|{_TIME}(?:/{_COUNTED})?|[kKMGT]?{_COUNTED}/{_TIME}{_SCOPE}|[kKMGT]?(?i:[tsi]ps)|"
    rf"[kKMGT](?:{_TOK}|{_SAMPLE})|(?i:[kmgtpe]|mega|giga|tera|peta)?{_FLOPS}{_SCOPE}|[MGTPE]F(?:/s)?|"
    r"(?i:[kmgtp]?i?b|(?:kilo|mega|giga|tera)?bytes?)"
)
_ANY_TIME = rf"{_TIME}(?:/{_COUNTED})?|{_STEP}/{_TIME}"
_ANY_SIZE = r"(?i:[kmgtp]?i?b|(?:kilo|mega|giga|tera|kibi|mebi|gibi)?bytes?)"
_OF_COUNTS = ("n", "steps", "last", "epoch", "epoch_steps", "seq_len", "micro_batch", "global_batch", "world_size")
_NOUNS = {"tokens": (_TOK, "tps"), "samples": (_SAMPLE, "[si]ps"), "images": (_SAMPLE, "[si]ps")}


class _Units(NamedTuple):
    """What a group's unit is called, a factor its first group; what another unit is; and those of the same kind."""

    meant: re.Pattern[str]
    other: re.Pattern[str]
    alike: re.Pattern[str]


# as regular expressions, which are compiled for the names that are used
_COUNT = ("(?!)", _SCALE, "(?!)")
_ENDINGS = (  # of names
    ("_ms", (rf"{_MS}(?:/{_STEP})?", _KNOWN, _ANY_TIME)),
    ("_s", (rf"{_S}(?:/{_STEP})?", _KNOWN, _ANY_TIME)),
    ("_gib", (r"(?i:g|gi?b|gi(?:ga|bi)bytes?)", _KNOWN, _ANY_SIZE)),
    ("_gb", (r"(?i:g|gb|gigabytes?)", _KNOWN, _ANY_SIZE)),
    ("_mib", (r"(?i:m|mi?b|me(?:ga|bi)bytes?)", _KNOWN, _ANY_SIZE)),
    ("_bytes", (r"(?i:b|bytes?)", _KNOWN, _ANY_SIZE)),
)
_TFLOPS = (rf"T|TF(?:/s)?|(?i:t|tera){_FLOPS}(?:/{_GPU})?", _KNOWN, r"(?i:[a-z]*flops?(?:/[a-z]+)*|[mgtpe]f(?:/s)?)")
_WORD = r"[a-zA-Z\u00b5\u03bc]{1,24}(?:(?:/| per )[a-zA-Z]{1,24}){0,3}(?![a-zA-Z\u00b5\u03bc\d_])"
_BEHIND = re.compile(rf"(\s{{0,2}})({_WORD})")
_SECOND = re.compile(rf"\s({_WORD})")
_WITHIN = re.compile(rf"(.*\d\.?)(\s{{0,2}})({_WORD})", re.DOTALL)
_LONGEST = 120  # characters of a number and its unit
# behind a word that is the name of the next number, and behind one that may be
_NAMES = re.compile(r"[\"']?\s*[=:]\s*[\"']?[-+.]?\d")
_MAY_NAME = re.compile(r"[\"']?\s*[=:]|\s+[-+.]?\d")


def unit_behind(name: str, line: str, at: int) -> tuple[str, float | None]:
    """Return the unit behind a group's number, and its factor: None where the name says another unit.

    A word that is no unit does not belong to the number, nor one that names the next (`800 G 3.2`, `800 ms=3`).
    """
    found = _BEHIND.match(line, at)
    if found is None:
        return "", 1.0
    blank, word = found.groups()
    if blank and _is_name(name, word, line, found.end()):
        return "", 1.0
    second = _SECOND.match(line, found.end()) if len(word) == 1 and word in _LETTER else None
    if second is not None and (factor := _factor(name, word + second[1])) is not None:
        return line[at : second.end()], factor or None
    factor = _factor(name, word, attached=not blank)
    return (found[0], factor or None) if factor is not None else ("", 1.0)


def number_and_unit(name: str, text: str) -> tuple[str, float | None]:
    """Return a group's text without the unit that it ends in, and its factor: None where the name says another unit.

    There a letter is a factor of bytes and of milliseconds as well: nanotron prints `52.1G` and `1.07K`.
    """
    found = _WITHIN.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return text, 1.0
    bare, blank, word = found.groups()
    printed = name.endswith("_bytes") or (name.endswith("_ms") and word in "kK")
    if word in _FACTORS and (not name or (printed and not blank)):
        return bare, _FACTORS[word]
    factor = _factor(name, word, attached=not blank)
    return (text, 1.0) if factor is None else (bare, factor or None)


def _is_name(name: str, word: str, line: str, end: int) -> bool:
    """Return whether a word behind a number names the next one; a unit of the same kind does so before `=` alone."""
    units = _units_of(name)
    alike = units is not None and units.alike.fullmatch(word) is not None and word not in _FACTORS
    return (_NAMES if alike else _MAY_NAME).match(line, end) is not None


def _factor(name: str, word: str, *, attached: bool = False) -> float | None:
    """Return the factor of a unit, 0 of one that the name does not mean, None of a word that is no unit."""
    units = _units_of(name)
    if units is None:  # a loss
        return _FACTORS.get(word) if attached else None
    word = word.replace(" per ", "/")
    while word:
        if found := units.meant.fullmatch(word):
            return _FACTORS[found[1]] if found.lastindex else 1.0
        if units.other.fullmatch(word):
            return 0.0
        word = word.rpartition("/")[0]
    return None


@cache
def _units_of(name: str) -> _Units | None:
    """Return the units of a group's name, None of a number that has none."""
    texts = _unit_texts(name.removesuffix("_mean"))
    return _Units(*map(re.compile, texts)) if texts is not None else None


def _unit_texts(name: str) -> tuple[str, str, str] | None:
    if name in _OF_COUNTS:
        return _COUNT
    if name.startswith("tflops"):
        return _TFLOPS
    what, per_s, gpu = name.partition("_per_s")
    if per_s and gpu in ("", "_per_gpu"):
        return _rate(what, f"(?:/{_GPU})?" if gpu else "")
    return next((units for ending, units in _ENDINGS if name.endswith(ending)), None)


def _rate(what: str, scope: str) -> tuple[str, str, str]:
    if what == "steps":
        return f"{_STEP}/{_S}", _KNOWN, _ANY_TIME
    noun, short = _NOUNS.get(what, (f"(?i:{re.escape(what.removesuffix('s'))}s?)", "(?!)"))
    meant = rf"([kKMGT])?(?:{noun}(?:/{_S}{scope})?|(?i:{short}))?"
    return meant, _KNOWN, rf"[kKMGT]?{noun}(?:/[a-zA-Z]+)*|{_TIME}/{noun}"


NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?))"

# Names of numbers, and what they count.

JOB_WIDE = {
    Quantity(name=f"{what}_per_s", unit=f"{what}/s", direction="higher", label=f"{what}/s"): QUANTITIES[
        f"{what}_per_s_per_gpu"
    ]
    for what in ("tokens", "samples", "images")
}
"""Speeds of the whole job, or of a scope that a log does not say, and what they are of one GPU."""
MEANS = tuple(
    Quantity(name=f"{what}_per_s_mean", unit=f"{what}/s", label=f"{what}/s, running mean")
    for what in ("tokens", "samples")
)
"""Means since the start, which say little of a step: a result where there is nothing else."""
NAMES: dict[str, tuple[Quantity, float]] = {
    **{quantity.name: (quantity, 1.0) for quantity in (*QUANTITIES.values(), *JOB_WIDE, *MEANS)},
    "step_time_ms": (Quantity.STEP_TIME_S, 1e-3),
    "step_time_ms_mean": (Quantity.STEP_TIME_S_MEAN, 1e-3),
    **{
        name.replace("_gib", unit): (item, size / 2**30)
        for unit, size in (("_mib", 2**20), ("_gb", 10**9), ("_bytes", 1))
        for name, item in QUANTITIES.items()
        if name.endswith("_gib")
    },
}
"""By the name of a pattern's group, with the factor that makes the quantity's unit."""
INVERSE = {"steps_per_s": Quantity.STEP_TIME_S, "steps_per_s_mean": Quantity.STEP_TIME_S_MEAN}
"""Names whose quantity is 1 ÷ the number."""
TIMES = ("elapsed", "elapsed_s", "elapsed_ms")
"""Names of times since the start, of which a step's follows."""
_CLOCK = re.compile(r"\d{1,5}(?::\d{1,5}){1,2}", re.ASCII)  # a time since the start


def number(text: str) -> float:
    """Read a number as frameworks print it: `2,872`, `1.5e+03`, `nan`; NaN where it is none, as `12,5`."""
    try:
        return float(without_groups(text))
    except ValueError:
        return float("nan")


def number_or_none(text: str, name: str = "") -> float | None:
    """Read a number without what often stands behind one, `25.6 K` as 25,600; None where it is none, not even a NaN.

    With the `name` of what it counts a unit is read as well, and another one than that name says makes it none.
    """
    plain = text.strip().rstrip(",;|)]}%")
    bare, factor = number_and_unit(name, plain) if math.isnan(number(plain)) else (plain, 1.0)
    value = number(bare) * factor if factor is not None else math.nan
    return None if math.isnan(value) and "nan" not in bare.lower() else value


class StepMatch(NamedTuple):
    """What a pattern found: texts by group, numbers by name, texts that should be numbers, the rank, and the place."""

    texts: dict[str, str]
    numbers: dict[str, float]
    unread: dict[str, str]
    rank: int | None
    at: int


class StepPattern:
    """A regular expression whose named groups are `n` (the step) and quantities by their names.

    `own` are quantities of the plugin's own, beside the built-in ones.  Groups named in `more` are texts of another
    kind; with them a pattern needs no `n`.
    """

    def __init__(self, pattern: str, own: Iterable[Quantity] = (), more: Collection[str] = ()) -> None:
        self.regex = re.compile(pattern)
        own = tuple(own)
        if odd := [
            item.name for item in own if QUANTITIES.get(item.name, item) != item or not item.name.isidentifier()
        ]:
            what = "is a built-in quantity" if odd[0] in QUANTITIES else "is no identifier"
            raise PluginError(f"quantity {odd[0]!r} of step pattern {pattern!r} {what}: give it another name")
        self._known = {**NAMES, **{item.name: (item, 1.0) for item in own}}
        self._more = more
        groups = set(self.regex.groupindex)
        if ("n" not in groups and not more) or groups - {"n", *more, *self._known, *INVERSE}:
            known = ", ".join(sorted({*self._known, *INVERSE}))
            raise PluginError(f"step pattern {pattern!r}: its named groups must be n and any of {known}")
        self.quantities = tuple(self._known[name][0] for name in self.regex.groupindex if name in self._known)

    def read(self, line: Line) -> Iterator[StepMatch]:
        """Yield what the line reports: several steps where ranks wrote into one line.

        A pattern that begins with the line's own begin is tried behind what a launcher put before it.
        """
        text = line.text
        if line.rank is not None and self.regex.search(text) is None:
            text = without_label(line)
        for found in self.regex.finditer(text):
            texts = group_texts(found)
            numbers, unread = {}, {}
            for name, text_of in texts.items():
                value, shown = _value(name, text_of, found)
                if value is not None:
                    numbers[name] = value
                elif name in self._more:
                    texts[name] = shown
                if value is None and text_of and (name not in self._more or _is_unread_time(name, shown)):
                    unread[name] = shown
            # the number before a colon that looks like a task's label may be the step itself
            of_label = "n" in texts and text is line.text and is_label(text, *found.span("n"))
            rank = None if of_label else rank_before(line, found.start())
            yield StepMatch(texts, numbers, unread, rank, found.start())

    def values(self, numbers: Mapping[str, float]) -> dict[Quantity, float]:
        """Return numbers by their quantities, in these units."""
        values = {
            self._known[name][0]: value * self._known[name][1] for name, value in numbers.items() if name in self._known
        }
        return values | {INVERSE[name]: 1 / value for name, value in numbers.items() if name in INVERSE and value}

    def steps(self, line: Line) -> Iterator[Step]:
        """Yield the steps that the line reports."""
        for found in self.read(line):
            n = found.numbers.get("n", math.nan)
            if math.isfinite(n):
                values = self.values(found.numbers)
                yield Step(n=int(n), values=values, rank=found.rank, t_s=line.t_s, unread=self.unread(found.unread))

    def unread(self, texts: Mapping[str, str]) -> dict[Quantity, str]:
        """Return texts that should be numbers by their quantities."""
        known = (
            {name: item for name, (item, _) in self._known.items()}
            | INVERSE
            | dict.fromkeys(TIMES, Quantity.STEP_TIME_S)
        )
        quantities = {name: known.get(name) for name in texts}
        return {quantity: texts[name] for name, quantity in quantities.items() if quantity is not None}


def step_pattern(pattern: str, *own: Quantity) -> StepPattern:
    r"""Return a reader's pattern, e.g. `step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+)`.

    `own` are quantities of the plugin's own that its groups name, beside the built-in ones.

    Raises:
        PluginError: a named group is neither `n` nor a quantity, or an own one has a built-in one's name.
        re.error: it is no regular expression.
    """
    return StepPattern(pattern, own)


def _value(name: str, text: str, found: re.Match[str]) -> tuple[float | None, str]:
    """Return a group's number in the unit of its name, None where it is none, and its text with the unit behind it."""
    value = number_or_none(text, name) if name != "elapsed" else None
    if value is None or not text[-1:].isdigit():
        return value, text
    whole = found.string.startswith(text, found.start(name))
    unit, factor = unit_behind(name, found.string, found.start(name) + len(text) if whole else found.end(name))
    return (value * factor if factor is not None else None), text + unit


def _is_unread_time(name: str, text: str) -> bool:
    """Return whether a text that is no number is no time since the start either."""
    return name in TIMES and not (name == "elapsed" and _CLOCK.fullmatch(text))


# Whose a number in a line is, and how many steps a line covers.

_LABEL = re.compile(r"\[(?:rank|default)[-_]?(\d{1,9})(?:/(\d{1,9}))?\]")


def rank_before(line: Line, end: int) -> int | None:
    """Return the rank whose label is the last before character `end`: ranks share a line where their writes met."""
    found = _label_before(line, end)
    return int(found[1]) if found else line.rank


def world_before(line: Line, end: int) -> int:
    """Return how many ranks that label says there are, 0 where it does not."""
    found = _label_before(line, end)
    return int(found[2] or 0) if found else 0


def _label_before(line: Line, end: int) -> re.Match[str] | None:
    at = max(line.text.rfind("[rank", 0, end), line.text.rfind("[default", 0, end))
    return _LABEL.match(line.text, at) if at >= 0 else None


class Spans:
    """Tells how many steps a log line covers: its trainer's log interval, else the steps since the rank's last line.

    A rank whose steps go back was started again from a checkpoint; then, as at its first line, the steps before are
    not known, and the line covers as many as lines usually did, where its step is a multiple of that, else one.
    """

    def __init__(self) -> None:
        self.interval = 0  # what the trainer reports; 0 where it reports nothing
        self._usual = 0
        self._last: dict[int | None, tuple[int, int]] = {}

    def of(self, n: int, rank: int | None) -> int:
        """Return the span of the line of step `n`; a line that is there twice has the same span twice."""
        if self.interval:
            return self.interval if n % self.interval == 0 else 1
        last, span = self._last.get(rank, (0, 0))
        if last and n > last:
            span = self._usual = n - last
        elif n != last or not span:
            span = self._usual if self._usual and n and n % self._usual == 0 else 1
        self._last[rank] = (n, span)
        return span


# What a log has in place of the steps that patterns were to read: it shows what to mend in them.

_WORDS = re.compile(r"(?i)(step|iter)|(loss)|(epoch|tokens|samples|images|tps|/s\b)")
_DIGIT = re.compile(r"[0-9]")
_SHOWN = 200  # characters of a line


class Missed:
    """Keeps the line that looks most like a step, of equal ones the first, and what groups held that was no number."""

    def __init__(self) -> None:
        self._best_score = 0
        self.nearest = ""  # the line
        self._raised = False
        self._texts: dict[str, str] = {}  # a group's first text that is no number
        self._read: set[str] = set()  # groups that gave a number somewhere

    def see(self, text: str) -> None:
        """Take a line that has no step."""
        self._raised = self._raised or "Error" in text or "Traceback" in text
        if _DIGIT.search(text):
            kinds = {found.lastindex or 0 for found in _WORDS.finditer(text)}
            score = sum({1: 4, 2: 4, 3: 1}.get(kind, 0) for kind in kinds)
            if score > max(self._best_score, 1):  # a word that is neither step nor loss means little
                self._best_score, self.nearest = score, text.strip()[:_SHOWN]

    def take(self, texts: Mapping[str, str], numbers: Mapping[str, float]) -> None:
        """Take what the groups of a line that matched held, and which of it were numbers."""
        self._read.update(numbers)
        for name, text in texts.items():
            if name not in numbers:
                self._texts.setdefault(name, text[:_SHOWN])

    def words(self, steps: bool, way: str) -> Iterator[str]:
        """Yield what is wrong with how the log was read: without a `step`, or with a group that was never a number.

        `way` is how a step was to be read, as text.
        """
        never = {name: text for name, text in self._texts.items() if name not in self._read}
        for name, text in never.items():
            yield f"group {name} of {way} held {text!r}, which is no number, and never one that is"
        if not steps and not never:
            near = f"; the line nearest to a step: {self.nearest}" if self.nearest else ", nor looks like a step"
            if self.nearest or not self._raised:  # a script that failed before its first step says so itself
                yield f"no line of the log matched {way}{near}"
