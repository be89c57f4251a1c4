"""Whether what a plan says is what would run: a value that changes no file, command or variable only relabels a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from madlite.model import RunPlan, Scalar, Value
from madlite.plan.render import Rendered

ROW_KEYS = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "steps", "release", "args")
"""What a row or its figures say of a run, and a user can set; `warmup_steps` is madlite's own to use."""
COUNTS = ("seq_len", "micro_batch", "global_batch", "steps")
STRANGE = "madlite-tries-another-word"
"""A word that no backend knows."""
_COMMENT = b"#"  # in every language that run folders have but JSON, where it cannot begin a line


class Outcome(Value, frozen=True):
    """A plan with the files that it makes."""

    plan: RunPlan
    files: tuple[Rendered, ...]


def row_value(plan: RunPlan, key: str) -> Scalar | None:
    """Return what a row would say of a run."""
    if key == "args":
        return plan.args
    value: Scalar | None = getattr(plan.variant, key) if plan.variant is not None else None
    return value


def runs_alike(one: Outcome, other: Outcome) -> bool:
    """Say whether two plans of one run folder would do the same: comments may differ."""
    return _what_runs(one) == _what_runs(other)


def only_relabels(key: str, own: Outcome, others: Callable[[str | None], Sequence[Outcome] | None]) -> bool:
    """Say whether a value that was asked for changes what is said of a run, and nothing of the run.

    `others` returns the plans of the same command with another value, None standing for none asked for; None where
    they are refused.  A count that is nowhere stated may be asked for as it is: then twice as much is another run.  So
    may a release that is what a run without one has: then one that nobody knows is refused.
    """
    alike = [one for one in others(None) or () if runs_alike(one, own)]
    label = row_value(own.plan, key)
    if not alike or any(row_value(one.plan, key) == label for one in alike):
        return False
    if key not in (*COUNTS, "release") or any(row_value(one.plan, key) not in (None, "") for one in alike):
        return True
    probed = others(STRANGE if key == "release" else str(int(str(label)) * 2))
    return probed is not None and any(runs_alike(one, own) for one in probed)


def _what_runs(one: Outcome) -> tuple[object, ...]:
    files = [(file.path, _without_comments(file.data)) for file in one.files]
    plan = one.plan
    return files, plan.actions, plan.env, plan.image, plan.engine_options, plan.place


def _without_comments(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(_COMMENT)]
