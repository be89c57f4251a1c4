"""What `madlite prepare` has seen complete, so that a later plan can tell without asking anybody.

A repository's record lies in its folder of the hub's cache, and so goes where the cache goes; what is kept in the
folder of prepared data has its record there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from madlite.assets.parts import open_own
from madlite.model import Asset, Value
from madlite.safe_files import Folder
from madlite.safe_read import read_named

RECORDS = ".madlite"
MAIN = "main"


class Record(Value, frozen=True):
    """Files that were complete, path → bytes; of a repository at `commit`, which `revision` meant then."""

    ref: str
    files: dict[str, int]
    patterns: tuple[str, ...] = ()
    revision: str = ""
    commit: str = ""

    def covers(self, patterns: tuple[str, ...]) -> bool:
        """Say whether every file that matches the patterns is among these."""
        return not self.patterns or bool(patterns and set(patterns) <= set(self.patterns))


def matching(files: dict[str, int], patterns: Iterable[str]) -> dict[str, int]:
    """Return the files that one of the patterns matches, all where there is none; as huggingface_hub does it."""
    globs = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
    return {name: size for name, size in files.items() if not globs or any(fnmatchcase(name, glob) for glob in globs)}


def is_dataset(asset: Asset) -> bool:
    """Say whether an asset is one of the hub's data sets, which have names of their own."""
    return asset.kind == "dataset"


def repo_folder(asset: Asset, cache: Path) -> Path:
    """Return where the hub's cache keeps a repository."""
    return cache / "--".join((("datasets" if is_dataset(asset) else "models"), *asset.ref.split("/")))


def hub_records(asset: Asset, cache: Path, data: Path) -> Iterator[Record]:
    """Yield the records of a repository; some are beside prepared data, where the cache could not be written to."""
    for folder in _hub_places(asset, cache, data):
        try:
            files = sorted(folder.glob("*.json"))
        except OSError:
            continue
        yield from filter(None, map(_read, files))


def save_hub_record(asset: Asset, cache: Path, data: Path, record: Record) -> None:
    """Write a repository's record.

    Raises:
        OSError: it can be written in neither place.
    """
    name = f"{_digest(record.revision, *sorted(record.patterns))}.json"
    try:
        with open_own(cache, repo_folder(asset, cache).name) as folder:
            folder.write(f"{RECORDS}/{name}", _text(record))
    except OSError:
        _write(data, f"{_elsewhere(asset, cache)}/{name}", record)


def kept_record(asset: Asset, data: Path) -> Record | None:
    """Return the record of a file or folder of prepared data."""
    return _read(data / kept_file(asset, ".json"))


def save_kept_record(asset: Asset, data: Path, record: Record) -> None:
    """Write the record of a file or folder of prepared data.

    Raises:
        OSError: it cannot be written.
    """
    _write(data, kept_file(asset, ".json"), record)


def kept_file(asset: Asset, ending: str) -> str:
    """Return the name of a file of ours that belongs to prepared data, below the folder of all of it."""
    return f"{RECORDS}/{_digest(asset.path)}{ending}"


def _hub_places(asset: Asset, cache: Path, data: Path) -> tuple[Path, Path]:
    return repo_folder(asset, cache) / RECORDS, data / _elsewhere(asset, cache)


def _elsewhere(asset: Asset, cache: Path) -> str:
    return f"{RECORDS}/hub-{_digest(str(repo_folder(asset, cache)))}"


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _read(file: Path) -> Record | None:
    """Return a record; one that is not there, or is none, is as if nothing had been prepared."""
    try:
        return msgspec.json.decode(read_named(file), type=Record)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def _write(data: Path, name: str, record: Record) -> None:
    data.mkdir(parents=True, exist_ok=True)
    with Folder.open(data) as folder:
        folder.write(name, _text(record))


def _text(record: Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=1)
