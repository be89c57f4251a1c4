"""What a backend declares: its members and what they answer, names, pages and failure rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from madlite.backends.log_formats import flaw_of
from madlite.backends.recipe_book import loaded_backend
from madlite.catalog.sources import template_root
from madlite.model import Asset, Backend, Card, Event, FailureRule, Finding, Quantity, Reader, ResultRule, RunSpec
from madlite.plan.fields import ALIASES, PLAN_KEYS, VARIANT_KEYS, canonical_key
from madlite.testing.flaws import Defect, answered, attempt
from madlite.testing.subject import NAME_IT, WORKSPACE, Made, Subject

_EVENTS = get_args(Event)
_ANSWERS: dict[str, type] = {"expand": RunSpec, "check": Finding, "assets": Asset}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./()% -]*(?<! )")


def is_event(value: object) -> bool:
    """Return whether a value is what a reader may answer with."""
    return isinstance(value, _EVENTS)


def check_members(subject: Subject) -> Iterator[Defect]:
    """Yield members that are missing, take something else, or answer with something else."""
    missing = [*signatures(subject.backend, Backend, f"backend {subject.name}")]
    yield from missing
    if missing:
        return
    yield from _claims(subject)
    reader, other = subject.backend.reader(None), subject.backend.reader(None)
    if reader is other:
        yield "reader(None)", "it gave the same reader twice", "return a fresh one for each run"
    yield from signatures(reader, Reader, f"reader {type(reader).__name__}")
    yield from _answers(subject)


def _answers(subject: Subject) -> Iterator[Defect]:
    """Yield what members answered when the plans were made, where that is no list of what it should be."""
    for member, case, answer, error in subject.answers:
        where, kind = f"{member} of {case}", _ANSWERS[member]
        if error:
            yield where, f"it raised {error}", f"return what is wrong as {kind.__name__}"
        elif member != "expand":
            odd = (item for item in answer if not isinstance(item, kind))
            yield from ((where, f"it answered {item!r}", f"return madlite.{kind.__name__}") for item in odd)
        elif not (isinstance(answer, Sequence) and answer and all(isinstance(item, kind) for item in answer)):
            what = f"it answered {answer!r}"[:200]
            yield where, what, "return a list of madlite.RunSpec, or raise madlite.UsageProblem"


def signatures(thing: object, protocol: type, where: str) -> Iterator[Defect]:
    """Yield which methods of a protocol are missing, or do not take so many arguments, which the words name."""
    for member, method in vars(protocol).items():
        if member.startswith("_") or not inspect.isfunction(method):
            continue
        words = list(inspect.signature(method).parameters)[1:]
        wanted = f"def {member}(self, {', '.join(words)})"
        found = getattr(thing, member, None)
        if not callable(found):
            yield where, f"it has no method {member}", wanted
        elif inspect.iscoroutinefunction(found):
            yield where, f"{member} is a coroutine", f"{wanted}, not async"
        elif not _takes(found, len(words)):
            yield where, f"{member} does not take {', '.join(words)}", wanted


def _takes(found: Any, count: int) -> bool:
    try:
        inspect.signature(found).bind(*range(count))
    except TypeError:
        return False
    return True


def _claims(subject: Subject) -> Iterator[Defect]:
    for name in (subject.name, "another"):
        card = Card(name="a card of the kit", root=WORKSPACE, source="the kit", backend=name)
        where = f"claim of a card with backend {name!r}"
        claim, error = attempt(subject.backend.claim, card, WORKSPACE)
        if error:
            yield where, f"it raised {error}", "answer 0 where the card is not yours"
        elif type(claim) is not int or claim < 0:
            yield where, f"it answered {claim!r}", "a whole number: 0 not at all, 100 where the card names it"
        elif claim and name == "another":
            yield where, f"it answered {claim}", "a card that names another backend is that one's"


def check_finish(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what a reader does wrong at the end of a run that left nothing; `folder` is empty."""
    for plan in (None, *(made.plan for made in subject.spread(2))):
        for outputs, words in ((folder, "an empty folder"), (folder / "none", "a folder that is not there")):
            events, error = attempt(lambda: answered(subject.backend.reader(plan).finish, outputs))  # noqa: B023
            if error:
                yield f"finish({words})", f"it raised {error}", "return nothing where no file is"
            elif odd := [event for event in events or () if not is_event(event)]:
                yield f"finish({words})", f"it answered {odd[0]!r}", "return events of madlite"


def check_names(subject: Subject) -> Iterator[Defect]:
    """Yield what is wrong with names."""
    yield from _backend(subject)
    for made in subject.made:
        yield from (*_settings(made), *_rule(made.spec.result_rule), *_templates(subject, made))


