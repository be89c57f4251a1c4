"""What the commands of Slurm and SPUR print, as real ones did; and commands that are slow, fail or are not there."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.plan.cluster import Cluster, SlurmSettings
from madlite.plan.inputs import nodes_in
from madlite.plan.schedulers import Refused, Unreachable
from madlite.platforms.slurm.allocation import job_environment
from madlite.platforms.slurm.scheduler import Slurm, elements
from tests.rows import each_row

pytestmark = pytest.mark.host
# `scontrol show job` of 22.05, shortened: an element that timed out, and those that never had a job of their own
CONTROLLER = """JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=madlite-S-1
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=143:0
   DerivedExitCode=0:0
   NodeList=n1

JobId=11 ArrayJobId=11 ArrayTaskId=4294967294 JobName=madlite-S-1
   JobState=CANCELLED Reason=None Dependency=(null)
   NodeList=(null)
"""


@pytest.fixture
def site(tmp_path):
    """Return what makes a command of a script, and the scheduler that finds it, with short limits."""
    (tmp_path / "bin").mkdir()

    def command(name: str, script: str) -> None:
        file = tmp_path / "bin" / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{script}\n')
        file.chmod(0o755)

    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "USER": "me", "HF_TOKEN": "hf_secret"}
    pauses: list[float] = []
    slurm = Slurm(Cluster(), environ)
    slurm.sleep, slurm.limit_s = pauses.append, 60.0
    return command, slurm, lambda: (tmp_path / "calls").read_text().splitlines(), pauses


def test_ids_of_arrays_are_their_elements():
    assert elements("12") == ["12"]
    assert elements("12_3") == ["12_3"]
    assert elements("12_[1-3,7,10-14:2%2]") == ["12_1", "12_2", "12_3", "12_7", "12_10", "12_12", "12_14"]
    assert elements("12.batch") == []


def test_the_queue_is_one_question_for_all_jobs(site):
    command, slurm, calls, _ = site
    lines = "11_[3-5]|PENDING|Resources|N/A|\\n11_1|RUNNING|None|2026-11-27T00:00:00|n[1-2]\\n99|RUNNING|None|N/A|n9\\n"
    command("squeue", f"printf '{lines}'")
    found = slurm.queue(["11_1", "11_3", "11_4"])
    assert {job: (state.state, state.reason) for job, state in found.items()} == {
        "11_1": ("RUNNING", ""),
        "11_3": ("PENDING", "Resources"),
        "11_4": ("PENDING", "Resources"),
    }
    assert found["11_1"].nodes == "n[1-2]"
    assert len(calls()) == 1


def test_the_list_of_an_array_is_whole(site):
    """squeue and scontrol cut it after 64 characters by themselves: what is behind would seem to be over."""
    command, slurm, _, _ = site
    whole = ",".join(str(2 * n) for n in range(1, 101))
    cut = f'[ "$SLURM_BITSTR_LEN" = 0 ] && list="{whole}]" || list="{whole[:60]}"'
    command("squeue", f'{cut}; echo "5_[$list|PENDING|x||"')
    jobs = [f"5_{2 * n}" for n in range(1, 101)]
    assert {*slurm.queue(jobs)} == {*jobs}


def test_the_end_of_a_job_is_the_controller_s_word_and_then_accounting_s(site):
    command, slurm, calls, _ = site
    command(
        "scontrol",
        f"case $3 in 11|'') cat <<'E'\n{CONTROLLER}\nE\n;; *) echo 'Invalid job id specified' >&2; exit 1;; esac",
    )
    command("sacct", "printf '13|OUT_OF_MEMORY|0:125|n2|0:0\\n14|CANCELLED by 0|0:15|n3|0:0\\n'")
    found = slurm.ended(["11_1", "11_2", "13", "14", "15"])
    assert (found["11_1"].state, found["11_1"].code, found["11_1"].restarts) == ("TIMEOUT", 143, 1)
    assert found["11_1"].nodes == "n1"
    assert found["11_2"].state == "CANCELLED"
    assert (found["13"].state, found["13"].signal) == ("OUT_OF_MEMORY", 125)
    assert found["14"].state == "CANCELLED"
    assert "15" not in found
    assert [call for call in calls() if "scontrol" in call] == ["scontrol show job"], "of many jobs one question"
    assert slurm.ended(["11_1", "11_2"]) == {job: found[job] for job in ("11_1", "11_2")}
    assert "scontrol show job 11" in calls()


def test_accounting_that_is_not_there_is_no_error(site):
    command, slurm, _, _ = site
    command("scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    command("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert slurm.ended(["7"]) == {}


def test_accounting_that_does_not_answer_is_asked_again_and_knows_no_end(site):
    command, slurm, calls, _ = site
    command("scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    command("sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    (state,) = slurm.ended(["7"]).values()
    assert state.state == "" and "Connection refused" in state.reason
    assert len([call for call in calls() if call.startswith("sacct")]) == 3


def test_a_controller_that_does_not_answer_is_asked_again_and_later(site, tmp_path):
    command, slurm, calls, pauses = site
    count = f"n=$(grep -c squeue {tmp_path}/calls)"
    command("squeue", f"{count}; [ $n -ge 3 ] || {{ echo 'Unable to contact slurm controller' >&2; exit 1; }}")
    assert slurm.queue(["1"]) == {}
    assert len(calls()) == 3
    assert pauses == [1.0, 2.0]


def test_a_controller_that_is_down_is_unreachable(site):
    command, slurm, _, _ = site
    command("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(Unreachable, match="Unable to contact"):
        slurm.queue(["1"])


def test_a_command_that_hangs_is_given_up(site):
    command, slurm, _, _ = site
    slurm.limit_s = 0.3
    command("sbatch", "sleep 60; echo 5")
    with pytest.raises(Unreachable, match="no answer in time"):
        slurm.submit_file(Path("job.sh"))


@each_row(
    ("code", "text", "hint"),
    [
        (1, "sbatch: error: invalid partition specified: x", "partition"),
        (1, "sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "account"),
        (255, "sbatch: unrecognized option '--wckeyy=x'", "directives"),
        (
            1,
            "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)",
            "fewer",
        ),
        (1, "sbatch: error: Invalid generic resource (gres) specification", "gres of the cluster file"),
        (1, "sbatch: error: Memory specification can not be satisfied", "mem of the cluster file"),
        (1, "sbatch: error: Batch job submission failed: Invalid feature specification", "constraint"),
        (1, "sbatch: error: --exclusive is not allowed here", "exclusive of the cluster file"),
        (1, "sbatch: error: Batch job submission failed: Requested node configuration is not available", "--nodes"),
    ],
)
def test_a_refusal_names_the_key_to_change(site, code, text, hint):
    command, slurm, _, _ = site
    command("sbatch", f'echo "{text}" >&2; exit {code}')
    with pytest.raises(Refused) as caught:
        slurm.submit_file(Path("job.sh"))
    assert f"exit code {code}" in caught.value.message
    assert hint in caught.value.hint


def test_the_queue_is_that_of_who_asks_whatever_user_names(site):
    command, slurm, calls, _ = site
    command("squeue", "exit 0")
    slurm.queue(["5"])
    assert f"-u {pwd.getpwuid(os.geteuid()).pw_name} " in calls()[-1] and slurm._environ["USER"] == "me"


def test_a_job_is_found_by_its_name(site):
    command, slurm, _, _ = site
    command("squeue", "printf '5|other\\n6_[1-3]|madlite-S-1\\n7_2|madlite-S-2\\n'")
    assert slurm.find(["madlite-S-1", "madlite-S-2", "madlite-S-3"]) == {"madlite-S-1": "6", "madlite-S-2": "7"}


def test_a_job_that_has_just_ended_is_found_by_its_name(site):
    command, slurm, _, _ = site
    command("squeue", "case $* in *'-t all'*) printf '5|madlite-S-1\\n7|other\\n';; *) printf '7|other\\n';; esac")
    assert slurm.find(["madlite-S-1", "madlite-S-2"]) == {"madlite-S-1": "5"}


def test_ranges_of_excluded_nodes_are_not_idle(site):
    command, slurm, _, _ = site
    command("sinfo", "printf 'n1|idle\\nn2|idle\\nn3|idle\\nn4|alloc\\n'")
    slurm.exclude(["n[1-2]"])
    assert slurm.idle_nodes() == ("n3",)


def test_the_array_limit_is_the_cluster_s_or_the_file_s(site):
    command, slurm, _, _ = site
    command("scontrol", "printf 'MaxArraySize            = 101\\n'")
    assert slurm.array_limit() == 100
    assert Slurm(Cluster(slurm=SlurmSettings(max_array_size=11)), {}).array_limit() == 10


def test_spur_is_found_before_slurm_and_cancels_whole_arrays(site):
    command, slurm, calls, _ = site
    command("spur", "echo spur 0.8.0")
    command("scancel", "case $* in *_*) echo 'invalid job id' >&2; exit 2;; esac")
    assert slurm.is_spur
    slurm.cancel(["5_1", "5_2", "6"])
    assert calls()[-1] == "scancel -- 5 6"
    assert slurm.array_limit() == 1000  # which it has no command to ask for


def test_spur_s_answer_to_sbatch_is_a_sentence(site):
    command, slurm, _, _ = site
    command("sbatch", "echo Submitted batch job 42")
    assert slurm.submit_file(Path("job.sh")) == "42"


def test_jobs_that_are_over_are_no_error_to_cancel(site):
    command, slurm, _, _ = site
    command("scancel", "echo 'scancel: error: Kill job error on job id 5: Invalid job id specified' >&2; exit 1")
    slurm.cancel(["5"])


def test_a_machine_without_the_commands_is_no_login_node(tmp_path):
    with pytest.raises(UsageProblem, match="no login node"):
        Slurm(Cluster(name="lab"), {"PATH": str(tmp_path)}).check_here()


def test_commands_and_jobs_get_nothing_secret():
    given = {"PATH": "p", "HF_TOKEN": "s", "MAD_SECRETS_X": "s", "SLURM_JWT": "s", "SLURM_CONF": "c", "HOME": "h"}
    assert job_environment(given) == {"PATH": "p", "SLURM_CONF": "c", "HOME": "h"}


def test_good_nodes_are_those_that_jobs_leave_in(site, tmp_path):
    command, _, _, _ = site
    command("sinfo", "printf 'n1\\nn2\\nn3\\n'")
    (tmp_path / "good").write_text("n1\nn3\n")
    cluster = Cluster(source=str(tmp_path / "cluster.toml"), slurm=SlurmSettings(good_nodes="good"))
    slurm = Slurm(cluster, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert slurm.not_good() == ("n2",)
    (tmp_path / "good").write_text("# none\n")
    with pytest.raises(UsageProblem, match="has no node"):
        slurm.not_good()


def test_nodes_on_which_no_job_can_begin_are_told_with_why(site, tmp_path):
    command, _, _, _ = site
    states = ("idle", "mixed", "drained", "down*", "idle*", "allocated", "maint", "idle~", "idle")
    lines = "".join(f"n{at}|{state}\\n" for at, state in enumerate(states))
    command("sinfo", f"printf '{lines}'")
    slurm = Slurm(Cluster(slurm=SlurmSettings(exclude=("n[0-1]",))), {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    slurm.exclude(["n8"])
    assert {node: why for node, why in slurm.nodes().items() if why} == {
        "n0": "excluded", "n1": "excluded", "n2": "drained", "n3": "down*", "n4": "idle*", "n6": "maint",
        "n8": "excluded",
    }  # fmt: skip


def test_a_list_of_nodes_has_comments_and_no_repeats(tmp_path):
    (tmp_path / "good").write_text("n1\n\n# n2 is slow\nn3  # fine\nn1\n")
    assert nodes_in(tmp_path / "good") == ("n1", "n3")
    (tmp_path / "good").write_text("n2 n3\nn[5-6],n7 # as sbatch takes them\n")
    assert nodes_in(tmp_path / "good") == ("n2", "n3", "n[5-6]", "n7"), "sbatch takes a blank for the end of the list"
    (tmp_path / "good").write_text("# none\n")
    assert nodes_in(tmp_path / "good") == ()
