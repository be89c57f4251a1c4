"""Have a run's own preparation fill a folder of prepared data: its script leaves before the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from madlite.assets.locks import Stopped, held
from madlite.assets.presence import find_kept
from madlite.assets.records import Record, kept_file, save_kept_record
from madlite.cancellation import Interrupted, check, interruptible
from madlite.errors import RuntimeProblem
from madlite.model import Action, Asset, Cause, Exit, Mount, RunPlan, Say, Session, Sink
from madlite.plan.context import Options
from madlite.run.log import RunLog
from madlite.run.one import secrets_for
from madlite.run.prepared import data_inside
from madlite.run.screen import Planned
from madlite.run.stop import StopControl
from madlite.runtimes.docker.container import STAMP, give_back_command
from madlite.safe_files import Folder
from madlite.safe_read import read_end
from madlite.workspace.folder import CLEANED, HANDLE, LOG, RunFolder

_END_BYTES = 1 << 16  # of the log, in which its last line is
ONLY = "MADLITE_PREPARE_ONLY"  # templates/_base.sh.j2 leaves where it is set


class Listener(Protocol):
    """Hears of a preparation."""

    def need_said(self, text: str) -> None:
        """Whoever prepares says something."""

    def need_output(self, chunk: bytes, stream: int) -> None:
        """It printed something, secrets masked."""


def make_asset(one: Planned, asset: Asset, data: Path, options: Options, listener: Listener, stop: StopControl) -> Path:
    """Run a plan's preparation, and note what it left in the asset's folder once it ended well.

    Raises:
        RuntimeProblem: it cannot be started, failed or left nothing; what it left stays for the next try.
        Interrupted: a stop came.
    """
    folder = data / asset.path
    try:
        data.mkdir(parents=True, exist_ok=True)
        with Folder.open(data) as all_data, all_data.below(asset.path, make=True):  # no link leads elsewhere
            pass
        waiting = f"waiting for another command that makes {asset.path}"
        with ExitStack() as stack:
            asked = stop.cancellation.asked
            try:
                stack.enter_context(held(data, kept_file(asset, ".lock"), asked, lambda: listener.need_said(waiting)))
            except Stopped as stopped:
                raise Interrupted from stopped
            if find_kept(asset, data) is None:
                _Making(one, _only_prepared(one.plan, asset, folder, data, options), options, listener, stop).run()
                save_kept_record(asset, data, Record(ref=asset.ref, files=_files(folder, asset)))
    except OSError as error:
        what = f"{asset.path} cannot be written: {error.filename or folder}: {error.strerror}"
        raise RuntimeProblem(what, cause=Cause.DISK) from error
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
    """One preparation while it goes on."""

    def __init__(self, one: Planned, plan: RunPlan, options: Options, listener: Listener, stop: StopControl) -> None:
        self._one, self._plan, self._listener, self._stop = one, plan, listener, stop
        self._secrets = secrets_for(replace(one, plan=plan), options.environ)

    def run(self) -> None:
        """Run it to its end."""
        files = [(file.path, file.data) for file in self._one.files]
        folder = RunFolder.create(self._plan, files, self._secrets)
        try:
            sinks, limit_bytes = [self._listener.need_output], self._plan.log_limit_bytes
            log = RunLog(folder.path / LOG, self._secrets, sinks, folder=folder.files, limit_bytes=limit_bytes)
            try:
                ended = self._acted(folder, log)
            finally:
                log.close()
                folder.write(CLEANED, b"")  # a preparation that was cut off is nothing to go on with
        finally:
            folder.close()
        if ended.code != 0:
            said = _last_line(folder.path / LOG)
            raise RuntimeProblem(
                f"the preparation ended with exit code {ended.code}" + (f": {said}" if said else ""),
                f"its log: {folder.path / LOG}",
                cause=Cause.PREPARE,
            )

    def _acted(self, folder: RunFolder, log: RunLog) -> Exit:
        def say(text: str) -> None:
            check()  # of a call that was left nothing is told any more
            log.say(text)
            self._listener.need_said(text)

        interruptible(lambda: self._one.runtime.prepare(self._plan, say))
        stop = StopControl(self._plan.timeout_s, self._plan.stop_grace_s, self._listener.need_said)
        with closing(stop), self._stop.passing_to(stop.request):
            return self._in_session(folder, log, stop, say)

    def _in_session(self, folder: RunFolder, log: RunLog, stop: StopControl, say: Say) -> Exit:
        ended = Exit(code=0, duration_s=0.0)
        session: Session | None = None
        try:
            stop.check()
            with self._one.runtime.open(self._plan) as session, stop.guard(session):
                folder.write(HANDLE, session.handle.encode())
                ended = _act(self._plan.actions, session.run, log.feed)
                log.settle()
                if self._plan.give_back and self._plan.traits.containerised:
                    _act(self._given_back(), session.run, log.feed)
        except RuntimeProblem:
            if stop.reason is None:
                raise
        finally:
            _tell(session, say)
        self._stop.check()
        if stop.reason is not None:
            raise RuntimeProblem(f"the preparation {stop.reason.text}", "--timeout SECONDS, or 0", cause=Cause.TIMEOUT)
        return ended

    def _given_back(self) -> tuple[Action, ...]:
        """Return what makes the caller own what the container's root wrote into the folder."""
        plan = self._plan
        command = give_back_command(plan.mounts[-1].target, f"{plan.folder_inside}/{STAMP}", plan.give_back or (0, 0))
        return (Action(kind="clean", argv=tuple(command)),)


def _tell(session: Session | None, say: Say) -> None:
    """Say what a session could not end."""
    for note in session.notes if session is not None else ():
        say(note)


def _act(
    actions: Iterable[Action],
    run: Callable[[Action, Sink], Exit],
    out: Sink,
) -> Exit:
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
