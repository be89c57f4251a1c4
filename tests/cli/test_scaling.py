"""`madlite scaling` from the command line to its page, on a machine with eight pretended GPUs."""

from __future__ import annotations

import csv
import json
import os
import subprocess

import pytest

from tests import commands
from tests.machine.elsewhere import LOOK_BELOW
from tests.machine.stand_in import Bench, amd_list, amd_static
from tests.waiting import wait_until

pytestmark = pytest.mark.host

# 100 a GPU, of which each GPU beyond the first takes 2 away; four GPUs fail
SCRIPT = """count=$MAD_RUNTIME_NGPUS
[ $count = 4 ] && [ -e FOLDER/fail_on_four ] && exit 7
if [ $count = 2 ] && [ -e FOLDER/hang_on_two ]; then touch FOLDER/hangs; sleep 600; fi
echo "performance: $((count * (102 - 2 * count))) samples_per_second"
"""


@pytest.fixture
def bench(tmp_path) -> Bench:
    made = Bench(tmp_path)
    made.node(0)
    made.mi300x(8)
    made.file("dev/kfd")
    made.file("opt/rocm/.info/version", "6.4.1-83\n")
    made.tool("amd-smi", ("*static*", amd_static(list(range(8)))), ("*list*", amd_list(list(range(1, 9)))))
    folder = tmp_path / "checkout"
    (folder / "scripts/a").mkdir(parents=True)
    (folder / "scripts/a/run.sh").write_text(SCRIPT.replace("FOLDER", str(folder)))
    card = {"name": "a", "scripts": "scripts/a/run.sh", "n_gpus": "1", "args": "", "tags": [], "runtimes": ["host"]}
    (folder / "models.json").write_text(json.dumps([card]))
    return made


def environ(bench: Bench) -> dict[str, str]:
    env = {name: text for name, text in os.environ.items() if not name.startswith(("MAD", "ROC", "HIP", "CUDA"))}
    return {**env, "PATH": f"{bench.bin}:/usr/bin:/bin", "DOCKER_HOST": f"unix://{bench.folder}/none.sock"}


def madlite(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    return commands.run(args, bench.folder / "checkout", environ(bench), first=(LOOK_BELOW, str(bench.root)))


def rows(bench: Bench) -> list[dict[str, str]]:
    with (bench.folder / "checkout/perf.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_tag_on_one_two_and_eight_gpus(bench: Bench):
    done = madlite(bench, "scaling", "a", "--gpus", "1,2,8", "--runtime", "host", "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["n_gpus"], row["performance"]) for row in rows(bench)] == [
        ("1", "100"), ("2", "196"), ("8", "688"), ("1", "100"), ("2", "196"), ("8", "688")
    ]  # fmt: skip
    (file,) = bench.folder.glob("checkout/madlite_runs/study-*/study.json")
    told = json.loads(file.read_text())
    points = told["scalings"][0]["points"]
    assert [(one["gpus"], one["total"], one["efficiency"]) for one in points] == [
        (1, 100, 1),
        (2, 196, 0.98),
        (8, 688, 0.86),
    ]
    assert points[2]["speedup"] == 6.88 and points[2]["interval"] == pytest.approx({"low": 0.86, "high": 0.86})
    assert "86.0 %" in done.stdout and "6.88x" in done.stdout and "scaling.html" in done.stdout
    assert "6.88x" in (file.parent / "scaling.html").read_text()
    listed = madlite(bench, "runs", "--of", told["id"])
    assert "98.0 %" in listed.stdout and listed.returncode == 0, listed.stdout + listed.stderr


def test_a_number_that_fails_is_told_and_the_others_go_on(bench: Bench):
    (bench.folder / "checkout/fail_on_four").touch()
    done = madlite(bench, "scaling", "a", "--gpus", "1,4,8", "--runtime", "host")
    assert done.returncode == 3
    assert [(row["n_gpus"], row["status"]) for row in rows(bench)] == [
        ("1", "SUCCESS"), ("4", "FAILURE"), ("8", "SUCCESS")
    ]  # fmt: skip
    assert "0 of 1 (1 " in done.stdout and "86.0 %" in done.stdout


def test_one_that_was_killed_goes_on_as_the_same_study(bench: Bench):
    checkout = bench.folder / "checkout"
    (checkout / "hang_on_two").touch()
    words = ("scaling", "a", "--gpus", "1,2,8", "--runtime", "host")
    with commands.start(words, checkout, environ(bench), first=(LOOK_BELOW, str(bench.root))) as process:
        wait_until((checkout / "hangs").exists, "the run on two GPUs")
        process.kill()
    (checkout / "hang_on_two").unlink()
    (study,) = checkout.glob("madlite_runs/study-*")
    shown = madlite(bench, "runs", "--of", study.name.removeprefix("study-"))
    assert "1 run not begun: a (n_gpus=8)" in shown.stdout and "run --resume" in shown.stdout, shown.stdout
    other = madlite(bench, *words[:3], "1,4", *words[4:], "--resume")
    assert other.returncode == 4 and "--resume" in other.stderr, other.stdout + other.stderr
    done = madlite(bench, "scaling", "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["n_gpus"], row["status"], row["performance"]) for row in rows(bench)] == [
        ("1", "SUCCESS", "100"), ("2", "FAILURE", ""), ("2", "SUCCESS", "196"), ("8", "SUCCESS", "688")
    ]  # fmt: skip
    (file,) = checkout.glob("madlite_runs/study-*/study.json")
    points = json.loads(file.read_text())["scalings"][0]["points"]
    assert [(point["gpus"], point["total"]) for point in points] == [(1, 100), (2, 196), (8, 688)]
    assert madlite(bench, *words, "--resume").returncode == 4, "it has ended"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpus", "1,16"], "--gpus 16: card 'a' asks for 16 GPUs, this machine has 8"),
        (["--gpus", "0"], "'0' is no list of different numbers: write 1,2,4,8"),
        (["--gpus", "1,x"], "'1,x' is no list of different numbers"),
        (["--gpus", "2,2"], "'2,2' is no list of different numbers"),
        (["--gpus", "1,2", "--strong"], "no micro batch"),
        (["--gpus", "1", "--set", "n_gpus=2"], "--set n_gpus beside --gpus"),
        (["a:n_gpus=4", "--gpus", "1,2"], ":n_gpus of tag a:n_gpus=4 beside --gpus"),
        (["--gpus", "1", "--keep-alive"], "no such option '--keep-alive'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_runs(bench: Bench, args, message):
    done = madlite(bench, "scaling", "a", "--runtime", "host", *args)
    assert (done.returncode, message in done.stderr) == (4, True), done.stderr
    assert "Traceback" not in done.stderr and not (bench.folder / "checkout/perf.csv").exists()


def test_a_dry_run_shows_each_number(bench: Bench):
    done = madlite(bench, "scaling", "a", "--gpus", "1,2", "--runtime", "host", "--repeat", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    for count in (1, 2):
        assert done.stdout.count(f"# scaling: n_gpus={count}\n") == 1
    assert not (bench.folder / "checkout/madlite_runs").exists()


def test_strong_scaling_of_a_rendered_card_keeps_the_global_batch(bench: Bench):
    words = ("--gpus", "1,2,4", "--strong", "--batch-size", "2", "--machine", "8xMI300X", "--dry-run")
    done = madlite(bench, "scaling", "demo_torchtitan_llama_debug", "--runtime", "host", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    for count in (1, 2, 4):
        assert f"# scaling: n_gpus={count}, global_batch=8\n" in done.stdout
    assert "global_batch_size" in done.stdout
