"""What a run showed → its verdict: SUCCESS with numbers that can be trusted, or FAILURE with the reason.

All checks run, for a failure too (madlite/measure/checks).  The first that fails explains it: their
order is who ended the run, its exit code, its loss and last step, then its number and what the row would say of it.
One that doubts leaves a success suspect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from msgspec.structs import replace

from madlite.measure.checks import figures, place
from madlite.measure.checks.base import CheckInput, CheckResult, Expected, Number, Observation
from madlite.measure.compute import count_compute
from madlite.measure.monitor import LogMonitor, expected_steps
from madlite.measure.number import last_step, number_from_file, number_from_line, number_from_steps
from madlite.measure.steps import steady_window
from madlite.model import Cause, Check, Compute, Metric, ResultRule, RunPlan, Status, Value, Variant, Window

__all__ = ["Expected", "Observation", "Verdict", "expected_steps"]

# Every check, in the order in which they explain a failure (docs/verdict.md).

CheckFunction = Callable[[CheckInput], CheckResult]
CHECKS: dict[str, CheckFunction] = {
    "exit_code": place.exit_code,
    "loss": figures.loss,
    "last_step": place.end_of_steps,
    "error_pattern": figures.error_pattern,
    "launcher": place.launcher,
    "end_mark": place.end_mark,
    "metric": figures.metric,
    "summary": figures.summary,
    "config": place.config,
    "ranks": place.ranks,
    "loss_trend": figures.loss_trend,
    "memory": place.memory,
    "network": place.network,
    "foreign_processes": place.foreign_processes,
    "compute": figures.compute,
    "clock": figures.clock,
    "consistency": figures.consistency,
}
_OUTSIDE = ("exit_code", "foreign_processes")  # those that apply to a run that never began
# those that need a training's log alone, whatever ran it and however it ended
_OF_LOG = ("loss", "last_step", "metric", "summary", "loss_trend", "memory", "consistency")


def warning_texts(results: Mapping[str, CheckResult]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(result.text for result in results.values() if result.status == "warn")


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


def judge(plan: RunPlan, observed: Observation, log: LogMonitor) -> Verdict:
    """Return the verdict of a run that was started."""
    if observed.skipped and observed.stopped is None:
        return Verdict(status=Status.SKIPPED, reason="the model was not run (--skip-model-run)")
    expected = _expected_of(plan, log)
    if expected.rule.kind == "steps":
        return judge_steps(expected, log, plan, observed)
    if expected.rule.kind == "multiple_results":
        number = number_from_file(expected.rule, observed.results, log)
    else:
        number = number_from_line(log)
        if number.cause is Cause.NO_METRIC and observed.results is not None:
            number = number_from_file(expected.rule, observed.results, log)
    return _verdict(CheckInput(expected=expected, log=log, number=number, plan=plan, observed=observed))


def judge_steps(
    expected: Expected, log: LogMonitor, plan: RunPlan | None = None, observed: Observation | None = None
) -> Verdict:
    """Return the verdict of a log by its training steps."""
    window = steady_window(log.steps, expected.rule.headline, expected.warmup_steps, last_step(expected, log))
    number = number_from_steps(expected, log, window)
    compute = count_compute(plan, log.steps, window) if plan is not None and window is not None else None
    run = CheckInput(expected=expected, log=log, number=number, plan=plan, observed=observed)
    return _verdict(replace(run, window=window, compute=compute))


def judge_line(log: LogMonitor) -> Verdict:
    """Return the verdict of a log that madlite did not make by its line `performance: <number> <metric>`.

    What else the log reports makes the number suspect at most: with several trainings it is
    unknown to which of them the number belongs.
    """
    rule, number = ResultRule(kind="performance_line", loss_expected=False), number_from_line(log)
    if log.scan.torn:
        reason = "the log ends within the line of its result: the number may be cut short"
        number = Number(cause=Cause.NO_METRIC, reason=reason, evidence=log.best_error_line)
    return _verdict(CheckInput(expected=Expected(rule=rule), log=log, number=number), _OF_LOG)


def launcher_failure(log: LogMonitor) -> Verdict:
    """Return the verdict of a log whose launcher reports that it failed, whatever exit code came out."""
    words = f"the training's launcher reports a failure{_rule_text(log)}"
    return Verdict(status=Status.FAILURE, cause=Cause.EXIT_CODE, reason=words, evidence=log.failures.fatal_line)


def _verdict(run: CheckInput, checks: Iterable[str] = CHECKS) -> Verdict:
    """Run checks, and return what follows from their results."""
    results = {name: CHECKS[name](run) for name in (checks if run.ran else _OUTSIDE)}
    number, failed = run.number, next((name for name, result in results.items() if result.status == "fail"), "")
    suspect = warning_texts(results)
    check_texts = (result.text for result in results.values() if result.is_finding)
    verdict = Verdict(
        status=Status.SUCCESS,
        evidence=number.evidence,
        window=run.window if run.ran else None,
        metrics=number.metrics,
        findings=(*number.findings, *check_texts),
        checks=tuple(Check(name=name, status=result.status, text=result.text) for name, result in results.items()),
        compute=run.compute,
    )
    if failed:
        ended = _failed(verdict, failed, results[failed], run)
        network = results.get("network")
        by_sockets = [network.text] if network is not None and network.status == "warn" else []  # which may be why
        return replace(ended, findings=(*ended.findings, *by_sockets))
    return replace(verdict, suspect=suspect) if run.other_node is None else _on_another_node(verdict, run.other_node)


def _on_another_node(verdict: Verdict, node: int) -> Verdict:
    """Return the verdict of a node that came to its end, whose training's result another one prints."""
    words = f"this node came to its end and prints no result: that is on node {node}, which decides of the training"
    return replace(verdict, status=Status.SKIPPED, reason=words, evidence="", metrics=(), findings=())


