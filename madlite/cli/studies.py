"""Studies on the screen: what one came to, for `madlite runs --of` and `show`, and the order of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from madlite.batch.leftovers import RESUME
from madlite.cli.batches import without_resume
from madlite.cli.terminal import shell_line
from madlite.errors import nearest_words
from madlite.model import Scalar, Status, Value
from madlite.plan.context import Options
from madlite.plan.submission import PlannedRun
from madlite.reports.index import RunIndex
from madlite.reports.runs import StoredRun
from madlite.store.batches import SUMMARY, BatchLog, is_running, last_batch, read_summary, study_path, study_to_resume
from madlite.store.folder import exists
from madlite.store.record import Record
from madlite.study.engine import Answer, PlanWith, runs_of_text, stored_runs
from madlite.study.grid import KINDS, grid_answer, plan_grid
from madlite.study.scaling import NODES
from madlite.study.summary import point_text, samples_of_records
from madlite.study.tune_report import PAGE, RECIPE
from madlite.text import counted, scalar_text

if TYPE_CHECKING:
    from madlite.cli.planning import Planner


class _Stored(Value, frozen=True):
    """What a search left in study.json for the screen."""

    lines: tuple[str, ...]


def outcome_lines(runs: Sequence[StoredRun], workspace: Path) -> list[str]:
    """Return what the study of these runs came to, and where its files are; nothing of runs of none or of several."""
    studies = {(run.record.study.id, run.record.study.kind) for run in runs if run.record.study is not None}
    if len(studies) != 1:
        return []
    ((study_id, kind),) = studies
    if kind in KINDS:
        answer = answer_of([run.record for run in runs if run.state in (*Status,)])
        return [*(answer.lines if answer is not None else ()), *_missing_lines(workspace, study_id)]
    if any(run.origin for run in runs):  # what it came to is not here, nor goes it on here
        return []
    command = next((run.record.command for run in reversed(runs) if run.record.command), ())
    return [*_search_lines(workspace, study_id, command)]


def _missing_lines(workspace: Path, study_id: str) -> Iterator[str]:
    """Yield which runs of a study have not begun."""
    last = last_batch(workspace, study_id)
    if missing := last.never_started if last is not None else ():
        names = (f"{run.card} ({point_text(run.varied)})" if run.varied else run.card for run in missing)
        counts = (f"{count} x {name}" if count > 1 else name for name, count in Counter(names).items())
        yield f"  {counted(len(missing), 'run')} not begun: {', '.join(counts)}"
        if not is_running(workspace, study_id) and study_to_resume(workspace) == study_id:
            yield f"  {RESUME}"


def _search_lines(workspace: Path, study_id: str, command: Sequence[str]) -> Iterator[str]:
    """Yield what was written down at the end of a search, or that it was not."""
    where, found = study_path(workspace, study_id), None
    try:
        found = msgspec.json.decode(read_summary(workspace, study_id), type=_Stored)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield f"{where / SUMMARY} cannot be read: {error}"
        return
    if is_running(workspace, study_id):
        yield f"study {study_id} goes on: madlite runs --watch"
    elif found is None:
        words = [*without_resume(command, takes_id=True)]
        resume = f"--resume={study_id}"
        again = shell_line(("madlite", *words, resume)) if words else f"its command with {resume}"
        yield f"study {study_id} has not come to its end: {again} goes on with it"
    if found is not None:
        yield from found.lines
        yield runs_of_text(study_id, [name for name in (SUMMARY, RECIPE, PAGE) if exists(where / name)])


def answer_of(records: Sequence[Record]) -> Answer | None:
    """Return what the runs of one repeat, sweep or scaling came to; None of others, and of several."""
    studies = {(record.study.id, record.study.kind) if record.study is not None else ("", "") for record in records}
    samples = [*samples_of_records(records)]
    if len(studies) != 1 or not samples:
        return None
    ((study_id, kind),) = studies
    return grid_answer(study_id, kind, samples) if kind in KINDS else None


def answer_of_study(workspace: Path, study_id: str) -> Answer | None:
    """Return the same by the records of a study's runs that have ended."""
    return answer_of([run.record for run in stored_runs(workspace, study_id) if run.state in (*Status,)])


def plan_with(plan: Planner, options: Options) -> PlanWith:
    """Return what plans the runs of a command with more values of --set, which win over the command's own."""

    def planned(values: Mapping[str, Scalar]) -> Sequence[PlannedRun]:
        sets = ((key, scalar_text(value)) for key, value in values.items() if key != NODES)
        return plan(replace(options, sets=(*options.sets, *sets), nodes=int(values.get(NODES, options.nodes))))

    return planned


def unknown_id(index: RunIndex, of: str) -> str:
    """Return that nothing has an id that begins so, with the nearest ones; "" where something has."""
    known = [*dict.fromkeys((*index.values("study"), *index.values("batch")))]
    if any(name.startswith(of) for name in known):
        return ""
    near = nearest_words(of, known, 3)
    hint = f"did you mean {', '.join(near)}?   " if near else ""
    return f"no batch and no study has an id that begins with '{of}': {hint}madlite runs --group study lists them"


def preview_grid(planned: Sequence[PlannedRun], params: dict[str, Any]) -> Sequence[PlannedRun]:
    """Return the first run of each series as it would be."""
    return plan_grid(planned, BatchLog().id, params["repeat"], cold=params["cold"]).firsts


def place_text(planned_run: PlannedRun) -> str:
    """Return what a run measures, and as which of a study: `my_model · pretrain  (run 2 of 5, caches warm)`."""
    plan, study = planned_run.plan, planned_run.plan.study
    varied = point_text(study.varied) if study is not None else ""
    names = (plan.card.name, *((plan.variant.mode, plan.variant.precision) if plan.variant else ()))
    parts = (*names, varied)
    which = f"run {study.index} of {study.count}, caches {study.caches or 'of the user'}" if study else ""
    note = "would not start" if plan.blocked else which
    return f"{' · '.join(filter(None, parts))}{f'  ({note})' if note else ''}"
