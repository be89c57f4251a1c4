"""Names: of the backend, its settings, metrics and files; none hides another's, each can be typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from madlite.files import template_root
from madlite.model import FileTemplate, Quantity, ResultRule
from madlite.plan.fields import ALIASES, PLAN_KEYS, VARIANT_KEYS
from madlite.plan.values import canonical_key
from madlite.testing.flaws import Flaw
from madlite.testing.plans import Made
from madlite.testing.subject import Subject

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./()% -]*(?<! )")
CHECK = "names"


def check_names(subject: Subject) -> Iterator[Flaw]:
    """Yield what is wrong with names."""
    yield from _backend(subject)
    seen: set[Flaw] = set()
    for made in subject.made:
        for flaw in (*_settings(made), *_rule(made.draft.result_rule), *_templates(subject, made)):
            if flaw not in seen:
                seen.add(flaw)
                yield flaw


def _backend(subject: Subject) -> Iterator[Flaw]:
    name = getattr(subject.backend, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        mend = "small letters, digits and _, as in --backend NAME"
        yield Flaw(check=CHECK, where="backend", what=f"its name is {name!r}", mend=mend)
        return
    if not subject.installed:
        return
    if name in subject.others:
        other = type(subject.others[name])
        mend = "choose a name that no other backend has: madlite plugins lists them"
        what = f"{other.__module__}.{other.__qualname__} is installed as a backend of this name"
        yield Flaw(check=CHECK, where=f"backend {name}", what=what, mend=mend)
    elif name not in subject.plugins.backends():
        mend = f'[project.entry-points.madlite] {name} = "{type(subject.backend).__module__}", then pip install it'
        yield Flaw(check=CHECK, where=f"backend {name}", what="no entry point of group madlite brings it", mend=mend)
    plugin = next((one for brought, one in subject.plugins.backends().values() if brought.name == name), None)
    for problem in subject.plugins.problems:
        if plugin and problem.where.split()[:2] == ["plugin", plugin.name]:
            yield Flaw(check=CHECK, where=problem.where, what=problem.what, mend="madlite plugins --hooks")


def _settings(made: Made) -> Iterator[Flaw]:
    for key, value in made.draft.settings.items():
        where = f"setting {key}"
        if not _NAME.fullmatch(key) or canonical_key(key) != key:
            known = f", which stands for {ALIASES[key]}" if key in ALIASES else ""
            mend = "small letters, digits and _, and no other name of a size"
            yield Flaw(check=CHECK, where=where, what=f"--set {key}= would not reach it{known}", mend=mend)
        elif key in VARIANT_KEYS or key in PLAN_KEYS:
            whose = "the variant" if key in VARIANT_KEYS else "every plan"
            what = f"it hides the {key} of {whose}"
            yield Flaw(check=CHECK, where=where, what=what, mend="leave it to that, or choose another name")
        if not isinstance(value, (str, int, float, bool)):
            what = f"its value {value!r} is neither text nor number nor truth value"
            yield Flaw(check=CHECK, where=where, what=what, mend="write a list as text with commas")


def _rule(rule: ResultRule) -> Iterator[Flaw]:
    if rule.kind != "steps":
        return
    if not isinstance(rule.headline, Quantity):
        mend = "madlite.Quantity lists them"
        yield Flaw(check=CHECK, where="result rule", what=f"headline {rule.headline!r} is no quantity", mend=mend)
    names = [rule.headline_metric, *(one.metric for one in rule.mad)]
    for name in names:
        if not _METRIC.fullmatch(name):
            mend = "letters, digits, _ . / - and what a cell of perf.csv takes without quotes"
            yield Flaw(check=CHECK, where="result rule", what=f"metric {name!r} is no name", mend=mend)
    for name in sorted({name for name in names if names.count(name) > 1}):
        what = f"two rows of a run would be called {name}"
        yield Flaw(check=CHECK, where="result rule", what=what, mend="a metric of its own for each")
    for one in rule.mad:
        if (one.rule == "summary") != bool(one.key) or (one.rule != "summary" and one.quantity is None):
            what = f"metric {one.metric} has rule {one.rule}, quantity {one.quantity} and key {one.key!r}"
            mend = "a summary names a key, every other rule a quantity"
            yield Flaw(check=CHECK, where="result rule", what=what, mend=mend)


def _templates(subject: Subject, made: Made) -> Iterator[Flaw]:
    files = made.draft.templates
    if not made.draft.actions and not any(file.path == "run.sh" for file in files):
        mend = 'FileTemplate(path="run.sh", template=…), or actions of the draft'
        yield Flaw(check=CHECK, where=f"backend {subject.name}", what="a draft has nothing to run", mend=mend)
    for path in _twice(file.path for file in files):
        mend = "one template for each file"
        yield Flaw(check=CHECK, where=f"file {path}", what="two templates are written to it", mend=mend)
    for file in files:
        yield from _template(subject, file)


def _template(subject: Subject, file: FileTemplate) -> Iterator[Flaw]:
    if _leaves(file.path):
        what = "it would be written outside of the run's folder"
        yield Flaw(check=CHECK, where=f"file {file.path}", what=what, mend="a path without / at its begin and ..")
    ours = not _leaves(file.template) and (template_root(None) / file.template).is_file()
    if not file.template.startswith(f"{subject.name}/") and not ours:
        mend = f"put it into templates/{subject.name}/, where nobody else's of that name is found first"
        what = f"it is not below the folder {subject.name}"
        yield Flaw(check=CHECK, where=f"template {file.template}", what=what, mend=mend)


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in PurePosixPath(path).parts


def _twice(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    return sorted({path for path in listed if listed.count(path) > 1})
