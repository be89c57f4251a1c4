"""`madlite plan` and `madlite run --plan`: planned in one process and folder, run in another, with the same row."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.model import Machine
from madlite.plan.context import Options
from madlite.plan.plan_file import SavedPlan
from madlite.run.from_plan import bind_plan, claimed_id, differences
from madlite.testing import MACHINES
from tests import commands
from tests.csv_rows import csv_rows, perf_rows
from tests.factories import HOST, make_plan
from tests.rows import each_row

pytestmark = pytest.mark.host
SCRIPT = 'echo "performance: 12.5 tok"\necho "token ${HF_TOKEN:-none} in $PWD with $X"\n'
TIMES = ("test_duration", "build_duration")
EIGHT = next(one for one in MACHINES if one.vendor == "AMD" and len(one.gpus) == 8)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in ("MODEL_DIR", "HF_TOKEN", "pipeline", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    folder = tmp_path / "mad"
    (folder / "scripts/a").mkdir(parents=True)
    (folder / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "--n 1", "tags": ["t"], "runtimes": ["host"]}
    (folder / "models.json").write_text(json.dumps([card]))
    monkeypatch.chdir(folder)
    return folder


def madlite(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return commands.run(args, cwd, {**os.environ, **env})


def cells(row: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in row.items() if name not in TIMES}


def test_a_plan_runs_in_another_process_with_the_row_of_a_direct_run(checkout):
    secret = {"HF_TOKEN": "hf_abcdefghij", "pipeline": "nightly", "BUILD_NUMBER": "7"}
    asked = ("--tags", "a:k=v", "--set", "env.X=left")
    assert madlite("run", *asked, "-o", "direct.csv", cwd=checkout, **secret).returncode == 0
    planned = madlite("plan", *asked, "-o", "plan.json", cwd=checkout, **secret)
    assert planned.returncode == 0 and "plan.json: a" in planned.stdout, planned.stderr
    assert "hf_abc" not in (checkout / "plan.json").read_text() and not (checkout / "perf.csv").exists()
    ran = madlite("run", "--plan", "plan.json", cwd=checkout, HF_TOKEN="hf_abcdefghij")  # noqa: S106
    assert (ran.returncode, ran.stderr) == (0, "")
    ((direct,), (row,)) = (csv_rows(checkout / "direct.csv"), perf_rows(checkout))
    assert cells(row) == cells(direct) and row["pipeline"] == "nightly" and row["build_number"] == "7"
    told = json.loads((checkout / "plan.json").read_text())
    folder = checkout / "madlite_runs" / told["plan"]["id"]
    assert "with left" in (folder / "run.log").read_text(), "the plan's own id is that of its first run"
    assert json.loads((folder / "record.json").read_text())["command"][:3] == ["run", "--tags", "a:k=v"]


def test_a_repeat_has_an_id_of_its_own_and_so_has_one_that_begins_at_once(checkout):
    assert call(["plan", "--tags", "a"]) == 0
    for count in (1, 2, 3):
        assert call(["run", "--plan", "plan.json"]) == 0
        assert len([one for one in (checkout / "madlite_runs").iterdir() if one.is_dir()]) == count
    assert len(perf_rows(checkout)) == 3
    saved = SavedPlan(version=1, plan=replace(make_plan(checkout), id="new"))
    with claimed_id(saved, checkout) as first, claimed_id(saved, checkout) as second:
        assert first == "new" != second
    assert not list((checkout / "madlite_runs").glob(".new*"))


def test_a_plan_moves_to_another_folder_with_its_paths(checkout, tmp_path):
    assert call(["plan", "--tags", "a", "--set", f"env.X={checkout}/sub", "-o", str(tmp_path / "p.json")]) == 0
    other = tmp_path / "other"
    shutil.copytree(checkout, other)
    ran = madlite("run", "--plan", "../p.json", cwd=other)
    assert ran.returncode == 0, ran.stderr
    (log,) = other.glob("madlite_runs/*/run.log")
    assert f"in {other}/" in log.read_text() and f"with {other}/sub" in log.read_text()
    assert len(perf_rows(other)) == 1 and not list(checkout.glob("madlite_runs/2*"))


def test_what_is_otherwise_here_is_told_before_the_run_and_what_is_gone_refuses_it(checkout, capfd):
    assert call(["plan", "--tags", "a"]) == 0
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "args": "--n 2"}]))
    (checkout / "scripts/a/run.sh").write_text(f"{SCRIPT}# changed\n")
    told = json.loads((checkout / "plan.json").read_text())
    (checkout / "plan.json").write_text(json.dumps({**told, "madlite": "0.0.9"}))
    capfd.readouterr()
    assert call(["run", "--plan", "plan.json"]) == 0
    said = capfd.readouterr().err
    assert "madlite: 0.0.9 when the plan was made, here " in said
    assert "scripts/a/run.sh has changed since the plan was made" in said
    assert perf_rows(checkout)[0]["args"] == "--n 1", "the plan stays as it is"
    (checkout / "scripts/a/run.sh").unlink()
    assert call(["run", "--plan", "plan.json"]) == 4
    assert "the plan's run uses scripts/a/run.sh, which is not in" in capfd.readouterr().err
    assert len(perf_rows(checkout)) == 1


@each_row("more", [["--tags", "a"], ["a"], ["--steps", "3"], ["--set", "x=1"], ["--runtime", "host"]])
def test_nothing_decides_a_plan_beside_one_that_is_frozen(checkout, capfd, more):
    assert call(["plan", "--tags", "a"]) == 0
    assert call(["run", "--plan", "plan.json", *more]) == 4
    assert "beside --plan: a plan is frozen" in capfd.readouterr().err
    assert call(["run", "--plan", "plan.json", "--dry-run", "--check", "-o", "x.csv"]) == 0
    assert not (checkout / "madlite_runs").exists(), "a dry run touches nothing"


@each_row(
    ("place", "value", "said"),
    [
        ("plan.actions", None, "key 'plan.actions' is missing"),
        ("plan.card.tags", None, "key 'plan.card.tags' is missing"),
        ("inputs", None, "key 'inputs' is missing"),
        ("plan.place.nodes", 0, "key 'plan.place.nodes' is wrong: expected `int` >= 1"),
        ("plan.timeout_s", -5.0, "key 'plan.timeout_s' is wrong: expected `float` > 0"),
        ("plan.stop_grace_s", -1.0, "key 'plan.stop_grace_s' is wrong"),
        ("plan.backend", "moon", "the plan needs backend 'moon', which is not here"),
    ],
)
def test_an_edited_plan_is_refused_where_it_says_too_little_or_what_cannot_be(checkout, capfd, place, value, said):
    assert call(["plan", "--tags", "a"]) == 0
    tree = json.loads((checkout / "plan.json").read_text())
    *path, last = place.split(".")
    table = tree
    for key in path:
        table = table[key]
    if value is None:
        del table[last]
    else:
        table[last] = value
    (checkout / "plan.json").write_text(json.dumps(tree))
    assert call(["run", "--plan", "plan.json"]) == 4 and not (checkout / "perf.csv").exists()
    assert said in capfd.readouterr().err


def test_an_edited_place_is_the_runtime_s_to_refuse(checkout, capfd):
    assert call(["plan", "--tags", "a"]) == 0
    text = (checkout / "plan.json").read_text()
    (checkout / "plan.json").write_text(text.replace('"where": "local"', '"where": "mars"'))
    assert call(["run", "--plan", "plan.json"]) == 3
    assert "runtime 'host' cannot run a plan for 1 node of 'mars'" in capfd.readouterr().out
    assert [row["status"] for row in perf_rows(checkout)] == ["FAILURE"]


@each_row("more", [[], ["--dry-run"]])
def test_a_plan_file_tells_what_it_opens_before_anything_starts(checkout, capfd, monkeypatch, more):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghij")
    assert call(["plan", "--tags", "a"]) == 0
    tree = json.loads((checkout / "plan.json").read_text())
    tree["plan"]["env"]["LANG"] = {"secret": "HF_TOKEN"}
    tree["plan"]["actions"][0]["argv"] = ["sh", "-c", "echo started"]
    tree["plan"]["notes"] = ["the run opens this machine to its container: what the planning machine had"]
    (checkout / "plan.json").write_text(json.dumps(tree))
    capfd.readouterr()
    call(["run", "--plan", "plan.json", *more])
    out = capfd.readouterr().out
    begin = out.partition("# --- commands" if more else "log: ")[0]
    assert "the plan runs on this machine, outside of any container: sh -c 'echo started'" in begin
    assert "the plan reads from your environment or credential.json: HF_TOKEN" in begin
    assert "what the planning machine had" not in out


@each_row(
    ("words", "said"),
    [
        (["run", "--plan", "a.json", "--plan", "b.json"], "--plan takes one file, not 2"),
        (["run", "--tags", "a", "--no-rows", "-o", "x.csv"], "--no-rows beside --output: madlite runs collect -o"),
        (["plan", "--tags", "a", "-o", "models.json/"], "models.json/ is a file, not a folder"),
    ],
)
def test_what_would_be_left_out_silently_is_refused(checkout, capfd, words, said):
    assert call(words) == 4 and said in capfd.readouterr().err
    assert not (checkout / "x.csv").exists()


def test_plans_are_all_written_whoever_stops_reading(checkout):
    card = json.loads((checkout / "models.json").read_text())[0]
    (checkout / "models.json").write_text(json.dumps([{**card, "name": f"c{n}"} for n in range(5)]))
    read, write = os.pipe()
    os.close(read)
    commands.start(("plan", "--tags", "t", "-o", "jobs/"), checkout, os.environ, stdout=write).wait()
    os.close(write)
    assert len(list((checkout / "jobs").iterdir())) == 5


def test_several_plans_are_numbered_files_and_nothing_else_is_replaced(checkout, capfd):
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([cards[0], {**cards[0], "name": "b"}]))
    assert call(["plan", "--tags", "t", "-o", "p.json"]) == 0 and call(["plan", "--tags", "t", "-o", "jobs/"]) == 0
    names = sorted(str(one.relative_to(checkout)) for one in checkout.rglob("p*.json"))
    assert names == ["jobs/plan-1.json", "jobs/plan-2.json", "p-1.json", "p-2.json"]
    assert json.loads((checkout / "p-2.json").read_text())["plan"]["card"]["name"] == "b"
    (checkout / "perf.csv").write_text("model\nmine\n")
    assert call(["plan", "--tags", "a", "-o", "perf.csv"]) == 4
    assert "perf.csv is no plan file" in capfd.readouterr().err and "mine" in (checkout / "perf.csv").read_text()
    assert call(["plan", "--tags", "a", "-o", "none/there.json"]) == 4
    assert call(["plan", "--tags", "a", "-o", "p-1.json"]) == 0


def test_a_plan_of_a_card_that_cannot_start_says_so_and_its_run_is_the_same_row(checkout, capfd):
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "is_deprecated": True}]))
    assert call(["plan", "--tags", "a"]) == 0
    said = capfd.readouterr().err
    assert "would not start: SKIPPED card 'a' is deprecated" in said
    assert re.search(r"^ hint: .*the refusal is part of the plan file: plan again", said, re.MULTILINE)
    assert call(["run", "--plan", "plan.json"]) == 0
    assert [row["status"] for row in perf_rows(checkout)] == ["SKIPPED"]


def test_what_was_rendered_is_what_runs_whatever_the_templates_are_by_then(checkout):
    def script(*args: str) -> str:
        done = madlite("run", *args, "--dry-run", cwd=checkout)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("# --- run.sh")[2]

    tags = ("--tags", "demo_hf_lora_tiny", "--runtime", "host")
    before = script(*tags)
    assert call(["plan", *tags]) == 0
    of_plan = script("--plan", "plan.json")
    (checkout / "templates/hf").mkdir(parents=True)
    (checkout / "templates/hf/run.sh.j2").write_text("echo another\n")
    assert "echo another" in script(*tags) and script("--plan", "plan.json") == of_plan
    assert of_plan == before


def bound(saved, machine, workspace, runtimes=None, environ=MappingProxyType({})):
    from madlite.backends.loader import load_plugins
    from madlite.platforms.registry import builtin_runtimes

    options = Options(
        workspace=workspace, output=workspace / "perf.csv", python="/here/python", user=(7, 8), environ=environ
    )
    plugins = load_plugins("", only_built_in=True)
    one = bind_plan(saved, "id-2", options, machine, plugins, builtin_runtimes({}) if runtimes is None else runtimes)
    return one.plan, list(differences(saved, one.plan, options, plugins))


def of_machine(tmp_path, machine, **changes):
    gpus = tuple(gpu.index for gpu in machine.gpus)
    plan = make_plan(tmp_path / "was", id="id-1", machine=machine, runtime="host", traits=HOST, image=None, **changes)
    return SavedPlan(version=1, plan=replace(plan, inside=str(plan.workspace), place=replace(plan.place, gpu_ids=gpus)))


def test_a_plan_is_for_gpus_of_its_kind_and_at_least_as_many(tmp_path):
    saved = of_machine(tmp_path, replace(EIGHT, pretended=True))
    here = replace(EIGHT, hostname="node7", rocm_version="9.9")
    plan, told = bound(saved, here, tmp_path)
    assert plan.machine == here and told == [], "what a pretended machine's ROCm is nobody knows"
    plan, told = bound(saved, replace(here, device="MI999", architecture="gfx999"), tmp_path)
    assert told[0].endswith(" when the plan was made, here 8 x MI999 gfx999") and plan.machine.architecture == "gfx999"
    for other, said in (
        (replace(here, gpus=here.gpus[:4]), "the plan uses GPU 4, 5, 6, 7, machine node7 has 4 x"),
        (next(one for one in MACHINES if one.vendor == "NVIDIA"), "the plan is for 8 x"),
        (next(one for one in MACHINES if one.vendor == "CPU"), "this machine has no GPU"),
        (Machine(hostname="node9"), "8 x .*, machine node9 has no GPU"),
    ):
        with pytest.raises(UsageProblem, match=said):
            bound(saved, other, tmp_path)


def test_a_plan_for_gpus_of_unknown_type_is_for_those_that_its_vendor_has_there(tmp_path):
    saved = of_machine(tmp_path, replace(EIGHT, pretended=True, device="AMD", product="", architecture=""))
    here = replace(EIGHT, hostname="node7")
    plan, told = bound(saved, here, tmp_path)
    assert plan.machine == here
    assert told == [f"machine: 8 x AMD when the plan was made, here 8 x {here.device} {here.architecture}"]


def test_a_plan_is_on_the_gpus_that_a_scheduler_gives_its_job(tmp_path):
    saved = of_machine(tmp_path, replace(EIGHT, pretended=True))
    two = replace(saved.plan, place=replace(saved.plan.place, gpu_ids=(0, 1)), devices=("/dev/kfd", "/dev/x"))
    saved = replace(saved, plan=two)
    here = replace(EIGHT, pretended=False)
    plan, _ = bound(saved, here, tmp_path, environ={"ROCR_VISIBLE_DEVICES": "4,5"})
    assert plan.place.gpu_ids == (4, 5) and plan.env["ROCR_VISIBLE_DEVICES"] == "4,5"
    renders = [f"/dev/dri/renderD{here.gpus[index].render_minor}" for index in (4, 5)]
    assert [*plan.devices] == ["/dev/fuse", "/dev/kfd", *renders, "/dev/x"]
    plan, _ = bound(
        replace(saved, context={"docker_gpus": "0,1"}), here, tmp_path, environ={"ROCR_VISIBLE_DEVICES": "4,5"}
    )
    assert plan.place.gpu_ids == (0, 1), "the user named them"
    with pytest.raises(UsageProblem, match="the plan uses 2 GPUs, ROCR_VISIBLE_DEVICES leaves 1 on this machine"):
        bound(saved, here, tmp_path, environ={"ROCR_VISIBLE_DEVICES": "4"})


def test_what_belongs_to_a_machine_is_that_of_the_one_it_runs_on(tmp_path):
    origins = {"env.MADLITE_PYTHON": "runtime host", "env.MAD_SYSTEM_NGPUS": "madlite", "env.MAD_GPU_VENDOR": "--set"}
    env = {
        "MADLITE_PYTHON": "/there/python",
        "MAD_SYSTEM_NGPUS": "8",
        "MAD_GPU_VENDOR": "own",
        "F": "madlite_runs/id-1",
    }
    saved = of_machine(tmp_path, EIGHT, env=env, origins=origins)
    plan, told = bound(saved, replace(EIGHT, gpus=(*EIGHT.gpus, replace(EIGHT.gpus[0], index=8))), tmp_path)
    assert plan.env["MADLITE_PYTHON"] == "/here/python" and plan.env["MAD_SYSTEM_NGPUS"] == "9"
    assert plan.env["MAD_GPU_VENDOR"] == "own" and plan.env["F"] == "madlite_runs/id-2"
    assert plan.folder == tmp_path / "madlite_runs/id-2" and "machine: 8 x " in told[0] and ", here 9 x " in told[0]


def test_a_runtime_or_backend_that_is_not_here_refuses_a_plan(tmp_path):
    cpu = next(one for one in MACHINES if one.vendor == "CPU")
    with pytest.raises(UsageProblem, match="needs runtime 'host', which is not here"):
        bound(of_machine(tmp_path, cpu), cpu, tmp_path, runtimes={})
    with pytest.raises(UsageProblem, match="needs backend 'other', which is not here"):
        bound(of_machine(tmp_path, cpu, readers=("other",)), cpu, tmp_path)
