"""`madlite plan`: frozen plans as files, for another process, folder or machine; `madlite explain`: a plan shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import click
from msgspec.structs import replace

from madlite.cli import setup
from madlite.cli.batch_options import MACHINE_OR_CLUSTER, check_together, cluster_plan_options, named_cluster
from madlite.cli.options import (
    TagsCommand,
    common_options,
    frozen_options,
    machine_option,
    models_options,
    plan_options,
    section,
)
from madlite.cli.planning import check, check_option, local_secret_sources, planner, translated
from madlite.cli.terminal import echo, echo_lines, mask
from madlite.errors import UsageProblem, one_hint
from madlite.files import check_writable, is_file, is_folder, write_named
from madlite.model import Architecture, ErrorScan, RunPlan, Secret, Value
from madlite.perfcsv.append import make_folder
from madlite.plan.fields import targeted_rows
from madlite.plan.plan_file import is_plan_file
from madlite.plan.submission import PlannedRun
from madlite.run.executor import secrets_for
from madlite.run.from_plan import saved_text
from madlite.run.planning import card_or_run, check_plans, in_one_line, run_checks
from madlite.secrets import Redactor, masked_json
from madlite.text import scalar_text

_NAME = Path("plan.json")
_FROZEN = "the refusal is part of the plan file: plan again where it no longer holds"
_RESULTS = {"output": Path("perf.csv"), "strict_header": False}  # which are the run's, not the plan's


@click.command("plan", cls=TagsCommand)
@models_options
@click.option(
    "-o",
    "--output",
    "plan_output",
    type=click.Path(),
    default=str(_NAME),
    show_default=True,
    metavar="FILE",
    help="Where the plan goes; of several FILE-1, FILE-2, …, in a folder plan-1.json, plan-2.json, …",
)
@machine_option
@frozen_options
@common_options
def command(**params: Any) -> int:
    """Write the plans of runs to files, one each, for `madlite run --plan`.

    \b
    madlite plan --tags demo -o plan.json
    madlite plan --tags pyt_train_llama-3.1-8b --machine 8xMI300X -o jobs/
    madlite run --plan plan.json --no-rows && madlite runs collect

    A plan has everything that is decided, the rendered script too, and no secret: names of variables alone, which are
    read at the run.
    """
    plugins = setup.load(params["no_plugins"])
    options = setup.make_options({**params, **_RESULTS})
    planned = planner(plugins, options, params, probe=not params["machine"])(options)
    setup.print_problems(plugins.problems)
    planned, warnings = check_plans(planned, plugins, options.lint)
    setup.warn(*warnings)
    named = _without_output(options.command)
    sources = local_secret_sources(options)
    texts = [saved_text(run, replace(options, command=named), plugins, sources) for run in planned]
    _write(planned, texts, params["plan_output"])
    return 0


def _without_output(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of this command line as those of the `run` that it plans: without where the plan goes."""
    run_words: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == "-o" or (word.startswith("--o") and "--output".startswith(word)):
            skip = True
        elif not (re.match(r"-o[^-]", word) or re.match(r"--ou?t?p?u?t?=", word)):
            run_words.append(word)
    return ("run", *run_words[1:]) if run_words else ()


def _write(planned: Sequence[PlannedRun], texts: Sequence[str], output: str) -> None:
    """Write the files, once it is known that all of them can be written, and name them."""
    if not texts:
        raise UsageProblem("there is nothing to plan")
    in_folder = output.endswith("/") or is_folder(Path(output))
    file = Path(output) / _NAME if in_folder else Path(output)
    if in_folder and is_file(Path(output.rstrip("/"))):
        raise UsageProblem(f"{output} is a file, not a folder", f"-o {output.rstrip('/')}   or name another folder")
    if in_folder:
        make_folder(file)
    files = [file] if len(texts) == 1 and not in_folder else [_numbered(file, n) for n in range(1, len(texts) + 1)]
    for path in files:
        check_writable(path)
        _check_own(path)
    for path, text in zip(files, texts, strict=True):  # all of them, whoever stops reading
        write_named(path, text)
    for path, plan in zip(files, planned, strict=True):
        blocked = plan.plan.blocked
        echo(f"{path}: {_title(plan)}")
        if blocked is not None:
            setup.warn(f"{path}: would not start: {blocked.status.value} {blocked.reason}")
            echo(f" hint: {mask(one_hint(blocked.hint, _FROZEN))}", err=True)


