"""What comes out of a runtime's sessions, and how they and their actions end: seen by running small scripts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.model import PROBE_BYTES, JobOutcome, RunPlan, Secret, Session
from madlite.testing.bench import GRACE_S, SECRET, Bench, Late, Output, Ran
from madlite.testing.flaws import Flaw

_NOBODY = "the-kit-never-had-this-handle"
# a process in a session of its own that counts, for ten minutes at most
_COUNTS = 'trap "" INT TERM HUP; n=0; while [ $((n += 1)) -lt 6000 ]; do echo >> beats; sleep 0.1; done'
_BEATS = f"setsid sh -c '{_COUNTS}' > /dev/null 2>&1 < /dev/null & until [ -s beats ]; do sleep 0.1; done"
_WAITS = "n=0; while [ $((n += 1)) -lt 6000 ]; do sleep 0.1; done"
_READY = f"echo ready; {_WAITS}"  # ten minutes at most
_WORDS = f"trap 'echo last words; exit 7' INT; echo ready; {_WAITS}"
_DEAF = f"trap '' INT TERM HUP; echo ready; {_WAITS}"
MANY_BYTES = 3_000_000
_BYTES = r"printf 'first\0\377\r'; printf 'and no end' >&2; head -c 3000000 /dev/zero | tr '\0' x; printf 'last'"
_OURS = "MADLITE_KIT_OWN_VARIABLE"


def check_exits(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield which exit codes are not the command's."""
    with bench.session(bench.plan(folder)) as session:
        for script, wanted in (("exit 0", 0), ("exit 3", 3), ("false; true", 0)):
            ran = bench.run(session, script)
            if ran.exit is None or ran.exit.code != wanted or ran.exit.timed_out:
                yield bench.flaw(f"run of {script!r}", _how(ran), f"Exit(code={wanted}, ...)")
        if not bench.run(session, "kill -KILL $$").failed:
            yield bench.flaw("run of 'kill -KILL $$'", "it went well", "a signal is a code too: -9, or 137")
        for argv, cwd in ((("/no/such/command",), ""), (("true",), "no/such/folder")):
            ran = bench.act(session, argv, cwd=cwd)
            if not ran.failed:
                what = "it went well, where nothing can be started"
                yield bench.flaw(f"run of {' '.join(argv)} in {cwd or '.'}", what, "raise RuntimeProblem")
        if bench.run(session, "exit 0").failed:
            yield bench.flaw("run", "nothing runs after an action that failed", "a session takes more actions")
        if bench.nodes > 1:
            yield from _first_to_fail(bench, session)


def _first_to_fail(bench: Bench, session: Session) -> Iterator[Flaw]:
    last = bench.nodes - 1
    ran = bench.run(session, f'[ "$NODE_RANK" = {last} ] && exit 4; sleep 5; exit 5')
    ended = ran.exit
    if ended is None or len(ended.codes) != bench.nodes or ended.codes[last] != 4:
        yield bench.flaw("run on several nodes", _how(ran), f"codes has {bench.nodes}, the last of them 4")
    elif ended.failed_node != last or ended.code != 4:
        what = f"node {last} failed first with code 4: {_how(ran)}"
        yield bench.flaw("run on several nodes", what, "failed_node is the first to fail, code its own")
    whole = bench.run(session, "exit 0").exit
    if whole is not None and (whole.failed_node is not None or whole.codes != (0,) * bench.nodes):
        yield bench.flaw("run on several nodes", f"all went well: {whole!r}", "codes of 0, and no failed node")


