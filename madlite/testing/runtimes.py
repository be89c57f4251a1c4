"""The conformance kit's part for runtimes (docs/runtimes.md): what holds of each is seen by running small scripts."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeAlias

from madlite.errors import RuntimeProblem
from madlite.model import ImageUsed, Place, Problem, RunPlan, Runtime, Secret, Session, Traits
from madlite.testing import runtime_runs
from madlite.testing.bench import LIMIT_S, SECRET, Bench, Late
from madlite.testing.checks import with_tests
from madlite.testing.flaws import Flaw
from madlite.testing.members import signatures
from madlite.testing.subject import raised

_WORD = re.compile(r"[a-z][a-z0-9_-]*")


def check_members(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield members that are missing or something else, and why nothing can be run."""
    runtime = bench.runtime
    if not isinstance(name := getattr(runtime, "name", None), str) or not _WORD.fullmatch(name):
        yield bench.flaw("name", f"it is {name!r}", "a word in lower case: --runtime names it")
    if not isinstance(traits := getattr(runtime, "traits", None), Traits):
        yield bench.flaw("traits", f"they are {traits!r}", "traits = Traits(...)")
    missing = [*signatures(runtime, Runtime, f"runtime {bench.name}")]
    yield from missing
    if missing or not isinstance(traits, Traits):
        return
    problem = runtime.available()
    if isinstance(problem, Problem):
        yield bench.flaw("available()", f"it cannot be used here: {problem.what}", "start its engine")
        return
    if problem is not None:
        yield bench.flaw("available()", f"it answered {problem!r}", "a madlite.Problem, or None")
    with bench.session(bench.plan(folder)) as session:
        yield from _of_session(bench, session)


def _of_session(bench: Bench, session: Session) -> Iterator[Flaw]:
    yield from signatures(session, Session, f"session of runtime {bench.name}")
    where = "{} of its session"
    if not isinstance(session.handle, str) or not session.handle:
        hint = "a text that is enough for attach, also in another process"
        yield bench.flaw(where.format("handle"), f"it is {session.handle!r}", hint)
    if not isinstance(session.nodes, tuple) or len(session.nodes) != bench.nodes:
        what = f"they are {session.nodes!r}, where the plan asks for {bench.nodes}"
        yield bench.flaw(where.format("nodes"), what, "a tuple with a name for each, which may be empty")
    if not isinstance(session.shell, str):
        yield bench.flaw(where.format("shell"), f"it is {session.shell!r}", "a command, or ''")


