"""The script of a job: one that a shell and sbatch take, of options that Slurm and SPUR share, without secrets."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.catalog.sources import template_root
from madlite.errors import UsageProblem
from madlite.jobs.submission import read_stored
from madlite.model import to_json
from madlite.plan.cluster import Cluster, SlurmSettings
from madlite.plan.submission import JobRun, JobScript, ScriptInputs, Submission
from madlite.platforms.slurm.script import slurm_script, step_of_a_job
from tests.rows import each_row

# crates/spur-cli/src/sbatch.rs of github.com/ROCm/spur, v0.8: any other directive is an error there
SPUR = frozenset(
    "job-name account partition nodes ntasks ntasks-per-node cpus-per-task mem gres gpus gpus-per-node time chdir "
    "output error qos dependency nodelist exclude constraint reservation array exclusive requeue hold comment "
    "export".split()
)
CLUSTER = Cluster(
    name="lab",
    gpu="MI300X",
    gpus_per_node=8,
    prologue=("module load rocm",),
    slurm=SlurmSettings(
        partition="gpu",
        account="a",
        qos="q",
        reservation="r",
        constraint="c",
        time="4:00:00",
        mem="0",
        cpus_per_task=8,
        exclude=("n3",),
    ),
)


@each_row(
    ("change", "key"),
    [
        ({"id": "../x"}, "id"),
        ({"runs": [{"id": "../../home", "card": "a", "number": 1}]}, "runs[0].id"),
        (
            {"scripts": [{"number": 1, "name": "../x", "first": 1, "count": 1, "nodes": 1, "gpus": 1}]},
            "scripts[0].name",
        ),
    ],
)
def test_a_submission_with_a_name_that_leaves_its_folder_is_none_and_is_named(tmp_path, caplog, change, key):
    folder = tmp_path / "jobs-S"
    folder.mkdir()
    (folder / "submission.json").write_text(to_json(submission(1)))
    assert read_stored(folder) is not None
    tree = json.loads((folder / "submission.json").read_text())
    (folder / "submission.json").write_text(json.dumps({**tree, **change}))
    assert read_stored(folder) is None
    assert f"{folder}: its submission.json is not read: key '{key}' is wrong: '../" in caplog.text


def submission(count: int) -> Submission:
    runs = tuple(JobRun(id=f"r{n}", card="it's a card", number=n) for n in range(1, count + 1))
    return Submission(
        id="S", cluster="lab", scheduler="slurm", created="", command=(), output="", runs=runs, scripts=()
    )


def script(cluster: Cluster = CLUSTER, count: int = 1, first: int = 1, workspace: str = "/shared/it's here") -> str:
    job = JobScript(number=1, name="madlite-S-1", first=first, count=count, nodes=4, gpus=2)
    workspace = workspace.replace(" ", "_").replace("'", "_")
    return written(submission(first + count - 1), job, workspace, cluster)


def written(asked: Submission, job: JobScript, workspace: str, cluster: Cluster = CLUSTER) -> str:
    return slurm_script(cluster, ScriptInputs(asked, job, (), Path(workspace), [template_root(None)]))


def directives(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


def test_every_option_is_one_that_spur_knows_too():
    assert directives(script(count=3)).keys() <= SPUR


def test_a_job_asks_for_whole_nodes_and_one_task_each():
    found = directives(script())
    assert found["nodes"] == "4"
    assert found["ntasks-per-node"] == "1"
    assert found["gpus-per-node"] == "8"
    assert found["exclude"] == "n3"
    assert "exclusive" in found
    assert "array" not in found


def test_a_shared_node_is_asked_for_the_run_s_gpus_alone():
    shared = Cluster(name="lab", gpu="MI300X", gpus_per_node=8, slurm=SlurmSettings(exclusive=False, gpus="gres"))
    found = directives(script(shared))
    assert found["gres"] == "gpu:2"
    assert "exclusive" not in found


@each_row(
    ("gres", "asked"),
    [
        ("gpu:mi300x:8", "gpu:mi300x:2"),
        ("gpu:8", "gpu:2"),
        ("gpu:1g.10gb:8,nvme:1", "gpu:1g.10gb:2,nvme:1"),
        ("x:1", "x:1"),
    ],
)
def test_a_named_resource_is_asked_for_as_often_as_the_run_has_gpus(gres, asked):
    for exclusive, expected in ((False, asked), (True, gres)):
        cluster = Cluster(
            name="lab", gpu="MI300X", gpus_per_node=8, slurm=SlurmSettings(exclusive=exclusive, gres=gres)
        )
        assert directives(script(cluster))["gres"] == expected


def test_an_element_of_an_array_takes_the_plan_of_its_own_number():
    text = script(count=20, first=1001)
    assert directives(text)["array"] == "1-20"
    line = next(line for line in text.splitlines() if line.startswith("plan="))
    shown = subprocess.run(
        ["bash", "-c", f"SLURM_ARRAY_TASK_ID=7; {line}; echo $plan"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip().endswith("/madlite_runs/jobs-S/plans/1007.json")


def test_added_columns_reach_the_run_in_the_job():
    asked = replace(submission(1), columns=("cause", "suspect"))
    job = JobScript(number=1, name="madlite-S-1", first=1, count=1, nodes=4, gpus=2)
    text = written(asked, job, "/shared")
    command = text.splitlines()[-1]
    assert command.endswith('run --plan "$plan" --no-rows --add-column cause --add-column suspect --once'), command
    assert script().splitlines()[-1].endswith('run --plan "$plan" --no-rows --once')


def test_directives_of_the_file_are_added_as_they_are():
    text = script(Cluster(name="lab", slurm=SlurmSettings(directives=("--signal=B:TERM@60", "#SBATCH --wckey=x"))))
    assert "#SBATCH --signal=B:TERM@60\n#SBATCH --wckey=x\n" in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("count", [1, 20])
def test_the_script_is_clean_for_shellcheck(count):
    done = subprocess.run(["shellcheck", "-"], input=script(count=count), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@each_row(
    ("workspace", "output"),
    [
        ("/shared/dépôt", "/shared/dépôt/madlite_runs/jobs-S/output/1-%a.out"),
        ("/shared/my runs", '"/shared/my runs/madlite_runs/jobs-S/output/1-%a.out"'),
        ("/shared/it's 5%a", '"/shared/it\'s 5%%a/madlite_runs/jobs-S/output/1-%a.out"'),
    ],
)
def test_a_folder_of_any_name_is_one_of_a_directive(workspace, output):
    job = JobScript(number=1, name="n", first=1, count=2, nodes=1, gpus=0)
    text = written(submission(2), job, workspace)
    assert directives(text)["output"] == output


def test_a_folder_that_a_directive_cannot_name_is_refused():
    job = JobScript(number=1, name="n", first=1, count=1, nodes=1, gpus=0)
    with pytest.raises(UsageProblem, match="writes no output"):
        written(submission(1), job, '/shared/"my"')


@each_row(
    ("nodelist", "exclude", "asked"),
    [
        (("n[1-4]",), (), "n[1-4]"),  # as many as the job has
        (("n[1-2]", "n5"), (), "n[1-2],n5"),
        (("n[1-6]",), (), "n1,n2,n3,n4"),
        (("n[1-6]",), ("n[2-3]",), "n1,n4,n5,n6"),
        (("n2",), ("n2",), None),
    ],
)
def test_a_job_gets_as_many_of_the_listed_nodes_as_it_has(nodelist, exclude, asked):
    cluster = Cluster(name="lab", slurm=SlurmSettings(nodelist=nodelist, exclude=exclude))
    assert directives(script(cluster)).get("nodelist") == asked


def test_a_step_of_its_own_has_no_directive_that_sbatch_alone_has():
    directives = ("--comment='a build'", "#SBATCH --no-requeue", "--output=foo.log", "-o foo", "--hold")
    cluster = replace(CLUSTER, slurm=SlurmSettings(partition="gpu", directives=directives))
    words = step_of_a_job(cluster, ())
    assert words[0] == "srun" and words[-2:] == ["--comment=a build", "--hold"]
    assert not [word for word in words if word.startswith(("--no-requeue", "--output", "-o", "--gres", "--gpus"))]
    with pytest.raises(UsageProblem, match=r"slurm\.directives: No closing quotation"):
        step_of_a_job(replace(cluster, slurm=SlurmSettings(directives=("--comment=don't",))), ())
