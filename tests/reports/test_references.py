"""Which published figures a number may be compared with, what is named beside them, and the sentence about it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from madlite.model import Card, Compute, Machine, Metric, Place, Reference, Result, RunSpec, Shape, Status, Variant
from madlite.plan.place import find_architecture
from madlite.references import unit_of
from madlite.reports.references import (
    Match,
    Measured,
    as_table,
    comparison,
    counts_same,
    device_key,
    matches_of,
    model_key,
    of_plan,
    of_record,
    select,
)
from madlite.store.record import Record
from tests.factories import WINDOW, make_plan
from tests.rows import each_row

README = Reference(
    model="Llama-3.1-8B",
    device="MI300X",
    metric="TFLOPS_per_gpu",
    unit="TFLOPS/s/GPU",
    value=542.94,
    source="README v25.2",
    backend="pytorch_fsdp",
    release="v25.2",
    mode="pretrain",
    precision="BF16",
    seq_len=8192,
    micro_batch=3,
    gpus=8,
    attention="full",
)
RUN = {
    "model": "Llama-3.1-8B",
    "backend": "pytorch_fsdp",
    "mode": "pretrain",
    "precision": "BF16",
    "seq_len": 8192,
    "device": "MI300X",
    "gpus": 8,
    "nodes": 1,
    "metric": "TFLOPS_per_gpu",
    "micro_batch": 3,
    "global_batch": None,
    "release": "v25.2",
}


def matching(references: list[Reference], metric: str, unit: str = "", **known: object) -> tuple[Match, ...]:
    """Return the figures that count what a metric does, and apply to a run of which this is known."""
    return matches_of([one for one in references if counts_same(one, metric, unit)], Measured(**known))


def found(reference: Reference = README, **changes: object) -> tuple[str, ...] | None:
    """Return what differs, None where the figure does not apply."""
    matches = matching([reference], **{**RUN, **changes})
    return matches[0].differences if matches else None


TOKENS = {"metric": "tok_per_s_per_gpu", "unit": ""}
FLUX = {"model": "Flux", "metric": "FPS_per_GPU", "unit": "FPS/GPU", "value": 4.51, "seq_len": None}


@each_row(
    ("figure", "run", "differences"),
    [
        ({}, {}, ()),
        ({}, {"micro_batch": 4, "release": "v25.10"}, ("batch 3, here 4", "release v25.2, here v25.10")),
        ({}, {"backend": "primus"}, ("backend pytorch_fsdp, here primus",)),
        ({}, {"micro_batch": None, "release": ""}, ("batch 3, here unknown", "release v25.2, here unknown")),
        ({"global_batch": 24}, {"global_batch": 32}, ("global batch 24, here 32",)),
        ({"micro_batch": None, "release": "", "backend": ""}, {}, ()),
        ({}, {"attention": "causal"}, ("full attention counted, here causal",)),  # of figures in TFLOP/s alone
        (TOKENS, {"metric": "tok_per_s_per_gpu", "attention": "causal"}, ()),
        ({"columns": {"compile": "no"}}, {"columns": {"compile": "inductor"}}, ("compile no, here inductor",)),
        ({"mode": "", "gpus": None}, {"mode": "finetune_fw", "gpus": 4}, ()),  # it applies to any
        (FLUX, {"model": "flux", "seq_len": None, "metric": "images_per_s_per_gpu"}, ()),  # pictures have no sequence
        ({"metric": "games_per_day", "unit": ""}, {"metric": "games_per_day"}, ()),  # of no known unit: by its name
        ({"metric": "games_per_day", "unit": ""}, {"metric": "goals_per_day"}, None),
    ],
)
def test_what_differs_from_a_figure_that_applies_is_named(figure, run, differences):
    assert found(replace(README, **figure), **run) == differences


@each_row(
    "changes",
    [
        {"model": "Llama-3.1-70B"},
        {"model": "Llama-3-18B"},  # of the same letters and digits
        {"precision": "FP8"},
        {"seq_len": 4096},
        {"device": "MI325X"},
        {"gpus": 4},
        {"nodes": 2},
        {"mode": "finetune_lora"},
        {"metric": "tok_per_s_per_gpu"},
        {"metric": "GPU_memory_usage (%)"},
    ],
    ids=str,
)
def test_it_does_not_apply_where_one_of_these_is_another(changes):
    assert found(**changes) is None


@each_row(
    "changes",
    [
        {"model": ""},
        {"precision": ""},
        {"seq_len": None},
        {"device": ""},
        {"gpus": None},
        {"nodes": None},
        {"mode": ""},
    ],
    ids=str,
)
def test_what_is_not_known_here_agrees_with_nothing(changes):
    assert found(**changes) is None
    blank = {name: None if name in ("seq_len", "gpus") else "" for name in changes if name in ("precision", "seq_len")}
    if blank:  # nor with what the document does not state either
        assert (
            found(
                replace(README, metric="tokens_per_s_per_gpu", unit="", **blank),
                **{**changes, "metric": "tps", "unit": "tokens/s/GPU"},
            )
            is None
        )


@each_row(
    "name",
    [
        "Llama 3.1 8B",
        "llama3.1_8B",
        "meta-llama/Llama-3.1-8B",
        "primus_pyt_train_llama-3.1-8b",
        "pyt_train_llama-3.1-8b",
        "pyt_megatron_lm_train_llama-3.1-8b",
        "primus_pyt_megatron_lm_train_llama-3.1-8b",
        "jax_maxtext_train_llama-3.1-8b",
        "pyt_train_fsdp_llama-3.1-8b",
    ],
)
def test_a_model_is_the_same_in_every_spelling(name):
    assert model_key(name) == model_key("Llama-3.1-8B")
    assert found(model=name) == ()


@each_row(
    ("metric", "unit", "canonical"),
    [
        ("TFLOPS_per_gpu", "", "TFLOP/s/GPU"),
        ("TFLOPS_per_GPU", "", "TFLOP/s/GPU"),
        ("", "TFLOPS/s/GPU", "TFLOP/s/GPU"),
        ("tflops_per_gpu", "", "TFLOP/s/GPU"),
        ("", "Model TFLOP / s / GPU", "TFLOP/s/GPU"),
        ("tok_per_s_per_gpu", "", "tokens/s/GPU"),
        ("avg_tokens_per_s_per_gpu", "", "tokens/s/GPU"),
        ("", "tokens/sec/GPU", "tokens/s/GPU"),
        ("FPS_per_GPU", "", "images/s/GPU"),
        ("images_per_s_per_gpu", "", "images/s/GPU"),
        ("samples_per_s_per_gpu", "", "samples/s/GPU"),
        ("train_samples_per_s", "", ""),  # of all GPUs
        ("tokens_per_gpu", "", ""),
        ("max_memory_alloc", "", ""),
        ("own", "J/step", "J/step"),
    ],
)
def test_units_are_told_by_what_they_count(metric, unit, canonical):
    assert unit_of(metric, unit) == canonical


def test_a_short_name_stands_for_every_product_that_has_it_and_a_full_one_for_one():
    sxm, short = replace(README, device="NVIDIA H100 80GB HBM3"), replace(README, device="H100")
    of_sxm = {"device": "H100", "product": "NVIDIA H100 80GB HBM3"}
    of_pcie = {"device": "H100", "product": "NVIDIA H100 PCIe"}
    assert found(sxm, **of_sxm) == () and found(sxm, **of_pcie) is None
    assert found(short, **of_sxm) == found(short, **of_pcie) == ()
    assert device_key("AMD Instinct MI300X") == device_key("mi300x")
    assert found(replace(README, device="AMD Instinct MI300X")) == ()


def test_the_nearest_comes_first_and_of_several_the_latest():
    far, old, new = replace(README, micro_batch=6), replace(README, date="2024-12"), replace(README, date="2025-06")
    assert [one.reference for one in matching([far, old, new], **RUN)] == [new, old, far]


# A run's success beside the nearest figure.


def metric(name: str, value: float, **changes: object) -> Metric:
    return Metric(**{"metric": name, "text": str(value), "value": value, "status": Status.SUCCESS, **changes})


ROWS = (metric("tok_per_s_per_gpu", 9300.0), metric("TFLOPS_per_gpu", 534.25), metric("tokens_per_s_per_gpu", 9321.0))
SUCCESS = Result(plan_id="1", status=Status.SUCCESS, window=WINDOW, metrics=ROWS)


@pytest.fixture
def plan(tmp_path):
    return make_plan(
        tmp_path,
        card=Card(name="pyt_train_llama-3.1-8b", root=tmp_path, source="a test"),
        backend="pytorch_fsdp",
        machine=Machine(vendor="AMD", device="MI300X", architecture="gfx942"),
        place=Place(gpus_per_node=8),
        variant=Variant(model="Llama-3.1-8B", precision="BF16", seq_len=8192, micro_batch=4, release="v25.2"),
    )


def test_the_headline_is_compared_where_a_figure_counts_the_same(plan):
    tokens = replace(README, metric="tokens_per_s_per_gpu", unit="tokens/s/GPU", value=9400, micro_batch=4)
    said = comparison([README, tokens], *of_plan(plan, SUCCESS))
    assert said == "99.2 % of published 9,400 tokens/s/GPU (README v25.2, MI300X)"
    by_mad = replace(tokens, metric="tok_per_s_per_gpu")
    assert comparison([by_mad], *of_plan(plan, SUCCESS)).startswith("9,300 tok_per_s_per_gpu is 98.9 % of published")


def test_nothing_is_said_where_no_figure_applies(plan):
    assert comparison([replace(README, precision="FP8")], *of_plan(plan, SUCCESS)) == ""
    assert comparison([], *of_plan(plan, SUCCESS)) == ""
    assert comparison([README], *of_plan(plan, replace(SUCCESS, metrics=ROWS[:1]))) == ""


@each_row(
    ("framework", "words"),
    [(540.0, "540 TFLOP/s/GPU of the framework is 99.5 %"), (None, "500 TFLOP/s/GPU by madlite's formula is 92.1 %")],
)
def test_without_a_row_in_tflops_the_windows_work_is_compared_and_named(plan, framework, words):
    compute = Compute(
        architecture="Llama-3.1-8B",
        attention="causal",
        flops_per_token=5e10,
        tflops_per_gpu=500.0,
        framework_tflops_per_gpu=framework,
    )
    result = replace(SUCCESS, metrics=ROWS[2:], compute=compute)
    said = comparison([README], *of_plan(plan, result))
    assert said.startswith(words) and said.endswith("batch 3, here 4; full attention counted, here causal)")


@each_row("sets", [{"layers": 16}, {"flavor": "debug"}])
def test_a_model_whose_shape_a_setting_changed_is_compared_with_none(plan, sets):
    values = {"layers": 32, "flavor": "8B"}
    shape = Shape(fields={"layers": "layers"}, others=("flavor",))
    spec = RunSpec(variant=plan.variant, settings=values, shape=shape)
    said = []
    for settings in (values, {**values, **sets}):
        origin = find_architecture(spec, plan.variant, settings).origin
        origins = {"architecture": origin, "variant.model": "recipe llama-3.1-8b-8k"}
        said.append(comparison([README], *of_plan(replace(plan, origins=origins), SUCCESS)))
    assert "98.4 % of published" in said[0] and said[1] == ""


def test_a_model_that_the_user_names_is_taken_at_its_word_where_nothing_is_known_of_its_shape(plan):
    origins = {"architecture": "no shape is known with script=train.py", "variant.model": "--set"}
    assert "98.4 % of published" in comparison([README], *of_plan(replace(plan, origins=origins), SUCCESS))


def test_the_results_of_a_cards_own_script_are_known_by_their_columns(plan):
    columns = {"mode": "pretrain", "precision": "BF16", "seq_len": "8192", "batch_size": "3", "device": "MI300X"}
    rows = tuple(
        metric("TFLOPS_per_gpu", value, label="Llama-3.1-8B", columns={**columns, "precision": precision})
        for value, precision in ((534.25, "BF16"), (700.0, "FP8"))
    )
    result = replace(SUCCESS, window=None, metrics=rows)
    said = comparison([README], *of_plan(replace(plan, variant=None, backend="script"), result))
    assert said.startswith("98.4 % of published 542.94") and "release v25.2, here unknown" in said
    bare = replace(result, metrics=(metric("TFLOPS_per_gpu", 534.25),))
    assert comparison([README], *of_plan(replace(plan, variant=None), bare)) == ""


def test_the_record_of_docs_results_is_what_was_published_of_it():
    from madlite_plugins.published import madlite_references

    file = Path(__file__).parents[2] / "docs" / "results" / "1xH100" / "record.json"
    plain = json.loads(file.read_text())
    record = msgspec.convert({**plain, "metrics": plain["metrics"][-1:]}, Record, strict=False)
    said = comparison(madlite_references(), *of_record(record))
    assert said == "100.0 % of published 9,407.5 tokens/s/GPU (madlite docs/results, NVIDIA H100 80GB HBM3)"


# The list.

EVERY = [README, replace(README, precision="FP8")]


@each_row(
    ("filters", "count"),
    [
        ({}, 2),
        ({"model": "llama"}, 2),
        ({"model": "primus_pyt_train_llama-3.1-8b"}, 2),
        ({"model": "llama-3.1-70b"}, 0),
        ({"device": "mi300"}, 2),
        ({"device": "AMD Instinct MI300X"}, 2),
        ({"precision": "bfloat16"}, 1),
    ],
    ids=str,
)
def test_filters(filters, count):
    assert len(select(EVERY, **filters)) == count


def test_the_table_names_source_date_and_condition_once():
    one = replace(README, date="2025-01", condition="ROCm 6.3.0\x1b[2J")
    lines = list(as_table([one, one]))
    assert len(lines) == 4 and lines[1] == lines[2] and lines[1].endswith("[1]")
    assert lines[3] == "[1] README v25.2, 2025-01: ROCm 6.3.0 [2J"
    assert "542.94  TFLOP/s/GPU" in lines[1]
