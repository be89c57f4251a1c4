"""A failed run's result with its diagnosis: what its log and this machine say of the cause."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from madlite.measure.diagnosis import Facts, Room, diagnose
from madlite.measure.follow import Follower
from madlite.measure.rules import with_common
from madlite.model import Cause, Diagnosis, JobOutcome, Result, RunPlan, Status
from madlite.run.account import Account

# of these the diagnosed cause takes the place; the others decide rows and exit codes
_REPLACED = {Cause.EXIT_CODE, Cause.PREPARE}
_OF_ENGINE = {Cause.BUILD, Cause.DISK}  # what the engine said stands in the reason
_KNOWN = {cause.value: cause for cause in Cause}


def explained(plan: RunPlan, result: Result, account: Account) -> Result:
    """Return the result with why it failed; one that did not fail as it is."""
    if result.status is not Status.FAILURE or result.diagnosis is not None:
        return result
    found = _diagnosis(plan, result, account)
    outcome = outcome_words(account.outcome)
    replaced = result.cause in _REPLACED and result.exit_code != 0
    cause = _KNOWN.get(found.cause, result.cause) if replaced else result.cause
    if result.cause is Cause.DISK and found.cause == Cause.INODES.value:
        cause = Cause.INODES
    return replace(
        result,
        diagnosis=found,
        cause=cause,
        reason=_worded(account, result, found),
        evidence=found.line or result.evidence,
        findings=(*result.findings, *([outcome] if outcome else [])),
    )


def outcome_words(outcome: JobOutcome | None) -> str:
    """Return what an engine says of a session's end, "" where that is no more than that it ended or goes on."""
    if outcome is None or not (outcome.out_of_memory or outcome.reason):
        return ""
    memory = ["its memory limit ended a process"] if outcome.out_of_memory else []
    code = [f"exit code {outcome.code}"] if outcome.code else []
    return f"the engine says: {'; '.join(filter(None, [outcome.state, *code, *memory, outcome.reason]))}"


def _diagnosis(plan: RunPlan, result: Result, account: Account) -> Diagnosis:
    hint = account.hint or (plan.blocked.hint if plan.blocked is not None else "")
    if result.cause in _OF_ENGINE:
        return _of_words(result, hint)
    facts = Facts(
        plan=plan,
        exit_code=account.ended.code if account.ended else None,
        oom_kills=account.oom_kills if plan.traits.local else None,
        room=find_room(plan.workspace) if plan.traits.shares_files else None,
        outcome=account.outcome,
    )
    account.log.finish()  # of a session that broke off it was not
    found = diagnose(result.cause, result.evidence, account.log, facts, hint)
    if result.cause is Cause.ERROR_PATTERN and found.cause == Cause.PYTHON.value:  # handled, for all that is known
        return replace(found, cause=result.cause.value)
    return found


def _of_words(result: Result, hint: str) -> Diagnosis:
    """Return what an engine's words come to: a build that found no network failed for that."""
    words = Follower((), with_common(()))
    words.feed(result.reason.encode())
    words.finish()
    found = diagnose(Cause.BUILD, "", words, hint=hint)
    cause = result.cause.value if result.cause is Cause.DISK and found.cause != Cause.INODES.value else found.cause
    return Diagnosis(cause=cause, line=result.evidence, hint=hint or found.hint, source=found.source)


def _worded(account: Account, result: Result, found: Diagnosis) -> str:
    """Return the reason as a sentence that stands alone: what happened, why, and what to do."""
    if found.cause == result.cause.value:
        return result.reason
    rule = account.log.rule
    reason = result.reason.partition(f" ({rule.cause})")[0] if rule else result.reason
    return f"{reason} ({found.cause}); {found.hint}" if found.hint else f"{reason} ({found.cause})"


def find_room(folder: Path) -> Room | None:
    """Return what a folder's disk has left; None where it cannot be asked."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return Room(
        folder=folder,
        free_bytes=disk.f_bavail * disk.f_frsize,
        free_inodes=disk.f_favail if disk.f_files else None,
    )
