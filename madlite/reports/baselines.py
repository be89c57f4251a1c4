"""Baselines: results that a user named to compare later ones with, one file each in `madlite_runs/baselines/`.

A baseline has its numbers itself: it stays when its runs or files are gone.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.files import Folder, read_plain
from madlite.model import Value, to_json
from madlite.reports.series import Series
from madlite.reports.series_key import DIMENSIONS
from madlite.secrets import Redactor
from madlite.store.record import sanitized

FOLDER = "baselines"
_VERSION = 1
_LIMIT_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Baseline(Value, frozen=True):
    """Named results: `source` is what the user named, `at` when (UTC), `runs` the ids of runs where they are known."""

    name: str
    source: str
    at: str
    series: tuple[Series, ...]
    runs: tuple[str, ...] = ()
    version: int = _VERSION


def save_baseline(runs: Path, name: str, source: str, series: tuple[Series, ...], ids: tuple[str, ...]) -> Baseline:
    """Write a baseline, in place of an earlier one of this name; what runs ran with is kept once for each series.

    Raises:
        UsageProblem: the name is none, or there are too many results.
    """
    if not _NAME.fullmatch(name) or name in ("last", "published"):
        raise UsageProblem(
            f"{name!r} cannot name a baseline", "letters, digits, dots and dashes: madlite baseline set v25.2 perf.csv"
        )
    bare = tuple(replace(each, samples=tuple(replace(sample, facts={}) for sample in each.samples)) for each in series)
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    baseline = Baseline(name=name, source=source, at=at, series=bare, runs=ids)
    data = to_json(sanitized(baseline, Redactor().text)).encode()
    if len(data) > _LIMIT_BYTES:
        most = f"{_LIMIT_BYTES >> 20} MiB"
        raise UsageProblem(f"baseline {name} would be larger than {most}", "name a part of it: --where model=NAME")
    with (
        Folder.open(runs.parent) as home,
        home.below(runs.name, make=True, private=True) as inner,
        inner.below(FOLDER, make=True) as folder,
    ):
        folder.write(f"{name}.json", data)
    return baseline


def load_baseline(runs: Path, name: str) -> Baseline:
    """Return a baseline.

    Raises:
        UsageProblem: there is none of this name, or its file is none.
    """
    names = baseline_names(runs)
    if name not in names:
        hint = "madlite baseline list" if names else f"madlite baseline set {name} perf.csv"
        raise UsageProblem(f"there is no baseline {name!r}", one_hint(did_you_mean(name, names, most=1), hint))
    file = runs / FOLDER / f"{name}.json"
    try:
        found = msgspec.json.decode(read_plain(file, links=False, limit_bytes=_LIMIT_BYTES), type=Baseline)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageProblem(f"{file} is no baseline: {error}", f"madlite baseline drop {name}") from error
    if found.version != _VERSION or any(
        len(series.key) != len(DIMENSIONS) or len(series.values) != len(series.samples) for series in found.series
    ):
        raise UsageProblem(f"{file} is a baseline of another version of madlite", f"madlite baseline drop {name}")
    return found


def baseline_names(runs: Path) -> list[str]:
    """Return the names of the baselines, sorted."""
    with suppress(OSError):
        return sorted(entry.name[:-5] for entry in os.scandir(runs / FOLDER) if entry.name.endswith(".json"))
    return []


def drop_baseline(runs: Path, name: str) -> None:
    """Remove a baseline.

    Raises:
        UsageProblem: there is none of this name.
    """
    if name not in baseline_names(runs):
        load_baseline(runs, name)
    (runs / FOLDER / f"{name}.json").unlink(missing_ok=True)


def baseline_runs(runs: Path) -> frozenset[str]:
    """Return the ids of the runs that any baseline names.

    Raises:
        UsageProblem: a baseline cannot be read: which runs it names is not known.
    """
    return frozenset(run for name in baseline_names(runs) for run in load_baseline(runs, name).runs)
