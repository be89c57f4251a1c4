"""Checks of where a run was: the ranks that report, memory that ran short, foreign processes on its GPUs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from madlite.measure.checks.base import CheckInput, CheckResult, Observation, failed, passed, unknown, warned
from madlite.measure.lines import signal_text
from madlite.measure.monitor import LogMonitor
from madlite.measure.number import has_no_end, last_step, no_step, parts_of
from madlite.model import Cause, Exit, RunPlan
from madlite.text import whole_number

_ALIKE = 0.8  # of the quickest rank's speed is the slowest's at least: both wait for each other in every step
_HCA = "NCCL_IB_HCA"  # of a plan: the RDMA devices between its nodes
_FILTERS = ("log_rank", "ranks_filter")  # in names of settings, variables and options that choose who prints


def ranks(run: CheckInput) -> CheckResult:
    """Check whether all ranks that print do, each of them to the end.

    Frameworks print on one rank of a node, on those that a setting lists, or on all; a node's log reports nothing of
    others.
    """
    if (wanted_gpus := _missed_gpus(run.plan)) > 1:
        return warned(f"the card asks for {wanted_gpus} GPUs, and ran on the CPU: this machine has none")
    found = run.log.steps.ranks()
    if not run.by_steps:
        return unknown("a card's own script may train more than once")
    if run.log.is_mixed:
        return warned("steps come again with other numbers: several ranks print without a label")
    if not found:
        return unknown("no line names its rank" if run.log.steps else "no step was read")
    if len(found) < (wanted := _printing(run)):
        return warned(f"of {wanted} ranks that were to print {_reporting_ranks(found)}")
    if len(found) > 1 and len(found) < (planned := _all_or_one(run, max(found) + 1)):
        return warned(f"of {planned} ranks only {_reporting_ranks(found)}")
    return _stopped(run) or _apart(run) or passed(_reporting_ranks(found))


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
    speeds = {rank: statistics.median(values) for rank, values in run.log.steps.of_ranks(window).items()}
    quickest = max(speeds.values(), default=0.0)
    if quickest <= 0 or min(speeds.values()) >= _ALIKE * quickest:
        return None
    low, high = min(speeds, key=speeds.__getitem__), max(speeds, key=speeds.__getitem__)
    unit = window.quantity.label
    return warned(f"rank {low} reports {speeds[low]:.4g} {unit}, rank {high} {speeds[high]:.4g}")


def memory(run: CheckInput) -> CheckResult:
    """Check whether memory ran short: the caching allocator then frees its cache and retries, which takes time."""
    training = run.log.memory
    if training.out:
        return warned(f"GPU memory ran out: {training.out}")
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


def _reporting_ranks(numbers: Sequence[int]) -> str:
    """Return who reports, as a sentence's beginning."""
    return f"{_rank_list(numbers)} report" if len(numbers) > 1 else f"{_rank_list(numbers)} reports"


def _rank_list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"ranks {shown}" if len(numbers) > 1 else f"rank {shown}"


# Checks of what the log reports of the run's configuration and of its end.


# The check of a run's configuration: what the trainer's own log reports, against what was planned.
#
# EffectiveConfig has numbers as text.  What a log does not say is no difference, and neither is what a plan leaves
# open.

OF_ROW = ("seq_len", "micro_batch", "global_batch", "world_size", "precision")
# settings that EffectiveConfig has by the same name
OF_SETTINGS = ("tp", "pp", "cp", "ep", "dp_replicate", "dp_shard", "family", "flavor", "packed")
_OPEN = frozenset({"", "0", "-1", "none", "null", "auto"})  # what leaves a value to the framework
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_PRECISIONS = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "tf32", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp8", "float8", "mxfp8", "fp8_e4m3", "hybrid", "e4m3"), "fp8"),
    **dict.fromkeys(("fp4", "mxfp4", "nvfp4", "float4"), "fp4"),
}


def config(run: CheckInput) -> CheckResult:
    """Compare all that the log reports with the plan."""
    plan, logged = run.plan, run.log.config
    if plan is None or not run.by_steps:
        return unknown("a card's own script decides" if plan else "there is no plan")
    of_row, others = _differences(planned_row(plan), logged), _differences(planned_others(plan), logged)
    if of_row:
        text = "; ".join(of_row.values())
        line = run.log.config_lines.get(next(iter(of_row)), "")
        return failed(f"{text}: the row would have a configuration that did not run", Cause.CONFIG, line)
    unseen = _precision_not_seen(plan, run.log)
    if unseen or others:
        return warned("; ".join(filter(None, (unseen, *others.values()))))
    same = [key for key in (*planned_row(plan), *planned_others(plan)) if key in logged]
    if not same:
        return unknown("the log reports none of the planned values")
    return passed(", ".join(f"{key} {logged[key]}" for key in same))


