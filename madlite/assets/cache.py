"""What of a run's assets is on this machine in full: found on the disk alone, no server is contacted.

A repository of the hub lies in huggingface_hub's cache, a file of another server or data that a run made below the
folder of prepared data.  What `madlite prepare` has seen complete is noted beside it, so that a later plan can tell.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec

from madlite.errors import one_hint
from madlite.files import Folder, NotJson, decode_json, read_plain
from madlite.model import Asset, Value
from madlite.text import size_text

COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
MAIN = "main"
NOTES = ".madlite"
_LONGEST_REF = 1 << 12
_LOCK_POLL_S = 0.2
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".ckpt", ".distcp")
_SHARD = re.compile(r"(.*[-_.])(\d{5})-of-(\d{5})(.*)")
_WILD = frozenset("*?[")


class Stopped(Exception):
    """The command is being ended."""


class AssetRecord(Value, frozen=True):
    """Files that were complete, path → bytes; of a repository at `commit`, which `revision` meant then."""

    ref: str
    files: dict[str, int]
    patterns: tuple[str, ...] = ()
    revision: str = ""
    commit: str = ""

    def covers(self, patterns: tuple[str, ...]) -> bool:
        """Return whether every file that matches the patterns is among these."""
        return not self.patterns or bool(patterns and set(patterns) <= set(self.patterns))


def find_asset(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return where an asset lies, None where anything of it is missing; of a file it is the file."""
    return find_snapshot(asset, cache, data) if asset.source == "hub" else find_prepared(asset, data)


