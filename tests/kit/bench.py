"""What a runtime is tested with: plans of small shell scripts, sessions of them, and what came out."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from madlite.cancellation import in_thread
from madlite.errors import RuntimeProblem
from madlite.model import Action, Card, Chunk, Exit, Image, Machine, Place, RunPlan, Runtime, Session
from madlite.plan.inputs import RUNS, WORKSPACE_INSIDE
from madlite.store.folder import WORK

LIMIT_S = 60.0  # for each call of a runtime, where no other limit is set; a busy machine is late by seconds
GRACE_S = 3.0
SECRET = "hf_the_secret_of_the_kit"  # noqa: S105 - none of anybody's
_T = TypeVar("_T")


class Late(Exception):
    """A call of the runtime that has not returned in time; what was said is its name."""


class Ran:
    """An action of the kit: what each node printed, and its exit, or why it did not start.

    `act` is called once, in a thread of its own, when every node has printed `text`.
    """

    def __init__(self, nodes: int, text: bytes = b"", act: Callable[[], object] | None = None) -> None:
        self.exit: Exit | None = None
        self.problem = ""
        self.output: dict[tuple[int, int], bytearray] = {}  # of (node, stream)
        self.other_thread_chunks = 0  # chunks that came in another thread than the one that ran the action
        self.acted: threading.Thread | None = None
        self._nodes, self._text, self._act = nodes, text, act
        self._home = 0

    def __call__(self, chunk: Chunk) -> None:
        """Add output."""
        self.other_thread_chunks += threading.get_ident() != self._home
        self.output.setdefault((chunk.node, chunk.stream), bytearray()).extend(chunk.data)
        if self._act is not None and all(self._text in self.output.get((n, 1), b"") for n in range(self._nodes)):
            self.acted = threading.Thread(target=self._act, daemon=True)
            self._act = None
            self.acted.start()

    def begin(self, session: Session, action: Action) -> Exit:
        """Run the action, in the thread that calls this."""
        self._home = threading.get_ident()
        return session.run(action, self)

    def text(self, node: int = 0, stream: int = 1) -> str:
        """Return what one node printed."""
        return self.output.get((node, stream), b"").decode("utf-8", "replace")

    @property
    def failed(self) -> bool:
        """Whether it failed or never started."""
        return self.exit is None or self.exit.code != 0

    def __str__(self) -> str:
        return repr(self.exit) if self.exit is not None else f"refused: {self.problem}"


@dataclass
class Bench:
    """A runtime under test; the fields are the arguments of `check_runtime`.

    Args:
        runtime: an instance.
        image: what the plans' image is, one with a POSIX shell and coreutils; empty for none.
        nodes: how many nodes the plans ask for.
        workspace: a folder that the runs' machines see, where a temporary one is not seen.
        limit_s: what anything may take.
        again: returns the runtime as another process has it, which knows of sessions by their handles alone.
    """

    runtime: Runtime
    image: str = ""
    nodes: int = 1
    workspace: str | Path | None = None
    limit_s: float = LIMIT_S
    again: Callable[[], Runtime] | None = None

    @property
    def name(self) -> str:
        """The runtime's name, or what there is in its place."""
        return str(getattr(self.runtime, "name", type(self.runtime).__name__))

    def plan(self, folder: Path, **more: object) -> RunPlan:
        """Return a plan with a run folder of its own in the workspace `folder`."""
        traits = self.runtime.traits
        run_id = f"kit-{secrets.token_hex(6)}"
        home = folder / RUNS / run_id
        (home / WORK if traits.containerised else home).mkdir(parents=True)
        plan = RunPlan(
            id=run_id,
            card=Card(name="kit", root=folder, source="the kit"),
            backend="script",
            place=Place(where="local" if traits.local else self.name, nodes=self.nodes),
            machine=Machine(),
            workspace=folder,
            inside=WORKSPACE_INSIDE if traits.containerised else str(folder),
            folder=home,
            runtime=self.name,
            traits=traits,
            image=Image(ref=self.image) if self.image else None,
            name=f"container_{run_id}",
            stop_grace_s=GRACE_S,
        )
        return replace(plan, **more)

    @contextmanager
    def session(self, plan: RunPlan) -> Iterator[Session]:
        """Prepare the plan and hold a session of it open.

        Raises:
            Late: the runtime takes longer than anything needs.
        """
        self.within("prepare", lambda: self.runtime.prepare(plan, lambda text: None))
        opened = self.runtime.open(plan)
        if not isinstance(opened, AbstractContextManager):
            raise RuntimeProblem(f"open answered {opened!r}, which is no context manager")
        session = self.within("open", opened.__enter__)
        try:
            yield session
        finally:  # whatever it answers: what a check raises is not the runtime's to swallow
            how: Any = sys.exc_info()
            self.within("leaving open", lambda: opened.__exit__(*how))

    def run(
        self,
        session: Session,
        command: str | Sequence[str],
        out: Ran | None = None,
        *,
        limit_s: float | None = None,
        **more: object,
    ) -> Ran:
        """Run a shell script, or the words of a command, as the model's own step.

        Raises:
            Late: it has not ended in time, where it was to.
        """
        argv = ("sh", "-c", command) if isinstance(command, str) else tuple(command)
        action = replace(Action(kind="run", argv=argv), **more)
        ran = out or Ran(self.nodes)
        try:
            ran.exit = self.within("run", lambda: ran.begin(session, action), limit_s)
        except RuntimeProblem as why:
            ran.problem = why.message
        return ran

    def within(self, what: str, work: Callable[[], _T], limit_s: float | None = None) -> _T:
        """Return what `work` returns; raises Late, and leaves its thread, where that takes longer than `limit_s`."""
        limit_s = self.limit_s if limit_s is None else limit_s
        answer = in_thread(work, f"madlite-kit-{what}")
        if not wait([answer], limit_s).done:
            raise Late(f"{what} has not returned after {limit_s:g} s")
        return answer.result()
