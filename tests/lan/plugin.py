"""The plugin: runtime `lan` runs a plan on the nodes that LAN_NODES names, `host:port` each, all of them."""

from __future__ import annotations

import io
import json
import os
import posixpath
import queue
import signal
import socket
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from madlite import (
    Action,
    Cause,
    Chunk,
    Completed,
    Exit,
    ImageUsed,
    JobOutcome,
    Json,
    Place,
    Problem,
    RunPlan,
    RuntimeProblem,
    Say,
    Sink,
    Traits,
    hookimpl,
    interruptible,
    reveal,
    when_stopped,
)

ANSWER_S = float(os.environ.get("LAN_ANSWER_S", "120"))  # a busy machine may be late
SETTLE_S = 30.0  # for a killed action to be told as ended
STOPPED = 130


class Line:
    """One request to a node, and its answers."""

    def __init__(self, address: str, limit_s: float | None, request: Mapping[str, object], data: bytes = b"") -> None:
        host, _, port = address.rpartition(":")
        self._address = address
        try:
            self._socket = socket.create_connection((host, int(port)), timeout=limit_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n" + data)
            self._file = self._socket.makefile("rb")
        except OSError as error:
            raise self._lost(str(error)) from error

    def next(self) -> tuple[dict, bytes]:
        """Return the next answer; raises RuntimeProblem where the node refuses, or is gone."""
        try:
            words = json.loads(self._file.readline() or b"{}")
            data = self._file.read(words.pop("bytes", 0))
        except (OSError, ValueError) as error:
            raise self._lost(str(error)) from error
        if not words and not data:
            raise self._lost("it hung up")
        if "problem" in words:
            raise RuntimeProblem(f"node {self._address}: {words['problem']}", cause=Cause.PREPARE)
        return words, data

    def close(self) -> None:
        self._socket.close()

    def _lost(self, why: str) -> RuntimeProblem:
        return RuntimeProblem(f"node {self._address} does not answer: {why}", cause=Cause.NETWORK)


def ask(address: str, data: bytes = b"", **request: object) -> tuple[dict, bytes]:
    line = Line(address, ANSWER_S, request, data)
    try:
        with when_stopped(line.close):
            return line.next()
    finally:
        line.close()


class LanSession:
    """A container on each node."""

    shell = ""
    notes: tuple[str, ...] = ()

    def __init__(self, session: str, nodes: Sequence[str], plan: RunPlan | None = None) -> None:
        self.handle = json.dumps({"session": session, "nodes": list(nodes)})
        self.nodes = tuple(nodes)
        self._session, self._plan = session, plan
        self._over = threading.Event()
        self._over.set()
        self._closed = threading.Event()
        self._enders: list[threading.Thread] = []
        self._hurried = threading.Event()

    def run(self, action: Action, out: Sink) -> Exit:
        begun, expired = time.monotonic(), threading.Event()
        if self._closed.is_set():
            return Exit(code=STOPPED, duration_s=0.0)
        said: queue.Queue[tuple[int, Chunk | int | RuntimeProblem]] = queue.Queue()
        self._over.clear()
        timer = threading.Timer(action.timeout_s or 0.0, lambda: (expired.set(), self._end(self._grace_s)))
        if action.timeout_s is not None:
            timer.start()
        try:
            for node in range(len(self.nodes)):
                threading.Thread(target=self._follow, args=(node, action, said), daemon=True).start()
            codes, first = self._gather(said, out)
        finally:
            timer.cancel()
            self._over.set()
            for thread in self._enders:  # none may hit the next action
                thread.join()
            self._enders.clear()
        return Exit.of_nodes(codes, first, time.monotonic() - begun, timed_out=expired.is_set())

    def probe(self, argv: Sequence[str], node: int, limit_s: float) -> Completed:
        request = {"do": "probe", "session": self._session, "argv": list(argv), "limit_s": limit_s}
        line = Line(self.nodes[node], limit_s + 2.0, request)
        try:
            words, out = line.next()
            return Completed(code=words["code"], stdout=out[: 1 << 20], stderr=line.next()[1][: 1 << 20])
        finally:
            line.close()

    def stop(self, grace_s: float) -> None:
        self._closed.set()
        if grace_s <= 0:
            self._hurried.set()
        self._end(grace_s)

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        for address in self.nodes:
            _, files = ask(address, do="collect", session=self._session, patterns=list(patterns))
            with tarfile.open(fileobj=io.BytesIO(files)) as tar:
                for member in tar.getmembers():
                    into.mkdir(parents=True, exist_ok=True)
                    if member.isfile() and not (into / member.name).exists():
                        tar.extract(member, into, filter="data")

    def signal(self, number: int) -> None:
        for address in self.nodes:
            ask(address, do="signal", session=self._session, number=number)

    @property
    def _grace_s(self) -> float:
        return self._plan.stop_grace_s if self._plan is not None else 5.0

    def _follow(self, node: int, action: Action, said: queue.Queue) -> None:
        """Run the action on one node; its output and its end go to the one who waits for all."""
        plan = self._plan
        told = {"NNODES": str(len(self.nodes)), "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1"}
        cwd = posixpath.join(plan.inside, action.cwd.replace("{folder}", plan.folder_inside))
        env = {**reveal(plan.env), **told, **reveal(action.env)}
        try:
            request = {"do": "run", "session": self._session, "argv": list(action.argv), "cwd": cwd, "env": env}
            line = Line(self.nodes[node], None, request)
            while "code" not in (answer := line.next())[0]:
                said.put((node, Chunk(data=answer[1], stream=answer[0]["stream"], node=node)))
            said.put((node, answer[0]["code"]))
        except RuntimeProblem as problem:
            said.put((node, problem))

    def _gather(self, said: queue.Queue, out: Sink) -> tuple[list[int | None], int | None]:
        """Pass output on until every node has ended; where one fails the others are told to end."""
        codes: list[int | None] = [None] * len(self.nodes)
        left, first = set(range(len(self.nodes))), None
        while left:
            node, what = said.get()
            if isinstance(what, Chunk):
                out(what)
                continue
            if isinstance(what, RuntimeProblem):
                raise what
            left.discard(node)
            codes[node] = what
            if what and first is None:
                first = node
                self._enders.append(threading.Thread(target=self._end, args=(self._grace_s,), daemon=True))
                self._enders[-1].start()
        return codes, first

    def _end(self, grace_s: float) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            if self._over.is_set():
                return
            if grace_s > 0 and not self._hurried.is_set():
                self.signal(number)
                deadline = time.monotonic() + grace_s
                while not self._hurried.is_set() and not self._over.wait(0.05) and time.monotonic() < deadline:
                    continue
        deadline = time.monotonic() + SETTLE_S
        while not self._over.is_set() and time.monotonic() < deadline:  # also what was only being started
            self.signal(signal.SIGKILL)
            self._over.wait(0.2)


class Lan:
    """Runs plans on all of its nodes; what they write is collected."""

    name = "lan"
    traits = Traits(containerised=True, local=False, shares_files=False)

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)

    def supports(self, place: Place) -> bool:
        return place.where == self.name and place.nodes == len(self.nodes)

    def available(self) -> Problem | None:
        try:
            for address in self.nodes:
                ask(address, do="state", session="")
        except RuntimeProblem as problem:
            return Problem(where="runtime lan", what=problem.message)
        return None if self.nodes else Problem(where="runtime lan", what="LAN_NODES names no node")

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        env = {name: value if isinstance(value, str) else "***" for name, value in plan.env.items()}
        return {"nodes": list(self.nodes), "image": plan.image.ref if plan.image else "", "env": env}

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        if plan.image is None:
            raise RuntimeProblem("the card names no image", "--image FOLDER names one", cause=Cause.IMAGE)
        say(f"image {plan.image.ref} on {len(self.nodes)} nodes")
        return ImageUsed(ref=plan.image.ref)

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[LanSession]:
        nodes = self.nodes[: plan.place.nodes]
        files = _packed(plan)
        request = {"session": plan.id, "image": plan.image.ref, "inside": plan.inside, "size": len(files)}
        session = LanSession(plan.id, nodes, plan)
        try:
            for address in nodes:
                interruptible(lambda address=address: ask(address, files, do="open", **request))
            yield session
        finally:
            if not plan.keep_alive:
                self.cancel(session.handle)

    def cancel(self, handle: str) -> None:
        session, nodes = _named(handle)
        for address in nodes:
            ask(address, do="close", session=session)

    def outcome(self, handle: str) -> JobOutcome | None:
        session, nodes = _named(handle)
        states = [ask(address, do="state", session=session)[0] for address in nodes]
        if not all(one["state"] for one in states):
            return None
        worst = max(states, key=lambda one: (one["state"] == "running", one["code"] or 0))
        return JobOutcome(state=worst["state"], ended=worst["state"] != "running", code=worst["code"])


