"""`madlite bisect`: where a number changed, over an ordered list of images, recipe files or commits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.cli import setup
from madlite.cli.arguments import directory_option, number_option, whole_number
from madlite.cli.batch_options import no_cluster, resume_study_option, retry_options, settle_options
from madlite.cli.options import (
    TagsCommand,
    closing_options,
    common_options,
    live_option,
    models_options,
    section,
    study_options,
)
from madlite.cli.planning import planner, preview
from madlite.cli.run import StudyPlan, run_search
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import UsageProblem
from madlite.files import is_folder
from madlite.plan.context import Options
from madlite.plan.recipe_file import read_recipe_file
from madlite.plan.submission import PlannedRun
from madlite.reports.compare import read_gates
from madlite.run.planning import blocked_by, run_checks
from madlite.study.bisect import FEWEST, Judge
from madlite.study.bisect_runs import KIND, SHAPE, BisectItem, BisectStudy, from_good_to_bad, read_items
from madlite.study.commits import Commit, at_commit, git_here, git_inside, list_commits
from madlite.study.engine import Search, only_run, plan_key


@click.command("bisect", cls=TagsCommand)
@models_options
@section("Search")
@click.option("--between", multiple=True, metavar="LIST", help="Images or recipe files, in order, or a file of them.")
@click.option("--repository", default="", metavar="PATH", help="Bisect the commits of the run's git repository.")
@directory_option("--clone", what="A clone of it here.  [default: git in a container]")
@click.option("--good", default="", metavar="ITEM", help="The item that is good.  [default: the first of the list]")
@click.option("--bad", default="", metavar="ITEM", help="The item that is bad.  [default: the last of the list]")
@click.option("--metric", default="", metavar="NAME", help="Compare this metric.  [default: a run's headline]")
@click.option(
    "--fail-on",
    "gates",
    multiple=True,
    metavar="GATE",
    help="What makes an item bad: 'regression>3%'.  [default: half of the difference of the ends]",
)
@number_option("--max-repeats", whole_number(FEWEST), 16, "N", "Give up an item after N runs.")
@resume_study_option
@section("Plan")
@click.option("-n", "--dry-run", is_flag=True, help="Print the list and what the first run would do; touch nothing.")
@live_option
@study_options
@closing_options
@settle_options
@retry_options
@no_cluster
@common_options
def command(**params: Any) -> int:
    """Find where a number changed, over images, recipe files or commits.

    The ends are measured first, then the middle of what is left, each as often as its noise needs. Exit code 0: the
    pair was found; 5: the ends do not differ, or the pair does not when it is measured again; 3: an end has no number.

    \b
    madlite bisect my_model --between rocm/primus:v25.8,rocm/primus:v25.9,rocm/primus:v25.10
    madlite bisect my_model --between images.txt --good rocm/primus:v25.8 --fail-on 'regression>3%'
    madlite bisect my_model --between a.toml,b.toml,c.toml
    madlite bisect my_model --repository /workspace/torchtitan --good v0.2.0 --bad main
    """
    return run_search(params, _plan)


def _plan(params: dict[str, Any], plugins: Plugins, options: Options) -> StudyPlan:
    _check_list(params)
    judge = _judge(params)
    items = _checked(_items(plugins, options, params, not params["dry_run"]), plugins, options)
    make = partial(BisectStudy, items=items, judge=judge, metric=params["metric"])
    search = Search(make, KIND, _request(items, params))
    return StudyPlan([items[0].planned], partial(_preview, items, options), search)


def _check_list(params: dict[str, Any]) -> None:
    if bool(params["between"]) == bool(params["repository"]):
        what = (
            "--between beside --repository: one list at a time" if params["between"] else "there is no list to bisect"
        )
        raise UsageProblem(what, SHAPE)
    if params["clone"] is not None and not params["repository"]:
        raise UsageProblem("--clone without --repository: where the run sees it is not known", "add --repository PATH")


def _judge(params: dict[str, Any]) -> Judge:
    gates = read_gates(params["gates"])
    if other := next((gate for gate in gates if gate.what not in ("regression", "improvement")), None):
        raise UsageProblem(f"--fail-on {other.text!r} is no change of a number", "--fail-on 'regression>3%'")
    return Judge(gates=gates, most=params["max_repeats"])


# The list.


def _items(plugins: Plugins, options: Options, params: dict[str, Any], touch: bool) -> list[BisectItem]:
    """Return the items from the good one to the bad one, each with the one run that the tag has of it."""
    if params["repository"]:
        return _commit_items(plugins, options, params, touch)
    names = read_items(params["between"], options.workspace)
    recipes = [name.endswith(".toml") for name in names]
    if any(recipes) and not all(recipes):
        other = names[recipes.index(False)]
        raise UsageProblem(f"--between has recipe files and '{other}', which is none", SHAPE)
    ordered = from_good_to_bad(names, params["good"] or names[0], params["bad"] or names[-1])
    if any(recipes):
        return _recipe_items(ordered, plugins, params, touch)
    if options.image:
        raise UsageProblem(f"--image {options.image} beside --between with images", "leave --image out")
    plan = planner(plugins, options, params, touch)
    items = []
    for name in ordered:
        run = only_run(plan(replace(options, image=name)), KIND, name)
        if not run.plan.traits.containerised and run.plan.blocked is None:
            what = f"'{name}' of --between is no recipe file, and an image means nothing to a run on the host"
            raise UsageProblem(what, "--runtime docker, or recipe files: a.toml,b.toml")
        items.append(BisectItem(key="image", name=name, planned=run))
    return items


def _recipe_items(names: Sequence[str], plugins: Plugins, params: dict[str, Any], touch: bool) -> list[BisectItem]:

    found = []
    for name in names:
        given = {**params, "recipe_file": read_recipe_file(Path(name))}
        options = setup.make_options(given, touch)
        planned = planner(plugins, options, given, touch)(options)
        found.append(BisectItem(key="recipe_file", name=name, planned=only_run(planned, KIND, name)))
    return found


def _commit_items(plugins: Plugins, options: Options, params: dict[str, Any], touch: bool) -> list[BisectItem]:

    for end in ("good", "bad"):
        if not params[end]:
            raise UsageProblem(f"--repository needs --{end}, a commit", "--good v0.2.0 --bad main")
    run = only_run(planner(plugins, options, params, touch)(options), KIND)
    clone, repository = params["clone"], params["repository"]
    if clone is None and run.plan.traits.containerised:
        commits, where = _commits_in_image(run, params, touch), repository
    else:
        folder, commits = _commits_here(options, params)
        where = repository if run.plan.traits.containerised else str(folder)
        clone = folder if clone is not None else None
    return [
        BisectItem(
            key="commit", name=commit.name[:12], note=commit.subject, planned=at_commit(run, where, commit.name, clone)
        )
        for commit in commits
    ]


def _commits_here(options: Options, params: dict[str, Any]) -> tuple[Path, Sequence[Commit]]:
    """Return the folder of a clone on this machine, and its commits from good to bad."""
    clone, repository = params["clone"], params["repository"]
    folder = (options.workspace / (clone or repository)).resolve()
    if not is_folder(folder):
        option = "--clone" if clone else "--repository"
        raise UsageProblem(f"{option} {clone or repository}: there is no such folder", "name a clone of the repository")
    return folder, list_commits(git_here(folder, options.environ), str(folder), params["good"], params["bad"])


def _commits_in_image(run: PlannedRun, params: dict[str, Any], touch: bool) -> Sequence[Commit]:
    """Return the commits from good to bad that git lists in a container of the run's image."""
    plan, repository = run.plan, params["repository"]
    if plan.blocked is not None:
        raise UsageProblem(f"{plan.card.name} would not start: {plan.blocked.reason}", plan.blocked.hint)
    if not (plan.traits.local and repository.startswith("/") and touch):
        what = f"the commits of --repository {repository} are in an image"
        how = "they are listed in a container here, of an absolute path, and not by --dry-run"
        raise UsageProblem(f"{what}: {how}", "--clone DIR names a clone of it on this machine")
    where = f"{repository} of image {plan.image.ref if plan.image is not None else ''}"
    echo(f"# the commits are listed in a container: {where}")
    with git_inside(run, repository, lambda text: echo(f"# {text}")) as git:
        return list_commits(git, where, params["good"], params["bad"])


def _checked(items: Sequence[BisectItem], plugins: Plugins, options: Options) -> list[BisectItem]:
    """Return the items as their checks left them: one that must not start cannot be tested, the others can."""
    refused, warnings = run_checks([item.planned for item in items], plugins, options.lint)
    setup.warn(*warnings)
    return [
        replace(item, planned=blocked_by(item.planned, findings)) if findings else item
        for item, findings in zip(items, refused, strict=True)
    ]


def _preview(items: Sequence[BisectItem], options: Options) -> None:
    echo_lines(preview(items[0].planned, options.environ))
    echo("# --- the list, from good to bad")
    for number, item in enumerate(items, 1):
        blocked = item.planned.plan.blocked
        echo(f"{number}/{len(items)}  {item.label}" + (f"  (would not start: {blocked.reason})" if blocked else ""))


def _request(items: Sequence[BisectItem], params: dict[str, Any]) -> dict[str, object]:
    """Return what has to be the same for a bisect to be resumed."""
    judged = {"metric": params["metric"], "fail-on": [*params["gates"]], "max-repeats": params["max_repeats"]}
    return {**{f"plan of {item.name}": plan_key(item.planned) for item in items}, **judged}
