"""The checks of the kit as madlite's own backends pass them: with what is asked of these alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from madlite.backends.recipe_book import RecipeBook, bare_name, read_book
from madlite.backends.recipes import RecipeBackend
from madlite.model import Card, Quantity, Request, ResultRule, RunSpec, Summary
from madlite.plan.plan_file import run_content
from madlite.process import capture
from madlite.testing import CHECKS, Flaw, Subject, run_check
from madlite.testing.checks import Check
from madlite.testing.flaws import Defect, answered, attempt
from madlite.testing.plans import ONE_ANSWER, REFUSE_IT, runs_of, write_scripts
from madlite.testing.subject import WORKSPACE, Case, Made, request_of
from tests.kit.quoting import check_quoting
from tests.kit.world import watch

_METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_./()% -]*(?<! )")
_PRECISIONS = ("FP32", "BF16", "FP16", "FP8", "MXFP8", "MXFP4")


class ExtendedSubject(Subject):
    """A subject of which more is planned, and what planning did to the world is noted.

    Args:
        asks: values to plan every card with, beside as it is, each as --set would give them: [{"mode": "tune"}].
        outputs: folders of files that a run leaves, where the reader's finish() reads some.
        given: what `Subject` takes.
    """

    def __init__(
        self, *positional: Any, asks: Iterable[Mapping[str, str]] = (), outputs: Iterable[str | Path] = (), **given: Any
    ) -> None:
        super().__init__(*positional, **given)
        self.asks, self.outputs = tuple(asks), tuple(map(Path, outputs))
        self.done_at_first: dict[tuple[str, str], None] = {}  # before anything was cached: where, and what

    def list_cases(self) -> Iterator[Case]:
        """Yield what is planned for every backend, what `asks` says, and the GPUs that a recipe book alone names."""
        yield from super().list_cases()
        for card, machine, ask in product(self.cards, self.machines, self.asks):
            yield Case(card=card, machine=machine, asked=tuple(ask.items()))
        book = read_book(self.backend.book) if isinstance(self.backend, RecipeBackend) else RecipeBook()
        known = {machine.device for machine in self.machines}
        for card in self.cards:
            runs = [run for run in book.runs if bare_name(card) in run.cards]
            named = {(release, device) for run in runs for release in run.releases or ("",) for device in run.devices}
            for release, device in sorted(named):
                if device not in known:
                    asked = (("release", release), ("recipe_device", device))
                    asked = tuple((key, value) for key, value in asked if value)
                    yield Case(card=card, machine=self.machines[0], asked=asked)

    def expand(self, case: Case, request: Request | None = None) -> Sequence[RunSpec]:
        """Return the RunSpecs of a case, with what asking for them did to the world noted."""
        with watch() as done:
            try:
                return super().expand(case, request)
            finally:
                self.note("expand", case, done)

    @cached_property
    def planned(self) -> Any:
        """What became of the cases, some of which were also checked, and their assets asked for."""
        self.__dict__["planned"] = planned = Subject.planned.func(self)  # type: ignore[attr-defined]
        for made, member in product(self.spread(8), ("check", "assets")):
            with watch() as done:
                _, error = attempt(answered, getattr(self.backend, member, None), made.plan)
            self.note(member, made.case, done)
            if error.startswith("TimeoutError"):
                break
        return planned

    def note(self, member: str, case: Case, done: Iterable[str]) -> None:
        """Note what a member of the backend did to the world."""
        self.done_at_first |= {(f"{member} of {case}", what): None for what in done}


def check_members(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what `claim` says of a card that names the backend, and answers of `expand` that are no list."""
    card = Card(name="a card of the kit", root=WORKSPACE, source="the kit", backend=subject.name)
    claim, error = attempt(subject.backend.claim, card, WORKSPACE)
    if error or type(claim) is not int or claim < 0:
        what = f"it raised {error}" if error else f"it answered {claim!r}"
        yield "claim of a card of its own", what, "a whole number: 0 not at all, 100 where the card names it"
    for case in subject.cases:
        specs, error = attempt(subject.backend.expand, request_of(case), case.machine)
        is_list = isinstance(specs, Sequence) and specs and all(isinstance(item, RunSpec) for item in specs)
        if not error and not is_list:
            what = f"it answered {specs!r}"[:200]
            yield f"expand of {case}", what, "return a list of madlite.RunSpec, or raise madlite.UsageProblem"


