"""What tells series apart and what is named where it differs: every recorded input does one of the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from madlite.model import (
    Action,
    Card,
    DataUse,
    EngineOptions,
    ImageUsed,
    Machine,
    Mount,
    Place,
    Provenance,
    Result,
    RunPlan,
    Secret,
    Status,
    Study,
    Traits,
    Variant,
)
from madlite.reports.compare import compare
from madlite.reports.series import group, of_record, of_row
from madlite.reports.series_key import NONE, as_key, compare_inputs, record_dimensions, record_facts, series_names
from madlite.store.record import Record, make_record
from tests.csv_results import row
from tests.factories import make_plan

GPU = Machine(vendor="AMD", hostname="node1", product="MI300X", architecture="gfx942")
RESULT = Result(
    plan_id="r",
    status=Status.SUCCESS,
    git_commit="abc",
    image=ImageUsed(ref="pytorch:1", digest="pytorch@sha256:1"),
    config={"lr": "1"},
    provenance=Provenance(
        versions={"madlite": "1", "a_plugin": "1"},
        script="run.sh",
        script_sha256="1" * 64,
        files={"train.py": "1" * 64, "model.py": "1" * 64},
        repositories={"/w": "abc"},
        packages={"torch": "2.9"},
        inside={"os": "Ubuntu"},
        host={"kernel": "6.8"},
        gpu={"driver": "6.12"},
        environment={"NCCL_DEBUG": "INFO"},
    ),
)
PLAN = {
    "card": Card(name="mlp", root=Path(), source="a test", args="--size 3", training_precision="bf16"),
    "machine": GPU,
    "place": Place(gpus_per_node=8, gpu_ids=(0, 1)),
    "variant": Variant(model="mlp", precision="bf16", seq_len=128, micro_batch=4, global_batch=32, steps=20),
    "settings": {"lr": 0.01, "recipe": "mlp.toml"},
    "args": "--size 3",
    "env": {"MINE": "1", "TOKEN": Secret("s3cret"), "HIP_VISIBLE_DEVICES": "0"},
    "origins": {"env.MINE": "--set", "env.TOKEN": "context file c.json", "env.HIP_VISIBLE_DEVICES": "runtime host"},
    "study": Study(id="s", kind="sweep", varied={"lr": 0.01}, series=1, index=1, count=3),
    "data": (DataUse(name="c4", provider="nas", home="/data/c4"),),
    "engine_options": EngineOptions(extra="--shm-size 8g"),
    "actions": (Action(kind="run", argv=("bash", "run.sh")),),
    "launcher": "torchrun",
}


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return make_plan(tmp_path, **PLAN)


def record_of(plan: RunPlan, result: Result = RESULT) -> Record:
    return make_record(plan, result, None)


def told(one: Record, other: Record) -> set[str]:
    """Return what is named as a difference of two runs."""
    keys = [as_key(record_dimensions(each)) for each in (one, other)]
    facts = [{name: (text,) for name, text in record_facts(each).items()} for each in (one, other)]
    return {each.name for each in compare_inputs(keys, facts) if each.differs}


def in_key(one: Record, other: Record) -> set[str]:
    a, b = record_dimensions(one), record_dimensions(other)
    return {name for name in a if a[name] != b[name]}


# of the plan: a field, what it is changed to, and what tells
KEYS_OF_PLAN = {
    "card": (Card(name="other", root=Path(), source="a test", args="--size 3"), {"model"}),
    "backend": ("torchtitan", {"backend"}),
    "runtime": ("podman", {"runtime"}),
    "args": ("--size 99", {"args"}),
    "model_args": ("--size 99", {"args"}),
    "place": (Place(gpus_per_node=4, nodes=2), {"nodes"}),
    "study": (Study(id="s", kind="sweep", varied={"lr": 0.01, "x": 2}), {"varied"}),
    "env": ({"MINE": "2", "TOKEN": Secret("s3cret")}, {"env"}),
}
NAMED_OF_PLAN = {
    "data": ((DataUse(name="c4", provider="minio", home="/data/c4"),), "data c4"),
    "engine_options": (EngineOptions(extra="--shm-size 64g"), "plan options"),
    "mounts": ((Mount(source="/nas", target="/data"),), "plan mounts"),
    "actions": ((Action(kind="run", argv=("numactl", "bash", "run.sh")),), "plan command"),
    "launcher": ("deepspeed", "plan launcher"),
    "deployment": ("slurm", "plan deployment"),
    "until": (0.005, "plan until"),
    "profile": (True, "plan profile"),
    "telemetry_s": (0.0, "plan telemetry"),
    "probe": (False, "plan probe"),
    "readers": (("torchrun",), "plan readers"),
    "machine": (replace(GPU, hostname="node2"), "machine"),
}
NEITHER_OF_PLAN = {
    **dict.fromkeys(("id", "workspace", "inside", "folder", "name", "log_name", "batch"), "which run it is and where"),
    **dict.fromkeys(("timeout_s", "start_silence_s", "silence_s", "log_limit_bytes", "stop_grace_s"), "limits"),
    **dict.fromkeys(("keep_alive", "keep_model_dir", "give_back", "outputs", "writes_row"), "what is left afterwards"),
    **dict.fromkeys(("skip_model_run", "blocked", "error_scan", "notes"), "whether it is a result at all"),
    **dict.fromkeys(("result_rule", "architecture"), "they follow from backend, recipe and model, named by version"),
    **dict.fromkeys(("overrides", "origins"), "where values came from, which count as args, settings and variables"),
    **dict.fromkeys(("traits", "devices", "model_dir"), "they follow from runtime, GPUs and card"),
    **dict.fromkeys(("image", "templates"), "the digest of what ran is named, and the hash of the script"),
    "variant": "its fields one by one, below",
    "settings": "one by one, below",
}
VARIANT = {
    "mode": ("finetune", {"mode"}),
    "precision": ("fp8", {"precision"}),
    "seq_len": (256, {"seq_len"}),
    "micro_batch": (8, {"micro_batch"}),
    "global_batch": (64, {"global_batch"}),
    **{name: (value, {"settings"}) for name, value in (("model", "mlp2"), ("steps", 50), ("warmup_steps", 9))},
    "release": ("25.4", set()),
}


def test_every_field_of_a_plan_is_in_the_key_or_named_or_neither_for_a_reason(plan):
    assert {*RunPlan.__struct_fields__} == {*KEYS_OF_PLAN, *NAMED_OF_PLAN, *NEITHER_OF_PLAN}
    assert {*Variant.__struct_fields__} == {*VARIANT}
    base = record_of(plan)
    for field, (value, names) in KEYS_OF_PLAN.items():
        assert names <= in_key(base, record_of(replace(plan, **{field: value}))), field
    for field, (value, name) in NAMED_OF_PLAN.items():
        other = record_of(replace(plan, **{field: value}))
        assert name in told(base, other) and not in_key(base, other), field
    for field, (value, names) in VARIANT.items():
        other = record_of(replace(plan, variant=replace(plan.variant, **{field: value})))
        assert in_key(base, other) == names and (names or field in told(base, other)), field
    assert in_key(base, record_of(replace(plan, settings={"lr": 0.02}))) == {"settings", "recipe"}


# of the record
NAMED_OF_RECORD = {
    "madlite": "2",
    "hostname": "node2",
    "caches": "warm",
    "image": ImageUsed(ref="pytorch:1", digest="pytorch@sha256:2"),
    "git_commit": "def",
    "config": {"lr": "2"},
    "inputs": {"launcher": "deepspeed"},
    "data": (DataUse(name="c4", provider="minio", home="/data/c4"),),
    "data_size": "2 GB",
}
KEYS_OF_RECORD = {
    "card": "other",
    "backend": "torchtitan",
    "recipe": "other.toml",
    "runtime": "podman",
    "device": "MI325X",
    "place": Place(gpus_per_node=4),
    "variant": Variant(model="mlp", precision="fp8"),
    "settings": {"lr": 0.02},
    "args": "--size 99",
    "env": {"MINE": "2"},
    "study": Study(id="s", kind="sweep", varied={"x": 1}),
}
NEITHER_OF_RECORD = {
    **dict.fromkeys(("id", "version", "command", "started", "ended", "batch", "attempt", "beside"), "which run it is"),
    **dict.fromkeys(("tags", "card_source", "url", "overrides", "origins"), "how it was asked for, and from where"),
    **dict.fromkeys(("timeout_s", "log_limit_bytes"), "limits"),
    **dict.fromkeys(("traits", "architecture"), "they follow from runtime and device"),
    "context_left_out": "places of secrets",
    "precision": "of a run without a variant, below",
    "provenance": "its fields one by one, below",
    **dict.fromkeys(
        (
            *("status", "cause", "ended_by", "reason", "evidence", "diagnosis", "suspect", "checks", "findings"),
            *(
                "exit_code",
                "node_codes",
                "nodes",
                "outcome",
                "steps",
                "adaptive",
                "profile",
                "window",
                "metrics",
                "compute",
            ),
            *("telemetry", "durations_s", "data_download_s", "rows", "files"),
        ),
        "what came of it",
    ),
}
PROVENANCE: dict[str, tuple[object, str]] = {
    "versions": ({"madlite": "1", "a_plugin": "2"}, "plugin a_plugin"),
    "script_sha256": ("2" * 64, "script"),
    "files": ({"train.py": "2" * 64, "model.py": "1" * 64}, "file train.py"),
    "repositories": ({"/w": "abc (changed)"}, "repository /w"),
    "packages": ({"torch": "2.10"}, "package torch"),
    "inside": ({"os": "RHEL"}, "inside os"),
    "host": ({"kernel": "6.9"}, "host kernel"),
    "gpu": ({"driver": "6.13"}, "gpu driver"),
    "environment": ({"NCCL_DEBUG": "WARN"}, "env NCCL_DEBUG"),
}
NEITHER_OF_PROVENANCE = {"script": "its name", "labels": "of the image, which has a digest", "notes": "what is unknown"}


def test_every_field_of_a_record_is_in_the_key_or_named_or_neither_for_a_reason(plan):
    assert {*Record.__struct_fields__} == {*NAMED_OF_RECORD, *KEYS_OF_RECORD, *NEITHER_OF_RECORD}
    assert {*Provenance.__struct_fields__} == {*PROVENANCE, *NEITHER_OF_PROVENANCE}
    base = record_of(plan)
    for field, value in KEYS_OF_RECORD.items():
        assert in_key(base, replace(base, **{field: value})), field
    for field, value in NAMED_OF_RECORD.items():
        other = replace(base, **{field: value})
        assert told(base, other) and not in_key(base, other), field
    for field, (value, name) in PROVENANCE.items():
        other = replace(base, provenance=replace(base.provenance, **{field: value}))
        assert told(base, other) == {name} and not in_key(base, other), field


def test_the_precision_of_a_card_without_a_variant_tells_series_apart(plan):
    bare = replace(plan, variant=None)
    fp8 = replace(bare, card=replace(bare.card, training_precision="fp8"))
    assert in_key(record_of(bare), record_of(fp8)) == {"precision"}


def test_only_variables_that_the_user_set_are_key_and_a_secret_is_masked(plan):
    found = record_of(plan)
    assert found.env == {"MINE": "1", "TOKEN": "***"} and "s3cret" not in repr(found)
    assert record_dimensions(found)["env"] == "MINE=1 'TOKEN=***'"
    given = {"env.A": "environment", "env.B": "madlite", "env.C": "recipe", "env.D": "credential AMD", "env.E": "--set"}
    other = replace(plan, env=dict.fromkeys("ABCDE", "1"), origins=given)
    assert record_of(other).env == {"E": "1"}


def test_that_the_value_of_a_secret_may_be_another_is_said(plan):
    """Records have *** for each value: two of one name are one series, and nobody takes them for equal."""
    (one,) = compare(group(results(record_of(plan), 1.0)), group(results(record_of(plan), 2.0))).comparisons
    assert "the value of TOKEN" in one.pair.unknown and "the value of MINE" not in one.pair.unknown


def test_the_caches_of_a_study_are_no_variables_of_the_user(plan):
    own = replace(plan, env={"TRITON_CACHE_DIR": "/c/1"}, origins={"env.TRITON_CACHE_DIR": "repeat"})
    assert record_dimensions(record_of(own))["env"] == NONE
    chosen = replace(own, origins={"env.TRITON_CACHE_DIR": "--set"})
    assert record_dimensions(record_of(chosen))["env"] == "TRITON_CACHE_DIR=/c/1"


def old(record: Record) -> Record:
    """Return a record as a madlite wrote it before variables, further inputs and imported files were in it."""
    fields = msgspec.to_builtins(record)
    for name in ("env", "inputs", "precision"):
        del fields[name]
    return replace(msgspec.convert(fields, Record), provenance=replace(record.provenance, files={}))


def results(record: Record, number: float) -> Iterator[object]:
    metric = {"metric": "tps", "performance": str(number), "status": "SUCCESS", "model": record.card}
    rows = {"path": "perf.csv", "at": "t", "appended": True, "cells": [metric]}
    return of_record(msgspec.convert({**msgspec.to_builtins(record), "rows": rows}, Record), "x")


def test_what_an_old_record_does_not_have_is_unknown_and_pairs(plan):
    new = record_of(plan)
    report = compare(group(results(old(new), 1.0)), group(results(new, 2.0)))
    (one,) = report.comparisons
    assert record_dimensions(old(new))["env"] == "", "it has a variable of the user whose value nobody recorded"
    assert {"env", "files of the script"} <= {*one.pair.unknown} and not one.differences


def test_a_row_without_a_record_pairs_with_the_run_and_says_what_it_does_not_know(plan):
    bare = replace(plan, study=None, settings={}, env={}, origins={"args": "card, tag"})
    run = group(results(record_of(bare), 2.0))
    cells = row(1, model="mlp", args="--size 3", training_precision="bf16", n_gpus="8", nnodes="1", metric="tps")
    cells["gpu_architecture"] = record_of(bare).device
    (one,) = compare(group([of_row(cells, "perf.csv:2")]), run).comparisons
    assert {"settings", "env", "runtime", "script", "packages"} <= {*one.pair.unknown}
    assert not compare(group([of_row({**cells, "args": "--size 99"}, "perf.csv:2")]), run).comparisons


def test_a_setting_that_another_version_of_a_recipe_does_not_have_is_unknown(plan):
    before, now = record_of(plan), record_of(replace(plan, settings={**plan.settings, "compile": True}))
    (one,) = compare(group(results(before, 1.0)), group(results(now, 2.0))).comparisons
    assert [(each.name, each.values) for each in one.differences] == [("setting compile", ((), ("true",)))]
    other = record_of(replace(plan, settings={**plan.settings, "lr": 0.5}, study=None))
    report = compare(group(results(replace(before, study=None), 1.0)), group(results(other, 2.0)))
    assert not report.comparisons and report.only_new


def test_the_columns_of_madlite_are_read_back():
    cells = row(1, mode="pretrain", precision="fp8", training_precision="", batch_size="4", seq_len="8192")
    found = {**cells, "device": "MI300X", "num_gpus": "16", "n_gpus": "", "varied": "lr=0.1"}
    (series,) = group([of_row(found, "p:2")])
    known = {name: series[name] for name in ("mode", "precision", "micro_batch", "seq_len", "device", "gpus", "varied")}
    assert known == {
        **{"mode": "pretrain", "precision": "fp8", "micro_batch": "4", "seq_len": "8192", "device": "MI300X"},
        **{"gpus": "16", "varied": "lr=0.1"},
    }
    assert len(group([of_row(found, "p:2"), of_row({**found, "batch_size": "8"}, "p:3")])) == 2


def test_series_that_are_called_the_same_are_named_with_what_tells_them_apart(plan):
    every = [record_dimensions(record_of(replace(plan, study=None, settings={"lr": lr, "b": 1}))) for lr in (1, 2)]
    assert [name.partition(" (")[2] for name in series_names(every)] == ["lr=1)", "lr=2)"]
    places = [record_dimensions(record_of(replace(plan, runtime=name))) for name in ("docker", "host")]
    assert [name.partition(" (")[2] for name in series_names(places)] == ["docker)", "host)"]
    assert "(" not in series_names(every[:1])[0]


def test_an_image_on_one_side_is_a_difference_of_a_run_on_the_host(plan):
    host = replace(plan, traits=Traits(containerised=False))
    assert {"image", "image digest"} <= told(record_of(plan), record_of(host, replace(RESULT, image=ImageUsed())))


def test_what_of_the_host_was_not_looked_at_is_unknown(plan):
    def of_host(**host: str) -> Record:
        return record_of(plan, replace(RESULT, provenance=replace(RESULT.provenance, host={"kernel": "6.8", **host})))

    assert "host doctor" in told(of_host(doctor="governor"), of_host(doctor="iommu"))
    assert "host doctor" not in told(of_host(doctor="governor"), of_host())
    assert "host cpus" in told(of_host(cpus="128"), of_host()), "of the others a host has them or not"
