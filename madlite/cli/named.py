"""Options of their own for keys of a plan: what they set is what --set KEY=VALUE would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from madlite.errors import UsageProblem

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
    """Yield option, key and value of each that was given.

    Raises:
        UsageProblem: one was given without a value.
    """
    for name, key in _KEYS.items():
        value, option = given[name], f"--{name.replace('_', '-')}"
        if value == "":
            raise UsageProblem(f"{option} is empty", "leave it out, or name a value: an unset variable may stand there")
        if isinstance(value, bool):
            yield ("--mock-data" if value else "--no-mock-data"), key, str(value).lower()
        elif value is not None:
            yield option, key, str(value)
