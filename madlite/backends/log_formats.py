r"""What lines of logs say, as TOML data: readers of a framework's, one table each (docs/readers.md), and failure rules.

::

    [mine]
    step = ['it (?P<n>\d+)/(?P<steps>\d+)', 'loss=(?P<loss>\S+)', '(?P<tokens_per_s_per_gpu>[\d.,]+) tok/s/GPU']
    end = ['training done']

A pattern with `n` begins a step, the others add to it.  Names of groups say what a number is and whose: of one GPU
(`tokens_per_s_per_gpu`), of the whole job or of nobody knows what (`tokens_per_s`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path

import msgspec

from madlite.backends.base import TemplateBackend
from madlite.backends.step_lines import INVERSE, JOB_WIDE, MEANS, NAMES, TIMES, Missed, Spans, StepMatch, StepPattern
from madlite.errors import CardProblem, PluginError, UsageProblem, did_you_mean
from madlite.hookspecs import hookimpl
from madlite.model import (
    EffectiveConfig,
    Ended,
    Event,
    FailureRule,
    Line,
    Machine,
    Quantity,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Step,
    Unread,
    Value,
)

CONFIG = ("steps", "seq_len", "micro_batch", "global_batch", "world_size", "precision")
"""Groups that are the training's configuration, `steps` how many there are to be."""
_PLACE = ("last", "n_in_epoch", "done", "epoch", "epoch_steps", "pause", *TIMES)
_MORE = frozenset((*CONFIG, *_PLACE))
USUAL_NAMES = "names: n, loss, tokens_per_s, samples_per_s, steps_per_s, step_time_s, step_time_ms, … (docs/readers.md)"
_LISTS = ("step", "marks", "end", "failed", "words")  # keys that one text may stand for
_FINE = 20  # units of its clock after which a log tells how long a step took
_MARK = 200  # characters of a line that ended the training


class LogFormat(Value, frozen=True):
    """What the lines of a framework's log look like.

    `marks` are patterns of lines that nobody else prints, where they are more than those that begin a step; `sure` is
    how surely such a line is the framework's.  `end` and `failed` are patterns of the lines by which it reports that it
    came to its end, or did not.  `first` and `first_epoch` are the numbers that it begins with.  A step is said by
    `several_lines`, or by one.  `words` are names by which a log speaks of the framework, `source` where this stands.
    """

    name: str
    step: tuple[str, ...]
    marks: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    first: int = 1
    first_epoch: int = 0
    several_lines: bool = False
    sure: float = 0.9
    words: tuple[str, ...] = ()
    source: str = ""


def read_log_formats(path: str | Path) -> tuple[FormatBackend, ...]:
    """Return the readers of a TOML file, in its order.

    Raises:
        UsageProblem: it is no such file; the message names the file, the reader and the key.
    """
    import tomli

    try:
        tables = tomli.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageProblem(f"{path} is no file of readers: {error}") from None
    return tuple(FormatBackend(_format(str(path), name, table)) for name, table in tables.items())


def _format(where: str, name: str, table: object) -> LogFormat:
    """Return a reader's format; messages call it by the file `where` it stands.

    Raises:
        UsageProblem: a key or a group is unknown, a pattern is none, or nothing says a step.
    """
    if not isinstance(table, dict):
        raise UsageProblem(
            f"{where}: key '{name}' stands in no reader's table", f"[{name}] begins a reader of that name"
        )
    where = where if where == name else f"{where}, reader '{name}'"
    known = [key for key in LogFormat.__struct_fields__ if key != "name"]
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known, most=1) or f"its keys are {', '.join(known)}"
            raise UsageProblem(f"{where}: key '{key}' is unknown", hint)
    lists = {key: [value] if isinstance(value, str) and key in _LISTS else value for key, value in table.items()}
    try:
        made = msgspec.convert({**lists, "name": name}, LogFormat)
        for pattern in (*made.marks, *made.end, *made.failed):
            _check_mark(pattern)
        patterns = [_check_step(pattern) for pattern in made.step]
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageProblem(f"{where}: {error}") from None
    if not any("n" in pattern.groupindex for pattern in patterns):
        hint = r"write (?P<n>\d+) where its number stands"
        raise UsageProblem(f"{where}: no pattern of a step has the group n, the step's number", hint)
    return made


def step_format(text: str, called: str = "--step") -> FormatBackend:
    """Return the reader of a log whose steps are read by one pattern that a user wrote; messages call it `called`.

    Raises:
        UsageProblem: it cannot be used.
    """
    return FormatBackend(_format(called, called, {"step": [text]}))


