"""What is to be said of a steady window: too few samples, drift, outliers, scatter (docs/measurement.md)."""

from __future__ import annotations

from collections.abc import Iterator

from madlite.model import Window

FEWEST_STEPS = 5  # fewer steady steps than this say little
MOST_DRIFT = 0.05  # of the median, over the whole window
SURE_Z = 3.0  # of a drift: without one a window says so in 3 of 1000
MOST_CV = 0.10  # steps of a GPU that has nothing else to do stay below 0.04, even short ones


def window_findings(window: Window) -> tuple[str, ...]:
    """Return what a reader of the number should know of its window, a sentence each."""
    return tuple(_findings(window))


def _findings(window: Window) -> Iterator[str]:
    unit = window.quantity.label
    if window.n < FEWEST_STEPS:
        yield f"low samples: only {window.n} steady {'step' if window.n == 1 else 'steps'}"
    drift = window.drift or 0.0
    if drifts := abs(drift) > MOST_DRIFT and abs(window.drift_z) >= SURE_Z:
        way = "rises" if drift > 0 else "falls"
        steps = f"steps {window.first_step} to {window.last_step}"
        yield f"drift: {unit} {way} by {_percent(drift)} over the steady window ({steps})"
    if window.outliers:
        yield f"outliers: {_outliers(window)}"
    if abs(window.cv) > MOST_CV and not (drifts and window.outliers):  # which say why
        yield f"scatter: the steady steps' {unit} has a CV of {_percent(window.cv)}, above {_percent(MOST_CV)}"


def _outliers(window: Window) -> str:
    below, above = window.median - window.min, window.max - window.median
    side, far = ("below", below) if below > above else ("above", above)
    are = "is" if window.outliers == 1 else "are"
    furthest = "" if window.outliers == 1 else "the furthest "
    return (
        f"{window.outliers} of {window.n} steady steps {are} far from the median, "
        f"{furthest}{_percent(far / window.median)} {side} it"
    )


def _percent(part: float) -> str:
    return f"{100 * abs(part):.3g} %"
