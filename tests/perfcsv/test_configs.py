"""`configs`: the file that --config names, and which of its rows a result belongs to."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from madlite.model import RunPlan
from madlite.perfcsv.side_files import configs_of
from tests.factories import HOST
from tests.rows import each_row

from .golden import make_run, number, spelled, strict_json, written

SCRIPT = "scripts/dummy/run.sh"


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    put(tmp_path / SCRIPT, "")
    return make_run(tmp_path)[0]


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def read(plan: RunPlan, args: str, **options: Any) -> Any:
    """Return the configs as an entry holds them."""
    plan = replace(plan, args=args)
    written(plan, make_run(plan.workspace, metrics=(number("5"),))[1], **options)
    return strict_json(plan.workspace / "perf_entry.json")["configs"]


@each_row(
    "args",
    [
        "--config c.json",
        "--config=c.json",
        "--steps 3 --config 'c.json' --fast",
        "--config other.json --config c.json",
        "--config=other.json --config c.json",
        "--config other.json --config=c.json",
        '--config c.json --note "open',
    ],
)
def test_the_last_config_of_the_args_is_taken(plan: RunPlan, args: str) -> None:
    put(plan.workspace / "scripts/dummy/c.json", '{"batch": 8}')
    put(plan.workspace / "scripts/dummy/other.json", '{"batch": 9}')
    assert read(plan, args) == {"batch": 8}


@each_row("args", ["", "--config_path c.json", "--config-file c.json", "--config", "c.json", "--config c.sh"])
def test_other_args_name_no_config(plan: RunPlan, args: str, caplog: pytest.LogCaptureFixture) -> None:
    put(plan.workspace / "scripts/dummy/c.json", '{"batch": 8}')
    assert read(plan, args) is None
    assert caplog.text == ""


def test_args_of_the_context_are_those_the_run_gets(plan: RunPlan) -> None:
    put(plan.workspace / "scripts/dummy/c.json", '{"batch": 8}')
    assert read(replace(plan, model_args="--config c.json"), "--config gone.json") == {"batch": 8}


@each_row(
    "folder",
    [
        *("scripts/MAD/dummy/deep", "scripts/MAD/dummy", "scripts/MAD", "scripts", "."),
        *("scripts/MAD-private", "scripts/MAD-internal"),
    ],
)
def test_file_is_found_by_the_script_above_it_and_where_scripts_share(tmp_path: Path, folder: str) -> None:
    put(tmp_path / "scripts/MAD/dummy/deep/run.sh", "")
    plan, _ = make_run(tmp_path)
    plan = replace(plan, card=replace(plan.card, scripts="scripts/MAD/dummy/deep/run.sh"))
    put(tmp_path / folder / "configs/c.json", '{"batch": 8}')
    assert read(plan, "--config configs/c.json") == {"batch": 8}


def test_nearest_file_wins(plan: RunPlan) -> None:
    for folder in ("scripts/dummy", "scripts", "."):
        put(plan.workspace / folder / "c.json", f'"{folder}"')
    assert read(plan, "--config c.json") == "scripts/dummy"


def test_card_whose_scripts_is_a_folder_has_its_config_inside(plan: RunPlan) -> None:
    put(plan.workspace / "scripts/dummy/c.json", "[1]")
    assert read(replace(plan, card=replace(plan.card, scripts="scripts/dummy")), "--config c.json") == [1]


def test_absolute_path_is_the_workloads(plan: RunPlan, tmp_path: Path) -> None:
    put(tmp_path / "c.json", "[1]")
    assert read(plan, "--config /myworkspace/c.json") == [1]
    assert read(plan, f"--config {tmp_path}/c.json") is None  # in the container that would be another file
    assert read(replace(plan, runtime="host", traits=HOST), f"--config {tmp_path}/c.json") == [1]


@each_row("way", ["up", "absolute", "file", "folder", "credentials", "hidden credentials"])
def test_a_file_elsewhere_or_with_credentials_comes_into_no_file(
    plan: RunPlan, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A card's args, or a link in its repository, name what is the host's: it stays there."""
    caplog.clear()
    workspace = tmp_path / "mad"
    put(workspace / SCRIPT, "")
    plan = replace(make_run(workspace)[0], runtime="host", traits=HOST, inside=str(workspace))
    put(tmp_path / "hosts/c.json", '{"of": "the host"}')
    put(workspace / "credential.json", '{"of": "the host"}')
    (workspace / "scripts/dummy/file.json").symlink_to("../../../hosts/c.json")
    (workspace / "scripts/dummy/folder").symlink_to(tmp_path / "hosts")
    (workspace / "scripts/dummy/mine.json").symlink_to("../../credential.json")
    name = {
        "up": "../../../hosts/c.json",
        "absolute": f"{tmp_path}/hosts/c.json",
        "file": "file.json",
        "folder": "folder/c.json",
        "credentials": "credential.json",
        "hidden credentials": "mine.json",
    }[way]
    assert read(plan, f"--config {name}") is None
    written_files = [path for path in workspace.iterdir() if path.name.startswith("perf_")]
    assert written_files and not [path for path in written_files if "the host" in path.read_text()]
    (warning,) = caplog.messages
    told = "it is credential.json" if "credentials" in way else f"outside of {workspace}"
    assert "is not read: " in warning and told in warning
    if way in ("file", "folder"):
        assert f"{tmp_path}/hosts/c.json" in warning and "link" in warning


