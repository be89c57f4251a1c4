"""Fetch one file of the web into the folder of prepared data."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from madlite.assets.digest import Digest, is_sound
from madlite.assets.download import Tell, download, look
from madlite.assets.locks import held
from madlite.assets.names import SHA256
from madlite.assets.parts import Part
from madlite.assets.presence import find_kept, size_of
from madlite.assets.records import Record, kept_file, save_kept_record
from madlite.assets.web import Source
from madlite.errors import RuntimeProblem
from madlite.model import Asset, Cause, Say
from madlite.safe_files import Folder

_LONGEST_NOTE = 1 << 16


def look_up(asset: Asset, environ: Mapping[str, str]) -> Source:
    """Return a file's source, with the size that its server or its backend says.

    Raises:
        RuntimeProblem: the server does not have it, or another one than the backend knows; or its checksum is none.
    """
    if asset.sha256 and not SHA256.fullmatch(asset.sha256.lower()):
        what = f"{asset.ref} cannot be checked: '{asset.sha256}' is no SHA-256 in hexadecimal digits"
        raise RuntimeProblem(what, asset.hint, cause=Cause.PREPARE)
    found = look(asset.ref, environ)
    if asset.size_bytes is not None and found.size not in (None, asset.size_bytes):
        what = f"{asset.ref} has {found.size} bytes, and should have {asset.size_bytes}"
        raise RuntimeProblem(what, asset.hint, cause=Cause.PREPARE)
    return replace(found, size=found.size if found.size is not None else asset.size_bytes)


def part_of(asset: Asset, data: Path) -> Path:
    """Return where a file's bytes are until all of them came."""
    return data / f"{asset.path}.part"


def fetch_url(
    asset: Asset, source: Source, data: Path, environ: Mapping[str, str], say: Say, tell: Tell, stop: threading.Event
) -> Path:
    """Have a file, note that it is complete, and return it; one that lay there whole already is taken as it is.

    Raises:
        RuntimeProblem: it cannot be had or written, and what came stays; or its checksum is another, and it goes.
        Stopped: `stop` was set.
    """
    place = data / asset.path
    try:
        waiting = f"waiting for another command that fetches {asset.path}"
        with held(data, kept_file(asset, ".lock"), stop, lambda: say(waiting)), Folder.open(data) as folder:
            if find_kept(asset, data) is not None:
                return place
            if source.size is None or size_of(place) != source.size or not _is_right(asset, place, stop):
                _drop_stale(asset, source, folder)
                _bring(asset, source, Part(folder, f"{asset.path}.part"), environ, tell, stop)
            save_kept_record(asset, data, Record(ref=asset.ref, files={place.name: size_of(place)}))
    except OSError as error:
        what = f"{asset.path} cannot be written: {error.filename or data}: {error.strerror}"
        raise RuntimeProblem(what, cause=Cause.DISK) from error
    return place


def _bring(
    asset: Asset, source: Source, part: Part, environ: Mapping[str, str], tell: Tell, stop: threading.Event
) -> None:
    """Stream the file, and give it its name once its bytes are the right ones."""
    digest = Digest(asset.sha256.lower(), source.size or 0)
    download(source, part, environ, tell, stop, digest)
    digest.follow(part, max(part.size(), 0), stop)
    if not digest.fits():
        part.remove()
        what = f"{asset.ref} is not what it should be: its SHA-256 is not {asset.sha256}"
        hint = "try again; if it stays so, the server, or a proxy on the way, has another file"
        raise RuntimeProblem(what, "; or ".join(filter(None, (hint, asset.hint))), cause=Cause.PREPARE)
    part.become(asset.path)


def _is_right(asset: Asset, place: Path, stop: threading.Event) -> bool:
    """Say whether a file that lies there whole has the checksum that is asked for; without one each has."""
    return not asset.sha256 or is_sound(place, asset.sha256.lower(), size_of(place), stop)


def _drop_stale(asset: Asset, source: Source, folder: Folder) -> None:
    """Remove what came of another version of the file; which one is coming is noted beside it."""
    note, version = kept_file(asset, ".part"), f"{source.url}\n{source.etag}\n{source.size}\n".encode()
    if _noted(folder, note) not in (None, version):
        folder.remove(f"{asset.path}.part")
    folder.write(note, version)


def _noted(folder: Folder, note: str) -> bytes | None:
    """Return what a note says, None without one; what is no file is none, and is replaced."""
    try:
        return folder.read(note, _LONGEST_NOTE)
    except OSError:
        return None
