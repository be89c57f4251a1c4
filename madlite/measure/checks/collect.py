"""Run every check, in the order in which they explain a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from madlite.measure.checks import config as ending
from madlite.measure.checks import figures, losses, place
from madlite.measure.checks.config import config
from madlite.measure.checks.table import CheckInput, CheckResult

CheckFunction = Callable[[CheckInput], CheckResult]
_OUTSIDE: tuple[CheckFunction, ...] = (
    ending.exit_code,
    place.strangers,
)  # those that apply to a run that never began
CHECKS: tuple[CheckFunction, ...] = (
    ending.exit_code,
    losses.loss,
    ending.end_of_steps,
    figures.error_pattern,
    ending.launcher,
    ending.end_mark,
    figures.artifact,
    figures.metric,
    figures.summary,
    config,
    place.ranks,
    losses.loss_trend,
    place.memory,
    place.strangers,
    figures.compute,
    figures.clock,
)


def collect(known: CheckInput) -> tuple[CheckResult, ...]:
    """Return the result of each check."""
    said = tuple(ask(known) for ask in (CHECKS if known.ran else _OUTSIDE))
    return said if first_failed(said) is None else tuple(place.of_failure(one, known) for one in said)


def of_training(known: CheckInput) -> tuple[CheckResult, ...]:
    """Return the results of the checks that need a training's log alone, whatever ran it and however it ended."""
    asked = (losses.loss, ending.end_of_steps, figures.metric, figures.summary, losses.loss_trend, place.memory)
    return tuple(ask(known) for ask in asked)


def first_failed(said: Iterable[CheckResult]) -> CheckResult | None:
    """Return the failed check that decides the verdict; None where none makes the run a failure."""
    return next((one for one in said if one.row.status == "fail"), None)


def warning_texts(said: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(one.text for one in said if one.row.status == "warn")
