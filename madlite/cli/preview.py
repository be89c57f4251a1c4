"""What `--dry-run` prints of a run: the request to the engine, the commands, and every rendered file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from madlite.errors import UsageProblem
from madlite.model import RunPlan
from madlite.plan.actions import bind_model_dir
from madlite.run.executor import secrets_for
from madlite.run.screen import PlannedRun
from madlite.secrets import Redactor

if TYPE_CHECKING:
    from madlite.model.protocols import ManifestRuntime

_SHOWN = (".sh", ".toml", ".yaml", ".yml", ".json")


def preview(one: PlannedRun, environ: dict[str, str], refused: Iterable[str] = ()) -> str:
    """Return everything one run would do, secrets masked; `refused` is what would keep it from being started."""
    plan = one.plan
    parts = [f"# {plan.card.name} · backend {plan.backend or 'none'} · runtime {plan.known_runtime or 'none'}"]
    if plan.study is not None and plan.study.varied:
        varied = ", ".join(f"{key}={value}" for key, value in plan.study.varied.items())
        parts.append(f"# {plan.study.kind}: {varied}")
    if plan.blocked:
        parts.append(f"# would not start: {plan.blocked.status.value} {plan.blocked.reason}")
        parts += [f"# hint: {plan.blocked.hint}"] if plan.blocked.hint else []
    parts += [f"# would be refused: {text}" for text in refused]
    parts += [f"# {note}" for note in plan.notes]
    if plan.traits.manifests and plan.image is not None:  # all of it can be piped into the engine's own tool
        parts.append(_manifest(one))
        return Redactor(secrets_for(one, environ)).text("\n".join(parts))
    if (plan.image is not None or not plan.traits.containerised) and (request := _request(one)):
        parts.append(_section(f"{plan.runtime} request", request))
    parts.append(_section("commands", "\n".join(_commands(plan))))
    for file in one.files:
        if file.path.endswith(_SHOWN):
            parts.append(_section(file.path, file.data.decode("utf-8", "replace").rstrip("\n")))
        else:
            parts.append(f"# --- {file.path} ({len(file.data)} bytes, copied from {file.template})")
    return Redactor(secrets_for(one, environ)).text("\n".join(parts)) + "\n"


def _request(one: PlannedRun) -> str:
    """Return the request to the runtime as JSON; "" where building it fails for the reason that blocks the plan."""
    from madlite.run.session_runner import guard_plugin

    try:
        with guard_plugin(one.runtime):
            plan = bind_model_dir(one.plan, one.plan.model_dir)
            return json.dumps(one.runtime.request(plan), indent=2, default=str)
    except UsageProblem:
        if one.plan.blocked is None:
            raise
        return ""


def _manifest(one: PlannedRun) -> str:
    """Return the request as the engine's own tool takes it; a comment where it cannot be made."""
    from madlite.errors import RuntimeProblem
    from madlite.run.session_runner import guard_plugin

    try:
        with guard_plugin(one.runtime):
            plan = bind_model_dir(one.plan, one.plan.model_dir)
            runtime = cast("ManifestRuntime", one.runtime)
            return "---\n" + runtime.manifest(plan, {file.path: file.data for file in one.files})
    except RuntimeProblem as problem:
        return f"# would not start: {problem.message}\n# hint: {problem.hint}\n"


def _section(title: str, text: str) -> str:
    return f"# --- {title}\n{text}"


def _commands(plan: RunPlan) -> list[str]:
    """Return the actions as shell commands, in order."""
    lines = []
    for action in bind_model_dir(plan, plan.model_dir).actions:
        where = action.cwd.replace("{folder}", plan.folder_inside)
        lines.append(f"{action.kind:8} (in {where}) {shlex.join(action.argv)}")
    return lines
