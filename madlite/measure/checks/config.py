"""Checks of what the log reports of the run's configuration and of its end."""

from __future__ import annotations

from collections.abc import Mapping

from madlite.measure.checks.base import CheckInput, CheckResult, Observation, failed, passed, unknown, warned
from madlite.measure.lines import signal_text
from madlite.measure.monitor import LogMonitor
from madlite.measure.number import has_no_end, last_step, no_step
from madlite.model import Cause, Exit, RunPlan
from madlite.text import whole_number

# The check of a run's configuration: what the trainer's own log reports, against what was planned.
#
# EffectiveConfig has numbers as text.  What a log does not say is no difference, and neither is what a plan leaves
# open.

OF_ROW = ("seq_len", "micro_batch", "global_batch", "world_size", "precision")
# key of EffectiveConfig → settings that plan it, the first that the backend has
OTHERS: dict[str, tuple[str, ...]] = {
    "steps": (),
    "tp": ("tp",),
    "pp": ("pp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp_replicate": ("dp_replicate",),
    "dp_shard": ("dp_shard",),
    "family": ("family",),
    "flavor": ("flavor",),
    "packed": ("packed",),
}
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
    planned: dict[str, object] = {"steps": plan.trained_steps}
    for key, names in OTHERS.items():
        name = next((name for name in names if name in plan.settings), None)
        if name is not None:
            planned[key] = plan.settings[name]
    return _planned_texts(planned)


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
        return passed(f"step {last} was the last: madlite ended the run")
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
    begin = f"the steps went back to {run.log.restarted_at}"
    return warned(f"{begin}: a training was started again, and both may be in the window")


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
