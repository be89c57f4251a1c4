"""Read trainer_state.json, which a Trainer leaves in its folder: its log once more, in full precision."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from madlite import Event, Quantity, Step, Summary, read_output

QUANTITIES = {"loss": Quantity.LOSS, "grad_norm": Quantity.GRAD_NORM, "learning_rate": Quantity.LEARNING_RATE}
_NAME = "trainer_state.json"
_PLACES = (_NAME, f"*/{_NAME}", f"*/*/{_NAME}")  # the run's folder, its output_dir, and a checkpoint in there
_MOST_STEPS = 10**12


def read_state(outputs: Path, rank: int | None) -> Iterator[Event]:
    """Yield the steps of the state that went furthest, as those of `rank`, and its final figures; nothing without one.

    What is no such file is passed over.
    """
    states = [state for place in _PLACES for path in sorted(outputs.glob(place)) if (state := _load(path, outputs))]
    history = max(states, key=_reached, default=[])
    before = 0
    for entry in history:
        n = entry.get("step")
        if "loss" in entry and isinstance(n, int) and 0 < n < _MOST_STEPS:
            values = {QUANTITIES[name]: value for name in QUANTITIES if (value := _number(entry.get(name))) is not None}
            yield Step(n=n, values=values, rank=rank, span=max(1, n - before))
            before = n
        elif "train_runtime" in entry and "loss" not in entry:
            yield Summary(values={name: str(value) for name, value in entry.items() if _number(value) is not None})


def _load(path: Path, outputs: Path) -> list[Mapping[str, object]]:
    try:
        history = json.loads(read_output(path, outputs)).get("log_history")
    except (ValueError, AttributeError, RecursionError):
        return []
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def _reached(history: list[Mapping[str, object]]) -> int:
    return max((n for entry in history if isinstance(n := entry.get("step"), int)), default=0)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None
