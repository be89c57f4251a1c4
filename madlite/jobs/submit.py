"""Plans → a submission on the disk: which run is in which job, the jobs' scripts, and the plan files.

All of it is written before the cluster gets the first script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.batch.attempts import smaller_plans
from madlite.errors import UsageProblem
from madlite.jobs.submission import Stored, create, job_name
from madlite.model import Value
from madlite.plan.cluster import Cluster
from madlite.plan.context import Options
from madlite.plan.plan_file import name_secrets
from madlite.plan.planned import PlannedRun, RetryPolicy
from madlite.plan.schedulers import Scheduler
from madlite.plan.submission import PLANS, JobRun, JobScript, Submission
from madlite.run.from_plan import saved_text
from madlite.store.events import now


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
) -> Prepared:
    """Return the submission of plans, those with equal requests in arrays; nothing is written yet.

    `sources` are the values of secrets by name, as for plan files.

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
        description=replace(cluster, env={}),  # which the plans have, secrets by their names
    )
    environment = _environment(ordered, options, sources, with_credentials=not scheduler.reads_credentials)
    texts = {}
    for job_script in submission.scripts:
        texts[job_script.number] = scheduler.script(
            submission, job_script, job_script.of(ordered), options.workspace, search, secrets=bool(environment)
        )
    return Prepared(submission=submission, planned=tuple(ordered), scripts=texts, environment=environment)


def _request(planned_run: PlannedRun) -> tuple[int, int]:
    """Return what a run asks for: nodes, and GPUs of each."""
    return planned_run.plan.place.nodes, planned_run.plan.place.gpus_per_node


def _scripts(ordered: Sequence[PlannedRun], submission_id: str, limit: int, ending: str) -> Iterator[JobScript]:
    first, number = 1, 0
    for (nodes, gpus), group in groupby(ordered, key=_request):
        left = sum(1 for _ in group)
        while left:
            number, count = number + 1, min(left, limit)
            name = job_name(submission_id, number)
            yield JobScript(number=number, name=name, first=first, count=count, nodes=nodes, gpus=gpus, ending=ending)
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

    Raises:
        UsageProblem: a plan spells out a secret, or the files cannot be written.
    """
    submission = prepared.submission
    named = {**sources, **prepared.environment}

    def files() -> Iterator[tuple[str, bytes]]:
        for run, planned_run in zip(submission.runs, prepared.planned, strict=True):
            yield f"{PLANS}/{run.number}.json", saved_text(planned_run, options, plugins, named).encode()
            for other in smaller_plans(planned_run, plugins) if submission.retry.oom_fallback else ():
                micro_batch = other.plan.variant.micro_batch if other.plan.variant is not None else 0
                yield f"{PLANS}/{run.number}-{micro_batch}.json", saved_text(other, options, plugins, named).encode()
        for script in submission.scripts:
            yield script.file, prepared.scripts[script.number].encode()

    return create(options.workspace, submission, files(), prepared.environment)
