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
from madlite.measure.checks.config import config, exit_text
from madlite.measure.checks.figures import consistency
from madlite.measure.checks.table import CheckInput, CheckResult, Expected, Observation
from madlite.measure.compute import compute_findings, count_compute
from madlite.measure.monitor import LogMonitor, expected_steps
from madlite.measure.number import last_step, number_from_file, number_from_line, number_from_steps
from madlite.measure.window import steady_window
from madlite.model import Cause, Check, Compute, Metric, ResultRule, RunPlan, Status, Value, Variant, Window

__all__ = ["Expected", "Observation", "Verdict", "expected_steps"]

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
    place.network,
    place.foreign_processes,
    figures.compute,
    figures.clock,
    consistency,
)


def run_all_checks(run: CheckInput) -> tuple[CheckResult, ...]:
    """Return the result of each check."""
    results = tuple(check(run) for check in (CHECKS if run.ran else _OUTSIDE))
    return results if first_failed(results) is None else tuple(place.for_failed_run(result, run) for result in results)


def run_log_checks(run: CheckInput) -> tuple[CheckResult, ...]:
    """Return the results of the checks that need a training's log alone, whatever ran it and however it ended."""
    checks = (
        losses.loss,
        ending.end_of_steps,
        figures.metric,
        figures.summary,
        losses.loss_trend,
        place.memory,
        consistency,
    )
    return tuple(check(run) for check in checks)


def first_failed(results: Iterable[CheckResult]) -> CheckResult | None:
    """Return the failed check that decides the verdict; None where none makes the run a failure."""
    return next((result for result in results if result.row.status == "fail"), None)


def warning_texts(results: Iterable[CheckResult]) -> tuple[str, ...]:
    """Return why a success is suspect, a sentence each."""
    return tuple(result.text for result in results if result.row.status == "warn")


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
    if observed.skipped and observed.stopped is Cause.NONE:
        return Verdict(status=Status.SKIPPED, reason="the model was not run (--skip-model-run)")
    expected = _expected_of(plan, log)
    if expected.rule.kind == "steps":
        return judge_steps(expected, log, plan, observed)
    if expected.rule.kind == "multiple_results":
        number = number_from_file(expected.rule, observed.results, log)
    else:
        number = number_from_line(log)
    return _verdict(CheckInput(expected=expected, log=log, number=number, plan=plan, observed=observed))


def judge_steps(
    expected: Expected, log: LogMonitor, plan: RunPlan | None = None, observed: Observation | None = None
) -> Verdict:
    """Return the verdict of a log by its training steps."""
    window = steady_window(log.steps, expected.rule.headline, expected.warmup_steps, last_step(expected, log))
    number = number_from_steps(expected, log, window)
    compute = count_compute(plan, log.steps, window) if plan is not None and window is not None else None
    return _verdict(
        CheckInput(
            expected=expected, log=log, number=number, plan=plan, observed=observed, window=window, compute=compute
        )
    )


def judge_line(log: LogMonitor) -> Verdict:
    """Return the verdict of a log by its line `performance: <number> <metric>`.

    What else the log reports makes the number suspect at most: with several trainings it is
    unknown to which of them the number belongs.
    """
    number = number_from_line(log)
    run = CheckInput(
        expected=Expected(rule=ResultRule(kind="performance_line", loss_expected=False)), log=log, number=number
    )
    status = Status.SUCCESS if number.cause is Cause.NONE else Status.FAILURE
    return Verdict(
        status=status,
        cause=number.cause,
        reason=number.reason,
        evidence=number.evidence,
        metrics=number.metrics,
        findings=number.findings,
        suspect=warning_texts(run_log_checks(run)) if status is Status.SUCCESS else (),
    )


def launcher_failure(log: LogMonitor) -> Verdict:
    """Return the verdict of a log whose launcher reports that it failed, whatever exit code came out."""
    words = f"the training's launcher reports a failure{_rule_text(log)}"
    return Verdict(status=Status.FAILURE, cause=Cause.EXIT_CODE, reason=words, evidence=log.failures.fatal_line)


