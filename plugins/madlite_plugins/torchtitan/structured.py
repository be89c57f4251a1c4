"""Read the files that torchtitan 0.3 leaves beside its log: one JSON record a line, one file per rank.

`<dump folder>/structured_logs/training.global_rank_<rank>.<start>.jsonl` has the time of each step in ms (`step_end`)
and the tokens that the rank trained on in it (`local_valid_tokens`), but neither loss nor FLOPs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from madlite import Quantity, Step, output_lines

_FOLDERS = ("structured_logs", "*/structured_logs", "*/*/structured_logs")
_NAME = re.compile(r"training\.global_rank_(\d{1,9})\.(.*)\.jsonl")


class _Record(msgspec.Struct):
    log_type_name: str = ""
    event_name: str | None = None
    step: int | None = None
    value: float | None = None


def structured_steps(outputs: Path, devices: int) -> Iterator[Step]:
    """Yield the steps of the newest run whose files are in `outputs`; `devices` share a rank's tokens, 0 if unknown."""
    newest: dict[int, tuple[str, Path]] = {}
    for path in (path for folder in _FOLDERS for path in outputs.glob(f"{folder}/*.jsonl")):
        if found := _NAME.fullmatch(path.name):
            newest[int(found[1])] = max(newest.get(int(found[1]), ("", path)), (found[2], path))
    for rank, (_, path) in sorted(newest.items()):
        yield from _steps_of(output_lines(path, outputs), rank, devices)


def _steps_of(lines: Iterable[bytes], rank: int, devices: int) -> Iterator[Step]:
    tokens = 0.0
    for line in lines:
        record = _parse(line)
        if record is None or record.step is None or record.value is None:
            continue
        if record.event_name == "local_valid_tokens":
            tokens = record.value
        elif record.log_type_name == "step_end" and record.value > 0:
            seconds = record.value / 1000
            values = {Quantity.STEP_TIME_S: seconds}
            if devices and tokens:
                values[Quantity.TOKENS_PER_S_PER_GPU] = tokens / seconds / devices
            yield Step(n=record.step, values=values, rank=rank)


def _parse(line: bytes) -> _Record | None:
    if b"step_end" not in line and b"local_valid_tokens" not in line:
        return None
    try:
        return msgspec.json.decode(line, type=_Record)
    except msgspec.DecodeError:  # the last line of a run that was killed
        return None
