"""`madlite run --tags mini` against what madengine 1.0.0 and 2.1 wrote for it: cells, files, the container's view."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.golden.compare import Declared, compare_names, equal, undeclared
from tests.golden.facts import read_rows
from tests.golden.machines import H100
from tests.golden.runs import DATA, Bed, Done, copied
from tests.rows import each_row

pytestmark = pytest.mark.engine
GOLDEN = DATA / "golden"
VARIES = ("build_duration", "test_duration", "docker_sha", "machine_name")  # compared by being there
OF_THE_HOST = {("mini_opts", "performance")}  # the MiB of the machine's /dev/shm
FAILED = 3
MODELS = [
    "mini_single", "mini_sci", "mini_multi_a", "mini_multi_b", "mini_multi_gap_a", "mini_multi_gap_b",
    "mini_multi_missing", "mini_fail", "mini_noperf", "mini_twice", "mini_sleep", "mini_skip", "mini_env", "mini_data",
    "mini_nodata", "mini_cred", "mini_nodocker", "mini_badbuild", "mini_twoimages", "mini_twoimages", "mini_opts",
    "mini_quote", "mini_old", "mini_big", "mini_comma", "mini_zero",
]  # fmt: skip
NOT_STARTED = "SKIPPED, failed build, no Dockerfile, too few GPUs"
ZERO = "zero or negative throughput, `nan`, `inf`, text"
COMMA = "`performance: 2,872 tok`"
NO_BUILD = "image of a run that cannot start"
CELLS = "cells of a failed run"
BLANK = {
    "docker_file": "", "base_docker": "", "docker_sha": "", "docker_image": "", "machine_name": "", "nnodes": "",
    "gpus_per_node": "", "deployment_type": "", "launcher": "", "build_duration": "", "test_duration": "",
    "build_number": "",
}  # fmt: skip
OF_ALL = {"n_gpus": "1", "tags": "mini,mini_bad", "gpu_architecture": H100, "status": "FAILURE", "build_number": "0"}
VERSION_2 = {"nnodes": "1", "gpus_per_node": "1", "deployment_type": "local", "machine_name": "*"}
BROKEN = {
    "docker_file": "docker/broken.ubuntu.nvidia.Dockerfile",
    "docker_image": "ci-mini_badbuild_broken.ubuntu.nvidia",
}
OLD = {"n_gpus": "1", "args": "--value 1", "tags": "mini,mini_odd", "gpu_architecture": H100, "status": "SKIPPED"}
UNBUILT = {"docker_sha": "", "build_duration": ""}
NUMBER = {"performance": "2872", "metric": "samples_per_second"}

# What madlite has there instead of madengine's cell (`*`: the host's name), and the row of docs/differences.md.
DIFFERENT: dict[str, dict[str, tuple[dict[str, str], str]]] = {
    "v2": {
        "mini_skip": (BLANK | {"status": "SKIPPED"}, NOT_STARTED),
        "mini_nodata": (UNBUILT, NO_BUILD),
        "mini_nodocker": (OF_ALL | VERSION_2 | {"model": "mini_nodocker"}, NOT_STARTED),
        "mini_badbuild": (OF_ALL | VERSION_2 | BROKEN | {"model": "mini_badbuild"}, NOT_STARTED),
        "mini_old": (BLANK | {"performance": "", "metric": "", "status": "SKIPPED"}, "deprecated cards"),
        "mini_big": (UNBUILT, NO_BUILD),
        "mini_comma": (NUMBER | {"status": "SUCCESS"}, COMMA),
        "mini_zero": ({"performance": "", "status": "FAILURE"}, ZERO),
    },
    "v1": {
        "mini_multi_a": ({"n_gpus": "8"}, "n_gpus of a row"),
        "mini_multi_b": ({"n_gpus": "8"}, "n_gpus of a row"),
        "mini_multi_missing": ({"performance": ""}, "results file that is missing, or lies in the model's folder"),
        "mini_fail": ({"test_duration": "0"}, CELLS),
        "mini_sleep": ({"test_duration": "0"}, CELLS),
        "mini_twice": ({"performance": "11", "metric": "samples_per_second"}, "several performance lines"),
        "mini_nodata": (UNBUILT | {"build_number": "0", "machine_name": "*"}, NO_BUILD),
        "mini_nodocker": ({"build_number": "0", "machine_name": "*"}, CELLS),
        "mini_badbuild": ({"build_number": "0", "machine_name": "*"}, CELLS),
        "mini_old": (OLD | {"model": "mini_old"}, "deprecated cards"),
        "mini_big": (UNBUILT | {"build_number": "0", "machine_name": "*"}, NO_BUILD),
        "mini_comma": (NUMBER, COMMA),
        "mini_zero": ({"performance": "", "status": "FAILURE"}, ZERO),
    },
}
FILES = (
    Declared("v2", "mini", "files.madlite_runs", "there", "folder `madlite_runs`"),
    Declared("v2", "mini", "files.*_env.csv", "", "snapshot of the environment"),
    Declared("v2", "mini", "files.mini_big_*.build.live.log|files.mini_nodata_*.build.live.log", "", NO_BUILD),
    Declared("v2", "mini", "files.mini_skip_*.live.log|files.mini_old_*.live.log", "", NO_BUILD),
    Declared(
        "v2", "mini", "files.mini_badbuild_broken.ubuntu.nvidia*.live.log", "there", "names of containers and logs"
    ),
)


@pytest.fixture(scope="session")
def done(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Done]]:
    """Return two runs: into a folder without perf.csv, and into one with version 1's header."""
    homes = {version: tmp_path_factory.mktemp(version) for version in ("v2", "v1")}
    with ThreadPoolExecutor() as pool:
        runs = {version: pool.submit(_run, bed, homes[version], version) for version in homes}
    yield {version: run.result() for version, run in runs.items()}
    bed.remove_images(run.result().folder for run in runs.values())


