"""What a row says is what ran and what the reader gives: metrics of the result rule, modes and precisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree

from msgspec.structs import replace

from madlite.backends.step_lines import StepPattern
from madlite.errors import UsageProblem
from madlite.model import Quantity, ResultRule, Step, Summary
from madlite.plan.render import render, run_content
from madlite.run.checks import refuse_without_effect
from madlite.testing.flaws import Flaw, answered
from madlite.testing.plans import Made, expand, expand_request, finish, options_of, request_of
from madlite.testing.subject import Subject

PRECISIONS = ("FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4")
_STRANGE = {"mode": "no_such_mode", "precision": "NO_SUCH_PRECISION"}
_HINT = "refuse it: a TemplateBackend does where its variants have one, others by a fatal Finding of check(plan)"


def check_results(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield metrics that no reader of the backend ever gives; nothing where nothing shows what it gives.

    `folder` is where the files that a run leaves are copied to, for readers may ask whether they are of their run.
    """
    for outputs in (path for path in subject.outputs if not path.is_dir()):
        hint = 'outputs = ["a folder of a run\'s files"]'
        yield Flaw("results", f"outputs {outputs}", "there is no such folder", hint)
    quantities, keys = _given(subject, folder)
    for rule in {repr(made.spec.result_rule): made.spec.result_rule for made in subject.made}.values():
        if rule.kind == "steps" and quantities:
            yield from _missing(rule, quantities, keys, in_logs=bool(subject.logs))


def _given(subject: Subject, folder: Path) -> tuple[set[Quantity], set[str]]:
    """Return what steps and summaries of logs and files hold, and what the step pattern of a TemplateBackend reads."""
    events = [event for told in subject.told.values() for event in told]
    for number, outputs in enumerate(path for path in subject.outputs if path.is_dir()):
        reader = subject.backend.reader(None)
        copy = Path(copytree(outputs, folder / str(number), copy_function=copyfile))
        events += answered(reader.finish, copy)
    quantities = {quantity for event in events if isinstance(event, Step) for quantity in event.values}
    pattern = getattr(subject.backend, "step", None)
    if isinstance(pattern, StepPattern):
        quantities |= set(pattern.quantities)
    return quantities, {key for event in events if isinstance(event, Summary) for key in event.values}


def _missing(rule: ResultRule, quantities: set[Quantity], keys: set[str], *, in_logs: bool) -> Iterator[Flaw]:
    hint = (
        "add what has it to `logs` (or `outputs`: a run's files), or let the reader give it, or drop it from the rule"
    )
    if rule.headline not in quantities:
        what = f"no step of the logs has the headline, {rule.headline.label}"
        yield Flaw("results", f"metric {rule.headline_metric}", what, hint)
    if rule.loss_expected and Quantity.LOSS not in quantities:
        what = "a loss is expected of every run, and no step of the logs has one"
        yield Flaw("results", "result rule", what, "ResultRule(loss_expected=False)")
    for metric in rule.mad if in_logs else ():
        if metric.rule == "summary" and metric.key not in keys:
            yield Flaw("results", f"metric {metric.metric}", f"no log has the figure {metric.key!r}", hint)
        elif metric.quantity is not None and metric.quantity not in quantities:
            yield Flaw("results", f"metric {metric.metric}", f"no step of the logs has {metric.quantity.label}", hint)


def check_effects(subject: Subject) -> Iterator[Flaw]:
    """Yield words of mode and precision that a row would have, and no run."""
    for made in subject.spread(subject.examples):
        if made.plan.variant is None:
            continue
        for key, word in _STRANGE.items():
            if _outcomes(subject, made, key, word):
                yield Flaw("effects", str(made.case), f"it takes {key} '{word}', which the row would have", _HINT)
        yield from _same_runs(subject, made)


def _same_runs(subject: Subject, made: Made) -> Iterator[Flaw]:
    """Yield precisions that are distinguished by their rows alone."""
    seen: list[tuple[str, tuple[object, ...]]] = []
    for word in PRECISIONS:
        for outcome in _outcomes(subject, made, "precision", word):
            content = run_content(outcome.plan, outcome.files)
            like = next((other for other, known in seen if other != word and known == content), "")
            if like:
                yield Flaw("effects", str(made.case), f"precision {word} runs what precision {like} does", _HINT)
            seen.append((word, content))


def _outcomes(subject: Subject, made: Made, key: str, word: str) -> list[Made]:
    """Return the runs of a word, of which nobody refuses one."""
    case = replace(made.case, asked=(*made.case.asked, (key, word)))
    options = options_of(case)
    try:
        specs = expand(subject.backend, case, options)
        outcomes = [finish(subject.backend, case, spec, subject.search, options) for spec in specs]
        return [outcome for outcome in outcomes if not _is_refused(subject, outcome)]
    except UsageProblem:
        return []


def _is_refused(subject: Subject, made: Made) -> bool:
    """Return whether a check of the backend, or madlite itself, refuses a run."""
    if any(finding.fatal for finding in answered(subject.backend.check, made.plan)):
        return True
    try:
        refuse_without_effect(
            request_of(made.case, options_of(made.case)),
            made.spec,
            made.plan,
            made.files,
            lambda request: expand_request(subject.backend, request, made.case.machine),
            lambda plan: render(plan, subject.search),
        )
    except UsageProblem:
        return True
    return False
