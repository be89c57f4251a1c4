"""Waiting for GPUs to cool down, by a clock that a wait moves on."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from madlite.errors import UsageProblem
from madlite.machine.telemetry import UNKNOWN, Settle, make_settle, settling_text
from madlite.model import GpuStart
from tests.rows import each_row


class Cooling:
    """GPUs whose hottest loses a degree each second that somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.celsius = 40.0
        self.said: list[str] = []
        self.over = Event()
        self.over.wait = self._wait  # type: ignore[method-assign,assignment]

    def _wait(self, seconds: float | None = None) -> bool:
        self.now_s += seconds or 0.0
        self.celsius -= seconds or 0.0
        return self.over.is_set()

    def read(self) -> tuple[GpuStart, ...]:
        return (GpuStart(index=0, temperature_c=30.0), GpuStart(index=1, temperature_c=self.celsius, clock_mhz=132.0))

    def wait(self, settle: Settle):
        return settle.wait(self.read, lambda: 1.0, self.over, self.said.append)


@pytest.fixture
def gpus() -> Iterator[Cooling]:
    yield Cooling()


def test_the_first_run_starts_at_once_and_the_next_within_two_degrees_of_it(gpus):
    settle = Settle(clock=lambda: gpus.now_s)
    starts, first = gpus.wait(settle)
    assert first.waited_s == 0 and starts[1].clock_mhz == 132.0 and settling_text(first) == ""
    gpus.celsius = 60.0
    starts, second = gpus.wait(settle)
    assert (second.from_c, second.to_c, second.target_c) == (60.0, 42.0, 42.0)
    assert (second.waited_s, second.reached) == (18.0, True)
    assert starts[1].temperature_c == 42.0, "the start that stands beside the number is that after the wait"
    assert settling_text(second) == "waited 18 s for the GPUs to cool down from 60 °C to 42 °C (--settle)"
    assert gpus.said[0] == "cooling down: 60 °C, until 42 °C"


def test_a_wait_ends_with_its_time_and_says_what_is_left(gpus):
    _, settling = gpus.wait(Settle(30.0, 4.0, clock=lambda: gpus.now_s))
    assert (settling.reached, settling.waited_s, settling.to_c) == (False, 4.0, 36.0)
    said = "waited 4 s for the GPUs to cool down from 40 °C, and they began at 36 °C, not 30 °C (--settle)"
    assert settling_text(settling) == said


def test_a_stop_ends_the_wait(gpus):
    gpus.over.set()
    _, settling = gpus.wait(Settle(30.0, clock=lambda: gpus.now_s))
    assert settling.waited_s == 0 and not settling.reached


def test_where_no_temperature_is_known_that_is_said_once():
    settle = Settle()
    assert settle.wait(lambda: (), lambda: 1.0, Event(), str) == ((), None)
    assert (settle.unknown(), settle.unknown()) == (UNKNOWN, "")


@each_row("text", ["hot", "nan", "-4", "400", "demo_tag"])
def test_what_is_no_temperature_is_refused_with_its_spelling(text):
    with pytest.raises(UsageProblem, match=f"--settle {text}: it is no temperature") as refused:
        make_settle(text, 1.0)
    assert "--settle=45" in refused.value.hint
