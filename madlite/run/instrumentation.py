"""What is observed around a run's own step: its environment is probed before it, its GPUs are sampled beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.files import Folder
from madlite.machine.foreign_processes import OwnProcesses
from madlite.machine.host import Host
from madlite.machine.host_facts import host_warnings
from madlite.machine.telemetry.sampler import Sampler, SamplingTarget, used_gpus
from madlite.machine.telemetry.summary import TelemetrySummary, packages, summarise, telemetry_findings
from madlite.measure.nodes import slow_findings, with_slow
from madlite.model import (
    Action,
    GpuStart,
    Quantity,
    Result,
    RunPlan,
    Say,
    Session,
    Settling,
    Telemetry,
    Window,
)
from madlite.run.node_telemetry import NodeSampler
from madlite.run.probe import JoinedAnswer, ProbedFacts, joined_probe, probe
from madlite.run.provenance import make_provenance
from madlite.run.screen import Planned
from madlite.store.folder import RUN_MARK

if TYPE_CHECKING:
    from madlite.run.settle import Settle
    from madlite.run.stop import StopControl

TELEMETRY = "telemetry.jsonl"  # in the run folder


class TelemetryRecorder:
    """Samples the GPUs of one run; without a GPU, and switched off, it does nothing."""

    def __init__(self, plan: RunPlan, host: Host, now: Callable[[], float]) -> None:
        self._plan, self._host, self._now = plan, host, now
        sampled = plan.telemetry_s > 0 and plan.traits.local and not plan.machine.pretended
        self._gpus = used_gpus(plan) if sampled else ()
        self._sampler: Sampler | None = None
        self._start: tuple[GpuStart, ...] = ()
        self._settling: Settling | None = None
        self.notes: tuple[str, ...] = ()  # about the start

    def begin(self, stop: StopControl, settle: Settle | None, say: Say) -> None:
        """Note what the GPUs are like right before the workload begins; with `settle` once they have cooled down."""
        if settle is None and not self._gpus:
            return
        from madlite.machine.telemetry.start import StartReader

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
        from madlite.run.settle import settling_text

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
        target = SamplingTarget(
            vendor=self._plan.machine.vendor,
            gpus=self._gpus,
            interval_s=self._plan.telemetry_s,
            own=own,
            host=self._host,
        )
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
        summary = summarise(list(sampler.samples), indexes, began_s, ended_s, machine.vendor, parts)
        return Telemetry(
            source=sampler.source,
            interval_s=sampler.interval_s,
            samples=summary.samples,
            over=summary.over if summary.samples else "",
            gpus=summary.gpus if summary.samples else (),
            power_w=summary.power_w,
            tokens_per_joule=self._tokens_per_joule(window, summary),
            throttled=summary.throttled,
            throttled_by=summary.throttled_by,
            power_cap=summary.power_cap,
            foreign_processes=sampler.foreign_processes,
            processes_known=sampler.processes_known,
            cost=sampler.core_share,
            start=self._start,
            settling=self._settling,
            problem="; ".join(
                filter(None, (sampler.problem, _missing_samples(sampler.source, summary), summary.problem))
            ),
        )

    def _tokens_per_joule(self, window: Window | None, summary: TelemetrySummary) -> float | None:
        """Return tokens by the energy of the same time: not of a window by that of the whole run."""
        if window is None or window.quantity != Quantity.TOKENS_PER_S_PER_GPU or summary.over != "window":
            return None
        return window.median / summary.power_w if summary.power_w else None


def _missing_samples(source: str, summary: TelemetrySummary) -> str:
    return f"{source} reports no {summary.unreported}" if summary.unreported else ""


NOT_PROBED = "the environment of the run was not probed: probe is switched off"


class Instrumentation:
    """Probe and sample around a run's own step; nothing of it can fail the run."""

    def __init__(
        self, planned: Planned, plugins: Plugins, host: Host, now: Callable[[], float], settle: Settle | None = None
    ) -> None:
        self._one, self._plugins = planned, plugins
        self._settle = None if planned.plan.study is not None and planned.plan.study.warm_up else settle
        self._telemetry = TelemetryRecorder(planned.plan, host, now)
        self._nodes = NodeSampler(planned.plan, now)
        self._inside: ProbedFacts | None = None

    def joined(self, preparation: Action, action: Action) -> Action | None:
        """Return a preparation that asks as well what is there; None where that is to be asked by itself."""
        return joined_probe(self._one.plan, preparation, action)

    def take(self, answer: JoinedAnswer) -> None:
        """Take what a joined preparation's probe answered."""
        self._inside = answer.facts()

    def probe(self, session: Session, action: Action) -> None:
        """Ask what is there, before the model's own step, unless it is known or that is switched off."""
        plan = self._one.plan
        if self._inside is not None:
            return
        self._inside = probe(session, plan, action) if plan.probe else ProbedFacts(notes=(NOT_PROBED,))

    def begin(self, stop: StopControl, say: Say) -> None:
        """Note what the GPUs are like right before the model's own step, once they have settled if that is wanted."""
        self._telemetry.begin(stop, self._settle, say)

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self._telemetry.sampling(session, folder), self._nodes.sampling(session):
            yield

    @property
    def foreign_processes(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None if unknown."""
        return self._telemetry.foreign_processes

    def annotate(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self._telemetry.telemetry(result.window)
        quantity = result.window.quantity if result.window is not None else None
        nodes = with_slow(self._nodes.over(result.nodes, result.window), quantity)
        labels = result.image.labels
        inside = self._inside or ProbedFacts()
        provenance = make_provenance(self._one, self._plugins, labels, inside, self._telemetry.facts)
        probed = self._inside is not None and self._one.plan.traits.local
        doubts = host_warnings(self._one.plan.machine, provenance.host) if probed else ()
        return replace(
            result,
            telemetry=telemetry,
            nodes=nodes,
            provenance=provenance,
            image=replace(result.image, labels={}),
            findings=(
                *result.findings,
                *slow_findings(nodes),
                *self._telemetry.notes,
                *telemetry_findings(telemetry),
                *doubts,
            ),
        )
