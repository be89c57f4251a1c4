"""The batches that `madlite run` makes of its plans: as they are, as a sweep, repeated; and how one goes on.

`--retry`, `--oom-fallback` and `--resume` are here: what they refuse, and what they are for a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from madlite.backends.loader import Plugins
from madlite.batch.attempts import has_micro_batch
from madlite.batch.resume import Resumption, is_finished, resume
from madlite.batch.runner import BatchRuns
from madlite.cli import setup
from madlite.cli.arguments import MANIFEST, closing_lines
from madlite.cli.batch_options import named_cluster
from madlite.cli.format import may_have_reference
from madlite.cli.options import TAG_WORDS, is_given
from madlite.cli.terminal import echo, shell_line
from madlite.errors import ExitCode, RuntimeProblem, UsageProblem
from madlite.files import check_writable, exists, write_named
from madlite.model import Json, Result, RunPlan, Status
from madlite.plan.context import Options
from madlite.plan.fields import canonical_key
from madlite.plan.inputs import RUNS
from madlite.plan.submission import PlannedRun, RetryPolicy
from madlite.run.executor import secrets_for
from madlite.run.from_manifest import save_manifest
from madlite.run.screen import RunOutcome
from madlite.run.summary import count_rows, full_summary, remove_entries, run_summary, suspect_runs, write_summary
from madlite.secrets import MASK
from madlite.store.batches import BatchLog, LoggedBatch, last_batch, open_last, open_unfinished, reported_batches
from madlite.text import counted

if TYPE_CHECKING:
    from madlite.cli.compare import AgainstBaseline
    from madlite.cli.screens import PlainScreen


def make_batch(
    planned: Sequence[PlannedRun], params: dict[str, Any], journal: BatchLog, before: LoggedBatch | None = None
) -> BatchRuns:
    """Return the runs as the options have them, of the study of an earlier batch where that is resumed."""
    if not makes_study(planned, params):
        return BatchRuns(planned, journal)
    from madlite.study.engine import StudyRuns
    from madlite.study.grid import plan_grid

    study_id = (before.study if before is not None else "") or journal.id
    return StudyRuns(plan_grid(planned, study_id, params["repeat"], cold=params["cold"]), journal)


def makes_study(planned: Sequence[PlannedRun], params: dict[str, Any]) -> bool:
    """Return whether the runs are those of a repeat, a sweep or a scaling."""
    return params["repeat"] is not None or any(run.plan.study is not None and not run.plan.study.id for run in planned)


def resume_as_begun() -> int | None:
    """Go on by the command that began what is resumed, and return its exit code; None where the command line says all.

    --resume is alone, or of a batch beside a part of that command's options and its tags: what it does not name is the
    batch's own.

    Raises:
        UsageProblem: there is nothing to resume, or the command had a secret, which nobody wrote down.
    """
    context = click.get_current_context()
    named, given = context.params.get("resume_study"), _given(context) - _NOT_OF_RUNS
    if named is not None and not given:
        from madlite.study.engine import named_studies

        kind = str(context.info_name)
        study_id = named_studies(Path.cwd(), kind, named)[-1].study
        last = last_batch(Path.cwd(), study_id)
        return _run_again(kind, last.command if last is not None else (), f"--resume={study_id}")
    if not context.params.get("resume") or (given and "tags" not in given):
        return None
    failed = context.params["failed"]
    batch = unfinished(Path.cwd(), failed=failed)
    with closing(batch):
        if failed and is_finished(batch, Path.cwd()):
            of = f"the {counted(len(batch.requested), 'run')} of {batch_text(batch)}"
            echo(f"nothing to run again: {of}, succeeded or were skipped")
            return int(ExitCode.OK)
    return None if given and not _is_part(context, given, batch.command) else _run_again("run", batch.command)


_NOT_OF_RUNS = {"resume", "failed", "resume_study", "live_output", "verbose"}


def _is_part(context: click.Context, given: set[str], command: Sequence[str]) -> bool:
    """Return whether tags and options are a part of a command's."""
    if command[:1] != (context.info_name,):
        return False
    words = [word for word in command[1:] if word not in ("--resume", "--failed")]
    begun = context.command.make_context(context.info_name, words, resilient_parsing=True)
    left_out = _given(begun) - given - _NOT_OF_RUNS
    same = all(begun.params.get(name) == context.params.get(name) for name in given - {"tags"})
    return same and _tags(begun) == _tags(context) and bool(left_out)


def _given(context: click.Context) -> set[str]:
    names = {str(param.name) for param in context.command.params if is_given(str(param.name), context)}
    return names - {TAG_WORDS} | ({"tags"} if TAG_WORDS in names else set())


def _tags(context: click.Context) -> list[str]:
    return [tag.strip() for words in context.params["tags"] or () for tag in words.split(",")]


def without_resume(command: Sequence[str], *, takes_id: bool) -> Iterator[str]:
    """Yield the words of a command without --resume and --failed, and without the id of a study that follows it."""
    follows = False
    for word in command:
        is_id = follows and takes_id and not word.startswith("-")
        follows = word == "--resume"
        if not word.startswith("--resume") and word != "--failed" and not is_id:
            yield word


