"""What `--dry-run` prints: the request to the engine, the commands, and every rendered file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

from madlite.errors import UsageProblem
from madlite.model import RunPlan
from madlite.plan.actions import settle_model_dir
from madlite.run.one import secrets_for
from madlite.run.screen import Planned
from madlite.secrets import Redactor

_SHOWN = (".sh", ".toml", ".yaml", ".yml", ".json")


def preview(one: Planned, environ: dict[str, str], refused: Iterable[str] = ()) -> str:
    """Return everything one run would do, secrets masked; `refused` is what would keep it from being started."""
    plan = one.plan
    parts = [f"# {plan.card.name} · backend {plan.backend or 'none'} · runtime {plan.runtime}"]
    if plan.blocked:
        parts.append(f"# would not start: {plan.blocked.status.value} {plan.blocked.reason}")
        parts += [f"# hint: {plan.blocked.hint}"] if plan.blocked.hint else []
    parts += [f"# would be refused: {text}" for text in refused]
    parts += [f"# {note}" for note in plan.notes]
    if (plan.image is not None or not plan.traits.containerised) and (request := _request(one)):
        parts.append(_section(f"{plan.runtime} request", request))
    parts.append(_section("commands", "\n".join(_commands(plan))))
    for file in one.files:
        if file.path.endswith(_SHOWN):
            parts.append(_section(file.path, file.data.decode("utf-8", "replace").rstrip("\n")))
        else:
            parts.append(f"# --- {file.path} ({len(file.data)} bytes, copied from {file.template})")
    return Redactor(secrets_for(one, environ)).text("\n".join(parts)) + "\n"


def _request(one: Planned) -> str:
    """Return what the runtime would be asked for; nothing where what blocks the plan is that it cannot be asked for."""
    from madlite.run.stage import border

    try:
        with border(one.runtime):
            plan = settle_model_dir(one.plan, one.plan.model_dir)
            return json.dumps(one.runtime.request(plan), indent=2, default=str)
    except UsageProblem:
        if one.plan.blocked is None:
            raise
        return ""


def _section(title: str, text: str) -> str:
    return f"# --- {title}\n{text}"


def _commands(plan: RunPlan) -> list[str]:
    """Return the actions as a shell would be told them, in order."""
    lines = []
    for action in settle_model_dir(plan, plan.model_dir).actions:
        where = action.cwd.replace("{folder}", plan.folder_inside)
        lines.append(f"{action.kind:8} (in {where}) {shlex.join(action.argv)}")
    return lines
