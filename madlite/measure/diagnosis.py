"""Why a run failed: cause, deciding line, rank, and what to do, from its log and what was seen of it from outside.

docs/failures.md has the causes.  The first cause counts, not what followed from it (failure_candidates.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

from msgspec.structs import replace

from madlite.failure_rules import explained
from madlite.measure.failure_scan import ERROR, LAST, LAUNCHER, ROOT, FailureCandidate
from madlite.measure.grammar import CRASHES, rank_in, signal_meaning, signal_name, signal_of_code
from madlite.measure.memory import gpu_memory_hint
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import looks_like_error, plain
from madlite.model import Cause, Diagnosis, JobOutcome, RunPlan, Value

_LONGEST = 2000  # characters of a line that are kept
_OVER_TIME = 124  # of coreutils' timeout
_FEW_INODES, _SOME_BYTES = 16, 1 << 20
_KILL = re.compile(r"\bKilled\b|\bSIGKILL\b|signal:? 9\b|exitcode\s*: -9\b|exitcode: -9\b")
_CRASHED = re.compile(
    r"Segmentation fault|segfault|Bus error|Illegal instruction|Floating point exception|double free|\bAborted\b"
    r"|core dumped|terminate called|Fatal Python error|\bSIG(?:SEGV|BUS|ILL|FPE|ABRT)\b|\bsignal:? (?:4|6|7|8|11)\b"
)
_TABLE = re.compile(r"^\s*traceback : |ChildFailedError|error_file:|exitcode\s*:")  # of torchrun
_EXITED = re.compile(
    r"srun: error: \S{1,400}: (?P<who>tasks? [\d,-]{1,400}): Exited with exit code (?P<code>[1-9]\d{0,4})"
)
_GIB = 1 << 30

# the log is asked for what lies behind these; the others say it themselves
_OPEN = {Cause.EXIT_CODE, Cause.PREPARE, Cause.INCOMPLETE, Cause.ERROR_PATTERN, Cause.NO_METRIC, Cause.BUILD}
_ENDED_BY_US = {Cause.TIMEOUT, Cause.HANG}
# what follows from our own signals
_TOLD = re.compile(
    r"\bSIG(?:TERM|INT|KILL)\b|[Ss]ignal:? (?:2|9|15|Terminated|Killed|Interrupt)\b|[Bb]roken ?[Pp]ipe|Terminated"
)
_HINTS = {
    Cause.NAN_LOSS: "a lower learning rate, a longer warm-up of it, or a wider number format",
    Cause.HOST_MEMORY: "fewer processes that load data, or more memory for the job or container; "
    "dmesg -T | grep -i 'killed process' tells what the kernel ended",
}
_SURELY = "the kernel ended a process for want of host memory while the run went on"
_LIMITED = "the engine says that the container's own memory limit ended a process"
_LIKELY = (
    "SIGKILL, and nothing tells who sent it: most often the kernel, for want of host memory "
    "(dmesg -T | grep -i 'killed process' tells), else a user, or whatever runs the job"
)
_NOT_KERNEL = "somebody sent SIGKILL: the kernel counted no process that it ended for want of memory"


class DiskSpace(Value, frozen=True):
    """What a folder's disk has left; inodes None where its file system counts none."""

    folder: Path
    free_bytes: int
    free_inodes: int | None = None


class DiagnosisInput(Value, frozen=True):
    """What is known beside the log; all of it blank for the log of somebody else's training.

    `oom_kills` is how many processes the kernel ended for want of memory during the run, None where nobody knows.
    """

    plan: RunPlan | None = None
    exit_code: int | None = None
    oom_kills: int | None = None
    room: DiskSpace | None = None
    outcome: JobOutcome | None = None  # of the session, as its engine tells it


def diagnose(
    cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput | None = None, hint: str = ""
) -> Diagnosis:
    """Return why a run failed that was judged to have failed by `cause`, with its line and what is known to do."""
    facts = facts or DiagnosisInput()
    clue = _behind(cause, log, facts) or _by_itself(cause, evidence, log, facts)
    if clue is not None and clue.tier == LAST and clue.line not in evidence and looks_like_error(evidence):
        clue = None  # the program went on for long after it, and ended by other words
    if clue is None and cause in (Cause.EXIT_CODE, Cause.PREPARE) and (number := signal_of_code(facts.exit_code)):
        return _signalled(number, evidence, facts)
    if clue is None and cause in _ENDED_BY_US:
        return _stood_still(cause, evidence, log, facts, hint)
    if clue is None:
        line, rank = _evident(evidence, log if cause is Cause.EXIT_CODE else None)
        known = hint or _own_hint(cause, facts.plan) or _ended_late(facts.exit_code).strip(": ") or _ended_itself(line)
        return Diagnosis(cause=cause.value, line=line, rank=rank, hint=known)
    code, words = _named(clue, facts)
    return Diagnosis(
        cause=code,
        line=clue.line[:_LONGEST],
        rank=clue.rank,
        hint="; ".join(dict.fromkeys(filter(None, (words, *_ruled(clue, facts), *_numbers(code, clue, log, facts))))),
        where=clue.where,
        source=clue.rule.source if clue.rule else "",
    )


