"""Write madlite/store/record.schema.json anew, from the record that it describes."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from madlite.store import record


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record of this version: all its fields are there, and others may be."""
    schema: dict[str, Any] = msgspec.json.schema(record.Record)
    for kind in schema["$defs"].values():
        if "properties" in kind:
            kind["required"] = list(kind["properties"])
        if "description" in kind:
            kind["description"] = inspect.cleandoc(kind["description"])  # as msgspec 0.23 does, and earlier ones do not
    schema["$defs"]["Record"]["properties"]["version"] = {"const": record.VERSION}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"madlite run record {record.VERSION}"}
    return {**head, **schema}


if __name__ == "__main__":
    path = Path(record.__file__).with_name(record.SCHEMA)
    path.write_text(json.dumps(record_schema(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
