"""Whether what a run needs is here in full; nobody is asked, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from madlite.assets.names import COMMIT, is_repo, is_revision
from madlite.assets.records import MAIN, hub_records, kept_record, matching, repo_folder
from madlite.files import NotJson, decode_json
from madlite.model import Asset
from madlite.safe_read import read_named

_LONGEST_REF = 1 << 12


def find_asset(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return where an asset lies, None where anything of it is missing; of a file it is the file."""
    return find_snapshot(asset, cache, data) if asset.source == "hub" else find_kept(asset, data)


def find_snapshot(asset: Asset, cache: Path, data: Path) -> Path | None:
    """Return the folder of a repository's files in the hub's cache where all that match are complete."""
    if not is_repo(asset.ref):
        return None
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


def find_kept(asset: Asset, data: Path) -> Path | None:
    """Return the file or folder of prepared data where it is as it was when it was complete."""
    if not asset.path:
        return None
    place, record = data / asset.path, kept_record(asset, data)
    if record is None or record.ref != asset.ref or not record.files:
        return None
    base = place.parent if asset.source == "url" else place
    return place if are_complete(base, record.files) else None


def known_commit(asset: Asset, folder: Path) -> str:
    """Return the commit that a repository's revision means to the cache, "" where it does not know."""
    revision = asset.revision or MAIN
    if COMMIT.fullmatch(revision):
        return revision
    try:
        told = read_named(folder / "refs" / revision, _LONGEST_REF).decode().strip() if is_revision(revision) else ""
    except (OSError, ValueError):
        return ""
    return told if COMMIT.fullmatch(told) else ""


def are_complete(folder: Path, files: dict[str, int]) -> bool:
    """Say whether all of the files are there and as long as they should be."""
    return all(size_of(folder / name) == size for name, size in files.items())


def size_of(file: Path) -> int:
    """Return a file's bytes, -1 where there is none."""
    try:
        return file.stat().st_size
    except (OSError, ValueError):
        return -1


def _listings(asset: Asset, cache: Path, data: Path, commit: str) -> Iterator[dict[str, int]]:
    """Yield what is known of a commit's files: what was prepared, and what new versions of huggingface_hub note."""
    for record in hub_records(asset, cache, data):
        if record.commit == commit and record.covers(asset.files):
            yield record.files
    if noted := _noted(repo_folder(asset, cache) / "trees" / f"{commit}.json"):
        yield noted


def _noted(file: Path) -> dict[str, int]:
    try:
        listing = decode_json(read_named(file))
        return {str(name): int(entry.get("lfs_size") or entry["size"]) for name, entry in listing["files"].items()}
    except (OSError, NotJson, AttributeError, LookupError, TypeError, ValueError):
        return {}
