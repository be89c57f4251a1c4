"""What a backend is made of: a base class for the common case, and readers from a pattern.

A backend is any object with the members of `madlite.model.Backend`; this module makes a small one ten lines long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import PluginError, UsageProblem, did_you_mean, one_hint
from madlite.model import (
    QUANTITIES,
    SPEEDS,
    Asset,
    Card,
    Ended,
    Event,
    FileTemplate,
    Finding,
    Knob,
    Line,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
    Scalar,
    Step,
    Variant,
)
from madlite.rank_labels import is_label, without_label
from madlite.text import group_texts, without_groups

NUMBER = r"[-+]?(?:\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+|(?i:nan|inf(?:inity)?))"
_CHOOSES = ("mode", "precision", "release")  # fields that state which of a card's variants is meant


def number(text: str) -> float:
    """Read a number as frameworks print it: `2,872`, `1.5e+03`, `nan`; NaN where it is none, as `12,5`."""
    try:
        return float(without_groups(text))
    except ValueError:
        return float("nan")


def number_or_none(text: str) -> float | None:
    """Read a number without what often stands behind one; None where it is no number, not even a NaN."""
    bare = text.strip().rstrip(",;|)]}%")
    value = number(bare)
    return None if math.isnan(value) and "nan" not in bare.lower() else value


class StepPattern:
    """A regular expression whose named groups are `n` (the step) and quantities by their names.

    `own` are quantities of the plugin's own, beside the built-in ones.
    """

    def __init__(self, pattern: str, own: Iterable[Quantity] = ()) -> None:
        self.regex = re.compile(pattern)
        self._known = {**QUANTITIES, **{one.name: one for one in own}}
        if odd := [one.name for one in own if QUANTITIES.get(one.name, one) != one or not one.name.isidentifier()]:
            what = "is a built-in quantity" if odd[0] in QUANTITIES else "is no identifier"
            raise PluginError(f"quantity {odd[0]!r} of step pattern {pattern!r} {what}: give it another name")
        groups = set(self.regex.groupindex)
        if "n" not in groups or groups - {"n", *self._known}:
            known = ", ".join(sorted(self._known))
            raise PluginError(f"step pattern {pattern!r}: its named groups must be n and any of {known}")
        self.quantities = tuple(self._known[name] for name in self.regex.groupindex if name != "n")

    def steps(self, line: Line) -> Iterator[Step]:
        """Yield the steps that the line reports: several where ranks wrote into one line.

        A pattern that begins with the line's own begin is tried behind what a launcher put before it.
        """
        text = line.text
        if line.rank is not None and self.regex.search(text) is None:
            text = without_label(line)
        for found in self.regex.finditer(text):
            groups = group_texts(found)
            n = number(groups.pop("n", ""))
            if math.isfinite(n):
                texts = {self._known[name]: text for name, text in groups.items() if text}
                read = {quantity: number_or_none(text) for quantity, text in texts.items()}
                values = {quantity: value for quantity, value in read.items() if value is not None}
                unread = {quantity: text for quantity, text in texts.items() if quantity not in values}
                # the number before a colon that looks like a task's label may be the step itself
                rank = None if is_label(text, *found.span("n")) else line.rank
                yield Step(n=int(n), values=values, rank=rank, t_s=line.t_s, unread=unread)


def step_pattern(pattern: str, *own: Quantity) -> StepPattern:
    r"""Return a reader's pattern, e.g. `step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+)`.

    `own` are quantities of the plugin's own that its groups name, beside the built-in ones.

    Raises:
        PluginError: a named group is neither `n` nor a quantity, or an own one has a built-in one's name.
        re.error: it is no regular expression.
    """
    return StepPattern(pattern, own)


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
    knobs: tuple[Knob, ...] = ()  # what `madlite tune` may change

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

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return one RunSpec per variant, of those that have the mode, precision and release that were requested.

        A variant without a precision or release can have any: its template has to use it.

        Raises:
            UsageProblem: the card stands for none, or for none of what was asked.
        """
        variants = tuple(self.variants(request.card, machine))
        if not variants:
            raise UsageProblem(f"backend '{self.name}' has nothing to run for card '{request.card.name}'")
        chosen = choose_variants(variants, request, f"backend '{self.name}'")
        return [_decided(self.run_spec(request, variant, machine), variant) for variant in chosen]

    def run_spec(self, request: Request, variant: Variant, machine: Machine) -> RunSpec:
        """Return the RunSpec of one variant."""
        card = request.card
        more = tuple(
            FileTemplate(path=path, template=name, raw=not name.endswith(".j2")) for path, name in self.files.items()
        )
        return RunSpec(
            variant=variant,
            templates=(FileTemplate(path="run.sh", template=self.template), *more),
            settings=dict(self.settings(card, variant, machine)),
            env=dict(self.env(card, variant, machine)),
            image=card.image,
            launcher=self.launcher,
            result_rule=self.result_rule(),
            origin=f"backend {self.name}",
            knobs=self.knobs,
        )

    def result_rule(self) -> ResultRule:
        """Return the steady-window rule for the first throughput that the pattern reads, else for what it has."""
        read = self.step.quantities
        own = sorted((one for one in read if one.name not in QUANTITIES), key=lambda one: not one.is_speed)
        headline = next((one for one in (*SPEEDS, *own) if one in read), SPEEDS[0])
        return ResultRule(
            kind="steps",
            headline=headline,
            headline_metric=headline.name,
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

    def detect(self, head: Sequence[str]) -> float:
        """Recognise a log in which the step pattern matches."""
        return 0.5 if any(self.step.regex.search(text) for text in head) else 0.0

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a reader of the step pattern."""
        return PatternReader(self.step, self.end_mark)


def describe_setting(request: Request, key: str) -> str:
    """Return a value as it was requested: `--precision FP8`, `card 'm' (models.json): precision=FP8`."""
    origin, value, card = request.origins.get(key, ""), request.settings.get(key, ""), request.card
    if origin == "card":
        return f"card '{card.name}' ({card.source}): {key}={value}"
    if origin == "tag":
        return f"--tags {request.tag}: {key}={value}"
    if origin.startswith("context"):
        return f"{origin}: {key}={value}"
    return f"{origin} {value}" if has_own_option(origin) else f"{origin} {key}={value}".strip()


_OF_ANY_KEY = ("--set", "--additional-context", "--recipe-file")


def has_own_option(origin: str) -> bool:
    """Return whether a value comes from an option of its key alone, as `--precision`, which needs no key beside it."""
    return origin.startswith("--") and origin.partition(" ")[0] not in _OF_ANY_KEY


def choose_variants(variants: Sequence[Variant], request: Request, who: str) -> tuple[Variant, ...]:
    """Return the variants of the mode, precision and release that were requested; `who` has them.

    Raises:
        UsageProblem: it has none such; the hint names those that there are.
    """
    left = tuple(variants)
    for key in _CHOOSES:
        if wanted := request.settings.get(key, ""):
            fitting = tuple(one for one in left if _matches(str(getattr(one, key)), wanted))
            if not fitting:
                raise _no_variant(left, request, key, who)
            left = fitting
    return left


def _matches(own: str, wanted: str) -> bool:
    """Return whether a variant's word is the one requested; one that it leaves open is any."""
    return not own or own.casefold() == wanted.casefold()


def _no_variant(variants: Sequence[Variant], request: Request, key: str, who: str) -> UsageProblem:
    known = dict.fromkeys(str(getattr(one, key)) for one in variants)
    words = "; ".join(dict.fromkeys(" ".join(filter(None, (one.mode, one.precision, one.release))) for one in variants))
    close = did_you_mean(request.settings[key], known)
    return UsageProblem(
        f"{describe_setting(request, key)}: {who} runs card '{request.card.name}' in no such {key}",
        one_hint(close, f"it runs {words}"),
    )


def _decided(spec: RunSpec, variant: Variant) -> RunSpec:
    """Return the RunSpec, of whose own words none is overridden afterwards: they are what was chosen by."""
    own = tuple(key for key in _CHOOSES if getattr(variant, key))
    return replace(spec, chosen=tuple(dict.fromkeys((*spec.chosen, *own))))
