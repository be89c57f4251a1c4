"""MAD's result line: `performance: <number> <metric>`.

Grammar: the union of madengine 1 and 2, first match wins, never across a line's end; thousands separators are read as
what they are (`2,872` is 2872).  Fallback: Hugging Face Trainer's `train_samples_per_second`.
"""

from __future__ import annotations

import math
import re

from madlite.measure.lines import Block
from madlite.types import Cause, Metric, Status

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_RESULT = re.compile(
    rf"performance:\s*(?P<number>{_NUMBER}|[-+]?(?:nan|inf(?:inity)?)\b)"
    r"(?:(?P<unit>/?[A-Za-z][^\s,]{0,200})?,?(?:\s+(?P<metric>[^\s,]+)|\s*$)|(?P<blank>\s*$))",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_SCALE = frozenset("kKMGTPB")  # right behind a number it multiplies it
_MARK = "performance:"
_TRAINER_MARK = "train_samples_per_second"
_TRAINER = re.compile(rf"{_TRAINER_MARK}[\"'\s:=]+(?P<number>{_NUMBER})")
_THROUGHPUT = re.compile(
    r"per_?s(ec|econd)?(_|$|/)|/s(ec|econd)?(/|$|_)|throughput|tok(en)?s?_per|tps|fps|qps|flop|samples_per|images_per"
    r"|bandwidth|ops_per",
    re.IGNORECASE,
)

_COST = re.compile(
    r"(?:^|[_\s/(])(?:s|secs?|seconds?|ms|msecs?|us|minutes?|hours?|time|latency|duration|elapsed|loss|perplexity)"
    r"(?:[_\s/)]|$)",
    re.IGNORECASE,
)
_SPREAD = re.compile(r"(?:^|_)(?:cv|std|stdev|stddev|var)(?:_|$)", re.IGNORECASE)


class PerformanceScan:
    """Looks for the result in the lines of the model's own step."""

    def __init__(self) -> None:
        self.first: tuple[str, str] | None = None
        self.evidence = ""
        self.others = 0
        self.torn = False  # whether the result is of a last line that nothing ended, its number perhaps cut short
        self._fallback: tuple[str, str] | None = None

    def feed(self, block: Block, whole: bool = True) -> None:
        """Take lines in; `whole` where each was ended."""
        before = self.result
        self._look(block)
        self.torn = self.torn or (not whole and self.result != before)

    def _look(self, block: Block) -> None:
        if _MARK in block.text:
            for line in block.lines:
                if _MARK in line:
                    self._note(line)
        if self._fallback is None and _TRAINER_MARK in block.text:
            found = next(filter(None, map(_TRAINER.search, block.lines)), None)
            self._fallback = (found["number"].replace(",", ""), "samples_per_second") if found else None

    def _note(self, line: str) -> None:
        found = read_performance(line)
        if found and self.first is None:
            self.first, self.evidence = found, line.strip()
        elif found and found != self.first:
            self.others += 1

    @property
    def result(self) -> tuple[str, str] | None:
        """The number's text and the metric, or None where no line had one."""
        return self.first or self._fallback

    @property
    def findings(self) -> tuple[str, ...]:
        """What a reader of the row should know."""
        if not self.others:
            return ()
        return (f"{self.others} more performance lines with other values; the first one counts",)


def read_performance(text: str) -> tuple[str, str] | None:
    """Return number and metric of a line's result, as text without thousands separators; None where it has none."""
    for found in re.finditer(_MARK, text):
        match = _RESULT.match(text, found.start())
        if match:
            metric, unit = match["metric"] or "", match["unit"] or ""
            if unit in _SCALE or not metric:  # 12.5k tokens/s are 12.5 ktokens/s, as madengine 1 has it
                metric = unit.lstrip("/") + metric
            if _PLAIN.fullmatch(metric) and metric[-1].isdigit():  # 1 234 tokens/s are not 1
                continue
            return match["number"].replace(",", ""), metric
    return None


def judge_number(text: str, metric: str) -> tuple[float | None, Cause]:
    """Return the value and what is wrong with it as a result.

    Not a number, infinity and text are no results; zero or less is none where the metric is a throughput.
    """
    if not _PLAIN.fullmatch(text.strip()):  # Python also takes 1_000 and digits of other scripts
        return None, Cause.BAD_NUMBER if text.strip() else Cause.NO_METRIC
    value = float(text)
    if not math.isfinite(value) or (value <= 0 and is_throughput(metric)):
        return value, Cause.BAD_NUMBER
    return value, Cause.NONE


def is_throughput(metric: str) -> bool:
    """Say whether a metric counts work per time: zero or less cannot be true, as it can of how far one varies."""
    return bool(_THROUGHPUT.search(metric)) and not _SPREAD.search(metric)


def is_cost(metric: str) -> bool:
    """Say whether less of a metric is better: it counts seconds, or a loss, and no work per time."""
    return bool(_COST.search(metric)) and not is_throughput(metric)


def make_metric(text: str, metric: str, label: str = "", columns: dict[str, str] | None = None) -> Metric:
    """Return the result row of a number as it was printed; a number that is none keeps its text out of the row."""
    value, cause = judge_number(text, metric)
    status = Status.SUCCESS if cause is Cause.NONE else Status.FAILURE
    return Metric(
        metric=metric,
        text=text.strip() if status is Status.SUCCESS else "",
        status=status,
        label=label,
        value=value if value is not None and math.isfinite(value) else None,
        cause=cause,
        columns=columns or {},
        lower_is_better=is_cost(metric),
    )
