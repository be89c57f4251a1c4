"""Stream one file over HTTP into a partial file, from where an earlier try ended."""

from __future__ import annotations

import errno
import http.client
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from madlite.assets.locks import Stopped
from madlite.assets.presence import size_of
from madlite.errors import RuntimeProblem
from madlite.types import Cause, Value

CHUNK_BYTES = 1 << 20
SILENT_S = 30.0  # without a byte, and the connection is given up
TRIES = 5  # in a row that bring nothing
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
_LATER = (408, 425, 429, 500, 502, 503, 504)
_TROUBLE = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)

Tell = Callable[[int], None]
"""Hears of bytes: those that came, and, negative, those that have to come again."""


class Source(Value, frozen=True):
    """A file of a server: `size` and `etag` as far as they are known, `headers` for its own host alone."""

    url: str
    size: int | None = None
    etag: str = ""
    headers: dict[str, str] = {}


def look(url: str, environ: Mapping[str, str]) -> Source:
    """Ask for a file's size and version.

    Raises:
        RuntimeProblem: the server cannot be reached or does not have it.
    """
    try:
        with _open(Source(url=url), "HEAD", environ) as answer:
            return Source(url=url, size=_length(answer), etag=answer.headers.get("ETag") or "")
    except urllib.error.HTTPError as error:
        if error.code in (403, 405, 501):  # a server that answers GET alone
            return Source(url=url)
        raise _problem(url, _words(error)) from error
    except _TROUBLE as error:
        raise _problem(url, _words(error)) from error


def download(source: Source, part: Path, environ: Mapping[str, str], tell: Tell, stop: threading.Event) -> None:
    """Bring the partial file to its full length.

    Raises:
        RuntimeProblem: it cannot be had, or the disk does not take it; what came stays for the next try.
        Stopped: `stop` was set.
    """
    failed, whole = 0, source.size
    while size_of(part) != whole or whole is None:
        before = max(size_of(part), 0)
        why, whole = _try(source, part, environ, tell, stop)
        if whole is None and not why:
            return
        failed = 0 if size_of(part) > before else failed + 1
        if failed >= TRIES:
            raise _problem(source.url, why or "the connection ended early", part)
        if size_of(part) != whole and stop.wait(min(2.0**failed - 1, 8.0)):
            raise Stopped


def _try(
    source: Source, part: Path, environ: Mapping[str, str], tell: Tell, stop: threading.Event
) -> tuple[str, int | None]:
    """Stream as far as it goes; return what stopped it, and how long the file is where that is known."""
    try:
        whole = _stream(source, part, environ, tell, stop)
    except urllib.error.HTTPError as error:
        if error.code not in _LATER:
            raise _problem(source.url, _words(error), part) from error
        return _words(error), source.size
    except _TROUBLE as error:
        return _words(error), source.size
    if source.size is not None and whole is not None and whole != source.size:
        raise _problem(source.url, f"it has {whole} bytes, and {source.size} were announced", part)
    return "", whole if source.size is None else source.size


def _stream(source: Source, part: Path, environ: Mapping[str, str], tell: Tell, stop: threading.Event) -> int | None:
    """Append what is missing, and return how long the file is in all where the server says so.

    It begins anew where the server cannot go on in the middle, or has another version by now.
    """
    have = max(size_of(part), 0)
    try:
        answer = _open(source, "GET", environ, have)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        with _writing(part):  # it is no beginning of what is there now
            part.unlink()
        tell(-have)
        return source.size
    with answer:
        if have and not (answer.status == 206 and _starts_at(answer, have)):
            tell(-have)
            have = 0
        length = _length(answer)
        with _writing(part):
            file = part.open("ab" if have else "wb")
        with file:
            while data := answer.read(CHUNK_BYTES):
                if stop.is_set():
                    raise Stopped
                with _writing(part):
                    file.write(data)
                    file.flush()
                tell(len(data))
    return None if length is None else have + length


def _open(source: Source, method: str, environ: Mapping[str, str], have: int = 0) -> http.client.HTTPResponse:
    """Ask the server; what only its own host may read is left out where it sends us on to another."""
    if urlsplit(source.url).scheme not in ("http", "https"):
        raise _problem(source.url, "it is no http address")
    request = urllib.request.Request(source.url, method=method, headers={"User-Agent": "madlite"})  # noqa: S310
    for name, value in source.headers.items():
        request.add_unredirected_header(name, value)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if source.etag and not source.etag.startswith("W/"):
            request.add_header("If-Range", source.etag)
    bundle = environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE") or ""
    opener = _opener(bundle if Path(bundle).is_file() else "")
    answer: http.client.HTTPResponse = opener.open(request, timeout=SILENT_S)
    return answer


@cache
def _opener(bundle: str) -> urllib.request.OpenerDirector:
    """Return what opens addresses, through the proxies of the environment, and trusts a bundle of certificates."""
    context = ssl.create_default_context(cafile=bundle or None)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))


def _length(answer: http.client.HTTPResponse) -> int | None:
    text = answer.headers.get("Content-Length") or ""
    return int(text) if text.isdecimal() and not answer.headers.get("Content-Encoding") else None


def _starts_at(answer: http.client.HTTPResponse, start: int) -> bool:
    return (answer.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


@contextmanager
def _writing(part: Path) -> Iterator[None]:
    """Tell what the disk refuses from trouble of the network."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        what = f"{part} cannot be written: {os.strerror(error.errno or 0)}"
        raise RuntimeProblem(what, "what came so far is kept", cause=Cause.DISK) from error


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"the server cannot be reached: {error.reason}"
    return str(error) or type(error).__name__


def _problem(url: str, why: str, part: Path | None = None) -> RuntimeProblem:
    from madlite.assets.room import size_text

    have = size_of(part) if part is not None else 0
    kept = f"{size_text(have)} of it are kept for the next try" if have > 0 else ""
    return RuntimeProblem(f"{url} cannot be fetched: {why}", kept, cause=Cause.PREPARE)