def check_names(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what is wrong with values of settings, metrics of the result rule and paths of files."""
    for made in subject.made:
        for key, value in made.spec.settings.items():
            if not isinstance(value, (str, int, float, bool)):
                what = f"its value {value!r} is neither text nor number nor truth value"
                yield f"setting {key}", what, "write a list as text with commas"
        yield from (*_rule(made.spec.result_rule), *_files(made))


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


def _files(made: Made) -> Iterator[Defect]:
    for path in _twice(file.path for file in made.spec.templates):
        yield f"file {path}", "two templates are written to it", "one template for each file"
    for file in made.spec.templates:
        if file.path.startswith("/") or ".." in PurePosixPath(file.path).parts:
            what = "it would be written outside of the run's folder"
            yield f"file {file.path}", what, "a path without / at its begin and .."


def _twice(paths: Iterable[str]) -> list[str]:
    listed = list(paths)
    return sorted({path for path in listed if listed.count(path) > 1})


def check_scripts(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what bash reports about every script."""
    bash = shutil.which("bash")
    if bash is None:
        yield "this machine", "there is no bash to check scripts with", "install bash, which every run needs"
        return
    for path, where in write_scripts(subject.made, folder):
        ran = capture([bash, "-n", path], limit_s=120.0)
        if not ran.ok:
            yield where, f"bash: {(ran.stderr.strip().splitlines() or ['?'])[0].replace(path, 'it')}", "see bash -n"


def check_purity(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what planning did to the world, the first time it was asked too, and tables that a backend keeps."""
    made = subject.spread(8)
    for where, what in subject.done_at_first if isinstance(subject, ExtendedSubject) else ():
        yield where, f"it does something to the world: {what}", "planning only reads; do it in run.sh"
    for one in made:
        first, _ = attempt(subject.backend.expand, request_of(one.case), one.case.machine)
        before = repr(first)
        tables = [table for spec in first or () for table in (spec.settings, spec.env)]
        for table in tables:  # a backend that keeps them would give what is written there to the next run
            table["left_by_the_kit"] = "x"
        again = repr(attempt(subject.backend.expand, request_of(one.case), one.case.machine)[0])
        for table in tables:
            table.pop("left_by_the_kit", None)
        if again != before:
            yield f"expand of {one.case}", "the same question had two answers", ONE_ANSWER


def check_results(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield figures of the result rule that no log and no file of a run has.

    `folder` is where the files that a run leaves are copied to, for readers may ask whether they are of their run.
    """
    events = [event for found in subject.events.values() for event in found]
    for number, outputs in enumerate(subject.outputs if isinstance(subject, ExtendedSubject) else ()):
        if outputs.is_dir():
            copy = Path(shutil.copytree(outputs, folder / str(number), copy_function=shutil.copyfile))
            events += answered(subject.backend.reader(None).finish, copy)
        else:
            yield f"outputs {outputs}", "there is no such folder", 'outputs = ["a folder of a run\'s files"]'
    keys = {key for event in events if isinstance(event, Summary) for key in event.values}
    for rule in {repr(made.spec.result_rule): made.spec.result_rule for made in subject.made}.values():
        for metric in rule.mad if rule.kind == "steps" and subject.logs else ():
            if metric.rule == "summary" and metric.key not in keys:
                hint = "add what has it to `outputs`, or let the reader give it, or drop it from the rule"
                yield f"metric {metric.metric}", f"no log has the figure {metric.key!r}", hint


def check_effects(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield two precisions of one run."""
    for made in subject.spread(subject.examples):
        seen: list[tuple[str, tuple[object, ...]]] = []
        for word in _PRECISIONS if made.plan.variant is not None else ():
            for run in runs_of(subject, made, "precision", word):
                content = run_content(run.plan, run.files)
                if like := next((other for other, known in seen if other != word and known == content), ""):
                    yield str(made.case), f"precision {word} runs what precision {like} does", REFUSE_IT
                seen.append((word, content))


MORE: dict[str, Check] = {
    "members": check_members,
    "names": check_names,
    "scripts": check_scripts,
    "quoting": check_quoting,
    "purity": check_purity,
    "results": check_results,
    "effects": check_effects,
}
"""What is asked beyond the check of the same name that authors of plugins have."""


def _both(name: str) -> Check:
    def check(subject: Subject, folder: Path) -> Iterator[Defect]:
        yield from CHECKS[name](subject, folder)  # first, for it plans before anything else asks the backend
        if name in MORE:
            (folder / "more").mkdir()
            yield from MORE[name](subject, folder / "more")

    return check


EXTENDED: dict[str, Check] = {name: _both(name) for name in CHECKS}


def run_extended(name: str, subject: Subject) -> list[Flaw]:
    """Return what one check finds in one of madlite's own backends."""
    return run_check(name, subject, EXTENDED)
