"""How a runtime's actions and sessions end: by themselves, at a limit, by a stop, when they are left or cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.model import JobOutcome, RunPlan, Session
from madlite.testing.bench import Bench, Late, Output, Ran
from madlite.testing.flaws import Flaw
from madlite.testing.runtime_contract import refuses

_NOBODY = "the-kit-never-had-this-handle"
# a process in a session of its own that counts, for ten minutes at most
_COUNTS = 'trap "" INT TERM HUP; n=0; while [ $((n += 1)) -lt 6000 ]; do echo >> beats; sleep 0.1; done'
_BEATS = f"setsid sh -c '{_COUNTS}' > /dev/null 2>&1 < /dev/null & until [ -s beats ]; do sleep 0.1; done"
_WAITS = "n=0; while [ $((n += 1)) -lt 6000 ]; do sleep 0.1; done"
_WORDS = f"trap 'echo last words; exit 7' INT; echo ready; {_WAITS}"
_DEAF = f"trap '' INT TERM HUP; echo ready; {_WAITS}"


def check_exits(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield which exit codes are not the command's."""
    with bench.session(bench.plan(folder)) as session:
        for script, wanted in (("exit 0", 0), ("exit 3", 3), ("false; true", 0)):
            ran = bench.run(session, script)
            if ran.exit is None or ran.exit.code != wanted or ran.exit.timed_out:
                yield bench.flaw("exits", f"run of {script!r}", _how(ran), f"Exit(code={wanted}, ...)")
        if not bench.run(session, "kill -KILL $$").ended_ill:
            yield bench.flaw("exits", "run of 'kill -KILL $$'", "it went well", "a signal is a code too: -9, or 137")
        for argv, cwd in ((("/no/such/command",), ""), (("true",), "no/such/folder")):
            ran = bench.act(session, argv, cwd=cwd)
            if not ran.ended_ill:
                what = "it went well, where nothing can be started"
                yield bench.flaw("exits", f"run of {' '.join(argv)} in {cwd or '.'}", what, "raise RuntimeProblem")
        if bench.run(session, "exit 0").ended_ill:
            yield bench.flaw("exits", "run", "nothing runs after an action that failed", "a session takes more actions")
        if bench.nodes > 1:
            yield from _first_to_fail(bench, session)


def _first_to_fail(bench: Bench, session: Session) -> Iterator[Flaw]:
    last = bench.nodes - 1
    ran = bench.run(session, f'[ "$NODE_RANK" = {last} ] && exit 4; sleep 5; exit 5')
    ended = ran.exit
    if ended is None or len(ended.codes) != bench.nodes or ended.codes[last] != 4:
        yield bench.flaw("exits", "run on several nodes", _how(ran), f"codes has {bench.nodes}, the last of them 4")
    elif ended.failed_node != last or ended.code != 4:
        what = f"node {last} failed first with code 4: {_how(ran)}"
        yield bench.flaw("exits", "run on several nodes", what, "failed_node is the first to fail, code its own")
    whole = bench.run(session, "exit 0").exit
    if whole is not None and (whole.failed_node is not None or whole.codes != (0,) * bench.nodes):
        yield bench.flaw("exits", "run on several nodes", f"all went well: {whole!r}", "codes of 0, and no failed node")


