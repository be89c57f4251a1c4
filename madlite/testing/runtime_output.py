"""What comes out of a runtime's sessions: output, variables, files, and what a probe sees."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from madlite.model import PROBE_BYTES, RunPlan, Secret, Session
from madlite.testing.bench import GRACE_S, SECRET, Bench, Late, Output
from madlite.testing.flaws import Flaw

MANY_BYTES = 3_000_000
_BYTES = r"printf 'first\0\377\r'; printf 'and no end' >&2; head -c 3000000 /dev/zero | tr '\0' x; printf 'last'"
_WAITS = "echo ready; n=0; while [ $((n += 1)) -lt 6000 ]; do sleep 0.1; done"  # ten minutes at most
_OURS = "MADLITE_KIT_OWN_VARIABLE"


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
                    yield bench.flaw("output", f"node {node}", what, "each chunk as it came, with stream and node")
        if odd := sorted({node for node, _ in ran.output} - set(range(bench.nodes))):
            yield bench.flaw("output", "run", f"output came of node {odd[0]}", "nodes count from 0, as session.nodes")
        if ran.strangers:
            mend = "pass it on from the thread that called run"
            yield bench.flaw("output", "run", "output was passed on by another thread", mend)
        said = bench.run(session, "cat; echo it ended")
        if "it ended" not in said.text():
            yield bench.flaw("output", "run", "a command that reads its input printed nothing", "it has no input")
    if bench.runtime.traits.streams:
        yield from _streams(bench, folder)


def _streams(bench: Bench, folder: Path) -> Iterator[Flaw]:
    with bench.session(bench.plan(folder)) as session:
        out = Output(bench.nodes, b"ready", lambda: session.stop(GRACE_S))
        try:
            bench.run(session, _WAITS, out, limit_s=bench.limit_s / 2)
        except Late:
            mend = "pass output on at once, or say streams=False" if out.acted is None else "stop ends the action"
            what = "a line did not come while the action ran" if out.acted is None else "a stop did not end the action"
            yield bench.flaw("output", "run", f"{what}, within {bench.limit_s / 2:g} s", mend)
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
            what = f"HF_TOKEN|KIT|OTHER are {ran.text(node)!r}"
            mend = "plan.env, over it the action's; madlite.reveal(plan.env) has the values of secrets"
            yield bench.flaw("environment", f"node {node}", what, mend)
        rank, count, address = [*ran.text(node, 2).split("|"), "", "", ""][:3]
        if bench.nodes > 1 and (rank != str(node) or count != str(bench.nodes) or not address):
            what = f"NODE_RANK|NNODES|MASTER_ADDR are {ran.text(node, 2)!r}"
            yield bench.flaw(
                "environment", f"node {node}", what, "give each node its number, and all the first's address"
            )
    if leaked == own and bench.runtime.traits.containerised:
        what = "an action sees the variables of madlite's own environment"
        yield bench.flaw("environment", "run", what, "containerised actions have what they are given alone")


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
        inside = bench.run(session, "pwd; echo own > own.txt; cat record.json", cwd="{folder}").text()
        seen = (workspace / "sub" / "made.txt").is_file()
        bench.within("collect", lambda: session.collect(["sub/*.txt", "no/such*", "../outside/*"], results))
    yield from _given(bench, plan, found.text(), found.text(stream=2), inside)
    yield from _brought(bench, results, seen)


def _given(bench: Bench, plan: RunPlan, text: str, cwd: str, inside: str) -> Iterator[Flaw]:
    if text != "given":
        what = "a file of the workspace is not there for an action whose cwd is its folder"
        yield bench.flaw("files", "run", what, "action.cwd is relative to the workspace, which is plan.inside there")
    elif cwd.strip() != f"{plan.inside}/sub":
        yield bench.flaw("files", "run", f"the action runs in {cwd.strip()}, not in {plan.inside}/sub", "plan.inside")
    if plan.folder_inside not in inside:
        mend = "'{folder}' in action.cwd is plan.folder_inside, a folder that can be written to"
        yield bench.flaw("files", "run", f"{plan.folder_inside} is not the folder of an action that asks for it", mend)
    if bench.runtime.traits.containerised and "trusted" in inside:
        mend = "mount what madlite.container_mounts(plan) lists"
        yield bench.flaw("files", "run", "a container reaches what madlite keeps in the run's folder", mend)


def _brought(bench: Bench, results: Path, seen: bool) -> Iterator[Flaw]:
    names = sorted(path.name for path in results.glob("*")) if results.is_dir() else []
    texts = [path.read_text(errors="replace") for path in results.glob("*")] if results.is_dir() else []
    if "made.txt" not in names or "other.log" in names:
        what = f"of made.txt, given.txt and other.log came {', '.join(names) or 'nothing'} for the pattern sub/*.txt"
        yield bench.flaw("files", "collect", what, "files that match, into the folder, by their own names")
    if SECRET in texts:
        what = "it brought a file from outside of the workspace"
        yield bench.flaw("files", "collect", what, "follow no link and no '..' out of the workspace")
    if bench.runtime.traits.shares_files and not seen:
        what = "a file of an action is not seen in the workspace while the session is open"
        yield bench.flaw("files", "run", what, "say shares_files=False where the files are elsewhere")


def check_probe(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what a probe does not see, does to the action or does not end, where the traits say that it works."""
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
        ran = bench.run(session, f"echo pid $$; {_WAITS}", out, limit_s=8 * bench.limit_s)
    yield from found
    if errors:
        raise errors[0]
    if any("seen" in ran.text(node) for node in range(bench.nodes)):
        yield bench.flaw("probe", "probe", "what it printed came as output of the action", "it is for the caller alone")


