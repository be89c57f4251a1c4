"""The pages of `explain`: of each card what decides its runs and what differs between them, or everything of each.

Short is the default: several runs of a card's backend have what they share once, and then each what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from madlite.cli.explain_rows import export_rows, plan_rows
from madlite.model import RunPlan, Value

_Row: TypeAlias = tuple[str, str, str]  # name, value, origin
_Key: TypeAlias = tuple[str, int]
# what every user looks for first; the rest is shown where it differs between the runs of a card, or somebody set it
_FIRST = frozenset(
    (
        *("machine", "runtime", "n_gpus", "image", "dockerfile", "base_docker", "docker options", "timeout_s"),
        *("recipe", "args", "error_scan", "pre", "run", "post", "variant.model", "variant.mode", "variant.precision"),
        *("variant.seq_len", "variant.micro_batch", "variant.global_batch", "variant.steps"),
    )
)
_FIRST_KINDS = ("data ", "mount ")
_RENDERED = "bash run.sh"  # what runs of every backend that renders a script
_ASKED = ("--", "context", "tag")  # how the origin of what a user set begins
_WIDEST = 40


class Explained(Value, frozen=True):
    """A plan with its rendered script, and in one line each what would keep it from being started."""

    plan: RunPlan
    script: str = ""
    refused: tuple[str, ...] = ()

    def rows(self) -> Iterator[_Row]:
        """Yield name, value and origin of each value of the plan, and of what its script exports."""
        yield from plan_rows(self.plan)
        yield from export_rows(self.plan, self.script)


class _Found(Value, frozen=True):
    """A plan with its rows, by name and by which of that name it is: there may be several scripts before a run."""

    of: Explained
    rows: dict[_Key, _Row]


def full_page(one: Explained) -> str:
    """Return every value of one plan."""
    plan = one.plan
    lines = [f"{plan.card.name}  (backend {plan.backend or 'none'}, card from {plan.card.source})"]
    lines += _table(list(one.rows()))
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join([*lines, *_stopped(one, "  ")])


def short_pages(explained: Iterable[Explained]) -> Iterator[str]:
    """Yield a page for each card and backend, of all their runs that stand one after another."""
    for _, runs in groupby(explained, lambda one: (one.plan.card.name, one.plan.card.source, one.plan.backend)):
        yield _short_page(tuple(runs))


def _short_page(runs: Sequence[Explained]) -> str:
    found = [_Found(of=one, rows=_by_key(one.rows())) for one in runs]
    first = runs[0].plan
    count = f", {len(runs)} runs" if len(runs) > 1 else ""
    lines = [f"{first.card.name}  (backend {first.backend or 'none'}, card from {first.card.source}{count})"]
    keys = dict.fromkeys(key for one in found for key in one.rows)
    differing = [key for key in keys if len({one.rows[key][1] if key in one.rows else None for one in found}) > 1]
    apart = frozenset(differing)
    shared = [found[0].rows[key] for key in keys if key not in apart]
    shown = [row for row in shared if _is_first(row)]
    lines += _table(shown)
    notes = [note for note in first.notes if all(note in one.plan.notes for one in runs)]
    lines += [f"  note: {note}" for note in notes]
    stopped = [tuple(_stopped(one, "  ")) for one in runs]
    alike = all(one == stopped[0] for one in stopped)
    lines += stopped[0] if alike else ()
    for position, one in enumerate(found if len(runs) > 1 else (), 1):
        lines += _of_run(one, position, differing, notes)
        lines += () if alike else _stopped(one.of, "    ")
    if left := len(shared) - len(shown):
        lines.append(f"  and {left} values more: --all")
    return "\n".join(lines)


def _by_key(rows: Iterable[_Row]) -> dict[_Key, _Row]:
    found: dict[_Key, _Row] = {}
    so_far: Counter[str] = Counter()
    for row in rows:
        found[row[0], so_far[row[0]]] = row
        so_far[row[0]] += 1
    return found


def _of_run(one: _Found, position: int, differing: Iterable[_Key], told: Sequence[str]) -> Iterator[str]:
    """Yield what one run has otherwise than the others of its card."""
    plan = one.of.plan
    words = " ".join(filter(None, (plan.variant.mode, plan.variant.precision))) if plan.variant else ""
    yield f"  run {position}" + (f": {words}" if words else "")
    yield from _table([one.rows[key] for key in differing if key in one.rows], "    ")
    yield from (f"    note: {note}" for note in plan.notes if note not in told)


def _is_first(row: _Row) -> bool:
    """Say whether a value is shown that all runs of a card share; one that nobody gave is not."""
    name, value, origin = row
    if origin.startswith(_ASKED) and origin != "context, Dockerfile":
        return True
    return (name in _FIRST or name.startswith(_FIRST_KINDS)) and value not in ("", "-", _RENDERED)


def _table(rows: Sequence[_Row], indent: str = "  ") -> list[str]:
    wide = min(_WIDEST, max((len(name) for name, _, _ in rows), default=0))
    return [f"{indent}{name:<{wide}}  {value}" + (f"   <- {origin}" if origin else "") for name, value, origin in rows]


def _stopped(one: Explained, indent: str) -> Iterator[str]:
    """Yield what would keep a run from being started."""
    blocked = one.plan.blocked
    if blocked:
        yield f"{indent}would not start: {blocked.status.value} {blocked.reason}"
        if blocked.hint:
            yield f"{indent}  hint: {blocked.hint}"
    yield from (f"{indent}would be refused: {text}" for text in one.refused)