def _run(bed: Bed, home: Path, version: str) -> Done:
    folder = copied("minimad", home)
    if version == "v1":
        (folder / "perf.csv").write_text(",".join(_columns("v1")) + "\n")
    with bed.tapped(home) as tap:
        ended = bed.start(folder, "8 x H100", tap.address, ("run", "--tags", "mini"), {})
    left = bed.take_away(folder)
    return Done(folder, (ended.returncode,), ended.stdout + ended.stderr, tuple(tap.calls), left)


def _columns(version: str) -> list[str]:
    """Return version 1's 25 or version 2's 29 columns."""
    header, _ = read_rows(GOLDEN / f"{version}.perf.csv")
    assert header is not None
    return header[: header.index("additional_docker_run_options") + 1]


def _rows(path: Path) -> list[dict[str, str]]:
    header, rows = read_rows(path)
    assert header is not None and rows is not None
    return [{name: row.get(name, "") for name in header} for row in rows]


def _key(row: dict[str, str]) -> tuple[str, str]:
    return row["model"], row["docker_file"] if row["model"] == "mini_twoimages" else ""


@each_row("version", ["v1", "v2"])
def test_the_header_is_that_of_the_file_and_results_join_it(done: dict[str, Done], version: str) -> None:
    header, _ = read_rows(done[version].folder / "perf.csv")
    assert header == [*_columns(version), "temperature", "precision"]


@each_row("version", ["v1", "v2"])
def test_every_card_has_its_row_in_order(done: dict[str, Done], version: str) -> None:
    assert done[version].exits == (FAILED,), done[version].printed
    assert [row["model"] for row in _rows(done[version].folder / "perf.csv")] == MODELS


@each_row("version", ["v1", "v2"])
@each_row("model", sorted(set(MODELS)))
def test_the_cells_are_madengines(done: dict[str, Done], version: str, model: str) -> None:
    ours = [row for row in _rows(done[version].folder / "perf.csv") if row["model"] == model]
    theirs = {_key(row): row for row in _rows(GOLDEN / f"{version}.perf.csv")}
    different, _ = DIFFERENT[version].get(model, ({}, ""))
    for row in ours:
        known = theirs.get(_key(row)) or dict.fromkeys(row, "")
        seen = {name: row[name] for name in known if name in row and not _same(model, name, known[name], row[name])}
        assert {name: "*" if different.get(name) == "*" and cell else cell for name, cell in seen.items()} == different


