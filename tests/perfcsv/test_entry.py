"""perf_entry.*, perf_entry_super.* and common_info.json: what madengine 2 wrote for the same runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from madlite.measure.performance import read_results
from madlite.model import Cause, Result, ResultRule, RunPlan, Status, Variant
from madlite.perfcsv.append import append_rows
from madlite.perfcsv.rows import STANDARD_COLUMNS, build_rows
from madlite.store.folder import RunStart
from tests.factories import write_side_files
from tests.rows import each_row

from .golden import BLANK, GOLDEN, OVERRIDE, SIDE_FILES, failed, make_run, number, spelled, strict_json, written
from .reading import table

SUPERSET = "model,benchmark,config_value,batch_size,datatype,max_tokens\n" + "\n".join(
    (
        "dummy/model-1,throughput,128,8,float16,1024",
        "dummy/model-2,serving,256,16,float32,2048",
        "dummy/model-3,latency,512,32,bfloat16,4096",
    )
)


def golden_run(name: str, workspace: Path) -> tuple[RunPlan, Result]:
    runs: dict[str, dict[str, Any]] = {
        "x_args": {
            "args": "--base 1 --foo 3 --bar",
            "metrics": (number("1.5e+3", "tokens/s"),),
            "built_s": 0.10306310653686523,
            "ran_s": 0.10786628723144531,
        },
        "x_fail": {"training_precision": "fp16", "built_s": 0.20923399925231934, **failed(Cause.EXIT_CODE)},
        "x_noperf": {"built_s": 0.11720061302185059, "ran_s": 0.10242533683776855, **failed(Cause.NO_METRIC)},
        "x_multi_missing": {
            "multiple_results": "nope.csv",
            "built_s": 0.12265515327453613,
            "ran_s": 0.10682368278503418,
            **failed(Cause.NO_METRIC),
        },
        "x_multi_blank": {"csv": BLANK, "built_s": 0.12177252769470215, "ran_s": 0.14921164512634277},
        "x_multi_override": {"csv": OVERRIDE, "built_s": 0.21431231498718262, "ran_s": 0.2226874828338623},
        "dummy_superset": {
            "tags": ("dummies", "perf_super_test"),
            "args": "--config configs/default.csv",
            "multiple_results": "perf_dummy_super.csv",
            "built_s": 0.1661536693572998,
            "ran_s": 0.12480783462524414,
            **failed(Cause.NO_METRIC),
        },
    }
    config = workspace / "scripts/dummy/configs/default.csv"
    config.parent.mkdir(parents=True)
    config.write_text(SUPERSET)
    return make_run(workspace, name, **runs[name])


@each_row("name", sorted(folder.name for folder in GOLDEN.iterdir()))
def test_files_are_those_madengine_2_wrote(name: str, tmp_path: Path) -> None:
    written(*golden_run(name, tmp_path))
    for golden in (GOLDEN / name).iterdir():
        ours = tmp_path / golden.name
        if golden.suffix == ".csv":
            assert ours.read_text() == golden.read_text()
            continue
        expected = json.loads(golden.read_text(), parse_constant=lambda nan: None)  # its NaN is no JSON
        assert spelled(strict_json(ours)) == spelled(expected)
    # of a first run both lists hold the same
    assert spelled(strict_json(tmp_path / "perf_super.json")) == spelled(
        strict_json(tmp_path / "perf_entry_super.json")
    )
    assert (tmp_path / "perf_entry_super.csv").read_text() == (tmp_path / "perf_super.csv").read_text()
    assert (tmp_path / "common_info.json").exists() == (GOLDEN / name / "common_info.json").exists()


def test_a_run_leaves_no_other_files(tmp_path: Path) -> None:
    written(*make_run(tmp_path, metrics=(number("5"),)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((*SIDE_FILES, "madlite_runs"))


def test_numbers_keep_their_spelling_and_columns_their_type(tmp_path: Path) -> None:
    rows = (
        "model,performance,metric,id,loss,eff,seed,note",
        "a,1.50,tok/s,0012,+1.5e+03,nan,7,8",
        "b,123456789012345678901234567890,tok/s,0013,.5,91.20,,auto",
    )
    plan, result = make_run(tmp_path, csv="\n".join(rows))
    written(plan, result)
    text = (tmp_path / "perf_entry.json").read_text()
    assert '"performance": 1.50,' in text and '"performance": 123456789012345678901234567890,' in text
    first, second = strict_json(tmp_path / "perf_entry.json")
    assert [first[name] for name in ("id", "loss", "eff", "seed", "note")] == ["0012", 1500.0, None, 7, "8"]
    assert [second[name] for name in ("id", "loss", "eff", "seed", "note")] == ["0013", 0.5, 91.2, None, "auto"]
    entry, super_ = table(tmp_path / "perf_entry.csv"), table(tmp_path / "perf_super.csv")
    assert [row["loss"] for row in entry] == ["1.5e+03", "0.5"], "as JSON spells them"
    assert [row["performance"] for row in super_] == ["1.50", "123456789012345678901234567890"]


def test_all_results_blank_are_a_failure_each(tmp_path: Path) -> None:
    plan, result = make_run(tmp_path, csv="model,performance,metric\na,,tok/s\nb,,tok/s\n")
    result = Result(
        plan_id="x", status=Status.FAILURE, cause=Cause.BAD_NUMBER, metrics=result.metrics, durations_s={"run": 1.0}
    )
    written(plan, result)
    entries = strict_json(tmp_path / "perf_entry.json")
    assert [(one["model"], one["performance"], one["status"]) for one in entries] == [
        ("x_a", None, "FAILURE"),
        ("x_b", None, "FAILURE"),
    ]


@each_row("cause", [Cause.BUILD, Cause.IMAGE, Cause.GPUS, Cause.PREPARE])
def test_run_that_never_started_is_the_last_entry_and_not_in_the_list(tmp_path: Path, cause: Cause) -> None:
    written(*make_run(tmp_path, "ran", metrics=(number("5"),)))
    written(*make_run(tmp_path, "never", **failed(cause), durations_s={}))
    assert [one["model"] for one in strict_json(tmp_path / "perf_super.json")] == ["ran"]
    assert [row["model"] for row in table(tmp_path / "perf_super.csv")] == ["ran"]
    entry = strict_json(tmp_path / "perf_entry.json")
    assert [entry[name] for name in ("model", "performance", "launcher", "test_duration", "status")] == [
        *("never", "", "", "", "FAILURE")
    ]
    assert [one["model"] for one in strict_json(tmp_path / "perf_entry_super.json")] == ["never"]
    assert [row["model"] for row in table(tmp_path / "perf_entry.csv")] == ["never"]
    assert [row["model"] for row in table(tmp_path / "perf_entry_super.csv")] == ["never"]


def test_skipped_run_is_an_entry(tmp_path: Path) -> None:
    plan, _ = make_run(tmp_path)
    written(plan, Result(plan_id="x", status=Status.SKIPPED, cause=Cause.SKIPPED_ARCH))
    entry = strict_json(tmp_path / "perf_entry.json")
    assert list(entry) == [*STANDARD_COLUMNS, "configs"]
    assert (entry["model"], entry["status"], entry["performance"], entry["docker_image"]) == ("x", "SKIPPED", "", "")
    assert not (tmp_path / "perf_super.json").exists()


def test_rendered_run_is_one_with_several_results(tmp_path: Path) -> None:
    columns = {"mode": "pretrain", "precision": "BF16", "batch_size": "2", "seq_len": "8192", "num_gpus": "8"}
    metrics = (
        number("450.25", "TFLOPS_per_gpu", columns=columns),
        number("9000", "tok_per_s_per_gpu", columns=columns),
    )
    rule, variant = ResultRule(kind="steps"), Variant(model="llama", precision="BF16")
    written(*make_run(tmp_path, metrics=metrics, result_rule=rule, variant=variant))
    entries = strict_json(tmp_path / "perf_super.json")
    assert [(one["model"], one["metric"], one["performance"]) for one in entries] == [
        ("x", "TFLOPS_per_gpu", 450.25),
        ("x", "tok_per_s_per_gpu", 9000),
    ]
    expected = {"mode": "pretrain", "precision": "BF16", "batch_size": 2, "seq_len": 8192, "num_gpus": 8}
    assert {name: entries[0]["multi_results"][name] for name in expected} == expected
    assert strict_json(tmp_path / "common_info.json")["test_duration"] == 1.5


def test_secrets_of_rows_and_configs_are_masked(tmp_path: Path) -> None:
    config = tmp_path / "scripts/dummy/c.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"url": "https://u:hush-hush@h", "api_key": "unknown-to-us"}')
    rows = "model,performance,metric,url\na-hush-hush,5,tok/s,http://hush-hush\n"
    plan, result = make_run(tmp_path, csv=rows, args="--config c.json --token hush-hush")
    (tmp_path / "results.csv").unlink()
    written(plan, result, mask=lambda text: text.replace("hush-hush", "***"))
    config.unlink()
    texts = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name, text in texts.items() if "hush-hush" in text or "unknown-to-us" in text} == set()
    (entry,) = strict_json(tmp_path / "perf_super.json")
    assert entry["configs"] == {"url": "https://u:***@h", "api_key": "***"}
    assert entry["multi_results"] == {"url": "http://***"}


def test_secret_names_of_columns_are_masked_and_standard_ones_are_kept(tmp_path: Path) -> None:
    rows = "model,performance,metric,n_gpus,hush-hush,note\na,5,tok/s,8,1,b\n"
    plan, result = make_run(tmp_path, csv=rows)
    (tmp_path / "results.csv").unlink()
    written(plan, result, mask=lambda text: text.replace("hush-hush", "***").replace("n_gpus", "***"))
    assert [path for path in tmp_path.glob("*.*") if "hush" in path.read_text()] == []
    entry = strict_json(tmp_path / "perf_entry.json")
    assert (entry["n_gpus"], entry["***"], entry["note"]) == (8, 1, "b")
    (super_,) = strict_json(tmp_path / "perf_super.json")
    assert super_["multi_results"] == {"n_gpus": 8, "***": 1, "note": "b"}


def test_bytes_of_a_results_file_that_are_no_utf_8_are_spelled_out(tmp_path: Path) -> None:
    plan, result = make_run(tmp_path, multiple_results="r.csv")
    (tmp_path / "r.csv").write_bytes(b"model,performance,metric,c\xff\na\xe9,5,tok/s,caf\xe9\n")
    result = replace(result, metrics=read_results(tmp_path / "r.csv").metrics)
    append_rows(tmp_path / "perf.csv", build_rows(plan, result, RunStart()))
    written(plan, result)
    entry, (super_,) = strict_json(tmp_path / "perf_entry.json"), strict_json(tmp_path / "perf_super.json")
    assert (entry["model"], entry["c\\udcff"]) == ("x_a\\udce9", "caf\\udce9")
    assert super_["multi_results"] == {"c\\udcff": "caf\\udce9"}
    for name in ("perf.csv", "perf_entry.csv"):
        with (tmp_path / name).open(newline="", encoding="utf-8") as text:
            (row,) = csv.DictReader(text)
        assert (row["model"], row["c\\udcff"]) == ("x_a\\udce9", "caf\\udce9")


def test_one_file_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "perf_entry.json").mkdir()
    plan, result = make_run(tmp_path, metrics=(number("5"),))
    (problem,) = write_side_files(plan, result, pipeline="", build_number="0")
    assert "perf_entry.json is a folder" in problem
    assert all((tmp_path / name).is_file() for name in SIDE_FILES if name != "perf_entry.json")
    assert [path.name for path in tmp_path.glob(".*.new")] == []


def test_working_folder_that_takes_no_lock_is_said(tmp_path: Path) -> None:
    (tmp_path / "madlite_runs").write_text("a file")
    plan, result = make_run(tmp_path, metrics=(number("5"),))
    (problem,) = write_side_files(plan, result, pipeline="", build_number="0")
    assert "madlite_runs" in problem
    assert not (tmp_path / "perf_entry.json").exists()


def test_entry_keeps_a_link_and_a_mode(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    kept = tmp_path / "kept/list.json"
    kept.write_text("[]")
    kept.chmod(0o660)
    (tmp_path / "perf_super.json").symlink_to(kept)
    written(*make_run(tmp_path, metrics=(number("5"),)))
    assert (tmp_path / "perf_super.json").is_symlink()
    assert [one["model"] for one in strict_json(kept)] == ["x"]
    assert kept.stat().st_mode & 0o777 == 0o660
