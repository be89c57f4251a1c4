"""Templates → the files of the run folder.

Strict (an unknown variable is an error), sandboxed (a template sees values, not the interpreter), and searched in the
working folder's `templates/` first, then beside the plugin, then in madlite's own.
"""

from __future__ import annotations

import json
import shlex
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import exists, read_bytes, read_text
from madlite.model import PROFILED_STEPS, FileTemplate, RunPlan, Value
from madlite.secrets import mask_values
from madlite.text import scalar_text

if TYPE_CHECKING:
    import jinja2

# what an expression of a template can raise besides Jinja's own errors; more would hide a bug of ours
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class Rendered(Value, frozen=True):
    """One file of the run folder."""

    path: str
    data: bytes
    template: Path


def render(plan: RunPlan, search: Sequence[Path]) -> tuple[Rendered, ...]:
    """Return every file of the plan's templates.

    Raises:
        UsageProblem: a template is missing, has a mistake or an unknown variable; the message names file and line.
    """
    if not plan.templates:
        return ()
    trained = replace(plan, variant=replace(plan.variant, steps=plan.trained_steps)) if plan.variant else plan
    return tuple(_render_one(trained, file, tuple(search)) for file in plan.templates)


def _render_one(plan: RunPlan, file: FileTemplate, search: tuple[Path, ...]) -> Rendered:
    source = _find(file.template, search, plan)
    try:
        data = read_bytes(source, f"template {source}") if file.raw else _filled(file, source, plan, search)
    except UsageProblem as problem:
        if problem.keys is None and not isinstance(problem.__cause__, _MISTAKES):
            problem.keys = ()  # a file that cannot be read, or is no template, whatever values the command set
        raise
    return Rendered(path=file.path, data=data, template=source)


def _filled(file: FileTemplate, source: Path, plan: RunPlan, search: tuple[Path, ...]) -> bytes:
    from jinja2 import TemplateError

    try:
        text = _environment(search).get_template(file.template).render(_variables(plan))
    except (TemplateError, *_MISTAKES) as error:
        raise _problem(error, source, plan) from error
    return text.encode("utf-8", "surrogateescape")


def render_text(name: str, search: Sequence[Path], variables: Mapping[str, object]) -> str:
    """Return a template that is no plan's, rendered.

    Raises:
        UsageProblem: it is missing, or has a mistake or an unknown variable.
    """
    from jinja2 import TemplateError

    try:
        return _environment(tuple(search)).get_template(name).render(variables)
    except (TemplateError, *_MISTAKES) as error:
        raise UsageProblem(f"template '{name}': {type(error).__name__}: {error}") from error


def _find(name: str, search: tuple[Path, ...], plan: RunPlan) -> Path:
    for folder in search:
        if exists(folder / name):
            return folder / name
    raise UsageProblem(
        f"template '{name}' of backend '{plan.backend}' is in none of {', '.join(map(str, search)) or 'no folder'}",
        keys=(),
    )


@lru_cache(maxsize=8)
def _environment(search: tuple[Path, ...]) -> jinja2.Environment:
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(lambda name: _load(name, search)),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {"sh": quote_shell, "toml": write_toml, "words": shlex.split}
    return environment


def _load(name: str, search: tuple[Path, ...]) -> tuple[str, str, Callable[[], bool]] | None:
    """Return a template's text, its path, and a function that checks that it is up to date; None without one.

    The working folder's may be anybody's: a name leads nowhere else, and a pipe is not waited for.
    """
    if ".." in Path(name).parts or Path(name).is_absolute():
        return None
    file = next((folder / name for folder in search if exists(folder / name)), None)
    if file is None:
        return None
    before = file.stat().st_mtime_ns
    return read_text(file, f"template {file}"), str(file), lambda: exists(file) and file.stat().st_mtime_ns == before


def quote_shell(value: object) -> str:
    """Return a value as one shell word; booleans as `true` and `false`."""
    return shlex.quote(scalar_text(value))


def write_toml(value: object) -> str:
    """Return a value as TOML 1.0 writes it (https://toml.io/en/v1.0.0): text as a basic string, lists in brackets.

    The escapes of a basic string are those of JSON; DEL has to be escaped too.
    """
    if isinstance(value, (bool, int, float)):
        return scalar_text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _variables(plan: RunPlan) -> dict[str, object]:
    try:
        args = shlex.split(plan.run_args)
    except ValueError as error:
        what = f"args of card '{plan.card.name}' are no shell words ({error}): {plan.run_args}"
        raise UsageProblem(what, keys=("args",)) from None
    return {
        "plan": _without_secrets(plan),
        "profiled": PROFILED_STEPS,
        "card": plan.card,
        "variant": plan.variant,
        "settings": plan.settings,
        "machine": plan.machine,
        "n_gpus": plan.place.gpus_per_node,
        "nproc": max(1, plan.place.gpus_per_node),
        "folder": plan.folder_inside,
        "args": plan.run_args,
        "args_list": args,
    }


def _without_secrets(plan: RunPlan) -> RunPlan:
    """Return the plan for a template, which could call `reveal` and write the secret into a file."""
    image = plan.image and replace(plan.image, build_args=mask_values(plan.image.build_args))
    return replace(plan, env=mask_values(plan.env), image=image)


def _problem(error: Exception, source: Path, plan: RunPlan) -> UsageProblem:
    """Return the error for a template's mistake: its file, its line where known, and the backend."""
    line = getattr(error, "lineno", None) or _line_of(error, source)
    where = f"{getattr(error, 'filename', None) or source}" + (f" line {line}" if line else "")
    what = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return UsageProblem(f"template {where} of backend '{plan.backend}': {what}")


def _line_of(error: BaseException, source: Path) -> int | None:
    """Return the template's line in a traceback, which Jinja rewrites to point there."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(source)]
    return lines[-1] if lines else None


# Compare rendered plans: runs that differ in comments alone are the same.

_COMMENT = b"#"  # in every language that run folders have but JSON, where it cannot begin a line


def run_content(plan: RunPlan, files: Iterable[Rendered]) -> tuple[object, ...]:
    """Return what a plan with its files runs: the same of two plans of one run folder that would run the same."""
    contents = [(file.path, _without_comments(file.data)) for file in files]
    return contents, plan.actions, plan.env, plan.image, plan.engine_options, plan.place


def _without_comments(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(_COMMENT)]
