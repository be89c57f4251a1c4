"""What the GPUs of a run's nodes do meanwhile, by their tools, asked through the run's session.

It can neither delay the run nor fail it: a node that does not answer has no samples.  Nor has one whose tool reports
more GPUs than the run has there where the session does not name the run's: the others may be another job's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import cast

from msgspec.structs import replace

from madlite.errors import MadliteError
from madlite.machine.host import Host, ToolOutput
from madlite.machine.sources.amd_smi import AmdSmi
from madlite.machine.sources.base import Reading, Sample, ToolSource
from madlite.machine.sources.nvidia_smi import NvidiaSmi
from madlite.machine.sources.rocm_smi import RocmSmi
from madlite.machine.telemetry.summary import packages, summarise
from madlite.model import GpuUse, NodeUse, RunPlan, Session, Window
from madlite.model.protocols import GpuSession

LEAST_INTERVAL_S = 10.0  # a question is a step of the scheduler on each node
REST = 9  # times as long as a round of questions took, in which none is asked
MOST_NODES = 64  # that are asked: each is a process of this machine
_LIMIT_S = 30.0  # for a tool to answer
_AT_ONCE = 16
_LEAVE_S = 2.0  # for the thread to end
_EVERY = range(1024)  # numbers that a tool may give to a node's GPUs
_LOG = logging.getLogger(__name__)
_TOOLS: dict[str, tuple[type[ToolSource], ...]] = {"AMD": (AmdSmi, RocmSmi), "NVIDIA": (NvidiaSmi,)}


class NodeSampler:
    """Samples the GPUs of several nodes while `sampling`; elsewhere, and where sampling is off, it does nothing."""

    def __init__(self, plan: RunPlan, now: Callable[[], float]) -> None:
        self._plan, self._now = plan, now
        place = plan.place
        several = 1 < place.spanned <= MOST_NODES and place.gpus_per_node > 0
        self._is_on = several and plan.telemetry_s > 0 and plan.traits.sees_processes
        self._samples: list[list[Sample]] = []
        self._over = threading.Event()

    @contextmanager
    def sampling(self, session: Session) -> Iterator[None]:
        """Sample while the block runs."""
        if not self._is_on:
            yield
            return
        thread = threading.Thread(target=self._run, args=(session,), name="madlite-node-telemetry", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(_LEAVE_S)

    def over(self, nodes: Sequence[NodeUse], window: Window | None) -> tuple[NodeUse, ...]:
        """Return the nodes with what their GPUs did over the steady window, else over the run."""
        return tuple(self._with_gpus(one, list(of), window) for one, of in zip(nodes, self._of(nodes), strict=True))

    def _of(self, nodes: Sequence[NodeUse]) -> Iterator[Sequence[Sample]]:
        known = list(self._samples)
        return (known[one.node] if one.node < len(known) else () for one in nodes)

    def _with_gpus(self, one: NodeUse, samples: list[Sample], window: Window | None) -> NodeUse:
        if not samples:
            return one
        began_s, ended_s = (window.began_s, window.ended_s) if window else (None, None)
        machine, ids = self._plan.machine, self._plan.place.gpu_ids
        found = summarise(samples, ids, began_s, ended_s, machine.vendor, packages(machine.gpus))
        return replace(
            one,
            samples=found.samples,
            clock_mhz=_mean(found.gpus, "clock_mhz"),
            power_w=found.power_w,
            utilization_percent=_mean(found.gpus, "utilization_percent"),
            temperature_c=max((gpu.temperature_c for gpu in found.gpus if gpu.temperature_c is not None), default=None),
        )

    def _run(self, session: Session) -> None:
        nodes = [_Node(session, number, self._plan, self._over) for number in range(len(session.nodes))]
        self._samples = [[] for _ in nodes]
        interval_s = max(LEAST_INTERVAL_S, self._plan.telemetry_s)
        while True:
            begun_s = time.monotonic()
            for first in range(0, len(nodes), _AT_ONCE):
                self._ask(nodes[first : first + _AT_ONCE])
            if all(one.is_silent for one in nodes):
                return
            if self._over.wait(max(interval_s, REST * (time.monotonic() - begun_s))):
                return

    def _ask(self, nodes: Sequence[_Node]) -> None:
        """Take a sample of some nodes; threads of a pool would keep madlite from ending where one does not answer."""

        def read(one: _Node) -> None:
            sample = one.read(self._now)
            self._samples[one.number] += [] if sample is None else [sample]

        threads = [threading.Thread(target=read, args=(one,), daemon=True) for one in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class _Node:
    """One node's GPUs, by the first tool that is there."""

    def __init__(self, session: Session, number: int, plan: RunPlan, over: threading.Event) -> None:
        self.number = number
        self._session, self._over = session, over
        self._planned = plan.place.gpu_ids
        self._ids: tuple[int, ...] | None = None
        self._named_by = cast("GpuSession", session) if plan.traits.names_gpus else None
        self._most = 0  # GPUs that its tool has reported at a time
        host = Host(limit_s=_LIMIT_S, call=self._call)
        self._tools = [tool(host, _EVERY, over) for tool in _TOOLS.get(plan.machine.vendor, ())]

    @property
    def is_silent(self) -> bool:
        """Whether no tool of it answers."""
        return not self._tools

    def read(self, now: Callable[[], float]) -> Sample | None:
        """Return a sample; None where it does not answer."""
        while self._tools and not self._over.is_set():
            found = self._tools[0].read()
            if found.readings:
                own = self._own(found.readings)
                return Sample(t_s=round(now(), 3), gpus=own) if own else None
            self._tools = self._tools[1:]
        return None

    def _own(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        """Return the readings of the run's GPUs, by the plan's numbers; none where they may be another's.

        A tool that reports as many as the run has reports the run's, however it counts them: as in a container, or in
        a step that may open no others.
        """
        self._most = max(self._most, len(readings))
        if self._most > len(self._planned):
            if self._ids is None and self._named_by is not None:
                self._ids = self._named_by.gpu_ids(self.number)
            readings = [one for one in readings if one.index in (self._ids or ())]
        if len(readings) != len(self._planned):
            return ()
        ordered = sorted(readings, key=lambda one: one.index)
        return tuple(replace(one, index=index) for one, index in zip(ordered, self._planned, strict=True))

    def _call(self, command: Sequence[str], limit_s: float) -> ToolOutput:
        if self._over.is_set():
            return ToolOutput(problem="the run is over")
        try:
            done = self._session.probe(command, self.number, limit_s)
        except MadliteError as problem:
            _LOG.debug("node %s: %s", self.number, problem.message)
            return ToolOutput(problem=problem.message)
        text = done.stdout.decode("utf-8", "replace")
        return ToolOutput(text=text, problem="" if done.code == 0 else f"exit code {done.code}", hung=done.code is None)


def _mean(gpus: Sequence[GpuUse], field: str) -> float | None:
    values = [value for one in gpus if (value := getattr(one, field)) is not None]
    return fmean(values) if values else None
