"""A log that is read as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from madlite.measure.monitor import LogMonitor
from madlite.model import FailureRule, Reader


def monitored(
    readers: Iterable[Reader],
    log: bytes | str | Iterable[str],
    rules: Iterable[FailureRule] = (),
    *,
    outputs: Path | None = None,
    **options: Any,
) -> LogMonitor:
    """Return the monitor of this log, of which the bytes, the text or the lines are given, at its end."""
    if not isinstance(log, bytes | str):
        log = "".join(f"{line}\n" for line in log)
    monitor = LogMonitor(readers, rules, **options)
    monitor.feed(log.encode() if isinstance(log, str) else log)
    monitor.finish(outputs)
    return monitor