def _backend(subject: Subject) -> Iterator[Defect]:
    name = getattr(subject.backend, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield "backend", f"its name is {name!r}", "small letters, digits and _, as in --backend NAME"
        return
    if not subject.installed:
        return
    if name in subject.others:
        other = type(subject.others[name])
        what = f"{other.__module__}.{other.__qualname__} is installed as a backend of this name"
        yield f"backend {name}", what, "choose a name that no other backend has: madlite doctor --plugins lists them"
    elif name not in subject.plugins.backends():
        hint = f'[project.entry-points.madlite] {name} = "{type(subject.backend).__module__}", then pip install it'
        yield f"backend {name}", "no entry point of group madlite brings it", hint
    plugin = next((plugin for brought, plugin in subject.plugins.backends().values() if brought.name == name), None)
    for problem in subject.plugins.problems:
        if plugin and problem.where.split()[:2] == ["plugin", plugin.name]:
            yield problem.where, problem.what, "madlite doctor --plugins --hooks"


def _settings(made: Made) -> Iterator[Defect]:
    for key, value in made.spec.settings.items():
        where = f"setting {key}"
        if not _NAME.fullmatch(key) or canonical_key(key) != key:
            known = f", which stands for {ALIASES[key]}" if key in ALIASES else ""
            hint = "small letters, digits and _, and no other name of a size"
            yield where, f"--set {key}= would not reach it{known}", hint
        elif key in VARIANT_KEYS or key in PLAN_KEYS:
            whose = "the variant" if key in VARIANT_KEYS else "every plan"
            yield where, f"it hides the {key} of {whose}", "leave it to that, or choose another name"
        if not isinstance(value, (str, int, float, bool)):
            what = f"its value {value!r} is neither text nor number nor truth value"
            yield where, what, "write a list as text with commas"


def _rule(rule: ResultRule) -> Iterator[Defect]:
    if rule.kind != "steps":
        return
    if not isinstance(rule.headline, Quantity):
        yield "result rule", f"headline {rule.headline!r} is no quantity", "madlite.Quantity lists them"
    names = [rule.headline_metric, *(metric.metric for metric in rule.mad)]
    for name in names:
        if not _METRIC.fullmatch(name):
            hint = "letters, digits, _ . / - and what a cell of perf.csv takes without quotes"
            yield "result rule", f"metric {name!r} is no name", hint
    for name in _twice(names):
        yield "result rule", f"two rows of a run would be called {name}", "a metric of its own for each"
    for metric in rule.mad:
        if (metric.rule == "summary") != bool(metric.key) or (metric.rule != "summary" and metric.quantity is None):
            what = f"metric {metric.metric} has rule {metric.rule}, quantity {metric.quantity} and key {metric.key!r}"
            yield "result rule", what, "a summary names a key, every other rule a quantity"


def _templates(subject: Subject, made: Made) -> Iterator[Defect]:
    files = made.spec.templates
    if not made.spec.actions and not any(file.path == "run.sh" for file in files):
        hint = 'FileTemplate(path="run.sh", template=…), or actions of the RunSpec'
        yield f"backend {subject.name}", "a RunSpec has nothing to run", hint
    for path in _twice(file.path for file in files):
        yield f"file {path}", "two templates are written to it", "one template for each file"
    for file in files:
        if _leaves(file.path):
            what = "it would be written outside of the run's folder"
            yield f"file {file.path}", what, "a path without / at its begin and .."
        ours = not _leaves(file.template) and (template_root(None) / file.template).is_file()
        if not file.template.startswith(f"{subject.name}/") and not ours:
            hint = f"put it into templates/{subject.name}/, where no other of that name is found first"
            yield f"template {file.template}", f"it is not below the folder {subject.name}", hint


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in PurePosixPath(path).parts


def _twice(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    return sorted({path for path in listed if listed.count(path) > 1})


def check_failures(subject: Subject) -> Iterator[Defect]:
    """Yield rules that explain nothing; the plugin is the one that brings the backend, where it is installed."""
    backends = subject.plugins.collect("madlite_backends")
    brought = {plugin.name for plugin, backend in backends if type(loaded_backend(backend)) is type(subject.backend)}
    for plugin, rule in subject.plugins.collect("madlite_failure_rules"):
        if plugin.name not in brought:
            continue
        what = flaw_of(rule) if isinstance(rule, FailureRule) else "it is no FailureRule"
        if what:
            yield f"rule {getattr(rule, 'pattern', rule)!r}", what, "docs/failures.md has the keys of a rule"


def check_docs(subject: Subject) -> Iterator[Defect]:
    """Yield what the pages do not name."""
    if not subject.docs:
        hint = 'docs = ["docs/backend.md"]: what can be set, which modes and metrics there are'
        yield f"backend {subject.name}", "there is no page about it", hint
        return
    for path in subject.docs:
        if not path.is_file():
            yield f"page {path}", "it is not there", NAME_IT
    page = "\n".join(path.read_text(encoding="utf-8") for path in subject.docs if path.is_file())
    pages = ", ".join(path.name for path in subject.docs)
    specs = [made.spec for made in subject.made]
    rules = [spec.result_rule for spec in specs if spec.result_rule.kind == "steps"]
    names = {("setting", key) for spec in specs for key in spec.settings}
    names |= {("mode", spec.variant.mode) for spec in specs if spec.variant and spec.variant.mode}
    names |= {("metric", name) for rule in rules for name in (rule.headline_metric, *(m.metric for m in rule.mad))}
    for kind, name in sorted(names):
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page):
            yield f"{kind} {name}", f"{pages} does not name it", f"write `{name}` and what it means into {pages}"
