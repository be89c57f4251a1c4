"""Checks of what the log says of the run's configuration and of its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from madlite.measure.checks import table
from madlite.measure.checks.table import CheckInput, CheckResult, Observation, check_result
from madlite.measure.grammar import signal_words
from madlite.measure.number import has_no_end, last_step, no_step
from madlite.model import Cause, Exit, RunPlan, Value
from madlite.text import whole_number

# The check of a run's configuration: what the trainer's own log says it ran with, against what was planned.
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


class Difference(Value, frozen=True):
    """A value that is another one in the trainer's log."""

    key: str
    planned: str
    effective: str

    @property
    def text(self) -> str:
        """The difference in words."""
        return f"{self.key} is {self.effective} in the trainer's log, {self.planned} was planned"


def config(known: CheckInput) -> CheckResult:
    """Compare all that the log says with the plan."""
    plan, said = known.plan, known.log.config
    if plan is None or not known.by_steps:
        return check_result(
            table.CONFIG_UNKNOWN, "a card's own script decides" if plan else "no plan says what was to run"
        )
    of_row, others = list(_differences(planned_row(plan), said)), list(_differences(planned_others(plan), said))
    if of_row:
        text = "; ".join(one.text for one in of_row)
        line = known.log.config_lines.get(of_row[0].key, "")
        return check_result(table.CONFIG_OTHER, f"{text}: the row would have a configuration that did not run", line)
    if others:
        return check_result(table.CONFIG_ODD, "; ".join(one.text for one in others))
    same = [key for key in (*planned_row(plan), *planned_others(plan)) if key in said]
    if not same:
        return check_result(table.CONFIG_UNKNOWN, "the log says nothing of what was planned")
    return check_result(table.CONFIG_SAME, ", ".join(f"{key} {said[key]}" for key in same))


def planned_row(plan: RunPlan) -> dict[str, str]:
    """Return what a row says of the configuration, by EffectiveConfig's names; the ranks of a CPU run are no GPUs."""
    variant = plan.variant
    sizes = {name: getattr(variant, name) for name in OF_ROW if name != "world_size"} if variant else {}
    ranks = plan.place.nodes * plan.place.gpus_per_node
    return _told({**sizes, "world_size": ranks})


def planned_others(plan: RunPlan) -> dict[str, str]:
    """Return what else is planned and logs tell of."""
    planned: dict[str, object] = {"steps": plan.variant.steps if plan.variant else None}
    for key, names in OTHERS.items():
        name = next((name for name in names if name in plan.settings), None)
        if name is not None:
            planned[key] = plan.settings[name]
    return _told(planned)


def normal(key: str, text: str) -> str:
    """Return a value in one spelling: numbers plain, switches as true or false, precisions by their bits."""
    word = text.strip().casefold()
    if key == "precision":
        return _PRECISIONS.get(word, "")
    number = whole_number(word)
    return _SWITCHES.get(word, word) if number is None else str(number)


def _told(planned: Mapping[str, object]) -> dict[str, str]:
    texts = {key: str(value) for key, value in planned.items() if value is not None}
    return {key: text for key, text in texts.items() if text.strip().casefold() not in _OPEN}


def _differences(planned: Mapping[str, str], said: Mapping[str, str]) -> Iterator[Difference]:
    for key, wanted in planned.items():
        ours, theirs = normal(key, wanted), normal(key, said.get(key, ""))
        if ours and theirs and theirs not in _OPEN and ours != theirs:
            yield Difference(key=key, planned=wanted, effective=said[key])


# Checks of a run's end: its exit code, its last step, what launchers say, the framework's end mark.


def exit_code(known: CheckInput) -> CheckResult:
    """Ask how the model's step ended, and who ended it."""
    seen = known.seen
    if seen is None:
        return check_result(table.NO_EXIT)
    if seen.stopped is not Cause.NONE:
        return check_result(table.STOPPED, seen.stopped_text, seen.stopped_line, cause=seen.stopped)
    if seen.exit is None or seen.failed_action:
        code = _step_end(seen.exit) if seen.exit else ""
        step = f"the step '{seen.failed_action or 'start'}' failed{code}{_on_node(seen)}"
        return check_result(table.NOT_RUN, step, seen.failed_line)
    if seen.exit.code != 0:
        return check_result(
            table.ENDED_ILL, f"the workload failed: {exit_words(seen)}", known.failing_log.best_error_line
        )
    return check_result(table.ENDED_WELL, "exit code 0")


def end_of_steps(known: CheckInput) -> CheckResult:
    """Ask whether the last step that was asked for is there."""
    log, asked = known.log, known.asked
    last = last_step(asked, log)
    if odd := _without_end(known):
        return odd
    if last is None:
        return check_result(table.NO_STEP_HERE) if known.elsewhere is not None else _no_step(known)
    if asked.steps is not None and last + log.steps.from_zero < asked.steps:
        return _short_of(known, last, asked.steps)
    if went_back := _went_back(known):
        return went_back
    if asked.steps is None:
        return check_result(table.NO_LAST, f"step {last} was the last; nobody says how many there were to be")
    last_of = f", in the last of {log.trainings} trainings" if log.trainings > 1 else ""
    counted = ", counted from 0" if last < asked.steps else ""
    return check_result(table.ARRIVED, f"step {last} of {asked.steps}{counted}{last_of}")


