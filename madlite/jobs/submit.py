"""Plans → a submission on the disk: which run is in which job, the jobs' scripts, and the plan files.

All of it is written before the cluster gets the first script.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.attempts import smaller_plans
from madlite.batch.resume import last_failure
from madlite.errors import UsageProblem
from madlite.files import exists
from madlite.jobs.submission import Stored, job_name, locked, new_submission_id, read_stored
from madlite.model import Runtime, Value, to_json
from madlite.plan.context import Options
from madlite.plan.plan_file import Rendered, name_secrets, quote_shell, read_plan_file
from madlite.plan.schedulers import Scheduler
from madlite.plan.submission import (
    ENVIRONMENT,
    HEALTH,
    OUTPUT,
    PLANS,
    SUBMISSION,
    JobRun,
    JobScript,
    PlannedRun,
    ScriptInputs,
    Submission,
    folder_of,
)
from madlite.platforms.node_check import CheckRequest
from madlite.run.from_plan import copied, saved_text
from madlite.store.events import EventLog, Submitted, append, now
from madlite.store.folder import CHECK_REQUEST, new_run_id, open_runs
from madlite.study.each_node import node_of


class Prepared(Value, frozen=True):
    """A submission that can be written: with the text of each script, by number, and what secrets plans name.

    `after` are failed runs by the runs that are their next attempts.
    """

    submission: Submission
    planned: tuple[PlannedRun, ...]
    scripts: dict[int, str]
    environment: dict[str, str]
    after: dict[str, str] = {}


def prepare(
    planned: Sequence[PlannedRun],
    asked: Submission,
    scheduler: Scheduler,
    options: Options,
    search: Sequence[Path],
    sources: Mapping[str, str],
) -> Prepared:
    """Return a submission that is `asked` for with plans, those with equal requests in arrays; nothing is written yet.

    `sources` are the values of secrets by name, as for plan files.

    Raises:
        UsageProblem: the jobs of the scheduler cannot do what is asked.
    """
    if asked.retry.oom_fallback and not scheduler.retries_inside:
        what = f"--oom-fallback beside --cluster {asked.cluster}: on {asked.scheduler} a job keeps its plan"
        raise UsageProblem(what, "leave --oom-fallback out, and submit what did not fit with --set micro_batch=N")
    ordered = sorted(planned, key=_request)
    runs = tuple(
        JobRun(id=run.plan.id, card=run.plan.card.name, number=number) for number, run in enumerate(ordered, 1)
    )
    limit = scheduler.array_limit() if len(ordered) > 1 else 1
    submission = replace(
        asked,
        runs=runs,
        scripts=tuple(_scripts(ordered, asked.id, limit, scheduler.ending)),
        study=next((run.plan.study.kind for run in ordered if run.plan.study is not None), ""),
        description=replace(asked.description, env={}),  # which the plans have, secrets by their names
    )
    environment = _environment(ordered, options, sources, with_credentials=not scheduler.reads_credentials)
    inputs = (
        ScriptInputs(submission, script, script.of(ordered), options.workspace, search, bool(environment))
        for script in submission.scripts
    )
    texts = {each.script.number: scheduler.script(each) for each in inputs}
    return Prepared(submission=submission, planned=tuple(ordered), scripts=texts, environment=environment)


def prepare_again(
    batch: Sequence[Stored],
    scheduler: Scheduler,
    options: Options,
    search: Sequence[Path],
    sources: Mapping[str, str],
    runtimes: Mapping[str, Runtime],
    exclude: Sequence[str],
) -> Prepared | None:
    """Return a submission of the failed runs of a batch's, None without any: by their plan files, as the last one was.

    It also leaves out the nodes `exclude`.

    Raises:
        UsageProblem: a plan cannot be read, or a secret of it is not here any more.
    """
    last, names = batch[-1].submission, {stored.submission.id for stored in batch}
    events = EventLog.read(batch[-1].folder.parent).of(Submitted)
    followed = {name for event in events if event.submission in names for name in event.after.values()}
    planned, after = [], {}
    for stored, run in ((each, run) for each in batch for run in each.submission.runs):
        found = last_failure(stored.folder.parent / run.id) if run.id in stored.settled else None
        if found is not None and found.result.plan_id not in followed:
            planned.append(_plan_again(stored.plan_file(run), new_run_id(run.card), sources, runtimes))
            after[planned[-1].plan.id] = found.result.plan_id
    if not planned:
        return None
    scheduler.exclude(exclude)
    own = {"id": new_submission_id(), "created": now(), "goes_on": batch[-1].batch[0]}
    asked = replace(last, **own, description=scheduler.check_here())
    return replace(prepare(planned, asked, scheduler, options, search, sources), after=after)


def _plan_again(file: Path, run_id: str, sources: Mapping[str, str], runtimes: Mapping[str, Runtime]) -> PlannedRun:
    """Return the plan of a file as it is, for the machine that it was made for, under another id."""

    def smaller(size: int) -> PlannedRun | None:
        beside = file.with_name(f"{file.stem.partition('-')[0]}-{size}.json")
        return _plan_again(beside, run_id, sources, runtimes) if exists(beside) else None

    saved = read_plan_file(file, sources)
    if (name := saved.plan.runtime) not in runtimes:
        raise UsageProblem(f"the plan needs runtime '{name}', which is not here", "madlite doctor --plugins")
    run = PlannedRun(
        plan=saved.plan,
        backends=(),
        files=tuple(Rendered(path=one.path, data=one.content(), template=Path(one.template)) for one in saved.files),
        runtime=runtimes[name],
        context=saved.context,
        context_left_out=saved.context_left_out,
        with_micro_batch=smaller,
    )
    return copied(run, run_id)


def _request(planned_run: PlannedRun) -> tuple[int, int, str]:
    """Return what a run asks for: nodes, GPUs of each, and which node."""
    place, study = planned_run.plan.place, planned_run.plan.study
    return place.nodes, place.gpus_per_node, node_of(study) if study is not None else ""


def _scripts(ordered: Sequence[PlannedRun], submission_id: str, limit: int, ending: str) -> Iterator[JobScript]:
    first, number = 1, 0
    for (nodes, gpus, node), group in groupby(ordered, key=_request):
        left = sum(1 for _ in group)
        while left:
            number, count = number + 1, min(left, limit)
            name = job_name(submission_id, number)
            yield JobScript(number, name, first, count, nodes=nodes, gpus=gpus, node=node, ending=ending)
            first, left = first + count, left - count


def _environment(
    planned: Iterable[PlannedRun], options: Options, sources: Mapping[str, str], *, with_credentials: bool
) -> dict[str, str]:
    """Return the values that the plans name, of the environment, and `with_credentials` of credential.json.

    What else starts a run in the working folder reads that file by itself.
    """
    found: dict[str, str] = {}
    for planned_run in planned:
        for text, name in name_secrets(planned_run.plan, sources).items():
            of_file = options.environ.get(name) != text and sources.get(name) == text
            if name and (with_credentials or not of_file):
                found[name] = text
    return found


def write(prepared: Prepared, options: Options, plugins: Plugins, sources: Mapping[str, str]) -> Stored:
    """Write plan files, scripts and the submission; what follows it gives the scripts to the cluster.

    Secrets go to a file that its owner alone can read.

    Raises:
        UsageProblem: a plan spells out a secret, or the files cannot be written.
    """
    submission = prepared.submission
    folder = folder_of(options.workspace, submission.id)
    event = Submitted(submission=submission.id, runs=tuple(run.id for run in submission.runs), after=prepared.after)
    try:
        with open_runs(options.workspace, make=True) as runs, runs.below(folder.name, new=True) as home, locked(home):
            os.fchmod(home.fd, 0o700)
            home.below(OUTPUT, new=True).close()
            if prepared.environment:
                home.write(ENVIRONMENT, exports(prepared.environment), mode=0o600)
            for name, data in _files(prepared, options, plugins, {**sources, **prepared.environment}):
                home.write(name, data, mode=0o600)
            append(runs, event, durable=True)
            home.write(SUBMISSION, to_json(submission).encode())
            os.fsync(home.fd)
    except OSError as error:
        what = f"the files of the jobs cannot be written: {error.strerror or error} ({error.filename or folder})"
        raise UsageProblem(what, "run madlite in a folder of yours, on a disk with room") from error
    stored = read_stored(folder)
    if stored is None:
        raise UsageProblem("the submission cannot be read again", "df -h; the disk may be full")
    return stored


def _files(
    prepared: Prepared, options: Options, plugins: Plugins, named: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    """Yield plan files and scripts; `named` are the secrets that plans have by their names."""
    submission = prepared.submission
    for run, planned_run in zip(submission.runs, prepared.planned, strict=True):
        yield f"{PLANS}/{run.number}.json", saved_text(planned_run, options, plugins, named).encode()
        for other in smaller_plans(planned_run, plugins) if submission.retry.oom_fallback else ():
            micro_batch = other.plan.variant.micro_batch if other.plan.variant is not None else 0
            yield f"{PLANS}/{run.number}-{micro_batch}.json", saved_text(other, options, plugins, named).encode()
    if submission.description.health:
        request = CheckRequest(cluster=submission.description, health=True)
        yield f"{HEALTH}/{CHECK_REQUEST}", to_json(request).encode()
    for script in submission.scripts:
        yield script.file, prepared.scripts[script.number].encode()


def exports(environment: Mapping[str, str]) -> bytes:
    """Return the lines of a shell that export variables."""
    lines = [f"export {name}={quote_shell(value)}\n" for name, value in environment.items()]
    return "".join(lines).encode("utf-8", "surrogateescape")
