"""The checks by name, and what runs them: all flaws are collected, whatever a check meets."""

from __future__ import annotations

import inspect
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeAlias, TypeVar

from msgspec.structs import replace

from madlite.backends.lazy import loaded_backend
from madlite.errors import MadliteError
from madlite.failure_rules import flaw_of
from madlite.model import Backend, FailureRule
from madlite.secrets import Redactor
from madlite.testing.flaws import Flaw, answered
from madlite.testing.plans import Made, expand, finish, options_of
from madlite.testing.reading import check_detection, check_finish, check_fuzz, check_reading
from madlite.testing.subject import NAME_IT, Subject, raised

Check: TypeAlias = Callable[[Subject, Path], Iterable[Flaw]]
"""A check gets the subject and an empty folder of its own."""
_T = TypeVar("_T")
_CASE = re.compile(r"card \S.* on (\d+x\S+|cpu)( with .*)?$", re.DOTALL)  # as plans.Case is worded
SECRETS = {
    name: f"kit-secret/{number}&0123456789abcdef"
    for number, name in enumerate(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_KIT"))
}
_MASKS = {name: Redactor([value]).text for name, value in SECRETS.items()}
_HINT = "leave it in the environment: the script has it as a variable"


def check_rendering(subject: Subject) -> Iterator[Flaw]:
    """Yield cases that cannot be planned or rendered, and cards that no machine has a run for."""
    made, flaws, _ = subject.planned
    yield from (*subject.wrong, *flaws)
    if not subject.cards and not subject.wrong:
        hint = 'name cards: cards = [{"name": …, "backend": …}], or the path of a models.json'
        yield Flaw("rendering", f"backend {subject.name}", "there is no card to plan for", hint)
    if subject.most is None:  # else what it is not refused for may not be in the sample
        yield from _never(subject)
    seen: set[bytes] = set()
    for one in made:
        yield from _broken_files(one, seen)


def _never(subject: Subject) -> Iterator[Flaw]:
    made, flaws, refused = subject.planned
    told = {one.case.card.name for one in made} | {flaw.where.split()[1] for flaw in flaws}
    given = {card.name for card in subject.cards}
    for name in sorted({case.card.name for case in refused} & given - told):
        hint = "drop the card, or name with `asks` what has to be requested"
        yield Flaw("rendering", f"card {name}", "the backend refuses it on every machine", hint)


def _broken_files(one: Made, seen: set[bytes]) -> Iterator[Flaw]:
    for file in one.files:
        if file.data in seen:
            continue
        seen.add(file.data)
        try:
            parsed(file.path, file.data)
        except ValueError as error:
            hint = "write values through the filter toml or tojson"
            yield Flaw("rendering", f"{file.path} of {one.case}", f"it cannot be read: {error}", hint)


def parsed(path: str, data: bytes) -> object:
    """Return what a file of the run folder holds, as text where it is of no kind that is known.

    Raises:
        ValueError: it is not of the kind that its name says.
    """
    suffix = PurePosixPath(path).suffix
    text = data.decode("utf-8", "surrogateescape")
    if suffix == ".json":
        return json.loads(text)
    if suffix == ".toml":
        import tomli

        return tomli.loads(text)
    if suffix in (".yaml", ".yml"):
        import yaml

        try:
            return list(yaml.safe_load_all(text))
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None
    return text


def check_secrets(subject: Subject) -> Iterator[Flaw]:
    """Yield where a secret of the environment shows."""
    for made in subject.spread(subject.examples):
        with _environment(SECRETS):
            yield from _shown(subject, made)


def _shown(subject: Subject, made: Made) -> Iterator[Flaw]:
    options = options_of(made.case, environ=SECRETS)
    try:
        specs = expand(subject.backend, made.case, options)
        plans = [finish(subject.backend, made.case, spec, subject.search, options) for spec in specs]
    except MadliteError as problem:
        yield from _in(f"refusal of {made.case}", f"{problem.message} {problem.hint}")
        return
    for one in plans:
        yield from _in(f"RunSpec of {made.case}", repr(one.spec))
        for file in one.files:
            yield from _in(f"{file.path} of {made.case}", file.data.decode("utf-8", "replace"))
        told = [*answered(subject.backend.check, one.plan), *answered(subject.backend.assets, one.plan)]
        yield from _in(f"findings and assets of {made.case}", repr(told))


def _in(where: str, text: str) -> Iterator[Flaw]:
    by_shape = Redactor().text(text)
    for name, mask in _MASKS.items():
        if mask(text) != by_shape:
            yield Flaw("secrets", where, f"it holds the value of ${name}", _HINT)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Give this process variables for a while, for code that searches for them where it should not."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
    metrics = {rule.headline_metric for rule in rules} | {one.metric for rule in rules for one in rule.mad}
    return {
        "setting": sorted({key for spec in specs for key in spec.settings}),
        "mode": sorted({spec.variant.mode for spec in specs if spec.variant and spec.variant.mode}),
        "metric": sorted(metrics),
    }


CHECKS: dict[str, Check] = {
    "rendering": lambda subject, folder: check_rendering(subject),
    "secrets": lambda subject, folder: check_secrets(subject),
    "reading": lambda subject, folder: check_reading(subject),
    "finish": check_finish,
    "fuzz": lambda subject, folder: check_fuzz(subject),
    "detection": lambda subject, folder: check_detection(subject),
    "docs": lambda subject, folder: check_docs(subject),
    "failures": lambda subject, folder: check_failures(subject),
}


NO_PLAN = "there is no plan to check"
OF_PLANS = ("secrets", "docs")
"""Checks that inspect plans, so that they find nothing where there is none."""


def run_check(name: str, subject: Subject) -> list[Flaw]:
    """Return what one check finds; a check that cannot go on says so and keeps what it found before.

    Raises:
        ValueError: there is no check of this name.
    """
    return find_flaws(name, subject, CHECKS, OF_PLANS)


def find_flaws(name: str, subject: Subject, checks: Mapping[str, Check], of_plans: Iterable[str]) -> list[Flaw]:
    """Return what one of some checks finds; raises as `run_check` does."""
    if name not in checks:
        raise ValueError(f"there is no check {name!r}: there are {', '.join(checks)}")
    found: list[Flaw] = []
    if name in of_plans and not subject.made:
        hint = "give a card that the backend plans; the check `rendering` reports what prevents that"
        found.append(Flaw(check=name, where=f"backend {subject.name}", what=NO_PLAN, hint=hint))
    with tempfile.TemporaryDirectory(prefix="madlite_kit_") as folder:
        try:
            for flaw in checks[name](subject, Path(folder)):
                if flaw not in found:
                    found.append(flaw)
        except Exception as error:  # noqa: BLE001 - the border to the backend under test
            hint = "mend this first; the rest of this check was not done"
            found.append(Flaw(check=name, where=f"backend {subject.name}", what=raised(error), hint=hint))
    return _grouped(found)


def _grouped(flaws: Sequence[Flaw]) -> list[Flaw]:
    """Return flaws that differ in nothing but the card, machine and what was asked as one: the first, and how many."""
    groups: dict[Flaw, list[Flaw]] = {}
    for flaw in flaws:
        groups.setdefault(replace(flaw, where=_CASE.sub("", flaw.where)), []).append(flaw)
    return [_with_count(group[0], len(group) - 1) for group in groups.values()]


def _with_count(flaw: Flaw, more: int) -> Flaw:
    cases = f"and {more} more case{'s' if more > 1 else ''}"
    return replace(flaw, where=f"{flaw.where} {cases}") if more else flaw


def selected(only: Iterable[str], checks: Iterable[str]) -> tuple[str, ...]:
    """Return the names of checks that `only` selects, all where it is empty; raises ValueError for another name."""
    if isinstance(only, str):
        raise ValueError(f"only={only!r} is one text, where a list of names is wanted: only=[{only!r}]")
    names = tuple(only) or tuple(checks)
    if unknown := [name for name in names if name not in checks]:
        raise ValueError(f"only={list(names)!r}: there is no check {unknown[0]!r}; there are {', '.join(checks)}")
    return names


def once(flaws: Iterable[Flaw]) -> list[Flaw]:
    """Return flaws, and that there is no plan once, with the names of all checks that want one."""
    found = list(flaws)
    unplanned = [flaw for flaw in found if flaw.what == NO_PLAN]
    kept = [flaw for flaw in found if flaw not in unplanned[1:]]
    if len(unplanned) > 1:
        others = ", ".join(flaw.check for flaw in unplanned[1:])
        kept[kept.index(unplanned[0])] = replace(unplanned[0], where=f"{unplanned[0].where}, and for {others}")
    return kept


def with_tests(names: Iterable[str]) -> Callable[[type[_T]], type[_T]]:
    """Give a class a test for each check, which asks its method `flaws`."""

    def add(cls: type[_T]) -> type[_T]:
        for name in names:

            def test(self: Any, name: str = name) -> None:
                if flaws := self.flaws(name):
                    raise AssertionError("\n".join(map(str, flaws)))

            setattr(cls, f"test_{name}", test)
        return cls

    return add


@with_tests(CHECKS)
class BackendConformance:
    """Set `backend` and the rest in a class whose name begins with Test; the fields are the arguments of `Subject`."""

    backend: ClassVar[Backend]
    _subject: ClassVar[Subject]

    @classmethod
    def subject(cls) -> Subject:
        """Return what is tested, made once for all tests of the class."""
        if "_subject" not in cls.__dict__:
            fields = inspect.signature(Subject).parameters
            cls._subject = Subject(**{name: getattr(cls, name) for name in fields if hasattr(cls, name)})
        return cls._subject

    def flaws(self, check: str) -> list[Flaw]:
        """Return what a check finds."""
        return run_check(check, self.subject())
