"""The contract of runtimes: what holds of each is seen by running small scripts in its sessions.

`madlite.testing.RuntimeConformance` is what an author of a runtime gets of it: what a run makes of such scripts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from madlite.backends.loader import raised
from madlite.errors import RuntimeProblem
from madlite.model import (
    PROBE_BYTES,
    Completed,
    ImageUsed,
    JobOutcome,
    Place,
    Problem,
    RunPlan,
    Runtime,
    Secret,
    Session,
    Traits,
)
from madlite.testing.flaws import Defect, Flaw
from madlite.testing.members import signatures
from tests.kit.bench import GRACE_S, SECRET, Bench, Late, Ran

_NOBODY = "the-kit-never-had-this-handle"
# a process in a session of its own that counts, for ten minutes at most
_COUNTS = 'trap "" INT TERM HUP; n=0; while [ $((n += 1)) -lt 6000 ]; do echo >> beats; sleep 0.1; done'
_BEATS = f"setsid sh -c '{_COUNTS}' > /dev/null 2>&1 < /dev/null & until [ -s beats ]; do sleep 0.1; done"
_TEN_BEATS = "n=0; while [ $((n += 1)) -le 10 ]; do sleep 0.1; done"
_WAITS = "n=0; while [ $((n += 1)) -lt 6000 ]; do sleep 0.1; done"
_READY = f"echo ready; {_WAITS}"  # ten minutes at most
_WORDS = f"trap 'echo last words; exit 7' INT; echo ready; {_WAITS}"
_DEAF = f"trap '' INT TERM HUP; echo ready; {_WAITS}"
_MANY_BYTES = 3_000_000
_BYTES = r"printf 'first\0\377\r'; printf 'and no end' >&2; head -c 3000000 /dev/zero | tr '\0' x; printf 'last'"
_OURS = "MADLITE_KIT_OWN_VARIABLE"
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


def check_members(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield members that are missing or something else, and why nothing can be run."""
    runtime = bench.runtime
    if not isinstance(name := getattr(runtime, "name", None), str) or not _WORD.fullmatch(name):
        yield "name", f"it is {name!r}", "a word in lower case: --runtime names it"
    if not isinstance(traits := getattr(runtime, "traits", None), Traits):
        yield "traits", f"they are {traits!r}", "traits = Traits(...)"
    missing = [*signatures(runtime, Runtime, "its members")]
    yield from missing
    if missing or not isinstance(traits, Traits):
        return
    if isinstance(problem := runtime.available(), Problem):
        yield "available()", f"it cannot be used here: {problem.what}", "start its engine"
        return
    if problem is not None:
        yield "available()", f"it answered {problem!r}", "a madlite.Problem, or None"
    with bench.session(bench.plan(folder)) as session:
        yield from _of_session(bench, session)


def _of_session(bench: Bench, session: Session) -> Iterator[Defect]:
    handle, nodes, where = session.handle, session.nodes, "of its session"
    yield from signatures(session, Session, "its session")
    if not isinstance(handle, str) or not handle:
        hint = "a text that is enough for cancel and outcome, also in another process"
        yield f"handle {where}", f"it is {handle!r}", hint
    if not isinstance(nodes, tuple) or len(nodes) != bench.nodes:
        what = f"they are {nodes!r}, where the plan asks for {bench.nodes}"
        yield f"nodes {where}", what, "a tuple with a name for each, which may be empty"
    if not isinstance(session.shell, str):
        yield f"shell {where}", f"it is {session.shell!r}", "a command, or ''"


