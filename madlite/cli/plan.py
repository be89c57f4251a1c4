"""`madlite plan`: frozen plans as files, for `madlite run --plan` in another process, folder or machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from madlite.cli import setup
from madlite.cli.main import mask
from madlite.cli.options import TagsCommand, common_options, frozen_options, tag_words, tags_option
from madlite.cli.setup import cards_option
from madlite.cli.terminal import echo

if TYPE_CHECKING:
    from madlite.run.screen import PlannedRun

_NAME = Path("plan.json")
_FROZEN = "the refusal is part of the plan file: plan again where it no longer holds"
_RESULTS = {"output": Path("perf.csv"), "strict_header": False}  # which are the run's, not the plan's


@click.command("plan", cls=TagsCommand)
@tag_words
@tags_option
@cards_option
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
@click.option("--machine", default="", metavar="NxGPU", help="Plan for this machine, e.g. 8xMI300X.")
@frozen_options
@common_options
def command(**params: Any) -> int:
    """Write the plans of runs to files, one each, for `madlite run --plan`.

    \b
    madlite plan --tags demo -o plan.json
    madlite plan --tags pyt_train_llama-3.1-8b --machine 8xMI300X -o jobs/
    madlite run --plan plan.json --no-rows && madlite collect

    A plan has everything that is decided, the rendered script too, and no secret: names of variables alone, which are
    read at the run.
    """
    from madlite.cli.planning import local_secret_sources, plan_all
    from madlite.run.checks import check_plans
    from madlite.run.from_plan import saved_text

    plugins = setup.load(params["no_plugins"], params["verbose"])
    options = setup.make_options({**params, **_RESULTS})
    planned = plan_all(plugins, options, params, probe=not params["machine"])
    setup.print_problems(plugins.problems)
    planned, warnings = check_plans(planned, plugins, options.lint)
    for text in warnings:
        setup.warn(text)
    named = _without_output(options.command)
    sources = local_secret_sources(options)
    texts = [saved_text(one, replace(options, command=named), plugins, sources) for one in planned]
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
    from madlite.errors import UsageProblem, one_hint
    from madlite.files import check_writable, is_file, is_folder, write_named
    from madlite.perfcsv.locked import make_folder
    from madlite.plan.plan_file import is_plan_file

    if not texts:
        raise UsageProblem("there is nothing to plan")
    in_folder = output.endswith("/") or is_folder(Path(output))
    file = Path(output) / _NAME if in_folder else Path(output)
    if in_folder and is_file(Path(output.rstrip("/"))):
        raise UsageProblem(f"{output} is a file, not a folder", f"-o {output.rstrip('/')}   or name another folder")
    if in_folder:
        make_folder(file)
    files = [file] if len(texts) == 1 and not in_folder else [_numbered(file, n) for n in range(1, len(texts) + 1)]
    for one in files:
        check_writable(one, is_plan_file)
        _check_own(one)
    for one, text in zip(files, texts, strict=True):  # all of them, whoever stops reading
        write_named(one, text, is_plan_file)
    for one, plan in zip(files, planned, strict=True):
        blocked = plan.plan.blocked
        echo(f"{one}: {_title(plan)}")
        if blocked is not None:
            setup.warn(f"{one}: would not start: {blocked.status.value} {blocked.reason}")
            echo(f" hint: {mask(one_hint(blocked.hint, _FROZEN))}", err=True)


def _check_own(file: Path) -> None:
    """Refuse to replace what is no plan: a slip of `-o perf.csv` would cost all results."""
    from madlite.errors import UsageProblem
    from madlite.files import is_file
    from madlite.plan.plan_file import is_plan_file

    if is_file(file) and file.stat().st_size and not is_plan_file(file):
        raise UsageProblem(f"{file} is no plan file, and is not replaced by one", f"rm {file}   or name another file")


def _numbered(file: Path, n: int) -> Path:
    return file.with_name(f"{file.stem}-{n}{file.suffix}")


def _title(one: PlannedRun) -> str:
    """Return a line that identifies a plan."""
    plan = one.plan
    variant = (plan.variant.mode, plan.variant.precision) if plan.variant else ()
    words = (plan.card.name, f"backend {plan.backend}", *variant, f"runtime {plan.runtime}", plan.id)
    return " · ".join(word for word in words if word)
