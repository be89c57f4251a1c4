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
from madlite.measure.steps import Steps
from madlite.measure.window import steady_window
from madlite.types import Cause, Exit, Metric, Quantity, ResultRule, RunPlan, Status, Value, Variant, Window

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


class Asked(Value, frozen=True):
    """What a training was to do, and how its number is taken; `steps` None where nobody knows how many."""

    rule: ResultRule
    warmup_steps: int = Variant(model="").warmup_steps
    steps: int | None = None
    columns: dict[str, str] = {}  # of its result rows


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
    if plan.result_rule.kind == "steps":
        return judge_steps(_asked(plan), log)
    if plan.result_rule.kind == "multiple_results":
        return _suspected(_multiple(plan.result_rule, seen, log), log, plan.result_rule.file)
    return _suspected(judge_line(log), log)


def judge_steps(asked: Asked, log: Follower) -> Verdict:
    """Return the verdict of a log by its training steps."""
    steps, rule = log.steps, asked.rule
    if (reach := steps.reach()) is None:
        return _failure(Cause.NO_METRIC, "the log has no training step", log.telling_line)
    last = _reached(asked, log, reach[1])
    window = steady_window(steps, rule.headline, asked.warmup_steps)
    if log.nan_loss:
        return _failure(Cause.NAN_LOSS, "the loss is not finite", log.nan_loss, window=window)
    if rule.loss_expected and Quantity.LOSS not in steps.quantities():
        return _failure(Cause.NAN_LOSS, "no step reports a loss", log.telling_line, window=window)
    if asked.steps is not None and last < asked.steps:
        return _failure(
            Cause.INCOMPLETE, f"step {last} was the last of {asked.steps} asked for", log.telling_line, window=window
        )
    if log.launcher_line:
        return launcher_failure(log, window)
    if window is None:
        return _failure(Cause.NO_METRIC, _no_window(asked, steps, last))
    return _steady(asked, window, log)


def _reached(asked: Asked, log: Follower, highest: int) -> int:
    """Return the last step of the training that the log ends with; a number above those asked for is a garbled one."""
    last = highest if log.restarted_at is None else log.last_step
    if asked.steps is None or last <= asked.steps:
        return last
    return max((n for n in log.steps.numbers() if n <= asked.steps), default=last)


def launcher_failure(log: Follower, window: Window | None = None) -> Verdict:
    """Return the verdict of a log whose launcher says that it failed, whatever exit code came out."""
    words = f"the training's launcher says that it failed{_rule_words(log)}"
    return _failure(Cause.EXIT_CODE, words, log.fatal_line, window=window)


def judge_line(log: Follower) -> Verdict:
    """Return the verdict of a log by its line `performance: <number> <metric>`, whatever else it says."""
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


def _asked(plan: RunPlan) -> Asked:
    variant = plan.variant or Variant(model=plan.card.name)
    return Asked(
        rule=plan.result_rule,
        warmup_steps=variant.warmup_steps,
        steps=variant.steps,
        columns=result_columns(plan, variant),
    )


def _step_end(ended: Exit) -> str:
    return f" (over its limit, after {ended.duration_s:.0f} s)" if ended.timed_out else f" (exit code {ended.code})"


def _failure(cause: Cause, reason: str, evidence: str = "", **more: object) -> Verdict:
    return Verdict(status=Status.FAILURE, cause=cause, reason=reason, evidence=evidence, **more)  # type: ignore[arg-type]


def _exit_words(code: int, log: Follower) -> str:
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"the workload failed: {how}{_rule_words(log)}"


def _rule_words(log: Follower) -> str:
    hint = f"; {log.rule.hint}" if log.rule and log.rule.hint else ""
    return f" ({log.rule.cause}){hint}" if log.rule else ""


def _suspected(verdict: Verdict, log: Follower, several: str = "") -> Verdict:
    """Return a success whose log has an error pattern as a failure that keeps its number (madengine 2's rule).

    Of several results, in the file `several`, none is taken over: nobody can say which of them the error belongs to.
    """
    names, lines = suspicion(log)
    if verdict.status is not Status.SUCCESS or not names:
        return verdict
    kept = f"no result of {several} is taken over" if several else "the number stays in the row"
    return replace(
        verdict,
        status=Status.FAILURE,
        cause=Cause.ERROR_PATTERN,
        reason=f"the log has the {names}, though the script ended with exit code 0 ({kept})",
        evidence=lines,
        metrics=() if several else tuple(_failed(metric) for metric in verdict.metrics),
        findings=(*verdict.findings, _HARMLESS),
    )


def suspicion(log: Follower) -> tuple[str, str]:
    """Return the error patterns of a log in words and the first lines that have them; "" where it has none."""
    suspects = log.suspects
    names = ("error patterns " if len(suspects) > 1 else "error pattern ") + ", ".join(map(repr, suspects))
    return (names, " | ".join(islice(suspects.values(), SHOWN))) if suspects else ("", "")


def _failed(metric: Metric) -> Metric:
    return replace(metric, status=Status.FAILURE, cause=Cause.ERROR_PATTERN)


def _multiple(rule: ResultRule, seen: Witnesses, log: Follower) -> Verdict:
    read = seen.results or Read(problem=f"the run wrote no {rule.file}")
    good = sum(metric.status is Status.SUCCESS for metric in read.metrics)
    if read.problem:
        return _failure(Cause.NO_METRIC, read.problem, log.telling_line)
    bad = len(read.metrics) - good
    labels = ", ".join(metric.label for metric in read.metrics if metric.status is not Status.SUCCESS)
    text = f"{rule.file} has no number for {labels} ({bad} of {len(read.metrics)}): FAILURE" if bad else ""
    if not good:
        return _failure(Cause.BAD_NUMBER, text, metrics=read.metrics)
    return Verdict(status=Status.SUCCESS, metrics=read.metrics, findings=(text,) if text else ())


def _no_window(asked: Asked, steps: Steps, last: int) -> str:
    if asked.rule.headline not in steps.quantities():
        return f"no step reports {asked.rule.headline.value}"
    return f"no step is left after {asked.warmup_steps} steps of warm-up (the last was step {last})"


def _steady(asked: Asked, window: Window, log: Follower) -> Verdict:
    headline = make_metric(f"{window.median:.6g}", asked.rule.headline_metric, columns=asked.columns)
    mad, findings = mad_metrics(asked.rule.mad, log.steps, log.summary, asked.columns)
    if log.torn:
        findings = (*findings, f"the last line was cut off: its {', '.join(log.torn)} is left out")
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
        **{name: plan.settings.get(name) for name in plan.result_rule.columns},
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}
