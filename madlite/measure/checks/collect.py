"""Asks every witness, in the order in which they explain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from madlite.measure.checks import config as ending
from madlite.measure.checks import figures, losses, place
from madlite.measure.checks.config import config
from madlite.measure.checks.table import Known, Testimony

# Asks every witness, in the order in which they explain.

Ask = Callable[[Known], Testimony]
_OUTSIDE: tuple[Ask, ...] = (ending.exit_code, place.strangers)  # who know something of a run that never began
WITNESSES: tuple[Ask, ...] = (
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


def collect(known: Known) -> tuple[Testimony, ...]:
    """Return what each of them says."""
    said = tuple(ask(known) for ask in (WITNESSES if known.ran else _OUTSIDE))
    return said if first_denial(said) is None else tuple(place.of_failure(one, known) for one in said)


def of_training(known: Known) -> tuple[Testimony, ...]:
    """Return what those say who know of a training by its log alone, whatever ran it and however it ended."""
    asked = (losses.loss, ending.end_of_steps, figures.metric, figures.summary, losses.loss_trend, place.memory)
    return tuple(ask(known) for ask in asked)


def first_denial(said: Iterable[Testimony]) -> Testimony | None:
    """Return the testimony that the verdict follows; None where none makes the run a failure."""
    return next((one for one in said if one.row.says == "denies"), None)


def doubts(said: Iterable[Testimony]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(one.text for one in said if one.row.says == "doubts")
