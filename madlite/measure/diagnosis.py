"""Why a run failed: cause, deciding line, rank, and what to do, from its log and what was seen of it from outside.

docs/failures.md has the causes.  The first cause counts, not what followed from it (failure_candidates.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

from msgspec.structs import replace

from madlite.backends.log_formats import explained
from madlite.measure.failure_scan import ends_training
from madlite.measure.launchers import TASKS_EXITED
from madlite.measure.lines import CRASHES, rank_in, signal_meaning, signal_name, signal_of_code
from madlite.measure.memory import gpu_memory_hint
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import ERROR, LAST, LAUNCHER, ROOT, FailureCandidate, looks_like_error, plain
from madlite.model import Cause, Diagnosis, JobOutcome, RunPlan, Value
from madlite.text import size_text

_LONGEST = 2000  # characters of a line that are kept
_OVER_TIME = 124  # of coreutils' timeout
_FEW_INODES, _SOME_BYTES = 16, 1 << 20
_KILL = re.compile(r"\bKilled\b|\bSIGKILL\b|signal:? 9\b|exitcode\s*: -9\b|exitcode: -9\b")
_CRASHED = re.compile(
    r"Segmentation fault|segfault|Bus error|Illegal instruction|Floating point exception|double free|\bAborted\b"
    r"|core dumped|terminate called|Fatal Python error|\bSIG(?:SEGV|BUS|ILL|FPE|ABRT)\b|\bsignal:? (?:4|6|7|8|11)\b"
)
_GUESSES = re.compile(r"potential root causes|[Pp]ossible reasons|This can happen when")  # of Ray
_TABLE = re.compile(r"^\s*traceback : |ChildFailedError|error_file:|exitcode\s*:")  # of torchrun

# the log is searched for the cause behind these; the others are conclusive themselves
_OPEN = {Cause.EXIT_CODE, Cause.PREPARE, Cause.INCOMPLETE, Cause.ERROR_PATTERN, Cause.NO_METRIC, Cause.BUILD}
_ENDED_BY_US = {Cause.TIMEOUT, Cause.HANG}
# what follows from our own signals
_SIGNAL_TRACE = re.compile(
    r"\bSIG(?:TERM|INT|KILL)\b|[Ss]ignal:? (?:2|9|15|Terminated|Killed|Interrupt)\b|[Bb]roken ?[Pp]ipe|Terminated"
)
_HINTS = {
    Cause.NAN_LOSS: "a lower learning rate, a longer warm-up of it, or a wider number format",
    Cause.HOST_MEMORY: "fewer processes that load data, or more memory for the job or container; "
    "dmesg -T | grep -i 'killed process' shows what the kernel ended",
}
_KERNEL_OOM = "the kernel ended a process for want of host memory while the run went on"
_CONTAINER_LIMIT = "the engine reports that the container's own memory limit ended a process"
_SENDER_UNKNOWN = (
    "SIGKILL by an unknown sender: most often the kernel, for want of host memory "
    "(dmesg -T | grep -i 'killed process' shows it), else a user, or whatever runs the job"
)
_NOT_KERNEL = "SIGKILL, not from the kernel: it counted no process that it ended for want of memory"


class DiskSpace(Value, frozen=True):
    """What a folder's disk has left; inodes None where its file system counts none."""

    folder: Path
    free_bytes: int
    free_inodes: int | None = None


class DiagnosisInput(Value, frozen=True):
    """The facts beside the log; all of it blank for a log that madlite did not make.

    `oom_kills` is how many processes the kernel ended for want of memory during the run, None if unknown.
    """

    plan: RunPlan | None = None
    exit_code: int | None = None
    oom_kills: int | None = None
    disk: DiskSpace | None = None
    outcome: JobOutcome | None = None  # of the session, as its engine reports it


def diagnose(
    cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput | None = None, hint: str = ""
) -> Diagnosis:
    """Return why a run failed that was judged to have failed by `cause`, with its line and what is known to do."""
    facts = facts or DiagnosisInput()
    candidate = _underlying_candidate(cause, log, facts) or _exit_candidate(cause, evidence, log, facts)
    is_last = candidate is not None and candidate.tier == LAST and candidate.line not in evidence
    if is_last and looks_like_error(evidence):
        candidate = None  # the program went on for long after it, and ended by other words
    if candidate is None and cause in (Cause.EXIT_CODE, Cause.PREPARE) and (number := signal_of_code(facts.exit_code)):
        return _diagnose_signal(number, evidence, facts)
    if candidate is None and cause in _ENDED_BY_US:
        return _diagnose_ended_run(cause, evidence, log, facts, hint)
    if candidate is None:
        line, rank = _evident(evidence, log if cause is Cause.EXIT_CODE else None)
        own = _own_hint(cause, facts.plan) or _ended_late(facts.exit_code).strip(": ") or _exit_hint(line)
        hint_text = hint or own or "; ".join(log.unread)
        return Diagnosis(cause=cause.value, line=line, rank=rank, hint=hint_text)
    code, text = _named(candidate, facts)
    hints = (text, candidate.advice, *_rule_hints(candidate, facts), *_measured_hints(code, candidate, log, facts))
    return Diagnosis(
        cause=code,
        line=candidate.line[:_LONGEST],
        rank=candidate.rank,
        hint="; ".join(dict.fromkeys(filter(None, hints))),
        where=candidate.where,
        source=candidate.rule.source if candidate.rule else "",
    )


