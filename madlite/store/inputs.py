"""What a plan asks for that no other field of a record has: the user's environment, and what else can change a number.

By the first, with the card's own values, series of results are told apart; the others are named where they differ.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from madlite.model import RunPlan, Secret
from madlite.plan.caches import CACHE_VARIABLES
from madlite.plan.inputs import CACHES_INSIDE
from madlite.secrets import MASK, is_secret
from madlite.text import scalar_text

_MASK = MASK.decode()
# origins of variables that nobody chose for this work: MAD's, the machine's, the caller's shell, the plugin's own
_GIVEN = ("madlite", "environment", "recipe", "runtime host", "data.json", "found on this machine", "--parallel")
_MEETING = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MAD_MULTI_NODE_RUNNER", "MAD_GUEST_OS")
_SET = ("--set", "tag", "card")


def user_variables(origins: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that the user set: by `--set`, card, tag, context, a tool of it, or as a study's point."""
    for key, origin in origins.items():
        name = key.removeprefix("env.")
        is_given = origin.startswith((*_GIVEN, "credential ")) or (name in _MEETING and origin not in _SET)
        # caches are set by their study under its own kind, and named as `caches`
        if key.startswith("env.") and not is_given and (name not in CACHE_VARIABLES or origin in _SET):
            yield name


def user_environment(plan: RunPlan) -> dict[str, str]:
    """Return the variables that the user set, secrets masked."""
    values = {name: plan.env.get(name, "") for name in sorted(user_variables(plan.origins))}
    return {
        name: _MASK if isinstance(value, Secret) or is_secret(name, value) else value for name, value in values.items()
    }


def other_inputs(plan: RunPlan) -> dict[str, str]:
    """Return what else of a plan can change its number, by name; without what follows from other fields of a record."""
    options = plan.engine_options
    values = {
        "launcher": plan.launcher,
        "deployment": plan.deployment,
        "command": "; ".join(_commands(plan)),
        "gpu ids": ", ".join(map(str, plan.place.gpu_ids)),
        "cpuset": options.cpuset,
        "cpuset mems": options.cpuset_mems,
        "until": scalar_text(plan.until) if plan.until else "",
        "telemetry": f"{plan.telemetry_s:g} s",
        "probe": "" if plan.probe else "off",
        "readers": ", ".join(plan.readers),
        **(_container(plan) if plan.traits.containerised else {}),
    }
    return {name: text for name, text in values.items() if text}


def _commands(plan: RunPlan) -> Iterator[str]:
    """Yield the commands before, of and after the workload, those of context and tools among them."""
    for action in plan.actions:
        if action.kind in ("pre", "run", "post"):
            words = [word.replace(plan.id, "RUN") for word in action.argv]
            yield shlex.join(word if len(word) < _LONGEST else f"{word[:_LONGEST]}…" for word in words)


_LONGEST = 300  # characters of a word of a command


def _container(plan: RunPlan) -> dict[str, str]:
    options = plan.engine_options
    own = (
        str(plan.workspace),
        CACHES_INSIDE,
    )  # the same folder by any path, and caches, which have a name of their own
    mounts = (
        f"{mount.source}:{mount.target}{':ro' * mount.read_only}"
        for mount in plan.mounts
        if not {mount.source, mount.target} & {*own}
    )
    return {
        "user": options.user,
        "network": options.network,
        "ipc": options.ipc,
        "groups": " ".join(options.group_add),
        "capabilities": " ".join(options.cap_add),
        "security": " ".join(options.security_opt),
        "ulimits": " ".join(options.ulimits),
        "options": options.extra,
        "mounts": " ".join(sorted(mounts)),
    }
