"""tools.json → what the selected tools add to a run: scripts before and after it, variables, a command prefix.

Format and order: madengine's (docs/tools.md).  madlite brings tools of its own; those of the checkout's tools.json come
before them, tool by tool.  A helper below `scripts/common/` that the checkout lacks is madlite's of that name, if it
brings one: nothing is ever copied into the checkout.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.files import is_file, read_json, wrong_key
from madlite.model import Value
from madlite.plan.context import Script, Tool
from madlite.plan.fields import VARIABLE

COMMON = "scripts/common/"  # where madengine puts the helpers of its package
FOLDER = "{tools}"  # in a command, the folder of madlite's own helpers as the run sees it
_COUNTERS = ("compute_bound", "memory_bound", "communication_bound", "full_profile", "instruction_mix")
# madengine's helpers and their replacements here; "" where none is needed
_INSTEAD = {
    "tools/get_library_trace.py": "library_trace.py",
    "tools/detect_therock.sh": "therock_check.sh",
    "tools/rocprof_wrapper.sh": "profiler.sh run rocprof",
    "tools/rtl_trace_wrapper.sh": "profiler.sh run rocm_trace_lite",
    **{f"tools/counters/{name}.txt": f"counters/{name}.txt" for name in _COUNTERS},
    "pre_scripts/trace.sh": "profiler.sh check",
    "post_scripts/trace.sh": "profiler.sh collect",
    "pre_scripts/run_rocenv_tool.sh": "env_snapshot.sh",
    "pre_scripts/gpu_info_pre.sh": "",
    "pre_scripts/gpu_info_power_start.sh": "gpu_info.sh start power",
    "pre_scripts/gpu_info_vram_start.sh": "gpu_info.sh start vram",
    "post_scripts/gpu_info_power_stop.sh": "gpu_info.sh stop power",
    "post_scripts/gpu_info_vram_stop.sh": "gpu_info.sh stop vram",
    "post_scripts/gpu_info_post.sh": "",
}
_HELPER = re.compile(rf"(?<![\w./-])\.\./({COMMON}[\w./+-]+)")  # as the model's folder sees it


class ScriptCall(Value, frozen=True):
    """A script that runs before or after the model; its path is the workspace's, or, `bundled`, that of our tools."""

    path: str
    args: str = ""
    bundled: bool = False


class Toolset(Value, frozen=True):
    """What the tools of a run add to it; `command` is put in front of the model's, and may name `{tools}`."""

    pre: tuple[ScriptCall, ...] = ()
    post: tuple[ScriptCall, ...] = ()
    env: dict[str, str] = {}
    command: str = ""


class ToolEntry(Value, frozen=True):
    """A tool of a tools.json; `file` is where it stands."""

    pre_scripts: tuple[Script, ...] = ()
    cmd: str = ""
    env_vars: dict[str, str | int | float | bool] = {}
    post_scripts: tuple[Script, ...] = ()
    file: str = ""


def read_tools(own: Path | None, bundled: Path, *, contract: int = 0, given: bool = False) -> dict[str, ToolEntry]:
    """Return the tools by name: those in the folder `bundled`, overlaid by those of the file `own`.

    Under `contract` 1 those whose command is another one in madengine 1 are as there.  `own` may be a pipe where the
    user has `given` it on the command line.

    Raises:
        UsageProblem: a file cannot be read, is no JSON, or a key has the wrong type.
    """
    table = _read(bundled / "tools.json")
    if contract == 1:
        table |= _read(bundled / "tools.json", "contract_1")
    return {**table, **_read(own, given=given)} if own else table


