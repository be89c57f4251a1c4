"""A repository in the hub's cache of which nobody noted what it has: older huggingface_hub leaves only its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from madlite.assets.names import is_repo
from madlite.assets.presence import known_commit, size_of
from madlite.assets.records import matching, repo_folder
from madlite.files import NotJson, decode_json
from madlite.model import Asset, Value
from madlite.safe_read import read_named

_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt", ".gguf", ".ckpt", ".distcp")
_SHARD = re.compile(r"(.*[-_.])(\d{5})-of-(\d{5})(.*)")
_INDEX = ".index.json"
_WILD = frozenset("*?[")


class Unnoted(Value, frozen=True):
    """A snapshot that looks complete: its commit, folder, and files that are needed, path → bytes."""

    commit: str
    folder: Path
    files: dict[str, int]


def find_unnoted(asset: Asset, cache: Path) -> Unnoted | None:
    """Return a snapshot that has something for each pattern and every part that its own files name, else None.

    An index of weights names their shards, and `-00001-of-00004` how many there are.  Nothing is here in full while a
    partial file lies beside it.
    """
    if not is_repo(asset.ref):
        return None
    folder = repo_folder(asset, cache)
    commit = known_commit(asset, folder)
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir() or any((folder / "blobs").glob("*.incomplete")):
        return None
    files = {path.relative_to(snapshot).as_posix(): size_of(path) for path in _files(snapshot)}
    needed = matching(files, asset.files)
    known_absent = folder / ".no_exist" / commit
    if not needed or min(needed.values()) < 0 or not _answers(asset, needed, known_absent):
        return None
    if not _has_parts(needed, files, snapshot, asset):
        return None
    return Unnoted(commit=commit, folder=snapshot, files=needed)


def _files(snapshot: Path) -> Iterator[Path]:
    return (path for path in sorted(snapshot.rglob("*")) if path.is_symlink() or not path.is_dir())


def _answers(asset: Asset, needed: dict[str, int], known_absent: Path) -> bool:
    """Say whether each pattern has its file; of a tokenizer's names, which are alternatives, one is enough."""
    if asset.kind == "model" and not asset.files:
        return any(name.endswith(_WEIGHTS) for name in needed)
    if asset.kind == "tokenizer":
        return any(PurePosixPath(name).name.startswith(("tokenizer.", "vocab.", "spiece.")) for name in needed)
    return all(matching(needed, (pattern,)) or (known_absent / pattern).exists() for pattern in asset.files)


def _has_parts(needed: dict[str, int], files: dict[str, int], snapshot: Path, asset: Asset) -> bool:
    for name in files:
        if name.endswith(_INDEX) and not matching(_shards(snapshot / name, name), asset.files).keys() <= needed.keys():
            return False
    named = {pattern for pattern in asset.files if not _WILD & set(pattern)}
    for name in needed.keys() - named:
        if found := _SHARD.fullmatch(name):
            before, _, count, after = found.groups()
            shape = re.compile(rf"{re.escape(before)}\d{{5}}-of-{count}{re.escape(after)}")
            if sum(1 for other in needed if shape.fullmatch(other)) < int(count):
                return False
    return True


def _shards(index: Path, name: str) -> dict[str, int]:
    """Return the files that an index of weights names, beside it."""
    try:
        weights = decode_json(read_named(index))["weight_map"]
        return {str(PurePosixPath(name).parent / str(shard)): 0 for shard in weights.values()}
    except (OSError, NotJson, AttributeError, LookupError, TypeError, ValueError):
        return {}