def _evident(evidence: str, log: LogMonitor | None) -> tuple[str, int | None]:
    """Return the line that a verdict goes by, and its rank: of a launcher's table the entry that failed first."""
    first = log.first_failure if log is not None else None
    line, rank = plain(evidence)[:_LONGEST], rank_in(evidence)
    if first is None or first.was_terminated:
        return line, rank
    return first.line if _TABLE.search(line) else line, first.rank if rank is None else rank


def _behind(cause: Cause, log: LogMonitor, facts: DiagnosisInput) -> FailureCandidate | None:
    """Return the clue that says more than the cause which the run was judged by."""
    if cause in _ENDED_BY_US:  # a rank that failed leaves the others waiting until somebody ends them
        late = log.late_candidate
        return late if late is not None and _ended_a_rank(late) else None
    if cause not in _OPEN:
        return None
    clue = log.candidate
    if log.nan_loss and cause is not Cause.PREPARE and (clue is None or clue.tier > ROOT):
        line = log.nan_loss
        return FailureCandidate(cause=Cause.NAN_LOSS.value, line=plain(line), rank=rank_in(line), tier=ROOT, at=0)
    if clue is None or clue.tier == LAUNCHER:
        return None
    if cause is Cause.NO_METRIC and facts.exit_code == 0:  # what did not end the script may have been handled
        return clue if clue.tier == ROOT or (clue.tier == ERROR and clue.uncaught) else None
    return clue


def _by_itself(cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput) -> FailureCandidate | None:
    """Return that a launcher saw a process exit, of a log that ends too soon and does not say why."""
    clue = log.exited if cause in (Cause.INCOMPLETE, Cause.NO_METRIC) and facts.exit_code != 0 else None
    if clue is None or looks_like_error(clue.line) or not looks_like_error(evidence):
        return clue
    return replace(clue, line=plain(evidence))


def _ended_a_rank(clue: FailureCandidate) -> bool:
    """Say whether a clue is why a rank had failed before the run was ended, and no trace of how it was ended."""
    if clue.tier == ROOT:
        return True
    raised = clue.tier == ERROR and clue.uncaught and not clue.of_import and not clue.handled
    return raised and not _TOLD.search(clue.line)


def _stood_still(cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput, hint: str) -> Diagnosis:
    """Return what is known of a run that was ended for its silence or its time: which collective did not come on.

    `hint` is that of who ended it.
    """
    late, own = log.late_candidate, hint or _own_hint(cause, facts.plan, begun=bool(log.steps))
    if late is None or late.cause != Cause.COLLECTIVE.value:
        return Diagnosis(cause=cause.value, line=plain(evidence)[:_LONGEST], rank=rank_in(evidence), hint=own)
    return Diagnosis(
        cause=cause.value,
        line=late.line[:_LONGEST],
        rank=late.rank,
        hint="; ".join(filter(None, (*_ruled(late, facts), own))),
        source=late.rule.source if late.rule else "",
    )


def _named(clue: FailureCandidate, facts: DiagnosisInput) -> tuple[str, str]:
    """Return a clue's cause code and what to say about it before all else."""
    if clue.signal == SIGKILL or (clue.cause == Cause.KILLED.value and _KILL.search(clue.line)):
        return _killed(facts)
    if clue.signal:
        cause, what = _of_signal(clue.signal)
        return cause, what if clue.rank is None else f"rank {clue.rank} was ended by {what}"
    if clue.cause == Cause.KILLED.value and _CRASHED.search(clue.line):
        return Cause.CRASH.value, ""
    if clue.exit_code:
        whose = "a process" if clue.rank is None else f"rank {clue.rank}"
        return (
            clue.cause,
            f"{whose} ended by itself first, with exit code {clue.exit_code}{_ended_late(clue.exit_code)}",
        )
    if clue.cause == Cause.DISK.value and facts.room is not None and _lacks_inodes(facts.room):
        return Cause.INODES.value, ""
    return clue.cause, ""


