"""What a run's record has of the checks."""

from __future__ import annotations

import pytest

from madlite.doctor import examine as room
from madlite.doctor.check import Answer, Target
from madlite.machine.host_facts import host_facts
from tests.machine.stand_in import Bench


def test_a_record_names_what_lasts_and_differs(bench: Bench) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    bench.file("sys/bus/pci/devices/0000:02:00.0/gpu_busy_percent", "99\n")  # which is the run itself
    told = room.recorded_facts(bench.root)
    assert {name: text for name, text in told.items() if name != "doctor"} == host_facts(bench.root)
    count, _, names = told["doctor"].partition(" checks differ: ")
    assert count.startswith("1 of ") and names == "numa_balancing=1"


def test_a_record_of_a_machine_on_which_nothing_differs(bench: Bench) -> None:
    assert room.recorded_facts(bench.root)["doctor"].startswith("0 of ")


def test_a_record_of_a_machine_without_gpus_has_its_facts_alone(bare: Bench) -> None:
    assert room.recorded_facts(bare.root) == host_facts(bare.root)


def test_a_check_that_breaks_costs_no_run_its_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: Target, right: str) -> Answer:
        raise ValueError("no number")

    monkeypatch.setattr(room, "FUNCTIONS", {**room.FUNCTIONS, "idle": broken, "firmware": broken})
    assert room.recorded_facts(bench.root)["doctor"].startswith("0 of ")


def test_a_machine_that_cannot_be_examined_costs_no_run_its_record(bench: Bench, monkeypatch) -> None:
    monkeypatch.setattr(room, "applicable", lambda target: 1 / 0)
    assert room.recorded_facts(bench.root)["doctor"] == "unknown: division by zero"
