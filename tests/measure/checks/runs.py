"""Runs that had a real log, as the engine judges them: with a plan that fits, and with one fact altered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, Verdict, judge
from madlite.model import Backend, Card, ErrorScan, Exit, Machine, Place, ResultRule, RunPlan, Traits, Variant
from madlite_plugins.flux.backend import Flux
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.megatron_lm.backend import MegatronLM
from madlite_plugins.primus.backend import Primus
from madlite_plugins.primus.rules import result_rule as primus_rule
from madlite_plugins.pytorch_fsdp.backend import PytorchFsdp
from madlite_plugins.torchtitan.backend import Torchtitan
from madlite_plugins.torchtune.backend import Torchtune
from tests.monitors import monitored

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests/data/logs"
DONE = Exit(code=0, duration_s=1e6)
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (Flux(), HuggingFace(), MegatronLM(), Primus(), PytorchFsdp(), Torchtitan(), Torchtune())
}
SCAN = ErrorScan(patterns=("RuntimeError:",), benign=())


def plan_of(
    backend: str,
    variant: Variant | None = None,
    *,
    gpus: int = 0,
    nodes: int = 1,
    framework: str = "",
    **changes: object,
) -> RunPlan:
    """Return a plan of a backend; Primus's rule depends on its framework."""
    made = BACKENDS[backend]
    rule = primus_rule(framework) if framework else made.result_rule()
    return RunPlan(
        id="r1",
        card=Card(name="a card", root=Path(), source="a test"),
        backend=backend,
        traits=Traits(containerised=False),
        place=Place(nodes=nodes, gpus_per_node=gpus),
        machine=Machine(),
        workspace=Path("/space"),
        inside="/space",
        folder=Path("/space/madlite_runs/r1"),
        **{"variant": variant, "result_rule": rule, "settings": {}, **changes},  # type: ignore[arg-type]
    )


def script_plan(**rule: str) -> RunPlan:
    """Return the plan of a card's own script."""
    return replace(plan_of("torchtitan"), backend="script", result_rule=ResultRule(**rule))  # type: ignore[arg-type]


def follow(plan: RunPlan, text: str, *, script_reader: bool = False, scan: ErrorScan | None = None) -> LogMonitor:
    """Return what a run with this output showed."""
    guest_reader = BACKENDS["torchtitan"].reader(None) if script_reader else None
    own = [BACKENDS[plan.backend].reader(plan)] if plan.backend in BACKENDS else []
    return monitored(own, text, error_scan=scan, script_reader=guest_reader)


def text_of(name: str) -> str:
    """Return a log; its name may be that of one in docs/results."""
    path = ROOT / name if "/" in name else LOGS / name
    return path.read_bytes().decode("utf-8", "replace")


def judged(
    plan: RunPlan, name: str, alter: Callable[[str], str] = lambda text: text, seen: Observation | None = None
) -> Verdict:
    """Return the verdict of a run with a real log, altered."""
    altered = alter(text_of(name))
    return judge(plan, seen or Observation(exit=DONE), follow(plan, altered))


def says(verdict: Verdict) -> dict[str, str]:
    """Return the status of each check."""
    return {check.name: check.status for check in verdict.checks}


def texts(verdict: Verdict) -> dict[str, str]:
    """Return the text of each check."""
    return {check.name: check.text for check in verdict.checks}
