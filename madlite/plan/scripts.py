"""The context's scripts and tools → what runs around the model, in MAD's order.

Order (contract of madengine 1 and 2): the tools' pre-scripts, the context's, the environment's snapshot; afterwards the
context's post-scripts, the tools'.  A script that the checkout lacks is madlite's own of that name, if it brings one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import exists
from madlite.plan.context import Context
from madlite.plan.context_keys import Script
from madlite.plan.given import Given
from madlite.plan.options import Options
from madlite.plan.tools import COMMON, ScriptCall, Toolset, find_script, read_tools, stack

SNAPSHOT = "env_snapshot.sh"


def make_toolset(context: Context, options: Options, bundled: Path) -> Toolset:
    """Return what the context's tools and scripts add to every run.

    `bundled` is the folder of the tools that madlite brings.

    Raises:
        UsageProblem: a tool or a script is not there, or tools.json cannot be used.
    """
    known = context.known
    tools = Toolset()
    if known.tools:
        own = options.tools_file if exists(options.tools_file) else None
        given = options.tools_file != options.workspace / f"{COMMON}tools.json"
        tools = stack(known.tools, read_tools(own, bundled, given=given), options.workspace, bundled)
    pre = _calls("pre_scripts", known.pre_scripts, context, options.workspace, bundled)
    post = _calls("post_scripts", known.post_scripts, context, options.workspace, bundled)
    return replace(tools, pre=(*tools.pre, *pre), post=(*post, *tools.post))


def tools_of(given: Given) -> Toolset:
    """Return the tools and scripts of one run: with a snapshot of its environment, where one is asked for."""
    asked = given.context.known.gen_sys_env_details
    if not (given.options.snapshot or asked):
        return given.tools
    name = f"{given.request.card.name.replace('/', '_')}_env"
    mode, guest = given.context.known.rocenv_mode, given.context.known.guest_os or "UBUNTU"
    up = ".." if given.draft.actions else "../.."  # from where the script runs to the workspace
    snapshot = ScriptCall(path=SNAPSHOT, args=shlex.join((name, mode, guest, up)), bundled=True)
    return replace(given.tools, pre=(*given.tools.pre, snapshot))


def list_tools(bundled: Path) -> tuple[str, ...]:
    """Return the files that madlite brings of tools, relative to their folder."""
    names = sorted(path.relative_to(bundled) for path in bundled.rglob("*") if path.is_file())
    return tuple(str(name) for name in names if not any(part.startswith((".", "__")) for part in name.parts))


def _calls(
    key: str, scripts: Iterable[Script], context: Context, workspace: Path, bundled: Path
) -> tuple[ScriptCall, ...]:
    found: list[ScriptCall] = []
    for script in scripts:
        calls = find_script(script.path, str(script.args), workspace, bundled)
        if calls is None:
            where = context.origins.get(key, "context")
            what = f"{where}: {key} names {script.path}, which is not in {workspace}"
            raise UsageProblem(what, "paths are relative to the working folder")
        found += calls
    return tuple(found)
