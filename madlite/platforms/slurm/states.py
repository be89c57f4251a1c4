"""The words of squeue, scontrol and sacct: which states are over, which reasons no waiting changes, how jobs are ended.

States and reasons: `man squeue`, sections JOB STATE CODES and JOB REASON CODES, of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from madlite.model import Cause
from madlite.plan.schedulers import TIMED_OUT, JobEnd, JobState, cancelled_end

_LIVE = (
    *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "STAGE_OUT"),
    *("RESIZING", "SIGNALING", "STOPPED", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
)
REQUEUED = ("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REQUEUED")  # states after which Slurm queues a job again
# What slurmstepd writes into a job's output: `CANCELLED AT … DUE TO NODE FAILURE, SEE …`.
_DUE_TO = {"NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
# Reasons of a waiting job that no other job's end changes, each with what to do.
_NEVER = {
    "PartitionNodeLimit": "--nodes, or another partition: sinfo -o '%P %D %s' has the limits",
    "PartitionTimeLimit": "time of the cluster file: sinfo -o '%P %l' has each partition's limit",
    "PartitionInactive": "another partition: sinfo -s",
    "BadConstraints": "constraint, gres and nodes of the cluster file: sinfo -o '%N %f %G'",
    "InvalidAccount": "account of the cluster file: sacctmgr show assoc user=$USER",
    "InvalidQOS": "qos of the cluster file: sacctmgr show qos",
    "QOSNotAllowed": "qos of the cluster file: sacctmgr show assoc user=$USER",
    "AccountNotAllowed": "account or partition of the cluster file: scontrol show partition",
    "DependencyNeverSatisfied": "--dependency, or directives of the cluster file: the job that it waits for has failed",
    "ReservationDeleted": "reservation of the cluster file: scontrol show reservation",
    "PartitionConfig": "another partition: sinfo -s",
    "JobHoldMaxRequeue": "slurmd's log of the node; madlite cluster check finds bad nodes",
    "JobLaunchFailure": "slurmd's log of the node; madlite cluster check finds bad nodes",
    "launch_failed_requeued_held": "slurmd's log of the node; madlite cluster check finds bad nodes",
}
# Reasons that somebody has to end, each with how.
_HELD = {
    "JobHeldUser": "it is held: scontrol release starts it, madlite cluster cancel ends it",
    "JobHeldAdmin": "who runs the cluster holds it: ask; madlite cluster cancel ends it",
}
_NEVER_PATTERN = re.compile(r"(?:Assoc|QOS)Max\w*Per(?:Job|Node)\w*|QOSMin\w+|AssocMaxWallDurationPerJobLimit")
_LIMIT = re.compile(r"(?:Assoc|QOS)\w*(?:Limit|GRES|Grp\w+|CPUs|Node|Jobs)")  # which others of the group use up
_LIMIT_HINT = "a limit of the account or QOS: sacctmgr show assoc user=$USER; squeue -A ACCOUNT shows who uses it"


def explained(said: JobState) -> JobState:
    """Return what Slurm says of a job with what its words mean."""
    if said.state == "PENDING":
        never = _NEVER.get(said.reason) or (_LIMIT_HINT if _NEVER_PATTERN.fullmatch(said.reason) else "")
        held = _HELD.get(said.reason, "")
        limit = _LIMIT_HINT if _LIMIT.fullmatch(said.reason) else ""
        return replace(said, stage="pending", never=never, waits="" if never else held or limit)
    return replace(
        said,
        stage="running" if said.state in _LIVE else "over",
        reason="" if said.reason == "NonZeroExitCode" else said.reason,  # which the code says too
        succeeded=said.state == "COMPLETED",
        ended_by=end_of_word(said.state, said.nodes),
    )


def end_of_word(word: str, nodes: str) -> JobEnd | None:
    """Return why Slurm ended a job, by its state; None where it did not."""
    on = f" on {nodes}" if nodes else ""
    found = {
        "DEADLINE": (Cause.TIMEOUT, "the job's deadline was over", "directives of the cluster file"),
        "NODE_FAIL": (Cause.NODE, f"a node of the job failed{on}", f"madlite run --exclude {nodes or 'NODE'}"),
        "BOOT_FAIL": (Cause.NODE, f"a node of the job did not boot{on}", "madlite run --exclude NODE"),
        "PREEMPTED": (Cause.PREEMPTED, f"the job was preempted{on}", "submit it again, or another qos"),
        "OUT_OF_MEMORY": (Cause.HOST_MEMORY, f"the job ran out of memory{on}", "mem of the cluster file"),
        "REVOKED": (Cause.INTERRUPTED, "the job was revoked", ""),
    }.get(word)
    if found is not None:
        return JobEnd(*found)
    if word == "TIMEOUT":
        return replace(TIMED_OUT, reason=f"{TIMED_OUT.reason}{on}")
    return cancelled_end(nodes) if word == "CANCELLED" else None


def end_in(error: str, nodes: str) -> JobEnd | None:
    """Return why slurmstepd ended a job, as the last error of its output says it; None where it does not."""
    return next((end_of_word(word, nodes) for words, word in _DUE_TO.items() if f"DUE TO {words}" in error), None)