def _killed(facts: DiagnosisInput) -> tuple[str, str]:
    """Return who sent SIGKILL, as far as the engine's word and the kernel's own count tell: else nobody knows."""
    if facts.outcome is not None and facts.outcome.out_of_memory:
        return Cause.HOST_MEMORY.value, _LIMITED
    if facts.oom_kills is None:
        return Cause.KILLED.value, _LIKELY
    return (Cause.HOST_MEMORY.value, _SURELY) if facts.oom_kills else (Cause.KILLED.value, _NOT_KERNEL)


def _of_signal(number: int) -> tuple[str, str]:
    """Return the cause that a signal other than SIGKILL stands for, and what it tells."""
    cause = Cause.CRASH if number in CRASHES else Cause.KILLED
    return cause.value, f"{signal_name(number)}: {signal_meaning(number)}"


def _ended_late(code: int | None) -> str:
    return ": the program `timeout` answers so where its time was over" if code == _OVER_TIME else ""


def _signalled(number: int, evidence: str, facts: DiagnosisInput) -> Diagnosis:
    if number == SIGKILL:
        cause, words = _killed(facts)
        more = f"; {_HINTS[Cause.HOST_MEMORY]}" if cause == Cause.HOST_MEMORY.value else ""
        return Diagnosis(cause=cause, line=evidence[:_LONGEST], hint=words + more)
    cause, words = _of_signal(number)
    return Diagnosis(cause=cause, line=evidence[:_LONGEST], hint=words)


def _ended_itself(line: str) -> str:
    """Return what a launcher's word tells of an exit code that nothing explains."""
    found = _EXITED.search(line)
    return (
        f"{found['who']} ended with exit code {found['code']}, and the log does not say why: look at its last lines"
        if found
        else ""
    )


def _ruled(clue: FailureCandidate, facts: DiagnosisInput) -> tuple[str, ...]:
    """Return what the clue's rule says is to be done."""
    if clue.rule is None or clue.signal or (clue.cause == Cause.KILLED.value and _KILL.search(clue.line)):
        return ()
    plan, backends = facts.plan, clue.rule.backends
    here = clue.rule.here if plan is not None and (not backends or plan.backend in backends) else ""
    return tuple(explained(text, clue.groups) for text in (clue.rule.hint, here))


def _numbers(code: str, clue: FailureCandidate, log: LogMonitor, facts: DiagnosisInput) -> tuple[str, ...]:
    """Return what the numbers of this run say is to be done."""
    if code == Cause.GPU_MEMORY.value:
        return (gpu_memory_hint(clue.line, facts.plan, log.steps, log.config),)
    if code in (Cause.DISK.value, Cause.INODES.value):
        return _room_hints(clue.groups, facts)
    if code == Cause.HOST_MEMORY.value and not (clue.rule and clue.rule.hint and not _KILL.search(clue.line)):
        return (_HINTS[Cause.HOST_MEMORY],)
    if code == Cause.NAN_LOSS.value and not (clue.rule and clue.rule.hint):
        return (_HINTS[Cause.NAN_LOSS],)
    return ()


def _room_hints(groups: Mapping[str, str], facts: DiagnosisInput) -> tuple[str, ...]:
    file = groups.get("file", "")
    what = f"{file} could not be written: free some room, or write elsewhere" if file else "free some room"
    if facts.room is None:
        return (f"{what}; df -h and df -i tell which disk",)
    room = facts.room
    inodes = "" if room.free_inodes is None else f" and {room.free_inodes} inodes"
    return (what, f"{room.folder} has {room.free_bytes / _GIB:.1f} GiB{inodes} left now")


def _lacks_inodes(room: DiskSpace) -> bool:
    few = room.free_inodes is not None and room.free_inodes < _FEW_INODES
    return few and room.free_bytes > _SOME_BYTES


def _own_hint(cause: Cause, plan: RunPlan | None, *, begun: bool = True) -> str:
    if cause is Cause.HANG and plan is not None:
        option = "--silence-limit" if begun else "--start-silence-limit"
        return f"hang/stacks.txt in the run's folder shows where it stood; a longer {option} if it was only slow"
    if cause is Cause.TIMEOUT and plan is not None and plan.timeout_s:
        return f"a longer --timeout than {plan.timeout_s:.0f}" + (", or fewer --steps" if plan.variant else "")
    return _HINTS.get(cause, "")
