"""Trackio: `madlite export --to trackio`, and runs followed where $MADLITE_TRACK names trackio (docs/export.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Exported, Exporter, ExportOptions, ExportRow, hookimpl
from madlite_plugins.tracked import is_tracked

if is_tracked("trackio"):  # hooks that nobody wants would be called for every step
    from madlite_plugins.trackio.live import madlite_run_finished, madlite_run_started, madlite_run_step  # noqa: F401


class TrackioExporter:
    """Runs of a project of Trackio's store on this machine, one for each run of madlite."""

    name = "trackio"
    summary = "runs of a local Trackio project; -o PROJECT, else madlite (pip install 'madlite[trackio]')"
    options: tuple[str, ...] = ()

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write each run that the project does not have."""
        from madlite_plugins.trackio.client import export

        return export(rows, target)


@hookimpl
def madlite_exporters() -> Iterable[Exporter]:
    """Bring the export to Trackio."""
    return [TrackioExporter()]
