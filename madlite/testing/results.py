"""What a row says is what ran and what the reader gives: metrics of the result rule, modes and precisions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import copyfile, copytree

from msgspec.structs import replace

from madlite.backends.step_lines import StepPattern
from madlite.errors import UsageProblem
from madlite.model import Quantity, ResultRule, Step, Summary
from madlite.plan.render import render, run_content
from madlite.run.checks import refuse_without_effect
from madlite.testing.flaws import Defect, answered
from madlite.testing.subject import Made, Subject, expand, is_refused, request_of

_PRECISIONS = ("FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4")
_HINT = "refuse it: a TemplateBackend does where its variants have one, others by a fatal Finding of check(plan)"


def check_results(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield metrics that no reader of the backend ever gives; nothing where nothing shows what it gives.

    `folder` is where the files that a run leaves are copied to, for readers may ask whether they are of their run.
    """
    events = [event for found in subject.events.values() for event in found]
    for number, outputs in enumerate(subject.outputs):
        if outputs.is_dir():
            copy = Path(copytree(outputs, folder / str(number), copy_function=copyfile))
            events += answered(subject.backend.reader(None).finish, copy)
        else:
            yield f"outputs {outputs}", "there is no such folder", 'outputs = ["a folder of a run\'s files"]'
    quantities = {quantity for event in events if isinstance(event, Step) for quantity in event.values}
    if isinstance(pattern := getattr(subject.backend, "step", None), StepPattern):
        quantities |= set(pattern.quantities)
    keys = {key for event in events if isinstance(event, Summary) for key in event.values}
    for rule in {repr(made.spec.result_rule): made.spec.result_rule for made in subject.made}.values():
        if rule.kind == "steps" and quantities:
            yield from _missing(rule, quantities, keys, in_logs=bool(subject.logs))


def _missing(rule: ResultRule, quantities: set[Quantity], keys: set[str], *, in_logs: bool) -> Iterator[Defect]:
    hint = (
        "add what has it to `logs` (or `outputs`: a run's files), or let the reader give it, or drop it from the rule"
    )
    if rule.headline not in quantities:
        yield f"metric {rule.headline_metric}", f"no step of the logs has the headline, {rule.headline.label}", hint
    if rule.loss_expected and Quantity.LOSS not in quantities:
        what = "a loss is expected of every run, and no step of the logs has one"
        yield "result rule", what, "ResultRule(loss_expected=False)"
    for metric in rule.mad if in_logs else ():
        if metric.rule == "summary" and metric.key not in keys:
            yield f"metric {metric.metric}", f"no log has the figure {metric.key!r}", hint
        elif metric.quantity is not None and metric.quantity not in quantities:
            yield f"metric {metric.metric}", f"no step of the logs has {metric.quantity.label}", hint


def check_effects(subject: Subject) -> Iterator[Defect]:
    """Yield words of mode and precision that a row would have, and no run: unknown ones, and two of one run."""
    for made in subject.spread(subject.examples):
        if made.plan.variant is None:
            continue
        for key, word in (("mode", "no_such_mode"), ("precision", "NO_SUCH_PRECISION")):
            if _runs_of(subject, made, key, word):
                yield str(made.case), f"it takes {key} '{word}', which the row would have", _HINT
        seen: list[tuple[str, tuple[object, ...]]] = []
        for word in _PRECISIONS:
            for run in _runs_of(subject, made, "precision", word):
                content = run_content(run.plan, run.files)
                if like := next((other for other, known in seen if other != word and known == content), ""):
                    yield str(made.case), f"precision {word} runs what precision {like} does", _HINT
                seen.append((word, content))


def _runs_of(subject: Subject, made: Made, key: str, word: str) -> list[Made]:
    """Return the runs of a word that neither a check of the backend nor madlite itself refuses."""
    try:
        runs = subject.runs(replace(made.case, asked=(*made.case.asked, (key, word))))
    except UsageProblem:
        return []
    return [run for run in runs if not _is_refused(subject, run)]


def _is_refused(subject: Subject, made: Made) -> bool:
    if is_refused(subject.backend, made.plan):
        return True
    again, files = partial(expand, subject.backend, made.case), partial(render, search=subject.search)
    try:
        refuse_without_effect(request_of(made.case), made.spec, made.plan, made.files, again, files)
    except UsageProblem:
        return True
    return False