def _check_own(file: Path) -> None:
    """Refuse to replace what is no plan: a slip of `-o perf.csv` would cost all results."""
    if is_file(file) and file.stat().st_size and not is_plan_file(file):
        raise UsageProblem(f"{file} is no plan file, and is not replaced by one", f"rm {file}   or name another file")


def _numbered(file: Path, n: int) -> Path:
    return file.with_name(f"{file.stem}-{n}{file.suffix}")


def _title(run: PlannedRun) -> str:
    """Return a line that identifies a plan."""
    plan = run.plan
    variant = (plan.variant.mode, plan.variant.precision) if plan.variant else ()
    words = (plan.card.name, f"backend {plan.backend}", *variant, f"runtime {plan.runtime}", plan.id)
    return " · ".join(word for word in words if word)


@click.command("explain", cls=TagsCommand)
@models_options
@click.option("--json", "as_json", is_flag=True, help="Print the plans, with all values, as a list of JSON objects.")
@section("Plan")
@click.option("--all", "everything", is_flag=True, help="Show every value of every run.")
@machine_option
@check_option
@plan_options
@cluster_plan_options
@common_options
def explain(everything: bool, as_json: bool, **params: Any) -> int:
    """Show the plan of a run: every value and where it came from.

    Without --all: of each card what decides its runs, what somebody set, and what differs between them.

    \b
    madlite explain demo
    madlite explain demo_torchtitan_llama_debug --set steps=100 --machine 8xMI300X --all
    madlite explain my_model --check && madlite run --tags my_model
    madlite explain my_model --cluster mi300 --nodes 4
    """
    check_together((MACHINE_OR_CLUSTER,))
    plugins = setup.load(params["no_plugins"])
    if (to := translated(named_cluster(params), params)) is None:
        options = setup.make_options(params)
    else:
        from madlite.cli.submit import planning_options

        options = planning_options(to, params)
    planned = planner(plugins, options, params)(options)
    secrets = tuple(text for run in planned for text in secrets_for(run, options.environ))
    mask = Redactor(secrets).text
    refused, warnings = run_checks(planned, plugins, options.lint)
    if as_json:
        click.echo(masked_json([run.plan for run in planned], secrets), nl=False)
        for run, found in zip(planned, refused, strict=True):  # a list of plans has no place for it
            warnings += [
                f"{card_or_run(run.plan, planned)}would be refused: {in_one_line(finding)}" for finding in found
            ]
    else:
        pairs = zip(planned, refused, strict=True)
        pages = [Explained(run.plan, _script(run), tuple(map(in_one_line, found))) for run, found in pairs]
        echo_lines(mask("\n\n".join(pages_of(pages, every=everything))))
    setup.print_problems(plugins.problems)
    for text in warnings:
        echo(f"warning: {mask(text)}", err=True)
    return check(planned, refused, plugins, options, params) if params["check"] else 0


def _script(run: PlannedRun) -> str:
    return next((file.data.decode("utf-8", "replace") for file in run.files if file.path == "run.sh"), "")


def _in_words(model: Architecture | None) -> str:
    """Return the sizes of a model that are not 0, by their names."""
    if model is None:
        return "-"
    sizes = {name: getattr(model, name) for name in model.__struct_fields__ if name not in ("name", "gated", "source")}
    words = [f"{name} {size}" for name, size in sizes.items() if size]
    return ", ".join(words + ([] if model.gated else ["not gated"]))


# The values of a plan as `explain` names them, each with where it came from.

_EXPORT = re.compile(
    r"^ *(?:.*(?:\bthen|\|\|) )?export ([A-Za-z_]\w*(?:=.*?)?)(?:; fi)?(?: +# (.*))?$", re.ASCII | re.MULTILINE
)
_PAIR = re.compile(r"(?:^| )([A-Za-z_]\w*)=", re.ASCII)


