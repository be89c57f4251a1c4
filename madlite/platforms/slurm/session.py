"""A run's actions on the nodes of an allocation: a step of srun on each, whose output and end are told apart.

Each node's step runs `agent.sh` (in the run's container where it has one).  One srun per node keeps the output of the
nodes, their streams and their exit codes apart, which no option does that Slurm and SPUR have in common.  A run is
ended through steps beside it, as its processes are on other machines.

Of a node that dies srun says so and exits with 0, and Slurm ends the job, which is seen on the other nodes first: what
counts is that a node was lost.
"""

from __future__ import annotations

import json
import logging
import re
import selectors
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from madlite import process
from madlite.cancellation import STOPPED, in_thread
from madlite.errors import RuntimeProblem
from madlite.files import Folder
from madlite.model import PROBE_BYTES, Action, Cause, Chunk, Completed, EnvValue, Exit, RunPlan, Sink
from madlite.plan.place import starts_itself
from madlite.platforms.sessions import GatedSession, cwd_of, read_pipes, writing
from madlite.platforms.slurm.allocation import Allocation, ids_of_note
from madlite.platforms.slurm.containers import RANK, Container
from madlite.secrets import reveal

# The step that a run's containers live as long as, on all of its nodes at once.
#
# A container is no child of Slurm's, and once a job is cancelled or past its time limit no step of it can be started to
# remove one: a step that is there already is signalled, and does it.

_END_S = 10.0  # for srun to end the step's processes


