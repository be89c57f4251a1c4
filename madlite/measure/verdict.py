"""What a run showed → its verdict: SUCCESS with numbers that can be trusted, or FAILURE with the reason.

All checks run, for a failure too (madlite/measure/checks).  The first that fails explains it: their
order is who ended the run, its exit code, its loss and last step, then its number and what the row would say of it.
One that doubts leaves a success suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from msgspec.structs import replace

from madlite.measure.checks import config as ending
from madlite.measure.checks import figures, losses, place, table
from madlite.measure.checks.config import config, exit_words
from madlite.measure.checks.table import CheckInput, CheckResult, Expected, Observation
from madlite.measure.compute import compute_findings, count_compute
from madlite.measure.monitor import LogMonitor, asked_steps
from madlite.measure.number import last_step, number_of_file, number_of_line, number_of_steps
from madlite.measure.window import steady_window
from madlite.model import Cause, Check, Compute, Metric, ResultRule, RunPlan, Status, Value, Variant, Window

__all__ = ["Expected", "Observation", "Verdict", "asked_steps"]

# Run every check, in the order in which they explain a failure.

CheckFunction = Callable[[CheckInput], CheckResult]
_OUTSIDE: tuple[CheckFunction, ...] = (
    ending.exit_code,
    place.foreign_processes,
)  # those that apply to a run that never began
CHECKS: tuple[CheckFunction, ...] = (
    ending.exit_code,
    losses.loss,
    ending.end_of_steps,
    figures.error_pattern,
    ending.launcher,
    ending.end_mark,
    figures.artifact,
    figures.metric,
    figures.summary,
    config,
    place.ranks,
    losses.loss_trend,
    place.memory,
    place.foreign_processes,
    figures.compute,
    figures.clock,
)


def collect(known: CheckInput) -> tuple[CheckResult, ...]:
    """Return the result of each check."""
    said = tuple(ask(known) for ask in (CHECKS if known.ran else _OUTSIDE))
    return said if first_failed(said) is None else tuple(place.of_failure(one, known) for one in said)


def of_training(known: CheckInput) -> tuple[CheckResult, ...]:
    """Return the results of the checks that need a training's log alone, whatever ran it and however it ended."""
    asked = (losses.loss, ending.end_of_steps, figures.metric, figures.summary, losses.loss_trend, place.memory)
    return tuple(ask(known) for ask in asked)


def first_failed(said: Iterable[CheckResult]) -> CheckResult | None:
    """Return the failed check that decides the verdict; None where none makes the run a failure."""
    return next((one for one in said if one.row.status == "fail"), None)


