"""Fetch one file of the web into the folder of prepared data."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from madlite.assets.download import Tell, download, look
from madlite.assets.locks import held
from madlite.assets.presence import find_kept, size_of
from madlite.assets.records import Record, kept_file, save_kept_record
from madlite.assets.web import Source
from madlite.errors import RuntimeProblem
from madlite.types import Asset, Cause, Say


def look_up(asset: Asset, environ: Mapping[str, str]) -> Source:
    """Return a file's source, with the size that its server or its backend says.

    Raises:
        RuntimeProblem: the server does not have it, or another one than the backend knows.
    """
    found = look(asset.ref, environ)
    if asset.size_bytes is not None and found.size not in (None, asset.size_bytes):
        what = f"{asset.ref} has {found.size} bytes, and should have {asset.size_bytes}"
        raise RuntimeProblem(what, asset.hint, cause=Cause.PREPARE)
    return replace(found, size=found.size if found.size is not None else asset.size_bytes)


def part_of(asset: Asset, data: Path) -> Path:
    """Return where a file's bytes are until all of them came."""
    place = data / asset.path
    return place.with_name(f"{place.name}.part")


def fetch_url(
    asset: Asset, source: Source, data: Path, environ: Mapping[str, str], say: Say, tell: Tell, stop: threading.Event
) -> Path:
    """Have a file, note that it is complete, and return it; one that lay there whole already is taken as it is.

    Raises:
        RuntimeProblem: it cannot be had or written; what came stays.
        Stopped: `stop` was set.
    """
    place, part = data / asset.path, part_of(asset, data)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another command that fetches {asset.path}"
        with held(kept_file(asset, data, ".lock"), stop, lambda: say(waiting)):
            if find_kept(asset, data) is not None:
                return place
            if source.size is None or size_of(place) != source.size:
                _drop_stale(asset, source, part, data)
                download(source, part, environ, tell, stop)
                part.replace(place)
            save_kept_record(asset, data, Record(ref=asset.ref, files={place.name: size_of(place)}))
    except OSError as error:
        what = f"{asset.path} cannot be written: {error.filename or data}: {error.strerror}"
        raise RuntimeProblem(what, cause=Cause.DISK) from error
    return place


def _drop_stale(asset: Asset, source: Source, part: Path, data: Path) -> None:
    """Remove what came of another version of the file; which one is coming is noted beside it."""
    note, version = kept_file(asset, data, ".part"), f"{source.url}\n{source.etag}\n{source.size}\n"
    if note.is_file() and note.read_text(encoding="utf-8") != version:
        part.unlink(missing_ok=True)
    note.write_text(version, encoding="utf-8")