def check_limits(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield how an action outlives its own limit."""
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "sleep 600", timeout_s=1.0)
        if ran.exit is None or not ran.exit.timed_out or ran.exit.code == 0:
            yield bench.flaw("run with timeout_s=1", _how(ran), "Exit(timed_out=True) with the code of what was ended")
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "exit 0", timeout_s=bench.limit_s)
        if ran.failed or (ran.exit is not None and ran.exit.timed_out):
            yield bench.flaw(f"run with timeout_s={bench.limit_s:g}", _how(ran), "it ended long before its limit")


def check_stop(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield how an action outlives a stop, or has no time for its last words."""
    with bench.session(bench.plan(folder)) as session:
        ran = _stopped(bench, session, _WORDS, bench.limit_s / 2)
        silent = [node for node in range(bench.nodes) if "last words" not in ran.text(node)]
        if silent:
            what = f"an action that ends at INT did not come to it on node {silent[0]}: {_how(ran)}"
            yield bench.flaw(f"stop({bench.limit_s / 2:g})", what, "INT to the action's process group, then the grace")
        elif ran.exit is None or ran.exit.code != 7:
            yield bench.flaw(
                f"stop({bench.limit_s / 2:g})",
                f"the action ended with code 7: {_how(ran)}",
                "the action's own code",
            )
        later = bench.run(session, "echo it ran")
        if "it ran" in later.text() or not later.failed:
            yield bench.flaw("run after a stop", "the command ran", "a stop ends the session: nothing starts")
    for grace_s, what in ((1.0, "ignores INT and TERM"), (0.0, "ignores INT and TERM, without any grace")):
        with bench.session(bench.plan(folder)) as session:
            try:
                ran = _stopped(bench, session, _DEAF, grace_s)
            except Late:
                hint = "after the second grace everything is killed"
                yield bench.flaw(f"stop({grace_s:g})", f"an action that {what} is still running", hint)
                return
            if not ran.failed:
                yield bench.flaw(f"stop({grace_s:g})", f"what was killed went well: {_how(ran)}", "not code 0")


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
    found = [*_gone(bench, plan, session.handle, "leaving open", "leaving open ends every process of a run")]
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
    hint = "end the session in a finally, and let the exception through"
    yield from _gone(bench, plan, session.handle, "leaving open by an exception", hint)


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
    answer = bench.runtime.outcome(handle)
    if answer is not None and (not isinstance(answer, JobOutcome) or answer.ended):
        hint = "JobOutcome(ended=False) while a kept session is running, None where its state is unknown"
        yield bench.flaw("outcome of a kept session", f"it answered {answer!r}", hint)
    if not _goes_on(bench, plan):
        yield bench.flaw("plan.keep_alive", "what ran was ended", "leave a session that is to be kept")
    other = bench.again()  # as another process has it
    again = bench.within("attach", lambda: other.attach(handle))
    if again.handle != handle:
        yield bench.flaw("attach", f"its session has handle {again.handle!r}", f"the same one, {handle!r}")
    bench.within("cancel", lambda: other.cancel(handle))
    yield from _gone(bench, plan, handle, "cancel", "end all that the session has")
    bench.within("cancel", lambda: bench.runtime.cancel(handle))  # raises where one that is gone is not fine
    if not _refuses(bench.runtime.attach, _NOBODY):
        yield bench.flaw("attach", "it attached to a handle that it never gave", "raise RuntimeProblem")
    try:
        answer = bench.runtime.outcome(_NOBODY)
    except RuntimeProblem:
        answer = None
    if answer is not None:
        yield bench.flaw("outcome", f"of a handle that it never returned it reports {answer!r}", "return None")


def _refuses(call: object, *given: object) -> bool:
    """Return whether a call raises RuntimeProblem."""
    try:
        call(*given)  # type: ignore[operator]
    except RuntimeProblem:
        return True
    return False


def _gone(bench: Bench, plan: RunPlan, handle: str, where: str, hint: str) -> Iterator[Flaw]:
    if _goes_on(bench, plan, until_quiet_s=bench.limit_s / 3):
        what = "a process of the run is still running, one that had left its process group and session (setsid)"
        yield bench.flaw(where, what, hint)
    answer = bench.runtime.outcome(handle)
    if answer is not None and not answer.ended:
        yield bench.flaw(where, f"the engine reports that the session is running: {answer!r}", hint)


def _goes_on(bench: Bench, plan: RunPlan, until_quiet_s: float = 0.0) -> bool:
    """Return whether what an action left running still counts; unseen where files are not shared.

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


def check_output(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is lost, mixed up or late of what an action prints."""
    whole = b"first\0\xff\r" + b"x" * MANY_BYTES + b"last"
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, _BYTES)
        for node in range(bench.nodes):
            for stream, wanted in ((1, whole), (2, b"and no end")):
                got = ran.output.get((node, stream), b"")
                if got != wanted:
                    what = f"{len(got)} bytes came of stream {stream}, other than the {len(wanted)} that were printed"
                    yield bench.flaw(f"node {node}", what, "each chunk as it came, with stream and node")
        if odd := sorted({node for node, _ in ran.output} - set(range(bench.nodes))):
            yield bench.flaw("run", f"output came of node {odd[0]}", "nodes count from 0, as session.nodes")
        if ran.other_thread_chunks:
            hint = "pass it on from the thread that called run"
            yield bench.flaw("run", "output was passed on by another thread", hint)
        answer = bench.run(session, "cat; echo it ended")
        if "it ended" not in answer.text():
            yield bench.flaw("run", "a command that reads its input printed nothing", "it has no input")
    if bench.runtime.traits.streams:
        yield from _streams(bench, folder)


