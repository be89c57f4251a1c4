"""Card, machine and request → plan and files, as a run makes them, but without a real machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

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
