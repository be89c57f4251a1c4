"""How long a run may be silent, and who said so."""

from __future__ import annotations

import pytest

from madlite.errors import UsageProblem
from madlite.plan.fields import NO_READER, Layer, resolve, targeted_values, with_output_limit
from tests.rows import each_row


def resolved(**values: object):
    return resolve(None, {}, [Layer(origin="--set", values=values)] if values else [], "a test")


def test_a_log_whose_steps_are_read_has_limits_by_default():
    found = resolved(silence_s="900", start_silence_s="0")
    assert targeted_values(found) == {"silence_s": 900, "start_silence_s": 0}
    assert targeted_values(resolved()) == {}, "the plan's own defaults"


@each_row(
    ("values", "start_s"),
    [
        ({}, 0),
        ({"silence_s": 60}, 60),
        ({"start_silence_s": 90}, 90),
        ({"silence_s": 90, "start_silence_s": 60}, 90),
        ({"silence_s": 0, "start_silence_s": 60}, 0),
    ],
)
def test_a_log_without_steps_has_the_limit_of_output_that_is_asked_for(values, start_s):
    found = with_output_limit(resolved(**values))
    assert targeted_values(found) == {"start_silence_s": start_s, "silence_s": values.get("silence_s", 0)}
    assert found.origins["start_silence_s"] == ("--set" if values else NO_READER)


@each_row("value", ["-1", "soon", "nan"])
def test_a_limit_is_a_number_of_seconds(value):
    with pytest.raises(UsageProblem, match="silence_s takes a number"):
        resolved(silence_s=value)
