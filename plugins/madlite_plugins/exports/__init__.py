"""What `madlite export --to` can write to: files, tables of databases, pages that monitoring reads (docs/export.md)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from madlite import Exported, Exporter, ExportOptions, ExportRow, hookimpl


class _Format:
    """A format whose module, and what that imports, is loaded when something is written."""

    def __init__(self, name: str, writer: str, summary: str, options: tuple[str, ...]) -> None:
        self.name, self.summary, self.options = name, summary, options
        self._module, _, self._class = writer.partition(":")

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write rows by the class of the format's module."""
        writer = getattr(import_module(f"{__name__}.{self._module}"), self._class)()
        done: Exported = writer.write(rows, target, options)
        return done


_FORMATS = (
    _Format("csv", "lines:CsvExporter", "CSV, a line per result; -o FILE, else the standard output", ("append",)),
    _Format(
        "jsonl",
        "lines:JsonLinesExporter",
        "JSON Lines, an object per result; -o FILE, else the standard output",
        ("append",),
    ),
    _Format(
        "parquet",
        "parquet:ParquetExporter",
        "an Apache Parquet file with typed columns; -o FILE (pip install 'madlite[parquet]')",
        ("append",),
    ),
    _Format(
        "sqlite",
        "sqlite:SqliteExporter",
        "a table of an SQLite file, each result once; -o FILE --option table=results",
        ("table",),
    ),
    _Format(
        "postgresql",
        "postgresql:PostgresqlExporter",
        "a table of PostgreSQL, each result once; -o postgresql://user@host/database --option table=results "
        "(pip install 'madlite[postgresql]')",
        ("table",),
    ),
    _Format(
        "prometheus",
        "prometheus:PrometheusExporter",
        "gauges for node_exporter's textfile collector, the latest of each series; -o FILE.prom",
        (),
    ),
    _Format(
        "hud",
        "hud:HudExporter",
        "PyTorch HUD's benchmark results v3, a JSON list; -o FILE.json --option benchmark=NAME",
        ("benchmark",),
    ),
)


@hookimpl
def madlite_exporters() -> Iterable[Exporter]:
    """Bring the formats."""
    from madlite_plugins.exports import mongodb  # whose options are read before anything is written

    return (*_FORMATS, mongodb.command)
