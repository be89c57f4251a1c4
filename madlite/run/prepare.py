"""Fetch what `resolve` found missing, one after another; a failure does not stop the rest.

Data that a run's own preparation makes is made by that run's script, which exits before the training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from madlite.assets.cache import Stopped, find_prepared, locked, save_prepared_record
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import ExitCode, MadliteError, RuntimeProblem
from madlite.model import Action, Asset, Cause, Exit, Mount, RunPlan, Say, Session, Sink, Value
from madlite.plan.context import Options
from madlite.platforms.docker.container import STAMP, ownership_command
from madlite.run.executor import secrets_for
from madlite.run.log import RunLog
from madlite.run.resolve import Requirement, Resolution, data_inside
from madlite.run.screen import PlannedRun
from madlite.run.stop import Signals, StopControl
from madlite.safe_read import read_end
from madlite.store.folder import HANDLE, LOG, RunFolder
from madlite.store.journal import RunEntry, now

_END_BYTES = 1 << 16  # of the log, in which its last line is
ONLY = "MADLITE_PREPARE_ONLY"  # templates/_base.sh.j2 exits where it is set


class PrepareScreen(Protocol):
    """Shows the progress of the preparation; never blocks it and never raises."""

    def requirement_started(self, requirement: Requirement, position: int, total: int) -> None:
        """Something is fetched now, the `position`th of `total`."""

    def requirement_advanced(self, done: int, total: int) -> None:
        """So many bytes of it came; called from several threads."""

    def requirement_message(self, text: str) -> None:
        """Whoever fetches it says something."""

    def requirement_output(self, chunk: bytes, stream: int) -> None:
        """A run that prepares data printed something, secrets masked."""

    def requirement_here(self, requirement: Requirement, place: str) -> None:
        """It is here."""

    def requirement_failed(self, requirement: Requirement, message: str, hint: str) -> None:
        """It could not be had."""


class Prepared(Value, frozen=True):
    """How it went: names of what failed, of what was not tried, and of what each run fetches; the exit code."""

    failed: tuple[str, ...]
    left: tuple[str, ...]
    exit_code: ExitCode
    by_runs: tuple[str, ...] = ()


def prepare_all(found: Resolution, options: Options, screen: PrepareScreen, mask: Callable[[str], str]) -> Prepared:
    """Fetch everything; after INT, TERM or HUP nothing more is fetched, and what came stays for the next attempt."""
    todo = [item for item in found.requirements if item.fetch is not None or item.makes is not None]
    failed: list[str] = []
    left: list[str] = []
    stop = StopControl()

    def fetch_all() -> None:
        for position, requirement in enumerate(todo, 1):
            if stop.reason is not None:
                left.append(requirement.what)
                continue
            screen.requirement_started(requirement, position, len(todo))
            try:
                screen.requirement_here(requirement, str(_have(requirement, found.data, options, screen, stop)))
            except (Interrupted, Stopped):
                left.append(requirement.what)
            except MadliteError as problem:
                failed.append(requirement.what)
                screen.requirement_failed(requirement, mask(problem.message), mask(problem.hint))

    with Signals() as signals, closing(stop), signals.passing_to(stop.request), stop.cancellation.scope():
        signals.watch_over(fetch_all)
        code = signals.exit_code or (ExitCode.RUN_FAILED if failed else ExitCode.OK)
    return Prepared(failed=tuple(failed), left=tuple(left), exit_code=code, by_runs=found.by_runs)


def _have(requirement: Requirement, data: Path, options: Options, screen: PrepareScreen, stop: StopControl) -> object:
    """Have it here and say where.

    Raises:
        MadliteError: it cannot be had.
        Interrupted: a stop came.
    """
    lock, done = threading.Lock(), 0

    def say(text: str) -> None:
        check()  # of a call that was left nothing is told any more
        screen.requirement_message(text)

    def tell(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            screen.requirement_advanced(done, requirement.missing)

    fetch, asked = requirement.fetch, stop.cancellation.asked
    try:
        if requirement.makes is not None:
            return make_asset(requirement.run, requirement.makes, data, options, screen, stop)
        return interruptible(lambda: fetch(say, tell, asked)) if fetch is not None else None
    except OSError as error:
        what = f"{requirement.what} cannot be written: {error.filename or requirement.place}: {error.strerror}"
        raise RuntimeProblem(what, "files that came are kept", cause=Cause.DISK) from error


def make_asset(
    run: PlannedRun, asset: Asset, data: Path, options: Options, screen: PrepareScreen, stop: StopControl
) -> Path:
    """Run a plan's preparation, and note what it left in the asset's folder once it ended well.

    Raises:
        RuntimeProblem: it cannot be started, failed or left nothing; what it left stays for the next try.
        OSError: its folder cannot be written.
        Interrupted, Stopped: a stop came.
    """
    folder = data / asset.path
    folder.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another command that makes {asset.path}"
    with locked(asset, data, stop.cancellation.asked, lambda: screen.requirement_message(waiting)):
        if find_prepared(asset, data) is None:
            _Making(run, _only_prepared(run.plan, asset, folder, data, options), options, screen, stop).run()
            save_prepared_record(asset, data, _files(folder, asset))
    return folder


def _only_prepared(plan: RunPlan, asset: Asset, folder: Path, data: Path, options: Options) -> RunPlan:
    """Return the plan whose script prepares into the folder and leaves; GPUs that are not here it does without."""
    inside = data_inside(plan, folder, data)
    mounts = () if not plan.traits.containerised else (Mount(source=str(folder), target=inside),)
    if plan.machine.pretended:
        place = replace(plan.place, gpus_per_node=0, gpu_ids=())
        plan = replace(plan, devices=(), place=place, machine=replace(plan.machine, vendor="CPU", gpus=()))
    return replace(
        plan,
        env={**plan.env, ONLY: "1", **({asset.env: inside} if asset.env else {})},
        mounts=(*plan.mounts, *mounts),
        actions=tuple(_plain(action) for action in plan.actions if action.kind in ("pre", "data", "run")),
        timeout_s=float(options.timeout_s) if options.timeout_s else None,
        blocked=None,
        keep_alive=False,
        give_back=options.user if options.user[0] != 0 else None,
    )


def _plain(action: Action) -> Action:
    """Return a run's action without the tools around it: there is nothing to profile."""
    return replace(action, argv=("bash", "run.sh")) if action.kind == "run" else action


