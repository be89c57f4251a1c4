"""What a backend declares: its members and what they answer, names, pages and failure rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from madlite.backends.lazy import loaded_backend
from madlite.bundled import template_root
from madlite.errors import UsageProblem
from madlite.failure_rules import flaw_of
from madlite.model import (
    Asset,
    Backend,
    Card,
    Event,
    FailureRule,
    FileTemplate,
    Finding,
    Quantity,
    Reader,
    ResultRule,
    RunSpec,
)
from madlite.plan.fields import ALIASES, PLAN_KEYS, VARIANT_KEYS, canonical_key
from madlite.testing.flaws import Flaw, answered
from madlite.testing.plans import WORKSPACE, Made, expand, options_of
from madlite.testing.subject import NAME_IT, Subject, raised

_EVENTS = get_args(Event)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./()% -]*(?<! )")


def is_event(value: object) -> bool:
    """Return whether a value is what a reader may answer with."""
    return isinstance(value, _EVENTS)


def check_members(subject: Subject) -> Iterator[Flaw]:
    """Yield members that are missing, take something else, or answer with something else."""
    missing = [*signatures(subject.backend, Backend, f"backend {subject.name}")]
    yield from missing
    if missing:
        return
    yield from _claims(subject)
    yield from _reader(subject)
    yield from _answers(subject)


def signatures(thing: object, protocol: type, where: str) -> Iterator[Flaw]:
    """Yield which methods of a protocol are missing, or do not take so many arguments, which the words name."""
    for member, method in vars(protocol).items():
        if member.startswith("_") or not inspect.isfunction(method):
            continue
        words = list(inspect.signature(method).parameters)[1:]
        wanted = f"{member}(self, {', '.join(words)})"
        found = getattr(thing, member, None)
        if not callable(found):
            yield _flaw(where, f"it has no method {member}", f"def {wanted}")
        elif inspect.iscoroutinefunction(found):
            yield _flaw(where, f"{member} is a coroutine", f"def {wanted}, not async")
        elif not _takes(found, len(words)):
            yield _flaw(where, f"{member} does not take {', '.join(words)}", f"def {wanted}")


def _takes(found: Any, count: int) -> bool:
    try:
        inspect.signature(found).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin that shows no signature
        return True
    return True


def _claims(subject: Subject) -> Iterator[Flaw]:
    own = Card(name="a card of the kit", root=WORKSPACE, source="the kit", backend=subject.name)
    other = Card(name="another card of the kit", root=WORKSPACE, source="the kit", backend="another")
    for card, wanted in ((own, True), (other, False)):
        where = f"claim of a card with backend {card.backend!r}"
        try:
            claim = subject.backend.claim(card, WORKSPACE)
        except Exception as error:  # noqa: BLE001 - the border to the backend under test
            yield _flaw(where, f"it raised {raised(error)}", "answer 0 where the card is not yours")
            continue
        if isinstance(claim, bool) or not isinstance(claim, int) or claim < 0:
            yield _flaw(where, f"it answered {claim!r}", "a whole number: 0 not at all, 100 where the card names it")
        elif claim and not wanted:
            yield _flaw(where, f"it answered {claim}", "a card that names another backend is that one's")


def _reader(subject: Subject) -> Iterator[Flaw]:
    reader, other = subject.backend.reader(None), subject.backend.reader(None)
    if reader is other:
        yield _flaw("reader(None)", "it gave the same reader twice", "return a fresh one for each run")
    yield from signatures(reader, Reader, f"reader {type(reader).__name__}")


def _answers(subject: Subject) -> Iterator[Flaw]:
    for made in subject.spread(8):
        yield from _specs(subject, made.case)
        for member, kind in (("check", Finding), ("assets", Asset)):
            where = f"{member} of {made.case}"
            try:
                items = answered(getattr(subject.backend, member), made.plan)
            except Exception as error:  # noqa: BLE001 - the border to the backend under test
                yield _flaw(where, f"it raised {raised(error)}", f"return what is wrong as {kind.__name__}")
                if isinstance(error, TimeoutError):  # each further one would take as long
                    return
                continue
            yield from (
                _flaw(where, f"it answered {item!r}", f"return madlite.{kind.__name__}")
                for item in items
                if not isinstance(item, kind)
            )


def _knobs(spec: RunSpec, where: str) -> Iterator[Flaw]:
    """Yield knobs that are no settings of the spec, and values of another type than the setting's."""
    for knob in spec.knobs:
        own = spec.settings.get(knob.key)
        if knob.key == "micro_batch" or own is None:  # a setting that other runs of the backend have
            continue
        if odd := [value for value in (*knob.values, *((0,) if knob.parts else ())) if type(value) is not type(own)]:
            kind = type(own).__name__
            yield _flaw(
                where, f"knob {knob.key} has {odd[0]!r}, and the setting is {kind}", "values as the setting has them"
            )