def _check_mark(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    if not text or pattern.search(""):
        raise ValueError(f"{text!r} matches any line")
    return pattern


def _check_step(text: str) -> re.Pattern[str]:
    pattern = _check_mark(text)
    known = ("n", *NAMES, *INVERSE, *CONFIG, *_PLACE)
    for name in pattern.groupindex:
        if name not in known:
            close = did_you_mean(name, known, most=1) or USUAL_NAMES
            raise ValueError(f"{text!r} has a group {name!r}, which names no number; {close}")
    return pattern


class FormatBackend(TemplateBackend):
    """Reads logs of one format; it runs nothing."""

    def __init__(self, form: LogFormat) -> None:
        self.format = form
        self.name = form.name

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Refuse to run anything.

        Raises:
            UsageProblem: always.
        """
        hint = f'backend = "torchrun" runs a script; madlite parse LOG --backend {self.name} reads its log'
        what = f"backend '{self.name}' of card '{request.card.name}' reads logs and runs nothing"
        raise CardProblem(what, hint)

    def result_rule(self) -> ResultRule:
        """Return that the steady window of the steps decides; not every line has a loss."""
        return ResultRule(kind="steps", loss_expected=False)

    @cached_property
    def _marks(self) -> list[re.Pattern[str]]:
        steps = (pattern.regex for pattern in self.patterns if "n" in pattern.regex.groupindex)
        return [*map(re.compile, self.format.marks)] or [*steps]

    @cached_property
    def patterns(self) -> tuple[StepPattern, ...]:
        """The patterns of a step."""
        return tuple(StepPattern(text, more=_MORE) for text in self.format.step)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise a line that the framework alone prints."""
        return self.format.sure if any(mark.search(text) for text in head for mark in self._marks) else 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return FormatReader(self.format, self.patterns)


class FormatReader:
    """Follows one log of a format."""

    def __init__(self, form: LogFormat, patterns: Sequence[StepPattern]) -> None:
        self._format, self._patterns = form, patterns
        self._end, self._failed = ([*map(re.compile, texts)] for texts in (form.end, form.failed))
        self._spans, self._missed = Spans(), Missed()
        self._config: dict[str, str] = {}
        self._lowest = math.inf
        self._epochs = False  # whether the number of the last step is an epoch's
        self._current: dict[int | None, int] = {}  # by rank: the step that its last line said
        self._clocks: dict[int | None, _Clock] = {}
        self._first: dict[int | None, int] = {}  # by rank: the first step that was told
        self._paused: set[int | None] = set()  # ranks whose last line was of an evaluation
        self._others: dict[int | None, int] = {}  # by rank: batches of evaluations that its bar counted as steps

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the steps of a line, the configuration that it reports, and that the training ended."""
        found = sorted((item for pattern in self._patterns for item in pattern.read(line)), key=attrgetter("at"))
        events: list[Event] = [*self._configured(found), *self._steps(found, line)] if found else []
        if any(mark.search(line.text) for mark in self._end):
            events.append(Ended(marker=line.text.strip()[:_MARK]))
        if any(mark.search(line.text) for mark in self._failed):
            events.append(Ended(marker=line.text.strip()[:_MARK], code=1))
        if not events:
            self._missed.see(line.text)
        return events or ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return how the log was not as its format says."""
        way = " or ".join(text for text in self._format.step if "(?P<n>" in text)
        return [Unread(text=words) for words in self._missed.words(bool(self._current), f"step={way}")]

    def _configured(self, found: Iterable[StepMatch]) -> Iterator[EffectiveConfig]:
        """Yield what is new of the configuration."""
        before = dict(self._config)
        self._epochs = self._epochs or _is_of_epoch(found)
        for step_match in found:
            self._config.update(
                {name: step_match.texts[name].lstrip("0") for name in CONFIG if name in step_match.texts}
            )
            if "last" in step_match.numbers:  # the number of the last step
                first = (
                    self._format.first
                    if min(self._lowest, step_match.numbers.get("n", math.inf)) <= self._format.first
                    else 1
                )
                self._config["steps"] = "" if self._epochs else str(int(step_match.numbers["last"]) + 1 - first)
        if self._config != before:
            yield EffectiveConfig(values=dict(self._config))

    def _steps(self, found: Sequence[StepMatch], line: Line) -> Iterator[Step]:
        """Yield the steps that a line says."""
        for rank, number, matches in self._parts(found):
            n = number - self._others.get(rank, 0)
            if self._evaluates(rank, n):
                continue
            self._current[rank] = n
            self._lowest = min(self._lowest, n)
            yield from self._step(rank, n, matches, line)

    def _parts(self, found: Iterable[StepMatch]) -> list[tuple[int | None, int, list[StepMatch]]]:
        """Return rank, number and matches of a line's steps; what stands before the first belongs to it."""
        parts: list[tuple[int | None, int, list[StepMatch]]] = []
        early: list[StepMatch] = []
        for step_match in found:
            if "n" in step_match.texts or "done" in step_match.texts:
                if (n := self._number(step_match.numbers)) is None:
                    continue
                parts.append((step_match.rank, n, [step_match, *early]))
                early = []
            elif parts:
                parts[-1][2].append(step_match)
            else:
                early.append(step_match)
        if early and self._format.several_lines and early[0].rank in self._current:
            parts.append((early[0].rank, self._current[early[0].rank], early))
        elif not parts:
            self._paused.update(item.rank for item in early if "pause" in item.texts)
        return parts

    def _evaluates(self, rank: int | None, n: int) -> bool:
        """Return whether a bar went on within an evaluation, whose batches it counts; the same `n` again ends that."""
        more = n - self._current.get(rank, n)
        if rank not in self._paused or more <= 0:
            return False
        self._others[rank] = self._others.get(rank, 0) + more
        return True

    def _number(self, numbers: Mapping[str, float]) -> int | None:
        """Return the step's number over all epochs; None where it is none."""
        n = numbers.get("n", numbers.get("done", math.nan) - 1 + self._format.first)
        epochs = numbers.get("epoch", math.nan) - self._format.first_epoch
        n += epochs * numbers.get("epoch_steps", math.nan) if "epoch_steps" in numbers else 0.0
        return int(n) if 0 <= n < 1e12 else None

    def _step(self, rank: int | None, n: int, matches: Iterable[StepMatch], line: Line) -> Iterator[Step]:
        numbers: dict[str, float] = {}
        unread: dict[str, str] = {}
        for match in matches:
            self._missed.take(match.unread, match.numbers)
            numbers = {**match.numbers, **numbers}
            unread |= match.unread
        values = self._patterns[0].values(numbers)
        texts = {name: text for match in matches for name, text in match.texts.items()}
        if rank in self._paused:
            self._paused.discard(rank)
            texts.setdefault("pause", "")
        seconds = self._clocks.setdefault(rank, _Clock()).seconds_per_step(n, numbers, texts)
        if seconds is not None:
            values.setdefault(Quantity.STEP_TIME_S, seconds)
        odd = {item: text for item, text in self._patterns[0].unread(unread).items() if item not in values}
        if values or odd:
            values, span = self._per_gpu(values), self._spans.of(n, rank)
            if self._first.setdefault(rank, n) > span and "elapsed" in texts and texts.get("steps") != texts.get("n"):
                # of a training that was resumed: tokens since its begin by the time since the resumption
                values = {item: value for item, value in values.items() if item not in MEANS}
            yield Step(n=n, values=values, rank=rank, t_s=line.t_s, span=span, unread=odd)

    def _per_gpu(self, values: dict[Quantity, float]) -> dict[Quantity, float]:
        """Return values with the whole job's speeds as those of one GPU, where the log says how many there are."""
        size = self._config.get("world_size", "")
        if not size.isdecimal() or not int(size[:9]) > 0:
            return values
        return {
            JOB_WIDE.get(item, item): value / int(size) if item in JOB_WIDE else value for item, value in values.items()
        }


class _Clock:
    """Tells how long steps took by the time since the start, which lines have in whole seconds or milliseconds."""

    def __init__(self) -> None:
        self._n, self._at, self._epoch = 0, math.nan, math.nan
        self._last_n, self._last_at = 0, math.nan

    def seconds_per_step(self, n: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> float | None:
        """Return the mean since the last answer; None until the clock went on far enough to tell."""
        at, unit = _elapsed(numbers, texts)
        if math.isnan(at):
            return None
        epoch = numbers.get("epoch", 0.0)
        again = n == self._last_n and "epoch_steps" in numbers  # batches are counted: no line is within a step
        if self._epoch < epoch:  # whose bar begins at 0 again, before the first of its steps
            self._n, self._at = n - int((texts.get("n") or texts["done"]).replace(",", "")), 0.0
        elif again or "pause" in texts:  # the time since the last line belongs to no step
            self._n, self._at = self._n + n - self._last_n, self._at + at - self._last_at
        self._epoch, self._last_n, self._last_at = epoch, n, at
        steps, seconds = n - self._n, at - self._at
        if math.isnan(seconds) or steps < 0 or seconds < 0:  # the first line, or another training
            self._n, self._at = n, at
            return None
        if steps == 0 or seconds < _FINE * unit:
            return None
        self._n, self._at = n, at
        return seconds / steps


def _is_of_epoch(found: Iterable[StepMatch]) -> bool:
    """Return whether a step is past the iteration before it: that one, and the last of them, are then an epoch's."""
    iteration = math.inf
    for step_match in found:
        if step_match.numbers.get("n", -1) > iteration:
            return True
        iteration = step_match.numbers.get("n_in_epoch", math.inf if "n" in step_match.numbers else iteration)
    return False


def _elapsed(numbers: Mapping[str, float], texts: Mapping[str, str]) -> tuple[float, float]:
    """Return the time since the start of a training, and the smallest difference that its text shows, in seconds."""
    if "elapsed_ms" in numbers:
        return numbers["elapsed_ms"] / 1e3, 1e-3
    if "elapsed_s" in numbers:
        return numbers["elapsed_s"], 10.0 ** -sum(map(str.isdigit, texts["elapsed_s"].partition(".")[2]))
    parts = texts.get("elapsed", "").split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() and len(part) < 6 for part in parts):
        return math.nan, 1.0
    seconds = 0.0
    for part in parts:
        seconds = 60 * seconds + int(part)
    return seconds, 1.0


class ReadersFile:
    """A plugin that brings the readers of a user's file."""

    def __init__(self, path: Path) -> None:
        self._backends = read_log_formats(path)

    @hookimpl
    def madlite_backends(self) -> tuple[FormatBackend, ...]:
        """Bring them."""
        return self._backends


# Failure rules: patterns of log lines that explain a failure, as TOML data.
#
#     backends = ["mine"]           # whose trainings these rules explain; without it any
#     [[rule]]
#     cause = "missing_file"        # a code of docs/failures.md, or one of the plugin's own
#     tier = "error"                # root (where nothing is said), error, follower, or sign: it failed, not why
#     ends = "process"              # or launcher: whose end it shows after the last step; without it nobody's
#     pattern = "no weights at (?P<file>\\S+)"
#     hint = "fetch {file} first"   # what to do, whoever ran the training
#     here = "madlite prepare"      # what that is in a run of madlite's
#     see = "https://…"             # the thread in which the maintainers say so
#     example = "no weights at /x"  # a line that the pattern matches

_FIELD = re.compile(r"\{(\w+)\}")


class _RulesFile(Value, frozen=True, forbid_unknown_fields=True):
    rule: tuple[FailureRule, ...] = ()
    backends: tuple[str, ...] = ()


@cache
def read_failure_rules(path: Path) -> tuple[FailureRule, ...]:
    """Return the rules of a TOML file, in its order; a rule's source is the file, below its folder's name.

    A rule without `backends` of its own has those of the file.

    Raises:
        PluginError: it is no such file, or a rule of it cannot be used; the message names the file, the rule and the
            key.
    """
    import tomli

    try:
        file = msgspec.convert(tomli.loads(path.read_text(encoding="utf-8")), _RulesFile)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise PluginError(f"failure rules {path}: {error}") from None
    for number, rule in enumerate(file.rule, 1):
        if flaw := flaw_of(rule):
            raise PluginError(f"failure rules {path}, rule {number}: {flaw}")
    common = {"source": f"{path.parent.name}/{path.name}", "backends": file.backends}
    return tuple(
        msgspec.structs.replace(rule, **{key: getattr(rule, key) or value for key, value in common.items()})
        for rule in file.rule
    )


def explained(text: str, groups: dict[str, str]) -> str:
    """Return a hint with the pattern's groups in place of their names in braces."""
    return _FIELD.sub(lambda field: groups.get(field[1], field[0]), text)


def flaw_of(rule: FailureRule) -> str:
    """Return what is wrong with a rule, the key first, or nothing."""
    try:
        pattern = re.compile(rule.pattern)
    except re.error as error:
        return f"key 'pattern': {rule.pattern!r} is no regular expression: {error}"
    if not rule.pattern or pattern.search(""):
        return f"key 'pattern': {rule.pattern!r} matches any line"
    if not rule.cause:
        return "key 'cause' is empty"
    for key, text in (("hint", rule.hint), ("here", rule.here)):
        unknown = [name for name in _FIELD.findall(text) if name not in pattern.groupindex]
        if unknown:
            return f"key '{key}': the pattern has no group '{unknown[0]}'"
    if rule.example and not pattern.search(rule.example):
        return f"key 'example': {rule.example!r} is not matched by the pattern"
    return ""
