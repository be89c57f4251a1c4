"""Runtimes whose actions are commands of this machine: as they are on the `host`, behind another one for plugins."""

from __future__ import annotations

import marshal
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from madlite import process
from madlite.cancellation import STOPPED
from madlite.errors import RuntimeProblem
from madlite.machine.host_facts import cpu_numbers
from madlite.machine.processes import (
    FOLDER_MARK,
    KEPT_MARK,
    RUN_MARK,
    SUPERVISOR_MARK,
    Process,
    descendants,
    describe_process,
    end_processes,
    lives,
    run_processes,
    send,
    with_users,
)
from madlite.model import (
    PROBE_BYTES,
    Action,
    Cause,
    Completed,
    Exit,
    ImageUsed,
    JobOutcome,
    Json,
    Place,
    Problem,
    RunPlan,
    Say,
    Sink,
    Traits,
)
from madlite.platforms.host import supervisor as host_supervisor
from madlite.platforms.sessions import GatedSession, cwd_of, read_pipes
from madlite.secrets import mask_values, reveal

# A run's processes on this machine, one action after the other.

# One command of a run on this machine, below a supervisor that keeps together whatever it starts.
_PYTHON = "/proc/self/exe"  # where it does not know its own place
_KILLED_S = 5.0  # for a process to be gone after KILL


