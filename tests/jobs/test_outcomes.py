"""How a job ended → cause and reason of its run's row; and which waiting jobs never start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from msgspec.structs import replace

from madlite.jobs.outcomes import end_of, last_error, why_never
from madlite.model import Cause
from madlite.plan.schedulers import JobState
from madlite.plan.submission import OUTPUT
from madlite.platforms.slurm.states import end_in, end_of_word, explained
from tests.rows import each_row


def slurm(**of) -> JobState:
    """Return what Slurm says of a job by its words."""
    return explained(JobState(**of))


@each_row(
    ("state", "cause", "words"),
    [
        (slurm(state="TIMEOUT", code=143, nodes="n1"), Cause.TIMEOUT, "time was over on n1"),
        (slurm(state="NODE_FAIL", signal=15, nodes="n2"), Cause.NODE, "a node of the job failed on n2"),
        (slurm(state="CANCELLED", signal=15), Cause.INTERRUPTED, "cancelled"),
        (slurm(state="PREEMPTED"), Cause.PREEMPTED, "preempted"),
        (slurm(state="OUT_OF_MEMORY", code=0, signal=125), Cause.HOST_MEMORY, "ran out of memory"),
        (slurm(state="FAILED", code=1, derived=1), Cause.JOB, "exit code 1"),
        (slurm(state="FAILED", code=137), Cause.KILLED, "killed"),
        (slurm(state="FAILED", code=143), Cause.KILLED, "SIGTERM"),
        (slurm(state="COMPLETED", code=0), Cause.JOB, "without a result"),
        (slurm(state="COMPLETED", code=0, derived=9), Cause.JOB, "a step's exit code 9"),
        (slurm(), Cause.JOB, "does not know job 7 any more"),
    ],
)
def test_a_job_without_a_result_gives_its_run_a_cause(state, cause, words):
    end = end_of(state, "7")
    assert end.cause is cause
    assert words in end.reason


def test_the_last_error_of_a_job_s_output_is_in_the_reason():
    end = end_of(slurm(state="FAILED", code=4), "7", "plan file 1.json needs the secret HF_TOKEN")
    assert end.reason.endswith(": plan file 1.json needs the secret HF_TOKEN")


def test_the_error_of_an_array_s_element_is_that_of_its_own_output(tmp_path: Path):
    script = SimpleNamespace(number=3, first=5, count=2)
    stored = SimpleNamespace(folder=tmp_path, script_of={"a": script, "b": script})
    (tmp_path / OUTPUT).mkdir()
    for element in (1, 2):
        (tmp_path / OUTPUT / f"3-{element}.out").write_text(f"began\nsrun: error: of element {element}\n")
    runs = {"a": SimpleNamespace(id="a", number=5), "b": SimpleNamespace(id="b", number=6)}
    assert {name: last_error(stored, run) for name, run in runs.items()} == {"a": "of element 1", "b": "of element 2"}


def test_a_run_that_had_begun_before_its_job_was_queued_again_is_preempted():
    again = slurm(state="COMPLETED", code=0, restarts=1)
    assert end_of(again, "7", started=True).cause is Cause.PREEMPTED
    assert end_of(again, "7", started=False).cause is Cause.JOB
    assert end_of(replace(again, earlier=end_of_word("NODE_FAIL", "")), "7", started=True).cause is Cause.NODE
    said = "*** JOB 7 ON n1 CANCELLED AT 2026-11-27T00:45:59 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    assert end_of(replace(again, earlier=end_in(said, "")), "7", said, started=True).cause is Cause.NODE
    assert end_in("srun: error: n1: task 0: Killed", "") is None


FOR_EVER = ["PartitionNodeLimit", "PartitionTimeLimit", "InvalidAccount", "BadConstraints", "QOSMaxGRESPerJob"]
WAITED_FOR = {
    **dict.fromkeys(("JobHeldUser", "JobHeldAdmin"), "madlite cluster cancel ends it"),
    **dict.fromkeys(("AssocGrpGRES", "QOSGrpCpuLimit"), "sacctmgr"),
    **dict.fromkeys(("Resources", "Priority", "ReqNodeNotAvail", ""), ""),
}


@each_row("reason", [*FOR_EVER, *WAITED_FOR])
def test_a_job_that_no_other_job_s_end_lets_start_never_does_and_others_are_waited_for(reason):
    state = slurm(state="PENDING", reason=reason)
    end = why_never(state)
    if reason in FOR_EVER:
        assert end is not None and end.cause is Cause.JOB_NEVER and reason in end.reason and end.hint
    else:
        assert end is None and WAITED_FOR[reason] in state.waits and bool(state.waits) is bool(WAITED_FOR[reason])
    assert why_never(slurm(state="RUNNING", reason=reason)) is None
