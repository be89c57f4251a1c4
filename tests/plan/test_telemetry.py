from __future__ import annotations

import pytest
from msgspec.structs import fields

from madlite.errors import UsageProblem
from madlite.model import RunPlan
from madlite.plan.fields import Layer, resolve, targeted_values
from tests.rows import each_row

DEFAULT_S = next(field.default for field in fields(RunPlan) if field.name == "telemetry_s")


def interval(**values: str) -> float:
    resolved = resolve(None, {}, [Layer(origin="--set", values=dict(values))], "card")
    return targeted_values(resolved).get("telemetry_s", DEFAULT_S)


@each_row(
    ("values", "seconds"),
    [
        ({}, 1.0),
        ({"telemetry": "false"}, 0.0),
        ({"telemetry": "off", "telemetry_s": "5"}, 0.0),
        ({"telemetry": "true"}, 1.0),
        ({"telemetry_s": "5"}, 5.0),
        ({"telemetry_s": "0"}, 0.0),
    ],
)
def test_how_often_gpus_are_sampled(values: dict[str, str], seconds: float) -> None:
    assert interval(**values) == seconds


@each_row("values", [{"telemetry": "perhaps"}, {"telemetry_s": "-1"}, {"telemetry_s": "nan"}])
def test_values_that_make_no_sense_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(UsageProblem, match="telemetry"):
        interval(**values)