def stack(selected: Iterable[Tool], table: Mapping[str, ToolEntry], workspace: Path, bundled: Path) -> Toolset:
    """Return what the selected tools add to a run: the last one's scripts run first before the model and last after it.

    Later variables win, the last command is outermost, and the same command is put there once.

    Raises:
        UsageProblem: there is no such tool, a script of it is not there, or a variable's name is none.
    """
    tools, commands = Toolset(), list[str]()
    for tool in selected:
        entry = _find(tool.name, table)
        where = f"tool '{tool.name}' of {entry.file}"
        missing = partial(_missing, where, workspace)
        command = _with_helpers(entry.cmd if tool.cmd is None else tool.cmd, workspace, bundled, missing).strip()
        if command and command not in commands:
            commands.insert(0, command)
        tools = Toolset(
            pre=(*find_scripts(entry.pre_scripts, workspace, bundled, missing), *tools.pre),
            post=(*tools.post, *find_scripts(entry.post_scripts, workspace, bundled, missing)),
            env={**tools.env, **_variables({**entry.env_vars, **tool.env_vars}, where)},
        )
    return msgspec.structs.replace(tools, command=" ".join(commands))


def find_script(
    path: str, args: str, workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]
) -> tuple[ScriptCall, ...]:
    """Return how to run a script of the checkout, or madlite's in its place; () for nothing to do.

    A path that leaves the workspace is missing: a container has nothing else of the machine.

    Raises:
        UsageProblem: `missing` of a script that is not there; or the system refuses to check whether it exists.
    """
    within = posixpath.normpath(path)
    is_inside = not within.startswith(("/", "../"))
    if is_inside and is_file(workspace / path):
        return (ScriptCall(path=path, args=args),)
    if is_inside and within.startswith(COMMON):
        helper = within.removeprefix(COMMON)
        name, _, own_args = _INSTEAD.get(helper, helper).partition(" ")
        if not name:
            return ()
        if is_file(bundled / name):
            return (ScriptCall(path=name, args=" ".join(filter(None, (own_args, args))), bundled=True),)
    raise missing(path)


def _read(file: Path, key: str = "tools", *, given: bool = False) -> dict[str, ToolEntry]:
    content = read_json(file, given=given)
    tools = content.get(key) if isinstance(content, dict) else None
    if not isinstance(tools, dict):
        raise UsageProblem(f"{file} has no table 'tools'", """write it like {"tools": {"NAME": {"cmd": "…"}}}""")
    return {name: _entry(name, value, file) for name, value in tools.items()}


def _entry(name: str, value: Any, file: Path) -> ToolEntry:
    try:
        return msgspec.structs.replace(msgspec.convert(value, ToolEntry), file=str(file))
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{file}: tool '{name}': {wrong_key(error)[1]}") from None


def _find(name: str, table: Mapping[str, ToolEntry]) -> ToolEntry:
    if name in table:
        return table[name]
    hint = f"tools: {', '.join(table)}"
    raise UsageProblem(f"there is no tool '{name}'", one_hint(did_you_mean(name, table, most=1), hint))


def find_scripts(
    scripts: Iterable[Script], workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]
) -> tuple[ScriptCall, ...]:
    """Return how to run each script as `find_script` does.

    Raises:
        UsageProblem: `missing` of a script that is not there.
    """
    found = (find_script(script.path, str(script.args), workspace, bundled, missing) for script in scripts)
    return tuple(chain.from_iterable(found))


def _with_helpers(command: str, workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]) -> str:
    """Return the command with the paths of madlite's helpers where it names ones of madengine's that are not here."""

    def replaced(found: re.Match[str]) -> str:
        calls = find_script(found[1], "", workspace, bundled, missing)
        if not calls:
            raise missing(found[1])
        return f"{FOLDER}/{calls[0].path} {calls[0].args}".rstrip() if calls[0].bundled else found[0]

    return _HELPER.sub(replaced, command)


def _missing(where: str, workspace: Path, path: str) -> UsageProblem:
    return UsageProblem(f"{where} needs {path}, which is not in {workspace} and does not come with madlite")


def _variables(values: Mapping[str, str | int | float | bool], where: str) -> dict[str, str]:
    for name in values:
        if not VARIABLE.fullmatch(name):
            raise UsageProblem(f"{where}: key 'env_vars' has {name!r}, which is no name of a variable")
    return {name: str(value) for name, value in values.items()}  # as madengine gives them: True, False