def _same(model: str, column: str, theirs: str, ours: str) -> bool:
    if column in VARIES or (model, column) in OF_THE_HOST:
        return bool(theirs) == bool(ours)
    return equal(theirs, ours)


def test_the_container_sees_what_it_saw(done: dict[str, Done]) -> None:
    (log,) = done["v2"].folder.glob("madlite_runs/*mini-env*/run.log")
    seen = dict(re.findall(r"^((?:MAD_|JENKINS|MINI|NCCL|HIP|CUDA|ROCR)\w*)=(.*?)\r?$", log.read_text(), re.MULTILINE))
    text = (GOLDEN / "v2.container_env.txt").read_text()
    theirs = dict(line.split("=", 1) for line in text.splitlines())
    runner = "MAD_MULTI_NODE_RUNNER"  # version 2 gives every card of a run the first card's number of GPUs
    assert theirs.pop(runner).endswith("nproc_per_node=1")
    assert seen.pop(runner) == "torchrun --standalone --nproc_per_node=4"
    ours = {name: text for name, text in seen.items() if not name.startswith("MADLITE_")}
    assert ours == theirs
    assert re.search(r"^/myworkspace/run_directory\r?$", log.read_text(), re.MULTILINE)


def test_nothing_is_left_running(done: dict[str, Done]) -> None:
    assert {version: run.left for version, run in done.items()} == {"v1": 0, "v2": 0}


def test_the_engine_was_asked_for_eight_gpus_and_fewer(done: dict[str, Done]) -> None:
    asked = {}
    for call in done["v2"].calls:
        if call.what == "POST /containers/create":
            (name,) = (entry.split("=")[1] for entry in call.body["Env"] if entry.startswith("MAD_MODEL_NAME="))
            asked[name] = call.body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"]
    assert asked["mini_multi"] == list("01234567") and asked["mini_env"] == list("0123")
    assert asked["mini_sci"] == ["0", "1"] and "mini_big" not in asked


def test_the_files_are_madengine_2s(done: dict[str, Done]) -> None:
    theirs = (GOLDEN / "v2.files.txt").read_text().split()
    own = {path.name for path in (DATA / "minimad").iterdir()}
    gaps = compare_names("files", theirs, {path.name for path in done["v2"].folder.iterdir()} - own)
    unexplained = undeclared(gaps, FILES, "v2", "mini")
    assert not unexplained, "\n".join(map(str, ["", *unexplained]))


def _json_keys(path: Path) -> list[str]:
    found = json.loads(path.read_text())
    return list(found[0] if isinstance(found, list) else found)


@each_row("name", ["perf_entry.json", "common_info.json"])
def test_the_side_files_have_madengine_2s_keys(done: dict[str, Done], name: str) -> None:
    assert _json_keys(done["v2"].folder / name) == _keys(name)


@each_row("name", ["perf_entry.csv", "perf_super.csv"])
def test_the_side_files_have_madengine_2s_columns(done: dict[str, Done], name: str) -> None:
    header, rows = read_rows(done["v2"].folder / name)
    assert header == _keys(name) and rows


def test_perf_super_has_madengine_2s_keys_in_every_entry(done: dict[str, Done]) -> None:
    entries = json.loads((done["v2"].folder / "perf_super.json").read_text())
    assert {tuple(sorted(entry)) for entry in entries} == {tuple(_keys("perf_super.json"))}
    multi = [entry["multi_results"] for entry in entries if entry["model"].startswith("mini_multi_")]
    assert multi[:2] == [{"temperature": 61, "precision": "bf16"}, {"temperature": 62, "precision": "fp8"}]


def test_the_manifest_has_madengine_2s_keys(done: dict[str, Done]) -> None:
    manifest = json.loads((done["v2"].folder / "build_manifest.json").read_text())
    assert set(manifest) >= set(_keys("build_manifest.json"))
    assert set(next(iter(manifest["built_images"].values()))) >= set(_keys("build_manifest.json/built_images"))


def _keys(name: str) -> list[str]:
    return list(json.loads((GOLDEN / "keys.json").read_text())["v2"][name])
