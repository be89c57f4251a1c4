"""Write madlite/store/record.schema.json anew, from the record that it describes."""

from __future__ import annotations

import json
from pathlib import Path

from madlite.store import record

if __name__ == "__main__":
    path = Path(record.__file__).with_name(record.SCHEMA)
    path.write_text(json.dumps(record.record_schema(), indent=2, sort_keys=True) + "\n", encoding="utf-8")
