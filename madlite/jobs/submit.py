"""Plans → a submission on the disk: which run is in which job, the jobs' scripts, and the plan files.

All of it is written before the cluster gets the first script.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.attempts import smaller_plans
from madlite.errors import UsageProblem
from madlite.files import Folder, write_all
from madlite.jobs.submission import Stored, job_name, locked, read_stored
from madlite.model import Value, to_json
from madlite.plan.cluster import Cluster
from madlite.plan.context import Options
from madlite.plan.plan_file import name_secrets, quote_shell
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
    RetryPolicy,
    Submission,
    folder_of,
)
from madlite.platforms.node_check import CheckRequest
from madlite.run.from_plan import saved_text
from madlite.store.events import Submitted, append, now
from madlite.store.folder import CHECK_REQUEST, open_runs
from madlite.study.each_node import node_of


class Prepared(Value, frozen=True):
    """A submission that can be written: with the text of each script, by number, and what secrets plans name."""

    submission: Submission
    planned: tuple[PlannedRun, ...]
    scripts: dict[int, str]
    environment: dict[str, str]


def prepare(
    planned: Sequence[PlannedRun],
    submission_id: str,
    cluster: Cluster,
    scheduler: Scheduler,
    options: Options,
    search: Sequence[Path],
    sources: Mapping[str, str],
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    max_failures: int = 0,
    own: Sequence[str] = (),
    at_most: int = 0,
) -> Prepared:
    """Return the submission of plans, those with equal requests in arrays; nothing is written yet.

    `sources` are the values of secrets by name, as for plan files, `own` the options that each job's madlite has, too.

    Raises:
        UsageProblem: the jobs of the scheduler cannot do what is asked.
    """
    if retry.oom_fallback and not scheduler.retries_inside:
        what = f"--oom-fallback beside --cluster {cluster.name}: on {cluster.scheduler} a job keeps its plan"
        raise UsageProblem(what, "leave --oom-fallback out, and submit what did not fit with --set micro_batch=N")
    ordered = sorted(planned, key=_request)
    runs = tuple(
        JobRun(id=run.plan.id, card=run.plan.card.name, number=number) for number, run in enumerate(ordered, 1)
    )
    limit = scheduler.array_limit() if len(ordered) > 1 else 1
    submission = Submission(
        id=submission_id,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        created=now(),
        command=options.command,
        output=str(options.output),
        runs=runs,
        scripts=tuple(_scripts(ordered, submission_id, limit, scheduler.ending)),
        columns=options.columns,
        strict_header=options.strict_header,
        study=next((run.plan.study.kind for run in ordered if run.plan.study is not None), ""),
        retry=retry,
        max_failures=max_failures,
        options=tuple(own),
        at_most=at_most,
        description=replace(cluster, env={}),  # which the plans have, secrets by their names
    )
    environment = _environment(ordered, options, sources, with_credentials=not scheduler.reads_credentials)
    texts = {}
    for job_script in submission.scripts:
        texts[job_script.number] = scheduler.script(
            submission, job_script, job_script.of(ordered), options.workspace, search, secrets=bool(environment)
        )
    return Prepared(submission=submission, planned=tuple(ordered), scripts=texts, environment=environment)


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
    event = Submitted(submission=submission.id, runs=tuple(run.id for run in submission.runs))
    try:
        with open_runs(options.workspace, make=True) as runs, runs.below(folder.name, new=True) as home, locked(home):
            os.fchmod(home.fd, 0o700)
            home.below(OUTPUT, new=True).close()
            if prepared.environment:
                _write_private(home, ENVIRONMENT, exports(prepared.environment))
            for name, data in _files(prepared, options, plugins, {**sources, **prepared.environment}):
                with home.parent_of(name, make=True) as (parent, last):
                    _write_private(parent, last, data)
            append(runs, event, durable=True)
            home.write(SUBMISSION, to_json(submission).encode())
            os.fsync(home.fd)
    except OSError as error:
        raise UsageProblem(
            f"the files of the jobs cannot be written: {error.strerror or error} ({error.filename or folder})",
            "run madlite in a folder of yours, on a disk with room",
        ) from error
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
        request = CheckRequest(token=token_hex(8), cluster=submission.description, health=True)
        yield f"{HEALTH}/{CHECK_REQUEST}", to_json(request).encode()
    for script in submission.scripts:
        yield script.file, prepared.scripts[script.number].encode()


def exports(environment: Mapping[str, str]) -> bytes:
    """Return the lines of a shell that export variables."""
    lines = [f"export {name}={quote_shell(value)}\n" for name, value in environment.items()]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _write_private(folder: Folder, name: str, data: bytes) -> None:
    fd = folder.create(name, mode=0o600)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