def _precision_not_seen(plan: RunPlan, log: LogMonitor) -> str:
    """Return that the log would name the planned precision, and does not; "" where its start is not there."""
    wanted = plan.variant.precision if plan.variant else ""
    bits = normal("precision", wanted)
    if not bits or bits not in {normal("precision", marked) for marked in log.marked_precisions}:
        return ""
    if normal("precision", log.config.get("precision", "")):
        return ""
    return f"{wanted} was planned, and the trainer's log has its start and no line that names {wanted}"


def planned_row(plan: RunPlan) -> dict[str, str]:
    """Return what a row says of the configuration, by EffectiveConfig's names; the ranks of a CPU run are no GPUs."""
    variant = plan.variant
    sizes = {name: getattr(variant, name) for name in OF_ROW if name != "world_size"} if variant else {}
    ranks = plan.place.nodes * plan.place.gpus_per_node
    return _planned_texts({**sizes, "world_size": ranks})


def planned_others(plan: RunPlan) -> dict[str, str]:
    """Return what else is planned and logs report."""
    settings = {key: plan.settings[key] for key in OF_SETTINGS if key in plan.settings}
    return _planned_texts({"steps": plan.trained_steps, **settings})


def normal(key: str, text: str) -> str:
    """Return a value in one spelling: numbers plain, switches as true or false, precisions by their bits."""
    word = text.strip().casefold()
    if key == "precision":
        return _PRECISIONS.get(word, "")
    number = whole_number(word)
    return _SWITCHES.get(word, word) if number is None else str(number)


def _planned_texts(planned: Mapping[str, object]) -> dict[str, str]:
    texts = {key: str(value) for key, value in planned.items() if value is not None}
    return {key: text for key, text in texts.items() if text.strip().casefold() not in _OPEN}


def _differences(planned: Mapping[str, str], logged: Mapping[str, str]) -> dict[str, str]:
    """Return each key whose value is another one in the trainer's log, with the difference as text."""
    found = {}
    for key, wanted in planned.items():
        ours, theirs = normal(key, wanted), normal(key, logged.get(key, ""))
        if ours and theirs and theirs not in _OPEN and ours != theirs:
            found[key] = f"{key} is {logged[key]} in the trainer's log, {wanted} was planned"
    return found


# Checks of a run's end: its exit code, its last step, what launchers say, the framework's end mark.


def exit_code(run: CheckInput) -> CheckResult:
    """Check how the model's step ended, and who ended it."""
    observed = run.observed
    if observed is None:
        return unknown("a log that madlite did not make has no exit code")
    if observed.stopped is not None:
        return failed(observed.stopped.text, observed.stopped.cause, observed.stopped.evidence)
    if observed.ended_early is not None and observed.exit is not None:
        return passed(observed.ended_early.text)
    if observed.exit is None or observed.failed_action:
        code = _step_end(observed.exit) if observed.exit else ""
        step = f"the step '{observed.failed_action or 'start'}' failed{code}{_on_node(observed)}"
        return failed(step, Cause.PREPARE, observed.failed_line)
    if observed.exit.code != 0:
        return failed(f"the workload failed: {exit_text(observed)}", Cause.EXIT_CODE, run.failure_log.best_error_line)
    return passed("exit code 0")


def end_of_steps(run: CheckInput) -> CheckResult:
    """Check whether the last step that was asked for is there."""
    log, expected = run.log, run.expected
    last = last_step(expected, log)
    if last is not None and ended_early(run):
        return _went_back(run) or passed(f"step {last} was the last: madlite ended the run")
    if odd := _without_end(run):
        return odd
    if last is None:
        text = "of several nodes another one alone prints the steps, and this one has none"
        return unknown(text) if run.other_node is not None else _no_step(run)
    if expected.steps is not None and last + log.steps.from_zero < expected.steps:
        return _short_of(run, last, expected.steps)
    if went_back := _went_back(run):
        return went_back
    if expected.steps is None:
        return unknown(f"step {last} was the last; the number of steps is not reported")
    last_of = f", in the last of {log.trainings} trainings" if log.trainings > 1 else ""
    counted = ", counted from 0" if last < expected.steps else ""
    return passed(f"step {last} of {expected.steps}{counted}{last_of}")


