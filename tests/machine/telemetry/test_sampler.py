"""The thread that samples: what it writes, and that nothing a driver does reaches the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from madlite.files import Folder
from madlite.machine import telemetry as module
from madlite.machine.host import Host
from madlite.machine.processes import OwnProcesses
from madlite.machine.sources.base import GpuProcess, Reading, ReadResult
from madlite.machine.sources.nvml import Nvml
from madlite.machine.telemetry import Sampler, SamplingTarget
from madlite.model import Gpu
from tests.waiting import WAIT_S, wait_until

from .fakes import GIB, FakeNvml, first_table


class Fake:
    """A source whose members can be replaced."""

    name = "fake"
    least_interval_s = 0.001

    def __init__(self, **members: object) -> None:
        self.reads = 0
        self.closed = False
        self.__dict__.update(members)

    def read(self) -> ReadResult:
        self.reads += 1
        return ReadResult(readings=(Reading(index=0, power_w=float(self.reads)),))

    def processes(self) -> tuple[GpuProcess, ...] | None:
        return ()

    def facts(self) -> dict[str, str]:
        return {"vbios": "1"}

    def close(self) -> None:
        self.closed = True


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *sources: object, vendor: str = "NVIDIA") -> Sampler:
    """A sampler of these sources, on a machine whose files are below tmp_path."""

    def opened(*_: object) -> tuple[list[tuple[object, ReadResult]], str]:
        return [(source, source.read()) for source in sources], "" if sources else "nothing is here"  # type: ignore[attr-defined]

    monkeypatch.setattr(module, "open_sources", opened)
    monkeypatch.setattr(module, "SHARE", 1e9)  # real time is no part of these tests
    target = SamplingTarget(
        vendor=vendor,  # type: ignore[arg-type]
        gpus=(Gpu(index=0), Gpu(index=1)),
        interval_s=0.002,
        own=OwnProcesses(mark="M=1"),
        host=Host(root=tmp_path),
    )
    ticks = iter(range(1_000_000))
    return Sampler(target, Folder.open(tmp_path), "telemetry.jsonl", lambda: float(next(ticks)))


def test_samples_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Fake()
    sampler = make(tmp_path, monkeypatch, source)
    sampler.start()
    wait_until(lambda: len(sampler.samples) > 3)
    lines = (tmp_path / "telemetry.jsonl").read_text().splitlines()
    assert len(lines) >= 3  # while it goes on
    sampler.stop()
    lines = (tmp_path / "telemetry.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"t_s": 0.0, "gpus": [{"index": 0, "power_w": 1.0}]}
    assert len(lines) == len(sampler.samples)
    assert (sampler.source, sampler.facts, sampler.problem, source.closed) == ("fake", {"vbios": "1"}, "", True)
    assert sampler.core_share is not None and sampler.core_share >= 0


def test_a_gpu_that_is_lost_is_said_once_and_the_other_is_sampled(tmp_path: Path, monkeypatch) -> None:
    library = FakeNvml()
    sampler = make(tmp_path, monkeypatch, Nvml(library, (0, 1)))
    monkeypatch.setattr(Nvml, "least_interval_s", 0.001)
    sampler.start()
    wait_until(lambda: len(sampler.samples) > 2)
    library.lost = {0}
    wait_until(lambda: sampler.samples[-1].gpus[0].index == 1)
    seen = len(sampler.samples)
    wait_until(lambda: len(sampler.samples) > seen + 3)
    sampler.stop()
    assert sampler.problem == "GPU 0: GPU is lost"
    assert {one.index for one in sampler.samples[0].gpus} == {0, 1}


def test_a_driver_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.01)
    stuck = threading.Event()
    sampler = make(tmp_path, monkeypatch, Fake(facts=lambda: stuck.wait(WAIT_S) and {}))
    sampler.start()
    wait_until(lambda: bool(sampler.samples))
    sampler.stop()
    assert sampler.problem == "fake did not answer in time"
    stuck.set()
    sampler._thread.join(WAIT_S)


def test_a_driver_s_library_may_raise_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Fake(processes=lambda: 1 / 0)
    first_table(tmp_path / "proc")
    sampler = make(tmp_path, monkeypatch, source)
    sampler.start()
    sampler._thread.join(WAIT_S)
    sampler.stop()
    assert sampler.problem == "ZeroDivisionError: division by zero"
    assert source.closed and len(sampler.samples) == 1


def test_no_source_is_a_problem_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make(tmp_path, monkeypatch)
    sampler.start()
    sampler._thread.join(WAIT_S)
    sampler.stop()
    assert (sampler.problem, sampler.samples, sampler.processes_known) == ("nothing is here", [], False)
    assert not (tmp_path / "telemetry.jsonl").exists()
    # a run that ends at once
    sampler = make(tmp_path, monkeypatch, Fake(read=lambda: ReadResult()))
    sampler.start()
    sampler.stop()
    assert sampler.problem == "no sample before the run ended"


def test_a_file_that_cannot_be_written_costs_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "telemetry.jsonl").mkdir()
    sampler = make(tmp_path, monkeypatch, Fake())
    sampler.start()
    wait_until(lambda: len(sampler.samples) > 3)
    sampler.stop()
    assert sampler.problem == "telemetry.jsonl is incomplete: Is a directory"


def test_the_file_and_the_samples_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    monkeypatch.setattr(module, "MOST_SAMPLES", 8)
    source = Fake()
    sampler = make(tmp_path, monkeypatch, source)
    sampler.start()
    wait_until(lambda: source.reads > 20)
    sampler.stop()
    assert len(sampler.samples) <= 8 and sampler.interval_s >= 0.004
    assert (tmp_path / "telemetry.jsonl").stat().st_size <= 100
    watts = [one.gpus[0].power_w for one in sampler.samples]
    assert watts == sorted(watts) and watts[0] == 1.0


def test_a_source_is_read_anew_when_what_is_beside_it_was_opened(tmp_path: Path, monkeypatch) -> None:
    files, tool = Fake(), Fake()
    sampler = make(tmp_path, monkeypatch, files, tool)
    sampler.start()
    wait_until(lambda: len(sampler.samples) > 1)
    sampler.stop()
    assert [one.gpus[0].power_w for one in sampler.samples[:2]] == [2.0, 1.0]  # the first was of before the tool's


def test_what_costs_more_or_stands_beside_a_slow_tool_is_asked_more_seldom() -> None:
    paced = module._Schedule(Fake(), 1.0)  # type: ignore[arg-type]
    paced.was_read(0.001)
    assert paced.interval_s == 1.0
    paced.was_read(0.5)
    assert paced.interval_s == 100.0
    for _ in range(3):
        paced.was_read(0.001)
    assert paced.interval_s == 1.0
    beside = module._Schedule(Fake(), 1.0)  # type: ignore[arg-type]
    beside.was_read(0.001, 10.0)
    assert beside.interval_s == 90.0
    beside.was_read(0.001, 0.01)
    assert beside.interval_s == 1.0


def test_strangers_are_looked_for_before_and_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESSES_EVERY_S", 0.0)
    proc = tmp_path / "proc"
    first_table(proc)
    for pid, command in ((5, b"train\0"), (6, b"late\0")):
        (proc / str(pid)).mkdir()
        (proc / f"{pid}/cmdline").write_bytes(command)
        (proc / f"{pid}/stat").write_text(f"{pid} (x) R 1 {pid}{' 0' * 17} 4096 0\n")
    library = FakeNvml(users=[(0, SimpleNamespace(pid=5, usedGpuMemory=None))])  # its GPU is at work
    sampler = make(tmp_path, monkeypatch, Nvml(library, (0, 1)))
    monkeypatch.setattr(Nvml, "least_interval_s", 0.001)
    sampler.start()
    wait_until(lambda: bool(sampler.foreign_processes))
    library.users = [(1, SimpleNamespace(pid=6, usedGpuMemory=2 * GIB))]
    wait_until(lambda: len(sampler.foreign_processes) == 2)
    sampler.stop()
    assert sampler.processes_known
    assert sampler.foreign_processes == ("pid 6 late, 2.0 GiB on GPU 1", "pid 5 train, on GPU 0")


def test_kfd_is_asked_before_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_table(tmp_path / "proc")
    sampler = make(tmp_path, monkeypatch, Fake(processes=lambda: None), vendor="AMD")
    monkeypatch.setattr(module, "kfd_processes", lambda root, gpus: ())
    sampler.start()
    wait_until(lambda: sampler.processes_known)
    sampler.stop()


def test_in_a_container_strangers_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make(tmp_path, monkeypatch, Fake(processes=lambda: (GpuProcess(pid=1, gpu=0, memory_bytes=GIB),)))
    sampler.start()
    wait_until(lambda: len(sampler.samples) > 2)
    sampler.stop()
    assert (sampler.foreign_processes, sampler.processes_known) == ((), False)