def find_snapshot(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return the folder of a repository's files in the hub's cache where all that match are complete."""
    folder = repo_folder(asset, cache)
    commit = known_commit(asset, folder)
    if not commit:
        return None
    snapshot = folder / "snapshots" / commit
    for files in _listings(asset, cache, data, commit):
        needed = matching(files, asset.files)
        if needed and are_complete(snapshot, needed):
            return snapshot
    return None


def find_prepared(asset: Asset, data: Path) -> Path | None:
    """Return the file or folder of prepared data where it is as it was when it was complete."""
    if not asset.path:
        return None
    place, record = data / asset.path, _read(data / _record_name(asset))
    if record is None or record.ref != asset.ref or not record.files:
        return None
    base = place.parent if asset.source == "url" else place
    return place if are_complete(base, record.files) else None


def scan_cache(asset: Asset, cache: Path) -> AssetRecord | None:
    """Return the needed files of a snapshot that looks complete, and of which nobody noted what the hub has.

    An older client left it.  It has something for each pattern and every shard: `-00001-of-00004` states how many
    there are.  Nothing is here in full while a partial file lies beside it.
    """
    folder = repo_folder(asset, cache)
    commit = known_commit(asset, folder)
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir() or any((folder / "blobs").glob("*.incomplete")):
        return None
    found = (path for path in sorted(snapshot.rglob("*")) if path.is_symlink() or not path.is_dir())
    files = {path.relative_to(snapshot).as_posix(): size_of(path) for path in found}
    needed = matching(files, asset.files)
    if not needed or min(needed.values()) < 0 or not _answers(asset, needed, folder / ".no_exist" / commit):
        return None
    if not _has_shards(needed, asset):
        return None
    return AssetRecord(ref=asset.ref, files=needed, commit=commit)


def matching(files: dict[str, int], patterns: Iterable[str]) -> dict[str, int]:
    """Return the files that one of the patterns matches, all where there is none; as huggingface_hub does it."""
    globs = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
    return {name: size for name, size in files.items() if not globs or any(fnmatchcase(name, glob) for glob in globs)}


def is_wild(pattern: str) -> bool:
    """Return whether a pattern may match files of other names than itself."""
    return bool(_WILD & set(pattern)) or pattern.endswith("/")


def repo_type(asset: Asset) -> str:
    """Return what huggingface_hub calls the kind of an asset's repository: data sets have names of their own."""
    return "dataset" if asset.kind == "dataset" else "model"


def repo_folder(asset: Asset, cache: Path) -> Path:
    """Return where the hub's cache keeps a repository."""
    return cache / "--".join((f"{repo_type(asset)}s", *asset.ref.split("/")))


def known_commit(asset: Asset, folder: Path) -> str:
    """Return the commit that a repository's revision means to the cache, "" where it does not know."""
    revision = asset.revision or MAIN
    if COMMIT.fullmatch(revision):
        return revision
    try:
        told = read_plain(folder / "refs" / revision, limit_bytes=_LONGEST_REF).decode().strip()
    except (OSError, ValueError):
        return ""
    return told if COMMIT.fullmatch(told) else ""


def are_complete(folder: Path, files: dict[str, int]) -> bool:
    """Return whether all of the files are there and as long as they should be."""
    return all(size_of(folder / name) == size for name, size in files.items())


def size_of(file: Path) -> int:
    """Return a file's bytes, -1 where there is none."""
    try:
        return file.stat().st_size
    except (OSError, ValueError):
        return -1


def save_hub_record(asset: Asset, cache: Path, data: Path, record: AssetRecord) -> None:
    """Note a repository's files in its folder of the cache, else beside prepared data.

    Raises:
        OSError: it can be written in neither place.
    """
    folder = repo_folder(asset, cache)
    name = f"{NOTES}/{folder.name}-{_digest(record.revision, *sorted(record.patterns))}.json"
    try:
        _write(folder, name, record)
    except OSError:
        _write(data, name, record)


def save_prepared_record(asset: Asset, data: Path, files: dict[str, int]) -> None:
    """Note the files of prepared data, which were complete.

    Raises:
        OSError: it cannot be written.
    """
    _write(data, _record_name(asset), AssetRecord(ref=asset.ref, files=files))


@contextmanager
def locked(asset: Asset, data: Path, stop: threading.Event, waiting: Callable[[], None]) -> Iterator[None]:
    """Be the only command that fetches or makes an asset of prepared data; `waiting` is called once where one is.

    Raises:
        Stopped: `stop` was set before it was our turn.
        OSError: the lock file cannot be made.
    """
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # also where a disk has no flock

    file = (data / _record_name(asset)).with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    told = False
    while True:
        try:
            with WeakFileLock(file, timeout=_LOCK_POLL_S):
                yield
                return
        except Timeout:
            if stop.is_set():
                raise Stopped from None
            if not told:
                waiting()
            told = True


def _listings(asset: Asset, cache: Path, data: Path, commit: str) -> Iterator[dict[str, int]]:
    """Yield what is known of a commit's files: what was prepared, and what huggingface_hub itself notes."""
    folder = repo_folder(asset, cache)
    notes = [*(folder / NOTES).glob("*.json"), *(data / NOTES).glob(f"{folder.name}-*.json")]
    for record in filter(None, map(_read, sorted(notes))):
        if record.commit == commit and record.covers(asset.files):
            yield record.files
    try:
        listing = decode_json(read_plain(folder / "trees" / f"{commit}.json"))
        yield {str(name): int(entry.get("lfs_size") or entry["size"]) for name, entry in listing["files"].items()}
    except (OSError, NotJson, AttributeError, LookupError, TypeError, ValueError):
        return


def _answers(asset: Asset, needed: dict[str, int], known_absent: Path) -> bool:
    """Return whether each pattern has its file; of a tokenizer's names, which are alternatives, one is enough."""
    if asset.kind == "model" and not asset.files:
        return any(name.endswith(_WEIGHTS) for name in needed)
    if asset.kind == "tokenizer":
        return any(PurePosixPath(name).name.startswith(("tokenizer.", "vocab.", "spiece.")) for name in needed)
    return all(matching(needed, (pattern,)) or (known_absent / pattern).exists() for pattern in asset.files)


def _has_shards(needed: dict[str, int], asset: Asset) -> bool:
    for name in needed.keys() - {pattern for pattern in asset.files if not _WILD & set(pattern)}:
        if found := _SHARD.fullmatch(name):
            before, _, count, after = found.groups()
            shape = re.compile(rf"{re.escape(before)}\d{{5}}-of-{count}{re.escape(after)}")
            if sum(1 for other in needed if shape.fullmatch(other)) < int(count):
                return False
    return True


def _record_name(asset: Asset) -> str:
    return f"{NOTES}/{_digest(asset.path)}.json"


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _read(file: Path) -> AssetRecord | None:
    """Return a record; one that is not there, or is none, is as if nothing had been prepared."""
    try:
        return msgspec.json.decode(read_plain(file), type=AssetRecord)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def _write(base: Path, name: str, record: AssetRecord) -> None:
    base.mkdir(parents=True, exist_ok=True)
    with Folder.open(base) as folder:
        folder.write(name, msgspec.json.format(msgspec.json.encode(record), indent=1))


# Room on a disk for what is to be fetched.

MARGIN, LEAST_BYTES = 0.05, 256 << 20  # of what is fetched, kept free beside it


class Demand(Value, frozen=True):
    """Bytes that are to be written below a folder; `way` states how to use another one.

    `within` is where in it they go, `writes` that something of unknown size is written.
    """

    folder: Path
    bytes: int
    way: str = ""
    within: Path | None = None
    writes: bool = False


def find_full_disks(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each file system that has too little room for all that goes there what is wrong and what helps."""
    wanted: dict[int, list[Demand]] = {}
    for demand in demands:
        if demand.bytes > 0:
            wanted.setdefault(existing(demand.folder).stat().st_dev, []).append(demand)
    return [told for group in wanted.values() if (told := _shortage(group))]


def find_unwritable(demands: Iterable[Demand]) -> list[tuple[str, str]]:
    """Return for each folder that cannot be written to what is wrong and what helps; it is tried, nothing stays."""
    found: dict[str, tuple[str, str]] = {}
    for demand in demands:
        if (demand.bytes > 0 or demand.writes) and demand.folder.as_posix() not in found:
            for place in dict.fromkeys((demand.folder, demand.within or demand.folder)):
                if why := _unwritable_reason(place):
                    found[demand.folder.as_posix()] = f"{demand.folder} cannot be written to: {why}", demand.way
                    break
    return list(found.values())


def _unwritable_reason(folder: Path) -> str:
    """Return why nothing can be written below a folder, "" where it can."""
    place = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), Path("/"))
    if not place.is_dir():
        return f"{place} is no folder"
    try:
        with tempfile.TemporaryDirectory(prefix=".madlite-", dir=place):
            return ""
    except OSError as error:
        return f"{place}: {error.strerror}"


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next((place for place in (folder, *folder.parents) if os.path.isdir(place)), Path("/"))  # noqa: PTH112 - also below one that may not be searched


def _shortage(group: list[Demand]) -> tuple[str, str] | None:
    needed = sum(demand.bytes for demand in group)
    needed += max(int(needed * MARGIN), LEAST_BYTES)
    free = shutil.disk_usage(existing(group[0].folder)).free
    if needed <= free:
        return None
    folders = " and ".join(dict.fromkeys(str(demand.folder) for demand in group))
    return (
        f"too little room in {folders}: {size_text(needed)} ({needed} bytes) are needed, {size_text(free)} "
        f"({free} bytes) are free",
        one_hint(*dict.fromkeys(demand.way for demand in group if demand.way)),
    )