def _run_again(verb: str, command: Sequence[str], resume: str = "--resume") -> int:
    """Give the command of what is resumed again."""
    from madlite.cli.main import main

    what = "batch" if verb == "run" else verb
    words = tuple(without_resume(command, takes_id=verb not in ("run", "scaling")))
    if len(words) < 2:
        text = f"the command of the last unfinished {what} is not known"
        raise UsageProblem(text, f"madlite {verb} --resume --tags … goes on with it")
    if any(MASK.decode() in word for word in words):
        raise UsageProblem(
            f"the {what}'s command had a secret, which is not kept: {shell_line(('madlite', *words))}",
            "give the command again, with --resume",
        )
    params = click.get_current_context().params
    also = [option for option in ("--failed", "--live-output") if params.get(option[2:].replace("-", "_"))]
    words = (*words, resume, *also)
    return int(main.main(args=list(words), prog_name="madlite", standalone_mode=False, obj=words) or 0)


def unfinished(workspace: Path, *, failed: bool = False) -> LoggedBatch:
    """Return the last unfinished batch of a folder; with `failed` the last one, whatever became of it.

    Raises:
        UsageProblem: there is none, or another command has it.
    """
    if failed:
        return open_last(workspace)
    batch = open_unfinished(workspace)
    if batch is not None:
        return batch
    what = "--resume: no batch of this folder was killed or interrupted"
    searches = [batch for batch in reported_batches(workspace) if not batch.is_resumable]
    if others := [batch.command for batch in searches if batch.message]:
        said = shell_line(("madlite", *others[-1]))
        raise UsageProblem(f"{what}, only {said}", f"it goes on by its own command: madlite {others[-1][0]} --help")
    cluster = named_cluster({})
    raise UsageProblem(what, f"madlite run --resume --cluster {cluster}" if cluster else "madlite runs")


def make_retry(params: dict[str, Any]) -> RetryPolicy:
    """Return which failures are followed by another attempt."""
    return RetryPolicy(
        retries=params["retry"],
        wait_s=params["retry_wait"],
        oom_fallback=params["oom_fallback"] or bool(params.get("smaller_plans")),
    )


def check_recovery(params: dict[str, Any]) -> None:
    """Refuse values of --resume and --oom-fallback that do not go together with others.

    Raises:
        UsageProblem: they do not.
    """
    named = ("tags", "plan_file", "recipe_file", "manifest_file")
    if params["resume"] and not any(params[name] for name in named):
        raise UsageProblem(
            "--resume beside other options: which runs go on with them? no tag is named",
            "add the tags of the batch; madlite run --resume alone goes on by its own command",
        )
    swept = {canonical_key(text.partition("=")[0].strip()) for text in params["sweep"]}
    if params["oom_fallback"] and "micro_batch" in swept:
        what = "--oom-fallback beside --sweep micro_batch: a smaller one would be taken for the point that did not fit"
        raise UsageProblem(what, "leave --oom-fallback out: the table tells what does not fit")


def note_fallback(planned: Sequence[PlannedRun], params: dict[str, Any]) -> Iterator[str]:
    """Yield notes on runs that have no smaller micro batch of madlite's to fall back to.

    Raises:
        UsageProblem: that is so of all of them, by their kind.
    """
    if not params["oom_fallback"]:
        return

    started = [run for run in planned if run.plan.blocked is None]
    without = [run.plan for run in started if not has_micro_batch(run)]
    if started and len(without) == len(started):
        names = ", ".join(dict.fromkeys(plan.card.name for plan in without))
        raise UsageProblem(
            f"--oom-fallback has no effect: no micro batch of {names} is madlite's to set (a card's own script has its "
            "own)",
            "leave --oom-fallback out, or give the script a smaller batch",
        )
    for name in dict.fromkeys(plan.card.name for plan in without):
        yield f"{name}: --oom-fallback has no effect, its own script has the micro batch"


def batch_text(batch: LoggedBatch) -> str:
    """Return when a batch began, and by which command."""
    when = batch.started[:19].replace("T", " ")
    return f"the batch of {when} (UTC), {shell_line(('madlite', *batch.command))}"


def resumed(
    before: LoggedBatch, runs: BatchRuns, options: Options, journal: BatchLog, screen: PlainScreen
) -> Resumption:
    """Return what of an earlier batch is finished, and say so.

    Raises:
        UsageProblem: as `resume`.
    """
    found = resume(before, runs.every, options.workspace, options.environ)
    journal.carry(before, found.requested.values())
    count = len(runs.planned)
    done = count - len(found.left(runs.planned))
    were = "is finished and not repeated" if done == 1 else "are finished and not repeated"
    screen.end([f"resuming {batch_text(before)}: {done} of {count} runs {were}"])
    for text in found.notes:
        screen.warn(text)
    for planned_run in runs.planned:
        result = found.finished.get(planned_run.plan.id)
        if result is not None and result.status is Status.FAILURE:
            screen.failed_before(planned_run.plan.card.name, result.code)
    return found


