"""A run's Job as a session: its pods run the plan's actions by themselves, their logs tell how far they are."""

from __future__ import annotations

import fnmatch
import logging
import math
import queue
import re
import threading
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from madlite.cancellation import STOPPED, Interrupted
from madlite.errors import RuntimeProblem
from madlite.files import Folder
from madlite.model import Action, Cause, Chunk, Completed, Exit, RunPlan, Sink, Value
from madlite.platforms.kubernetes.api import Access, Api, Refusal
from madlite.platforms.kubernetes.faults import (
    Fault,
    deletion_grace_s,
    ended_fault,
    exit_code,
    gone_fault,
    phase_of,
    pod_name,
)
from madlite.platforms.kubernetes.manifests import INDEX_LABEL, numbered
from madlite.platforms.kubernetes.watch import POLL_S, PodWatch

# The log of one pod from its beginning to its end, each byte once, across connections that break.
#
# Kubernetes puts a time before each line on request.  After a break the log is asked for from the last line's second on
# (the API counts in seconds), and the lines that came before are left out by their times: those of a log never go back.

_TRIES = 100  # to read the log of a pod that has ended, a second and more apart, where the cluster is busy
_TOLD = 25  # of these count where it says that the log cannot be read
_BUSY = (429, 502, 503, 504)
_TIMED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ", re.ASCII)


class LogPosition:
    """How far a log was read: the time of the last line, and how many lines had it."""

    def __init__(self) -> None:
        self.count = 0  # lines that were taken
        self.is_cut = False  # whether the end of the log could not be read
        self._time_ns = 0  # the last whole line's, since 1970
        self._same = 0
        self._again = 0  # lines of that time that are still to come a second time

    @property
    def since(self) -> str:
        """What to ask the API for: the last line's time without its fraction; "" from the beginning."""
        return (
            f"{datetime.fromtimestamp(self._time_ns // 10**9, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
            if self._time_ns
            else ""
        )

    @property
    def seconds(self) -> float | None:
        """The time of the last whole line in seconds since 1970; None before the first."""
        return self._time_ns / 1e9 if self._time_ns else None

    def reconnect(self) -> None:
        """Note that lines may come again from now on."""
        self._again = self._same

    def take(self, line: bytes) -> bytes | None:
        """Return a whole line without its time; None of one that came before."""
        found = _TIMED.match(line)
        if found is None:
            return line
        time_ns = _nanoseconds(*found.groups())
        if self._again and time_ns <= self._time_ns:
            self._again -= time_ns == self._time_ns
            return None
        self._same = self._same + 1 if time_ns == self._time_ns else 1
        self._time_ns, self._again = time_ns, 0
        self.count += 1
        return line[found.end() :]


def _nanoseconds(whole: bytes, fraction: bytes | None, zone: bytes) -> int:
    """Return a time of a log since 1970; its fraction has as many digits as it needs."""
    at = datetime.fromisoformat((whole + zone.replace(b"Z", b"+00:00")).decode())
    return int(at.timestamp()) * 10**9 + int((fraction or b"").ljust(9, b"0"))


class Mark(Value, frozen=True):
    """A line of the pod's own script: `begin` and `end` of an action, or a `file` with its content."""

    kind: str
    number: int = -1
    code: int = 0
    name: str = ""
    data: bytes = b""