def _specs(subject: Subject, case: Any) -> Iterator[Flaw]:
    try:
        specs = expand(subject.backend, case, options_of(case))
    except UsageProblem:
        return
    if not isinstance(specs, Sequence) or not specs or not all(isinstance(run_spec, RunSpec) for run_spec in specs):
        what = f"it answered {specs!r}"[:200]
        yield _flaw(f"expand of {case}", what, "return a list of madlite.RunSpec, or raise madlite.UsageProblem")
        return
    for spec in specs:
        yield from _knobs(spec, f"expand of {case}")


def check_finish(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield what a reader does wrong at the end of a run that left nothing; `folder` is empty."""
    plans = [made.plan for made in subject.spread(2)]
    for plan in (None, *plans):
        for outputs in (folder, folder / "not_there"):
            where = f"finish({'an empty folder' if outputs == folder else 'a folder that is not there'})"
            try:
                events: list[Event] = answered(subject.backend.reader(plan).finish, outputs)
            except Exception as error:  # noqa: BLE001 - as above
                yield Flaw("finish", where, f"it raised {raised(error)}", "return nothing where no file is")
                continue
            if odd := [event for event in events if not is_event(event)]:
                yield Flaw("finish", where, f"it answered {odd[0]!r}", "return events of madlite")


def _flaw(where: str, what: str, hint: str) -> Flaw:
    return Flaw("members", where, what, hint)


def check_names(subject: Subject) -> Iterator[Flaw]:
    """Yield what is wrong with names."""
    yield from _backend(subject)
    for made in subject.made:
        yield from (*_settings(made), *_rule(made.spec.result_rule), *_templates(subject, made))


def _backend(subject: Subject) -> Iterator[Flaw]:
    name = getattr(subject.backend, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield Flaw("names", "backend", f"its name is {name!r}", "small letters, digits and _, as in --backend NAME")
        return
    if not subject.installed:
        return
    if name in subject.others:
        other = type(subject.others[name])
        hint = "choose a name that no other backend has: madlite plugins lists them"
        what = f"{other.__module__}.{other.__qualname__} is installed as a backend of this name"
        yield Flaw("names", f"backend {name}", what, hint)
    elif name not in subject.plugins.backends():
        hint = f'[project.entry-points.madlite] {name} = "{type(subject.backend).__module__}", then pip install it'
        yield Flaw("names", f"backend {name}", "no entry point of group madlite brings it", hint)
    plugin = next((plugin for brought, plugin in subject.plugins.backends().values() if brought.name == name), None)
    for problem in subject.plugins.problems:
        if plugin and problem.where.split()[:2] == ["plugin", plugin.name]:
            yield Flaw("names", problem.where, problem.what, "madlite plugins --hooks")


def _settings(made: Made) -> Iterator[Flaw]:
    for key, value in made.spec.settings.items():
        where = f"setting {key}"
        if not _NAME.fullmatch(key) or canonical_key(key) != key:
            known = f", which stands for {ALIASES[key]}" if key in ALIASES else ""
            hint = "small letters, digits and _, and no other name of a size"
            yield Flaw("names", where, f"--set {key}= would not reach it{known}", hint)
        elif key in VARIANT_KEYS or key in PLAN_KEYS:
            whose = "the variant" if key in VARIANT_KEYS else "every plan"
            yield Flaw("names", where, f"it hides the {key} of {whose}", "leave it to that, or choose another name")
        if not isinstance(value, (str, int, float, bool)):
            what = f"its value {value!r} is neither text nor number nor truth value"
            yield Flaw("names", where, what, "write a list as text with commas")


def _rule(rule: ResultRule) -> Iterator[Flaw]:
    if rule.kind != "steps":
        return
    if not isinstance(rule.headline, Quantity):
        yield Flaw("names", "result rule", f"headline {rule.headline!r} is no quantity", "madlite.Quantity lists them")
    names = [rule.headline_metric, *(metric.metric for metric in rule.mad)]
    for name in names:
        if not _METRIC.fullmatch(name):
            hint = "letters, digits, _ . / - and what a cell of perf.csv takes without quotes"
            yield Flaw("names", "result rule", f"metric {name!r} is no name", hint)
    for name in _twice(names):
        yield Flaw("names", "result rule", f"two rows of a run would be called {name}", "a metric of its own for each")
    for metric in rule.mad:
        if (metric.rule == "summary") != bool(metric.key) or (metric.rule != "summary" and metric.quantity is None):
            what = f"metric {metric.metric} has rule {metric.rule}, quantity {metric.quantity} and key {metric.key!r}"
            yield Flaw("names", "result rule", what, "a summary names a key, every other rule a quantity")


def _templates(subject: Subject, made: Made) -> Iterator[Flaw]:
    files = made.spec.templates
    if not made.spec.actions and not any(file.path == "run.sh" for file in files):
        hint = 'FileTemplate(path="run.sh", template=…), or actions of the RunSpec'
        yield Flaw("names", f"backend {subject.name}", "a RunSpec has nothing to run", hint)
    for path in _twice(file.path for file in files):
        yield Flaw("names", f"file {path}", "two templates are written to it", "one template for each file")
    for file in files:
        yield from _template(subject, file)


def _template(subject: Subject, file: FileTemplate) -> Iterator[Flaw]:
    if _leaves(file.path):
        what = "it would be written outside of the run's folder"
        yield Flaw("names", f"file {file.path}", what, "a path without / at its begin and ..")
    ours = not _leaves(file.template) and (template_root(None) / file.template).is_file()
    if not file.template.startswith(f"{subject.name}/") and not ours:
        hint = f"put it into templates/{subject.name}/, where no other of that name is found first"
        yield Flaw("names", f"template {file.template}", f"it is not below the folder {subject.name}", hint)


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in PurePosixPath(path).parts


def _twice(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    return sorted({path for path in listed if listed.count(path) > 1})


def check_failures(subject: Subject) -> Iterator[Flaw]:
    """Yield rules that explain nothing; the plugin is the one that brings the backend, where it is installed."""
    backends = subject.plugins.collect("madlite_backends")
    brought = {plugin.name for plugin, backend in backends if type(loaded_backend(backend)) is type(subject.backend)}
    for plugin, rule in subject.plugins.collect("madlite_failure_rules"):
        if plugin.name not in brought:
            continue
        what = flaw_of(rule) if isinstance(rule, FailureRule) else "it is no FailureRule"
        if what:
            hint = "docs/failures.md has the keys of a rule"
            yield Flaw("failures", f"rule {getattr(rule, 'pattern', rule)!r}", what, hint)


def check_docs(subject: Subject) -> Iterator[Flaw]:
    """Yield what the pages do not name."""
    if not subject.docs:
        hint = 'docs = ["docs/backend.md"]: what can be set, which modes and metrics there are'
        yield Flaw("docs", f"backend {subject.name}", "there is no page about it", hint)
        return
    texts = []
    for path in subject.docs:
        if path.is_file():
            texts.append(path.read_text(encoding="utf-8"))
        else:
            yield Flaw("docs", f"page {path}", "it is not there", NAME_IT)
    page, pages = "\n".join(texts), ", ".join(path.name for path in subject.docs)
    for kind, names in _names(subject).items():
        for name in names:
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page):
                hint = f"write `{name}` and what it means into {pages}"
                yield Flaw("docs", f"{kind} {name}", f"{pages} does not name it", hint)


def _names(subject: Subject) -> dict[str, list[str]]:
    specs = [made.spec for made in subject.made]
    rules = [spec.result_rule for spec in specs if spec.result_rule.kind == "steps"]
    metrics = {rule.headline_metric for rule in rules} | {metric.metric for rule in rules for metric in rule.mad}
    return {
        "setting": sorted({key for spec in specs for key in spec.settings}),
        "mode": sorted({spec.variant.mode for spec in specs if spec.variant and spec.variant.mode}),
        "metric": sorted(metrics),
    }