def _files(folder: Path, asset: Asset) -> dict[str, int]:
    files = {str(file.relative_to(folder)): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()}
    if not files:
        what = f"the preparation of {asset.ref} ended well and left nothing in {folder}"
        raise RuntimeProblem(what, cause=Cause.PREPARE)
    return files


class _Making:
    """One running preparation."""

    def __init__(
        self, run: PlannedRun, plan: RunPlan, options: Options, screen: PrepareScreen, stop: StopControl
    ) -> None:
        self._run, self._plan, self._screen, self._stop = run, plan, screen, stop
        self._secrets = secrets_for(replace(run, plan=plan), options.environ)

    def run(self) -> None:
        """Run it to its end."""
        files = [(file.path, file.data) for file in self._run.files]
        folder = RunFolder.create(self._plan, files, self._secrets)
        try:
            sinks, limit_bytes = [self._screen.requirement_output], self._plan.log_limit_bytes
            log = RunLog(folder.path / LOG, self._secrets, sinks, folder=folder.files, limit_bytes=limit_bytes)
            try:
                ended = self._acted(folder, log)
            finally:
                log.close()
                folder.note(RunEntry(at=now(), cleaned=""))  # an interrupted preparation is not reported as unfinished
        finally:
            folder.close()
        if ended.code != 0:
            line = _last_line(folder.path / LOG)
            raise RuntimeProblem(
                f"the preparation ended with exit code {ended.code}" + (f": {line}" if line else ""),
                f"its log: {folder.path / LOG}",
                cause=Cause.PREPARE,
            )

    def _acted(self, folder: RunFolder, log: RunLog) -> Exit:
        def say(text: str) -> None:
            check()  # of a call that was left nothing is told any more
            log.say(text)
            self._screen.requirement_message(text)

        interruptible(lambda: self._run.runtime.prepare(self._plan, say))
        stop = StopControl(self._plan.timeout_s, self._plan.stop_grace_s, self._screen.requirement_message)
        with closing(stop), self._stop.passing_to(stop.request):
            return self._in_session(folder, log, stop, say)

    def _in_session(self, folder: RunFolder, log: RunLog, stop: StopControl, say: Say) -> Exit:
        ended = Exit(code=0, duration_s=0.0)
        session: Session | None = None
        try:
            stop.check()
            with self._run.runtime.open(self._plan) as session, stop.guard(session):
                folder.write(HANDLE, session.handle.encode())
                ended = _act(self._plan.actions, session.run, log.feed)
                log.flush()
                if self._plan.give_back and self._plan.traits.containerised:
                    _act(self._given_back(), session.run, log.feed)
        except RuntimeProblem:
            if stop.reason is None:
                raise
        finally:
            for note in session.notes if session is not None else ():  # what it could not end
                say(note)
        self._stop.check()
        if stop.reason is not None:
            raise RuntimeProblem(f"the preparation {stop.reason.text}", "--timeout SECONDS, or 0", cause=Cause.TIMEOUT)
        return ended

    def _given_back(self) -> tuple[Action, ...]:
        """Return what makes the caller own what the container's root wrote into the folder."""
        plan = self._plan
        command = ownership_command(plan.mounts[-1].target, f"{plan.folder_inside}/{STAMP}", plan.give_back or (0, 0))
        return (Action(kind="clean", argv=tuple(command)),)


def _act(actions: Iterable[Action], run: Callable[[Action, Sink], Exit], out: Sink) -> Exit:
    """Run actions in their order; one that fails is the last."""
    ended = Exit(code=0, duration_s=0.0)
    for action in actions:
        ended = run(action, out)
        if ended.code != 0:
            break
    return ended


def _last_line(log: Path) -> str:
    try:
        lines = read_end(log, _END_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
