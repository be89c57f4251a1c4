from __future__ import annotations

import os
from pathlib import Path

import pytest

from madlite.backends.loader import Plugins
from madlite.cli.format import all_telemetry_lines, telemetry_lines
from madlite.files import Folder
from madlite.machine.host import Host
from madlite.machine.sources.base import Reading, Sample
from madlite.machine.telemetry import SamplingTarget
from madlite.model import (
    Action,
    Gpu,
    GpuUse,
    ImageUsed,
    Machine,
    Place,
    Provenance,
    Quantity,
    Result,
    Status,
    Telemetry,
    Traits,
    Window,
)
from madlite.plan.submission import PlannedRun
from madlite.platforms.host.runtime import HostRuntime
from madlite.run import instrumentation as module
from madlite.run.instrumentation import Instrumentation, TelemetryRecorder
from tests.factories import make_plan
from tests.rows import each_row


class FakeSampler:
    made: SamplingTarget

    def __init__(self, target: SamplingTarget, folder: Folder, name: str, now) -> None:
        FakeSampler.made, self.file = target, folder.path / name
        self.samples = [Sample(t_s=float(t), gpus=(Reading(index=3, power_w=500.0 + t),)) for t in range(5)]
        self.facts, self.source, self.interval_s, self.problem = {"vbios": "1"}, "fake", 2.0, "odd"
        self.foreign_processes, self.processes_known, self.core_share = ("pid 1 x",), True, 0.001
        self.going = False

    def start(self) -> None:
        self.going = True

    def stop(self) -> None:
        self.going = False


class FakeSession:
    handle = "c0ffee"


def sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> TelemetryRecorder:
    monkeypatch.setattr(module, "Sampler", FakeSampler)
    values = {
        "place": Place(gpu_ids=(3,), gpus_per_node=1),
        "machine": Machine(vendor="AMD", gpus=(Gpu(index=3),)),
        "id": "r1",
        **changes,
    }
    return TelemetryRecorder(make_plan(tmp_path, **values), Host(), lambda: 0.0)


def test_partitions_that_all_tell_the_power_of_their_socket_share_it(tmp_path: Path, monkeypatch) -> None:
    gpus = tuple(Gpu(index=n, unique_id="a1", bus=f"0000:05:00.{n}") for n in range(4))
    made = sensors(
        tmp_path, monkeypatch, place=Place(gpu_ids=(2, 3), gpus_per_node=2), machine=Machine(vendor="AMD", gpus=gpus)
    )
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        readings = tuple(Reading(index=n, power_w=600.0) for n in (2, 3))
        made._sampler.samples = [Sample(t_s=float(t), gpus=readings) for t in range(4)]  # type: ignore[union-attr]
    told = made.telemetry(window(began_s=0.0, ended_s=3.0))
    assert told is not None and (told.power_w, told.tokens_per_joule) == (300.0, 8.35)
    assert "whole package" in told.problem


def window(quantity: Quantity = Quantity.TOKENS_PER_S_PER_GPU, **times: float) -> Window:
    numbers = dict.fromkeys(("median", "mean", "min", "max"), 2505.0)
    return Window(quantity=quantity, n=9, first_step=1, last_step=9, dropped=0, std=0.0, cv=0.0, **numbers, **times)


def test_samples_of_the_window_and_tokens_per_joule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sensors(tmp_path, monkeypatch)
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        assert made._sampler.going  # type: ignore[union-attr]
    assert not made._sampler.going  # type: ignore[union-attr]
    told = made.telemetry(window(began_s=0.0, ended_s=2.5))
    assert told is not None
    assert (told.power_w, told.tokens_per_joule, told.samples, told.over) == (501.0, 5.0, 3, "window")
    assert (told.source, told.interval_s, told.cost, told.problem) == ("fake", 2.0, 0.001, "odd")
    assert told.gpus == (GpuUse(index=3, power_w=501.0, power_max_w=502.0),)
    assert made.foreign_processes == ("pid 1 x",) and made.facts == {"vbios": "1"}
    assert FakeSampler.made.own.container == "c0ffee" and FakeSampler.made.own.mark == "MADLITE_RUN_ID=r1"
    assert FakeSampler.made.own.ancestor == os.getpid()


def test_power_of_the_whole_run_gives_no_tokens_per_joule_of_the_window(tmp_path: Path, monkeypatch) -> None:
    made = sensors(tmp_path, monkeypatch)
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        pass
    told = made.telemetry(window(began_s=0.5, ended_s=1.5))
    assert told is not None
    assert (told.over, told.samples, told.power_w, told.tokens_per_joule) == ("run", 5, 502.0, None)


def test_a_tool_that_answers_na_is_a_problem_of_the_record(tmp_path: Path, monkeypatch) -> None:
    made = sensors(tmp_path, monkeypatch)
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        made._sampler.samples = [Sample(t_s=1.0, gpus=(Reading(index=3),))]  # type: ignore[union-attr]
    told = made.telemetry(None)
    assert told is not None
    assert told.problem == "odd; fake reports no power"
    assert lines(told) == [] and shown(told) == [f"telemetry: {told.problem}"]


