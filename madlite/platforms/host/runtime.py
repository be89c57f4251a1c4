"""Runtimes whose actions are commands of this machine: as they are on the `host`, behind another one for plugins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from madlite.errors import RuntimeProblem
from madlite.machine.numa import cpu_numbers
from madlite.model import (
    Action,
    Cause,
    EnvValue,
    ImageUsed,
    JobOutcome,
    Json,
    Place,
    Problem,
    RunPlan,
    Say,
    Secret,
    Traits,
)
from madlite.platforms.host.session import HostSession
from madlite.platforms.process_table import describe_process, run_processes
from madlite.secrets import MASK, reveal
from madlite.store.folder import FOLDER_MARK, KEPT_MARK, RUN_MARK

CANCEL_GRACE_S = 5.0  # between TERM and KILL for processes nobody waits for


class CommandRuntime:
    """Runs each action as a process group of this machine, by the command that a subclass makes of it.

    A subclass has a `name`, its `traits` (always `local`, and with files that are shared), and what differs of
    `available`, `prepare`, `command` and `environment`.  Output, limits, stops, and that nothing goes on after a run,
    also of what left its process group, are done here.  Its sessions start from `environ`, this process's environment
    where a plugin gives none.
    """

    name = ""
    traits = Traits(containerised=False)

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def command(self, plan: RunPlan, argv: Sequence[str], cwd: str) -> Sequence[str]:
        """Return the command that runs `argv` in the folder `cwd`, both as the actions see them.

        It starts there itself, where the traits say `containerised=False`, else in the workspace.  It ends with the
        exit code of `argv`, and passes no signal on: each process of it gets its own.
        """
        return argv

    def environment(self, plan: RunPlan) -> Mapping[str, str]:
        """Return the environment that the plan's own variables are added to."""
        return self._environ

    def supports(self, place: Place) -> bool:
        """Return whether plans for this place can run here."""
        return place.where == "local"

    def available(self) -> Problem | None:
        """Return why this runtime cannot be used now, or None."""
        return None

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return what would be started: the variables that are added, secrets as `***`, and each command's folder."""
        starts = [self._start(plan, action) for action in plan.actions]
        actions: list[Json] = [{"argv": list(argv), "cwd": str(cwd)} for argv, cwd in starts]
        env = {name: MASK.decode() if isinstance(value, Secret) else value for name, value in _added(plan).items()}
        return {"env": env, "actions": actions}

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Return that no image is used."""
        return ImageUsed()

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[HostSession]:
        """Hold a session open; leaving it ends every process of the run, unless the plan keeps it alive."""
        env = {**self.environment(plan), **reveal(_added(plan))}
        start = partial(self._start, plan)
        cpus = () if self.traits.containerised else cpu_numbers(plan.engine_options.cpuset)
        session = HostSession(plan.id, plan.workspace, plan.folder, env, plan.stop_grace_s, self._environ, start, cpus)
        session.make_ready()
        try:
            yield session
        finally:
            if not plan.keep_alive:
                session.close()

    def attach(self, handle: str) -> HostSession:
        """Return the session of the run whose folder `handle` is, for ending what is left of it.

        Raises:
            RuntimeProblem: there is no such folder, and nothing of a run that had it.
        """
        folder = Path(handle)
        if not folder.is_dir() and not run_processes(folder.name, folder):
            raise RuntimeProblem(f"there is no run in {handle}", cause=Cause.PREPARE)
        return _left_of(folder, self._environ)

    def cancel(self, handle: str) -> None:
        """End what a run that nobody holds any more left running.

        Raises:
            RuntimeProblem: something of it cannot be ended.
        """
        folder = Path(handle)
        _left_of(folder, self._environ).stop(CANCEL_GRACE_S)
        if left := run_processes(folder.name, folder):
            raise RuntimeProblem(f"not ended: {', '.join(map(describe_process, left))}", cause=Cause.PREPARE)

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return that something of a run still runs; nothing of this machine keeps how a run ended."""
        folder = Path(handle)
        return JobOutcome(state="running", ended=False) if run_processes(folder.name, folder) else None

    def _start(self, plan: RunPlan, action: Action) -> tuple[Sequence[str], Path]:
        """Return the command of an action, and the folder it starts in."""
        if not self.traits.containerised:
            cwd = plan.workspace / action.cwd.replace("{folder}", str(plan.folder))
            return (*self._near_memory(plan), *self.command(plan, action.argv, str(cwd))), cwd
        inside = PurePosixPath(plan.inside) / action.cwd.replace("{folder}", plan.folder_inside)
        return self.command(plan, action.argv, str(inside)), plan.workspace

    def _near_memory(self, plan: RunPlan) -> tuple[str, ...]:
        """Return what keeps a command's memory to NUMA nodes, where numactl is installed.

        Without it memory comes from the node of the CPU that first writes to it, as long as that has some.
        """
        nodes = plan.engine_options.cpuset_mems
        numactl = shutil.which("numactl", path=self._environ.get("PATH")) if nodes else None
        return (numactl, f"--membind={nodes}", "--") if numactl else ()


class HostRuntime(CommandRuntime):
    """Runs plans without a container; `environ` is the environment they start from."""

    name = "host"


def _left_of(folder: Path, environ: Mapping[str, str]) -> HostSession:
    return HostSession(folder.name, Path(), folder, environ, grace_s=10.0)


def _added(plan: RunPlan) -> dict[str, EnvValue]:
    kept = {KEPT_MARK: "1"} if plan.keep_alive else {}
    return {**plan.env, RUN_MARK: plan.id, FOLDER_MARK: str(plan.folder), **kept}
