"""`madlite tune`: the fastest configuration of a tag on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from madlite.batch.runner import BatchSettings
from madlite.cli import setup
from madlite.cli.arguments import FiniteRange, whole_number
from madlite.cli.batch_options import check_together, no_cluster, pretend_options
from madlite.cli.options import TagsCommand, common_options, live_option, study_options, tag_words, tags_option
from madlite.cli.planning import check_start, planner, preview
from madlite.cli.run import command as run_command
from madlite.cli.run import recovery_warnings
from madlite.cli.screens import open_screen
from madlite.cli.setup import cards_option
from madlite.cli.studies import runs_of_text
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import UsageProblem
from madlite.model import RunPlan, Scalar
from madlite.perfcsv.locked import make_folder
from madlite.plan.fields import canonical_key
from madlite.run.executor import secrets_for
from madlite.run.screen import PlannedRun
from madlite.secrets import Redactor, masked_json
from madlite.store.batches import BatchLog
from madlite.store.study import SUMMARY, StudyFolder, study_path
from madlite.study.tune import (
    PointPlanner,
    TuneOutcome,
    TuneRunner,
    TuneState,
    Tuning,
    find_study,
    lost_s,
    make_tuning,
    open_folder,
    point_text,
    scalar,
    trials_of,
)
from madlite.study.tune_models import Trial
from madlite.study.tune_report import (
    PAGE,
    RECIPE,
    make_recipe,
    make_report,
    recipe_command,
    render_page,
    report_lines,
)
from madlite.study.tune_search import Budget, NextRun, next_run
from madlite.text import counted, duration

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.cli.screens import PlainScreen
    from madlite.plan.context import Options
    from madlite.store.batches import BatchLog

_MINUTES, _RUNS = 8.0, 5  # the budget where none is given: what of them allows more


@click.command("tune", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
@click.option(
    "--minutes",
    type=FiniteRange(0, min_open=True),
    metavar="M",
    help=f"Spend at most so long in all.  [default: {_MINUTES:g}, or {_RUNS} runs where those take longer]",
)
@click.option("--runs", type=whole_number(1), metavar="N", help="Make at most so many runs in all.")
@click.option("--keep-global-batch", is_flag=True, help="Keep the default's global batch, by gradient accumulation.")
@click.option(
    "--resume",
    is_flag=False,
    flag_value="newest",
    metavar="[=ID]",
    help="Go on with this study, or the newest of the tag; no run is repeated.",
)
@pretend_options("what may be changed and the first run")
@live_option
@study_options
@no_cluster
@common_options
def command(**params: Any) -> int:
    """Find the fastest configuration of a tag on this machine, and write it as a recipe file.

    Short runs search, full ones confirm: those end by --until 0.5% unless it is given.  Exit code 0: also where the
    default is the fastest; 3: the default itself failed, or a row could not be written.

    \b
    madlite tune demo_hf_lora_tiny --runtime host
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --minutes 20
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --keep-global-batch --runs 12
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --resume --minutes 40
    """
    given = params
    params = {**run_command.make_context("run", [], resilient_parsing=True).params, **params}
    check_together()
    plugins = setup.load(params["no_plugins"], params["verbose"])
    touch = not params["dry_run"]
    options = setup.make_options(params, touch)
    with ExitStack() as opened:
        journal = opened.enter_context(BatchLog(options.workspace, options.command)) if touch else None
        plan = partial(_plan_with, planner(plugins, options, params, touch), options)
        tuning = make_tuning(plan({}))
        if params["keep_global_batch"]:
            plan, tuning = _with_global_batch(plan, tuning)
        setup.print_problems(plugins.problems)
        study = _Study(tuning, plan, options, plugins, given)
        if journal is None:
            return study.preview()
        return study.run(journal)


def _plan_with(plan: Any, options: Options, values: Mapping[str, Scalar]) -> Sequence[PlannedRun]:
    """Return the runs of the command with more values, which win over the command's own."""
    sets = (*options.sets, *((key, scalar(value)) for key, value in values.items()))
    made: Sequence[PlannedRun] = plan(replace(options, sets=sets))
    return made


def _with_global_batch(plan: Any, tuning: Tuning) -> tuple[Any, Tuning]:
    """Return the same with the default's global batch fixed.

    Raises:
        UsageProblem: nobody knows it, or the trainer cannot be given one.
    """
    batch = tuning.sequences
    if batch is None:
        raise UsageProblem("--keep-global-batch: the run has no micro batch that madlite sets", "leave it out")

    def kept(values: Mapping[str, Scalar]) -> Sequence[PlannedRun]:
        made: Sequence[PlannedRun] = plan({"global_batch": batch, **values})
        return made

    return kept, make_tuning(kept({}))


