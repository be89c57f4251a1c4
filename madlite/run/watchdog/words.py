"""Silences and stalls in words."""

from __future__ import annotations

from collections.abc import Sequence

from madlite.model import Value

SHOWN = 3  # stalls that are named, the longest


class Stall(Value, frozen=True):
    """A step that took far longer than the others; `before` None where none came any more."""

    for_s: float
    before: int | None
    after: int | None
    step_s: float | None


def seconds(duration_s: float) -> str:
    """Return a duration as people read it: `312 s`, `2.1 s`, `0.35 s`."""
    digits = 0 if duration_s >= 10 else 1 if duration_s >= 1 else 2
    return f"{duration_s:.{digits}f} s"


def quiet_words(quiet_s: float, phase: str, step: int | None, step_s: float | None, *, trains: bool, hung: bool) -> str:
    """Return a silence in words: of steps, or of any output in a phase."""
    if not phase:
        took = "" if step_s is None else f" ({'steps took' if hung else 'median'} {seconds(step_s)})"
        return f"no step for {seconds(quiet_s)} after step {step}{took}"
    where = {"start": " before the first step" if trains else "", "end": f" after the last step, {step},"}
    after = "" if step is None else f" after step {step}"
    return f"no output for {seconds(quiet_s)}{where.get(phase, f' in {phase}{after}')}".rstrip(",")


def stall_findings(stalls: Sequence[Stall]) -> tuple[str, ...]:
    """Return the longest stalls in their order, and how many there were where more are left out."""
    longest = sorted(stalls, key=lambda stall: -stall.for_s)[:SHOWN]
    told = [_stall_words(stall) for stall in stalls if stall in longest]
    if len(stalls) > len(told):
        whole_s = sum(stall.for_s for stall in stalls)
        told.append(f"stalled {len(stalls)} times, for {seconds(whole_s)} in all")
    return tuple(told)


def _stall_words(stall: Stall) -> str:
    took = "" if stall.step_s is None else f" (steps took {seconds(stall.step_s)})"
    if stall.before is None:
        return f"no step for {seconds(stall.for_s)} before the end, after step {stall.after}{took}"
    return f"stalled for {seconds(stall.for_s)} before step {stall.before}{took}"
