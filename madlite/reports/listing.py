"""Runs as a table and as JSON, and which of them are listed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.model import Cause, Json, Status
from madlite.reports.runs import CUT_OFF, RUNNING, UNREADABLE, StoredRun
from madlite.text import align, counted

COLUMNS = (
    *("id", "when", "card", "status", "cause", "performance", "metric", "suspect", "duration_s", "doubt"),
    *("backend", "mode", "precision", "gpu", "n_gpus", "batch", "study"),
)
_HEAD = ("ID", "WHEN (UTC)", "CARD", "BACKEND", "MODE", "PRECISION", "GPU", "STATUS", "NUMBER", "TOOK")
SUSPECT = "suspect"  # `--status` of a success whose number is suspect
NOT_COLLECTED = "not collected"  # and of a run whose result waits for `madlite collect`
TRIED_AGAIN = "tried again"  # of a failed attempt whose place another one took
STATES = ("success", SUSPECT, "failure", "tried-again", "skipped", "not-collected", "running", "cut-off", "unreadable")
"""The values of `--status` besides the causes of failures."""


def as_json(run: StoredRun) -> dict[str, Json]:
    """Return a run as the list shows it, for programs."""
    record, headline = run.record, run.headline
    return {
        "id": run.folder.name,
        "when": run.when,
        "card": record.card,
        "status": run.state,
        "cause": record.cause,
        "performance": headline.text if headline else "",
        "metric": headline.metric if headline else "",
        "suspect": list(record.suspect),
        "duration_s": record.durations_s.get("total"),
        "reason": run.problem or record.reason,
        "doubt": run.doubt,
        "origin": run.origin,
        "pruned": run.pruned,
        "folder": str(run.folder),
        "backend": record.backend,
        "mode": record.variant.mode if record.variant else "",
        "precision": record.variant.precision if record.variant else "",
        "gpu": record.device,
        "n_gpus": run.n_gpus,
        "collected": run.collected,
        "batch": record.batch,
        "study": record.study.id if record.study else "",
        "study_kind": record.study.kind if record.study else "",
        "varied": dict(record.study.varied) if record.study else {},
        "series": record.study.series if record.study else None,
        "index": record.study.index if record.study else None,
        "warm_up": record.is_warm_up,
        "caches": record.caches,
    }


def as_table(runs: Sequence[StoredRun], words: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, int]]:
    """Yield the lines of a table, and where in them the status stands: of each run what the words say after its id."""
    rows = [_HEAD, *((run.folder.name, *more) for run, more in zip(runs, words, strict=True))]
    head, *lines = align(rows)
    place = head.index("STATUS")
    yield from ((line, place) for line in (head, *lines))


def problems(runs: Iterable[StoredRun]) -> Iterator[str]:
    """Yield a note on runs with unreadable records, and one on runs with modified records."""
    runs = list(runs)
    yield from _note([f"{run.folder.name}: {run.problem}" for run in runs if run.state == UNREADABLE], "cannot be read")
    yield from _note([f"{run.folder.name}: {run.doubt}" for run in runs if run.doubt], "cannot be trusted")


def _note(found: Sequence[str], how: str) -> Iterator[str]:
    if found:
        more = f", and {len(found) - 3} more" if len(found) > 3 else ""
        what = counted(len(found), "record")
        yield f"{what} {how}: {'; '.join(found[:3])}{more}"


def status_words(run: StoredRun) -> tuple[str, ...]:
    """Return the `--status` values of a run; a suspect success is a success too, an attempt tried again a failure."""
    return (
        run.state.lower(),
        _normalized(run.record.cause),
        SUSPECT if run.is_suspect else "",
        TRIED_AGAIN if run.record.is_replaced else "" if run.collected else NOT_COLLECTED,
    )


def wanted_status(status: str, causes: Iterable[str]) -> str:
    """Return a value of `--status` as `status_words` has it; `causes` are those that runs have, of plugins too.

    Raises:
        UsageProblem: there is no such status, and neither a cause.
    """
    wanted = _normalized(status)
    words = (*Status, SUSPECT, NOT_COLLECTED, TRIED_AGAIN, *Cause, RUNNING, CUT_OFF, UNREADABLE, *causes)
    if wanted and wanted not in (statuses := {_normalized(word) for word in words} - {""}):
        raise _no_status(status, statuses)
    return wanted


def _normalized(status: str) -> str:
    return status.strip().lower().replace("-", " ").replace("_", " ")


def _no_status(status: str, statuses: Iterable[str]) -> UsageProblem:
    words = [word.replace(" ", "-") for word in sorted(statuses)]
    near = did_you_mean(status, STATES, most=1) or did_you_mean(status, words, most=1)
    hint = f"{', '.join(STATES)}, or a cause: docs/failures.md"
    return UsageProblem(f"--status {status!r}: no run can be that", one_hint(near, hint))


def groups_of(run: StoredRun) -> tuple[str, str]:
    """Return the ids of the batch and of the study that a run belongs to, "" for none."""
    return run.record.batch, run.record.study.id if run.record.study else ""


def names_of(run: StoredRun) -> Iterator[str]:
    """Yield the names in which `--tags` looks for its words, in lower case."""
    return (name.lower() for name in (run.record.card, *run.record.tags, run.folder.name))
