"""Rows → records of PyTorch HUD's benchmark results, version 3.

Schema: pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql.  What belongs to the CI job that
uploads them (timestamp, repo, head_sha, workflow_id, job_id) is added by its action `upload-benchmark-results`.
Numbers of runs that differ in nothing but the number are one record.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from madlite import Exported, ExportOptions, ExportRow, Json, writing_named
from madlite_plugins.exports.lines import path_of, shown_target

_VERSIONS = {"package ": "version", "repository ": "sha"}  # facts by their first word → the field of a dependency


class HudExporter:
    """A JSON list of records, for PyTorch's benchmark database."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write the rows that have numbers."""
        path = path_of(target)
        records: dict[bytes, dict[str, Json]] = {}
        count = 0
        for row in rows:
            if row.value is None:
                continue
            record = _record(row, options.values.get("benchmark", "madlite"))
            same = records.setdefault(_text(record), record)
            same["metric"]["benchmark_values"].append(row.value)
            count += 1
        with writing_named(path) as stream:
            stream.write(_text(list(records.values())) + b"\n")
        return Exported(new=count, target=shown_target(path))


def _text(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


_CONFIGURATION = ("seq_len", "micro_batch", "global_batch", "runtime", "args", "settings", "env", "varied")


def _record(row: ExportRow, benchmark: str) -> dict[str, Json]:
    """Return a record without its number."""
    known = {name: getattr(row, name) for name in _CONFIGURATION}
    return {
        "benchmark": {
            "name": benchmark,
            "mode": "training",
            "dtype": row.precision.lower(),
            "extra_info": _texts({"recipe": row.recipe, "mode": row.mode, **known, "suspect": row.suspect}),
        },
        "model": {"name": row.model, "type": "", "backend": row.backend, "origins": [], "extra_info": {}},
        "metric": {
            "name": row.metric,
            "benchmark_values": [],
            "extra_info": _texts({"unit": row.unit, "direction": row.direction}),
        },
        "inputs": {},
        "runners": _runners(row),
        "dependencies": _dependencies(row),
    }


def _texts(values: dict[str, Json]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _runners(row: ExportRow) -> list[dict[str, Json]]:
    """Return one runner for each node; the first node's name is known."""
    nodes = max(1, min(row.nodes or 1, 10_000))
    facts = row.facts
    common = {
        "type": row.device,
        "gpu_info": facts.get("gpu product", row.device),
        "gpu_count": (row.gpus or 0) // nodes,
        "cpu_info": facts.get("host cpu", ""),
        "mem_info": f"{facts['host memory_gib']} GiB" if "host memory_gib" in facts else "",
        "extra_info": {},
    }
    first = facts.get("machine") or facts.get("machine_name", "")
    return [{"name": first if node == 0 else "", **common} for node in range(nodes)]


def _dependencies(row: ExportRow) -> dict[str, dict[str, Json]]:
    """Return what a run ran with: image, madlite, repositories and packages where it ran."""
    found: dict[str, dict[str, str]] = {}
    for name, text in row.facts.items():
        for start, field in _VERSIONS.items():
            if name.startswith(start):
                found[name.removeprefix(start)] = {field: text}
    if image := row.facts.get("image") or row.facts.get("docker_image"):
        digest = row.facts.get("image digest") or row.facts.get("docker_sha", "")
        found["image"] = {"repo": image, "sha": digest}
    if "madlite" in row.facts:
        found["madlite"] = {"version": row.facts["madlite"]}
    blank = {"repo": "", "branch": "", "sha": "", "version": ""}
    return {name: {**blank, **fields, "extra_info": {}} for name, fields in found.items()}
