"""How the numbers of a plugin's own quantities are printed."""

from __future__ import annotations

from msgspec.structs import replace

from madlite.cli.format import figures, mad_lines
from madlite.model import Metric, Result, Status
from tests.factories import WINDOW

OWN = Metric(metric="patches_per_s", text="301.5", status=Status.SUCCESS, value=301.5, unit="patches/s")


def test_a_plugins_own_metric_is_not_mads_and_names_its_unit_once():
    mad = replace(OWN, metric="tok_per_s_per_gpu", text="3256", unit="")
    result = Result(plan_id="r", status=Status.SUCCESS, window=WINDOW, metrics=(mad, replace(OWN, text="290"), OWN))
    assert figures(result).startswith("301.5 patches_per_s (")
    assert dict(mad_lines(result)) == {"by MAD's own rules": "3256 tok_per_s_per_gpu", "also": "290 patches_per_s"}
    assert figures(Result(plan_id="r", status=Status.SUCCESS, metrics=(replace(OWN, metric="rate"),))) == (
        "301.5 rate patches/s"
    )
