"""What is observed around a run's own step: its environment is probed before it, its GPUs are sampled beside it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.cancellation import in_thread
from madlite.errors import MadliteError
from madlite.files import Folder
from madlite.machine.detect import TOOLS
from madlite.machine.host import Host, ToolOutput
from madlite.machine.host_facts import host_warnings
from madlite.machine.processes import RUN_MARK, OwnProcesses
from madlite.machine.sources.base import Reading, Sample
from madlite.machine.telemetry.sampler import Sampler, SamplingTarget, StartReader, settling_text, used_gpus
from madlite.machine.telemetry.summary import packages, summarise, telemetry_findings
from madlite.measure.nodes import slow_findings, with_slow
from madlite.model import (
    Action,
    GpuStart,
    GpuUse,
    NodeUse,
    Quantity,
    Result,
    RunPlan,
    Say,
    Session,
    Settling,
    Telemetry,
    Window,
)
from madlite.model.protocols import GpuSession
from madlite.plan.submission import PlannedRun
from madlite.run.provenance import ProbedFacts, make_provenance, probe, read_file_answer

if TYPE_CHECKING:
    from madlite.machine.telemetry.sampler import Settle
    from madlite.run.stop import StopControl

LEAST_INTERVAL_S = 10.0  # a question is a step of the scheduler on each node
REST = 9  # times as long as a round of questions took, in which none is asked
MOST_NODES = 64  # that are asked: each is a process of this machine
_LIMIT_S = 30.0  # for a tool to answer
_AT_ONCE = 16
_LEAVE_S = 2.0  # for the thread to end
_EVERY = range(1024)  # numbers that a tool may give to a node's GPUs
_LOG = logging.getLogger(__name__)


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
        known = dict(enumerate(self._samples))
        return tuple(self._with_gpus(node, list(known.get(node.node, ())), window) for node in nodes)

    def _with_gpus(self, node: NodeUse, samples: list[Sample], window: Window | None) -> NodeUse:
        if not samples:
            return node
        began_s, ended_s = (window.began_s, window.ended_s) if window else (None, None)
        machine, ids = self._plan.machine, self._plan.place.gpu_ids
        found = summarise(samples, ids, began_s, ended_s, machine.vendor, packages(machine.gpus))
        return replace(
            node,
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
                self._sample(nodes[first : first + _AT_ONCE])
            if all(node.is_silent for node in nodes):
                return
            if self._over.wait(max(interval_s, REST * (time.monotonic() - begun_s))):
                return

    def _sample(self, nodes: Sequence[_Node]) -> None:
        """Take a sample of some nodes; threads of a pool would keep madlite from ending where one does not answer."""
        reads = [in_thread(partial(node.read, self._now), "madlite-node-telemetry") for node in nodes]
        for node, read in zip(nodes, reads, strict=True):
            try:
                sample = read.result()
            except Exception:  # noqa: BLE001 - the border to a plugin's runtime: the other nodes are sampled still
                _LOG.debug("node %s: its GPUs could not be sampled", node.number, exc_info=True)
                continue
            self._samples[node.number] += [] if sample is None else [sample]


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
        self._tools = [tool(host, _EVERY, over) for tool in TOOLS[plan.machine.vendor]]

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
            readings = [reading for reading in readings if reading.index in (self._ids or ())]
        if len(readings) != len(self._planned):
            return ()
        ordered = sorted(readings, key=lambda reading: reading.index)
        return tuple(replace(item, index=index) for item, index in zip(ordered, self._planned, strict=True))

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
    values = [value for gpu in gpus if (value := getattr(gpu, field)) is not None]
    return fmean(values) if values else None


TELEMETRY = "telemetry.jsonl"  # in the run folder


class TelemetryRecorder:
    """Samples the GPUs of one run; without a GPU, and switched off, it does nothing."""

    def __init__(self, plan: RunPlan, host: Host, now: Callable[[], float], settle: Settle | None = None) -> None:
        self._plan, self._host, self._now, self._settle = plan, host, now, settle
        sampled = plan.telemetry_s > 0 and plan.traits.local and not plan.machine.pretended
        self._gpus = used_gpus(plan) if sampled else ()
        self._sampler: Sampler | None = None
        self._start: tuple[GpuStart, ...] = ()
        self._settling: Settling | None = None
        self.notes: tuple[str, ...] = ()  # about the start

    def begin(self, stop: StopControl, say: Say) -> None:
        """Note what the GPUs are like right before the workload begins, once they have settled if that is wanted."""
        settle = self._settle
        if settle is None and not self._gpus:
            return
        reader = StartReader(self._plan.machine.vendor, self._gpus, self._host)
        try:
            if settle is None:
                self._start = reader.read()
                return
            over = Event()
            with stop.passing_to(lambda reason: over.set()):
                self._start, self._settling = settle.wait(reader.read, lambda: reader.interval_s, over, say)
        finally:
            reader.close()
        if over.is_set():  # nothing began
            return
        text = settling_text(self._settling) if self._settling is not None else settle.unknown()
        self.notes = (text,) if text else ()

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample while the block runs."""
        if not self._gpus:
            yield
            return
        in_container = self._plan.traits.containerised
        own = OwnProcesses(
            mark=f"{RUN_MARK}={self._plan.id}",
            container=session.handle if in_container else "",
            ancestor=os.getpid(),  # of a container's run too: the tools that we ask can be listed themselves
        )
        vendor, interval_s = self._plan.machine.vendor, self._plan.telemetry_s
        target = SamplingTarget(vendor=vendor, gpus=self._gpus, interval_s=interval_s, own=own, host=self._host)
        self._sampler = Sampler(target, folder, TELEMETRY, self._now)
        self._sampler.start()
        try:
            yield
        finally:
            self._sampler.stop()

    @property
    def foreign_processes(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None if unknown."""
        sampler = self._sampler
        return sampler.foreign_processes if sampler is not None and sampler.processes_known else None

    @property
    def facts(self) -> dict[str, str]:
        """What the GPUs' driver reports of them."""
        return dict(self._sampler.facts) if self._sampler else {}

    def telemetry(self, window: Window | None) -> Telemetry | None:
        """Return what the GPUs did, over the steady window where samples fall into it; None without sampling."""
        sampler = self._sampler
        if sampler is None:
            return None
        began_s, ended_s = (window.began_s, window.ended_s) if window else (None, None)
        indexes = [gpu.index for gpu in self._gpus]
        machine = self._plan.machine
        parts = packages(machine.gpus)
        summary = summarise(list(sampler.samples), indexes, began_s, ended_s, machine.vendor, parts, sampler.source)
        return replace(
            summary,
            interval_s=sampler.interval_s,
            tokens_per_joule=self._tokens_per_joule(window, summary),
            foreign_processes=sampler.foreign_processes,
            processes_known=sampler.processes_known,
            cost=sampler.core_share,
            start=self._start,
            settling=self._settling,
            problem="; ".join(filter(None, (sampler.problem, summary.problem))),
        )

    def _tokens_per_joule(self, window: Window | None, summary: Telemetry) -> float | None:
        """Return tokens by the energy of the same time: not of a window by that of the whole run."""
        if window is None or window.quantity != Quantity.TOKENS_PER_S_PER_GPU or summary.over != "window":
            return None
        return window.median / summary.power_w if summary.power_w else None


NOT_PROBED = ProbedFacts(notes=("the environment of the run was not probed: probe is switched off",))


class Instrumentation:
    """Probe and sample around a run's own step; nothing of it can fail the run."""

    def __init__(
        self, planned: PlannedRun, plugins: Plugins, host: Host, now: Callable[[], float], settle: Settle | None = None
    ) -> None:
        self._planned, self._plugins = planned, plugins
        settle = None if planned.plan.study is not None and planned.plan.study.warm_up else settle
        self.telemetry = TelemetryRecorder(planned.plan, host, now, settle)
        self._nodes = NodeSampler(planned.plan, now)
        self._inside: ProbedFacts | None = None

    def probe(self, session: Session, action: Action, work: Path) -> None:
        """Ask what is there, before the model's own step, unless the last preparation did or that is switched off."""
        plan = self._planned.plan
        self._inside = (read_file_answer(work) or probe(session, plan, action)) if plan.probe else NOT_PROBED

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self.telemetry.sampling(session, folder), self._nodes.sampling(session):
            yield

    def annotate(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self.telemetry.telemetry(result.window)
        quantity = result.window.quantity if result.window is not None else None
        nodes = with_slow(self._nodes.over(result.nodes, result.window), quantity)
        labels = result.image.labels
        inside = self._inside or ProbedFacts()
        provenance = make_provenance(self._planned, self._plugins, labels, inside, self.telemetry.facts)
        probed = self._inside is not None and self._planned.plan.traits.local
        warnings = host_warnings(self._planned.plan.machine, provenance.host) if probed else ()
        return replace(
            result,
            telemetry=telemetry,
            nodes=nodes,
            provenance=provenance,
            image=replace(result.image, labels={}),
            findings=(
                *result.findings,
                *slow_findings(nodes),
                *self.telemetry.notes,
                *telemetry_findings(telemetry),
                *warnings,
            ),
        )