# What a batch of runs leaves beside its rows: the manifest, and on request a summary, or no entry files.


class BatchFiles:
    """The files of one batch; that they can be written is checked before anything runs."""

    def __init__(self, options: Options, params: dict[str, Any]) -> None:
        self._options, self._given = options, params
        manifest = params["manifest_file"]
        self.from_tags = params["plan_file"] is None and (manifest is None or not exists(manifest))
        self._summary = params["summary_output"]
        if self._summary is not None:
            check_writable(self._summary)
        if self.from_tags and params["manifest_output"] != MANIFEST:  # the default file never blocks a run
            check_writable(options.workspace / params["manifest_output"])
        self._exclude_list = params.get("exclude_list")
        if self._exclude_list is not None:
            check_writable(self._exclude_list)
        self._rows_before = 0
        self.failed = False  # whether a requested file could not be written, or --fail-on-suspect applies

    def begin(self) -> None:
        """Count the rows that are there before the first run's."""
        if self._summary is not None:
            self._rows_before = count_rows(self._options.output)

    def close(self, planned: Sequence[PlannedRun], outcome: RunOutcome, study: Json = None) -> tuple[str, ...]:
        """Write the files and return what could not be written; every run has its row by now."""
        problems: list[str] = []
        if self.from_tags:
            file, context = self._options.workspace / self._given["manifest_output"], setup.context_of(self._given)
            problems.append(save_manifest(file, planned, outcome.results, self._options, context))
            self.failed |= bool(problems[0]) and self._given["manifest_output"] != MANIFEST
        for write in (
            partial(self._write_summary, planned, outcome, study),
            partial(self._write_exclude_list, study),
            partial(remove_entries, self._options.workspace) if self._given["cleanup_perf"] else tuple,
        ):
            try:
                write()
            except RuntimeProblem as problem:
                problems.append(problem.message)
                self.failed = True
        if self._given["fail_on_suspect"] and (names := suspect_runs(planned, outcome)):
            problems.append(f"suspect: {', '.join(names)} (--fail-on-suspect: exit code 3)")
            self.failed = True
        return tuple(filter(None, problems))

    def exit_code(self, outcome: RunOutcome, against: AgainstBaseline | None) -> int:
        """Print what the runs compare with, and return the exit code of the command; after `close`."""
        folders = (self._options.workspace / RUNS / result.plan_id for result in outcome.results)
        failed_gate = against is not None and against.show(folders)
        if failed_gate and outcome.exit_code is ExitCode.OK and not self.failed:
            return int(ExitCode.RESULT_CHECK_FAILED)
        only_builds = outcome.exit_code in (ExitCode.OK, ExitCode.BUILD_FAILED)
        return int(ExitCode.RUN_FAILED if self.failed and only_builds else outcome.exit_code)

    def _write_exclude_list(self, study: Json) -> None:
        """Write the nodes that the study leaves out as a file that sbatch's --exclude takes."""
        if self._exclude_list is not None and isinstance(study, dict):
            lines = (f"{node}  # {why}\n" for node, why in study["leave_out"].items())
            write_named(self._exclude_list, "".join(lines))

    def _write_summary(self, planned: Sequence[PlannedRun], outcome: RunOutcome, study: Json) -> None:
        if self._summary is None:
            return
        rows = count_rows(self._options.output) - self._rows_before if self._options.rows else 0
        facts = (planned, outcome, self._rows_before, rows)
        summary = full_summary(*facts, self._given["fail_on_suspect"]) if self.from_tags else run_summary(*facts)
        if study is not None:
            summary = {**summary, "study": study}
        secrets = [text for run in planned for text in secrets_for(run, self._options.environ)]
        write_summary(self._summary, summary, secrets)


def print_totals(
    screen: PlainScreen,
    outcome: RunOutcome,
    output: Path | str | None,
    lines: Iterable[str],
    version: int,
    *,
    from_manifest: bool = False,
) -> None:
    """Print what all runs of a batch came to: totals, where their rows are, `lines` of a study, madengine's last line.

    `output` is None where no results file has the rows; `version` is that of madengine whose contract holds.
    """
    screen.total(outcome, output)
    screen.end(lines)
    screen.end(closing_lines(version, outcome, from_manifest=from_manifest))


def compare_run(plugins: Plugins, plan: RunPlan, result: Result) -> str:
    """Return how a success compares with published figures; what can have none loads none."""
    if not may_have_reference(result, plan.variant):
        return ""
    from madlite.reports.references import compared_text, of_plan

    return compared_text(plugins, plan.workspace, os.environ, of_plan(plan, result))


def against_baseline(params: dict[str, Any], options: Options) -> AgainstBaseline | None:
    """Return what the runs of a command are compared with when they have ended.

    Raises:
        UsageProblem: nothing is named so, or a gate is none.
    """
    if not params["baseline"]:
        return None
    from madlite.cli.compare import AgainstBaseline

    against = AgainstBaseline(
        params["baseline"], params["fail_on"], options.workspace, allow_undecided=params["allow_undecided"]
    )
    if warning := against.warning(params["repeat"] or 1):
        setup.warn(warning)
    return against
