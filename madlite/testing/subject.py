"""What is tested: a backend with its cards, logs and pages, and the plans and files that are made of them once.

Plans are made as a run makes them, but without a real machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugins, load_plugins, raised
from madlite.backends.recipe_book import RecipeBook, bare_name, loaded_backend, read_book
from madlite.backends.recipes import RecipeBackend
from madlite.catalog.cards import make_card, read_cards
from madlite.catalog.sources import template_root
from madlite.errors import MadliteError, UsageProblem
from madlite.machine.detect import detect_machine
from madlite.machine.host import Host
from madlite.measure.lines import LineSplitter
from madlite.model import Backend, Card, Event, Line, Machine, Reader, Request, RunPlan, RunSpec, Value
from madlite.plan.context import Context, Options
from madlite.plan.inputs import RunInputs, with_requested_values
from madlite.plan.make import make_plan
from madlite.plan.place import DEFAULT_RUNTIME, RuntimeChoice
from madlite.plan.plan_file import Rendered, render
from madlite.platforms.registry import builtin_runtimes
from madlite.testing.flaws import Defect, answered, limited

WORKSPACE = Path("/workspace-of-the-kit")  # is not there, so that nothing of a real folder shows in a plan


def _machine(device: str, count: int) -> Machine:
    """Return GPUs as --machine describes them, whatever machine this is."""
    machine = detect_machine({"device": device, "n_gpus": count}, host=Host(root=WORKSPACE))
    return replace(machine, hostname="", sources={})


_GPUS = (("MI300X", 8), ("MI355X", 8), ("H100", 8), ("H100", 1))
MACHINES: tuple[Machine, ...] = (*(_machine(device, count) for device, count in _GPUS), Machine(pretended=True))
"""What every recipe is rendered for, unless a kit's user names machines."""


class Case(Value, frozen=True):
    """One thing to plan: a card on a machine, with what is requested as --set would, and the caller's variables."""

    card: Card
    machine: Machine
    asked: tuple[tuple[str, str], ...] = ()
    workspace: Path = WORKSPACE
    environ: dict[str, str] = {}

    def __str__(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.asked)
        machine = f"{len(self.machine.gpus)}x{self.machine.device}" if self.machine.gpus else "cpu"
        return f"card {self.card.name} on {machine}" + (f" with {words}" if words else "")


class Made(Value, frozen=True):
    """What became of a case: one of its RunSpecs, its plan and its files."""

    case: Case
    spec: RunSpec
    plan: RunPlan
    files: tuple[Rendered, ...]


def request_of(case: Case) -> Request:
    """Return the request of a case."""
    return with_requested_values(Request(card=case.card, tag=case.card.name), Context(), _options(case))


def _options(case: Case) -> Options:
    workspace = case.workspace
    return Options(workspace=workspace, output=workspace / "perf.csv", sets=case.asked, environ=case.environ)


OFFLINE = ("env.HF_HUB_OFFLINE", "1")  # as a run finds it whose assets are all there
NAME_IT = "name the file as it is"  # what to do about one that is not there
LOG_LIMIT_S = 60.0  # of this process's time
CardLike: TypeAlias = Card | Mapping[str, Any] | Path | str
"""A card, one as models.json writes it, or the path of a models.json."""


