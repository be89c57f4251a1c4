"""Every published figure stands in its document: the tables as the documents print them, and docs/results."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

from madlite.cli.main import call
from madlite.machine.products import PRODUCTS
from madlite.model import QUANTITIES, Reference
from madlite.plan.place import is_changed
from madlite.references import unit_of
from madlite.reports.references import Match, Measured, matches_of, model_key
from madlite_plugins.published import madlite_references
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "tests" / "data" / "published"
EVERY = tuple(madlite_references())


def of_source(words: str) -> list[Reference]:
    found = [one for one in EVERY if words in one.source]
    assert found
    return found


def rows(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table's lines, its head and its rule left out."""
    lines = [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    return [cells for cells in lines if re.match(r"Llama|Mistral|FLUX", cells[0])]


def test_the_readmes_are_there_in_whole_and_as_they_are_printed():
    # the readme of the image is there in whole and as it is printed
    text = (TABLES / "pytorch-training-v25.2-tables.md").read_text()
    published = set()
    for device, table in re.findall(r"### (\w+) platform performance results\n(.*?)(?=###|\Z)", text, re.DOTALL):
        for model, precision, batch, length, figure in rows(table):
            seq_len = None if length == "-" else int(length)
            name = model_key(model.removesuffix(" with FSDP"))
            published.add((name, device, precision, int(batch), seq_len, float(figure.split()[0])))
    ours = of_source("rocm/pytorch-training v25.2")
    assert len(published) == len(ours) == 15
    told = {(model_key(o.model), o.device, o.precision, o.micro_batch, o.seq_len, o.value) for o in ours}
    assert told == published
    assert {(one.gpus, one.nodes, one.release) for one in ours} == {(8, 1, "v25.2")}
    # mads readme of llama is there in whole
    published = set()
    for _, batch, length, tflops, tokens, _ in rows((TABLES / "mad-llama3-1-8b-table.md").read_text()):
        published |= {(int(batch), int(length), "TFLOP/s/GPU", float(tflops))}
        published |= {(int(batch), int(length), "tokens/s/GPU", float(tokens))}
    ours = of_source("MAD's llama3_1_8B")
    assert {(one.micro_batch, one.seq_len, one.unit, one.value) for one in ours} == published
    assert {(one.precision, one.device) for one in ours} == {("FP8", "MI300X")}
    # fluxbenchmarks readme is there
    assert {(one.micro_batch, one.value) for one in of_source("FluxBenchmark")} == {(1, 2.03), (10, 4.34)}


def test_our_own_measurements_are_rows_of_docs_results():
    there = set()
    for file in (ROOT / "docs" / "results").glob("*/perf*.csv"):
        with file.open(newline="") as text:
            for row in (row for row in csv.DictReader(text) if row["status"] == "SUCCESS"):
                sizes = (row["mode"], row["precision"], row["batch_size"], row["seq_len"], row["num_gpus"])
                there.add((*sizes, row["device"], row["metric"], f"{float(row['performance']):.5g}"))
    record = json.loads((ROOT / "docs" / "results" / "1xH100" / "record.json").read_text())
    for one in record["metrics"]:  # the H100's rows are in its record alone
        sizes = (one["columns"][name] for name in ("mode", "precision", "batch_size", "seq_len", "num_gpus"))
        there.add((*sizes, record["architecture"], one["metric"], one["text"]))
    for one in of_source("madlite docs/results"):
        sizes = (one.mode, one.precision, str(one.micro_batch), str(one.seq_len), str(one.gpus))
        (found,) = {row[7] for row in there if row[:7] == (*sizes, one.device, one.metric) and _is(one, row[7])}
        assert found and one.date == ("2026-11-29" if one.gpus == 4 else "2026-11-21")


def _is(one: Reference, printed: str) -> bool:
    """Say whether a row's number is the reference's, which the page prints in whole tokens."""
    digits = 1 if one.value % 1 else 0
    return round(float(printed), 2 if one.metric == "TFLOPS_per_gpu" else digits) == one.value


@each_row("one", EVERY, ids=lambda one: f"{one.source} {one.model} {one.value}")
def test_each_states_what_it_is_compared_by_and_under_which_condition(one):
    assert one.precision in ("BF16", "FP8") and one.condition and one.source and one.gpus
    assert one.seq_len or one.unit == "images/s/GPU"
    assert unit_of(one.metric) == unit_of("", one.unit) == one.unit
    assert one.unit in {quantity.unit for quantity in QUANTITIES.values()}
    short = {product.device for product in PRODUCTS} | {product.name for product in PRODUCTS}
    assert one.device in short | {"H100 96GB HBM2e"}  # no product that is sold
    assert one.gpus % one.nodes == 0


TAGS = ("pyt_train_llama-3.1-8b", "pyt_train_llama-3.1-70b", "pyt_train_fsdp_mistral-7b", "pyt_train_flux")


@each_row("device", ["MI300X", "MI325X"])
def test_what_the_tags_of_that_release_plan_is_compared_with_its_readme(device, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_DIR", raising=False)
    words = [word for tag in TAGS for word in ("--tags", tag)]
    assert call(["explain", *words, "--image-release", "v25.2", "--machine", f"8x{device}", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert not any(is_changed(plan["origins"]) for plan in plans)
    ours = [one for one in of_source("rocm/pytorch-training v25.2") if one.device == device]
    exact = [one for one in ours if any(match.differences == () for match in _all(one, plans))]
    assert len(exact) == len(ours) == (8 if device == "MI300X" else 7)


def _all(one: Reference, plans: list[dict]) -> list[Match]:
    return [match for plan in plans for match in matches_of([one], _measured(plan))]


def _measured(plan: dict) -> Measured:
    """Return what is known of a run of a plan as `explain --json` prints it."""
    variant, place = plan["variant"], plan["place"]
    names = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "release")
    return Measured(
        device=plan["machine"]["device"],
        backend=plan["backend"],
        gpus=place["nodes"] * place["gpus_per_node"],
        nodes=place["nodes"],
        **{name: variant[name] for name in names},
    )