class MarkReader:
    """Tells the workload's output from the lines that `pod.sh` puts in between, after a line break each.

    Output that ends without one has one more.
    """

    def __init__(self, mark: str) -> None:
        self._begin = f"#madlite {mark} ".encode()
        self._held = b""  # an empty line that may belong to a mark
        self._file: tuple[str, list[bytes]] | None = None

    def feed(self, line: bytes) -> Iterator[bytes | Mark]:
        """Yield output and marks of one line."""
        if line.startswith(self._begin):
            self._held = b""
            yield from self._mark(line[len(self._begin) :].decode("utf-8", "replace").rstrip("\n"))
        elif self._file is not None:
            if line.strip():
                self._file[1].append(line)
        else:
            held, self._held = self._held, line if line == b"\n" else b""
            if held:
                yield held
            if not self._held:
                yield line

    def flush(self) -> bytes:
        """Return output that was held back, at the end of the log."""
        held, self._held = self._held, b""
        return held

    def _mark(self, text: str) -> Iterator[Mark]:
        kind, _, rest = text.partition(" ")
        if kind == "begin" and rest.isdigit():
            yield Mark(kind=kind, number=int(rest))
        elif kind == "end" and re.fullmatch(r"\d+ \d+", rest):
            number, code = map(int, rest.split())
            yield Mark(kind=kind, number=number, code=code)
        elif kind == "file":
            self._file = (rest, [])
        elif kind == "end-of-file" and self._file is not None:
            (name, lines), self._file = self._file, None
            try:
                yield Mark(kind="file", name=name, data=b64decode(b"".join(lines), validate=False))
            except Base64Error:
                return


def follow(
    open_log: Callable[[str], Any], is_over: Callable[[], bool], pause: Callable[[], None], position: LogPosition
) -> Iterator[bytes]:
    """Yield the lines of a pod's log, each once; `open_log(since)` opens it, `is_over` says whether more can come.

    `pause` waits between two connections, and raises where nobody wants to go on.  `position` is where it is: at each
    line its time is that line's.  A cluster that does not answer is asked until it does; one that says of a pod that
    has ended that its log cannot be read, for its node is gone, say, a few times: then `position.is_cut` is true.
    """
    from urllib3.exceptions import HTTPError

    failed = 0
    while failed < _TRIES:
        over = is_over()  # asked before the log is read: what it printed until then is in it
        before, rest = position.count, None
        try:
            rest = yield from _connection(open_log(position.since), position)
        except (HTTPError, OSError, Refusal) as problem:
            failed = 0 if position.count > before else failed + (over and _weight(problem))
            position.is_cut = over
        if over and rest is not None and position.count == before:  # read once more, and nothing was new: it is whole
            position.is_cut = False
            if rest and (text := position.take(rest)) is not None:
                yield text
            return
        if not over or rest is None:
            pause()


def _weight(problem: BaseException) -> int:
    """Return how much a failure to read the log of a pod that has ended counts; none where nobody answers."""
    status = getattr(problem, "status", None)
    if status is None:  # it was read, and nothing came
        return _TOLD
    return 1 if status in _BUSY else _TOLD if status else 0


def _connection(answer: Any, position: LogPosition) -> Generator[bytes, None, bytes]:
    """Yield the new lines that one connection brings, and return what came after the last line break."""
    position.reconnect()
    parts: list[bytes] = []  # of a line that goes on; one may be megabytes long
    for piece in answer.stream(1 << 16, decode_content=False):
        head, ended, tail = piece.partition(b"\n")
        parts.append(head)
        if not ended:
            continue
        *whole, last = tail.split(b"\n")
        for line in (b"".join(parts), *whole):
            if (text := position.take(line + b"\n")) is not None:
                yield text
        parts = [last]
    return b"".join(parts)


_LOG = logging.getLogger(__name__)
_LATE = 124  # of an action that pod.sh has ended at the run's limit
_AFTER_STOP_S = 20.0  # for pods that were told to end, beyond their graces
_LOST_S = 60.0  # beyond its grace a pod that is deleted and stays has a node that says nothing any more


class PodEnd(Value, frozen=True):
    """A pod's log is over: its exit code, and what ended it other than its script."""

    code: int | None
    fault: Fault | None


class Handle(Value, frozen=True):
    """What names a run's Job in another process, and by which access it was made.

    One that is `followed` has another owner than the run, which is no leftover when that ends.
    """

    access: Access
    kind: str
    name: str
    run: str
    followed: bool = False

    @classmethod
    def read(cls, text: str) -> Handle:
        """Return what a session's handle names.

        Raises:
            RuntimeProblem: it is none.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise RuntimeProblem(f"{text!r} names no Job of Kubernetes", cause=Cause.PREPARE) from None


class NodeOutput(Value, frozen=True):
    """What a node said: output, a mark, or its end; `at_s` is its log's time of it, since 1970, None for no such."""

    node: int
    what: bytes | Mark | PodEnd
    at_s: float | None = None