def warning_texts(said: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(one.text for one in said if one.row.status == "warn")


SHOWN = 3  # lines with error patterns
_HARMLESS = (
    'if that is harmless: add a part of each such line to "log_error_benign_patterns", or set '
    '"log_error_pattern_scan": false, on the card or in the context'
)


class Verdict(Value, frozen=True):
    """The judgement of one run."""

    status: Status
    cause: Cause = Cause.NONE
    reason: str = ""
    evidence: str = ""
    window: Window | None = None
    metrics: tuple[Metric, ...] = ()
    findings: tuple[str, ...] = ()
    suspect: tuple[str, ...] = ()  # of a SUCCESS, why its number is doubtful
    checks: tuple[Check, ...] = ()
    compute: Compute | None = None


def judge(plan: RunPlan, seen: Observation, log: LogMonitor) -> Verdict:
    """Return the verdict of a run that was started."""
    if seen.skipped and seen.stopped is Cause.NONE:
        return Verdict(status=Status.SKIPPED, reason="the model was not run (--skip-model-run)")
    asked = _asked(plan, log)
    if asked.rule.kind == "steps":
        return _judge_steps(asked, log, plan, seen)
    if asked.rule.kind == "multiple_results":
        number = number_of_file(asked.rule, seen.results, log)
    else:
        number = number_of_line(log)
    return _verdict(CheckInput(asked=asked, log=log, number=number, plan=plan, seen=seen))


def judge_steps(asked: Expected, log: LogMonitor) -> Verdict:
    """Return the verdict of a log by its training steps."""
    return _judge_steps(asked, log)


def _judge_steps(
    asked: Expected, log: LogMonitor, plan: RunPlan | None = None, seen: Observation | None = None
) -> Verdict:
    window = steady_window(log.steps, asked.rule.headline, asked.warmup_steps, last_step(asked, log))
    number = number_of_steps(asked, log, window)
    compute = count_compute(plan, log.steps, window) if plan is not None and window is not None else None
    return _verdict(
        CheckInput(asked=asked, log=log, number=number, plan=plan, seen=seen, window=window, compute=compute)
    )


def judge_line(log: LogMonitor) -> Verdict:
    """Return the verdict of a log by its line `performance: <number> <metric>`.

    What else it says makes the number doubtful at most: of several trainings nobody knows which of them it is of.
    """
    number = number_of_line(log)
    known = CheckInput(
        asked=Expected(rule=ResultRule(kind="performance_line", loss_expected=False)), log=log, number=number
    )
    status = Status.SUCCESS if number.cause is Cause.NONE else Status.FAILURE
    return Verdict(
        status=status,
        cause=number.cause,
        reason=number.reason,
        evidence=number.evidence,
        metrics=number.metrics,
        findings=number.findings,
        suspect=warning_texts(of_training(known)) if status is Status.SUCCESS else (),
    )


def launcher_failure(log: LogMonitor, window: Window | None = None) -> Verdict:
    """Return the verdict of a log whose launcher says that it failed, whatever exit code came out."""
    words = f"the training's launcher says that it failed{_rule_words(log)}"
    return Verdict(status=Status.FAILURE, cause=Cause.EXIT_CODE, reason=words, evidence=log.fatal_line, window=window)


def _verdict(known: CheckInput) -> Verdict:
    """Run all checks, and return what follows from their results."""
    said = collect(known)
    number, failed = known.number, first_failed(said)
    suspect = warning_texts(said)
    told = compute_findings(known.compute) if known.compute else ()
    verdict = Verdict(
        status=Status.SUCCESS,
        evidence=number.evidence,
        window=known.window if known.ran else None,
        metrics=number.metrics,
        findings=(*number.findings, *(text for text in told if text not in suspect)),
        checks=tuple(one.check for one in said),
        compute=known.compute,
    )
    if failed is not None:
        return _failed(verdict, failed, known)
    return replace(verdict, suspect=suspect) if known.elsewhere is None else _on_another_node(verdict, known.elsewhere)


def _on_another_node(verdict: Verdict, node: int) -> Verdict:
    """Return the verdict of a node that came to its end, whose training's result another one prints."""
    words = f"this node came to its end and prints no result: that is on node {node}, which decides of the training"
    return replace(verdict, status=Status.SKIPPED, reason=words, evidence="", metrics=(), findings=())


def _failed(verdict: Verdict, failed: CheckResult, known: CheckInput) -> Verdict:
    """Return a failure; findings are of its number, so they are told where the number is all that failed."""
    kept, evidence = _kept(failed, known), failed.evidence
    findings = verdict.findings if failed.row in (table.NO_RESULT, table.PATTERN) else ()
    if failed.row is table.PATTERN:
        findings, (_, evidence) = (*findings, _HARMLESS), suspicion(known.log)
    return replace(
        verdict,
        status=Status.FAILURE,
        cause=failed.cause,
        reason=_reason(failed, known),
        evidence=evidence,
        metrics=kept,
        findings=findings,
    )


def _kept(failed: CheckResult, known: CheckInput) -> tuple[Metric, ...]:
    """Return the results that a failure's rows have: those that are none themselves, or one beside an error pattern.

    Of several results beside an error none is taken over: nobody can say which of them the error belongs to.
    """
    metrics = known.number.metrics
    if failed.row is table.NO_RESULT:
        return metrics
    if failed.row is table.PATTERN and known.asked.rule.kind == "performance_line":
        return tuple(replace(metric, status=Status.FAILURE, cause=failed.cause) for metric in metrics)
    return ()


def _reason(failed: CheckResult, known: CheckInput) -> str:
    """Return why a run failed; a rule that matched a line of its log may tell more."""
    if failed.row is table.ENDED_ILL and known.seen and known.seen.exit:
        return f"the workload failed: {exit_words(known.seen)}{_rule_words(known.failing_log)}"
    if failed.row is table.LAUNCHER_FAILED:
        return launcher_failure(known.log).reason
    if failed.row is table.PATTERN:
        several = known.asked.rule.kind == "multiple_results"
        kept = f"no result of {known.asked.rule.file} is taken over" if several else "the number stays in the row"
        return f"the log has the {suspicion(known.log)[0]}, though the script ended with exit code 0 ({kept})"
    return failed.text


def suspicion(log: LogMonitor) -> tuple[str, str]:
    """Return the error patterns of a log in words and the first lines that have them; "" where it has none."""
    suspects = log.suspects
    names = ("error patterns " if len(suspects) > 1 else "error pattern ") + ", ".join(map(repr, suspects))
    return (names, " | ".join(islice(suspects.values(), SHOWN))) if suspects else ("", "")


def _rule_words(log: LogMonitor) -> str:
    hint = f"; {log.rule.hint}" if log.rule and log.rule.hint else ""
    return f" ({log.rule.cause}){hint}" if log.rule else ""


def _asked(plan: RunPlan, log: LogMonitor) -> Expected:
    """Return what the plan asks for; how many steps there are to be may be the trainer's own word alone."""
    variant = plan.variant or Variant(model=plan.card.name)
    return Expected(
        rule=plan.result_rule,
        warmup_steps=variant.warmup_steps,
        steps=variant.steps if variant.steps is not None else asked_steps(log.config),
        columns=result_columns(plan, variant),
    )


def result_columns(plan: RunPlan, variant: Variant) -> dict[str, str]:
    """Return the result columns of a rendered run, as MAD's own result files name them."""
    values = {
        "mode": variant.mode,
        "precision": variant.precision,
        "batch_size": variant.micro_batch,
        "seq_len": variant.seq_len,
        "device": plan.machine.device,
        "num_gpus": plan.place.nodes * plan.place.gpus_per_node,
        **{name: plan.settings.get(name) for name in plan.result_rule.columns},
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}
