"""Rows → gauges in Prometheus' text format, for node_exporter's textfile collector: the latest of each series.

Format: https://prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4; samples have no times, for the
collector refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from madlite import Exported, ExportOptions, ExportRow, writing_named
from madlite_plugins.exports.lines import STDOUT, path_of, shown_target

_RUN = (
    *("model", "backend", "recipe", "mode", "precision", "seq_len", "micro_batch", "global_batch"),
    *("device", "gpus", "nodes", "runtime", "args", "settings", "env", "varied"),
)
_RESULT = (*_RUN, "metric", "unit")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_FAMILIES: tuple[tuple[str, str, Callable[[ExportRow], float | None]], ...] = (
    ("madlite_result_value", "Number of the latest successful run of a series.", lambda row: row.value),
    (
        "madlite_result_started_timestamp_seconds",
        "When the run of this number started, seconds since 1970.",
        lambda row: row.started.timestamp() if row.started is not None else None,
    ),
    ("madlite_result_suspect", "1 where a check doubts this number, else 0.", lambda row: float(bool(row.suspect))),
    ("madlite_result_steady_cv", "Standard deviation / mean of the run's steady steps.", lambda row: row.steady_cv),
)


class PrometheusExporter:
    """Gauges of the latest result of each series, and whether the latest run succeeded."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write the latest of each series."""
        path = path_of(target)
        results: dict[tuple[str, ...], ExportRow] = {}
        runs: dict[tuple[str, ...], ExportRow] = {}
        for row in rows:
            if row.status != "SKIPPED":
                _put(runs, _labels(row, _RUN), row)
            if row.value is not None:
                _put(results, _labels(row, _RESULT), row)
        with writing_named(path) as stream:
            stream.writelines(line.encode() for line in _text(results, runs))
        unseen = path != STDOUT and path.suffix != ".prom"
        notes = (f"{path}: node_exporter reads files whose names end in .prom",) if unseen else ()
        return Exported(new=len(results), target=shown_target(path), notes=notes)


def _labels(row: ExportRow, names: Iterable[str]) -> tuple[str, ...]:
    values = (getattr(row, name) for name in names)
    return tuple("" if value is None else str(value) for value in values)


def _put(latest: dict[tuple[str, ...], ExportRow], key: tuple[str, ...], row: ExportRow) -> None:
    """Keep the later of two runs; without their times the one that comes later."""
    before = latest.get(key)
    if before is None or before.started is None or row.started is None or row.started >= before.started:
        latest[key] = row


def _text(results: Mapping[tuple[str, ...], ExportRow], runs: Mapping[tuple[str, ...], ExportRow]) -> Iterator[str]:
    for name, words, value in _FAMILIES:
        yield from _family(name, words, _RESULT, ((key, value(row)) for key, row in results.items()))
    last = ((key, float(row.status == "SUCCESS")) for key, row in runs.items())
    yield from _family("madlite_last_run_success", "1 where the latest run succeeded, else 0.", _RUN, last)


def _family(
    name: str, words: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float | None]]
) -> Iterator[str]:
    yield f"# HELP {name} {words}\n# TYPE {name} gauge\n"
    for key, value in samples:
        if value is not None:
            pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in zip(labels, key, strict=True))
            yield f"{name}{{{pairs}}} {value!r}\n"
