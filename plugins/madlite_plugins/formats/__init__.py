"""Logs of frameworks that madlite does not start, each as a table of formats.toml (docs/readers.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from madlite import Backend, hookimpl, read_log_formats


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring a backend for each format, which reads logs and runs nothing."""
    return read_log_formats(Path(__file__).with_name("formats.toml"))
