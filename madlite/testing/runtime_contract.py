"""What a runtime is and says, before anything runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.model import ImageUsed, Place, Problem, Secret, Session, Traits
from madlite.testing.bench import SECRET, Bench
from madlite.testing.flaws import Flaw
from madlite.testing.members import signatures

TAKES = {
    "supports": ("place",),
    "available": (),
    "request": ("plan",),
    "prepare": ("plan", "say"),
    "open": ("plan",),
    "attach": ("handle",),
    "cancel": ("handle",),
    "outcome": ("handle",),
}
SESSION_TAKES: dict[str, tuple[str, ...]] = {
    "run": ("action", "out"),
    "probe": ("argv", "node", "limit_s"),
    "stop": ("grace_s",),
    "collect": ("patterns", "into"),
}
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


def check_members(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield members that are missing or something else, and why nothing can be run."""
    runtime = bench.runtime
    if not isinstance(name := getattr(runtime, "name", None), str) or not _WORD.fullmatch(name):
        yield bench.flaw("members", "name", f"it is {name!r}", "a word in lower case: --runtime names it")
    if not isinstance(traits := getattr(runtime, "traits", None), Traits):
        yield bench.flaw("members", "traits", f"they are {traits!r}", "traits = Traits(...)")
    missing = [*signatures(runtime, TAKES, f"runtime {bench.name}")]
    yield from missing
    if missing or not isinstance(traits, Traits):
        return
    problem = runtime.available()
    if isinstance(problem, Problem):
        yield bench.flaw("members", "available()", f"it cannot be used here: {problem.what}", "start its engine")
        return
    if problem is not None:
        yield bench.flaw("members", "available()", f"it answered {problem!r}", "a madlite.Problem, or None")
    with bench.session(bench.plan(folder)) as session:
        yield from _of_session(bench, session)


def _of_session(bench: Bench, session: Session) -> Iterator[Flaw]:
    yield from signatures(session, SESSION_TAKES, f"session of runtime {bench.name}")
    where = "{} of its session"
    if not isinstance(session.handle, str) or not session.handle:
        mend = "a text that is enough for attach, also in another process"
        yield bench.flaw("members", where.format("handle"), f"it is {session.handle!r}", mend)
    if not isinstance(session.nodes, tuple) or len(session.nodes) != bench.nodes:
        what = f"they are {session.nodes!r}, where the plan asks for {bench.nodes}"
        yield bench.flaw("members", where.format("nodes"), what, "a tuple with a name for each, which may be empty")
    if not isinstance(session.shell, str):
        yield bench.flaw("members", where.format("shell"), f"it is {session.shell!r}", "a command, or ''")


def check_places(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is wrong with the places it takes plans for, and how it prepares one."""
    plan, other = bench.plan(folder), Place(where="a place of the kit that is nowhere")
    if bench.runtime.supports(plan.place) is not True:
        mend = "True for the place of plans that run here: 'local', or the runtime's name where traits.local is False"
        yield bench.flaw("places", f"supports({plan.place!r})", "it does not take the kit's own plans", mend)
    if bench.runtime.supports(other) is not False:
        yield bench.flaw("places", f"supports({other!r})", "it takes plans for anywhere", "look at place.where")
    told: list[object] = []
    used = bench.within("prepare", lambda: bench.runtime.prepare(plan, told.append))
    if not isinstance(used, ImageUsed):
        yield bench.flaw("places", "prepare", f"it answered {used!r}", "a madlite.ImageUsed, empty without an image")
    if odd := [text for text in told if not isinstance(text, str)]:
        yield bench.flaw("places", "prepare", f"it said {odd[0]!r}", "say takes a text")


def check_request(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is wrong with what it tells of what it would ask for."""
    plan = bench.plan(folder, env={"HF_TOKEN": Secret(SECRET), "PLAIN": "a plain value"})
    before = sorted(folder.rglob("*"))
    request = bench.runtime.request(plan)
    try:
        text = json.dumps(request)
    except (TypeError, ValueError) as error:
        mend = "a mapping of texts, numbers, lists and mappings"
        yield bench.flaw("request", "request(plan)", f"it is no JSON: {error}", mend)
        text = repr(request)
    if SECRET in text:
        yield bench.flaw("request", "request(plan)", "it tells a secret of plan.env", "'***' in place of a Secret")
    if sorted(folder.rglob("*")) != before:
        yield bench.flaw(
            "request", "request(plan)", "it changed the workspace", "it is for people, and touches nothing"
        )


def refuses(call: object, *given: object) -> bool:
    """Say whether a call raises RuntimeProblem."""
    try:
        call(*given)  # type: ignore[operator]
    except RuntimeProblem:
        return True
    return False
