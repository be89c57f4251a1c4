"""What GPUs are like right before a workload, whatever their driver does."""

from __future__ import annotations

import threading

import pytest

from madlite.machine import telemetry as module
from madlite.machine.host import Host
from madlite.machine.sources.base import Reading, ReadResult
from madlite.machine.telemetry import StartReader
from madlite.model import Gpu, GpuStart

from .test_sampler import Fake


def reader(monkeypatch: pytest.MonkeyPatch, *sources: Fake) -> StartReader:
    def opened(*_: object) -> tuple[list[tuple[Fake, ReadResult]], str]:
        return [(source, source.read()) for source in sources], ""

    monkeypatch.setattr(module, "open_sources", opened)
    return StartReader("AMD", (Gpu(index=0),), Host())


def test_each_reading_is_a_new_one_and_of_the_source_that_costs_least(monkeypatch):
    readings = iter([40.0, 41.0])
    files = Fake(read=lambda: ReadResult(readings=(Reading(index=0, temperature_c=next(readings), clock_mhz=132.0),)))
    tool = Fake()
    made = reader(monkeypatch, files, tool)
    assert made.read() == (GpuStart(index=0, temperature_c=40.0, clock_mhz=132.0),)
    assert made.read()[0].temperature_c == 41.0 and tool.closed and tool.reads == 1
    made.close()
    assert files.closed


def test_a_gpu_that_reports_neither_and_a_driver_that_raises_cost_the_reading_alone(monkeypatch):
    assert reader(monkeypatch, Fake()).read() == ()

    def fail() -> ReadResult:
        raise OSError("gone")

    assert reader(monkeypatch, Fake(read=fail)).read() == ()
    assert StartReader("CPU", (), Host()).read() == (), "without a GPU nothing is opened"


def test_a_driver_that_hangs_is_left_behind_and_not_asked_again(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    free, asked = threading.Event(), []

    def hang() -> ReadResult:
        asked.append(1)
        free.wait(240)
        return ReadResult()

    made = reader(monkeypatch, Fake(read=hang))
    assert made.read() == () and made.read() == () and asked == [1]
    made.close()
    free.set()