def _streams(bench: Bench, folder: Path) -> Iterator[Flaw]:
    with bench.session(bench.plan(folder)) as session:
        out = Output(bench.nodes, b"ready", lambda: session.stop(GRACE_S))
        try:
            bench.run(session, _READY, out, limit_s=bench.limit_s / 2)
        except Late:
            hint = "pass output on at once, or set streams=False" if out.acted is None else "stop ends the action"
            what = "a line did not come while the action ran" if out.acted is None else "a stop did not end the action"
            yield bench.flaw("run", f"{what}, within {bench.limit_s / 2:g} s", hint)
            bench.within("stop", lambda: session.stop(0.0))


def check_environment(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield which variables an action lacks, or has that are not the plan's."""
    given = {"HF_TOKEN": Secret(SECRET), "KIT": "plan's", "OTHER": "a 'b' \"c\" $d\n\\e"}
    script = 'printf %s "$HF_TOKEN|$KIT|$OTHER"; printf %s "${NODE_RANK-}|${NNODES-}|${MASTER_ADDR-}" >&2'
    with _our_own() as own, bench.session(bench.plan(folder, env=given)) as session:
        ran = bench.run(session, script, env={"KIT": "action's"})
        leaked = bench.run(session, f'printf %s "${{{_OURS}-}}"').text()
    for node in range(bench.nodes):
        if ran.text(node) != f"{SECRET}|action's|{given['OTHER']}":
            hint = "plan.env, over it the action's; madlite.reveal(plan.env) has the values of secrets"
            yield bench.flaw(f"node {node}", f"HF_TOKEN|KIT|OTHER are {ran.text(node)!r}", hint)
        rank, count, address = [*ran.text(node, 2).split("|"), "", "", ""][:3]
        if bench.nodes > 1 and (rank != str(node) or count != str(bench.nodes) or not address):
            what = f"NODE_RANK|NNODES|MASTER_ADDR are {ran.text(node, 2)!r}"
            yield bench.flaw(f"node {node}", what, "give each node its number, and all the first's address")
    if leaked == own and bench.runtime.traits.containerised:
        what = "an action sees the variables of madlite's own environment"
        yield bench.flaw("run", what, "containerised actions have what they are given alone")


@contextmanager
def _our_own() -> Iterator[str]:
    os.environ[_OURS] = "of the kit"
    try:
        yield os.environ[_OURS]
    finally:
        del os.environ[_OURS]


def check_files(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield which files are not there, do not come back, or are reached and should not."""
    outside = folder / "outside" / "secret.txt"
    outside.parent.mkdir()
    outside.write_text(SECRET)
    workspace = folder / "workspace"
    (workspace / "sub").mkdir(parents=True)
    (workspace / "sub" / "given.txt").write_text("given")
    plan, results = bench.plan(workspace), folder / "results"
    trusted = plan.folder / "record.json"
    trusted.write_text("trusted")
    made = f"printf made > made.txt; printf no > other.log; ln -s {outside} link.txt"
    with bench.session(plan) as session:
        found = bench.run(session, "cat given.txt; pwd >&2", cwd="sub")
        bench.run(session, made, cwd="sub")
        inside = bench.run(session, "pwd; echo own > own.txt; cat record.json || true", cwd="{folder}").text()
        seen = (workspace / "sub" / "made.txt").is_file()
        bench.within("collect", lambda: session.collect(["sub/*.txt", "no/such*", "../outside/*"], results))
    yield from _given(bench, plan, found.text(), found.text(stream=2), inside)
    yield from _brought(bench, results, seen)


def _given(bench: Bench, plan: RunPlan, text: str, cwd: str, inside: str) -> Iterator[Flaw]:
    if text != "given":
        what = "a file of the workspace is not there for an action whose cwd is its folder"
        yield bench.flaw("run", what, "action.cwd is relative to the workspace, which is plan.inside there")
    elif cwd.strip() != f"{plan.inside}/sub":
        yield bench.flaw("run", f"the action runs in {cwd.strip()}, not in {plan.inside}/sub", "plan.inside")
    if plan.folder_inside not in inside:
        hint = "'{folder}' in action.cwd is plan.folder_inside, a folder that can be written to"
        yield bench.flaw("run", f"{plan.folder_inside} is not the folder of an action that asks for it", hint)
    if bench.runtime.traits.containerised and "trusted" in inside:
        hint = "mount what madlite.container_mounts(plan) lists"
        yield bench.flaw("run", "a container reaches what madlite keeps in the run's folder", hint)


def _brought(bench: Bench, results: Path, seen: bool) -> Iterator[Flaw]:
    names = sorted(path.name for path in results.glob("*")) if results.is_dir() else []
    texts = [path.read_text(errors="replace") for path in results.glob("*")] if results.is_dir() else []
    if "made.txt" not in names or "other.log" in names:
        what = f"of made.txt, given.txt and other.log came {', '.join(names) or 'nothing'} for the pattern sub/*.txt"
        yield bench.flaw("collect", what, "files that match, into the folder, by their own names")
    if SECRET in texts:
        what = "it brought a file from outside of the workspace"
        yield bench.flaw("collect", what, "follow no link and no '..' out of the workspace")
    if bench.runtime.traits.shares_files and not seen:
        what = "a file of an action is not seen in the workspace while the session is open"
        yield bench.flaw("run", what, "set shares_files=False where the files are elsewhere")


def check_probe(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what a probe does not see, does to the action or does not end, where the traits state that it works."""
    if not bench.runtime.traits.sees_processes:
        return
    found: list[Flaw] = []
    errors: list[Exception] = []
    with bench.session(bench.plan(folder)) as session:

        def look() -> None:
            try:
                for node in range(bench.nodes):
                    found.extend(_probed(bench, session, node, bytes(out.parts[node, 1])))
            except Exception as error:  # noqa: BLE001 - raised below, in the thread that checks
                errors.append(error)
            finally:
                session.stop(GRACE_S)

        out = Output(bench.nodes, b"ready", look)
        ran = bench.run(session, f"echo pid $$; {_READY}", out, limit_s=8 * bench.limit_s)
    yield from found
    if errors:
        raise errors[0]
    if any("seen" in ran.text(node) for node in range(bench.nodes)):
        yield bench.flaw("probe", "what it printed came as output of the action", "it is for the caller alone")


def _probed(bench: Bench, session: Session, node: int, answer: bytes) -> Iterator[Flaw]:
    where = f"probe of node {node}"
    pid = answer.decode().split()[1]
    completed = bench.probe(session, f"echo seen; echo also >&2; cat /proc/{pid}/cmdline; exit 3", node)
    if completed.code != 3 or b"seen" not in completed.stdout or b"also" not in completed.stderr:
        yield bench.flaw(where, f"it answered {completed!r}", "the command's exit code and both of its outputs")
    if b"ready" not in completed.stdout:
        what = "it does not see the action's processes by the numbers that they have of themselves"
        yield bench.flaw(where, what, "run it where the action runs, or set sees_processes=False")
    late = bench.probe(session, "echo begun; sleep 600", node, limit_s=1.0)
    if late.code is not None or b"begun" not in late.stdout:
        yield bench.flaw(where, f"past its limit it answered {late!r}", "code None, and the output up to there")
    much = bench.probe(session, f"head -c {3 * PROBE_BYTES} /dev/zero", node)
    if len(much.stdout) > PROBE_BYTES:
        what = f"{len(much.stdout)} bytes of output were kept"
        yield bench.flaw(where, what, "at most madlite.PROBE_BYTES of each stream")


def check_two_at_once(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what two sessions at once mix up."""
    plans = [bench.plan(folder, env={"KIT": f"run {number}"}) for number in (1, 2)]
    with bench.session(plans[0]) as one, bench.session(plans[1]) as two:
        ran = _both(bench, [one, two])
        for number, texts in enumerate(ran, 1):
            if texts != [f"run {number}"] * bench.nodes:
                what = f"the action of session {number} printed {texts}"
                yield bench.flaw("run", what, "keep nothing of a session at the runtime or its class")
        if one.handle == two.handle:
            yield bench.flaw("handle", "two sessions have the same handle", "one that names its session")
        bench.within("stop", lambda: one.stop(GRACE_S))
        if bench.run(two, "exit 0").failed:
            yield bench.flaw("stop", "the stop of one session ended the other", "stop this session alone")


def _both(bench: Bench, sessions: Sequence[Session]) -> list[list[str]]:
    """Run an action in each at the same time, and return what each node of each printed."""

    def work(session: Session) -> list[str]:
        ran = bench.run(session, 'sleep 0.3; printf %s "$KIT"')
        return [ran.text(node) for node in range(bench.nodes)]

    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(work, sessions))