def launcher(known: CheckInput) -> CheckResult:
    """Ask whether a launcher says that a process failed, whose exit code a pipe or `|| true` has hidden.

    Who switches the scan of a script's output off calls its errors harmless.
    """
    log = known.log
    if known.seen is not None and known.seen.stopped is not Cause.NONE:
        return check_result(table.LAUNCHER_STOPPED)
    if line := log.launcher_line:
        if known.by_steps or (log.steps and log.scanned):
            return check_result(table.LAUNCHER_FAILED, "the training's launcher says that it failed", log.fatal_line)
        return check_result(table.LAUNCHER_ODD, f"a launcher says that a process failed: {line}")
    if log.steps and log.fatal_line and not log.ended:
        if known.seen and known.by_steps and _prints_mark(known):
            text = f"the log has no '{known.asked.rule.end_mark}', and says after its last step: {log.fatal_line}"
            return check_result(table.DIED, text, log.fatal_line)
        return check_result(
            table.ENDED_ODD, f"after its last step and without an end mark the log says: {log.fatal_line}"
        )
    return check_result(table.LAUNCHED_WELL)


def end_mark(known: CheckInput) -> CheckResult:
    """Ask for the line with which a framework ends a training; of several nodes another one may print it."""
    log, rule = known.log, known.asked.rule
    if log.missed_mark:
        return check_result(table.MARK_MISSED, log.missed_mark, log.best_error_line)
    if log.ended:
        return check_result(table.MARKED)
    if not rule.end_mark:
        return check_result(
            table.NO_MARK, "the framework prints none" if known.by_steps else "a card's own script has none"
        )
    if not log.steps:
        return check_result(table.NO_MARK, "no step was read that one could come after")
    if not _prints_mark(known):
        return check_result(table.NO_MARK, "of several nodes another one prints it")
    return check_result(table.MARK_GONE, f"the log has no '{rule.end_mark}' after its last step")


def _without_end(known: CheckInput) -> CheckResult | None:
    """Return that the last of several trainings stopped early; whose number a script's own line has it knows itself."""
    log = known.log
    own = not known.by_steps and (known.asked.rule.kind == "multiple_results" or log.scan.first is not None)
    told = known.by_steps and (
        known.asked.steps is not None or not log.steps
    )  # with how many there were to be, and are
    if own or told or not has_no_end(known.asked, log):
        return None
    text = f"the last of {log.trainings} trainings has no end mark, and the one before has"
    row = table.LAST_WITHOUT_END if known.seen is not None else table.LAST_WITHOUT_END_ODD
    return check_result(row, text, log.cut_line)


def _went_back(known: CheckInput) -> CheckResult | None:
    if known.log.restarted_at is None or not known.by_steps:  # a script may well train more than once
        return None
    if known.log.steps.is_overtaken:
        return None
    begin = f"the steps went back to {known.log.restarted_at}"
    return check_result(table.WENT_BACK, f"{begin}: a training was started again, and both may be in the window")


def _short_of(known: CheckInput, last: int, asked: int) -> CheckResult:
    """Ask whether the steps after the last line had none because each line covers several."""
    log = known.log
    text = f"step {last} was the last of {asked} asked for"
    if not known.by_steps:
        return check_result(
            table.NO_LAST if log.ended else table.CUT_SHORT_SCRIPT, text
        )  # not each step may have a line
    every = log.steps.interval(last) or last  # one line is for all the steps up to its own
    if asked - last - log.steps.from_zero >= every or (_prints_mark(known) and not log.ended):
        return check_result(table.CUT_SHORT, text, log.cut_line)
    if went_back := _went_back(known):
        return went_back
    text = f"step {last} is the last line's of {asked} steps, with a line for every {every}"
    if log.ended:
        return check_result(table.ARRIVED, f"{text}, and the end mark follows")
    return check_result(table.PERHAPS_SHORT, f"{text}: nothing shows that the steps after it were done")


def _prints_mark(known: CheckInput) -> bool:
    """Say whether a training that came to its end has left the framework's end mark in this log."""
    whole = known.plan is None or known.plan.place.whole
    return bool(known.asked.rule.end_mark) and whole


def _no_step(known: CheckInput) -> CheckResult:
    if known.by_steps and known.log.trainings > 1 and not (known.log.steps or known.log.summary):
        text = f"the last of {known.log.trainings} trainings has no step"
        return check_result(table.LAST_WITHOUT_STEP, text, known.log.best_error_line)
    if known.by_steps:
        return check_result(table.NO_STEP, no_step(known.asked, known.log), known.log.best_error_line)
    return check_result(table.NO_LAST, "no step was read in what the card's own script printed")


def exit_words(seen: Observation) -> str:
    """Return how the workload ended in words, of several nodes with the one that failed first."""
    code = seen.exit.code if seen.exit is not None else 0
    return (signal_words(-code) if code < 0 else f"exit code {code}") + _on_node(seen)


def _on_node(seen: Observation) -> str:
    return f" on {seen.failed_node}" if seen.failed_node else ""


def _step_end(ended: Exit) -> str:
    return f" (over its limit, after {ended.duration_s:.0f} s)" if ended.timed_out else f" (exit code {ended.code})"
