"""Checks of where a run was: the ranks that report, memory that ran short, foreign processes on its GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from madlite.measure.checks.base import CheckInput, CheckResult, failed, passed, unknown, warned
from madlite.measure.window import usable
from madlite.model import Cause, RunPlan
from madlite.text import whole_number

_ALIKE = 0.8  # of the quickest rank's speed is the slowest's at least: both wait for each other in every step
_EVEN = 0.9  # of the steps of the rank that reports most: a line may be lost
_HCA = "NCCL_IB_HCA"  # of a plan: the RDMA devices between its nodes
_FILTERS = ("log_rank", "ranks_filter")  # in names of settings, variables and options that choose who prints


def ranks(run: CheckInput) -> CheckResult:
    """Check whether all ranks that print do, each of them to the end.

    Frameworks print on one rank of a node, on those that a setting lists, or on all; a node's log reports nothing of
    others.
    """
    if (wanted_gpus := _missed_gpus(run.plan)) > 1:
        return warned(f"the card asks for {wanted_gpus} GPUs, and ran on the CPU: this machine has none")
    counts = run.log.steps.counts()
    if not run.by_steps:
        return unknown("a card's own script may train more than once")
    if run.log.is_mixed:
        return warned("steps come again with other numbers: several ranks print without a label")
    if not counts:
        return unknown("no line names its rank" if run.log.steps else "no step was read")
    if len(counts) < (wanted := _printing(run)):
        return warned(f"of {wanted} ranks that were to print {_reporting_ranks(list(counts))}")
    if len(counts) > 1 and len(counts) < (planned := _all_or_one(run, max(counts) + 1)):
        return warned(f"of {planned} ranks only {_reporting_ranks(list(counts))}")
    return _stopped(run) or _apart(run) or _uneven(counts)


def _missed_gpus(plan: RunPlan | None) -> int:
    """Return how many GPUs a card itself asks for on a machine without one; a card without the field asks for one."""
    if plan is None or plan.machine.vendor != "CPU" or not plan.origins.get("n_gpus", "card").startswith("card"):
        return 0
    return int(plan.card.n_gpus)


def _stopped(run: CheckInput) -> CheckResult | None:
    """Return that a rank does not come to the last step that others reach."""
    arrived, expected = run.log.steps.arrived(), run.expected.steps
    last = max(arrived.values()) if expected is None else min(expected, max(arrived.values()))
    early = {rank: n for rank, n in arrived.items() if n < last}
    if not early:
        return None
    ranks = _rank_list(list(early))
    stops = f"{ranks} stop" if len(early) > 1 else f"{ranks} stops"
    return warned(f"{stops} at step {min(early.values())}, others go on to step {last}")


def _apart(run: CheckInput) -> CheckResult | None:
    """Return that ranks report other speeds than each other: they train in step, so not all of them can be true."""
    window = run.window
    if window is None:
        return None
    by_rank = run.log.steps.of_ranks(window.quantity)
    of_window = {
        rank: [value for n, value in points if window.first_step <= n <= window.last_step and usable(value)]
        for rank, points in by_rank.items()
    }
    speeds = {rank: statistics.median(values) for rank, values in of_window.items() if values}
    quickest = max(speeds.values(), default=0.0)
    if quickest <= 0 or min(speeds.values()) >= _ALIKE * quickest:
        return None
    low, high = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    unit = window.quantity.label
    return warned(f"rank {low} reports {speeds[low]:.4g} {unit}, rank {high} {speeds[high]:.4g}")


def _uneven(counts: dict[int, int]) -> CheckResult:
    most = max(counts.values())
    short = [rank for rank, steps in counts.items() if steps < _EVEN * most and steps < most - 1]
    if short:
        few = min(counts[rank] for rank in short)
        return warned(f"{_reporting_ranks(short)} fewer steps than others: {few} of {most}")
    return passed(_reporting_ranks(list(counts)))


def memory(run: CheckInput) -> CheckResult:
    """Check whether memory ran short: the caching allocator then frees its cache and retries, which takes time."""
    training = run.log.memory
    if training.out:
        return warned(f"GPU memory ran out, and the run went on: {training.out}")
    if training.retried:
        return warned(f"memory was so short that the allocator tried again: {training.retried}")
    return passed("no line reports memory that ran out or an allocation that was retried")


def network(run: CheckInput) -> CheckResult:
    """Check whether RCCL or NCCL uses the RDMA devices between nodes: sockets cost half the speed, or hang."""
    plan, seen = run.plan, run.log.network
    if plan is None or plan.place.nodes < 2:
        return unknown("the run has one node" if plan else "there is no plan")
    wanted = str(plan.env.get("NCCL_NET", "")).lower()
    if plan.env.get("NCCL_IB_DISABLE") == "1" or wanted == "socket" or not plan.env.get(_HCA):
        return unknown(f"{_HCA} names no RDMA device that is used between nodes")
    if seen.sockets:
        return warned(f"the nodes are connected by sockets, not by RDMA devices {plan.env[_HCA]}: {seen.sockets}")
    if not seen.rdma:
        return unknown("no line reports the network: NCCL_DEBUG=INFO prints it")
    return passed("RCCL or NCCL reports that the nodes are connected by RDMA")


def foreign_processes(run: CheckInput) -> CheckResult:
    """Check which other processes used the GPUs, or may have."""
    found = run.observed.foreign_processes if run.observed else None
    if not found and run.observed and run.observed.unshared_lease:
        why = run.observed.unshared_lease
        return warned(f"another user may share the GPUs: {why}")
    if found is None:
        return unknown(_why_foreign_unknown(run))
    if found:
        return warned(f"other processes used the GPUs: {', '.join(found)}")
    return passed("no other process used the GPUs")


def memory_of_failed_run(run: CheckInput) -> CheckResult:
    """Return the same of a run that failed: memory that ran out may be what ended it."""
    out, candidate = run.log.memory.out, run.log.failures.candidate
    if not out or candidate is None:
        return memory(run)
    if candidate.cause != Cause.GPU_MEMORY.value and not (candidate.line and candidate.line in out):
        return memory(run)
    return failed(f"GPU memory ran out: {out}", Cause.EXIT_CODE, candidate.line)


def _why_foreign_unknown(run: CheckInput) -> str:
    if run.plan is None:
        return "not sampled: madlite did not make this log"
    if not run.plan.place.gpus_per_node:
        return "the run has no GPU"
    off = not run.plan.telemetry_s
    return "not sampled: GPU sampling is off" if off else "the GPUs do not report their processes"


def _all_or_one(run: CheckInput, least: int) -> int:
    """Return how many ranks print where more than one does: all, `least` as far as is known of a run without GPUs.

    1 where it can be as it should be that some of them print: something chooses them, or there are pipeline stages.
    """
    plan = run.plan
    if plan is None or _chosen(plan) or _stages(plan, run.log.config):
        return 1
    if plan.place.gpus_per_node or plan.place.nodes > 1:
        return plan.place.gpus_per_node * plan.place.spanned
    return max(least, whole_number(run.log.config.get("world_size", "")) or 1)


def _chosen(plan: RunPlan) -> bool:
    """Return whether something chooses the ranks that print, beside the setting that a backend names."""
    names = (*(name for name, value in plan.settings.items() if value not in ("", None)), *plan.env, plan.run_args)
    return any(mark in name.casefold().replace("-", "_") for name in names for mark in _FILTERS)


def _stages(plan: RunPlan, config: Mapping[str, str]) -> bool:
    """Return whether there are several pipeline stages."""
    return any((whole_number(text) or 1) > 1 for text in (str(plan.settings.get("pp")), config.get("pp", "")))


def _printing(run: CheckInput) -> int:
    """Return how many ranks of this node print at least, as far as the backend defines it."""
    rule, plan = run.expected.rule, run.plan
    if rule.ranks == "all" and plan is not None:
        return max(1, plan.place.gpus_per_node)
    listed = _listed(plan, rule.ranks_setting) if plan is not None and rule.ranks_setting else set()
    return max(1, len(listed))


def _listed(plan: RunPlan, setting: str) -> set[str]:
    words = (word.strip() for word in str(plan.settings.get(setting, "")).split(","))
    return {word for word in words if word.isdecimal()}


def _reporting_ranks(numbers: list[int]) -> str:
    """Return who reports, as a sentence's beginning."""
    return f"{_rank_list(numbers)} report" if len(numbers) > 1 else f"{_rank_list(numbers)} reports"


def _rank_list(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"ranks {shown}" if len(numbers) > 1 else f"rank {shown}"
