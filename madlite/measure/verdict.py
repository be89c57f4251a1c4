"""What a run showed → its verdict: SUCCESS with numbers that can be trusted, or FAILURE with the reason.

The order of the checks is the order in which they explain: who ended the run, its exit code, then its numbers.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from madlite.measure.follow import Follower
from madlite.measure.mad import mad_metrics
from madlite.measure.multiple import Read
from madlite.measure.performance import make_metric
from madlite.measure.window import steady_window
from madlite.types import Cause, Exit, Metric, Quantity, RunPlan, Status, Value, Variant, Window

FEWEST_STEPS = 5  # fewer steady steps than this say little
SHOWN = 3  # lines with error patterns
_HARMLESS = (
    'if that is harmless: add a part of each such line to "log_error_benign_patterns", or set '
    '"log_error_pattern_scan": false, on the card or in the context'
)


class Witnesses(Value, frozen=True):
    """What the engine saw from outside: how the run's action ended, who ended it, and the results file."""

    exit: Exit | None = None
    stopped: Cause = Cause.NONE
    stopped_text: str = ""
    failed_action: str = ""  # the kind of an action before the run that failed
    failed_line: str = ""  # what that action said
    results: Read | None = None
    skipped: bool = False  # the model's step was left out on request


class Verdict(Value, frozen=True):
    """The judgement of one run."""

    status: Status
    cause: Cause = Cause.NONE
    reason: str = ""
    evidence: str = ""
    window: Window | None = None
    metrics: tuple[Metric, ...] = ()
    findings: tuple[str, ...] = ()


def judge(plan: RunPlan, seen: Witnesses, log: Follower) -> Verdict:
    """Return the verdict of a run that was started."""
    if seen.stopped is not Cause.NONE:
        return _failure(seen.stopped, seen.stopped_text)
    if seen.skipped:
        return Verdict(status=Status.SKIPPED, reason="the model was not run (--skip-model-run)")
    if seen.exit is None or seen.failed_action:
        code = _step_end(seen.exit) if seen.exit else ""
        return _failure(Cause.PREPARE, f"the step '{seen.failed_action or 'start'}' failed{code}", seen.failed_line)
    if seen.exit.code != 0:
        return _failure(Cause.EXIT_CODE, _exit_words(seen.exit.code, log), log.telling_line)
    by_kind = {"multiple_results": _multiple, "steps": _steps, "performance_line": _performance}
    return _suspected(by_kind[plan.result_rule.kind](plan, seen, log), plan, log)


def _step_end(ended: Exit) -> str:
    return f" (over its limit, after {ended.duration_s:.0f} s)" if ended.timed_out else f" (exit code {ended.code})"


def _failure(cause: Cause, reason: str, evidence: str = "", **more: object) -> Verdict:
    return Verdict(status=Status.FAILURE, cause=cause, reason=reason, evidence=evidence, **more)  # type: ignore[arg-type]


def _exit_words(code: int, log: Follower) -> str:
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    hint = f"; {log.rule.hint}" if log.rule and log.rule.hint else ""
    cause = f" ({log.rule.cause})" if log.rule else ""
    return f"the workload failed: {how}{cause}{hint}"


def _performance(plan: RunPlan, seen: Witnesses, log: Follower) -> Verdict:
    found = log.scan.result
    if found is None:
        return _failure(Cause.NO_METRIC, "the log has no line 'performance: <number> <metric>'", log.telling_line)
    metric = make_metric(*found)
    if metric.status is Status.FAILURE:
        return _failure(
            Cause.BAD_NUMBER,
            f"'{found[0]} {found[1]}' is no result",
            log.scan.evidence,
            metrics=(metric,),
            findings=log.scan.findings,
        )
    return Verdict(status=Status.SUCCESS, metrics=(metric,), evidence=log.scan.evidence, findings=log.scan.findings)


