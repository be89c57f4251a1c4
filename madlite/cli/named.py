"""Options of their own for keys of a plan: what they set is what --set KEY=VALUE would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# option's value → the key of the plan that it sets
_KEYS = {
    "mode": "mode",
    "precision": "precision",
    "seq_len": "seq_len",
    "batch_size": "micro_batch",
    "steps": "steps",
    "image_release": "release",
    "mock_data": "mock_data",
}


def named_values(given: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield option, key and value of each that was given."""
    for name, key in _KEYS.items():
        value = given[name]
        if isinstance(value, bool):
            yield ("--mock-data" if value else "--no-mock-data"), key, str(value).lower()
        elif value not in (None, ""):
            yield f"--{name.replace('_', '-')}", key, str(value)
