from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.model import (
    Card,
    Cause,
    Image,
    ImageUsed,
    Machine,
    Metric,
    Place,
    Result,
    ResultRule,
    RunPlan,
    Status,
    Study,
    Variant,
)
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.rows import STANDARD_COLUMNS, build_rows, masked_cells
from madlite.secrets import Redactor
from madlite.store.folder import RunStart
from tests.factories import HOST
from tests.rows import each_row

from .reading import V2

CARD = Card(
    name="dummy",
    root=Path("/mad"),
    source="models.json",
    tags=("dummies", "dummy_test_group_1", "dummy_group_1"),
    additional_docker_run_options="--shm-size=2g",
)
PLAN = RunPlan(
    id="r1",
    card=CARD,
    backend="script",
    place=Place(gpus_per_node=1),
    machine=Machine(vendor="AMD", architecture="gfx942", hostname="vm"),
    workspace=Path("/home/u/mad"),
    inside="/myworkspace",
    folder=Path("/home/u/mad/runs/r1"),
    image=Image(
        ref="ci-dummy_dummy.ubuntu.amd",
        dockerfile=Path("/home/u/mad/docker/dummy.ubuntu.amd.Dockerfile"),
        base="rocm/pytorch",
    ),
    args="--steps 20",
)
NUMBER = Metric(metric="samples_per_second", text="31848", status=Status.SUCCESS, value=31848.0)
DONE = Result(
    plan_id="r1",
    status=Status.SUCCESS,
    metrics=(NUMBER,),
    image=ImageUsed(
        ref="ci-dummy_dummy.ubuntu.amd", digest="rocm/pytorch@sha256:1111aaaa", build_duration_s=0.14498066902160645
    ),
    durations_s={"prepare": 0.2, "run": 0.10357356071472168, "total": 0.4},
    git_commit="4f2a9c1",
)
RENDERED = replace(
    PLAN,
    card=replace(CARD, name="llama", additional_docker_run_options=""),
    variant=Variant(model="llama-3.1-8b", mode="finetune_lora", precision="BF16", micro_batch=2, seq_len=8192),
    result_rule=ResultRule(kind="steps"),
)
MEASURED = replace(NUMBER, columns={"mode": "finetune_lora", "precision": "BF16", "seq_len": "4096", "loss": "2.5"})


def built(plan: RunPlan = PLAN, result: Result = DONE, *, strict: bool = False) -> list[dict[str, str]]:
    rows = build_rows(plan, result, RunStart(pipeline="nightly", build_number="17", strict_header=strict))
    return list(rows)


def test_names_of_result_columns_are_masked_and_standard_ones_are_not() -> None:
    row = masked_cells(
        {"model": "hush", "args": "--x hush", "status": "hush", "hush": "1", "note": "a hush"},
        lambda text: "***" if text in ("hush", "model") else text.replace("hush", "***"),
    )
    # what madlite itself says of a run may hold a short secret by chance
    assert row == {"model": "hush", "args": "--x ***", "status": "hush", "***": "1", "note": "a ***"}


def test_no_column_holds_what_is_a_secret_by_its_shape() -> None:
    token = "ghp_" + "aB3" * 12
    cells = {
        "model": f"m_{token}",
        "git_commit": "https://me:p4ss@host",
        "tags": "a,b@c",
        "status": "SUCCESS",
        token: "1",
    }
    row = masked_cells({**cells, token: "1"}, Redactor().text)
    shown = {"model": "m_***", "git_commit": "https://me:***@host", "tags": "a,b@c", "status": "SUCCESS", "***": "1"}
    assert row == shown


def failed(cause: Cause, **changes: Any) -> Result:
    return replace(DONE, status=Status.FAILURE, cause=cause, **changes)


def test_row_of_a_success_is_the_line_madengine_2_writes(tmp_path: Path) -> None:
    perf = tmp_path / "perf.csv"
    append_rows(perf, build_rows(PLAN, DONE, RunStart()))
    assert perf.read_text() == (
        V2 + "\n"
        'dummy,1,1,1,,,--steps 20,"dummies,dummy_test_group_1,dummy_group_1",docker/dummy.ubuntu.amd.Dockerfile,'
        "rocm/pytorch,sha256:1111aaaa,ci-dummy_dummy.ubuntu.amd,4f2a9c1,vm,local,docker,gfx942,31848,"
        "samples_per_second,,SUCCESS,0.14498066902160645,0.10357356071472168,,,,,0,--shm-size=2g\n"
    )