class Keeper:
    """A step that starts something on each node, and removes it when Slurm ends the job."""

    def __init__(self) -> None:
        self._step: subprocess.Popen[bytes] | None = None

    def start(self, argv: Sequence[str], nodes: int, env: Mapping[str, str], limit_s: float) -> tuple[str, str]:
        """Start the step; return what it has printed and its errors, once each node has printed a line.

        So it does where the step ends before that, or `limit_s` has passed.

        Raises:
            OSError: srun cannot be started.
        """
        self._step = step = process.start(argv, env=env)
        said = {1: b"", 2: b""}
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as pipes:
            for number, pipe in ((1, step.stdout), (2, step.stderr)):
                pipes.register(pipe or -1, selectors.EVENT_READ, (0, number))
            while pipes.get_map() and said[1].count(b"\n") < nodes and time.monotonic() < deadline:
                for chunk in read_pipes(pipes, _POLL_S):
                    said[chunk.stream] += chunk.data
        return said[1].decode("utf-8", "replace"), said[2].decode("utf-8", "replace")

    def is_over(self, limit_s: float = 0.0) -> bool:
        """Return whether the step has ended by itself within a time, as with its job, and removed what it started."""
        if self._step is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._step.wait(limit_s)
        return self._step.poll() is not None

    def end(self) -> None:
        """End the step, of which nothing is left to be removed: srun kills what is in it."""
        step, self._step = self._step, None
        if step is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if step.poll() is None:
                process.kill_group(step.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    step.wait(_END_S)
        for pipe in filter(None, (step.stdout, step.stderr)):
            pipe.close()


NODES = "nodes"  # in a run's folder: what its nodes read
STATE = "state"  # in that folder: what they write
INSIDE = "/madlite"  # that folder as a container sees it
AGENT, ENVIRONMENT, RUN = "agent.sh", "environment", "run"
GPUS = f"{RANK}.gpus"  # among what they write: which GPUs a node has
_AGENT_TEXT = Path(__file__).with_name(AGENT)

_POLL_S = 0.1
CALL_S = 3600.0  # of a command on all nodes: an image may have to be pulled
_START_S = 600.0  # for an engine to start a container of an image that it has
_SIGNAL_S = 30.0  # of a step that signals; a node that is gone does not answer
_DRAIN_S = 5.0
_REMOVE_S = 120.0  # for containers to be removed
_AT_ONCE = 64
_BY_SIGNAL = 128  # an exit code above it is that of a signal
_LOST = re.compile(r"srun: error: (?:Node failure on|Task launch for .{1,80} failed on node) ([\w.-]+)")
_LINE = 200  # bytes of a line that tells of it, at most
_NOTE_BYTES = 1 << 14
# what a step has of itself would be options of the steps that are started in it
_AS_JOB = (
    "unset $(compgen -v | grep -E '^(SLURM|SPUR)_(STEP|STEPID|NTASKS|NPROCS|TASKS_PER_NODE|DISTRIBUTION|PROCID|LOCALID"
    "|NODEID|TASK_PID|GTIDS|LAUNCH|SRUN|CPU_BIND|OVERLAP|KILL)')\n"
    "export SLURM_NNODES={nodes} SLURM_JOB_NUM_NODES={nodes} SLURM_NODELIST=${{SLURM_JOB_NODELIST-}}\n"
)
# a step of one node counts itself as the only task: the run's tasks are one on each of its nodes
_AS_TASK = (
    "names_of_nodes=({names})\n"
    "export SLURMD_NODENAME=${{names_of_nodes[rank]}} SLURM_NODEID=$rank SLURM_PROCID=$rank SLURM_LOCALID=0\n"
    "export SLURM_NNODES={count} SLURM_NTASKS={count} SLURM_NPROCS={count} SLURM_STEP_NODELIST={names_joined}\n"
    "export SLURM_STEP_NUM_NODES={count} SLURM_STEP_NUM_TASKS={count}\n"
)
_LOG = logging.getLogger(__name__)


Environment = Mapping[str, EnvValue]


class SlurmSession(GatedSession):
    """Runs actions on nodes: one of kind `run` on each of them, any other on the first."""

    shell = ""
    return_limit_s = 10.0  # for a step to end after its command was killed

    def __init__(
        self, plan: RunPlan, allocation: Allocation, nodes: Sequence[str], container: Container, env: Environment
    ) -> None:
        """Make a session of a run, whose actions have `env`.

        Of a launcher that starts itself every action is on the first node alone, as in the job's own script: what it
        starts are steps.
        """
        super().__init__(plan.workspace, plan.stop_grace_s)
        self.nodes = tuple(nodes)
        self.handle = json.dumps({"job": allocation.job_id, "nodes": list(nodes), "folder": str(plan.folder)})
        self._plan, self._folder, self._allocation = plan, plan.folder, allocation
        self._container, self._env, self._on_first = container, env, starts_itself(plan.launcher)
        self._steps: dict[int, subprocess.Popen[bytes]] = {}
        self._keeper = Keeper()
        self._lost: set[str] = set()  # nodes that died, as far as srun has told
        self._heads: dict[int, bytes] = {}  # the last output of each step's srun
        self._environ = allocation.environment()

    # Before and after.

    def open(self) -> None:
        """Write what the nodes read, and start the containers.

        Raises:
            RuntimeProblem: the folder cannot be written to, or a node cannot start its container.
        """
        with writing(str(self._folder)), self._home(make=True) as home, home.below(STATE, make=True):
            home.write(AGENT, _AGENT_TEXT.read_bytes())
            home.write(RUN, f"{self._folder.name}\n".encode())
        self._write_environment({})
        if command := self._container.start:
            self._keep(command)
        if self._container.enter or self._container.step_options:
            self._check_inside()

    def close(self) -> None:
        """End what still runs, and remove the containers and the environment."""
        self._stop(self._grace_s)
        command = self._container.remove
        if command and self._lost:
            self._on_living(["call", *command], _REMOVE_S)
        elif command and not self._keeper.is_over():
            try:
                words = [*self._agent(), "-", "call", *command]
                call_nodes(self._allocation, self.nodes, words, "the container is left", _REMOVE_S)
            except RuntimeProblem as problem:
                # no step starts in a job that is ended, and the keeper was told so
                if not self._keeper.is_over(self._end_s + self.return_limit_s):
                    self.notes = (*self.notes, problem.message)
        self._keeper.end()
        if self._lost:
            names = ", ".join(name for name in self.nodes if name in self._lost)
            self.notes = (*self.notes, f"what ran on {names} may be left there: madlite clean ends it")
        with suppress(OSError), self._home() as home:
            home.remove(ENVIRONMENT)

    def run(self, action: Action, out: Sink) -> Exit:
        """Run the action to its end; where one node fails, the others are ended.

        Raises:
            RuntimeProblem: no step can be started, or a node was lost.
        """
        begun = time.monotonic()
        ranks = range(len(self.nodes)) if action.kind == "run" and not self._on_first else range(1)
        with self._gate.take(action.timeout_s, partial(self._stop, self._grace_s)) as expired:
            if self._gate.closed.is_set():
                return Exit(code=STOPPED, duration_s=0.0)
            self._write_environment(action.env)
            codes, first = self._run(action, ranks, out)
        if first is not None and not expired.is_set() and not self._gate.closed.is_set():
            self._refuse_lost(codes)
        return Exit.of_nodes(codes, first, time.monotonic() - begun, timed_out=expired.is_set())

    def probe(
        self, argv: Sequence[str], node: int, limit_s: float, cancelled: threading.Event | None = None
    ) -> Completed:
        """Run a short command on a node, in the run's container where it has one.

        Raises:
            RuntimeProblem: srun cannot be started.
        """
        command, env = self._inside(node, ["probe", *argv]), self._environ
        try:
            return process.complete(command, limit_s=limit_s, env=env, cancelled=cancelled, limit_bytes=PROBE_BYTES)
        except OSError as error:
            raise RuntimeProblem(f"srun cannot be started: {error}", cause=Cause.ENGINE) from error

    def gpu_ids(self, node: int) -> tuple[int, ...] | None:
        """Return the run's GPUs on a node by the node's own numbers, as its agent has noted them; None until then."""
        try:
            with self._home() as home, home.below(STATE) as state:
                note = state.read(GPUS.replace(RANK, str(node)), _NOTE_BYTES).decode("ascii")
            return ids_of_note(note, self._plan.place.gpu_ids)
        except (OSError, ValueError):
            return None

    # Steps.

    def _run(self, action: Action, ranks: range, out: Sink) -> tuple[list[int | None], int | None]:
        cwd = cwd_of(self._plan, action, inside=self._container.is_there)
        words = ["run", str(cwd), *action.argv]
        try:
            for rank in ranks:
                self._steps[rank] = process.start(self._inside(rank, words), env=self._environ)
        except OSError as error:
            self._kill_steps()
            raise RuntimeProblem(f"srun cannot be started: {error}", cause=Cause.ENGINE) from error
        enders: list[Future[None]] = []
        try:
            return self._follow(out, enders)
        finally:
            wait(enders)  # none may hit the next action
            self._steps.clear()

    def _follow(self, out: Sink, enders: list[Future[None]]) -> tuple[list[int | None], int | None]:
        """Pass output on until every step has ended; the first that fails ends the others."""
        codes: list[int | None] = [None] * len(self.nodes)
        first: int | None = None
        left = dict(self._steps)
        ended_s: dict[int, float] = {}
        with selectors.DefaultSelector() as pipes:
            for rank, step in left.items():
                for stream, pipe in ((1, step.stdout), (2, step.stderr)):
                    pipes.register(pipe or -1, selectors.EVENT_READ, (rank, stream))
            while left and not self._gate.abandoned.is_set():
                for chunk in read_pipes(pipes, _POLL_S):
                    self._note_lost(chunk)
                    out(self._with_task(chunk))
                for rank, ended in [(rank, step.poll()) for rank, step in left.items()]:
                    if ended is None or not self._is_drained(rank, pipes, ended_s):
                        continue
                    codes[rank] = None if self.nodes[rank] in self._lost else ended  # None: the node died
                    del left[rank]
                    if codes[rank] != 0 and first is None:
                        first = rank
                        enders += [in_thread(self._end_others, "madlite-end-nodes")] if left else []
        self._kill_steps()
        return codes, first

    def _with_task(self, chunk: Chunk) -> Chunk:
        """Return output in which srun names the task by its number in the run: of a step of one node each is 0."""
        if chunk.stream != 2 or self._on_first or b"srun: error: " not in chunk.data:
            return chunk
        said = f"srun: error: {self.nodes[chunk.node]}: task "
        return replace(chunk, data=chunk.data.replace(f"{said}0:".encode(), f"{said}{chunk.node}:".encode()))

    def _note_lost(self, chunk: Chunk) -> None:
        """Note the nodes that srun tells have died."""
        if chunk.stream != 2:
            return
        text = self._heads.get(chunk.node, b"") + chunk.data
        if b"srun: error:" in text:
            self._find_lost(text.decode("utf-8", "replace"))
        self._heads[chunk.node] = text[-_LINE:]

    def _find_lost(self, said: str) -> None:
        """Note the nodes that srun cannot reach; nothing is waited for of what it had started there."""
        self._lost.update({*_LOST.findall(said)} & {*self.nodes})
        for rank, step in list(self._steps.items()):
            if self.nodes[rank] in self._lost and step.poll() is None:
                process.kill_group(step.pid, 9)

    def _refuse_lost(self, codes: Sequence[int | None]) -> None:
        """Report the nodes that were lost; Slurm is asked where a signal, and no failure, ended every other one.

        Raises:
            RuntimeProblem: there are any.
        """
        if not self._lost and all(code in (None, 0) or code > _BY_SIGNAL for code in codes):
            self._lost |= {*self._allocation.down(self.nodes)}
        lost = [f"{rank} ({name})" for rank, name in enumerate(self.nodes) if name in self._lost]
        if lost:
            are, they = ("nodes", "they do") if len(lost) > 1 else ("node", "it does")
            what = f"{are} {', '.join(lost)} failed: {they} not answer Slurm any more"
            others = (
                f"node {rank} ended with exit code {code}"
                for rank, code in enumerate(codes)
                if 0 < (code or 0) <= _BY_SIGNAL
            )
            what = "; ".join(filter(None, (what, next(others, ""))))
            names = ",".join(name for name in self.nodes if name in self._lost)
            raise RuntimeProblem(what, f"sinfo -R tells why; salloc --exclude={names} takes others", cause=Cause.NODE)

    def _is_drained(self, rank: int, pipes: selectors.BaseSelector, ended_s: dict[int, float]) -> bool:
        """Return whether nothing more comes of a step that has ended."""
        open_pipes = [key for key in pipes.get_map().values() if key.data[0] == rank]
        if open_pipes and time.monotonic() - ended_s.setdefault(rank, time.monotonic()) < _DRAIN_S:
            return False
        for key in open_pipes:
            pipes.unregister(key.fileobj)
        return True

    def _kill_steps(self) -> None:
        for step in self._steps.values():
            if step.poll() is None:
                process.kill_group(step.pid, 9)
                step.wait()
            for pipe in filter(None, (step.stdout, step.stderr)):
                pipe.close()

    def _end_others(self) -> None:
        """End the action on the nodes that are left; who runs it waits for this, and goes on without one that stays."""
        if self._gate.end_requested.is_set():  # who ends all nodes waits for the action, which would wait for this
            return
        with self._gate.ending(self._grace_s):
            for wait_s in (
                self.return_limit_s / 5,
                self.return_limit_s,
            ):  # once more what was only being started meanwhile
                self._end(self._grace_s)
                self._gate.wait_while(self._is_running, wait_s)
                if not self._is_running():
                    return
            self._gate.abandoned.set()

    def _end(self, grace_s: float) -> None:
        for name in ("INT", "TERM"):
            if not self._is_running():
                return
            if grace_s > 0 and not self._gate.hurried.is_set():
                self._signal(name)
                self._gate.wait_while(self._is_running, grace_s)
        if self._is_running():
            self._signal("KILL")

    def _is_running(self) -> bool:
        return any(step.poll() is None for step in list(self._steps.values()))

    def _signal(self, name: str) -> None:
        """Send a signal to the command's process group on every node; a node that does not answer is not waited for."""
        words = ["signal", name, *(self._container.enter if self._container.signals_inside else [])]
        if not self._lost:
            command = [*self._allocation.step(self.nodes), *self._agent(), "-", *words]
            done = process.capture(command, limit_s=_SIGNAL_S, env=self._environ)
            if not done.ok:
                self._find_lost(done.stderr)
                _LOG.debug("signal %s: exit code %s: %s", name, done.code, done.stderr.strip())
        if self._lost:  # a step with a dead node does not start
            self._on_living(words, _SIGNAL_S)

    def _on_living(self, words: Sequence[str], limit_s: float) -> None:
        """Run the agent on each node that is left, whatever comes of it."""
        living = [(rank, name) for rank, name in enumerate(self.nodes) if name not in self._lost]

        def call(item: tuple[int, str]) -> None:
            command = [*self._allocation.step([item[1]]), *self._agent(), str(item[0]), *words]
            process.capture(command, limit_s=limit_s, env=self._environ)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(call, living))

    def _agent(self) -> list[str]:
        """Return the command of the agent on a node itself, without its rank."""
        home = self._folder / NODES
        return ["bash", str(home / AGENT), str(home)]

    def _inside(self, rank: int, words: Sequence[str]) -> list[str]:
        """Return the command that runs the agent on one node, in its container."""
        container = self._container
        step = self._allocation.step([self.nodes[rank]], container.step_options)
        if not container.enter and not container.step_options:
            return [*step, *self._agent(), str(rank), *words]
        enter = [word.replace(RANK, str(rank)) for word in container.enter]
        return [*step, *enter, "bash", f"{INSIDE}/{AGENT}", INSIDE, str(rank), *words]

    @property
    def _end_s(self) -> int:
        """How long a command has to end once Slurm ends its job; the rest of Slurm's own time is for its container."""
        return int(min(self._grace_s, self._allocation.kill_wait_s / 2))

    def _keep(self, command: Sequence[str]) -> None:
        """Start a container on every node, by a step that lives as long as they do.

        Raises:
            RuntimeProblem: a node cannot start it.
        """
        step = self._allocation.step(self.nodes)
        container = self._container
        enter = container.enter if container.signals_inside else []
        ends = [str(self._end_s), *enter, "--", *container.remove, "--"]
        words = [*step, *self._agent(), "-", "keep", *ends, *command]
        try:
            said, errors = self._keeper.start(words, len(self.nodes), self._environ, _START_S)
        except OSError as error:
            raise RuntimeProblem(f"srun cannot be started: {error}", cause=Cause.ENGINE) from error
        _answers(self.nodes, said, errors, f"container of {self._folder.name} cannot be started")

    def _check_inside(self) -> None:
        """Check that a command on each node runs in the container: only there is the agent where it is looked for.

        Raises:
            RuntimeProblem: it does not.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # the first step of pyxis unpacks the image on its node
            over = threading.Event()
            try:
                ranks = range(len(self.nodes))
                checks = list(pool.map(lambda rank: self.probe(["true"], rank, CALL_S, over), ranks))
            except BaseException:  # an interrupt waits for no node
                over.set()
                raise
        for name, done in zip(self.nodes, checks, strict=True):
            if done.code != 0:
                said = done.stderr.decode("utf-8", "replace").strip().splitlines()
                last = f"not in {CALL_S:g} s" if done.code is None else said[-1] if said else ""
                why = f" ({last})" if last else ""
                what = f"node {name}: a command does not run in the run's container{why}"
                hint = "the image needs bash; srun --help tells whether the cluster has pyxis"
                raise RuntimeProblem(what, hint, cause=Cause.IMAGE)

    # What the nodes read.

    def _home(self, *, make: bool = False) -> Folder:
        with Folder.open(self._folder) as folder:
            return folder.below(NODES, make=make)

    def _write_environment(self, env: Environment) -> None:
        """Write the variables of an action for its owner alone: they are in no argument and no export of srun."""
        defaults = {
            "MASTER_ADDR": self._allocation.address,
            "MASTER_PORT": self._allocation.port,
            # madengine 2's names
            "MAD_DEPLOYMENT_TYPE": "slurm",
            "MAD_IN_SLURM_JOB": "1",
            "MAD_SLURM_JOB_ID": self._allocation.job_id,
        }
        # whatever a job's script exported: that may be the number of the allocation's nodes
        counts = dict.fromkeys(("NNODES", "MAD_TOTAL_NODES"), str(len(self.nodes)))
        values = {**defaults, **reveal(self._env), **reveal(env), **counts}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items() if name.isidentifier()]
        names, count = " ".join(self.nodes), len(self.nodes)
        of_task = _AS_TASK.format(names=names, names_joined=",".join(self.nodes), count=count)
        lines = [*lines, _AS_JOB.format(nodes=count)] if self._on_first else [of_task, *lines]  # the user's own win
        with writing(str(self._folder / NODES)), self._home() as home:
            home.write(ENVIRONMENT, "".join(lines).encode("utf-8", "surrogateescape"), mode=0o600)


def call_nodes(
    allocation: Allocation,
    nodes: Sequence[str],
    command: Sequence[str],
    problem: str,
    limit_s: float = CALL_S,
    cause: Cause = Cause.PREPARE,
) -> list[str]:
    """Run an agent's command once on each node; return what each printed after its number and exit code.

    Raises:
        RuntimeProblem: a node fails, or does not answer.
    """
    done = process.capture([*allocation.step(nodes), *command], limit_s=limit_s, env=allocation.environment())
    return _answers(nodes, done.stdout, done.stderr, problem, cause)


def _answers(nodes: Sequence[str], said_all: str, errors: str, problem: str, cause: Cause = Cause.PREPARE) -> list[str]:
    found: dict[int, tuple[str, str]] = {}
    for line in said_all.splitlines():
        rank, _, rest = line.partition(" ")
        code, _, said = rest.partition(" ")
        if rank.isdecimal() and int(rank) < len(nodes):
            found[int(rank)] = (code, said.strip())
    for number, name in enumerate(nodes):
        code, said = found.get(number, ("", errors.strip().replace("\n", "; ")))
        if code != "0":
            raise RuntimeProblem(f"node {name}: {problem}: {said or 'no answer'}", cause=cause)
    return [found[number][1] for number in range(len(nodes))]