class HostAction:
    """A command below its supervisor, as `subprocess.Popen` has it.

    `pid` is the leader of the command's own session and process group.  Its number stays taken until its exit code was
    read, so that a signal cannot reach another.
    """

    def __init__(
        self, environ: Mapping[str, str], cpus: Collection[int], argv: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> None:
        """Start a supervisor with the environment `environ`, kept to `cpus`; people see the run's id of it.

        It starts the command as the leader of its own session, without standard input and with no environment but
        `env`.

        Raises:
            OSError: it cannot be started, or is nothing that a process can be given.
        """
        report, report_to = os.pipe()
        program = [sys.executable or _PYTHON, "-I", "-S", host_supervisor.__file__, str(report_to), environ[RUN_MARK]]
        try:
            started = process.start(program, env=environ, cwd=Path("/"), stdin=subprocess.PIPE, pass_fds=(report_to,))
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(report_to)
        if cpus:  # as what it starts will be; of CPUs that are gone it may use all
            with suppress(OSError):
                os.sched_setaffinity(started.pid, cpus)
        self.pid = 0
        self.is_lost = False  # the supervisor was killed: what it kept together is so no more
        self.stdout, self.stderr = started.stdout, started.stderr
        self._supervisor = started
        self.report = os.fdopen(report, "rb", buffering=0)  # readable once the command has ended
        self._code: int | None = None
        self._lock = threading.Lock()
        try:
            self._begin(
                (os.fsencode(cwd), [*map(os.fsencode, argv)], {os.fsencode(k): os.fsencode(v) for k, v in env.items()})
            )
        except BaseException:
            started.kill()
            self.close(_KILLED_S)
            raise

    def _begin(self, request: tuple[bytes, list[bytes], dict[bytes, bytes]]) -> None:
        if self._supervisor.stdin is not None:
            with suppress(BrokenPipeError):  # reported below
                self._supervisor.stdin.write(marshal.dumps(request))
                self._supervisor.stdin.flush()
        word, number = self._read_report()
        if word == "pid":
            self.pid = number
            word, number = self._read_report()  # nothing where the command has killed its supervisor by now
        if word == "error":
            raise OSError(number, os.strerror(number))
        if not self.pid:
            raise OSError(0, "the process that is to watch over it ended at once")

    def poll(self) -> int | None:
        """Return the exit code, negative for the signal that ended the command; None as long as it goes on."""
        return self.wait(0.0)

    def wait(self, limit_s: float) -> int | None:
        """Return the exit code once the command has ended; None where it goes on for `limit_s`."""
        if self._code is None and self._has_report(limit_s):
            with self._lock:
                if self._code is None:
                    self._code = self._exit_code()
        return self._code

    def interrupt(self) -> bool:
        """Send INT to the command's process group, as a terminal would; False where the command has ended."""
        with self._lock:
            return self._code is None and process.kill_group(self.pid, signal.SIGINT)

    def left(self) -> list[Process]:
        """Return what the command started and is still there, itself included, wherever it went."""
        return descendants(self._supervisor.pid) if self._supervisor.poll() is None else []

    def close(self, limit_s: float) -> int | None:
        """Let go of the command; return the supervisor's number where that goes on for `limit_s`, for what is left."""
        with self._lock:
            self._code = -signal.SIGKILL if self._code is None else self._code
            self._let_go()
        for pipe in filter(None, (self.stdout, self.stderr, self.report)):
            pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(limit_s)
            return None
        return self._supervisor.pid

    def _exit_code(self) -> int:
        word, number = self._read_report()
        self._let_go()
        self.is_lost = word != "exit"
        return -signal.SIGKILL if self.is_lost else number

    def _has_report(self, limit_s: float) -> bool:
        waiting = select.poll()  # one for each thread that asks
        waiting.register(self.report, select.POLLIN)
        return bool(waiting.poll(int(limit_s * 1000)))

    def _read_report(self) -> tuple[str, int]:
        """Return what the supervisor reports next, nothing where it has ended."""
        word, _, number = self.report.readline().decode().partition(" ")
        return word, int(number or 0)

    def _let_go(self) -> None:
        """Tell the supervisor that nobody signals the command any more."""
        if self._supervisor.stdin is not None:
            with suppress(OSError):
                self._supervisor.stdin.close()


POLL_S = 0.1
IDLE_S = 0.5  # between two looks at whether a command is abandoned: its output and its end are told at once
DRAIN_QUIET_S = 2.0  # after the process ended: no output this long, and a child that holds the pipe is left alone
DRAIN_LIMIT_S = 10.0
SHOWN = 8  # processes that are named
RETRY_S = 0.01  # between two attempts at what was not there any more when it was to be killed
LAST_LIMIT_S = 5.0  # for what was killed to be gone, and what keeps it together with it
LOST = (
    "the process that keeps the run's processes together was killed: what had left its session with an empty "
    "environment may go on"
)


_AFTER_INT = (signal.SIGTERM, signal.SIGKILL)
_Start = Callable[[Action], tuple[Sequence[str], Path]]


class HostSession(GatedSession):
    """Runs actions as process groups of their own.

    Whatever an action starts stays below a supervisor of it, and carries the run's marks in its environment as long as
    it does not empty that.
    """

    nodes: tuple[str, ...] = ("",)
    shell: str = ""

    def __init__(
        self, plan: RunPlan, environ: Mapping[str, str], env: Mapping[str, str], start: _Start, cpus: Collection[int]
    ) -> None:
        """Make a session of actions with `env`, and of supervisors and probes with `environ`.

        `start` tells an action's command and the folder it starts in.  Its processes are kept to `cpus`, where some
        are named.
        """
        super().__init__(plan.workspace, plan.stop_grace_s)
        self.handle = str(plan.folder)
        self._run_id, self._folder = plan.id, plan.folder
        self._env, self._environ, self._command = env, environ, start
        self._supervisor_env = {**environ, **_marks(plan), SUPERVISOR_MARK: "1"}
        self._actions: list[HostAction] = []  # the last one may be running; of others something may be left
        self._cpus = cpus

    def run(self, action: Action, out: Sink) -> Exit:
        """Run the action to its end; `out` gets its output as it comes.

        Raises:
            RuntimeProblem: the command cannot be started.
        """
        begun = time.monotonic()
        with self._gate.take(action.timeout_s, partial(self._stop, self._grace_s)) as expired:
            code = STOPPED if self._gate.closed.is_set() else self._run(action, out)
        return Exit(code=code, duration_s=time.monotonic() - begun, timed_out=expired.is_set())

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        """Run a short command on this machine as the caller, with none of the run's marks: it is none of its processes.

        Raises:
            RuntimeProblem: the command cannot be started.
        """
        try:
            return process.complete(
                argv,
                limit_s=limit_s,
                env=self._environ,
                cwd=Path("/"),
                cancelled=self._gate.closed,
                limit_bytes=PROBE_BYTES,
            )
        except (OSError, ValueError) as error:
            raise RuntimeProblem(f"'{argv[0]}' cannot be started: {error}", cause=Cause.PREPARE) from error

    def close(self) -> None:
        """End every process of the run, and note those that cannot be ended."""
        self._end(self._grace_s)
        self.notes = tuple(filter(None, map(_reap, self._actions)))
        if any(action.is_lost for action in self._actions):
            self.notes += (LOST,)

    def _run(self, action: Action, out: Sink) -> int:
        running = self._start(action)
        try:
            self._pump(running, out)
        finally:
            for pipe in filter(None, (running.stdout, running.stderr)):
                pipe.close()
        return self._exit_code(running)

    def _start(self, action: Action) -> HostAction:
        argv, cwd = self._command(action)
        try:
            env = {**self._env, **reveal(action.env)}
            self._actions.append(HostAction(self._supervisor_env, self._cpus, argv, env, cwd))
        except (OSError, ValueError) as error:  # also a word that is no text of this system
            place = f"folder {cwd}" if not cwd.is_dir() else f"command '{argv[0]}'"
            why = error.strerror if isinstance(error, OSError) else error
            what = f"the {action.kind} action cannot be started: {place}: {why}"
            raise RuntimeProblem(what, cause=Cause.PREPARE) from error
        return self._actions[-1]

    def _pump(self, running: HostAction, out: Sink) -> None:
        """Pass the output on until both pipes end; a child that outlives the process cannot hold them for ever."""
        last_s, ended_s = time.monotonic(), 0.0
        with selectors.DefaultSelector() as pipes:
            for pipe, stream in ((running.stdout, 1), (running.stderr, 2)):
                pipes.register(pipe or -1, selectors.EVENT_READ, (0, stream))
            pipes.register(running.report, selectors.EVENT_READ)
            while _is_open(pipes) and not self._gate.abandoned.is_set():
                for chunk in read_pipes(pipes, POLL_S if ended_s else IDLE_S):
                    out(chunk)
                    last_s = time.monotonic()
                now_s = time.monotonic()
                if running.poll() is not None:
                    if not ended_s:
                        ended_s = now_s
                        pipes.unregister(running.report)
                    if now_s - max(last_s, ended_s) > DRAIN_QUIET_S or now_s - ended_s > DRAIN_LIMIT_S:
                        return

    def _exit_code(self, running: HostAction) -> int:
        while not self._gate.abandoned.is_set():
            if (code := running.wait(POLL_S)) is not None:  # it may have closed its output, and work on
                return code
        return -signal.SIGKILL

    def _end(self, grace_s: float) -> None:
        """INT to the process group, TERM and KILL to everything of the run, wherever it went."""
        running = next((action for action in reversed(self._actions) if action.poll() is None), None)
        family = running.left() if running is not None else []
        if running is not None and running.interrupt():
            self._gate.wait_while(lambda: running.poll() is None, grace_s)

        def left() -> list[Process]:
            below = [process for action in self._actions for process in action.left()]
            found = (*family, *below, *run_processes(self._run_id, self._folder))
            return list({process.identity: process for process in found}.values())

        end_processes(left, grace_s, _AFTER_INT, self._gate.hurried)


def _is_open(pipes: selectors.BaseSelector) -> bool:
    """Return whether output can still come."""
    return any(key.data for key in pipes.get_map().values())


def _reap(action: HostAction) -> str:
    """End the last of what an action started, be it quick in starting others; return what cannot be ended."""
    deadline = time.monotonic() + LAST_LIMIT_S
    while (supervisor := action.close(RETRY_S)) is not None:
        left = action.left()
        unkillable = [process for process in left if not send(process, signal.SIGKILL) and lives(process)]
        if time.monotonic() > deadline or (unkillable and len(unkillable) == len(left)):
            them = (
                ", ".join(describe_process(with_users(process)) for process in left[:SHOWN])
                or "what cannot be seen here"
            )
            more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
            return f"not ended: {them}{more}, started by the run and below pid {supervisor}"
    return ""


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
        return {"env": {**mask_values(plan.env), **_marks(plan)}, "actions": actions}

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Return that no image is used."""
        return ImageUsed()

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[HostSession]:
        """Hold a session open; leaving it ends every process of the run, unless the plan keeps it alive."""
        env = {**self.environment(plan), **reveal(plan.env), **_marks(plan)}
        cpus = () if self.traits.containerised else cpu_numbers(plan.engine_options.cpuset)
        session = HostSession(plan, self._environ, env, partial(self._start, plan), cpus)
        try:
            yield session
        finally:
            if not plan.keep_alive:
                session.close()

    def cancel(self, handle: str) -> None:
        """End what a run that nobody holds any more left running.

        Raises:
            RuntimeProblem: something of it cannot be ended.
        """
        folder = Path(handle)
        left = partial(run_processes, folder.name, folder)
        end_processes(left, CANCEL_GRACE_S, _AFTER_INT, threading.Event())
        if remaining := left():
            raise RuntimeProblem(f"not ended: {', '.join(map(describe_process, remaining))}", cause=Cause.PREPARE)

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return that something of a run still runs; nothing of this machine keeps how a run ended."""
        folder = Path(handle)
        return JobOutcome(state="running", ended=False) if run_processes(folder.name, folder) else None

    def _start(self, plan: RunPlan, action: Action) -> tuple[Sequence[str], Path]:
        """Return the command of an action, and the folder it starts in."""
        if not self.traits.containerised:
            cwd = Path(cwd_of(plan, action, inside=False))
            return (*self._near_memory(plan), *self.command(plan, action.argv, str(cwd))), cwd
        return self.command(plan, action.argv, str(cwd_of(plan, action, inside=True))), plan.workspace

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


def _marks(plan: RunPlan) -> dict[str, str]:
    kept = {KEPT_MARK: "1"} if plan.keep_alive else {}
    return {RUN_MARK: plan.id, FOLDER_MARK: str(plan.folder), **kept}
