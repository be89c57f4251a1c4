"""What is noted of a run beside its log: what it ran on and with, and what its GPUs did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from madlite.backends.loader import Plugins
from madlite.machine.host import Host
from madlite.machine.host_facts import host_warnings
from madlite.machine.telemetry.summary import telemetry_findings
from madlite.model import Action, Result, Session
from madlite.run.probe import Inside, probe
from madlite.run.provenance import make_provenance
from madlite.run.screen import Planned
from madlite.run.sensors import Sensors
from madlite.safe_files import Folder

NOT_ASKED = "nothing was asked where it ran: probe is switched off"


class Senses:
    """Asks and samples around a run's own step; nothing of it can fail the run."""

    def __init__(self, one: Planned, plugins: Plugins, host: Host, now: Callable[[], float]) -> None:
        self._one, self._plugins = one, plugins
        self._sensors = Sensors(one.plan, host, now)
        self._inside: Inside | None = None

    def look(self, session: Session, action: Action) -> None:
        """Ask what is there, before the model's own step, unless that is switched off."""
        plan = self._one.plan
        self._inside = probe(session, plan, action) if plan.probe else Inside(notes=(NOT_ASKED,))

    @contextmanager
    def sampling(self, session: Session, folder: Folder) -> Iterator[None]:
        """Sample the GPUs while the model's own step runs."""
        with self._sensors.sampling(session, folder):
            yield

    @property
    def strangers(self) -> tuple[str, ...] | None:
        """Processes on the GPUs that are not the run's; None where nobody can know."""
        return self._sensors.strangers

    def tell(self, result: Result) -> Result:
        """Return the result with what was noted."""
        telemetry = self._sensors.telemetry(result.window)
        labels = result.image.labels
        inside = self._inside or Inside()
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