def test_a_file_outside_is_passed_over_for_one_of_the_checkout(plan: RunPlan, tmp_path: Path) -> None:
    put(plan.workspace / "c.json", "[1]")
    (plan.workspace / "scripts/dummy/c.json").symlink_to("/proc/self/status")
    assert read(plan, "--config c.json") == [1]


def test_a_pipe_is_not_waited_for(plan: RunPlan, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(plan.workspace / "scripts/dummy/c.json")
    assert read(plan, "--config c.json") is None and len(caplog.records) == 1


@each_row(
    ("name", "text", "value"),
    [
        ("c.csv", "model, bs ,lr,on\na,8,1e-4,\n\nb,16,,x\n", [
            {"model": "a", "bs": 8, "lr": 0.0001, "on": None},
            {"model": "b", "bs": 16, "lr": None, "on": "x"},
        ]),
        ("c.CSV", "﻿a\n1\n", [{"a": 1}]),
        ("c.json", '{"b": 1, "a": [1.50, null, NaN, "x"]}', {"b": 1, "a": [1.5, None, None, "x"]}),
        ("c.yaml", "b: &x {lr: .inf, day: 2025-01-02}\na: [*x, 0o7]\n3: yes\n", {
            "b": {"lr": None, "day": "2025-01-02"},
            "a": [{"lr": None, "day": "2025-01-02"}, "0o7"],
            "3": True,
        }),
        ("c.yml", "modules:\n  trainer: ${X:default}\n", {"modules": {"trainer": "${X:default}"}}),
        ("c.toml", "[training]\nsteps = 10\ndtype = 'bf16'\n", {"training": {"steps": 10, "dtype": "bf16"}}),
    ],
)  # fmt: skip
def test_formats(plan: RunPlan, name: str, text: str, value: Any) -> None:
    put(plan.workspace / "scripts/dummy" / name, text)
    assert spelled(read(plan, f"--config {name}")) == spelled(value)


@each_row(
    ("name", "text"),
    [
        ("c.csv", ""),
        ("c.csv", b"a\n\xff\n"),
        ("c.json", '{"a": '),
        ("c.json", "[" * 100_000),
        ("c.json", '["' + "x" * (1 << 20) + '"]'),
        ("c.yaml", "a: [1, 2"),
        ("c.yaml", "&a [*a]"),
        ("c.yaml", "a: &a [*a]"),
        ("c.yaml", "[" * 5000),
        ("c.yaml", '!!int ""'),
        ("c.yaml", "!!python/object/apply:os.system [touch owned]"),
        ("c.toml", "a ="),
    ],
)
def test_file_that_cannot_be_read_is_a_warning(
    plan: RunPlan, name: str, text: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    put(plan.workspace / "scripts/dummy" / name, text)
    with caplog.at_level(logging.WARNING):
        assert read(plan, f"--config {name}") is None
    assert f"scripts/dummy/{name} cannot be read" in caplog.text and len(caplog.records) == 1
    assert "\n" not in caplog.messages[0] and len(caplog.messages[0]) < 400


def test_file_that_is_not_there_is_a_warning(plan: RunPlan, caplog: pytest.LogCaptureFixture) -> None:
    (plan.workspace / "scripts/dummy/folder.yaml").mkdir()
    for name in ("gone.yaml", "folder.yaml"):
        assert read(plan, f"--config {name}") is None
        assert f"--config {name} is not there" in caplog.text


def test_secrets_are_masked_by_what_they_are_and_by_their_names(plan: RunPlan) -> None:
    text = """
    hub: {hf_token: hf_unknown, max_tokens: 1024, note: "the hush of it"}
    wandb_api_key: [k1-unknown]
    """
    put(plan.workspace / "scripts/dummy/c.yaml", text)
    mask = lambda shown: shown.replace("hush", "***")  # noqa: E731
    assert read(plan, "--config c.yaml", mask=mask) == {
        "hub": {"hf_token": "***", "max_tokens": 1024, "note": "the *** of it"},
        "wandb_api_key": ["***"],
    }


@each_row(
    ("text", "value"),
    [
        ('{"run": "HF_TOKEN=CLOAK-1"}', {"run": "HF_TOKEN=***"}),
        ('["train --hf_token CLOAK-1 --bs 8"]', ["train --hf_token *** --bs 8"]),
        ('{"HF_TOKEN=CLOAK-1": {"HF_TOKEN=CLOAK-2": 1}}', {"HF_TOKEN=***": {"HF_TOKEN=***": 1}}),
    ],
)
def test_secrets_are_masked_however_their_name_is_told(plan: RunPlan, text: str, value: Any) -> None:
    put(plan.workspace / "scripts/dummy/c.json", text)
    assert read(plan, "--config c.json") == value


def test_a_name_that_no_file_can_have_is_a_warning(plan: RunPlan, caplog: pytest.LogCaptureFixture) -> None:
    assert read(plan, f"--config {'x' * 300}.json") is None
    assert len(caplog.records) == 1 and "entries have no configs" in caplog.text


ROWS = [
    {"model": "meta/Llama-3-8B", "benchmark": "serving", "batch_size": 8},
    {"model": "meta/Llama-3-8B", "benchmark": "latency", "batch_size": 8},
    {"model": "meta/Llama-3-80B", "benchmark": "serving", "batch_size": 16},
    {"model": "tiny", "benchmark": None, "batch_size": 1},
]


@each_row(
    ("label", "columns", "row"),
    [
        ("meta_llama_3_8b", {"benchmark": "serving"}, 0),
        ("llama-3-8b", {"benchmark": "Latency", "temperature": "61"}, 1),
        ("run_of_meta-llama-3-80b_fast", {}, 2),
        ("meta/Llama-3-8B", {}, None),  # two rows alike
        ("meta/Llama-3-8B", {"benchmark": "serving", "batch_size": "16"}, None),
        ("meta/Llama-3-8B", {"benchmark": "serving", "batch_size": "8.0"}, 0),
        ("", {"batch_size": "16"}, 2),
        ("", {"benchmark": "serving"}, None),
        ("tiny", {"benchmark": "serving"}, 3),  # a blank says nothing
        ("gpt", {"batch_size": "8"}, None),
        ("", {}, None),
    ],
)
def test_result_gets_the_one_row_that_agrees_best(label: str, columns: dict[str, str], row: int | None) -> None:
    found = configs_of(ROWS, [number("5", label=label, columns=columns)])[0]
    assert found == (None if row is None else ROWS[row])


def test_whole_name_goes_before_a_part_and_of_two_parts_none_is_taken() -> None:
    rows = [{"model": "llama"}, {"model": "llama-70b"}, {"model": "llama-70b-chat"}]
    assert configs_of(rows, [number("5", label="llama_70b")])[0] == rows[1]
    assert configs_of(rows[:2], [number("5", label="llama-70b-fp8")])[0] is None
    assert configs_of(rows[:1], [number("5", label="llama-70b-fp8")])[0] == rows[0]


def test_single_row_and_what_is_no_table_belong_to_every_result() -> None:
    assert configs_of(ROWS[:1], [number("5", label="other")])[0] == ROWS[0]
    assert configs_of({"a": 1}, [number("5", label="other")])[0] == {"a": 1}
    assert configs_of(None, [number("5", label="other")])[0] is None


def test_results_of_a_file_get_their_rows(plan: RunPlan) -> None:
    put(plan.workspace / "scripts/dummy/c.csv", "model,benchmark,batch\nm/a-1,serving,8\nm/a-10,latency,16\n")
    rows = "model,performance,metric,benchmark\nm_a_10,5,u,latency\nm_a_1,6,u,serving\nother,7,u,serving\n"
    plan, result = make_run(plan.workspace, csv=rows, args="--config c.csv")
    written(plan, result)
    whole = [
        {"model": "m/a-1", "benchmark": "serving", "batch": 8},
        {"model": "m/a-10", "benchmark": "latency", "batch": 16},
    ]
    for name in ("perf_super.json", "perf_entry.json"):
        assert [entry["configs"] for entry in strict_json(plan.workspace / name)] == [whole[1], whole[0], None]
    assert strict_json(plan.workspace / "common_info.json")["configs"] == whole


def test_names_and_texts_that_json_has_not_are_text(plan: RunPlan) -> None:
    put(plan.workspace / "scripts/dummy/c.yaml", 'on: 1\n~: 2\n3: !!set {x}\nsplit: "\\ud800"\n')
    assert read(plan, "--config c.yaml") == {"True": 1, "None": 2, "3": ["x"], "split": "\\ud800"}


def test_yaml_that_refers_to_its_parts_is_read(plan: RunPlan) -> None:
    put(plan.workspace / "scripts/dummy/c.yaml", "a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\n")
    assert read(plan, "--config c.yaml") == {"a": {"x": 1}, "b": {"x": 1, "y": [{"x": 1}, {"x": 1}]}}
    put(plan.workspace / "scripts/dummy/c.yaml", "# nothing\n")
    assert read(plan, "--config c.yaml") is None