class KubernetesSession:
    """The pods of a run, one on each node; `nodes` are their names in the order of their ranks."""

    shell = ""

    def __init__(self, api: Api, nodes: Sequence[str], plan: RunPlan, pods: PodWatch, handle: Handle) -> None:
        self.handle = msgspec.json.encode(handle).decode()
        self.nodes = tuple(nodes)
        self.notes: tuple[str, ...] = ()
        self._api, self._job, self._plan = api, handle, plan
        self._pods = pods
        self._outputs: queue.Queue[NodeOutput] = queue.Queue(maxsize=4096)
        self._ends: dict[int, PodEnd] = {}
        self._late: Fault | None = None  # that a pod has ended its action by the run's limit
        self._late_until_s = math.inf
        self._deleted_s: dict[str, float] = {}  # when it was seen first that somebody deletes a pod
        self._files: dict[str, bytes] = {}
        self._early: list[NodeOutput] = []  # of nodes that are further than the others
        self._first_s: float | None = None  # the time of the first output
        self._begun_at_s: dict[int, float] = {}  # by node, the time of the first that its pod said
        self._closed, self._left = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def run(self, action: Action, out: Sink) -> Exit:
        """Follow the action to its end on every node; the pods have begun it by themselves."""
        began = time.monotonic()
        if action.kind == "clean":  # it goes with the pods
            return Exit(code=0, duration_s=0.0)
        number = self._number(action)
        if self._closed.is_set():
            return Exit(code=STOPPED, duration_s=0.0)
        self._start_following()
        times: list[float] = []  # of its begin and end, by the nodes' logs: whoever follows them may have come late
        codes, first, expired = self._collect_output(number, out, times, began, action.timeout_s)
        took_s = max(times) - min(times) if times else time.monotonic() - began
        if len(self.nodes) > 1:
            return Exit.of_nodes(codes, first, took_s, timed_out=expired)
        return Exit(code=codes[0] if codes[0] is not None else STOPPED, duration_s=took_s, timed_out=expired)

    def _number(self, action: Action) -> int:
        """Return an action's number in the plan.

        Raises:
            RuntimeProblem: the pods were not given it.
        """
        for number, item in numbered(self._plan.actions, skip_run=self._plan.skip_model_run):
            if (item.kind, item.argv, item.cwd) == (action.kind, action.argv, action.cwd):
                return number
        raise RuntimeProblem(f"pods run the actions of their plan alone, and no '{action.kind}' beside them")

    def _start_following(self) -> None:
        if not self._threads:
            for node in range(len(self.nodes)):
                thread = threading.Thread(target=self._follow, args=(node,), name=f"madlite-pod-{node}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _follow(self, node: int) -> None:
        """Read one pod's log to its end; everything of it goes to the thread that runs the action."""
        name, reader, position = self.nodes[node], MarkReader(self._plan.id), LogPosition()
        try:
            is_over = partial(self._is_over, name)
            for line in follow(lambda since: self._api.log(name, since), is_over, self._pause, position):
                for item in reader.feed(line):
                    self._outputs.put(NodeOutput(node, item, position.seconds))
            if rest := reader.flush():
                self._outputs.put(NodeOutput(node, rest, position.seconds))
            if position.is_cut:
                self.notes = (*self.notes, f"the end of the log of pod {name} could not be read: its node may be gone")
            end = self._end_of(name)
        except (RuntimeProblem, Interrupted, _Left) as problem:
            _LOG.debug("log of %s: %s", name, problem)
            lost = problem.message if isinstance(problem, RuntimeProblem) else ""
            end = PodEnd(None, Fault(text=lost, hint="kubectl cluster-info", cause=Cause.ENGINE) if lost else None)
        self._outputs.put(NodeOutput(node, end))

    def _is_over(self, name: str) -> bool:
        """Return whether a pod prints nothing any more, for it has ended, or its node says nothing any more."""
        pod, is_there = self._pods.get(name)
        if not is_there or pod is None or phase_of(pod) in ("Succeeded", "Failed"):
            return True
        grace_s = deletion_grace_s(pod)
        if grace_s is None:
            return False
        now_s = time.monotonic()
        return now_s - self._deleted_s.setdefault(name, now_s) > grace_s + _LOST_S

    def _end_of(self, name: str) -> PodEnd:
        """Return how a pod ended, as it was seen last."""
        pod, _ = self._pods.get(name)
        if pod is None:
            what, hint = "a pod of the run is gone", "kubectl get events"
            return PodEnd(None, Fault(text=what, hint=hint, cause=Cause.PREEMPTED, state="gone"))
        fault = ended_fault(pod)
        if fault is None and phase_of(pod) not in ("Succeeded", "Failed"):
            fault = gone_fault(pod)
        return PodEnd(exit_code(pod), fault)

    def _pause(self) -> None:
        if self._left.wait(POLL_S / 2):
            raise _Left

    def _collect_output(
        self, number: int, out: Sink, times: list[float], began: float, limit_s: float | None
    ) -> tuple[list[int | None], int | None, bool]:
        """Pass output on until every node has ended the action; return codes, who failed first, whether it expired.

        Raises:
            RuntimeProblem: the cluster ended a pod, or pods ended the action by the run's limit.
        """
        codes: dict[int, int | None] = {node: self._code_of(end) for node, end in self._ends.items()}
        first = next((node for node, code in codes.items() if code), None)
        expired = False
        waiting, self._early = self._early, []
        while len(codes) < len(self.nodes) and not self._left.is_set() and time.monotonic() < self._late_until_s:
            if limit_s is not None and not expired and time.monotonic() > began + limit_s:
                expired = True
                self.stop(self._plan.stop_grace_s)
            with suppress(queue.Empty):
                said = waiting.pop(0) if waiting else self._outputs.get(timeout=0.2)
                self._take(said, number, codes, out, times)
            first = next((node for node, code in codes.items() if code), None) if first is None else first
        self._early += waiting
        if self._late is not None and not self._closed.is_set():
            raise RuntimeProblem(self._late.text, self._late.hint, cause=self._late.cause)
        return [codes.get(node) for node in range(len(self.nodes))], first, expired

    def _take(self, said: NodeOutput, number: int, codes: dict[int, int | None], out: Sink, times: list[float]) -> None:
        """Take what a node said."""
        node, what = said.node, said.what
        if said.at_s is not None:
            self._begun_at_s.setdefault(node, said.at_s)
        if isinstance(what, Mark) and what.kind == "file":
            self._files.setdefault(what.name, what.data)
        elif node in codes:  # further than the others: it has begun the next action, or ended
            self._early.append(said)
        elif isinstance(what, PodEnd):
            self._ends[node] = what
            codes[node] = self._code_of(what)
        elif isinstance(what, bytes):
            out(Chunk(data=what, node=node, t_s=self._since_first(said.at_s)))
        elif what.number == number:
            times += [] if said.at_s is None else [said.at_s]
            if what.kind == "end":
                codes[node] = self._ended_code(said, what)

    def _ended_code(self, said: NodeOutput, end: Mark) -> int | None:
        """Return the code of an action that a pod has ended, by itself or at the run's limit.

        Raises:
            RuntimeProblem: the cluster is ending the pod.
        """
        if late := self._limit_fault(said, end):
            if self._late is None:  # the first pod; the others come to their limit, and say their last words
                self._late = late
                self._late_until_s = time.monotonic() + 2 * self._plan.stop_grace_s + _AFTER_STOP_S
            return end.code
        # why the cluster is ending the pod, which its script tells as the exit code of a signal
        pod, _ = self._pods.get(self.nodes[said.node]) if end.code else (None, False)
        return self._code_of(PodEnd(end.code, ended_fault(pod) if pod is not None else None))

    def _limit_fault(self, said: NodeOutput, end: Mark) -> Fault | None:
        """Return that a pod has ended its action by the run's limit, where nobody followed who would have."""
        limit_s, began_s = self._plan.timeout_s, self._begun_at_s.get(said.node)
        if end.code != _LATE or not limit_s or said.at_s is None or began_s is None or said.at_s - began_s < limit_s:
            return None
        text = f"pod {self.nodes[said.node]} ended it at the time limit of {limit_s:g} s"
        return Fault(text=text, hint="--timeout", cause=Cause.TIMEOUT)

    def _since_first(self, at_s: float | None) -> float | None:
        """Return when output was written, on a clock that begins with the first: it may be read much later."""
        if at_s is None:
            return None
        self._first_s = at_s if self._first_s is None else self._first_s
        return 1.0 + at_s - self._first_s

    def _code_of(self, end: PodEnd) -> int | None:
        """Return the code of a pod, or of its action.

        Raises:
            RuntimeProblem: the cluster ended it, and nobody asked for that.
        """
        if end.fault is not None and not self._closed.is_set() and self._late is None:
            raise RuntimeProblem(end.fault.text, end.fault.hint, cause=end.fault.cause)
        return end.code if end.code is not None else STOPPED

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        """Refuse: nothing is run beside the action.

        Raises:
            RuntimeProblem: always.
        """
        raise RuntimeProblem("runtime 'kubernetes' runs nothing beside the training")

    def stop(self, grace_s: float) -> None:
        """Remove the Job: Kubernetes sends TERM to each pod, whose script ends the action by INT, TERM and KILL."""
        self._closed.set()
        try:
            self._api.delete(self._job.kind, self._job.name)
            if grace_s <= 0:
                for pod in self.nodes:
                    self._api.delete("Pod", pod, grace_s=0)
        except RuntimeProblem as problem:
            self.notes = (*self.notes, f"the Job could not be removed: {problem.message}")
        limit_s = 2 * max(grace_s, 1.0) + _AFTER_STOP_S if grace_s > 0 else POLL_S
        timer = threading.Timer(limit_s, self._left.set)
        timer.daemon = True
        timer.start()

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Write the files that the pods sent by their logs and that match, by their own names.

        Raises:
            RuntimeProblem: one cannot be written.
        """
        home = str(self._plan.folder.relative_to(self._plan.workspace))
        found = {name: data for name, data in self._files.items() if _matches(name, patterns, home)}
        if not found:
            return
        try:
            into.mkdir(parents=True, exist_ok=True)
            with Folder.open(into) as folder:
                for name, data in found.items():
                    folder.write(PurePosixPath(name).name, data)
        except OSError as error:
            what = f"what the run left cannot be written to {into}: {error.strerror}"
            raise RuntimeProblem(what, cause=Cause.DISK) from error

    def close(self) -> None:
        """Read no log any more."""
        self._left.set()


class _Left(Exception):
    """Nobody reads the log any more."""


def _matches(name: str, patterns: Sequence[str], home: str) -> bool:
    """Return whether a file of a pod matches; what is `work` of the run's folder here is the folder itself there."""
    if name.startswith("/") or ".." in name.split("/"):
        return False
    seen = (name, name.replace(f"{home}/", f"{home}/work/", 1))
    return any(fnmatch.fnmatchcase(item, pattern.lstrip("/")) for item in seen for pattern in patterns)


def ordered(pods: Sequence[dict[str, Any]], count: int) -> list[str]:
    """Return the names of a run's pods in the order of their completion indexes; fewer where some are not there."""

    def index(pod: dict[str, Any]) -> int:
        text = str((pod["metadata"].get("labels") or {}).get(INDEX_LABEL, ""))
        return int(text) if text.isdigit() else count

    return [pod_name(pod) for pod in sorted(pods, key=index)][:count]
