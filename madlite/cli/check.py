"""`--check`: whether `madlite run` would start what was planned, by its own checks and in its own words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from madlite.backends.loader import Plugins
    from madlite.model import Finding
    from madlite.plan.options import Options
    from madlite.run.screen import Planned

F = TypeVar("F", bound=Callable[..., Any])


def check_option(function: F) -> F:
    """Add --check."""
    return click.option(
        "--check",
        is_flag=True,
        help="End with the exit code that run would: 4 where it refuses, 3 where a run cannot start (2: no image).",
    )(function)


def check(
    planned: Sequence[Planned],
    refused: Sequence[Sequence[Finding]],
    plugins: Plugins,
    options: Options,
    given: dict[str, Any],
) -> int:
    """Return the exit code of a `run` that came no further than its start; makes and changes nothing.

    Whatever `--machine` pretends is taken for this machine.

    Raises:
        MadliteError: `run` would refuse the command, with this error.
    """
    from madlite.model import Result
    from madlite.run.batch import exit_code
    from madlite.run.lint import keep_refused

    check_start(planned, options, pretended=bool(given["machine"]))
    kept = keep_refused(planned, refused, plugins)
    blocked = [(one.plan.id, one.plan.blocked) for one in kept if one.plan.blocked is not None]
    return int(exit_code(Result(plan_id=name, status=one.status, cause=one.cause) for name, one in blocked))


def check_start(planned: Sequence[Planned], options: Options, *, pretended: bool = False) -> None:
    """Refuse what no run can be started for, or its row not be written.

    Raises:
        MadliteError: GPUs of the context are not here (unless all is `pretended`), or files are in the way.
    """
    from madlite.results.perfcsv import check_appendable
    from madlite.workspace.folder import check_runs_folder

    if not pretended:
        refuse_pretended(planned)
    check_runs_folder(options.workspace)
    if options.rows:
        check_appendable(options.output, options.workspace)


def refuse_pretended(planned: Sequence[Planned]) -> None:
    """Keep a row from naming GPUs that are not here."""
    from madlite.errors import UsageProblem

    for one in planned:
        if one.plan.machine.pretended:
            what = f"{len(one.plan.machine.gpus)} x {one.plan.machine.device}"
            raise UsageProblem(f"the context describes {what}, which are not here", "add --dry-run, or use explain")