def _verdict(run: CheckInput) -> Verdict:
    """Run all checks, and return what follows from their results."""
    results = run_all_checks(run)
    number, failed = run.number, first_failed(results)
    suspect = warning_texts(results)
    compute_texts = compute_findings(run.compute) if run.compute else ()
    clock_texts = tuple(result.text for result in results if result.row is table.CLOCK_DIFFERS)
    verdict = Verdict(
        status=Status.SUCCESS,
        evidence=number.evidence,
        window=run.window if run.ran else None,
        metrics=number.metrics,
        findings=(*number.findings, *(text for text in (*compute_texts, *clock_texts) if text not in suspect)),
        checks=tuple(result.check for result in results),
        compute=run.compute,
    )
    if failed is not None:
        by_sockets = tuple(result.text for result in results if result.row is table.NETWORK_SOCKETS)  # which may be why
        ended = _failed(verdict, failed, run)
        return replace(ended, findings=(*ended.findings, *by_sockets))
    return replace(verdict, suspect=suspect) if run.other_node is None else _on_another_node(verdict, run.other_node)


def _on_another_node(verdict: Verdict, node: int) -> Verdict:
    """Return the verdict of a node that came to its end, whose training's result another one prints."""
    words = f"this node came to its end and prints no result: that is on node {node}, which decides of the training"
    return replace(verdict, status=Status.SKIPPED, reason=words, evidence="", metrics=(), findings=())


def _failed(verdict: Verdict, failed: CheckResult, run: CheckInput) -> Verdict:
    """Return a failure; findings concern its number, so they are kept where the number is all that failed."""
    kept, evidence = _kept(failed, run), failed.evidence
    findings = verdict.findings if failed.row in (table.INVALID_NUMBER, table.PATTERN) else ()
    if failed.row is table.PATTERN:
        findings, (_, evidence) = (*findings, _HARMLESS), matched_error_patterns(run.log)
    return replace(
        verdict,
        status=Status.FAILURE,
        cause=failed.cause,
        reason=_reason(failed, run),
        evidence=evidence,
        metrics=kept,
        findings=findings,
    )


def _kept(failed: CheckResult, run: CheckInput) -> tuple[Metric, ...]:
    """Return the results that a failure's rows have: those that are none themselves, or one beside an error pattern.

    Of several results beside an error none is taken over: nobody can say which of them the error belongs to.
    """
    metrics = run.number.metrics
    if failed.row is table.INVALID_NUMBER:
        return metrics
    if failed.row is table.PATTERN and run.expected.rule.kind == "performance_line":
        return tuple(replace(metric, status=Status.FAILURE, cause=failed.cause) for metric in metrics)
    return ()


def _reason(failed: CheckResult, run: CheckInput) -> str:
    """Return why a run failed; a rule that matched a line of its log may tell more."""
    if failed.row is table.EXIT_NONZERO and run.observed and run.observed.exit:
        return f"the workload failed: {exit_text(run.observed)}{_rule_text(run.failure_log)}"
    if failed.row is table.LAUNCHER_FAILED:
        return launcher_failure(run.log).reason
    if failed.row is table.PATTERN:
        several = run.expected.rule.kind == "multiple_results"
        kept = f"no result of {run.expected.rule.file} is taken over" if several else "the number stays in the row"
        return (
            f"the log has the {matched_error_patterns(run.log)[0]}, though the script ended with exit code 0 ({kept})"
        )
    return failed.text


def matched_error_patterns(log: LogMonitor) -> tuple[str, str]:
    """Return the error patterns of a log in words and the first lines that have them; "" where it has none."""
    matched_patterns = log.matched_patterns
    names = ("error patterns " if len(matched_patterns) > 1 else "error pattern ") + ", ".join(
        map(repr, matched_patterns)
    )
    return (names, " | ".join(islice(matched_patterns.values(), SHOWN))) if matched_patterns else ("", "")


def _rule_text(log: LogMonitor) -> str:
    hint = f"; {log.rule.hint}" if log.rule and log.rule.hint else ""
    return f" ({log.rule.cause}){hint}" if log.rule else ""


def _expected_of(plan: RunPlan, log: LogMonitor) -> Expected:
    """Return what the plan asks for; how many steps there are to be may be the trainer's own word alone."""
    variant = plan.variant or Variant(model=plan.card.name)
    return Expected(
        rule=plan.result_rule,
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
