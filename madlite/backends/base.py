"""What a backend is made of: a base class for the common case, and a reader of one pattern.

A backend is any object with the members of `madlite.model.Backend`; this module makes a small one ten lines long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.step_lines import StepPattern
from madlite.errors import CardProblem, PluginError, UsageProblem, did_you_mean, one_hint
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
    Variant,
)

_CHOOSES = ("mode", "precision", "release")  # fields that state which of a card's variants is meant


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
    planned_options: Mapping[str, str] = {}  # options that args may not set: option → key of the plan that decides it

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
            raise CardProblem(f"backend '{self.name}' has nothing to run for card '{request.card.name}'")
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
            planned_options=dict(self.planned_options),
        )

    def result_rule(self) -> ResultRule:
        """Return the steady-window rule for the first throughput that the pattern reads, else for what it has."""
        read = self.step.quantities
        own = sorted((item for item in read if item.name not in QUANTITIES), key=lambda item: not item.is_speed)
        headline = next((item for item in (*SPEEDS, *own) if item in read), SPEEDS[0])
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
            fitting = tuple(item for item in left if _matches(str(getattr(item, key)), wanted))
            if not fitting:
                raise _no_variant(left, request, key, who)
            left = fitting
    return left


def _matches(own: str, wanted: str) -> bool:
    """Return whether a variant's word is the one requested; one that it leaves open is any."""
    return not own or own.casefold() == wanted.casefold()


def _no_variant(variants: Sequence[Variant], request: Request, key: str, who: str) -> UsageProblem:
    known = dict.fromkeys(str(getattr(variant, key)) for variant in variants)
    words = "; ".join(
        dict.fromkeys(
            " ".join(filter(None, (variant.mode, variant.precision, variant.release))) for variant in variants
        )
    )
    close = did_you_mean(request.settings[key], known)
    return UsageProblem(
        f"{describe_setting(request, key)}: {who} runs card '{request.card.name}' in no such {key}",
        one_hint(close, f"it runs {words}"),
        keys=(key,),
    )


def _decided(spec: RunSpec, variant: Variant) -> RunSpec:
    """Return the RunSpec, of whose own words none is overridden afterwards: they are what was chosen by."""
    own = tuple(key for key in _CHOOSES if getattr(variant, key))
    return replace(spec, chosen=tuple(dict.fromkeys((*spec.chosen, *own))))