def launcher(run: CheckInput) -> CheckResult:
    """Check whether a launcher reports a failed process, whose exit code a pipe or `|| true` has hidden.

    Who switches the scan of a script's output off calls its errors harmless.
    """
    log, fatal_line = run.log, run.log.failures.fatal_line
    if run.observed is not None and run.observed.stop is not None:
        return unknown("madlite ended the run: later messages of its processes follow from that")
    if line := log.failures.launcher_line:
        if run.by_steps or (log.steps and log.scanned):
            return failed("the training's launcher reports a failure", Cause.EXIT_CODE, fatal_line)
        return warned(f"a launcher reports a failed process: {line}")
    if log.steps and fatal_line and not log.ended:
        if run.observed and run.by_steps and _prints_mark(run):
            text = f"the log has no '{run.expected.rule.end_mark}', and reports after its last step: {fatal_line}"
            return failed(text, Cause.EXIT_CODE, fatal_line)
        text = f"after its last step and without an end mark the log has: {fatal_line}"
        return warned(text)
    return passed("after the last step no launcher reports a failed process")


def end_mark(run: CheckInput) -> CheckResult:
    """Check for the line with which a framework ends a training; of several nodes another one may print it."""
    log, rule = run.log, run.expected.rule
    if ended_early(run):
        return unknown("madlite ended the run before it")
    if log.missed_mark:
        return failed(log.missed_mark, Cause.INCOMPLETE, log.best_error_line)
    if log.ended:
        return passed("the framework's end mark comes after the last step")
    if not rule.end_mark:
        return unknown("the framework prints none" if run.by_steps else "a card's own script has none")
    if not log.steps:
        return unknown("no step was read that one could come after")
    if not _prints_mark(run):
        return unknown("of several nodes another one prints it")
    return warned(f"the log has no '{rule.end_mark}' after its last step")


def ended_early(run: CheckInput) -> bool:
    """Return whether madlite ended the run because its steps were enough."""
    return run.observed is not None and run.observed.ended_early is not None


def _without_end(run: CheckInput) -> CheckResult | None:
    """Return that the last of several trainings stopped early; a script whose own line has the number is trusted."""
    log = run.log
    own = not run.by_steps and (run.expected.rule.kind == "multiple_results" or log.scan.first is not None)
    # with how many there were to be, and are
    has_step_count = run.by_steps and (run.expected.steps is not None or not log.steps)
    if own or has_step_count or not has_no_end(run.expected, log):
        return None
    text = f"the last of {log.trainings} trainings has no end mark, and the one before has"
    return failed(text, Cause.INCOMPLETE, log.cut_line) if run.observed is not None else warned(text)


def _went_back(run: CheckInput) -> CheckResult | None:
    if run.log.restarted_at is None or not run.by_steps:  # a script may well train more than once
        return None
    if run.log.steps.is_overtaken:
        return None
    return warned(parts_of(run.log))


def _short_of(run: CheckInput, last: int, expected: int) -> CheckResult:
    """Check whether the steps after the last line had none because each line covers several."""
    log = run.log
    text = f"step {last} was the last of {expected} asked for"
    if not run.by_steps:
        return unknown(text) if log.ended else warned(text)  # not each step may have a line
    every = log.steps.interval(last) or last  # one line is for all the steps up to its own
    if expected - last - log.steps.from_zero >= every or (_prints_mark(run) and not log.ended):
        return failed(text, Cause.INCOMPLETE, log.cut_line)
    if went_back := _went_back(run):
        return went_back
    text = f"step {last} is the last line's of {expected} steps, with a line for every {every}"
    if log.ended:
        return passed(f"{text}, and the end mark follows")
    return warned(f"{text}: nothing shows that the steps after it were done")


def _prints_mark(run: CheckInput) -> bool:
    """Return whether a training that came to its end has left the framework's end mark in this log."""
    whole = run.plan is None or run.plan.place.whole
    return bool(run.expected.rule.end_mark) and whole


def _no_step(run: CheckInput) -> CheckResult:
    if run.by_steps and run.log.trainings > 1 and not (run.log.steps or run.log.summary):
        text = f"the last of {run.log.trainings} trainings has no step"
        return failed(text, Cause.INCOMPLETE, run.log.best_error_line)
    if run.by_steps:
        return failed(no_step(run.expected, run.log), Cause.NO_METRIC, run.log.best_error_line)
    return unknown("no step was read in what the card's own script printed")


def exit_text(observed: Observation) -> str:
    """Return how the workload ended as text, of several nodes with the one that failed first."""
    code = observed.exit.code if observed.exit is not None else 0
    return (signal_text(-code) if code < 0 else f"exit code {code}") + _on_node(observed)


def _on_node(observed: Observation) -> str:
    return f" on {observed.failed_node}" if observed.failed_node else ""


def _step_end(ended: Exit) -> str:
    return f" (over its limit, after {ended.duration_s:.0f} s)" if ended.timed_out else f" (exit code {ended.code})"