def check_places(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is wrong with the places it takes plans for, and how it prepares one."""
    plan, other = bench.plan(folder), Place(where="a place of the kit that is nowhere")
    if bench.runtime.supports(plan.place) is not True:
        hint = "True for the place of plans that run here: 'local', or the runtime's name where traits.local is False"
        yield bench.flaw(f"supports({plan.place!r})", "it does not take the kit's own plans", hint)
    if bench.runtime.supports(other) is not False:
        yield bench.flaw(f"supports({other!r})", "it takes plans for anywhere", "check place.where")
    messages: list[object] = []
    used = bench.within("prepare", lambda: bench.runtime.prepare(plan, messages.append))
    if not isinstance(used, ImageUsed):
        yield bench.flaw("prepare", f"it answered {used!r}", "a madlite.ImageUsed, empty without an image")
    if odd := [text for text in messages if not isinstance(text, str)]:
        yield bench.flaw("prepare", f"it passed {odd[0]!r} to say", "say takes a text")


def check_request(bench: Bench, folder: Path) -> Iterator[Flaw]:
    """Yield what is wrong with the request that it shows."""
    plan = bench.plan(folder, env={"HF_TOKEN": Secret(SECRET), "PLAIN": "a plain value"})
    before = sorted(folder.rglob("*"))
    request = bench.runtime.request(plan)
    try:
        text = json.dumps(request)
    except (TypeError, ValueError) as error:
        yield bench.flaw("request(plan)", f"it is no JSON: {error}", "a mapping of texts, numbers, lists and mappings")
        text = repr(request)
    if SECRET in text:
        yield bench.flaw("request(plan)", "it shows a secret of plan.env", "'***' in place of a Secret")
    if sorted(folder.rglob("*")) != before:
        yield bench.flaw("request(plan)", "it changed the workspace", "it is for people, and touches nothing")


_Check: TypeAlias = Callable[[Bench, Path], Iterable[Flaw]]

RUNTIME_CHECKS: dict[str, _Check] = {
    "members": check_members,
    "places": check_places,
    "request": check_request,
    "output": runtime_runs.check_output,
    "exits": runtime_runs.check_exits,
    "environment": runtime_runs.check_environment,
    "files": runtime_runs.check_files,
    "limits": runtime_runs.check_limits,
    "stop": runtime_runs.check_stop,
    "leaving": runtime_runs.check_leaving,
    "handles": runtime_runs.check_handles,
    "probe": runtime_runs.check_probe,
    "two_at_once": runtime_runs.check_two_at_once,
}
"""Each gets the bench and an empty folder, in which its runs have their workspaces."""


def check_runtime(
    runtime: Runtime,
    *,
    image: str = "",
    nodes: int = 1,
    workspace: str | Path | None = None,
    change: Callable[[RunPlan], RunPlan] = lambda plan: plan,
    limit_s: float = LIMIT_S,
    again: Callable[[], Runtime] | None = None,
    only: Iterable[str] = (),
) -> list[Flaw]:
    """Return everything that is wrong with a runtime; nothing where it conforms.

    It runs small scripts, so that the engine has to be there.  `image` is one with a POSIX shell and coreutils, `nodes`
    how many the plans ask for, `workspace` a folder that the runs' machines see where a temporary one is not, `change`
    what the plugin's madlite_adjust_plan does, `limit_s` what anything may take; `again` returns the runtime as another
    process has it.  `only` are names of RUNTIME_CHECKS, all of them where it is empty.

    Raises:
        ValueError: `only` names something else, the runtime is a class, or there is no such workspace.
    """
    if isinstance(runtime, type):
        raise ValueError(f"{runtime!r} is a class, where an instance is wanted: {runtime.__name__}()")
    if workspace is not None and not Path(workspace).is_dir():
        raise ValueError(f"workspace {workspace} is no folder")
    names = [only] if isinstance(only, str) else list(only) or list(RUNTIME_CHECKS)
    if unknown := [name for name in names if name not in RUNTIME_CHECKS]:
        raise ValueError(f"there is no check {unknown[0]!r} of runtimes: there are {', '.join(RUNTIME_CHECKS)}")
    bench = Bench(runtime, image=image, nodes=nodes, change=change, limit_s=limit_s, again=again)
    found: list[Flaw] = []
    for name in dict.fromkeys(names):
        flaws = list(_found(name, bench, workspace))
        found += flaws
        if name == "members" and flaws:  # nothing else can be tested of it
            break
    return found


def _found(name: str, bench: Bench, workspace: str | Path | None) -> Iterator[Flaw]:
    with tempfile.TemporaryDirectory(prefix="madlite_kit_", dir=workspace, ignore_cleanup_errors=True) as folder:
        try:
            bench.check = name
            yield from RUNTIME_CHECKS[name](bench, Path(folder).resolve())
        except Late as late:
            yield Flaw(name, f"runtime {bench.name}", str(late), "every call returns in time")
        except RuntimeProblem as problem:
            hint = "a plan of the kit can be run; mend this first, the rest of this check was not done"
            yield Flaw(name, f"runtime {bench.name}", f"it refused: {problem.message}", hint)
        except Exception as error:  # noqa: BLE001 - the border to the runtime under test
            hint = "RuntimeProblem is what a runtime raises; the rest of this check was not done"
            yield Flaw(name, f"runtime {bench.name}", f"it raised {raised(error)}", hint)


@with_tests(RUNTIME_CHECKS)
class RuntimeConformance:
    """Set `runtime` and the rest in a class whose name begins with Test; the fields are those of `check_runtime`."""

    runtime: ClassVar[Runtime]
    image: ClassVar[str] = ""
    nodes: ClassVar[int] = 1
    workspace: ClassVar[str | Path | None] = None
    limit_s: ClassVar[float] = LIMIT_S

    def change(self, plan: RunPlan) -> RunPlan:
        """Return the plan as the plugin's madlite_adjust_plan makes it."""
        return plan

    def again(self) -> Runtime:
        """Return the runtime as another process has it: one that keeps nothing of its sessions is the same."""
        return self.runtime

    def flaws(self, check: str) -> list[Flaw]:
        """Return what a check finds."""
        return check_runtime(
            self.runtime,
            image=self.image,
            nodes=self.nodes,
            workspace=self.workspace,
            change=self.change,
            limit_s=self.limit_s,
            again=self.again,
            only=[check],
        )