@pytest.mark.parametrize("seen", [None, window(Quantity.STEP_TIME_S, began_s=0.0, ended_s=9.0)])
def test_no_tokens_per_joule_of_other_numbers(tmp_path: Path, monkeypatch, seen: Window | None) -> None:
    made = sensors(
        tmp_path, monkeypatch, traits=Traits(containerised=False), place=Place(gpu_ids=(3,), gpus_per_node=1)
    )
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        pass
    told = made.telemetry(seen)
    assert told is not None and told.tokens_per_joule is None and told.power_w == 502.0
    assert FakeSampler.made.own.container == "" and FakeSampler.made.own.ancestor > 0


@each_row(
    "changes",
    [
        {"telemetry_s": 0.0},
        {"machine": Machine(), "place": Place()},
        {"machine": Machine(vendor="AMD", gpus=(Gpu(index=3),), pretended=True)},
    ],
)
def test_switched_off_or_without_a_gpu_nothing_is_sampled(tmp_path: Path, monkeypatch, changes) -> None:
    made = sensors(tmp_path, monkeypatch, **changes)
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        pass
    assert made.telemetry(window()) is None and made.foreign_processes is None and made.facts == {}


def test_strangers_that_nobody_can_know_are_not_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sensors(tmp_path, monkeypatch)
    with made.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        pass
    made._sampler.processes_known = False  # type: ignore[union-attr]
    assert made.foreign_processes is None


def lines(telemetry: Telemetry | None, status: Status = Status.SUCCESS) -> list[str]:
    return list(telemetry_lines(Result(plan_id="1", status=status, telemetry=telemetry)))


def shown(telemetry: Telemetry | None) -> list[str]:
    return list(all_telemetry_lines(Result(plan_id="1", status=Status.FAILURE, telemetry=telemetry)))


def test_what_stands_on_the_screen() -> None:
    full = Telemetry(
        samples=40, over="window", power_w=652.4, tokens_per_joule=14.48, throttled=0.18, throttled_by={"thermal": 0.18}
    )
    assert lines(full) == ["power 652 W/GPU, 14.48 tokens/J, throttled 18 % of the window (thermal)"]
    assert lines(full, Status.FAILURE) == []
    small = Telemetry(samples=3, over="window", power_w=1_290.4, tokens_per_joule=1_389.7)
    assert lines(small) == ["power 1,290 W/GPU, 1,390 tokens/J, 3 samples"]
    assert lines(Telemetry(problem="amd-smi: not installed")) == ["no telemetry: amd-smi: not installed"]
    assert lines(Telemetry(samples=9, over="window")) == lines(Telemetry()) == lines(None) == []


@each_row("few", [Telemetry(samples=2, over="window", power_w=9), Telemetry(samples=9, over="run", power_w=9)])
def test_what_says_little_of_the_window_is_not_on_the_screen(few: Telemetry) -> None:
    assert lines(few) == []


def test_the_page_of_a_run_has_whatever_was_sampled_and_says_over_what() -> None:
    short = Telemetry(samples=1, over="run", power_w=129, throttled=0.5, problem="odd")
    assert shown(short) == ["power 129 W/GPU over the whole run, throttled 50 % of the run, 1 sample", "telemetry: odd"]
    assert shown(None) == []


def test_a_result_gets_what_was_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Sampler", FakeSampler)
    machine = Machine(vendor="AMD", gpus=(Gpu(index=3),))
    plan = make_plan(tmp_path, place=Place(gpu_ids=(3,), gpus_per_node=1), machine=machine)
    one = PlannedRun(plan=plan, backends=(), files=(), runtime=HostRuntime({}))
    senses = Instrumentation(one, Plugins(), Host(), lambda: 0.0)
    monkeypatch.setattr(module, "probe", lambda session, plan, action: Provenance(packages={"torch": "2.9"}))
    image = ImageUsed(ref="x", digest="sha256:1", id="sha256:2", labels={"release": "v1"})
    before = Result(plan_id="1", status=Status.SUCCESS, image=image, findings=("first",))
    blank = senses.annotate(before)
    assert blank.telemetry is None and blank.provenance.packages == {} and blank.findings == ("first",)
    senses.probe(FakeSession(), Action(kind="run", argv=("x",)))  # type: ignore[arg-type]
    with senses.sampling(FakeSession(), Folder.open(tmp_path)):  # type: ignore[arg-type]
        pass
    told = senses.annotate(before)
    assert (
        told.telemetry is not None
        and told.telemetry.power_w == 502.0
        and senses.telemetry.foreign_processes == ("pid 1 x",)
    )
    assert told.provenance.packages == {"torch": "2.9"} and told.provenance.labels == {"release": "v1"}
    assert told.provenance.gpu["vbios"] == "1" and told.image.labels == {} and told.image.id == "sha256:2"