ON_HOST = {"runtime": "host", "traits": HOST}
BAD = Metric(metric="tokens/s", text="0", status=Status.FAILURE, cause=Cause.BAD_NUMBER)


def fails(cause: Cause, **changes: Any) -> dict[str, Any]:
    return {"status": Status.FAILURE, "cause": cause, "metrics": (), **changes}


@each_row(
    ("plan", "result", "cells"),
    [
        # the digest of a built image is its base's
        ({}, {"image": replace(DONE.image, base_digest="sha256:2222bbbb")}, {"docker_sha": "sha256:2222bbbb"}),
        ({}, {}, {"docker_sha": "sha256:1111aaaa"}),
        # GPUs are counted over the nodes, and a CPU has none
        ({"place": Place(nodes=2, gpus_per_node=8)}, {}, {"n_gpus": "16", "nnodes": "2", "gpus_per_node": "8"}),
        ({"place": Place()}, {}, {"n_gpus": "0", "nnodes": "1", "gpus_per_node": "0"}),
        ({"place": Place(), "machine": Machine()}, {}, {"gpu_architecture": "cpu"}),
        # the launcher is the plan's, or what the runtime is called
        ({}, {}, {"launcher": "docker"}),
        (ON_HOST, {}, {"launcher": "host"}),
        ({**ON_HOST, "launcher": "torchrun"}, {}, {"launcher": "torchrun"}),
        ({"place": Place(where="slurm")}, {}, {"launcher": "torchrun"}),
        ({"place": Place(where="kubernetes")}, {}, {"launcher": "native"}),
        # a dockerfile is named from the checkout
        ({"image": Image(ref="i", dockerfile=Path("/mad/docker/a.x"))}, {}, {"docker_file": "docker/a.x"}),
        ({"image": Image(ref="i", dockerfile=Path("/else/a.x"))}, {}, {"docker_file": "/else/a.x"}),
        ({"image": Image(ref="i")}, {}, {"docker_file": ""}),
        # a run on the host has no image
        ({**ON_HOST, "image": None}, {"image": ImageUsed()}, {"docker_file": "", "base_docker": "", "docker_sha": ""}),
        ({**ON_HOST, "image": None}, {"image": ImageUsed()}, {"docker_image": "", "build_duration": ""}),
        # a number that was said before the run failed is no result, one that is judged bad is shown as it was said
        *(
            ({}, fails(cause, metrics=(NUMBER, NUMBER)), {"performance": "", "metric": "", "test_duration": "0"})
            for cause in (Cause.EXIT_CODE, Cause.TIMEOUT, Cause.INTERRUPTED, Cause.INTERNAL)
        ),
        ({}, fails(Cause.TIMEOUT), {"model": "dummy", "launcher": "docker", "machine_name": "vm", "status": "FAILURE"}),
        ({}, fails(Cause.BAD_NUMBER, metrics=(BAD,)), {"performance": "0", "metric": "tokens/s", "status": "FAILURE"}),
        # a run that never started has no launcher and no duration
        *(
            ({}, fails(cause, durations_s={"prepare": 1.0}), {"launcher": "", "test_duration": "", "status": "FAILURE"})
            for cause in (Cause.IMAGE, Cause.PREPARE, Cause.GPUS, Cause.ENGINE)
        ),
        ({}, fails(Cause.IMAGE, durations_s={"prepare": 1.0}), {"base_docker": "rocm/pytorch", "build_number": "17"}),
        # a failed build has a row without a base image
        ({}, fails(Cause.BUILD, image=ImageUsed()), {"docker_file": "docker/dummy.ubuntu.amd.Dockerfile"}),
        ({}, fails(Cause.BUILD, image=ImageUsed()), {"docker_image": "ci-dummy_dummy.ubuntu.amd", "base_docker": ""}),
        ({}, fails(Cause.BUILD, image=ImageUsed()), {"docker_sha": "", "build_duration": ""}),
        ({}, {"metrics": ()}, {"status": "FAILURE"}),  # a success without a number is never written
    ],
)
def test_cells_of_a_row(plan: dict[str, Any], result: dict[str, Any], cells: dict[str, str]) -> None:
    (row,) = built(replace(PLAN, **plan), replace(DONE, **result))
    assert {name: row[name] for name in cells} == cells


