"""`madlite run --retry`, `--oom-fallback`, `--resume`: what they refuse, their settings, the batch that goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from madlite.cli.options import is_given
from madlite.errors import UsageProblem
from madlite.plan.values import canonical_key
from madlite.run.screen import Planned

if TYPE_CHECKING:
    from madlite.cli.screens import PlainScreen
    from madlite.plan.context import Options
    from madlite.results.batch_journal import BatchJournal, UnfinishedBatch
    from madlite.run.attempts import RetryPolicy
    from madlite.run.resume import Resumption


class RunsOfCommand(Protocol):
    """The runs of a command: those that are results, and `every` one with its warm-ups."""

    planned: Sequence[Planned]
    every: Sequence[Planned]


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
        UsageProblem: there is none.
    """
    from madlite.cli.terminal import shell_line
    from madlite.results.batch_journal import interrupted_batches, open_unfinished

    if (batch := open_unfinished(workspace)) is not None:
        return batch
    what = "--resume: no batch of this folder was killed or interrupted"
    if others := [one.command for one in interrupted_batches(workspace) if not one.is_resumable]:
        said = shell_line(("madlite", *others[-1]))
        raise UsageProblem(f"{what}, only {said}", f"it goes on by its own command: madlite {others[-1][0]} --help")
    raise UsageProblem(what, "madlite runs")


def make_retry(params: dict[str, Any]) -> RetryPolicy:
    """Return which failures are followed by another attempt."""
    from madlite.run.attempts import MicroBatches, RetryPolicy

    return RetryPolicy(
        retries=params["retry"],
        wait_s=params["retry_wait"],
        oom_fallback=params["oom_fallback"],
        micro_batches=MicroBatches() if params["oom_fallback"] else None,
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


def note_fallback(planned: Sequence[Planned], params: dict[str, Any]) -> Iterator[str]:
    """Yield notes on runs that have no smaller micro batch of madlite's to fall back to.

    Raises:
        UsageProblem: that is so of all of them, by their kind.
    """
    if not params["oom_fallback"]:
        return
    from madlite.run.attempts import has_micro_batch

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
    runs: RunsOfCommand,
    options: Options,
    journal: BatchJournal,
    screen: PlainScreen,
) -> Resumption:
    """Return what of an earlier batch is finished, and say so."""
    from madlite.cli.terminal import shell_line
    from madlite.results.header import new_columns
    from madlite.run.resume import resume

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
    return found


def left_by(before: UnfinishedBatch | None, workspace: Path) -> Collection[Path]:
    """Return the folders of the attempts of a batch that are followed by another one, where it is resumed."""
    if before is None:
        return ()
    from madlite.run.resume import find_standing

    return find_standing(before, workspace).values()