def _named(handle: str) -> tuple[str, list[str]]:
    try:
        known = json.loads(handle)
        return known["session"], known["nodes"]
    except (ValueError, KeyError, TypeError):
        raise RuntimeProblem(f"'{handle}' names no session of the lan", cause=Cause.PREPARE) from None


def _packed(plan: RunPlan) -> bytes:
    """Return the workspace's files, without the folder of runs, and the run's own work folder in its place."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        runs = plan.folder.parent.relative_to(plan.workspace)

        def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if Path(member.name).is_relative_to(runs) else member

        tar.add(plan.workspace, ".", filter=kept)
        tar.add(plan.folder / "work", str(plan.folder.relative_to(plan.workspace)))
    return files.getvalue()


@hookimpl
def madlite_runtimes() -> list[Lan]:
    return [Lan([address for address in os.environ.get("LAN_NODES", "").split(",") if address])]


@hookimpl
def madlite_adjust_plan(plan: RunPlan, options: Mapping[str, str]) -> RunPlan | None:
    """Place a plan of this runtime on all of its nodes, where nobody asks for some."""
    nodes = len([address for address in os.environ.get("LAN_NODES", "").split(",") if address])
    if plan.place.where != Lan.name or plan.place.nodes > 1:
        return None
    return replace(plan, place=replace(plan.place, nodes=nodes))