def export_rows(plan: RunPlan, script: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a rendered script exports beyond the plan's environment, as it stands there, with the script's why."""
    for text, why in _EXPORT.findall(script):
        pairs = _PAIR.split(text)[1:] if "=" in text and "$(" not in text else [*text.split("=", 1), ""][:2]
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            if name not in plan.env:
                unset = re.fullmatch(rf"\$\{{{name}:?-(.*)\}}", value)
                words = f"{unset[1]}, unless it is set" if unset else value or "made where it runs"
                yield f"export.{name}", words, f"run.sh: {why}" if why else "run.sh"


def plan_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of each value of a plan."""
    origins = plan.origins
    gpus = ",".join(map(str, plan.place.gpu_ids)) or "none"
    product = plan.machine.product or plan.machine.device
    yield "machine", f"{len(plan.machine.gpus)} x {product}", origins.get("machine", "")
    yield "runtime", plan.known_runtime or "-", origins.get("runtime", "")
    yield "n_gpus", f"{plan.place.gpus_per_node} (ids {gpus})", origins.get("n_gpus", "")
    yield "image", plan.image.ref if plan.image else "none", origins.get("image", "") if plan.image else ""
    limit = "none" if plan.timeout_s is None else f"{plan.timeout_s:g}"
    yield "timeout_s", limit, origins.get("timeout_s", "")
    yield from targeted_rows(plan)
    yield "launcher", plan.launcher or "-", origins.get("launcher", plan.backend or "default")
    yield from _value_rows(plan)
    yield from _image_rows(plan)
    for use in plan.data:
        yield f"data {use.name}", f"{use.provider}, in {use.home}", "data.json"
    for mount in plan.mounts:
        is_data = any(use.home == mount.target for use in plan.data)
        origin = "data.json" if is_data else origins.get("docker_mounts", "context")
        yield f"mount {mount.target}", mount.source, origins.get(f"mount {mount.target}", origin)


def _scan(scan: ErrorScan | None) -> str:
    if scan is None:
        return "off"
    return f"{', '.join(map(repr, scan.patterns))}; harmless: {', '.join(map(repr, scan.benign))}"


def _value_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield sizes, settings, arguments and environment."""
    origins = plan.origins
    yield from _recipe_rows(plan)
    if plan.variant is not None:
        yield "architecture", _in_words(plan.architecture), origins.get("architecture", "")
    if origins.get("error_scan") and plan.result_rule.kind != "steps":
        yield "error_scan", _scan(plan.error_scan), origins["error_scan"]
    if plan.run_args:
        yield "args", plan.run_args, origins.get("args", "")
    for name, text in sorted(plan.env.items()):
        yield f"env.{name}", "***" if isinstance(text, Secret) else text, origins.get(f"env.{name}", "")


def _recipe_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield the recipe, and what it came to: the variant and the backend's settings."""
    settings = dict(sorted(plan.settings.items()))
    if "recipe" in settings:
        yield "recipe", str(settings.pop("recipe")), _published(plan.origins.get("settings.recipe", ""))
    for name in plan.variant.__struct_fields__ if plan.variant is not None else ():
        value = getattr(plan.variant, name)
        yield f"variant.{name}", "-" if value in (None, "") else str(value), plan.origins.get(f"variant.{name}", "")
    for name, setting in settings.items():
        yield f"settings.{name}", _word(setting), plan.origins.get(f"settings.{name}", "")


def _published(origin: str) -> str:
    """Return where a recipe comes from, of an origin such as `recipe NAME (v25.10, MI300X; source)`."""
    return origin.partition(" (")[2].removesuffix(")") if origin.startswith("recipe ") else origin


def _image_rows(plan: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yield what the image is built from, and what a script of a card is called with."""
    if plan.image is not None and plan.image.dockerfile is not None:
        yield "dockerfile", str(plan.image.dockerfile), "card"
        yield "base_docker", plan.image.base or "-", "context, Dockerfile"
        for name, text in plan.image.build_args.items():
            yield f"build_arg.{name}", "***" if isinstance(text, Secret) else text, ""
    if plan.engine_options.extra:
        yield "docker options", plan.engine_options.extra, plan.origins.get("engine_options.extra", "card")
    for kind in ("pre", "run", "post"):
        argvs = [action.argv for action in plan.actions if action.kind == kind]
        if argvs:
            yield kind, "; ".join(argv[2] if argv[:2] == ("bash", "-c") else " ".join(argv) for argv in argvs), ""


def _word(value: object) -> str:
    return scalar_text(value) if value != "" else '""'


# The pages of `explain`: of each card what decides its runs and what differs between them, or everything of each.
#
# Short is the default: several runs of a card's backend have what they share once, and then each what differs.

_Row: TypeAlias = tuple[str, str, str]  # name, value, origin
# what every user looks for first; the rest is shown where it differs between the runs of a card, or somebody set it
_FIRST = frozenset(
    (
        *("machine", "runtime", "n_gpus", "image", "dockerfile", "base_docker", "docker options", "timeout_s"),
        *("recipe", "args", "error_scan", "pre", "run", "post", "variant.model", "variant.mode", "variant.precision"),
        *("variant.seq_len", "variant.micro_batch", "variant.global_batch", "variant.steps"),
    )
)
_FIRST_KINDS = ("data ", "mount ")
_RENDERED = "bash run.sh"  # what runs of every backend that renders a script
_ASKED = ("--", "context", "tag")  # how the origin of what a user set begins
_WIDEST = 40


class Explained(Value, frozen=True):
    """A plan with its rendered script, and in one line each what would keep it from being started."""

    plan: RunPlan
    script: str = ""
    refused: tuple[str, ...] = ()

    def rows(self) -> Iterator[_Row]:
        """Yield name, value and origin of each value of the plan, and of what its script exports."""
        yield from plan_rows(self.plan)
        yield from export_rows(self.plan, self.script)


def pages_of(plans: Iterable[Explained], *, every: bool) -> Iterator[str]:
    """Yield a page for each card and backend, of all their runs that stand one after another.

    With `every` value each run has its own page.
    """

    def key(explained: Explained) -> tuple[str, ...]:
        plan = explained.plan
        return (plan.id,) if every else (plan.card.name, plan.card.source, plan.backend)

    for _, runs in groupby(plans, key):
        yield _page(tuple(runs), every=every)


def _page(runs: Sequence[Explained], *, every: bool) -> str:
    found = [{row[0]: row for row in explained.rows()} for explained in runs]
    first = runs[0].plan
    count = f", {len(runs)} runs" if len(runs) > 1 else ""
    lines = [f"{first.card.name}  (backend {first.backend or 'none'}, card from {first.card.source}{count})"]
    names = dict.fromkeys(name for rows in found for name in rows)
    differing = {name for name in names if len({rows[name][1] if name in rows else None for rows in found}) > 1}
    shared = [found[0][name] for name in names if name not in differing]
    shown = list(runs[0].rows()) if every else list(filter(_is_first, shared))
    lines += _table(shown)
    notes = [note for note in first.notes if all(note in explained.plan.notes for explained in runs)]
    lines += [f"  note: {note}" for note in notes]
    stopped = [tuple(_stopped(explained, "  ")) for explained in runs]
    alike = all(texts == stopped[0] for texts in stopped)
    lines += stopped[0] if alike else ()
    for position, (explained, rows) in enumerate(zip(runs, found, strict=True) if len(runs) > 1 else (), 1):
        plan = explained.plan
        words = " ".join(filter(None, (plan.variant.mode, plan.variant.precision))) if plan.variant else ""
        lines.append(f"  run {position}" + (f": {words}" if words else ""))
        lines += _table([row for name, row in rows.items() if name in differing], "    ")
        lines += [f"    note: {note}" for note in plan.notes if note not in notes]
        lines += () if alike else _stopped(explained, "    ")
    if (left := len(shared) - len(shown)) and not every:
        lines.append(f"  and {left} values more: --all")
    return "\n".join(lines)


def _is_first(row: _Row) -> bool:
    """Return whether a shared value is on the short page: one that decides the run or that the user set."""
    name, value, origin = row
    if origin.startswith(_ASKED) and origin != "context, Dockerfile":
        return True
    return (name in _FIRST or name.startswith(_FIRST_KINDS)) and value not in ("", "-", _RENDERED)


def _table(rows: Sequence[_Row], indent: str = "  ") -> list[str]:
    wide = min(_WIDEST, max((len(name) for name, _, _ in rows), default=0))
    return [f"{indent}{name:<{wide}}  {value}" + (f"   <- {origin}" if origin else "") for name, value, origin in rows]


def _stopped(explained: Explained, indent: str) -> Iterator[str]:
    """Yield what blocks a run."""
    blocked = explained.plan.blocked
    if blocked:
        yield f"{indent}would not start: {blocked.status.value} {blocked.reason}"
        if blocked.hint:
            yield f"{indent}  hint: {blocked.hint}"
    yield from (f"{indent}would be refused: {text}" for text in explained.refused)
