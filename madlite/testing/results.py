"""The result rule names numbers that the backend's reader gives: of logs, of files, or by its step pattern."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile, copytree

from madlite.backends.base import StepPattern
from madlite.model import Quantity, ResultRule, Step, Summary
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered
from madlite.testing.subject import Subject

CHECK = "results"


def check_results(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield metrics that no reader of the backend ever gives; nothing where nothing shows what it gives.

    `folder` is where the files that a run leaves are copied to, for readers may ask whether they are of their run.
    """
    for outputs in (path for path in subject.outputs if not path.is_dir()):
        mend = 'outputs = ["a folder of a run\'s files"]'
        yield Flaw(check=CHECK, where=f"outputs {outputs}", what="there is no such folder", mend=mend)
    quantities, keys = _given(subject, folder)
    for rule in {repr(made.draft.result_rule): made.draft.result_rule for made in subject.made}.values():
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
    mend = (
        "add what has it to `logs` (or `outputs`: a run's files), or let the reader give it, or drop it from the rule"
    )
    if rule.headline not in quantities:
        what = f"no step of the logs has the headline, {rule.headline.label}"
        yield Flaw(check=CHECK, where=f"metric {rule.headline_metric}", what=what, mend=mend)
    if rule.loss_expected and Quantity.LOSS not in quantities:
        what = "a loss is expected of every run, and no step of the logs has one"
        yield Flaw(check=CHECK, where="result rule", what=what, mend="ResultRule(loss_expected=False)")
    for one in rule.mad if in_logs else ():
        if one.rule == "summary" and one.key not in keys:
            what = f"no log has the figure {one.key!r}"
            yield Flaw(check=CHECK, where=f"metric {one.metric}", what=what, mend=mend)
        elif one.quantity is not None and one.quantity not in quantities:
            what = f"no step of the logs has {one.quantity.label}"
            yield Flaw(check=CHECK, where=f"metric {one.metric}", what=what, mend=mend)