def _suspected(verdict: Verdict, plan: RunPlan, log: Follower) -> Verdict:
    """Return a success whose log has an error pattern as a failure that keeps its number (madengine 2's rule).

    Of several results none is taken over: nobody can say which of them the error belongs to.
    """
    suspects = log.suspects
    if verdict.status is not Status.SUCCESS or not suspects:
        return verdict
    names = ("error patterns " if len(suspects) > 1 else "error pattern ") + ", ".join(map(repr, suspects))
    several = plan.result_rule.kind == "multiple_results"
    kept = f"no result of {plan.result_rule.file} is taken over" if several else "the number stays in the row"
    return replace(
        verdict,
        status=Status.FAILURE,
        cause=Cause.ERROR_PATTERN,
        reason=f"the log has the {names}, though the script ended with exit code 0 ({kept})",
        evidence=" | ".join(islice(suspects.values(), SHOWN)),
        metrics=() if several else tuple(_failed(metric) for metric in verdict.metrics),
        findings=(*verdict.findings, _HARMLESS),
    )


def _failed(metric: Metric) -> Metric:
    return replace(metric, status=Status.FAILURE, cause=Cause.ERROR_PATTERN)


def _multiple(plan: RunPlan, seen: Witnesses, log: Follower) -> Verdict:
    read = seen.results or Read(problem=f"the run wrote no {plan.result_rule.file}")
    good = sum(metric.status is Status.SUCCESS for metric in read.metrics)
    if read.problem:
        return _failure(Cause.NO_METRIC, read.problem, log.telling_line)
    bad = len(read.metrics) - good
    labels = ", ".join(metric.label for metric in read.metrics if metric.status is not Status.SUCCESS)
    text = f"{plan.result_rule.file} has no number for {labels} ({bad} of {len(read.metrics)}): FAILURE" if bad else ""
    if not good:
        return _failure(Cause.BAD_NUMBER, text, metrics=read.metrics)
    return Verdict(status=Status.SUCCESS, metrics=read.metrics, findings=(text,) if text else ())


def _steps(plan: RunPlan, seen: Witnesses, log: Follower) -> Verdict:
    rule, variant = plan.result_rule, plan.variant or Variant(model=plan.card.name)
    train = [step for step in log.steps if step.phase == "train"]
    last = max((step.n for step in train), default=0)
    window = steady_window(train, rule.headline, variant.warmup_steps)
    if not train:
        return _failure(Cause.NO_METRIC, "the log has no training step", log.telling_line)
    if log.nan_loss:
        return _failure(Cause.NAN_LOSS, "the loss is not finite", log.nan_loss, window=window)
    if rule.loss_expected and not any(Quantity.LOSS in step.values for step in train):
        return _failure(Cause.NAN_LOSS, "no step reports a loss", log.telling_line, window=window)
    if variant.steps is not None and last < variant.steps:
        return _failure(
            Cause.INCOMPLETE, f"step {last} was the last of {variant.steps} asked for", log.telling_line, window=window
        )
    if window is None:
        reason = f"no step is left after {variant.warmup_steps} steps of warm-up (the last was step {last})"
        return _failure(Cause.NO_METRIC, reason)
    return _steady(plan, variant, window, log)


def _steady(plan: RunPlan, variant: Variant, window: Window, log: Follower) -> Verdict:
    columns = result_columns(plan, variant)
    headline = make_metric(f"{window.median:.6g}", plan.result_rule.headline_metric, columns=columns)
    mad, findings = mad_metrics(plan.result_rule.mad, log.steps, log.summary, columns)
    if window.n < FEWEST_STEPS:
        findings = (*findings, f"low samples: only {window.n} steady steps")
    if headline.status is Status.FAILURE:
        reason = f"'{window.median:g} {headline.metric}' is no result"
        return _failure(Cause.BAD_NUMBER, reason, window=window, findings=findings)
    return Verdict(status=Status.SUCCESS, window=window, metrics=(*mad, headline), findings=findings)


def result_columns(plan: RunPlan, variant: Variant) -> dict[str, str]:
    """Return the result columns of a rendered run, as MAD's own result files name them."""
    values = {
        "mode": variant.mode,
        "precision": variant.precision,
        "batch_size": variant.micro_batch,
        "seq_len": variant.seq_len,
        "device": plan.machine.device,
        "num_gpus": plan.place.nodes * plan.place.gpus_per_node,
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}
