"""What of the knobs of `madlite tune` is offered for a run, and so named beside its profile's largest loss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from msgspec.structs import replace

from madlite.backends.recipe_book import read_book
from madlite.model import StepPart, StepProfile
from madlite.run import executor
from madlite_plugins.primus.backend import Primus
from madlite_plugins.torchtitan.backend import Torchtitan
from tests.plugins.logs import machine_of, plan
from tests.rows import each_row

TITAN, PRIMUS = (Torchtitan(), "llama3.1_8B"), (Primus(), "tree")


@each_row(
    ("run", "device", "gpus", "part", "settings"),
    [
        (TITAN, "H200", 1, "exposed communication", "micro_batch, env_set"),
        (TITAN, "H200", 2, "exposed communication", "micro_batch, reshard, cp, env_set"),
        (TITAN, "H200", 8, "exposed communication", "micro_batch, reshard, tp, pp, cp, env_set, dp_replicate"),
        (PRIMUS, "MI300X", 8, "host gaps", "micro_batch, env_set"),  # compile is torchtitan's
        (PRIMUS, "H200", 8, "host gaps", "micro_batch"),
    ],
)
def test_the_largest_loss_names_what_is_offered_for_the_run_alone(run, device, gpus, part, settings, monkeypatch):
    found = StepProfile(steps=3, step_s=1.0, parts=(StepPart(name=part, time_s=1.0),))
    monkeypatch.setattr(executor, "read_profile", lambda *_: found)
    backend, recipe = run
    made = plan(backend, machine_of(device), recipe)
    made = replace(made, profile=True, place=replace(made.place, gpus_per_node=gpus))
    state = SimpleNamespace(monitor=SimpleNamespace(steps=[1]), profile=None)
    knobs = read_book(backend.book).knobs
    own = SimpleNamespace(plan=made, state=state, planned=SimpleNamespace(knobs=knobs))
    (loss, *_) = executor.RunExecutor._profile(own, SimpleNamespace(work=Path()))
    assert loss.endswith(f"(settings that act on it: {settings})"), loss