def _evident(evidence: str, log: LogMonitor | None) -> tuple[str, int | None]:
    """Return the line that a verdict goes by, and its rank: of a launcher's table the entry that failed first."""
    first = log.failures.scan.launchers.first if log is not None else None
    line, rank = plain(evidence)[:_LONGEST], rank_in(evidence)
    if first is None or first.was_terminated:
        return line, rank
    return first.line if _TABLE.search(line) else line, first.rank if rank is None else rank


def _underlying_candidate(cause: Cause, log: LogMonitor, facts: DiagnosisInput) -> FailureCandidate | None:
    """Return the candidate that is more specific than the cause which the run was judged by."""
    if cause in _ENDED_BY_US:  # a rank that failed leaves the others waiting until they are ended
        late = log.failures.late_candidate
        return late if late is not None and _ended_a_rank(late) else None
    if cause not in _OPEN:
        return None
    candidate = log.failures.candidate
    if log.nan_loss and cause is not Cause.PREPARE and (candidate is None or candidate.tier > ROOT):
        line = log.nan_loss
        return FailureCandidate(cause=Cause.NAN_LOSS.value, line=plain(line), rank=rank_in(line), tier=ROOT, at=0)
    if candidate is None or candidate.tier == LAUNCHER:
        return None
    if cause is Cause.NO_METRIC and facts.exit_code == 0:  # what did not end the script may have been handled
        return candidate if candidate.tier == ROOT or (candidate.tier == ERROR and candidate.uncaught) else None
    return candidate


def _exit_candidate(cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput) -> FailureCandidate | None:
    """Return that a launcher saw a process exit, of a log that ends too soon and does not say why."""
    seen = cause in (Cause.INCOMPLETE, Cause.NO_METRIC) or (cause is Cause.EXIT_CODE and facts.plan is None)
    candidate = log.failures.scan.exited if seen and facts.exit_code != 0 else None
    if candidate is None or looks_like_error(candidate.line) or not looks_like_error(evidence):
        return candidate
    return replace(candidate, line=plain(evidence))


def _ended_a_rank(candidate: FailureCandidate) -> bool:
    """Return whether a candidate explains why a rank failed before the run was ended, and is no trace of that end."""
    return ends_training(candidate) and (candidate.tier == ROOT or not _SIGNAL_TRACE.search(candidate.line))


def _diagnose_ended_run(cause: Cause, evidence: str, log: LogMonitor, facts: DiagnosisInput, hint: str) -> Diagnosis:
    """Return what is known of a run that was ended for its silence or its time: which collective did not come on.

    `hint` is that of who ended it.
    """
    late, own = log.failures.late_candidate, hint or _own_hint(cause, facts.plan, begun=bool(log.steps))
    if late is None or late.cause != Cause.COLLECTIVE.value:
        return Diagnosis(cause=cause.value, line=plain(evidence)[:_LONGEST], rank=rank_in(evidence), hint=own)
    return Diagnosis(
        cause=cause.value,
        line=late.line[:_LONGEST],
        rank=late.rank,
        hint="; ".join(filter(None, (*_rule_hints(late, facts), own))),
        source=late.rule.source if late.rule else "",
    )


def _named(candidate: FailureCandidate, facts: DiagnosisInput) -> tuple[str, str]:
    """Return a candidate's cause code and the first hint about it."""
    if candidate.signal == SIGKILL or _says(_KILL, candidate):
        return _killed(facts)
    if candidate.signal:
        cause, what = _of_signal(candidate.signal)
        return cause, what if candidate.rank is None else f"rank {candidate.rank} was ended by {what}"
    if _says(_CRASHED, candidate):
        return Cause.CRASH.value, ""
    if candidate.exit_code:
        which = "a process" if candidate.rank is None else f"rank {candidate.rank}"
        found = TASKS_EXITED.search(candidate.line)
        which = f"{found['who']} ended" if found else f"{which} ended by itself first,"
        return candidate.cause, f"{which} with exit code {candidate.exit_code}{_ended_late(candidate.exit_code)}"
    if candidate.cause == Cause.DISK.value and facts.disk is not None and _lacks_inodes(facts.disk):
        return Cause.INODES.value, ""
    return candidate.cause, ""


