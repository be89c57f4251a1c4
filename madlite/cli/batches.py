"""The batches that `madlite run` makes of its plans: as they are, as a sweep, repeated; and how one goes on.

`--retry`, `--oom-fallback` and `--resume` are here: what they refuse, and what they are for a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click
import msgspec

from madlite.cli.options import is_given
from madlite.errors import UsageProblem
from madlite.plan.fields import canonical_key
from madlite.run.screen import PlannedRun

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.batch.attempts import RetryPolicy
    from madlite.batch.resume import Resumption
    from madlite.batch.runner import BatchSettings
    from madlite.cli.screens import PlainScreen
    from madlite.model import Json
    from madlite.plan.context import Options
    from madlite.run.screen import RunOutcome
    from madlite.store.batches import BatchLog, UnfinishedBatch


class BatchStart(NamedTuple):
    """What a batch is run with; `resumed` is an earlier one that it goes on with, of runs that can be resumed."""

    options: Options
    plugins: Plugins
    screen: PlainScreen
    settings: BatchSettings
    resumed: Resumption | None = None


class StudyBatch(Protocol):
    """The runs of a command, and after `run` what they came to together: data, problems and lines to print."""

    planned: Sequence[PlannedRun]
    study: Json
    problems: tuple[str, ...]
    lines: list[str]

    def run(self, start: BatchStart) -> RunOutcome:
        """Run all of them, of an earlier batch those that are not finished."""


class OwnBatch(StudyBatch, Protocol):
    """The runs of `madlite run`, which can be resumed: `every` one with its warm-ups, and the id of their study."""

    every: Sequence[PlannedRun]
    study_id: str


class _PlainBatch:
    """The runs of a command that makes no study of them."""

    study_id = ""

    def __init__(self, planned: Sequence[PlannedRun], journal: BatchLog) -> None:
        self._journal = journal
        self.planned = self.every = planned
        self.study: Json = None
        self.problems: tuple[str, ...] = ()
        self.lines: list[str] = []

    def run(self, start: BatchStart) -> RunOutcome:
        from madlite.batch.runner import run_batch

        options, plugins, screen, settings, resumed = start
        left = resumed.left(self.planned) if resumed is not None else self.planned
        outcome = run_batch(left, options, plugins, screen, journal=self._journal, settings=settings)
        return resumed.whole(self.planned, outcome) if resumed is not None else outcome


class _SweepBatch(_PlainBatch):
    """The runs of a sweep whose points are not repeated."""

    def __init__(self, planned: Sequence[PlannedRun], journal: BatchLog, study_id: str = "") -> None:
        from madlite.study.sweep import with_study_id

        self.study_id = study_id or journal.id
        super().__init__(with_study_id(planned, self.study_id), journal)

    def run(self, start: BatchStart) -> RunOutcome:
        from madlite.cli.repeat import swept_lines
        from madlite.study.summary import samples_of, summarise
        from madlite.study.sweep import KIND

        outcome = super().run(start)
        planned = start.resumed.with_ids(self.planned) if start.resumed is not None else self.planned
        summary = summarise(self.study_id, KIND, samples_of(planned, outcome.results))
        self.study = msgspec.to_builtins(summary)
        self.lines = [*swept_lines(summary), runs_of_text(start.options.workspace, self.study_id)]
        return outcome


class _RepeatBatch(_PlainBatch):
    """The runs of a repeat."""

    def __init__(
        self, planned: Sequence[PlannedRun], params: dict[str, Any], journal: BatchLog, study_id: str = ""
    ) -> None:
        from madlite.study.repeat import plan_repeat

        self.study_id = study_id or journal.id
        self._repeat = plan_repeat(planned, self.study_id, params["repeat"], cold=params["cold"])
        super().__init__(self._repeat.runs, journal)
        self.every = (*self._repeat.warm_ups, *self._repeat.runs)

    def run(self, start: BatchStart) -> RunOutcome:
        from madlite.cli.repeat import summary_lines
        from madlite.store.study import SUMMARY
        from madlite.study.repeat import run_repeat

        options, plugins, screen, settings, resumed = start
        ended = run_repeat(self._repeat, options, plugins, screen, self._journal, settings, resumed)
        self.study, self.problems = msgspec.to_builtins(ended.summary), ended.problems
        self.lines = [*summary_lines(ended.summary), runs_of_text(self._repeat.workspace, self.study_id, SUMMARY)]
        return ended.runs


def runs_of_text(workspace: Path, study_id: str, *files: str) -> str:
    """Return the last line of a study: what lists its runs, and where its `files` are."""
    from madlite.store.study import study_path

    where = study_path(workspace, study_id).relative_to(workspace)
    return "; ".join((f"  madlite runs --of {study_id}", *(str(where / file) for file in files)))


def make_batch(
    planned: Sequence[PlannedRun],
    params: dict[str, Any],
    journal: BatchLog,
    before: UnfinishedBatch | None = None,
) -> OwnBatch:
    """Return the runs as the options have them, of the study of an earlier batch where that is resumed."""
    study_id = before.study if before is not None else ""
    if params["repeat"] is not None:
        return _RepeatBatch(planned, params, journal, study_id)
    return _SweepBatch(planned, journal, study_id) if params["sweep"] else _PlainBatch(planned, journal)


def is_alone(name: str) -> bool:
    """Return whether the command line has this option and nothing else that decides anything."""
    given = {str(param.name) for param in click.get_current_context().command.params if is_given(str(param.name))}
    return given <= {name, "live_output", "verbose"}


def resume_last() -> int:
    """Go on with the last unfinished batch of this folder by its own command.

    Raises:
        UsageProblem: there is none, or its command had a secret, which nobody wrote down.
    """
    from madlite.cli.main import main
    from madlite.cli.terminal import shell_line
    from madlite.secrets import MASK

    batch = unfinished(Path.cwd())
    words = tuple(word for word in batch.command if word != "--resume")
    batch.close()
    if words[:1] != ("run",) or len(words) < 2:
        raise UsageProblem(
            "the command of the last unfinished batch is not known", "madlite run --resume --tags … goes on with it"
        )
    if any(MASK.decode() in word for word in words):
        raise UsageProblem(
            f"the batch's command had a secret, which is not kept: {shell_line(('madlite', *words))}",
            "give the command again, with --resume",
        )
    words = (*words, "--resume", *(["--live-output"] if click.get_current_context().params["live_output"] else []))
    return int(main.main(args=list(words), prog_name="madlite", standalone_mode=False, obj=words) or 0)


def unfinished(workspace: Path) -> UnfinishedBatch:
    """Return the last unfinished batch of a folder.

    Raises:
        UsageProblem: there is none, or none that began in this folder.
    """
    from madlite.cli.terminal import shell_line
    from madlite.store.batches import interrupted_batches, open_unfinished

    batch, foreign = open_unfinished(workspace)
    if batch is not None:
        return batch
    if foreign:
        words = [word for word in foreign[-1].command if word != "--resume"] or ["run", "--tags", "…"]
        begin = shell_line(("madlite", *words))
        raise UsageProblem(f"--resume: {foreign[-1].why_foreign}", f"{begin}   begins its runs anew")
    what = "--resume: no batch of this folder was killed or interrupted"
    if others := [one.command for one in interrupted_batches(workspace) if not one.is_of_run]:
        said = shell_line(("madlite", *others[-1]))
        raise UsageProblem(f"{what}, only {said}", f"it goes on by its own command: madlite {others[-1][0]} --help")
    raise UsageProblem(what, "madlite runs")


def make_retry(params: dict[str, Any]) -> RetryPolicy:
    """Return which failures are followed by another attempt."""
    from madlite.batch.attempts import RetryPolicy

    return RetryPolicy(
        retries=params["retry"],
        wait_s=params["retry_wait"],
        elsewhere=bool(params.get("attempt")),
        oom_fallback=params["oom_fallback"] or bool(params.get("smaller_plans")),
        micro_batches={} if params["oom_fallback"] else None,
    )


def check_retry(params: dict[str, Any]) -> None:
    """Refuse options of runs that are tried again that do not go together.

    Raises:
        UsageProblem: they do not.
    """
    if is_given("retry_wait") and not params["retry"]:
        raise UsageProblem("--retry-wait without --retry: there is nothing to wait for", "add --retry N")
    if params.get("resume") and params["dry_run"]:
        raise click.UsageError("--resume goes on with a batch, and --dry-run touches nothing: leave one of them out")
    named = ("tags", "plan_file", "recipe_file", "manifest_file")
    if params.get("resume") and not any(params.get(name) for name in named):
        raise UsageProblem(
            "--resume beside other options: which runs go on with them? no tag is named",
            "add the tags of the batch; madlite run --resume alone goes on by its own command",
        )
    if params["oom_fallback"] and params["plan_file"] is not None:
        raise UsageProblem("--oom-fallback beside --plan: a plan is frozen", "leave one of them out")
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
    from madlite.batch.attempts import has_micro_batch

    started = [one for one in planned if one.plan.blocked is None]
    without = [one.plan for one in started if not has_micro_batch(one)]
    if started and len(without) == len(started):
        names = ", ".join(dict.fromkeys(one.card.name for one in without))
        raise UsageProblem(
            f"--oom-fallback has no effect: no micro batch of {names} is madlite's to set (a card's own script has its "
            "own)",
            "leave --oom-fallback out, or give the script a smaller batch",
        )
    for name in dict.fromkeys(one.card.name for one in without):
        yield f"{name}: --oom-fallback has no effect, its own script has the micro batch"


def resumed(
    before: UnfinishedBatch,
    runs: OwnBatch,
    options: Options,
    journal: BatchLog,
    screen: PlainScreen,
) -> Resumption:
    """Return what of an earlier batch is finished, and say so."""
    from madlite.batch.resume import resume
    from madlite.cli.terminal import shell_line
    from madlite.model import Status
    from madlite.perfcsv.header import new_columns

    output, begin = options.output_target or options.output, new_columns(options.contract)
    found = resume(before, runs.every, options.workspace, output, options.environ, begin)
    journal.carry(before, found.requested.values())
    when, count = before.started[:19].replace("T", " "), len(runs.planned)
    done = count - len(found.left(runs.planned))
    were = "is finished and not repeated" if done == 1 else "are finished and not repeated"
    command = shell_line(("madlite", *before.command))
    screen.end([f"resuming the batch of {when} (UTC), {command}: {done} of {count} runs {were}"])
    for text in found.notes:
        screen.warn(text)
    for one in runs.planned:
        result = found.finished.get(one.plan.id)
        if result is not None and result.status is Status.FAILURE:
            screen.failed_before(one.plan.card.name, result.code)
    return found


def left_by(before: UnfinishedBatch | None, workspace: Path) -> Collection[Path]:
    """Return the folders of the attempts of a batch that are followed by another one, where it is resumed."""
    if before is None:
        return ()
    from madlite.batch.resume import find_standing

    return find_standing(before, workspace).values()
