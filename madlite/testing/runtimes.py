"""The conformance kit's part for runtimes (docs/runtimes.md): what holds of each is seen by running small scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeAlias

from madlite.errors import RuntimeProblem
from madlite.model import RunPlan, Runtime
from madlite.testing import runtime_contract, runtime_ends, runtime_output
from madlite.testing.bench import LIMIT_S, Bench, Late
from madlite.testing.flaws import Flaw
from madlite.testing.subject import raised

_Check: TypeAlias = Callable[[Bench, Path], Iterable[Flaw]]

RUNTIME_CHECKS: dict[str, _Check] = {
    "members": runtime_contract.check_members,
    "places": runtime_contract.check_places,
    "request": runtime_contract.check_request,
    "output": runtime_output.check_output,
    "exits": runtime_ends.check_exits,
    "environment": runtime_output.check_environment,
    "files": runtime_output.check_files,
    "limits": runtime_ends.check_limits,
    "stop": runtime_ends.check_stop,
    "leaving": runtime_ends.check_leaving,
    "handles": runtime_ends.check_handles,
    "probe": runtime_output.check_probe,
    "two_at_once": runtime_output.check_two_at_once,
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
        if name == "members" and flaws:  # nothing else can be asked of it
            break
    return found


def _found(name: str, bench: Bench, workspace: str | Path | None) -> Iterator[Flaw]:
    with tempfile.TemporaryDirectory(prefix="madlite_kit_", dir=workspace, ignore_cleanup_errors=True) as folder:
        try:
            yield from RUNTIME_CHECKS[name](bench, Path(folder).resolve())
        except Late as late:
            yield Flaw(check=name, where=f"runtime {bench.name}", what=str(late), mend="every call returns in time")
        except RuntimeProblem as problem:
            mend = "a plan of the kit can be run; mend this first, the rest of this check was not done"
            yield Flaw(check=name, where=f"runtime {bench.name}", what=f"it refused: {problem.message}", mend=mend)
        except Exception as error:  # noqa: BLE001 - the border to the runtime under test
            mend = "RuntimeProblem is what a runtime raises; the rest of this check was not done"
            yield Flaw(check=name, where=f"runtime {bench.name}", what=f"it raised {raised(error)}", mend=mend)


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

    def test_members(self) -> None:
        """Every member is there with its arguments, and it can be used."""
        self._holds("members")

    def test_places(self) -> None:
        """It takes plans for its place and no others, and prepares one."""
        self._holds("places")

    def test_request(self) -> None:
        """What would be asked is told, without secrets, and nothing is touched."""
        self._holds("request")

    def test_output(self) -> None:
        """Every byte comes, from its node and stream, in the thread that runs the action, and while it runs."""
        self._holds("output")

    def test_exits(self) -> None:
        """Exit codes are those of the command, of each node, and the node that failed first is known."""
        self._holds("exits")

    def test_environment(self) -> None:
        """Actions have the plan's variables and their own, and each node its number."""
        self._holds("environment")

    def test_files(self) -> None:
        """The workspace is there, results come back, and nothing is reached through links."""
        self._holds("files")

    def test_limits(self) -> None:
        """An action's own time limit ends it."""
        self._holds("limits")

    def test_stop(self) -> None:
        """A stop comes as INT, TERM and KILL, and nothing starts after it."""
        self._holds("stop")

    def test_leaving(self) -> None:
        """Nothing goes on once the session was left."""
        self._holds("leaving")

    def test_handles(self) -> None:
        """A kept session is found, told of and ended by its handle; a foreign one is refused."""
        self._holds("handles")

    def test_probe(self) -> None:
        """A probe sees the action's processes, and ends in time."""
        self._holds("probe")

    def test_two_at_once(self) -> None:
        """Two sessions at once know nothing of each other."""
        self._holds("two_at_once")

    def _holds(self, check: str) -> None:
        flaws = check_runtime(
            self.runtime,
            image=self.image,
            nodes=self.nodes,
            workspace=self.workspace,
            change=self.change,
            limit_s=self.limit_s,
            again=self.again,
            only=[check],
        )
        if flaws:
            raise AssertionError("\n".join(map(str, flaws)))
