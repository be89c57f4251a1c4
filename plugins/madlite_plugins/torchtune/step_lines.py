"""The lines of torchtune's loggers: `Step 3 | loss:6.9 lr:2e-05 tokens_per_second_per_gpu:942.6 grad_norm:1.2 `.

Fields come in any order, and each ends with a space.  Memory is in GiB; tokens are those of labels that are not masked,
of all data ranks, by second and rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from madlite import NUMBER, Quantity, Step, number, output_lines

_STEP = re.compile(r"\bStep (\d{1,12}) \| ((?:[A-Za-z_]\w*:\S+(?: |$))+)")
_FIELD = re.compile(rf"([A-Za-z_]\w*):({NUMBER})( |$)", re.IGNORECASE)
_QUANTITIES = {
    "loss": Quantity.LOSS,
    "lr": Quantity.LEARNING_RATE,
    "grad_norm": Quantity.GRAD_NORM,
    "tokens_per_second_per_gpu": Quantity.TOKENS_PER_S_PER_GPU,
    "peak_memory_active": Quantity.MEMORY_USED_GIB,
    "peak_memory_alloc": Quantity.MEMORY_ALLOCATED_GIB,
    "peak_memory_reserved": Quantity.MEMORY_RESERVED_GIB,
}
_DEEPEST = 4  # folders below which the file of a run is searched for


class StepLines:
    """Reads them one by one.

    A field without a space behind it was cut, unless the line before ended in the same way, as in a log whose trailing
    spaces somebody removed.
    """

    def __init__(self) -> None:
        self._bare: dict[int | None, bool] = {}

    def read(self, text: str, t_s: float = 0.0, rank: int | None = None) -> Iterator[Step]:
        """Yield the steps of a line."""
        for found in _STEP.finditer(text):
            fields = _FIELD.findall(found[2])
            bare, self._bare[rank] = self._bare.get(rank, False), not found[2].endswith(" ")
            complete = {name: number(value) for name, value, end in fields if end or bare}
            values = {_QUANTITIES[name]: value for name, value in complete.items() if name in _QUANTITIES}
            if values:
                yield Step(n=int(found[1]), values=values, rank=rank, t_s=t_s)


def is_step_line(text: str) -> bool:
    """Return whether a line is one of these, with a speed."""
    return "tokens_per_second_per_gpu:" in text and _STEP.search(text) is not None


def _named(outputs: Path, name: str) -> Iterator[Path]:
    """Yield the files of a name, in folders that are real ones: a link may lead to all of a machine."""
    for folder, below, files in os.walk(outputs):
        place = Path(folder)
        if name in files and (place / name).is_file():
            yield place / name
        if len(place.relative_to(outputs).parts) >= _DEEPEST:
            below.clear()


def read_disk_log(outputs: Path, name: str) -> Iterator[Step]:
    """Yield the steps of the file of that name below `outputs`, the highest one where several are."""
    path = min(_named(outputs, name), key=lambda path: (len(path.parts), path), default=None)
    if path is None:
        return
    lines = StepLines()
    for line in output_lines(path, outputs):
        yield from lines.read(line.decode("utf-8", "replace").rstrip("\r"))
