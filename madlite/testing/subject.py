"""What is tested: a backend with its cards, logs and pages, and the plans and files that are made of them once.

Plans are made as a run makes them, but without a real machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from madlite.backends.loader import Plugins, load_plugins
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
from madlite.testing.flaws import CALL_LIMIT_S, Defect, answered, attempt, limited, raised, watch

WORKSPACE = Path("/workspace-of-the-kit")  # is not there, so that nothing of a real folder shows in a plan


def _machine(device: str, count: int) -> Machine:
    """Return GPUs as --machine describes them, whatever machine this is."""
    machine = detect_machine({"device": device, "n_gpus": count}, host=Host(root=WORKSPACE))
    return replace(machine, hostname="", sources={})


MACHINES: tuple[Machine, ...] = (
    _machine("MI300X", 8),
    _machine("MI355X", 8),
    _machine("H100", 8),
    _machine("H100", 1),
    Machine(pretended=True),
)
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


def expand(backend: Backend, case: Case, request: Request | None = None) -> Sequence[RunSpec]:
    """Return the RunSpecs of a case, or of another request on its machine.

    Raises:
        UsageProblem: the backend refuses it.
        TimeoutError: it takes longer than any question needs.
    """
    with limited(CALL_LIMIT_S):
        return backend.expand(request or request_of(case), case.machine)


def request_of(case: Case) -> Request:
    """Return the request of a case."""
    return with_requested_values(Request(card=case.card, tag=case.card.name), Context(), _options(case))


def plan_of(backend: Backend, case: Case, spec: RunSpec) -> RunPlan:
    """Return the plan of a RunSpec.

    Raises:
        UsageProblem: a value does not fit its key.
    """
    traits = builtin_runtimes({})[DEFAULT_RUNTIME].traits
    inputs = RunInputs(
        run_id="kit",
        request=Request(card=case.card, tag=case.card.name),
        backend=backend.name,
        spec=spec,
        machine=case.machine,
        options=_options(case),
        context=Context(),
        runtime=RuntimeChoice(runtime=DEFAULT_RUNTIME, origin="kit", traits=traits),
        args=case.card.args,
    )
    return make_plan(inputs)


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
        outputs: folders of files that a run leaves, where the reader's finish() reads some.
        docs: pages that name every setting, mode and metric.
        foreign: logs of other backends, with their owner's name, that this one must not claim.
        asks: values to plan every card with, beside as it is, each as --set would give them: [{"mode": "tune"}].
        machines: what to plan for.
        templates: further folders of templates, before the one beside the backend's module.
        installed: False for a backend that no entry point brings yet.
        most: at most so many plans, evenly spread; None makes all of them.
        examples: with how many plans odd values, secrets and strange words are tried, and how often each log is broken;
            None is 12, and 4 where `most` says a number.
    """

    def __init__(
        self,
        backend: Backend,
        cards: Iterable[CardLike] = (),
        logs: Mapping[str | Path, int | None] | None = None,
        *,
        outputs: Iterable[str | Path] = (),
        docs: Iterable[str | Path] = (),
        foreign: Mapping[str | Path, str] | None = None,
        asks: Iterable[Mapping[str, str]] = (),
        machines: Sequence[Machine] = MACHINES,
        templates: Iterable[str | Path] = (),
        installed: bool = True,
        most: int | None = None,
        examples: int | None = None,
    ) -> None:
        self.backend = backend = loaded_backend(backend)
        self.name = str(getattr(backend, "name", "") or type(backend).__name__)
        self.wrong: list[Defect] = []  # in what is given beside the backend
        self.cards = tuple(card for given in cards for card in self._cards(given))
        self.logs = {Path(path): count for path, count in (logs or {}).items()}
        self.outputs = tuple(Path(path) for path in outputs)
        self.docs = tuple(Path(path) for path in docs)
        self.foreign = {Path(path): owner for path, owner in (foreign or {}).items()}
        self.asks = tuple(asks)
        self.machines = tuple(machines)
        self.installed = installed
        self.most = most
        self.examples = examples or (12 if most is None else 4)
        # of planning, before anything was cached: what it did to the world, what members answered, and how they failed
        self.done_at_first: list[tuple[str, str]] = []
        self.answers: list[tuple[str, Case, Any, str]] = []
        self._templates = tuple(map(Path, templates))

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
        known = self.plugins.backends() if self.installed else {}
        mine = [
            plugin.folder for backend, plugin in known.values() if type(loaded_backend(backend)) is type(self.backend)
        ]
        folders = [folder for folder in mine or _folders_of(self.backend) if folder]
        beside = [place for folder in dict.fromkeys(folders) for place in (folder / "templates", folder)]
        return (*self._templates, *beside, template_root(None))

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """What is planned."""
        every = tuple(self.list_cases())
        if self.most is None or len(every) <= self.most:
            return every
        return tuple(every[at * len(every) // self.most] for at in range(self.most))

    def list_cases(self) -> Iterator[Case]:
        """Yield every card on every machine: as it is, offline, as `asks` says, and for each release of a recipe book.

        Recipes of the book that no card names have a card made up for each.
        """
        wanted = [(), (OFFLINE,), *(tuple(ask.items()) for ask in self.asks)]
        book = read_book(self.backend.book) if isinstance(self.backend, RecipeBackend) else RecipeBook()
        named = {card.recipe for card in self.cards if isinstance(card.recipe, str)}
        of_book = partial(Card, root=WORKSPACE, source="the kit", backend=self.name, n_gpus="-1")
        spare = [of_book(name=f"recipe_{name}", recipe=name) for name in book.recipes if name not in named]
        for card, machine in product((*self.cards, *spare), self.machines):
            releases = {release for run in book.runs if bare_name(card) in run.cards for release in run.releases}
            for asked in (*wanted, *((("release", release),) for release in sorted(releases))):
                yield Case(card=card, machine=machine, asked=asked)

    @cached_property
    def planned(self) -> tuple[tuple[Made, ...], tuple[Defect, ...], tuple[Case, ...]]:
        """What became of the cases: those that were made, what went wrong, and those that were refused."""
        made: list[Made] = []
        defects: list[Defect] = []
        refused: list[Case] = []
        for case in self.cases:
            try:
                with self._watched("expand", case):
                    specs = expand(self.backend, case)
            except UsageProblem:
                refused.append(case)
                continue
            except Exception as error:  # noqa: BLE001 - the border to the backend under test
                hint = "expand refuses with madlite.UsageProblem, raises nothing else, and only computes"
                defects.append((str(case), f"expand raised {raised(error)}", hint))
                if isinstance(error, TimeoutError):  # each further one would take as long
                    break
                continue
            self.answers.append(("expand", case, specs, ""))
            try:
                made += [self._make(case, spec) for spec in specs]
            except Exception as error:  # noqa: BLE001 - as above
                hint = f"templates are looked for in {', '.join(map(str, self.search))}"
                what = error.message if isinstance(error, MadliteError) else f"planning raised {raised(error)}"
                defects.append((str(case), what, hint))
        for plan, member in product(_spread(made, 8), ("check", "assets")):
            with self._watched(member, plan.case):
                items, wrong = attempt(answered, getattr(self.backend, member, None), plan.plan)
            self.answers.append((member, plan.case, items or (), wrong))
            if wrong.startswith("TimeoutError"):
                break
        return tuple(made), tuple(defects), tuple(refused)

    @contextmanager
    def _watched(self, member: str, case: Case) -> Iterator[None]:
        with watch() as done:
            try:
                yield
            finally:
                self.done_at_first += [(f"{member} of {case}", what) for what in dict.fromkeys(done)]

    def _cards(self, given: CardLike) -> tuple[Card, ...]:
        try:
            if isinstance(given, Card):
                return (given,)
            if isinstance(given, (str, Path)):
                return read_cards(Path(given).read_bytes(), str(given), Path(given).parent)
            return (make_card(dict(given), "the kit", "the card", Path.cwd()),)
        except (MadliteError, OSError) as error:
            what = error.message if isinstance(error, MadliteError) else str(error)
            hint = 'a card is {"name": …, "backend": …}, or the path of a models.json'
            self.wrong.append(("cards", what, hint))
            return ()

    def runs(self, case: Case) -> list[Made]:
        """Return what becomes of a case.

        Raises:
            MadliteError: it is refused, or cannot be planned or rendered.
        """
        return [self._make(case, spec) for spec in expand(self.backend, case)]

    def _make(self, case: Case, spec: RunSpec) -> Made:
        plan = plan_of(self.backend, case, spec)
        return Made(case=case, spec=spec, plan=plan, files=render(plan, self.search))

    @property
    def made(self) -> tuple[Made, ...]:
        """The plans that could be made."""
        return self.planned[0]

    def spread(self, count: int) -> tuple[Made, ...]:
        """Return at most so many of the plans, the first of each set of files before others of its kind."""
        return _spread(self.made, count)

    @cached_property
    def events(self) -> dict[Path, tuple[Event, ...]]:
        """What a fresh reader of foreign logs says of each log."""
        return {path: tuple(read(self.backend.reader(None), lines_of(data))) for path, data in self.bytes.items()}

    @cached_property
    def bytes(self) -> dict[Path, bytes]:
        """The contents of the logs that are there."""
        return {path: path.read_bytes() for path in self.logs if path.is_file()}


def _spread(made: Sequence[Made], count: int) -> tuple[Made, ...]:
    kinds: dict[tuple[object, ...], list[Made]] = {}
    for plan in made:
        kinds.setdefault((plan.plan.templates, plan.case.machine.vendor), []).append(plan)
    rounds = max(map(len, kinds.values()), default=0)
    ordered = [group[at] for at in range(rounds) for group in kinds.values() if at < len(group)]
    return tuple(ordered[:count])


def is_refused(backend: Backend, plan: RunPlan) -> bool:
    """Return whether the backend's own check keeps a plan from being run."""
    return any(finding.fatal for finding in answered(backend.check, plan))


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
    return [*(line for chunk in chunks for line in splitter.feed(chunk)), *splitter.flush()]


def _folders_of(backend: object) -> list[Path]:
    """Return where the modules of a backend's class lie, and of those that it inherits, but for madlite's own."""
    modules = [
        inspect.getmodule(kind) for kind in type(backend).__mro__ if kind.__module__.partition(".")[0] != "madlite"
    ]
    files = [getattr(module, "__file__", None) for module in modules]
    return list(dict.fromkeys(Path(file).parent for file in files if file))
