"""`madlite tune`: the fastest configuration of a tag on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from madlite.backends.loader import Plugins
from madlite.cli.arguments import FiniteRange, count_option
from madlite.cli.batch_options import no_cluster, pretend_options, resume_study_option
from madlite.cli.options import TagsCommand, common_options, live_option, models_options, section, study_options
from madlite.cli.planning import planner, preview
from madlite.cli.run import StudyPlan, run_search
from madlite.cli.studies import plan_with
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import UsageProblem
from madlite.model import Scalar
from madlite.plan.context import Options
from madlite.plan.fields import canonical_key
from madlite.plan.submission import PlannedRun
from madlite.run.executor import secrets_for
from madlite.secrets import Redactor
from madlite.study.engine import PlanWith, Search, plan_key
from madlite.study.tune import PointPlanner, TuneStudy, make_tuning
from madlite.study.tune_models import KIND, Tuning, point_text
from madlite.study.tune_search import Budget, NextRun, next_run
from madlite.text import scalar_text

_MINUTES, _RUNS = 8.0, 5  # the budget where none is given: what of them allows more


@click.command("tune", cls=TagsCommand)
@models_options
@section("Search")
@click.option(
    "--minutes",
    type=FiniteRange(0, min_open=True),
    metavar="M",
    help=f"Spend at most so long in all.  [default: {_MINUTES:g}, or {_RUNS} runs where those take longer]",
)
@count_option("--runs", 1, "Make at most so many runs in all.")
@click.option("--keep-global-batch", is_flag=True, help="Keep the default's global batch, by gradient accumulation.")
@resume_study_option
@pretend_options("what may be changed and the first run")
@live_option
@study_options
@no_cluster
@common_options
def command(**params: Any) -> int:
    """Find the fastest configuration of a tag on this machine, as a recipe file.

    Short runs search, full ones confirm: those end by --until 0.5% unless it is given.  Exit code 0: also where the
    default is the fastest; 3: the default itself failed, or a row could not be written.

    \b
    madlite tune demo_hf_lora_tiny --runtime host
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --minutes 20
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --keep-global-batch --runs 12
    madlite tune pyt_train_llama-3.1-8b --mode pretrain --precision BF16 --resume --minutes 40
    """
    return run_search(params, _plan)


def _plan(params: dict[str, Any], plugins: Plugins, options: Options) -> StudyPlan:
    plan = plan_with(planner(plugins, options, params, not params["dry_run"]), options)
    tuning = make_tuning(plan({}))
    if params["keep_global_batch"]:
        plan, tuning = _with_global_batch(plan, tuning)
    budget, run = _budget(params), tuning.default
    points = PointPlanner(tuning, plan, plugins, lint=options.lint)
    make = partial(TuneStudy, tuning=tuning, planner=points, budget=budget, fixed=_fixed(tuning, options, params))
    of_plan = {f"plan of {run.plan.card.name}": plan_key(run), "device": run.plan.machine.device}
    search = Search(make, KIND, {**of_plan, "--keep-global-batch": params["keep_global_batch"]})
    return StudyPlan([run], partial(_preview, tuning, budget, options), search)


def _with_global_batch(plan: PlanWith, tuning: Tuning) -> tuple[PlanWith, Tuning]:
    """Return the same with the default's global batch fixed.

    Raises:
        UsageProblem: nobody knows it, or the trainer cannot be given one.
    """
    batch = tuning.sequences
    if batch is None:
        raise UsageProblem("--keep-global-batch: the run has no micro batch that madlite sets", "leave it out")

    def kept(values: Mapping[str, Scalar]) -> Sequence[PlannedRun]:
        return plan({"global_batch": batch, **values})

    return kept, make_tuning(kept({}))


def _budget(params: Mapping[str, Any]) -> Budget:
    minutes, runs = params["minutes"], params["runs"]
    if minutes is None and runs is None:
        return Budget(seconds=60 * _MINUTES, runs=_RUNS, either=True)
    return Budget(seconds=60 * minutes if minutes is not None else None, runs=runs)


def _preview(tuning: Tuning, budget: Budget, options: Options) -> None:
    """Print what may be changed, and the first run."""
    space = tuning.space
    echo(f"# {tuning.default.plan.card.name}: what may be changed")
    if space.default.batch:
        most = f", up to {space.most}" if space.most else ""
        echo(f"micro_batch  {space.default.batch} by default; any that fits{most}")
    for choice, value in zip(space.choices, space.default.group, strict=True):
        values = ", ".join(scalar_text(other) or "unset" for other in choice.values)
        is_later = any(choice.comes_later(value, other) for other in choice.values)
        later = "; later, where the budget leaves room" if is_later else ""
        echo(f"{choice.key}  {scalar_text(value) or 'unset'} by default; {values}{later}")
    for key, why in tuning.left.items():
        echo(f"{key}  left alone: {why}")
    first = next_run(space, (), budget)
    if isinstance(first, NextRun):
        echo(f"# --- first run: {point_text(space, first.point)}; the runs after it depend on what it measures")
        echo_lines(preview(tuning.default, options.environ))


def _fixed(tuning: Tuning, options: Options, params: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return what the user decided about the run, by the keys of --set and in the types of the plan, for a recipe.

    Without secrets, which come from the environment again, and without --profile, which is of the first run.
    """
    plan, mask = tuning.default.plan, Redactor(secrets_for(tuning.default, options.environ)).text
    given = {canonical_key(key): "true" if value is None else value for key, value in plan.overrides}
    given |= {canonical_key(key): value for key, value in options.asked.items()}
    public = {key: value for key, value in given.items() if mask(value) == value and key != "profile"}
    own = {key: plan.settings.get(key, getattr(plan.variant, key, None)) for key in public}
    batch = {"global_batch": tuning.sequences} if params["keep_global_batch"] and tuning.sequences else {}
    return {**{key: value if (known := own[key]) is None else known for key, value in public.items()}, **batch}
