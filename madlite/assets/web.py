"""Ask servers, and fetch a file of the web into the folder of prepared data; huggingface_hub does what it can of it."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable
from glob import escape
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from madlite.assets.paths import Stopped, find_prepared, locked, save_prepared_record, size_of
from madlite.errors import RuntimeProblem
from madlite.model import Asset, Cause, Say, Value
from madlite.text import size_text

ProgressCallback = Callable[[int], None]
"""Hears of bytes as they come."""

LIMIT_S = 30.0  # for an answer
_LIBRARIES = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


class Source(Value, frozen=True):
    """A file of a server: `size` and `etag` as far as they are known."""

    url: str
    size: int | None = None
    etag: str = ""


def client() -> ModuleType:
    """Return huggingface_hub, quiet; its telemetry, which reports about other packages, is off in this process.

    So is its own reading of HF_HUB_OFFLINE, which knows this process's environment and no plan's.
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils.logging import set_verbosity

    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_OFFLINE = False
    set_verbosity(logging.ERROR)
    return huggingface_hub


def client_identity() -> dict[str, str]:
    """Return who asks, as huggingface_hub's functions take it."""
    from madlite import __version__

    return {"library_name": "madlite", "library_version": __version__}


def counting(progress: ProgressCallback, is_stopped: Callable[[], bool]) -> type:
    """Return the progress bar that huggingface_hub is to use: it shows nothing, counts, and ends what was stopped."""
    from huggingface_hub.utils.tqdm import tqdm

    class Counting(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if is_stopped():
                raise Stopped
            progress(int(n or 0))

        def update_transfer(self, n: float | None = 1) -> None:
            """Count what comes once, and not again as it crosses the network."""

    return Counting


def status_of(error: BaseException) -> int | None:
    """Return the number of the answer that an error stands for."""
    status: int | None = getattr(getattr(answered(error), "response", None), "status_code", None)
    return status


def answered(error: BaseException) -> BaseException:
    """Return the error that has the server's answer: huggingface_hub wraps some in errors of its own."""
    wraps = getattr(error, "response", None) is None and getattr(error.__cause__, "response", None) is not None
    return error.__cause__ if wraps and error.__cause__ is not None else error


def is_foreign(error: BaseException) -> bool:
    """Return whether an error is of the network or of the libraries that use it, and no mistake of ours."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES


def is_of_disk(error: BaseException) -> bool:
    """Return whether an error is this machine's: the libraries' own have no number."""
    return isinstance(error, OSError) and bool(error.errno) and not isinstance(error, ConnectionError | TimeoutError)


def is_sound(file: Path, sha256: str) -> bool:
    """Return whether a file's bytes are those of a SHA-256; without one they are not checked.

    Raises:
        OSError: it cannot be read.
    """
    if not sha256:
        return True
    own = hashlib.sha256()
    with file.open("rb") as opened:
        while data := opened.read(_CHUNK_BYTES):
            own.update(data)
    return own.hexdigest() == sha256.lower()


def look_up(asset: Asset) -> Source:
    """Return a file's source, with the size that its server or its backend reports.

    Raises:
        RuntimeProblem: the server does not have it, or another one than the backend knows; or its checksum is none.
    """
    if asset.sha256 and not _SHA256.fullmatch(asset.sha256.lower()):
        what = f"{asset.ref} cannot be checked: '{asset.sha256}' is no SHA-256 in hexadecimal digits"
        raise RuntimeProblem(what, asset.hint, cause=Cause.PREPARE)
    found = _head(asset.ref)
    if asset.size_bytes is not None and found.size not in (None, asset.size_bytes):
        what = f"{asset.ref} has {found.size} bytes, and should have {asset.size_bytes}"
        raise RuntimeProblem(what, asset.hint, cause=Cause.PREPARE)
    return Source(url=found.url, size=asset.size_bytes if found.size is None else found.size, etag=found.etag)


def part_of(asset: Asset, source: Source, data: Path) -> Path:
    """Return where a file's bytes are until all of them came; another version of it has another place."""
    version = hashlib.sha256(f"{source.url}\n{source.etag}\n{source.size}".encode()).hexdigest()[:8]
    return data / f"{asset.path}.{version}.part"


def fetch_file(
    asset: Asset, source: Source, data: Path, say: Say, progress: ProgressCallback, stop: threading.Event
) -> Path:
    """Have a file, note that it is complete, and return it; one that lay there whole already is taken as it is.

    Raises:
        RuntimeProblem: it cannot be had, and what came stays; or its bytes are wrong, and it goes.
        OSError: it cannot be written.
        Stopped: `stop` was set.
    """
    place = data / asset.path
    with locked(asset, data, stop, lambda: say(f"waiting for another command that fetches {asset.path}")):
        if find_prepared(asset, data) is not None:
            return place
        here = source.size is not None and size_of(place) == source.size
        if not here or not is_sound(place, asset.sha256):
            part = part_of(asset, source, data)
            place.parent.mkdir(parents=True, exist_ok=True)
            for other in place.parent.glob(f"{escape(place.name)}.*.part"):
                if other != part:
                    other.unlink()
            _stream(source, part, progress, stop)
            _check(asset, source, part)
            part.replace(place)
        save_prepared_record(asset, data, {place.name: size_of(place)})
    return place


def _stream(source: Source, part: Path, progress: ProgressCallback, stop: threading.Event) -> None:
    """Append what is missing; begin anew where the length is unknown."""
    from huggingface_hub.file_download import http_get

    have = max(size_of(part), 0)
    goes_on = source.size is not None and have <= source.size
    client()
    try:
        with part.open("ab" if goes_on else "wb") as file:
            if not have or have != source.size:
                bar = counting(progress, stop.is_set)
                http_get(source.url, file, resume_size=have if goes_on else 0, headers=_headers(), tqdm_class=bar)
    except Stopped:
        raise
    except Exception as error:
        raise _problem(source.url, error, part) from error


def _check(asset: Asset, source: Source, part: Path) -> None:
    """Take away a file that is not what it should be.

    Raises:
        RuntimeProblem: it is not.
    """
    what = ""
    if source.size not in (None, size_of(part)):
        what = f"{source.url} cannot be fetched: it has {size_of(part)} bytes, and {source.size} were announced"
    elif not is_sound(part, asset.sha256):
        what = f"{asset.ref} is not what it should be: its SHA-256 is not {asset.sha256}"
    if what:
        part.unlink()
        hint = "try again; if it stays so, the server, or a proxy on the way, has another file"
        raise RuntimeProblem(what, "; or ".join(filter(None, (hint, asset.hint))), cause=Cause.PREPARE)


def _head(url: str) -> Source:
    if urlsplit(url).scheme not in ("http", "https"):
        raise RuntimeProblem(f"{url} cannot be fetched: it is no http address", cause=Cause.PREPARE)
    try:
        utils = client().utils
        answer = utils.get_session().head(url, headers=_headers(), timeout=LIMIT_S, follow_redirects=True)
        utils.hf_raise_for_status(answer)
    except Exception as error:
        if status_of(error) in (403, 405, 501):  # a server that answers GET alone
            return Source(url=url)
        raise _problem(url, error) from error
    if url.startswith("https:") and any(item.url.scheme != "https" for item in (*answer.history, answer)):
        what = (
            f"{url} cannot be fetched: its server sends us on to http, and what is asked for by https comes by it alone"
        )
        raise RuntimeProblem(what, "ask whoever runs that server; a proxy may have done it too", cause=Cause.PREPARE)
    length = answer.headers.get("Content-Length", "")
    known = length.isdecimal() and not answer.headers.get("Content-Encoding")
    return Source(url=url, size=int(length) if known else None, etag=answer.headers.get("ETag", ""))


def _headers() -> dict[str, str]:
    return {"User-Agent": "/".join(client_identity().values()), "Accept-Encoding": "identity"}


def _problem(url: str, error: Exception, part: Path | None = None) -> RuntimeProblem:
    """Return what is reported about a file that cannot be had.

    Raises:
        Exception: the error itself, where it is a mistake of ours or the disk's.
    """
    if not is_foreign(error) or is_of_disk(error):
        raise error
    have, status, response = size_of(part) if part else 0, status_of(error), getattr(error, "response", None)
    why = f"the server cannot be reached: {error}"
    if status is not None:
        why = f"the server answered {status} {getattr(response, 'reason_phrase', '')}".rstrip()
    kept = f"{size_text(have)} of it are kept for the next try" if have > 0 else ""
    return RuntimeProblem(f"{url} cannot be fetched: {why}", kept, cause=Cause.PREPARE)
