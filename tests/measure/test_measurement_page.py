"""docs/measurement.md says what the code does: thresholds, GFLOP per token, peaks."""

from __future__ import annotations

import re
from pathlib import Path

from madlite.machine.products import FORMATS, gpu_peaks
from madlite.measure import compute, number, steps
from madlite.measure.compute import flops_per_token
from madlite.model import STEPS_APART, Architecture
from madlite.plan.place import load_architectures

PAGE = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text(encoding="utf-8")
FLAT = " ".join(PAGE.split())


def table(first: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with this, without its head."""
    body = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]


def test_the_page_has_the_code_s_thresholds_formula_peaks_and_fields():
    told = {finding: when for finding, when, _ in table("finding")}
    assert told == {
        "low samples": f"fewer than {number.FEWEST_STEPS} steady steps",
        "drift": f"more than {number.MOST_DRIFT:.0%} over the window, and z of at least {number.SURE_Z:.0f}".replace(
            "%", " %"
        ),
        "outliers": f"any step over {100 * steps.FLOOR:.0f} % from the median, and with a modified z-score above "
        f"{steps.Z_SCORE}",
        "scatter": f"a CV above {100 * number.MOST_CV:.0f} %",
    }
    assert f"go back by more than {STEPS_APART}" in FLAT
    assert f"reported from {steps.FEWEST} steps on" in FLAT
    assert f"more than {steps.POINTS} steps the points are the medians of {steps.POINTS} blocks" in FLAT
    assert f"from {steps.FEWEST} steps on" in FLAT
    assert f"More than {100 * compute.MOST_APART:.0f} % apart is a finding" in FLAT
    assert f"({compute.ROUNDING} TFLOP/s)" in FLAT
    # the work of a token is the formula's
    rows = table("model")
    assert len(rows) > 10
    for model, tokens, full, causal in rows:
        shape = load_architectures()[model]
        assert full == f"{flops_per_token(shape, int(tokens), 'full') / 1e9:.2f}"
        assert causal == f"{flops_per_token(shape, int(tokens), 'causal') / 1e9:.2f}"
    # the peaks are the table's
    told = {
        (name, tuple(figures), source)
        for name, *figures, source in table("GPU")
    }  # fmt: skip
    assert told == {
        (one.name, tuple(f"{one.tflops[key]:g}" if key in one.tflops else "" for key in FORMATS), one.source)
        for one in gpu_peaks()
    }
    # every field of a shape is named
    for name in Architecture.__struct_fields__:
        assert re.search(rf"`{name}`|\b{name} = ", PAGE) or name == "name", name
