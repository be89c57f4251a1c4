"""How long a run may be silent, and who said so."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.plan.fields import NO_READER, Layer, resolve, silence_limits
from tests.rows import each_row


def limits(*layers: Layer, reads_steps: bool = True):
    return silence_limits(resolve(None, {}, layers, "a test"), reads_steps=reads_steps)


def asked(origin: str, **values: object) -> Layer:
    return Layer(origin=origin, values=values)


def test_a_log_whose_steps_are_read_has_limits_by_default():
    found = limits()
    assert (found.start_s, found.step_s) == (1800, 300)
    assert set(found.origins.values()) == {"default"} and set(found.origins) == {"start_silence_s", "silence_s"}
    # what is asked for last counts and 0 is none
    found = limits(asked("card", silence_s=600), asked("--silence-limit", silence_s="900", start_silence_s="0"))
    assert (found.start_s, found.step_s) == (0, 900)
    assert found.origins == {"start_silence_s": "--silence-limit", "silence_s": "--silence-limit"}
    # the limit of output has the origin of the option in force
    found = limits(
        asked("--silence-limit", silence_s=3), asked("--start-silence-limit", start_silence_s=9), reads_steps=False
    )
    assert found.start_s == 3 and found.origins["start_silence_s"] == "--silence-limit"


@each_row(
    ("values", "start_s"),
    [
        ({}, 0),
        ({"silence_s": 60}, 60),
        ({"start_silence_s": 90}, 90),
        ({"silence_s": 60, "start_silence_s": 90}, 60),
        ({"silence_s": 90, "start_silence_s": 60}, 60),
        ({"silence_s": 0, "start_silence_s": 60}, 60),
        ({"silence_s": 60, "start_silence_s": 0}, 60),
        ({"silence_s": 0, "start_silence_s": 0}, 0),
    ],
)
def test_a_log_without_steps_has_the_smaller_limit_of_output_that_is_asked_for(values, start_s):
    found = limits(asked("--set", **values), reads_steps=False)
    assert (found.start_s, found.step_s) == (start_s, values.get("silence_s", 0))
    assert found.origins["start_silence_s"] == ("--set" if values else NO_READER)


@each_row("value", ["-1", "soon", "nan"])
def test_a_limit_is_a_number_of_seconds(value):
    with pytest.raises(UsageProblem, match="silence_s takes a number"):
        limits(asked("--set", silence_s=value))