def _says(words: re.Pattern[str], candidate: FailureCandidate) -> bool:
    """Return whether the line of a process that was ended says how, and not by what it may have been."""
    told = candidate.cause == Cause.KILLED.value and words.search(candidate.line) is not None
    return told and _GUESSES.search(candidate.line) is None


def _killed(facts: DiagnosisInput) -> tuple[str, str]:
    """Return who sent SIGKILL, as far as the engine and the kernel's own count tell: else it is unknown."""
    if facts.outcome is not None and facts.outcome.out_of_memory:
        return Cause.HOST_MEMORY.value, _CONTAINER_LIMIT
    if facts.oom_kills is None:
        return Cause.KILLED.value, _SENDER_UNKNOWN
    return (Cause.HOST_MEMORY.value, _KERNEL_OOM) if facts.oom_kills else (Cause.KILLED.value, _NOT_KERNEL)


def _of_signal(number: int) -> tuple[str, str]:
    """Return the cause that a signal other than SIGKILL stands for, and its meaning."""
    cause = Cause.CRASH if number in CRASHES else Cause.KILLED
    return cause.value, f"{signal_name(number)}: {signal_meaning(number)}"


def _ended_late(code: int | None) -> str:
    return ": the program `timeout` answers so where its time was over" if code == _OVER_TIME else ""


def _diagnose_signal(number: int, evidence: str, facts: DiagnosisInput) -> Diagnosis:
    cause, text = _killed(facts) if number == SIGKILL else _of_signal(number)
    more = f"; {_HINTS[Cause.HOST_MEMORY]}" if cause == Cause.HOST_MEMORY.value else ""
    return Diagnosis(cause=cause, line=evidence[:_LONGEST], hint=text + more)


def _exit_hint(line: str) -> str:
    """Return what a launcher reports of an exit code that nothing explains."""
    if (found := TASKS_EXITED.search(line)) is None:
        return ""
    return f"{found['who']} ended with exit code {found['code']}, and the log does not say why: look at its last lines"


def _rule_hints(candidate: FailureCandidate, facts: DiagnosisInput) -> tuple[str, ...]:
    """Return what the candidate's rule recommends."""
    if candidate.rule is None or candidate.signal or _says(_KILL, candidate):
        return ()
    plan, backends = facts.plan, candidate.rule.backends
    here = candidate.rule.here if plan is not None and (not backends or plan.backend in backends) else ""
    see = f"see {candidate.rule.see}" if candidate.rule.see else ""
    return (*(explained(text, candidate.groups) for text in (candidate.rule.hint, here)), see)


def _measured_hints(code: str, candidate: FailureCandidate, log: LogMonitor, facts: DiagnosisInput) -> tuple[str, ...]:
    """Return what the numbers of this run suggest."""
    if code == Cause.GPU_MEMORY.value:
        return (gpu_memory_hint(candidate.line, facts.plan, log.steps, log.config),)
    if code in (Cause.DISK.value, Cause.INODES.value):
        return _disk_hints(candidate.groups, facts)
    has_hint = candidate.rule is not None and bool(candidate.rule.hint)
    if code == Cause.HOST_MEMORY.value and (not has_hint or _KILL.search(candidate.line)):
        return (_HINTS[Cause.HOST_MEMORY],)
    if code == Cause.NAN_LOSS.value and not has_hint:
        return (_HINTS[Cause.NAN_LOSS],)
    return ()


def _disk_hints(groups: Mapping[str, str], facts: DiagnosisInput) -> tuple[str, ...]:
    file = groups.get("file", "")
    what = f"{file} could not be written: free some room, or write elsewhere" if file else "free some room"
    if facts.disk is None:
        return (f"{what}; df -h and df -i show which disk",)
    disk = facts.disk
    inodes = "" if disk.free_inodes is None else f" and {disk.free_inodes} inodes"
    return (what, f"{disk.folder} has {size_text(disk.free_bytes)}{inodes} left now")


def _lacks_inodes(disk: DiskSpace) -> bool:
    few = disk.free_inodes is not None and disk.free_inodes < _FEW_INODES
    return few and disk.free_bytes > _SOME_BYTES


def _own_hint(cause: Cause, plan: RunPlan | None, *, begun: bool = True) -> str:
    if cause is Cause.HANG and plan is not None:
        option = "--silence-limit" if begun else "--start-silence-limit"
        return f"hang/stacks.txt in the run's folder shows where it stood; a longer {option} if it was only slow"
    if cause is Cause.TIMEOUT and plan is not None and plan.timeout_s:
        return f"a longer --timeout than {plan.timeout_s:.0f}" + (", or fewer --steps" if plan.variant else "")
    return _HINTS.get(cause, "")
