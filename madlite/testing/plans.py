"""Card, machine and request → plan and files, as a run makes them, but without a real machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.backends.recipe_book import RecipeBook, bare_name, read_book
from madlite.backends.recipes import RecipeBackend
from madlite.machine import Host, detect_machine
from madlite.model import Backend, Card, Machine, Request, RunPlan, RunSpec, Value
from madlite.plan.context import Context, Options
from madlite.plan.fields import requested_origins, requested_values
from madlite.plan.inputs import RunInputs, layers
from madlite.plan.make import make_plan
from madlite.plan.place import DEFAULT_RUNTIME, RuntimeChoice
from madlite.plan.render import Rendered, render
from madlite.platforms.registry import builtin_runtimes
from madlite.testing.flaws import CALL_LIMIT_S, limited

OFFLINE = ("env.HF_HUB_OFFLINE", "1")  # as a run finds it whose assets are all there
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


def list_cases(
    backend: Backend, cards: Sequence[Card], machines: Sequence[Machine], asks: Iterable[Mapping[str, str]] = ()
) -> Iterator[Case]:
    """Yield every card on every machine: as it is, offline, as `asks` says, and for each release of a recipe book.

    The runs of a book for other GPUs are requested on the first machine, and its recipes that no card names with a card
    made up for each.
    """
    wanted = [(), (OFFLINE,), *(tuple(ask.items()) for ask in asks)]
    book = read_book(backend.book) if isinstance(backend, RecipeBackend) else RecipeBook()
    named = {card.recipe for card in cards if isinstance(card.recipe, str)}
    spare = [_card_of(backend.name, recipe) for recipe in book.recipes if recipe not in named]
    for card in (*cards, *spare):
        for machine in machines:
            others = {machine.device for machine in machines} if machine is machines[0] else None
            for asked in (*wanted, *_of_book(book, card, others)):
                yield Case(card=card, machine=machine, asked=asked)


def expand(backend: Backend, case: Case) -> Sequence[RunSpec]:
    """Return the RunSpecs of a case.

    Raises:
        UsageProblem: the backend refuses it.
        TimeoutError: it takes longer than any question needs.
    """
    return expand_request(backend, request_of(case), case.machine)


def expand_request(backend: Backend, request: Request, machine: Machine) -> Sequence[RunSpec]:
    """Return the RunSpecs of a request, as `expand` does."""
    with limited(CALL_LIMIT_S):
        return backend.expand(request, machine)


def request_of(case: Case) -> Request:
    """Return the request of a case."""
    request = Request(card=case.card, tag=case.card.name)
    sources = layers(request, Context(), _options(case))
    return replace(request, settings=requested_values(sources), origins=requested_origins(sources))


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


def finish(backend: Backend, case: Case, spec: RunSpec, search: Sequence[Path]) -> Made:
    """Return a RunSpec with its plan and files.

    Raises:
        UsageProblem: a value does not fit its key, or a template has a mistake.
    """
    plan = plan_of(backend, case, spec)
    return Made(case=case, spec=spec, plan=plan, files=render(plan, search))


def _options(case: Case) -> Options:
    workspace = case.workspace
    return Options(workspace=workspace, output=workspace / "perf.csv", sets=case.asked, environ=case.environ)


def _card_of(backend: str, recipe: str) -> Card:
    return Card(name=f"recipe_{recipe}", root=WORKSPACE, source="the kit", backend=backend, recipe=recipe, n_gpus="-1")


def _of_book(book: RecipeBook, card: Card, known: Collection[str] | None) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield what can be requested of a card's runs: each release, and, given those that are known, each other GPU."""
    runs = [run for run in book.runs if bare_name(card) in run.cards]
    for release in sorted({release for run in runs for release in run.releases}):
        yield (("release", release),)
    seen = {(release, device) for run in runs for release in run.releases or ("",) for device in run.devices}
    for release, device in sorted(seen) if known is not None else ():
        if device not in (known or ()):
            asked = (("release", release), ("recipe_device", device))
            yield tuple((key, value) for key, value in asked if value)
