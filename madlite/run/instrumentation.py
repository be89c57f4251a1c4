"""What is noted of a run beside its log: what it ran on and with, and what its GPUs did meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.machine.foreign_processes import OwnProcesses
from madlite.machine.host import Host
from madlite.machine.host_facts import host_warnings
from madlite.machine.telemetry.sampler import Sampler, SamplingTarget, used_gpus
from madlite.machine.telemetry.summary import TelemetrySummary, packages, summarise, telemetry_findings
from madlite.model import Action, Quantity, Result, RunPlan, Session, Telemetry, Window
from madlite.run.provenance import ProbedFacts, make_provenance, probe
from madlite.run.screen import Planned
from madlite.safe_files import Folder
from madlite.workspace.folder import RUN_MARK

# What a run's GPUs do while its model runs: sampled by a thread, told as the result's telemetry.

TELEMETRY = "telemetry.jsonl"  # in the run folder


class TelemetryRecorder:
    """Samples the GPUs of one run; without a GPU, and switched off, it does nothing."""

    def __init__(self, plan: RunPlan, host: Host, now: Callable[[], float]) -> None:
        self._plan, self._host, self._now = plan, host, now
        sampled = plan.telemetry_s > 0 and plan.traits.local and not plan.machine.pretended
        self._gpus = used_gpus(plan) if sampled else ()
        self._sampler: Sampler | None = None

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
        """Processes on the GPUs that are not the run's; None where nobody can know."""
        sampler = self._sampler
        return sampler.foreign_processes if sampler is not None and sampler.processes_known else None

    @property
    def facts(self) -> dict[str, str]:
        """What the GPUs' driver says of them."""
        return dict(self._sampler.facts) if self._sampler else {}

    def telemetry(self, window: Window | None) -> Telemetry | None:
        """Return what the GPUs did, over the steady window where samples fall into it; None where nobody looked."""
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
            problem="; ".join(filter(None, (sampler.problem, _untold(sampler.source, summary), summary.problem))),
        )

    def _tokens_per_joule(self, window: Window | None, summary: TelemetrySummary) -> float | None:
        """Return tokens by the energy of the same time: not of a window by that of the whole run."""
        if window is None or window.quantity != Quantity.TOKENS_PER_S_PER_GPU or summary.over != "window":
            return None
        return window.median / summary.power_w if summary.power_w else None


def _untold(source: str, summary: TelemetrySummary) -> str:
    return f"{source} tells nothing of {summary.untold}" if summary.untold else ""


# What is noted of a run beside its log: what it ran on and with, and what its GPUs did meanwhile.

NOT_ASKED = "nothing was asked where it ran: probe is switched off"


class Instrumentation:
    """Asks and samples around a run's own step; nothing of it can fail the run."""

    def __init__(self, one: Planned, plugins: Plugins, host: Host, now: Callable[[], float]) -> None:
        self._one, self._plugins = one, plugins
        self._sensors = TelemetryRecorder(one.plan, host, now)
        self._inside: ProbedFacts | None = None

    def probe(self, session: Session, action: Action) -> None:
        """Ask what is there, before the model's own step, unless that is switched off."""
        plan = self._one.plan
        self._inside = probe(session, plan, action) if plan.probe else ProbedFacts(notes=(NOT_ASKED,))

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self._sensors.sampling(session, folder):
            yield

    @property
    def foreign_processes(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None where nobody can know."""
        return self._sensors.foreign_processes

    def tell(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self._sensors.telemetry(result.window)
        labels = result.image.labels
        inside = self._inside or ProbedFacts()
        provenance = make_provenance(self._one, self._plugins, labels, inside, self._sensors.facts)
        looked = self._inside is not None and self._one.plan.traits.local
        doubts = host_warnings(self._one.plan.machine, provenance.host) if looked else ()
        return replace(
            result,
            telemetry=telemetry,
            provenance=provenance,
            image=replace(result.image, labels={}),
            findings=(*result.findings, *telemetry_findings(telemetry), *doubts),
        )
