"""Contract mode: what scripts around madengine 1 and 2 look for is there, and without it nothing of that is."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from madlite.cli.arguments import closing_lines
from madlite.cli.main import call
from madlite.errors import ExitCode
from madlite.model import EngineOptions, Image, Machine, Mount, Place, Result, Secret, Status
from madlite.plan.container import container_name
from madlite.run.log import option_lines
from madlite.run.screen import RunOutcome
from tests.csv_rows import perf_rows
from tests.engine.checkout import UNPROBED
from tests.factories import make_plan
from tests.rows import each_row

DATA = Path(__file__).parents[1] / "data"
V1 = (DATA / "golden/v1.perf.csv").read_text().splitlines()[0].split(",")[:25]


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("MADLITE_CONTRACT", "MODEL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/madlite"])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    shutil.copytree(DATA / "minimad", tmp_path / "mad")
    monkeypatch.chdir(tmp_path / "mad")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    return tmp_path / "mad"


def said(capfd, *args: str) -> str:
    assert call(args) == 0
    return capfd.readouterr().out


def test_the_version_is_the_contracts_whoever_asks_for_it(capfd, monkeypatch):
    v2 = "🚀 madengine version 2.1.0\n"
    assert said(capfd, "--version").startswith("madlite ")
    assert said(capfd, "--contract", "1", "--version") == "1.0.0\n" and said(capfd, "--contract=2", "-v") == v2
    monkeypatch.setattr(sys, "argv", ["/opt/ci/bin/madengine"])
    assert said(capfd, "--version") == v2, "the name stands for version 2"
    monkeypatch.setenv("MADLITE_CONTRACT", "1")
    assert said(capfd, "--version") == "1.0.0\n", "the variable comes before the name"
    assert said(capfd, "--contract", "2", "--version") == v2, "and the option before both"


def test_another_contract_is_one_sentence_and_nothing_is_done(checkout, capfd, monkeypatch):
    assert call(["discover", "--contract", "3"]) == 4
    assert "'--contract': '3'" in capfd.readouterr().err
    monkeypatch.setenv("MADLITE_CONTRACT", "one")
    assert call(["run", "--tags", "mini_single", "--runtime", "host"]) == 4
    told = capfd.readouterr().err
    assert told.startswith("error: MADLITE_CONTRACT=one is no contract") and not Path("perf.csv").exists()


def test_discover_lists_names_one_a_line(checkout, capfd):
    v1, v2 = (said(capfd, "discover", "--contract", n).splitlines() for n in "12")
    assert v1[:3] == [
        "Discovering all models in the project",
        f"Number of models in total: {len(v1) - 2}",
        "mini_single",
    ]
    assert v2[0] == f"📊 Available Models ({len(v1) - 2} total):"
    assert v2[1:-1] == [f"  {name}" for name in v1[2:]] and v2[-1] == "✅ Model discovery completed successfully"
    assert "team/sub" in v1 and "demo_hf_lora_tiny" not in v1
    assert "demo_hf_lora_tiny" in said(capfd, "discover", "--contract", "1", "--all").splitlines()


@each_row("contract", ["1", "2"])
def test_discover_of_tags_is_json_with_every_field_of_the_card(checkout, capfd, contract):
    text = said(capfd, "discover", "--contract", contract, "--tags", "mini_opts:note=x", "mini_single")
    found = json.loads(text[text.index("[\n") : text.rindex("]") + 1])
    written = {card["name"]: card for card in json.loads(Path("models.json").read_text())}
    assert [card["name"] for card in found] == ["mini_opts", "mini_single"]
    assert found[0]["args"] == written["mini_opts"]["args"] + " --note x"
    for card in found:
        own = {name: value for name, value in written[card["name"]].items() if name != "args"}
        assert {name: card[name] for name in own} == own


def test_the_container_of_version_1_has_not_the_images_ci():
    built = Image(ref="ci-dir_m_x.ubuntu.amd", dockerfile=Path("docker/x.ubuntu.amd.Dockerfile"))
    assert container_name(built, 1) == "container_dir_m_x.ubuntu.amd"
    assert container_name(built, 2) == container_name(built) == "container_ci-dir_m_x.ubuntu.amd"
    assert container_name(Image(ref="ci-x/y:1"), 1) == "container_ci-x_y_1", "an image of one's own keeps its name"


def test_docker_options_are_told_in_madengines_order_without_secrets(tmp_path):
    plan = make_plan(
        tmp_path,
        env={"MAD_MODEL_NAME": "a b", "HF_TOKEN": Secret("hf_0123456789")},
        mounts=(Mount(source="/sets/wiki", target="/data", read_only=True),),
        devices=("/dev/fuse", "/dev/kfd", "/dev/dri/renderD128"),
        engine_options=EngineOptions(
            group_add=("video",),
            cap_add=("SYS_PTRACE",),
            security_opt=("seccomp=unconfined",),
            cpuset="0-3",
            extra="--x",
        ),
    )
    gpus = "--device=/dev/kfd --device=/dev/dri/renderD128"
    assert option_lines(plan) == (
        f"GPU arguments: {gpus}",
        "Docker options: --network host -u root --group-add video --cap-add SYS_PTRACE --device /dev/fuse "
        f"--security-opt seccomp=unconfined --ipc=host {gpus} --cpuset-cpus 0-3 --env MAD_MODEL_NAME='a b' "
        "--env HF_TOKEN=*** -v /sets/wiki:/data:ro --x",
    )
    nvidia = make_plan(tmp_path, machine=Machine(vendor="NVIDIA"), place=Place(gpu_ids=(0, 1)), devices=("/dev/fuse",))
    assert option_lines(nvidia)[0] == "GPU arguments: --gpus '\"device=0,1\"'"


def test_the_last_lines_of_a_batch_are_the_contracts():
    def lines(contract: int, *status: Status, never: tuple[str, ...] = (), from_manifest: bool = False) -> list[str]:
        results = tuple(Result(plan_id="x", status=one) for one in status)
        outcome = RunOutcome(results=results, not_started=never, exit_code=ExitCode.OK)
        return list(closing_lines(contract, outcome, from_manifest=from_manifest))

    good, bad = Status.SUCCESS, Status.FAILURE
    assert lines(0, good) == lines(0, bad) == []
    assert lines(1, good, Status.SKIPPED) == ["All models ran successfully."]
    assert lines(1, good, bad) == ["===== EXCEPTION =====", "Some models failed to run."]
    assert lines(2, good) == ["🎉 Complete workflow finished successfully!"]
    assert lines(2, bad, never=("m",)) == ["💥 Workflow completed but 2 model executions failed"]
    assert lines(2, good, from_manifest=True) == ["🎉 All model executions completed successfully!"]
    assert lines(2, bad, from_manifest=True) == ["💥 Execution failed for 1 models"]


@pytest.mark.host
def test_a_run_under_contract_1_begins_with_25_columns_and_its_rebuild_too(checkout, capfd):
    card = {"name": "a", "scripts": "scripts/a/run.sh", "n_gpus": "-1", "args": "", "tags": ["t"], "runtimes": ["host"]}
    Path("models.json").write_text(json.dumps([card]))
    Path("scripts/a").mkdir()
    Path("scripts/a/run.sh").write_text("echo performance: 12.5 tok\n")
    told = said(capfd, "run", "--tags", "a", "--runtime", "host", *UNPROBED, "--contract", "1").splitlines()
    header, line = Path("perf.csv").read_text().splitlines()
    assert header.split(",") == V1 and line.startswith("a,0,")
    (row,) = perf_rows(checkout)
    words = ["Status: SUCCESS (performance metrics found, no errors)", "a performance is 12.5 tok"]
    assert [one for one in told if one in words] == words and told[-1] == "All models ran successfully."
    assert f"Test Duration: {row['test_duration']} seconds" in told
    said(capfd, "report", "rebuild", "--contract", "1", "--force")
    assert Path("perf.csv").read_text().splitlines() == [header, line]
    said(capfd, "report", "rebuild", "--force")
    assert len(Path("perf.csv").read_text().splitlines()[0].split(",")) == 29
    plain = said(capfd, "run", "--tags", "a", "--runtime", "host", *UNPROBED)
    assert not any(word in plain for word in ("performance is", "Status: ", "Test Duration", "All models"))
    assert len(perf_rows(checkout)) == 2, "a row of the file's own columns"
    said(capfd, "--contract", "2", "run", "--tags", "a", "--runtime", "host", *UNPROBED, "--timeout", "77")
    again = said(capfd, "reproduce", "last")
    assert "--timeout 77" in again and "contract" not in again, "what nothing of the run follows from"


@pytest.mark.host
def test_results_of_a_file_have_madengine_2_s_blank_column_under_its_contract_alone(checkout, capfd):
    """As in the golden file: after the standard columns, before those of the results, and of several results alone."""
    card = {"name": "a", "scripts": "scripts/a/run.sh", "n_gpus": "-1", "tags": ["t"], "runtimes": ["host"]}
    several = {**card, "name": "b", "args": "several", "multiple_results": "b.csv"}
    Path("models.json").write_text(json.dumps([{**card, "args": ""}, several]))
    Path("scripts/a").mkdir()
    results = "printf 'model,performance,metric,temperature\\n1,12.5,tok,60\\n2,13,tok,61\\n' >../b.csv"
    Path("scripts/a/run.sh").write_text(f'if [ "$1" = several ]; then {results}; else echo performance: 3 tok; fi\n')
    for contract, extra in (("2", ["configs", "temperature"]), ("1", ["temperature"]), ("", ["temperature"])):
        Path("perf.csv").unlink(missing_ok=True)
        said(capfd, "run", "--tags", "b", "a", *UNPROBED, *(["--contract", contract] if contract else []))
        header = Path("perf.csv").read_text().splitlines()[0].split(",")
        assert header[header.index("additional_docker_run_options") + 1 :] == extra
        assert [row["temperature"] for row in perf_rows(checkout)] == ["60", "61", ""]
        assert {row.get("configs", "") for row in perf_rows(checkout)} == {""}
    said(capfd, "--contract", "2", "run", "--tags", "a", *UNPROBED, "-o", "one.csv")
    assert "configs" not in Path("one.csv").read_text(), "a single result brings none"


@pytest.mark.host
def test_files_for_mads_tooling_are_left_out_where_there_is_none(tmp_path, monkeypatch):
    """No number is needed for it: a run that fails has a row, and what lies beside it, too."""
    monkeypatch.chdir(tmp_path)
    run = ("run", "--tags", "torchrun_ddp_tiny", "--runtime", "host", *UNPROBED)
    run += ("--set", "env.MADLITE_PYTHON=/bin/false")

    def left() -> set[str]:
        assert call(run) == int(ExitCode.RUN_FAILED)
        return {path.name for path in tmp_path.glob("perf*")}

    assert left() == {"perf.csv"}
    (tmp_path / "perf_super.json").write_text("[]")
    every = {f"perf_{name}.{end}" for name in ("entry", "super", "entry_super") for end in ("csv", "json")}
    assert left() == {"perf.csv", *every}, "one is there: somebody reads it"
    for name in every:
        (tmp_path / name).unlink()
    (tmp_path / "scripts").mkdir()
    assert left() == {"perf.csv", *every}, "a checkout"
    for name in every:
        (tmp_path / name).unlink()
    (tmp_path / "scripts").rmdir()
    monkeypatch.setenv("MADLITE_CONTRACT", "2")
    assert left() == {"perf.csv", *every}
