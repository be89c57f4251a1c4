"""MLflow: `madlite export --to mlflow`, and runs followed where $MADLITE_TRACK names mlflow (docs/export.md)."""

from __future__ import annotations

from collections.abc import Iterable

from madlite import Exported, Exporter, ExportOptions, ExportRow, hookimpl
from madlite_plugins.tracked import is_tracked

if is_tracked("mlflow"):  # hooks that nobody wants would be called for every step
    from madlite_plugins.mlflow.live import madlite_run_finished, madlite_run_started, madlite_run_step  # noqa: F401


class MlflowExporter:
    """Runs of an MLflow experiment, one for each run of madlite."""

    name = "mlflow"
    summary = "runs of an MLflow server; -o http://host:5000 --option experiment=NAME (pip install 'madlite[mlflow]')"
    options: tuple[str, ...] = ("experiment",)

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write each run that the experiment does not have."""
        from madlite_plugins.mlflow.client import export

        return export(rows, target, options.values.get("experiment", ""))


@hookimpl
def madlite_exporters() -> Iterable[Exporter]:
    """Bring the export to MLflow."""
    return [MlflowExporter()]
