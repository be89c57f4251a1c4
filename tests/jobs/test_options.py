"""`madlite run --cluster` from the command line, as far as no cluster is needed: what it refuses, and its dry run."""

from __future__ import annotations

import json
import re

import pytest

from madlite.cli.main import call
from tests.rows import each_row

CLUSTERS = """
[clusters.lab.slurm]
partition = "gpu"
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.delenv("MODEL_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTERS)
    (tmp_path / "scripts/a").mkdir(parents=True)
    (tmp_path / "scripts/a/run.sh").write_text("echo performance: 12.5 tok\n")
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    return tmp_path


@each_row(
    ("words", "said"),
    [
        (("--repeat", "2", "--cold"), "--cold beside --cluster"),
        (("--settle",), "--settle beside --cluster"),
        (("--oom-fallback",), "--oom-fallback has no effect"),
        (("--fail-fast",), "--fail-fast beside --cluster"),
        (("--max-failures", "2"), "--max-failures beside --cluster"),
        (("--begin", "a b"), "'a b' is no start"),
        (("--each-node=",), "'' is no list of nodes: write n1,n2"),
        (("--each-node=,",), "',' is no list of nodes"),
        (("--detach", "--summary-output", "s.json"), "--summary-output beside --detach"),
        (("--detach", "--fail-on-suspect"), "--fail-on-suspect beside --detach"),
        (("--detach", "--baseline", "last"), "--baseline beside --detach"),
        (("--sweep", "env.A=1,1"), "makes the point env.A=1 twice"),
        (("--sweep", "env.A=1,2", "--set", "env.A=3"), "--set env.A beside --sweep"),
        (("--retry-wait", "3"), "--retry-wait without --retry"),
    ],
)
def test_what_says_nothing_of_jobs_is_refused_in_a_sentence(site, capfd, words, said):
    assert call(["run", "--cluster", "lab", "--tags", "a", "--dry-run", *words]) == 4
    told = capfd.readouterr().err
    assert said in told and "Traceback" not in told
    assert not (site / "madlite_runs").exists()


def test_kubernetes_does_not_take_what_decides_when_jobs_start(site, capfd):
    with (site / "cluster.toml").open("a") as file:
        file.write('[clusters.k8s]\nscheduler = "kubernetes"\n')
    assert call(["run", "--cluster", "k8s", "--tags", "a", "--dry-run", "--begin", "16:00"]) == 4
    assert "--begin beside --cluster k8s: Kubernetes starts a Job as soon as there is room" in capfd.readouterr().err


def test_a_dry_run_names_the_points_and_repeats_of_an_array(site, capfd):
    words = ("--sweep", "env.A=1,2", "--repeat", "2", "--retry", "3")
    assert call(["run", "--cluster", "lab", "--tags", "a", "--dry-run", *words]) == 0
    out = capfd.readouterr().out
    assert "# 2: a · env.A=2  (run 1 of 2, caches of the user): job 1, element 2\n# 3: a · env.A=1  (run 2 of 2" in out
    assert out.count("# --- commands\n") == 2 and '"A": "2"' in out and "bash run.sh" in out, "the plan of each point"
    assert "#SBATCH --array=1-4\n" in out
    assert "attempt=${SLURM_RESTART_COUNT:+--again}\n" in out
    assert '--retry 3 --retry-wait 10.0 "${attempt:---once}"\n' in out
    assert not (site / "madlite_runs").exists()


def test_explain_shows_the_plan_for_the_cluster(site, capfd, monkeypatch):
    with (site / "cluster.toml").open("a") as file:
        file.write('[clusters.big]\ngpu = "MI300X"\ngpus_per_node = 8\n')
    card = json.loads((site / "models.json").read_text())[0]
    (site / "models.json").write_text(json.dumps([{**card, "n_gpus": "16"}]))
    assert call(["explain", "a", "--cluster", "big", "--check"]) == 3
    assert "card 'a' asks for 16 GPUs, the planned machine has 8" in capfd.readouterr().out
    monkeypatch.setenv("MADLITE_CLUSTER", "big")
    assert call(["explain", "a", "--nodes", "2", "--set", "n_gpus=8", "--check"]) == 0
    out = capfd.readouterr().out
    assert re.search(r"^  machine +8 x AMD Instinct MI300X +<- cluster 'big'$", out, re.MULTILINE)
    assert re.search(r"^  runtime +slurm +<- cluster 'big'$", out, re.MULTILINE)


@each_row("words", [["tune", "a"], ["bisect", "a", "--good", "A", "--bad", "B"]])
def test_what_chooses_its_runs_one_by_one_is_no_job_of_the_cluster_of_the_environment(site, capfd, monkeypatch, words):
    monkeypatch.setenv("MADLITE_CLUSTER", "lab")
    assert call(words) == 4
    said = capfd.readouterr().err
    assert f"cluster lab beside {words[0]}: it chooses each run by those before" in said
    assert f"env -u MADLITE_CLUSTER madlite {words[0]} …" in said and not (site / "madlite_runs").exists()
    assert call([*words, "--cluster", "other"]) == 4
    said = capfd.readouterr().err
    assert f"cluster other beside {words[0]}" in said and f"salloc -N1 --exclusive madlite {words[0]}" in said
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    call(words)
    assert "beside" not in capfd.readouterr().err, "in an allocation the variable counts for nothing"