def test_precision_is_the_cards_or_else_the_variants() -> None:
    assert built(RENDERED)[0]["training_precision"] == "BF16"
    card = replace(CARD, training_precision="fp8")
    assert built(replace(RENDERED, card=card))[0]["training_precision"] == "fp8"


def test_results_of_a_script_are_labelled_and_override_what_the_plan_says() -> None:
    metrics = (
        Metric(label="a", metric="u", text="3", status=Status.SUCCESS, columns={"n_gpus": "4", "temperature": "61"}),
        Metric(
            label="b",
            metric="u",
            text="",
            status=Status.FAILURE,
            columns=dict.fromkeys(("model", "performance", "metric", "status"), "no"),
        ),
    )
    first, second = built(result=replace(DONE, metrics=metrics))
    assert (first["model"], first["n_gpus"], first["temperature"]) == ("dummy_a", "4", "61")
    assert [second[name] for name in ("model", "performance", "metric", "status")] == ["dummy_b", "", "u", "FAILURE"]
    assert first["test_duration"] == second["test_duration"] == "0.10357356071472168"


def test_skipped_row_says_only_what_was_asked() -> None:
    result = Result(plan_id="r1", status=Status.SKIPPED, cause=Cause.SKIPPED_ARCH)
    (cells,) = built(result=result)
    assert {name: text for name, text in cells.items() if text} == {
        "model": "dummy",
        "n_gpus": "1",
        "pipeline": "nightly",
        "args": "--steps 20",
        "tags": "dummies,dummy_test_group_1,dummy_group_1",
        "gpu_architecture": "gfx942",
        "status": "SKIPPED",
        "additional_docker_run_options": "--shm-size=2g",
    }
    assert list(cells) == list(STANDARD_COLUMNS)


def test_rendered_run_brings_its_columns() -> None:
    (cells,) = built(RENDERED, replace(DONE, metrics=(MEASURED,)))
    assert cells["model"] == "llama"
    assert cells.items() >= MEASURED.columns.items()


def test_failed_rendered_run_says_which_combination_failed() -> None:
    (cells,) = built(RENDERED, failed(Cause.TIMEOUT))
    assert (cells["model"], cells["mode"], cells["precision"]) == ("llama", "finetune_lora", "BF16")
    assert [cells[name] for name in ("batch_size", "seq_len", "num_gpus")] == ["2", "8192", "1"]


@each_row(("kind", "shown"), [("sweep", "none"), ("tune", "none"), ("repeat", None), ("bisect", None)])
def test_rows_of_different_configurations_can_be_told_apart(kind: str, shown: str | None) -> None:
    study = Study(id="s", kind=kind, varied={"micro_batch": 2, "activation_checkpoint": "none"})
    for result in (replace(DONE, metrics=(MEASURED,)), failed(Cause.TIMEOUT)):
        (cells,) = built(replace(RENDERED, study=study), result)
        assert cells.get("activation_checkpoint") == shown and cells["batch_size"] == "2"
        assert "micro_batch" not in cells, "which batch_size has"


def test_a_point_is_in_one_column_by_which_a_copy_of_the_file_tells_it_apart() -> None:
    study = Study(id="s", kind="sweep", varied={"micro_batch": 2, "lr": 0.1, "activation_checkpoint": "none"})
    (row, *_) = built(replace(RENDERED, study=study))
    assert row["varied"] == "activation_checkpoint=none, lr=0.1", "the batch has its own"


def test_strict_header_puts_mode_and_precision_into_the_name_of_a_rendered_run() -> None:
    for result in (replace(DONE, metrics=(MEASURED,)), failed(Cause.TIMEOUT)):
        (cells,) = built(RENDERED, result, strict=True)
        assert cells["model"] == "llama_finetune_lora_BF16"
        assert list(cells) == list(STANDARD_COLUMNS)
    skipped = Result(plan_id="r1", status=Status.SKIPPED)
    assert built(RENDERED, skipped, strict=True)[0]["model"] == "llama_finetune_lora_BF16"


def test_strict_header_leaves_the_name_of_a_script_s_result_alone() -> None:
    metric = replace(NUMBER, label="a", columns={"precision": "bf16", "n_gpus": "4"})
    (cells,) = built(result=replace(DONE, metrics=(metric,)), strict=True)
    assert (cells["model"], cells["n_gpus"]) == ("dummy_a", "4")
    assert "precision" not in cells
