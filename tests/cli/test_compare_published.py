"""`compare published`: which figures stand beside which series, what is named with them, and what a gate does."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Card, Machine, Metric, Place, Status, Variant
from tests.cli.stored_runs import good, store
from tests.csv_results import row, write
from tests.rows import each_row

SHAPE = "Llama-3.1-8B, settings"  # the origin of an architecture that a setting changed
LAB = """
source = "lab sheet"
metric = "tokens_per_s_per_gpu"
device = "MI300X"
precision = "BF16"
seq_len = 8192
[[reference]]
model = "Llama-3.1-8B"
value = 10000
date = 2026-11-01
micro_batch = 3
gpus = 8
condition = "ROCm 7.1, 750 W"
url = "https://example.com/sheet"
[[reference]]
model = "Llama 3.1 8B"
source = "data centre"
value = 9000
[[reference]]
model = "Llama-3.1-70B"
value = 1
"""


def run(folder: Path, day: int, number: float, **changes: object) -> str:
    name = f"202611{day:02}T120000-a-0000{day:02}"
    metric = Metric(metric="tokens_per_s_per_gpu", text=f"{number:g}", status=Status.SUCCESS, value=number)
    variant = Variant(model="Llama-3.1-8B", precision="BF16", seq_len=8192, micro_batch=4, release="v25.2")
    common = {
        "card": Card(name="pyt_train_llama-3.1-8b", root=folder, source="x"),
        "machine": Machine(vendor="AMD", device="MI300X", architecture="gfx942"),
        "place": Place(gpus_per_node=8),
        "variant": variant,
    }
    store(folder, name, good(name, f"2026-11-{day:02}T12:00:00+00:00", metrics=(metric,)), **{**common, **changes})
    return name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MADLITE_REFERENCES", raising=False)
    (tmp_path / "madlite_references.toml").write_text(LAB)
    run(tmp_path, 2, 9500.0)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(["compare", *args]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def series(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, dict]:
    found = json.loads(said(capsys, *args, "--json", code=code))
    return {one["source"].removesuffix(" in madlite_references.toml"): one for one in found["series"]}


def test_each_figure_that_applies_is_a_line_with_its_source_and_what_differs(place, capsys):
    found = series(capsys, "published", "last")
    assert {name: (one["base"], one["ratio"], one["base_runs"]) for name, one in found.items()} == {
        "lab sheet": (10000.0, 0.95, 1),
        "data centre": (9000.0, 9500 / 9000, 1),
    }
    assert {one["verdict"] for one in found.values()} == {"insufficient data"}
    assert found["lab sheet"]["differences"] == [{"name": "batch", "base": ["3"], "new": ["4"]}]
    assert found["data centre"]["differences"] == [] and "micro_batch" in found["data centre"]["unknown"]
    text = said(capsys, "published")
    assert "-5.00 %" in text and "+5.56 %" in text and "a published figure has no spread" in text
    assert "batch: 3 → 4" in text
    note = "(2026-11-01, https://example.com/sheet): Llama-3.1-8B BF16 10,000 tokens/s/GPU on 8xMI300X: ROCm 7.1, 750 W"
    assert f"note: lab sheet in madlite_references.toml {note}" in text


def test_a_figure_has_no_spread_however_many_runs_there_are(place, capsys):
    for day in range(3, 13):
        run(place, day, 9500.0 + day)
    found = series(capsys, "published", "device=MI300X")["lab sheet"]
    assert (found["verdict"], found["p"], found["new_runs"]) == ("insufficient data", None, 11)
    assert found["new"] == 9507.0, "the median of 9500 and 9503 to 9512"


def test_a_gate_works_on_the_ratio(place, capsys):
    text = said(capsys, "published", "last", "--fail-on", "regression>3%", code=5)
    name = "pyt_train_llama-3.1-8b script pretrain BF16 seq 8192 mbs 4 8xMI300X tokens_per_s_per_gpu"
    failed = [line for line in text.splitlines() if line.startswith("failed")]
    assert failed == [
        f"failed regression>3%: {name} to lab sheet in madlite_references.toml: -5.00%; "
        "a published figure has no spread; no noise floor is known"
    ]
    assert "failed" not in said(capsys, "published", "last", "--fail-on", "regression>6%")
    assert "failed" not in said(capsys, "published", "last", "--fail-on", "regression", "--noise", "3%")
    said(capsys, "published", "last", "--require-data", code=5)
    said(capsys, "published", "last", "--fail-on", "regression>3%", "--junit", "x.xml", code=5)
    cases = ElementTree.parse(place / "x.xml").getroot()[0]
    assert [(("lab" in case.attrib["name"]), case.find("failure") is not None) for case in cases] == [
        *((True, True), (False, False))
    ]


def test_two_figures_of_one_document_are_told_apart(place, capsys):
    (place / "madlite_references.toml").write_text(LAB.replace('source = "data centre"', ""))
    assert [*series(capsys, "published", "last")] == [
        "lab sheet in madlite_references.toml: 10,000",
        "lab sheet in madlite_references.toml: 9,000",
    ]


def test_a_results_file_is_compared_by_the_records_of_its_runs_or_by_its_own_columns(place, capsys):
    cells = {"seq_len": "8192", "device": "MI300X", "model": "llama-3.1-8b", "training_precision": "bf16"}
    rows = [row(9600, **cells), row(9400, **cells)]
    write(place / "perf.csv", rows, columns=[*rows[0]])
    assert series(capsys, "published", "perf.csv")["lab sheet"]["ratio"] == 0.95, "the median of 9600 and 9400"
    write(place / "bare.csv", [row(9600, model="llama-3.1-8b")])
    text = said(capsys, "published", "bare.csv", code=4)
    assert "no published figure applies to bare.csv; not known of llama-3.1-8b" in text and ": seq_len" in text


def test_a_series_whose_newest_run_has_another_shape_is_compared_with_none(place, capsys):
    run(place, 3, 9500.0, origins={"architecture": SHAPE})
    assert "no published figure applies" in said(capsys, "published", "device=MI300X", code=4)


def test_series_without_a_figure_are_named(place, capsys):
    run(place, 3, 50.0, variant=Variant(model="other", precision="FP8", seq_len=1))
    assert "note: only in device=MI300X: pyt_train_llama-3.1-8b script pretrain FP8 seq 1" in said(
        capsys, "published", "device=MI300X"
    )


@each_row(
    ("args", "message"),
    [
        (("last", "published"), "'published' can only be BASE of madlite compare"),
        (("published:README", "last"), "'published:README' is no file, run, study or baseline"),
        (("published", "nope"), "'nope' is no file, run, study or baseline"),
        (("published", "last", "--across", "device"), "--across 'device' has no published figures"),
        (("published", "last", "--where", "device=H200"), "last has no results with device=H200"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(place, capsys, args, message):
    assert message in said(capsys, *args, code=4)


def test_a_failure_and_a_broken_file_of_figures_are_told(place, capsys):
    run(place, 3, 1.0)
    name = "20261104T120000-a-000004"
    store(place, name, good(name, status=Status.FAILURE, metrics=()))
    (place / "madlite_references.toml").write_text("x")
    assert "references madlite_references.toml is no TOML" in said(capsys, "published", "000003", code=4)
    (place / "madlite_references.toml").write_text(LAB)
    assert "000004 has no number to compare with published figures" in said(capsys, "published", "000004", code=4)


def test_figures_that_madlite_brings_are_found(place, capsys):
    (place / "madlite_references.toml").unlink()
    metric = Metric(metric="TFLOPS_per_gpu", text="534.25", status=Status.SUCCESS, value=534.25)
    name = "20261105T120000-a-000005"
    variant = Variant(
        model="Llama-3.1-8B", mode="pretrain", precision="BF16", seq_len=8192, micro_batch=4, release="v25.2"
    )
    store(
        place,
        name,
        good(name, metrics=(metric,)),
        machine=Machine(vendor="AMD", device="MI300X", architecture="gfx942"),
        place=Place(gpus_per_node=8),
        variant=variant,
        backend="pytorch_fsdp",
    )
    text = said(capsys, "published", "000005")
    assert "-1.60 %" in text, "534.25 / 542.94 - 1"
    assert "note: README of rocm/pytorch-training v25.2 (undated, release v25.2)" in text and "batch: 3 → 4" in text