def _probed(bench: Bench, session: Session, node: int, said: bytes) -> Iterator[Flaw]:
    where = f"probe of node {node}"
    pid = said.decode().split()[1]
    one = bench.probe(session, f"echo seen; echo also >&2; cat /proc/{pid}/cmdline; exit 3", node)
    if one.code != 3 or b"seen" not in one.stdout or b"also" not in one.stderr:
        yield bench.flaw("probe", where, f"it answered {one!r}", "the command's exit code and both of its outputs")
    if b"ready" not in one.stdout:
        what = "it does not see the action's processes by the numbers that they have of themselves"
        yield bench.flaw("probe", where, what, "run it where the action runs, or say sees_processes=False")
    late = bench.probe(session, "echo begun; sleep 600", node, limit_s=1.0)
    if late.code is not None or b"begun" not in late.stdout:
        yield bench.flaw(
            "probe", where, f"past its limit it answered {late!r}", "code None, and the output up to there"
        )
    much = bench.probe(session, f"head -c {3 * PROBE_BYTES} /dev/zero", node)
    if len(much.stdout) > PROBE_BYTES:
        what = f"{len(much.stdout)} bytes of output were kept"
        yield bench.flaw("probe", where, what, "at most madlite.PROBE_BYTES of each stream")


def check_two_at_once(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what two sessions at once mix up."""
    plans = [bench.plan(folder, env={"KIT": f"run {number}"}) for number in (1, 2)]
    with bench.session(plans[0]) as one, bench.session(plans[1]) as two:
        ran = _both(bench, [one, two])
        for number, texts in enumerate(ran, 1):
            if texts != [f"run {number}"] * bench.nodes:
                what = f"the action of session {number} printed {texts}"
                yield bench.flaw("two_at_once", "run", what, "keep nothing of a session at the runtime or its class")
        if one.handle == two.handle:
            yield bench.flaw("two_at_once", "handle", "two sessions have the same handle", "one that names its session")
        bench.within("stop", lambda: one.stop(GRACE_S))
        if bench.run(two, "exit 0").ended_ill:
            yield bench.flaw(
                "two_at_once", "stop", "the stop of one session ended the other", "stop this session alone"
            )


def _both(bench: Bench, sessions: Sequence[Session]) -> list[list[str]]:
    """Run an action in each at the same time, and return what each node of each printed."""

    def work(session: Session) -> list[str]:
        ran = bench.run(session, 'sleep 0.3; printf %s "$KIT"')
        return [ran.text(node) for node in range(bench.nodes)]

    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(work, sessions))
