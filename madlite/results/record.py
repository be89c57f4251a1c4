"""The record of one run, `record.json` in its folder: everything that is known of it once it has ended.

Format: docs/record.md, and as JSON Schema `record.schema.json` beside this module.  It says what the run's rows in
perf.csv were, cell by cell, so that the file can be made again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from madlite.model import (
    Cause,
    DataUse,
    ImageUsed,
    JobOutcome,
    Json,
    Metric,
    Place,
    Result,
    Scalar,
    Status,
    Study,
    Traits,
    Value,
    Variant,
    to_json,
)
from madlite.model.results import Check, Compute, Diagnosis, Provenance, Telemetry, Window
from madlite.results.intent import Rows

VERSION = 2
SCHEMA = "record.schema.json"


class File(Value, frozen=True):
    """A file of the run's folder; its SHA-256 where madlite rendered or copied it."""

    path: str
    bytes: int
    sha256: str = ""


class Record(Value, frozen=True):
    """One run, from what was asked for to what came of it.

    `cause` is the diagnosed cause, `ended_by` what ended the run.  Times are UTC; `durations_s` has build, data, run
    and total.  `origins` names for each dotted key where its value came from.  `context_left_out` are the places of the
    context whose values are secret, and not in `context.json`.
    """

    id: str
    status: Status
    version: int = VERSION
    madlite: str = ""
    command: tuple[str, ...] = ()
    started: str = ""
    ended: str = ""
    card: str = ""
    tags: tuple[str, ...] = ()
    card_source: str = ""
    url: str = ""
    backend: str = ""
    runtime: str = ""
    batch: str = ""
    study: Study | None = None
    traits: Traits | None = None
    hostname: str = ""
    device: str = ""
    architecture: str = ""
    place: Place | None = None
    variant: Variant | None = None
    recipe: str = ""
    settings: dict[str, Scalar] = {}
    args: str = ""
    overrides: tuple[tuple[str, str | None], ...] = ()
    timeout_s: float | None = None
    log_limit_bytes: int | None = None
    origins: dict[str, str] = {}
    context_left_out: tuple[str, ...] = ()
    cause: str = ""
    ended_by: Cause = Cause.NONE
    reason: str = ""
    evidence: str = ""
    diagnosis: Diagnosis | None = None
    suspect: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    findings: tuple[str, ...] = ()
    exit_code: int | None = None
    node_codes: tuple[int | None, ...] = ()
    outcome: JobOutcome | None = None
    steps: int = 0
    window: Window | None = None
    metrics: tuple[Metric, ...] = ()
    compute: Compute | None = None
    telemetry: Telemetry | None = None
    config: dict[str, str] = {}
    provenance: Provenance = Provenance()
    image: ImageUsed = ImageUsed()
    durations_s: dict[str, float] = {}
    git_commit: str = ""
    data: tuple[DataUse, ...] = ()
    data_size: str = ""
    data_download_s: float | None = None
    rows: Rows | None = None
    files: tuple[File, ...] = ()

    @property
    def containerised(self) -> bool:
        """Whether it ran in a container; a record that does not say had an image there."""
        return self.traits.containerised if self.traits is not None else bool(self.image.ref)

    @property
    def rendered(self) -> bool:
        """Whether a backend's recipe made what ran: values of its variant and settings can be set."""
        return bool(self.settings)


# what a record has of a result under the same name
SHARED = tuple(name for name in Result.__struct_fields__ if name in Record.__struct_fields__ and name != "cause")


def result_of(record: Record) -> Result:
    """Return the result that a record was made from, for what words one."""
    shared = {name: getattr(record, name) for name in SHARED}
    return Result(plan_id=record.id, cause=record.ended_by, **shared)


def record_json(record: Record) -> str:
    """Return a record as JSON, without NaN and infinities, as its schema has it."""
    return to_json(record)


def record_schema() -> dict[str, Json]:
    """Return the JSON Schema of a record of this version: all its fields are there, and others may be."""
    schema: dict[str, Any] = msgspec.json.schema(Record)
    for kind in schema["$defs"].values():
        if "properties" in kind:
            kind["required"] = list(kind["properties"])
    schema["$defs"]["Record"]["properties"]["version"] = {"const": VERSION}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"madlite run record {VERSION}"}
    return {**head, **schema}
