"""How many ranks a script has, whose output is kept, and what is wrong with either."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.nodes import node_value

_MOST = 1024  # of a machine; each is a process
_PER_CORE = 4  # ranks that a core may share before the speed means nothing
_CORES = 16  # of a machine that is not this one
_RANKS = re.compile(r"\s*[0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*")


def ranks_here(plan: RunPlan) -> int:
    """Return how many ranks each node has."""
    return max(1, int(plan.settings["nproc_per_node"]) or plan.place.gpus_per_node)


def ranks_of(plan: RunPlan) -> int:
    """Return how many ranks the job has, over all its nodes."""
    return ranks_here(plan) * max(1, plan.place.nodes)


def is_first_node(plan: RunPlan) -> bool:
    """Return whether rank 0 is here."""
    return plan.place.whole or node_value(plan, "node_rank").strip("0") == ""


def rank_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with the number of ranks, and with those whose output is kept."""
    yield from _number(plan)
    yield from _check_log_ranks(plan)


def _number(plan: RunPlan) -> Iterator[Finding]:
    requested, gpus = int(plan.settings["nproc_per_node"]), plan.place.gpus_per_node
    cores = (os.cpu_count() or _CORES) if plan.traits.local else _CORES
    if requested < 0:
        yield Finding(
            message=f"nproc_per_node is {requested}",
            hint="0 is one rank for each GPU",
            fatal=True,
            keys=("nproc_per_node",),
        )
    elif requested > _MOST:
        hint = "0 is one rank for each GPU, and one on a CPU"
        yield Finding(
            message=f"nproc_per_node is {requested}: more than {_MOST} on a machine",
            hint=hint,
            fatal=True,
            keys=("nproc_per_node",),
        )
    elif gpus and requested not in (0, gpus):
        hint = f"--set n_gpus={requested}"
        yield Finding(
            message=f"{requested} ranks on {gpus} GPUs: a row counts one rank per GPU",
            hint=hint,
            fatal=True,
            keys=("nproc_per_node", "n_gpus"),
        )
    elif not gpus and requested > cores * _PER_CORE:
        message = f"{requested} ranks share the {cores} cores of this CPU: they wait for one another"
        yield Finding(message=message, hint=f"--set nproc_per_node={cores}")


def _check_log_ranks(plan: RunPlan) -> Iterator[Finding]:
    """Yield that log_ranks names ranks that are not there: of them torchrun would show nothing."""
    text, ranks = str(plan.settings["log_ranks"]), ranks_here(plan)
    if not text:
        return
    there = "there is rank 0 alone" if ranks == 1 else f"ranks are 0 to {ranks - 1}"
    hint = f"--set log_ranks=0, or leave it out for all; {there} on a node"
    if not _RANKS.fullmatch(text):
        yield Finding(message=f"log_ranks {text!r} is no list of ranks", hint=hint, fatal=True, keys=("log_ranks",))
    elif absent := [rank.strip() for rank in text.split(",") if int(rank) >= ranks]:
        what = "is no rank" if len(absent) == 1 else "are no ranks"
        message = f"log_ranks {text!r}: {', '.join(absent)} {what} of this run, where {there}"
        yield Finding(
            message=message,
            hint="--set log_ranks=0, or leave it out for all",
            fatal=True,
            keys=("log_ranks", "nproc_per_node", "n_gpus", "nnodes"),
        )