class _Study:
    """One study of the command: its preview, or its runs and what they came to."""

    def __init__(
        self, tuning: Tuning, plan: Any, options: Options, plugins: Plugins, params: Mapping[str, Any]
    ) -> None:
        self._tuning, self._options, self._plugins, self._params = tuning, options, plugins, params
        self._planner = PointPlanner(tuning, plan, plugins, lint=options.lint)
        minutes, runs = params["minutes"], params["runs"]
        either = minutes is None and runs is None
        seconds = 60 * (_MINUTES if either else minutes) if either or minutes is not None else None
        self._budget = Budget(seconds=seconds, runs=_RUNS if either else runs, either=either)

    def preview(self) -> int:
        """Print what may be changed, and the first run."""
        space = self._tuning.space
        echo(f"# {self._tuning.default.plan.card.name}: what may be changed")
        if space.default.batch:
            echo(
                f"micro_batch  {space.default.batch} by default; any that fits"
                + (f", up to {space.most}" if space.most else "")
            )
        for one, value in zip(space.choices, space.default.group, strict=True):
            echo(
                f"{one.key}  {scalar(value) or 'unset'} by default; "
                + ", ".join(scalar(other) or "unset" for other in one.values)
                + ("; later, where the budget leaves room" if one.later else "")
            )
        for key, why in self._tuning.left.items():
            echo(f"{key}  left alone: {why}")
        first = next_run(space, (), self._budget)
        if isinstance(first, NextRun):
            echo(f"# --- first run: {point_text(space, first.point)}; the runs after it depend on what it measures")
            echo_lines(preview(self._tuning.default, self._options.environ))
        return 0

    def run(self, journal: BatchLog) -> int:
        """Run the study and return the exit code."""
        options = self._options
        check_start([self._tuning.default], options)
        self._planner.make(self._tuning.space.default, full=True)  # which raises where it must not start
        state, trials = self._begin(journal)
        if options.rows:
            make_folder(options.output_target or options.output)
        folder = open_folder(options.workspace, state, resume=self._params["resume"] is not None)
        as_madengine = bool(options.contract)
        with closing(folder), open_screen(live=options.live_output, as_madengine=as_madengine) as screen:
            for text in recovery_warnings(options, self._plugins.runtimes()):
                screen.warn(text)
            lost = lost_s(options.workspace, state.id) if self._params["resume"] is not None else 0.0
            runner = TuneRunner(state.id, self._tuning, self._planner, self._budget.less(lost), trials)
            if lost:
                screen.end([f"{duration(lost)} of the budget went into runs that were cut off"])
            outcome = self._run(runner, journal, screen, len(trials))
            self._report(state.id, outcome, folder, screen)
            journal.close()
            if outcome.bug is not None:
                raise outcome.bug
        return int(outcome.exit_code)

    def _run(self, runner: TuneRunner, journal: BatchLog, screen: PlainScreen, known: int) -> TuneOutcome:

        if known:
            screen.end([f"{counted(known, 'run')} of the study {'are' if known > 1 else 'is'} there already"])
        return runner.run(
            self._options, self._plugins, screen, journal, BatchSettings(), lambda text: screen.end([text])
        )

    def _begin(self, journal: BatchLog) -> tuple[TuneState, list[Trial]]:
        """Return the study that begins or goes on, with the trials that it has."""
        secrets = secrets_for(self._tuning.default, self._options.environ)
        mask = Redactor(secrets).text
        fixed = {key: mask(scalar(value)) for key, value in self._fixed()}
        state = TuneState.of(journal.id, self._tuning, fixed)
        named = self._params["resume"]
        if named is None:
            return state, []
        found = find_study(self._options.workspace, "" if named == "newest" else named, state)
        return replace(state, id=found), trials_of(self._options.workspace, found, self._tuning.space)

    def _fixed(self) -> Iterator[tuple[str, Scalar]]:
        """Yield what the user decided about the run, by the keys of --set."""
        plan = self._tuning.default.plan
        yield from ((canonical_key(key), "true" if value is None else value) for key, value in plan.overrides)
        yield from ((canonical_key(key), value) for key, value in self._options.asked.items())
        if self._params["keep_global_batch"] and self._tuning.sequences is not None:
            yield "global_batch", self._tuning.sequences

    def _report(self, study_id: str, outcome: TuneOutcome, folder: StudyFolder, screen: PlainScreen) -> None:
        """Print what the study came to, and write it down."""
        plan, options = self._tuning.default.plan, self._options
        report = make_report(study_id, self._tuning, outcome, lost_s(options.workspace, study_id))
        secrets = secrets_for(self._tuning.default, options.environ)
        mask = Redactor(secrets).text
        where = study_path(options.workspace, study_id).relative_to(options.workspace)
        lines = [*report_lines(report)]
        recipe, command = mask(make_recipe(report, plan.card.name, dict(self._recipe_values(mask)), plan)), ""
        problems = [folder.write(SUMMARY, masked_json(report, secrets))]
        if recipe and not (problem := folder.write(RECIPE, recipe)):
            command = recipe_command(where)
            lines.append(f"  {command}")
        elif recipe:
            problems.append(problem)
        problems.append(folder.write(PAGE, mask(render_page(report, recipe, command))))
        lines.append(runs_of_text(options.workspace, study_id, SUMMARY, PAGE))
        for problem in filter(None, problems):
            screen.warn(problem)
        screen.end(mask(line) for line in lines)
        if outcome.rows and options.rows:
            screen.end([f"results: {options.output}"])

    def _recipe_values(self, mask: Any) -> Iterator[tuple[str, Scalar]]:
        """Yield what the user set, in the types of the plan, without secrets: those come from the environment again."""
        plan: RunPlan = self._tuning.default.plan
        for key, value in self._fixed():
            known = plan.settings.get(key, getattr(plan.variant, key, None))
            if mask(str(value)) == str(value):
                yield key, value if known is None else known
