"""The list that `madlite build --batch-manifest` takes: which models are built anew, and where the others are.

Format: madengine 2's, a JSON list of `model_name`, `build_new`, `registry_image` and `registry`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from madlite.errors import UsageProblem
from madlite.safe_read import read_given


class BatchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the list."""

    model_name: str
    build_new: bool = False
    registry_image: str = ""
    registry: str = ""


def read_batch(file: Path) -> tuple[BatchEntry, ...]:
    """Return the entries.

    Raises:
        UsageProblem: the file cannot be read, is no such list or an empty one.
    """
    try:
        entries = msgspec.json.decode(read_given(file), type=tuple[BatchEntry, ...])
    except OSError as error:
        raise UsageProblem(f"batch manifest {file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageProblem(
            f"batch manifest {file} cannot be used: {error}", '[{"model_name": "NAME", "build_new": true}]'
        ) from None
    if not entries:
        raise UsageProblem(f"batch manifest {file} names no model", '[{"model_name": "NAME", "build_new": true}]')
    return entries