def check_places(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what is wrong with the places it takes plans for, and how it prepares one."""
    plan, other = bench.plan(folder), Place(where="a place of the kit that is nowhere")
    if bench.runtime.supports(plan.place) is not True:
        hint = "True for the place of plans that run here: 'local', or the runtime's name where traits.local is False"
        yield f"supports({plan.place!r})", "it does not take the kit's own plans", hint
    if bench.runtime.supports(other) is not False:
        yield f"supports({other!r})", "it takes plans for anywhere", "check place.where"
    messages: list[object] = []
    used = bench.within("prepare", lambda: bench.runtime.prepare(plan, messages.append))
    if not isinstance(used, ImageUsed):
        yield "prepare", f"it answered {used!r}", "a madlite.ImageUsed, empty without an image"
    if odd := [text for text in messages if not isinstance(text, str)]:
        yield "prepare", f"it passed {odd[0]!r} to say", "say takes a text"


def check_request(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what is wrong with the request that it shows."""
    plan = bench.plan(folder, env={"HF_TOKEN": Secret(SECRET), "PLAIN": "a plain value"})
    before = sorted(folder.rglob("*"))
    request = bench.runtime.request(plan)
    try:
        text = json.dumps(request)
    except (TypeError, ValueError) as error:
        yield "request(plan)", f"it is no JSON: {error}", "a mapping of texts, numbers, lists and mappings"
        text = repr(request)
    if SECRET in text:
        yield "request(plan)", "it shows a secret of plan.env", "'***' in place of a Secret"
    if sorted(folder.rglob("*")) != before:
        yield "request(plan)", "it changed the workspace", "it is for people, and touches nothing"


def check_exits(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield which exit codes are not the command's."""
    with bench.session(bench.plan(folder)) as session:
        for script, wanted in (("exit 0", 0), ("exit 3", 3), ("false; true", 0)):
            ran = bench.run(session, script)
            if ran.exit is None or ran.exit.code != wanted or ran.exit.timed_out:
                yield f"run of {script!r}", str(ran), f"Exit(code={wanted}, ...)"
        if not bench.run(session, "kill -KILL $$").failed:
            yield "run of 'kill -KILL $$'", "it went well", "a signal is a code too: -9, or 137"
        for argv, cwd in ((("/no/such/command",), ""), (("true",), "no/such/folder")):
            ran = bench.run(session, argv, cwd=cwd)
            if not ran.failed:
                what = "it went well, where nothing can be started"
                yield f"run of {' '.join(argv)} in {cwd or '.'}", what, "raise RuntimeProblem"
        if bench.run(session, "exit 0").failed:
            yield "run", "nothing runs after an action that failed", "a session takes more actions"
        if bench.nodes > 1:
            yield from _first_to_fail(bench, session)


def _first_to_fail(bench: Bench, session: Session) -> Iterator[Defect]:
    last = bench.nodes - 1
    ran = bench.run(session, f'[ "$NODE_RANK" = {last} ] && exit 4; sleep 20; exit 5')
    ended = ran.exit
    if ended is None or len(ended.codes) != bench.nodes or ended.codes[last] != 4:
        yield "run on several nodes", str(ran), f"codes has {bench.nodes}, the last of them 4"
    elif ended.failed_node != last or ended.code != 4:
        what = f"node {last} failed first with code 4: {ran}"
        yield "run on several nodes", what, "failed_node is the first to fail, code its own"
    whole = bench.run(session, "exit 0").exit
    if whole is not None and (whole.failed_node is not None or whole.codes != (0,) * bench.nodes):
        yield "run on several nodes", f"all went well: {whole!r}", "codes of 0, and no failed node"


def check_limits(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield how an action outlives its own limit."""
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "sleep 600", timeout_s=1.0)
        if ran.exit is None or not ran.exit.timed_out or ran.exit.code == 0:
            yield "run with timeout_s=1", str(ran), "Exit(timed_out=True) with the code of what was ended"
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, "exit 0", timeout_s=bench.limit_s)
        if ran.failed or (ran.exit is not None and ran.exit.timed_out):
            yield f"run with timeout_s={bench.limit_s:g}", str(ran), "it ended long before its limit"


def check_stop(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield how an action outlives a stop, or has no time for its last words."""
    with bench.session(bench.plan(folder)) as session:
        ran = _stopped(bench, session, _WORDS, bench.limit_s / 2)
        silent = [node for node in range(bench.nodes) if "last words" not in ran.text(node)]
        if silent:
            what = f"an action that ends at INT did not come to it on node {silent[0]}: {ran}"
            yield f"stop({bench.limit_s / 2:g})", what, "INT to the action's process group, then the grace"
        elif ran.exit is None or ran.exit.code != 7:
            yield f"stop({bench.limit_s / 2:g})", f"the action ended with code 7: {ran}", "the action's own code"
        later = bench.run(session, "echo it ran")
        if "it ran" in later.text() or not later.failed:
            yield "run after a stop", "the command ran", "a stop ends the session: nothing starts"
    for grace_s, what in ((1.0, "ignores INT and TERM"), (0.0, "ignores INT and TERM, without any grace")):
        with bench.session(bench.plan(folder)) as session:
            try:
                ran = _stopped(bench, session, _DEAF, grace_s)
            except Late:
                hint = "after the second grace everything is killed"
                yield f"stop({grace_s:g})", f"an action that {what} is still running", hint
                return
            if not ran.failed:
                yield f"stop({grace_s:g})", f"what was killed went well: {ran}", "not code 0"


def _stopped(bench: Bench, session: Session, script: str, grace_s: float) -> Ran:
    out = Ran(bench.nodes, b"ready", lambda: session.stop(grace_s))
    ran = bench.run(session, script, out, limit_s=2 * bench.limit_s)
    if out.acted is not None:
        out.acted.join(bench.limit_s / 3)
    return ran


def check_leaving(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what goes on after a session was left, also by an exception."""
    for how, hint in (
        ("leaving open", "leaving open ends every process of a run"),
        ("leaving open by an exception", "end the session in a finally, and let the exception through"),
    ):
        (folder / how).mkdir()  # so that what one run left is not taken for another's
        plan = bench.plan(folder / how)
        with suppress(InterruptedError), bench.session(plan) as session:
            bench.run(session, _BEATS)
            if how.endswith("exception"):
                raise InterruptedError
        found = [*_gone(bench, plan, session.handle, how, hint)]
        yield from found
        if found:  # the other would be no news
            return


def check_handles(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what is wrong with sessions that are kept, and found again by their handles."""
    plan = bench.plan(folder, keep_alive=True)
    with bench.session(plan) as session:
        bench.run(session, _BEATS)
    handle = session.handle
    answer = bench.runtime.outcome(handle)
    if answer is not None and (not isinstance(answer, JobOutcome) or answer.ended):
        hint = "JobOutcome(ended=False) while a kept session is running, None where its state is unknown"
        yield "outcome of a kept session", f"it answered {answer!r}", hint
    if not _goes_on(bench, plan):
        yield "plan.keep_alive", "what ran was ended", "leave a session that is to be kept"
    other = bench.again() if bench.again else bench.runtime  # as another process has it
    bench.within("cancel", lambda: other.cancel(handle))
    yield from _gone(bench, plan, handle, "cancel", "end all that the session has")
    bench.within("cancel", lambda: bench.runtime.cancel(handle))  # raises where one that is gone is not fine
    answer = None
    with suppress(RuntimeProblem):
        answer = bench.runtime.outcome(_NOBODY)
    if answer is not None:
        yield "outcome", f"of a handle that it never returned it reports {answer!r}", "return None"


def _gone(bench: Bench, plan: RunPlan, handle: str, where: str, hint: str) -> Iterator[Defect]:
    if _goes_on(bench, plan, until_quiet_s=bench.limit_s / 3):
        what = "a process of the run is still running, one that had left its process group and session (setsid)"
        yield where, what, hint
    answer = bench.runtime.outcome(handle)
    if answer is not None and not answer.ended:
        yield where, f"the engine reports that the session is running: {answer!r}", hint


def _goes_on(bench: Bench, plan: RunPlan, until_quiet_s: float = 0.0) -> bool:
    """Return whether what an action left running still counts; unseen where files are not shared.

    It is quiet once nothing came for as long as ten beats of a process like it take, however busy the machine is, which
    is waited for at most `until_quiet_s`.
    """
    beats = plan.workspace / "beats"
    if not bench.runtime.traits.shares_files or not beats.exists():
        return not until_quiet_s and not bench.runtime.traits.shares_files
    deadline = time.monotonic() + until_quiet_s
    while True:
        before = beats.stat().st_size
        subprocess.run(["sh", "-c", _TEN_BEATS], check=True)
        if beats.stat().st_size == before:
            return False
        if time.monotonic() > deadline:
            return True


def check_output(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what is lost, mixed up or late of what an action prints."""
    whole = b"first\0\xff\r" + b"x" * _MANY_BYTES + b"last"
    with bench.session(bench.plan(folder)) as session:
        ran = bench.run(session, _BYTES)
        for node in range(bench.nodes):
            for stream, wanted in ((1, whole), (2, b"and no end")):
                got = ran.output.get((node, stream), b"")
                if got != wanted:
                    what = f"{len(got)} bytes came of stream {stream}, other than the {len(wanted)} that were printed"
                    yield f"node {node}", what, "each chunk as it came, with stream and node"
        if odd := sorted({node for node, _ in ran.output} - set(range(bench.nodes))):
            yield "run", f"output came of node {odd[0]}", "nodes count from 0, as session.nodes"
        if ran.other_thread_chunks:
            hint = "pass it on from the thread that called run"
            yield "run", "output was passed on by another thread", hint
        answer = bench.run(session, "cat; echo it ended")
        if "it ended" not in answer.text():
            yield "run", "a command that reads its input printed nothing", "it has no input"
    if bench.runtime.traits.streams:
        yield from _streams(bench, folder)


def _streams(bench: Bench, folder: Path) -> Iterator[Defect]:
    with bench.session(bench.plan(folder)) as session:
        out = Ran(bench.nodes, b"ready", lambda: session.stop(GRACE_S))
        try:
            bench.run(session, _READY, out, limit_s=bench.limit_s / 2)
        except Late:
            hint = "pass output on at once, or set streams=False" if out.acted is None else "stop ends the action"
            what = "a line did not come while the action ran" if out.acted is None else "a stop did not end the action"
            yield "run", f"{what}, within {bench.limit_s / 2:g} s", hint
            bench.within("stop", lambda: session.stop(0.0))


def check_environment(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield which variables an action lacks, or has that are not the plan's."""
    given = {"HF_TOKEN": Secret(SECRET), "KIT": "plan's", "OTHER": "a 'b' \"c\" $d\n\\e"}
    script = 'printf %s "$HF_TOKEN|$KIT|$OTHER"; printf %s "${NODE_RANK-}|${NNODES-}|${MASTER_ADDR-}" >&2'
    with patch.dict(os.environ, {_OURS: "of the kit"}), bench.session(bench.plan(folder, env=given)) as session:
        ran = bench.run(session, script, env={"KIT": "action's"})
        leaked = bench.run(session, f'printf %s "${{{_OURS}-}}"').text()
    for node in range(bench.nodes):
        if ran.text(node) != f"{SECRET}|action's|{given['OTHER']}":
            hint = "plan.env, over it the action's; madlite.reveal(plan.env) has the values of secrets"
            yield f"node {node}", f"HF_TOKEN|KIT|OTHER are {ran.text(node)!r}", hint
        rank, count, address = [*ran.text(node, 2).split("|"), "", "", ""][:3]
        if bench.nodes > 1 and (rank != str(node) or count != str(bench.nodes) or not address):
            what = f"NODE_RANK|NNODES|MASTER_ADDR are {ran.text(node, 2)!r}"
            yield f"node {node}", what, "give each node its number, and all the first's address"
    if leaked and bench.runtime.traits.containerised:
        what = "an action sees the variables of madlite's own environment"
        yield "run", what, "containerised actions have what they are given alone"


def check_files(bench: Bench, folder: Path) -> Iterator[Defect]:
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


def _given(bench: Bench, plan: RunPlan, text: str, cwd: str, inside: str) -> Iterator[Defect]:
    if text != "given":
        what = "a file of the workspace is not there for an action whose cwd is its folder"
        yield "run", what, "action.cwd is relative to the workspace, which is plan.inside there"
    elif cwd.strip() != f"{plan.inside}/sub":
        yield "run", f"the action runs in {cwd.strip()}, not in {plan.inside}/sub", "plan.inside"
    if plan.folder_inside not in inside:
        hint = "'{folder}' in action.cwd is plan.folder_inside, a folder that can be written to"
        yield "run", f"{plan.folder_inside} is not the folder of an action that asks for it", hint
    if bench.runtime.traits.containerised and "trusted" in inside:
        hint = "mount what madlite.container_mounts(plan) lists"
        yield "run", "a container reaches what madlite keeps in the run's folder", hint


def _brought(bench: Bench, results: Path, seen: bool) -> Iterator[Defect]:
    texts = {path.name: path.read_text(errors="replace") for path in sorted(results.glob("*"))}
    if "made.txt" not in texts or "other.log" in texts:
        what = f"of made.txt, given.txt and other.log came {', '.join(texts) or 'nothing'} for the pattern sub/*.txt"
        yield "collect", what, "files that match, into the folder, by their own names"
    if SECRET in texts.values():
        what = "it brought a file from outside of the workspace"
        yield "collect", what, "follow no link and no '..' out of the workspace"
    if bench.runtime.traits.shares_files and not seen:
        what = "a file of an action is not seen in the workspace while the session is open"
        yield "run", what, "set shares_files=False where the files are elsewhere"


def check_probe(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what a probe does not see, does to the action or does not end, where the traits state that it works."""
    if not bench.runtime.traits.sees_processes:
        return
    found: list[Defect] = []
    with bench.session(bench.plan(folder)) as session:

        def probe() -> None:
            try:
                for node in range(bench.nodes):
                    found.extend(_probed(bench, session, node, ran))
            except Exception as error:  # noqa: BLE001 - the border to the runtime under test
                hint = "RuntimeProblem is for a place where nothing can be started"
                found.append(("probe", f"it raised {raised(error)}", hint))
            finally:
                session.stop(GRACE_S)

        ran = Ran(bench.nodes, b"ready", probe)
        bench.run(session, f"echo pid $$; {_READY}", ran, limit_s=8 * bench.limit_s)
    yield from found
    if any("seen" in ran.text(node) for node in range(bench.nodes)):
        yield "probe", "what it printed came as output of the action", "it is for the caller alone"


def _probed(bench: Bench, session: Session, node: int, ran: Ran) -> Iterator[Defect]:
    def probe(script: str, limit_s: float = bench.limit_s / 2) -> Completed:
        work = partial(session.probe, ("sh", "-c", script), node, limit_s)
        return bench.within("probe", work, limit_s + bench.limit_s / 2)

    where = f"probe of node {node}"
    completed = probe(f"echo seen; echo also >&2; cat /proc/{ran.text(node).split()[1]}/cmdline; exit 3")
    if completed.code != 3 or b"seen" not in completed.stdout or b"also" not in completed.stderr:
        yield where, f"it answered {completed!r}", "the command's exit code and both of its outputs"
    if b"ready" not in completed.stdout:
        what = "it does not see the action's processes by the numbers that they have of themselves"
        yield where, what, "run it where the action runs, or set sees_processes=False"
    for limit_s in (1.0, 5.0, bench.limit_s):  # a busy machine may take longer than a second until it has begun
        late = probe("echo begun; sleep 600", limit_s)
        if late.stdout:
            break
    if late.code is not None or b"begun" not in late.stdout:
        yield where, f"past its limit it answered {late!r}", "code None, and the output up to there"
    much = probe(f"head -c {3 * PROBE_BYTES} /dev/zero")
    if len(much.stdout) > PROBE_BYTES:
        yield where, f"{len(much.stdout)} bytes of output were kept", "at most madlite.PROBE_BYTES of each stream"


def check_two_at_once(bench: Bench, folder: Path) -> Iterator[Defect]:
    """Yield what two sessions at once mix up."""
    plans = [bench.plan(folder, env={"KIT": f"run {number}"}) for number in (1, 2)]
    with bench.session(plans[0]) as first, bench.session(plans[1]) as second, ThreadPoolExecutor(2) as pool:
        ran = pool.map(lambda session: bench.run(session, 'sleep 0.3; printf %s "$KIT"'), (first, second))
        for number, texts in enumerate(([run.text(node) for node in range(bench.nodes)] for run in ran), 1):
            if texts != [f"run {number}"] * bench.nodes:
                what = f"the action of session {number} printed {texts}"
                yield "run", what, "keep nothing of a session at the runtime or its class"
        if first.handle == second.handle:
            yield "handle", "two sessions have the same handle", "one that names its session"
        bench.within("stop", lambda: first.stop(GRACE_S))
        if bench.run(second, "exit 0").failed:
            yield "stop", "the stop of one session ended the other", "stop this session alone"


RUNTIME_CHECKS: dict[str, Callable[[Bench, Path], Iterable[Defect]]] = {
    "members": check_members,
    "places": check_places,
    "request": check_request,
    "output": check_output,
    "exits": check_exits,
    "environment": check_environment,
    "files": check_files,
    "limits": check_limits,
    "stop": check_stop,
    "leaving": check_leaving,
    "handles": check_handles,
    "probe": check_probe,
    "two_at_once": check_two_at_once,
}
"""Each gets the bench and an empty folder, in which its runs have their workspaces."""


def check_runtime(runtime: Runtime, *, only: Iterable[str] = (), **given: Any) -> list[Flaw]:
    """Return everything that is wrong with a runtime; nothing where it conforms.

    It runs small scripts, so that the engine has to be there.  What else is given is told by `Bench`; `only` are names
    of RUNTIME_CHECKS, all of them where it is empty.

    Raises:
        ValueError: `only` names something else, the runtime is a class, or there is no such workspace.
    """
    if isinstance(runtime, type):
        raise ValueError(f"{runtime!r} is a class, where an instance is wanted: {runtime.__name__}()")
    bench = Bench(runtime, **given)
    if bench.workspace is not None and not Path(bench.workspace).is_dir():
        raise ValueError(f"workspace {bench.workspace} is no folder")
    names = [only] if isinstance(only, str) else list(only) or list(RUNTIME_CHECKS)
    if unknown := [name for name in names if name not in RUNTIME_CHECKS]:
        raise ValueError(f"there is no check {unknown[0]!r} of runtimes: there are {', '.join(RUNTIME_CHECKS)}")
    found: list[Flaw] = []
    for name in dict.fromkeys(names):
        for where, *rest in _defects(RUNTIME_CHECKS[name], bench):
            found.append(Flaw(name, f"runtime {bench.name}, {where}".rstrip(", "), *rest))
        if name == "members" and found:  # nothing else can be tested of it
            break
    return found


def _defects(check: Callable[[Bench, Path], Iterable[Defect]], bench: Bench) -> list[Defect]:
    """Return what a check finds in an empty folder of its own; one that cannot go on says so at last."""
    found: list[Defect] = []
    with tempfile.TemporaryDirectory(prefix="madlite_kit_", dir=bench.workspace, ignore_cleanup_errors=True) as folder:
        try:
            found.extend(check(bench, Path(folder).resolve()))
        except Exception as error:  # noqa: BLE001 - the border to the code under test
            hint = "a plan of the kit can be run, each call returns in time; the rest of this check was not done"
            found.append(("", _stopped_by(error), hint))
    return found


def _stopped_by(error: Exception) -> str:
    if isinstance(error, RuntimeProblem):
        return f"it refused: {error.message}"
    return str(error) if isinstance(error, Late) else f"it raised {raised(error)}"