def _failed(verdict: Verdict, check: str, result: CheckResult, run: CheckInput) -> Verdict:
    """Return a failure; findings concern its number, so they are kept where the number is all that failed."""
    evidence = result.evidence
    findings: tuple[str, ...] = ()
    kept: tuple[Metric, ...] = ()
    if check == "error_pattern":
        findings, (_, evidence) = (*verdict.findings, _HARMLESS), matched_error_patterns(run.log)
        kept = _beside_error(run)
    elif result.cause is Cause.BAD_NUMBER and check == "metric":
        findings, kept = verdict.findings, run.number.metrics
    return replace(
        verdict,
        status=Status.FAILURE,
        cause=result.cause,
        reason=_reason(check, result, run),
        evidence=evidence,
        metrics=kept,
        findings=findings,
    )


def _beside_error(run: CheckInput) -> tuple[Metric, ...]:
    """Return the result that stays in the row of a run with an error pattern.

    Of several results none is taken over: nobody can say which of them the error belongs to.
    """
    if run.expected.rule.kind != "performance_line":
        return ()
    return tuple(replace(metric, status=Status.FAILURE, cause=Cause.ERROR_PATTERN) for metric in run.number.metrics)


def _reason(check: str, result: CheckResult, run: CheckInput) -> str:
    """Return why a run failed; a rule that matched a line of its log may tell more."""
    if check == "exit_code" and result.cause is Cause.EXIT_CODE:
        return f"{result.text}{_rule_text(run.failure_log)}"
    if check == "launcher" and run.log.failures.launcher_line:
        return launcher_failure(run.log).reason
    if check == "error_pattern":
        several = run.expected.rule.kind == "multiple_results"
        kept = f"no result of {run.expected.rule.file} is taken over" if several else "the number stays in the row"
        names, _ = matched_error_patterns(run.log)
        return f"the log has the {names}, though the script ended with exit code 0 ({kept})"
    return result.text


def matched_error_patterns(log: LogMonitor) -> tuple[str, str]:
    """Return the error patterns of a log in words and the first lines that have them; "" where it has none."""
    found = log.matched_patterns
    if not found:
        return "", ""
    names = f"error pattern{'s' if len(found) > 1 else ''} {', '.join(map(repr, found))}"
    return names, " | ".join(islice(found.values(), SHOWN))


def _rule_text(log: LogMonitor) -> str:
    hint = f"; {log.rule.hint}" if log.rule and log.rule.hint else ""
    return f" ({log.rule.cause}){hint}" if log.rule else ""


def _expected_of(plan: RunPlan, log: LogMonitor) -> Expected:
    """Return what the plan asks for; how many steps there are to be may be the trainer's own word alone."""
    variant, rule = plan.variant or Variant(model=plan.card.name), plan.result_rule
    if plan.profile:  # the framework's own summary is of the profiled steps, too
        rule = replace(rule, mad=tuple(metric for metric in rule.mad if metric.rule != "summary"))
    return Expected(
        rule=rule,
        warmup_steps=variant.warmup_steps,
        steps=variant.steps if variant.steps is not None else expected_steps(log.config),
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
