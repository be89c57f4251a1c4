"""What a backend is made of: a base class for the common case, and readers from a pattern.

A backend is any object with the members of `madlite.types.Backend`; this module makes a small one ten lines long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from madlite.errors import PluginError, UsageProblem
from madlite.types import (
    Asset,
    Card,
    Draft,
    Ended,
    Event,
    FileTemplate,
    Finding,
    Line,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    Scalar,
    Step,
    Variant,
)

NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|nan|inf)"
_GROUPS = {quantity.name.lower(): quantity for quantity in Quantity}
_THROUGHPUTS = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)


def number(text: str) -> float:
    """Read a number as frameworks print it: `2,872`, `1.5e+03`, `nan`; NaN where it is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


class StepPattern:
    """A regular expression whose named groups are `n` (the step) and quantities by their lower-case name."""

    def __init__(self, pattern: str) -> None:
        self.regex = re.compile(pattern)
        groups = set(self.regex.groupindex)
        if "n" not in groups or groups - {"n", *_GROUPS}:
            known = ", ".join(sorted(_GROUPS))
            raise PluginError(f"step pattern {pattern!r}: its named groups must be n and any of {known}")
        self.quantities = tuple(_GROUPS[name] for name in self.regex.groupindex if name != "n")

    def steps(self, line: Line) -> Iterator[Step]:
        """Yield the steps that the line reports: several where ranks wrote into one line."""
        for found in self.regex.finditer(line.text):
            n = number(found["n"] or "")
            if math.isfinite(n):
                texts = {name: text for name, text in found.groupdict().items() if text and name != "n"}
                values = {_GROUPS[name]: number(text) for name, text in texts.items()}
                yield Step(n=int(n), values=values, rank=line.rank, t_s=line.t_s)


def step_pattern(pattern: str) -> StepPattern:
    r"""Return a reader's pattern, e.g. `step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+)`.

    Raises:
        PluginError: a named group is neither `n` nor a quantity.
        re.error: it is no regular expression.
    """
    return StepPattern(pattern)


class PatternReader:
    """Reads steps by one pattern, and the framework's end mark."""

    def __init__(self, step: StepPattern, end_mark: str = "") -> None:
        self._step = step
        self._end_mark = end_mark

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the line's steps, or its end mark."""
        steps = tuple(self._step.steps(line))
        if steps:
            return steps
        if self._end_mark and self._end_mark in line.text:
            return (Ended(marker=self._end_mark),)
        return ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return nothing: everything was in the log."""
        return ()


class TemplateBackend:
    """A backend whose runs are rendered from one template and read by one pattern.

    Set `name`, `template` and `step`, and return `variants`; everything else has an answer that fits most.
    """

    name: str = ""
    template: str = ""
    files: Mapping[str, str] = {}  # further files of the run folder: path → template, raw where it ends not in .j2
    step: StepPattern
    end_mark: str = ""
    launcher: str = ""
    mad_metrics: tuple[MadMetric, ...] = ()

    def variants(self, card: Card, machine: Machine) -> Iterable[Variant]:
        """Return what the card stands for, one run each."""
        raise PluginError(f"backend '{self.name}' does not say which variants it runs")

    def settings(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, Scalar]:
        """Return the backend's own knobs with their defaults; the template sees them as `settings`."""
        return {}

    def env(self, card: Card, variant: Variant, machine: Machine) -> Mapping[str, str]:
        """Return environment variables the framework needs."""
        return {}

    def claim(self, card: Card, checkout: Path) -> int:
        """Own the cards that name this backend."""
        return 100 if card.backend == self.name else 0

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return one draft per variant.

        Raises:
            UsageProblem: the card stands for none.
        """
        drafts = [self.draft(request, variant, machine) for variant in self.variants(request.card, machine)]
        if not drafts:
            raise UsageProblem(f"backend '{self.name}' has nothing to run for card '{request.card.name}'")
        return drafts

    def draft(self, request: Request, variant: Variant, machine: Machine) -> Draft:
        """Return the draft of one variant."""
        card = request.card
        more = tuple(
            FileTemplate(path=path, template=name, raw=not name.endswith(".j2")) for path, name in self.files.items()
        )
        return Draft(
            variant=variant,
            templates=(FileTemplate(path="run.sh", template=self.template), *more),
            settings=dict(self.settings(card, variant, machine)),
            env=dict(self.env(card, variant, machine)),
            image=card.image,
            launcher=self.launcher,
            result_rule=self.result_rule(),
            origin=f"backend {self.name}",
        )

    def result_rule(self) -> ResultRule:
        """Return the steady-window rule for the first throughput that the pattern reads."""
        headline = next((q for q in _THROUGHPUTS if q in self.step.quantities), _THROUGHPUTS[0])
        return ResultRule(
            kind="steps",
            headline=headline,
            headline_metric=headline.name.lower(),
            mad=self.mad_metrics,
            loss_expected=Quantity.LOSS in self.step.quantities,
            end_mark=self.end_mark,
        )

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find nothing wrong."""
        return ()

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Need nothing from elsewhere."""
        return ()

    def recognise(self, head: Sequence[str]) -> float:
        """Recognise a log in which the step pattern matches."""
        return 0.5 if any(self.step.regex.search(text) for text in head) else 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a reader of the step pattern."""
        return PatternReader(self.step, self.end_mark)