def check_limits(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield how an action outlives its own limit."""
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "sleep 600", timeout_s=1.0)
        if ran.exit is None or not ran.exit.timed_out or ran.exit.code == 0:
            mend = "Exit(timed_out=True) with the code of what was ended"
            yield bench.flaw("limits", "run with timeout_s=1", _how(ran), mend)
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "exit 0", timeout_s=bench.limit_s)
        if ran.ended_ill or (ran.exit is not None and ran.exit.timed_out):
            yield bench.flaw(
                "limits", f"run with timeout_s={bench.limit_s:g}", _how(ran), "it ended long before its limit"
            )


def check_stop(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield how an action outlives a stop, or has no time for its last words."""
    with bench.session(bench.plan(folder)) as session:
        ran = _stopped(bench, session, _WORDS, bench.limit_s / 2)
        silent = [node for node in range(bench.nodes) if "last words" not in ran.text(node)]
        if silent:
            what = f"an action that ends at INT did not come to it on node {silent[0]}: {_how(ran)}"
            yield bench.flaw(
                "stop", f"stop({bench.limit_s / 2:g})", what, "INT to the action's process group, then the grace"
            )
        elif ran.exit is None or ran.exit.code != 7:
            yield bench.flaw(
                "stop",
                f"stop({bench.limit_s / 2:g})",
                f"the action ended with code 7: {_how(ran)}",
                "the action's own code",
            )
        later = bench.run(session, "echo it ran")
        if "it ran" in later.text() or not later.ended_ill:
            yield bench.flaw("stop", "run after a stop", "the command ran", "a stop ends the session: nothing starts")
    for grace_s, what in ((1.0, "ignores INT and TERM"), (0.0, "ignores INT and TERM, without any grace")):
        with bench.session(bench.plan(folder)) as session:
            try:
                ran = _stopped(bench, session, _DEAF, grace_s)
            except Late:
                mend = "after the second grace everything is killed"
                yield bench.flaw("stop", f"stop({grace_s:g})", f"an action that {what} goes on", mend)
                return
            if not ran.ended_ill:
                yield bench.flaw("stop", f"stop({grace_s:g})", f"what was killed went well: {_how(ran)}", "not code 0")


def _stopped(bench: Bench, session: Session, script: str, grace_s: float) -> Ran:
    out = Output(bench.nodes, b"ready", lambda: session.stop(grace_s))
    ran = bench.run(session, script, out, limit_s=2 * bench.limit_s)
    if out.acted is not None:
        out.acted.join(bench.limit_s / 3)
    return ran


def check_leaving(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what goes on after a session was left."""
    plan = bench.plan(_below(folder, "left"))
    with bench.session(plan) as session:
        bench.run(session, _BEATS)
    found = [*_gone(bench, plan, session.handle, "leaving", "leaving open", "leaving open ends every process of a run")]
    yield from found
    if found:  # the other would be no news
        return
    plan = bench.plan(_below(folder, "raised"))
    try:
        with bench.session(plan) as session:
            bench.run(session, _BEATS)
            raise _OfTheKit
    except _OfTheKit:
        pass
    mend = "end the session in a finally, and let the exception through"
    yield from _gone(bench, plan, session.handle, "leaving", "leaving open by an exception", mend)


def _below(folder: Path, name: str) -> Path:
    """Return a workspace of its own, so that what one run left is not taken for another's."""
    (folder / name).mkdir()
    return folder / name


class _OfTheKit(Exception):
    """Something that is raised while a session is open."""


def check_handles(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is wrong with sessions that are kept, and found again by their handles."""
    plan = bench.plan(folder, keep_alive=True)
    with bench.session(plan) as session:
        bench.run(session, _BEATS)
    handle = session.handle
    said = bench.runtime.outcome(handle)
    if said is not None and (not isinstance(said, JobOutcome) or said.ended):
        mend = "JobOutcome(ended=False) while a kept session goes on, None where nothing is known"
        yield bench.flaw("handles", "outcome of a kept session", f"it answered {said!r}", mend)
    if not _goes_on(bench, plan):
        yield bench.flaw("handles", "plan.keep_alive", "what ran was ended", "leave a session that is to be kept")
    other = bench.again()  # as another process has it
    again = bench.within("attach", lambda: other.attach(handle))
    if again.handle != handle:
        yield bench.flaw("handles", "attach", f"its session has handle {again.handle!r}", f"the same one, {handle!r}")
    bench.within("cancel", lambda: other.cancel(handle))
    yield from _gone(bench, plan, handle, "handles", "cancel", "end all that the session has")
    bench.within("cancel", lambda: bench.runtime.cancel(handle))  # raises where one that is gone is not fine
    if not refuses(bench.runtime.attach, _NOBODY):
        yield bench.flaw("handles", "attach", "it attached to a handle that it never gave", "raise RuntimeProblem")
    try:
        said = bench.runtime.outcome(_NOBODY)
    except RuntimeProblem:
        said = None
    if said is not None:
        yield bench.flaw("handles", "outcome", f"of a handle that it never gave it says {said!r}", "return None")


def _gone(bench: Bench, plan: RunPlan, handle: str, check: str, where: str, mend: str) -> Iterator[Flaw]:
    if _goes_on(bench, plan, until_quiet_s=bench.limit_s / 3):
        what = "a process of the run goes on, one that had left its process group and session (setsid)"
        yield bench.flaw(check, where, what, mend)
    said = bench.runtime.outcome(handle)
    if said is not None and not said.ended:
        yield bench.flaw(check, where, f"the engine says that the session goes on: {said!r}", mend)


def _goes_on(bench: Bench, plan: RunPlan, until_quiet_s: float = 0.0) -> bool:
    """Say whether what an action left running still counts; unseen where files are not shared.

    It is quiet once nothing came for as long as ten beats take, which is waited for at most `until_quiet_s`.
    """
    beats = plan.workspace / "beats"
    if not bench.runtime.traits.shares_files or not beats.exists():
        return not until_quiet_s and not bench.runtime.traits.shares_files
    deadline = time.monotonic() + until_quiet_s
    while True:
        before = beats.stat().st_size
        time.sleep(1.0)
        if beats.stat().st_size == before:
            return False
        if time.monotonic() > deadline:
            return True


def _how(ran: Ran) -> str:
    return repr(ran.exit) if ran.exit is not None else f"refused: {ran.problem}"