class Subject:
    """A backend under test.

    Args:
        backend: an instance.
        cards: cards as models.json writes them, or paths of such files.
        logs: files with the number of training steps in each, None where it is not stated.
        docs: pages that name every setting, mode and metric.
        installed: False for a backend that no entry point brings yet.
        most: at most so many plans, evenly spread, and a third of the odd values and broken logs; None makes all.
        machines: what to plan for.
        templates: further folders of templates, before the one beside the backend's module.
    """

    def __init__(
        self,
        backend: Backend,
        cards: Iterable[CardLike] = (),
        logs: Mapping[str | Path, int | None] | None = None,
        *,
        docs: Iterable[str | Path] = (),
        installed: bool = True,
        most: int | None = None,
        machines: Sequence[Machine] = MACHINES,
        templates: Iterable[str | Path] = (),
    ) -> None:
        self.backend = backend = loaded_backend(backend)
        self.name = str(getattr(backend, "name", "") or type(backend).__name__)
        self.wrong: list[Defect] = []  # in what is given beside the backend
        self.cards = tuple(card for given in cards for card in self._cards(given))
        self.logs = {Path(path): count for path, count in (logs or {}).items()}
        self.docs = tuple(map(Path, docs))
        self.installed, self.most, self.machines = installed, most, tuple(machines)
        self.examples = 12 if most is None else 4
        self._templates = tuple(map(Path, templates))

    def _cards(self, given: CardLike) -> tuple[Card, ...]:
        try:
            if isinstance(given, Card):
                return (given,)
            if isinstance(given, (str, Path)):
                return read_cards(Path(given).read_bytes(), str(given), Path(given).parent)
            return (make_card(dict(given), "the kit", "the card", Path.cwd()),)
        except (MadliteError, OSError) as error:
            hint = 'a card is {"name": …, "backend": …}, or the path of a models.json'
            self.wrong.append(("cards", getattr(error, "message", str(error)), hint))
            return ()

    @cached_property
    def plugins(self) -> Plugins:
        """The installed plugins."""
        return load_plugins()

    @cached_property
    def others(self) -> dict[str, Backend]:
        """The installed backends beside this one."""
        found = {name: loaded_backend(backend) for name, (backend, _) in self.plugins.backends().items()}
        return {name: backend for name, backend in found.items() if type(backend) is not type(self.backend)}

    @cached_property
    def search(self) -> tuple[Path, ...]:
        """Where templates are searched for: as in a run, but for the working folder's own.

        That is beside the plugin's module; of a backend that no plugin brings, beside its class and those it inherits.
        """
        known = self.plugins.backends().values() if self.installed else ()
        mine = [plugin.folder for backend, plugin in known if type(loaded_backend(backend)) is type(self.backend)]
        if not mine:
            kinds = [kind for kind in type(self.backend).__mro__ if kind.__module__.partition(".")[0] != "madlite"]
            files = [getattr(inspect.getmodule(kind), "__file__", None) for kind in kinds]
            mine = [Path(file).parent for file in files if file]
        beside = [place for folder in dict.fromkeys(mine) if folder for place in (folder / "templates", folder)]
        return (*self._templates, *beside, template_root(None))

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """What is planned."""
        every = tuple(self.list_cases())
        if self.most is None or len(every) <= self.most:
            return every
        return tuple(every[at * len(every) // self.most] for at in range(self.most))

    def list_cases(self) -> Iterator[Case]:
        """Yield every card on every machine: as it is, offline, and for each release of a recipe book.

        Recipes of the book that no card names have a card made up for each.
        """
        book = read_book(self.backend.book) if isinstance(self.backend, RecipeBackend) else RecipeBook()
        named = {card.recipe for card in self.cards if isinstance(card.recipe, str)}
        of_book = partial(Card, root=WORKSPACE, source="the kit", backend=self.name, n_gpus="-1")
        spare = [of_book(name=f"recipe_{name}", recipe=name) for name in book.recipes if name not in named]
        for card, machine in product((*self.cards, *spare), self.machines):
            releases = {release for run in book.runs if bare_name(card) in run.cards for release in run.releases}
            for asked in ((), (OFFLINE,), *((("release", release),) for release in sorted(releases))):
                yield Case(card=card, machine=machine, asked=asked)

    @cached_property
    def planned(self) -> tuple[tuple[Made, ...], tuple[Defect, ...], tuple[Case, ...]]:
        """What became of the cases: those that were made, what went wrong, and those that were refused."""
        made: list[Made] = []
        defects: list[Defect] = []
        refused: list[Case] = []
        for case in self.cases:
            try:
                specs = self.expand(case)
            except UsageProblem:
                refused.append(case)
                continue
            except Exception as error:  # noqa: BLE001 - the border to the backend under test
                hint = "expand refuses with madlite.UsageProblem, raises nothing else, and only computes"
                defects.append((str(case), f"expand raised {raised(error)}", hint))
                if isinstance(error, TimeoutError):  # each further one would take as long
                    break
                continue
            try:
                made += self.runs(case, specs)
            except Exception as error:  # noqa: BLE001 - as above
                hint = f"templates are looked for in {', '.join(map(str, self.search))}"
                defects.append((str(case), getattr(error, "message", f"planning raised {raised(error)}"), hint))
        return tuple(made), tuple(defects), tuple(refused)

    def expand(self, case: Case, request: Request | None = None) -> Sequence[RunSpec]:
        """Return the RunSpecs of a case, or of another request on its machine.

        Raises:
            UsageProblem: the backend refuses it.
            TimeoutError: it takes longer than any question needs.
        """
        return answered(self.backend.expand, request or request_of(case), case.machine)

    def plan(self, case: Case, spec: RunSpec) -> RunPlan:
        """Return the plan of a RunSpec.

        Raises:
            UsageProblem: a value does not fit its key.
        """
        traits = builtin_runtimes({})[DEFAULT_RUNTIME].traits
        inputs = RunInputs(
            run_id="kit",
            request=Request(card=case.card, tag=case.card.name),
            backend=self.name,
            spec=spec,
            machine=case.machine,
            options=_options(case),
            context=Context(),
            runtime=RuntimeChoice(runtime=DEFAULT_RUNTIME, origin="kit", traits=traits),
            args=case.card.args,
        )
        return make_plan(inputs)

    def runs(self, case: Case, specs: Sequence[RunSpec] | None = None) -> list[Made]:
        """Return what becomes of a case; raises UsageProblem where it is refused, or a file cannot be rendered."""
        plans = [(spec, self.plan(case, spec)) for spec in specs or self.expand(case)]
        return [Made(case=case, spec=spec, plan=plan, files=render(plan, self.search)) for spec, plan in plans]

    def is_refused(self, plan: RunPlan) -> bool:
        """Return whether the backend's own check keeps a plan from being run."""
        return any(finding.fatal for finding in answered(self.backend.check, plan))

    @property
    def made(self) -> tuple[Made, ...]:
        """The plans that could be made."""
        return self.planned[0]

    def spread(self, count: int) -> list[Made]:
        """Return at most so many of the plans, the first of each set of files before others of its kind."""
        kinds: dict[tuple[object, ...], list[Made]] = {}
        for made in self.made:
            kinds.setdefault((made.plan.templates, made.case.machine.vendor), []).append(made)
        rounds = zip_longest(*kinds.values())
        return [made for group in rounds for made in group if made][:count]

    @cached_property
    def events(self) -> dict[Path, tuple[Event, ...]]:
        """What a fresh reader of foreign logs says of each log."""
        return {path: tuple(read(self.backend.reader(None), lines_of(data))) for path, data in self.bytes.items()}

    @cached_property
    def bytes(self) -> dict[Path, bytes]:
        """The contents of the logs that are there."""
        return {path: path.read_bytes() for path in self.logs if path.is_file()}


def read(reader: Reader, lines: Iterable[Line], limit_s: float = 0.0) -> list[Event]:
    """Return the events of lines.

    Raises:
        TimeoutError: the reader takes longer than `limit_s`, or than any log of the kit needs.
    """
    with limited(limit_s or LOG_LIMIT_S):
        return [event for line in lines for event in reader.feed(line)]


def lines_of(data: bytes, chunk_bytes: int = 1 << 30) -> list[Line]:
    """Return the lines of a log as readers get them where its bytes come in such pieces."""
    splitter = LineSplitter(now=lambda: 0.0)
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return [line for block in (*map(splitter.take, chunks), splitter.take_rest()) for line in splitter.number(block)]
