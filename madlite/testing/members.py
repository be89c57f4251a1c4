"""What a backend declares: its members and what they answer, names, pages and failure rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from madlite.backends.log_formats import flaw_of
from madlite.backends.recipe_book import loaded_backend
from madlite.catalog.sources import template_root
from madlite.model import Asset, Backend, Card, FailureRule, Finding, Reader
from madlite.plan.fields import ALIASES, PLAN_KEYS, VARIANT_KEYS, canonical_key
from madlite.testing.flaws import Defect, answered, attempt
from madlite.testing.subject import NAME_IT, WORKSPACE, Made, Subject

NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_members(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield members that are missing, take something else, or answer with something else."""
    missing = [*signatures(subject.backend, Backend, f"backend {subject.name}")]
    yield from missing
    if missing:
        return
    card = Card(name="a card of the kit", root=WORKSPACE, source="the kit", backend="another")
    claim, error = attempt(subject.backend.claim, card, WORKSPACE)
    if error or claim != 0:
        what = f"it raised {error}" if error else f"it answered {claim!r}"
        yield f"claim of a card of backend {card.backend!r}", what, "answer 0: the card is that one's"
    reader = subject.backend.reader(None)
    if reader is subject.backend.reader(None):
        yield "reader(None)", "it gave the same reader twice", "return a fresh one for each run"
    yield from signatures(reader, Reader, f"reader {type(reader).__name__}")
    for made, (member, kind) in product(subject.spread(8), (("check", Finding), ("assets", Asset))):
        where = f"{member} of {made.case}"
        items, error = attempt(answered, getattr(subject.backend, member), made.plan)
        if error:
            yield where, f"it raised {error}", f"return what is wrong as {kind.__name__}"
        odd = (item for item in items or () if not isinstance(item, kind))
        yield from ((where, f"it answered {item!r}", f"return madlite.{kind.__name__}") for item in odd)
        if error.startswith("TimeoutError"):  # each further one would take as long
            return


def signatures(thing: object, protocol: type, where: str) -> Iterator[Defect]:
    """Yield which methods of a protocol are missing, or do not take so many arguments, which the words name."""
    for member, method in vars(protocol).items():
        if member.startswith("_") or not inspect.isfunction(method):
            continue
        words = [*inspect.signature(method).parameters][1:]
        wanted, found = f"def {member}(self, {', '.join(words)})", getattr(thing, member, None)
        if not callable(found):
            yield where, f"it has no method {member}", wanted
        elif inspect.iscoroutinefunction(found):
            yield where, f"{member} is a coroutine", f"{wanted}, not async"
        elif attempt(inspect.signature(found).bind, *words)[1]:
            yield where, f"{member} does not take {', '.join(words)}", wanted


def check_names(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what is wrong with the names of the backend, its settings and its templates."""
    yield from _backend(subject)
    for made in subject.made:
        yield from (*_settings(made), *_templates(subject, made))


def _backend(subject: Subject) -> Iterator[Defect]:
    name = getattr(subject.backend, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield "backend", f"its name is {name!r}", "small letters, digits and _, as in --backend NAME"
        return
    installed = subject.plugins.backends() if subject.installed else {}
    brought, plugin = installed.get(name, (None, None))
    if subject.installed and brought is None:
        hint = f'[project.entry-points.madlite] {name} = "{type(subject.backend).__module__}", then pip install it'
        yield f"backend {name}", "no entry point of group madlite brings it", hint
    elif brought is not None and (other := type(loaded_backend(brought))) is not type(subject.backend):
        what = f"{other.__module__}.{other.__qualname__} is installed as a backend of this name"
        yield f"backend {name}", what, "choose a name that no other backend has: madlite doctor --plugins lists them"
    for problem in subject.plugins.problems:
        if plugin and problem.where.split()[:2] == ["plugin", plugin.name]:
            yield problem.where, problem.what, "madlite doctor --plugins; docs/plugins.md lists the hooks"


def _settings(made: Made) -> Iterator[Defect]:
    for key in made.spec.settings:
        if not NAME.fullmatch(key) or canonical_key(key) != key:
            known = f", which stands for {ALIASES[key]}" if key in ALIASES else ""
            hint = "small letters, digits and _, and no other name of a size"
            yield f"setting {key}", f"--set {key}= would not reach it{known}", hint
        elif key in VARIANT_KEYS or key in PLAN_KEYS:
            whose = "the variant" if key in VARIANT_KEYS else "every plan"
            yield f"setting {key}", f"it hides the {key} of {whose}", "leave it to that, or choose another name"


def _templates(subject: Subject, made: Made) -> Iterator[Defect]:
    if not made.spec.actions and not any(file.path == "run.sh" for file in made.spec.templates):
        hint = 'FileTemplate(path="run.sh", template=…), or actions of the RunSpec'
        yield f"backend {subject.name}", "a RunSpec has nothing to run", hint
    for file in made.spec.templates:
        name = file.template
        if not name.startswith(f"{subject.name}/") and not (template_root(None) / name.lstrip("/")).is_file():
            hint = f"put it into templates/{subject.name}/, where no other of that name is found first"
            yield f"template {name}", f"it is not below the folder {subject.name}", hint


def check_failures(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield rules that explain nothing; the plugin is the one that brings the backend, where it is installed."""
    backends = subject.plugins.collect("madlite_backends")
    brought = {plugin.name for plugin, backend in backends if type(loaded_backend(backend)) is type(subject.backend)}
    for plugin, rule in subject.plugins.collect("madlite_failure_rules"):
        what = flaw_of(rule) if isinstance(rule, FailureRule) else "it is no FailureRule"
        if what and plugin.name in brought:
            yield f"rule {getattr(rule, 'pattern', rule)!r}", what, "docs/failures.md has the keys of a rule"


def check_docs(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what the pages do not name."""
    if not subject.docs:
        hint = 'docs = ["docs/backend.md"]: what can be set, which modes and metrics there are'
        yield f"backend {subject.name}", "there is no page about it", hint
        return
    yield from ((f"page {path}", "it is not there", NAME_IT) for path in subject.docs if not path.is_file())
    page = "\n".join(path.read_text(encoding="utf-8") for path in subject.docs if path.is_file())
    pages = ", ".join(path.name for path in subject.docs)
    names: set[tuple[str, str]] = set()
    for spec in (made.spec for made in subject.made):
        rule, modes = spec.result_rule, [spec.variant.mode] if spec.variant else []
        metrics = [rule.headline_metric, *(metric.metric for metric in rule.mad)] if rule.kind == "steps" else []
        kinds = {"setting": spec.settings, "mode": modes, "metric": metrics}
        names |= {(kind, name) for kind, found in kinds.items() for name in found if name}
    for kind, name in sorted(names):
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", page):
            yield f"{kind} {name}", f"{pages} does not name it", f"write `{name}` and what it means into {pages}"


CHECKS = (check_members, check_names, check_docs, check_failures)
