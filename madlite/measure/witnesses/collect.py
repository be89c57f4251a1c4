"""Asks every witness, in the order in which they explain."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from madlite.measure.witnesses import ending, figures, losses, place, speeds
from madlite.measure.witnesses.config import config
from madlite.measure.witnesses.known import Known
from madlite.measure.witnesses.table import Testimony

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
    speeds.summary,
    config,
    place.ranks,
    losses.loss_trend,
    place.memory,
    place.strangers,
    figures.compute,
    speeds.clock,
)


def collect(known: Known) -> tuple[Testimony, ...]:
    """Return what each of them says."""
    said = tuple(ask(known) for ask in (WITNESSES if known.ran else _OUTSIDE))
    return said if first_denial(said) is None else tuple(place.of_failure(one, known) for one in said)


def of_training(known: Known) -> tuple[Testimony, ...]:
    """Return what those say who know of a training by its log alone, whatever ran it and however it ended."""
    asked = (losses.loss, ending.end_of_steps, figures.metric, speeds.summary, losses.loss_trend, place.memory)
    return tuple(ask(known) for ask in asked)


def first_denial(said: Iterable[Testimony]) -> Testimony | None:
    """Return the testimony that the verdict follows; None where none makes the run a failure."""
    return next((one for one in said if one.row.says == "denies"), None)


def doubts(said: Iterable[Testimony]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(one.text for one in said if one.row.says == "doubts")
