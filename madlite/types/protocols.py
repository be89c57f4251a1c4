"""What backends, readers, runtimes and sessions are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from madlite.types.cards import Card, Problem, Request
from madlite.types.drafts import Action, Draft
from madlite.types.machines import Machine
from madlite.types.plans import Place, RunPlan, Traits
from madlite.types.results import Asset, Event, Exit, Finding, ImageUsed, Line
from madlite.types.values import Json

Say: TypeAlias = Callable[[str], None]


class Reader(Protocol):
    """Reads one run's log, line by line; a fresh one for each run."""

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; never raises for what a log may hold."""

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of files the framework left in `outputs`."""


class Backend(Protocol):
    """Knows one training framework."""

    name: str

    def claim(self, card: Card, checkout: Path) -> int:
        """Say how surely this backend owns the card: 0 not at all; the highest wins.

        Those that claim it equally share it, each with other modes of it; two that have the same mode are an error.
        """

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return one draft per run the card stands for.

        Raises:
            UsageProblem: the combination asked for is not known.
        """

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Return what is wrong with the plan, before anything starts."""

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what the plan needs from elsewhere."""

    def recognise(self, head: Sequence[str]) -> float:
        """Say how surely (0 to 1) the first lines of a log are this framework's."""

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader; None stands for a log madlite did not start."""


class Session(Protocol):
    """A place held open in which actions run one by one."""

    handle: str  # enough for Runtime.attach, also from another process
    notes: tuple[str, ...]  # what could not be ended, in words; whole once the session is closed

    def run(self, action: Action, out: Callable[[bytes, int], None]) -> Exit:
        """Run the action to its end; `out` gets its output as it comes, with 1 for stdout and 2 for stderr."""

    def stop(self, grace_s: float) -> None:
        """End the running action: INT, `grace_s`, TERM, `grace_s`, KILL. Safe from another thread."""

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""


class Runtime(Protocol):
    """Executes plans somewhere; `traits` say what is to be known of it, and its name says nothing."""

    name: str
    traits: Traits

    def supports(self, place: Place) -> bool:
        """Say whether plans for this place can run here."""

    def available(self) -> Problem | None:
        """Return why this runtime cannot be used now, or None."""

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return what would be asked of the engine, for people; touches nothing."""

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Build, pull or find the image, off the run's clock.

        Raises:
            RuntimeProblem: the engine, the image or the disk does not allow it.
        """

    def open(self, plan: RunPlan) -> AbstractContextManager[Session]:
        """Hold a session open; leaving it ends every process in it, unless the plan keeps it alive."""

    def attach(self, handle: str) -> Session:
        """Return the session that `handle` names, for clean and resume."""
