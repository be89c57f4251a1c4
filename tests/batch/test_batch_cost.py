"""A run of a batch costs what the first one did, however many came before it: counted in bytes, not in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.store.folder import RECORD
from tests.batch.nothing import batch_of
from tests.csv_rows import perf_rows

COUNT, PART = 320, 40


def passed_bytes() -> int:
    """Return the bytes that this process has read and written so far; format: proc(5), io."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


@pytest.mark.host
def test_the_last_runs_of_a_batch_read_and_write_as_much_as_the_first(tmp_path):
    sizes: list[int] = []
    batch = batch_of(tmp_path, COUNT, lambda: sizes.append(passed_bytes()))
    outcome = batch.run()
    assert outcome.exit_code == 3, "no script was run, so there is no number"
    first, last = sizes[2 * PART] - sizes[PART], sizes[-1] - sizes[-1 - PART]
    assert last < 1.2 * first, f"{first // PART} bytes a run became {last // PART}"
    names = [f"c{n:05d}" for n in range(COUNT)]
    assert [row["model"] for row in perf_rows(tmp_path)] == names
    assert [one["model"] for one in json.loads((tmp_path / "perf_super.json").read_text())] == names
    assert len(list(tmp_path.glob(f"madlite_runs/*/{RECORD}"))) == COUNT
