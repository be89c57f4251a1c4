"""What a run's GPUs are like right before its workload begins: how hot they are, and how fast."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from madlite.machine.host import Host
from madlite.machine.sources.base import Reading, TelemetrySource
from madlite.machine.telemetry.sampler import open_sources
from madlite.model import Gpu, GpuStart, Vendor

LIMIT_S = 10.0  # for a driver or a tool to answer; one that does not is not asked again
LEAST_INTERVAL_S = 1.0  # between two readings
_LOG = logging.getLogger(__name__)


class StartReader:
    """Reads GPUs of a vendor until `close`; nothing of it raises, and none of it outlasts its limit."""

    def __init__(self, vendor: Vendor, gpus: Sequence[Gpu], host: Host) -> None:
        self._vendor, self._gpus, self._host = vendor, tuple(gpus), host
        self._over = threading.Event()
        self._source: TelemetrySource | None = None
        self._is_lost = not gpus

    @property
    def interval_s(self) -> float:
        """The least time between two readings: a tool is a process each time."""
        return max(LEAST_INTERVAL_S, self._source.least_interval_s if self._source is not None else 0.0)

    def read(self) -> tuple[GpuStart, ...]:
        """Return each GPU that reports its temperature or its clock; none where nothing answers in time."""
        if self._is_lost:
            return ()
        found: list[Reading] = []
        thread = threading.Thread(target=self._read_into, args=(found,), name="madlite-start", daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        self._is_lost = thread.is_alive() or not found
        starts = [
            GpuStart(index=one.index, temperature_c=one.temperature_c, clock_mhz=one.clock_mhz) for one in list(found)
        ]
        return tuple(one for one in starts if (one.temperature_c, one.clock_mhz) != (None, None))

    def close(self) -> None:
        """Give back what reading took."""
        self._over.set()
        if self._source is not None and not self._is_lost:
            with suppress(Exception):
                self._source.close()

    def _read_into(self, found: list[Reading]) -> None:
        try:
            if self._source is not None:
                found.extend(self._source.read().readings)
                return
            opened, _ = open_sources(self._vendor, self._gpus, self._host, self._over)
            for number, (source, first) in enumerate(opened):
                if number:  # the first one is read again: it costs the least
                    source.close()
                else:
                    self._source = source
                    found.extend(first.readings)
        except Exception as error:  # noqa: BLE001 - a driver's library may raise anything, and must not fail a run
            _LOG.debug("the GPUs were not read: %s", error)
