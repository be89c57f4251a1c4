"""Stream one file over HTTP into a partial file, from where an earlier try ended."""

from __future__ import annotations

import errno
import http.client
import ssl
import threading
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from madlite.assets import tries
from madlite.assets.digest import Digest
from madlite.assets.locks import Stopped
from madlite.assets.parts import Part
from madlite.assets.web import Source, open_source
from madlite.errors import RuntimeProblem
from madlite.model import Cause, Value

CHUNK_BYTES = 1 << 20
_DISK = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO),
    *(errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.ENOTDIR, errno.EISDIR),  # something else in its place
)
_TROUBLE = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError)

Tell = Callable[[int], None]
"""Hears of bytes: those that came, and, negative, those that have to come again."""


def look(url: str, environ: Mapping[str, str]) -> Source:
    """Ask for a file's size and version.

    Raises:
        RuntimeProblem: the server cannot be reached or does not have it.
    """
    source = _checked(Source(url=url))
    try:
        with tries.patiently(lambda: open_source(source, "HEAD", environ), threading.Event()) as answer:
            return Source(url=url, size=_length(answer), etag=answer.headers.get("ETag") or "")
    except urllib.error.HTTPError as error:
        if error.code in (403, 405, 501):  # a server that answers GET alone
            return Source(url=url)
        raise _problem(url, _words(error)) from error
    except _TROUBLE as error:
        raise _problem(url, _words(error)) from error


def download(
    source: Source,
    part: Part,
    environ: Mapping[str, str],
    tell: Tell,
    stop: threading.Event,
    digest: Digest | None = None,
) -> None:
    """Bring the partial file to its full length; `digest` hears every byte of it.

    Raises:
        RuntimeProblem: it cannot be had, or the disk does not take it; what came stays for the next try.
        Stopped: `stop` was set.
    """
    _Coming(_checked(source), part, environ, tell, stop, digest).run()


class _Try(Value, frozen=True):
    """How a try ended: what stopped it, how long the file is where that is known, and the error it was."""

    whole: int | None
    why: str = ""
    error: Exception | None = None


class _Coming:
    """A file on its way."""

    def __init__(
        self,
        source: Source,
        part: Part,
        environ: Mapping[str, str],
        tell: Tell,
        stop: threading.Event,
        digest: Digest | None,
    ) -> None:
        self._source, self._part, self._environ, self._tell, self._stop = source, part, environ, tell, stop
        self._digest = digest

    def run(self) -> None:
        """Try until it is whole, or several tries in a row brought nothing."""
        failed, whole = 0, self._source.size
        with _writing(self._part):
            self._part.settle()
        while self._part.size() != whole or whole is None:
            before = max(self._part.size(), 0)
            tried = self._try()
            whole = tried.whole
            if whole is None and not tried.why:
                return
            failed = 0 if self._part.size() > before else failed + 1
            pause = tries.pause_s(failed, tried.error)
            if failed >= tries.TRIES or pause is None:
                raise self._problem(tried.why or "the connection ended early") from tried.error
            if self._part.size() != whole and self._stop.wait(pause):
                raise Stopped

    def _try(self) -> _Try:
        """Stream as far as it goes."""
        size = self._source.size
        try:
            whole = self._stream()
        except urllib.error.HTTPError as error:
            if error.code not in tries.LATER:
                raise self._problem(_words(error)) from error
            return _Try(whole=size, why=_words(error), error=error)
        except _TROUBLE as error:
            return _Try(whole=size, why=_words(error), error=error)
        if size is not None and whole is not None and whole != size:
            raise self._problem(f"it has {whole} bytes, and {size} were announced")
        return _Try(whole=whole if size is None else size)

    def _stream(self) -> int | None:
        """Append what is missing, and return how long the file is in all where the server says so.

        It begins anew where the server cannot go on in the middle, or has another version by now.
        """
        have = max(self._part.size(), 0)
        try:
            answer = open_source(self._source, "GET", self._environ, have)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not have:
                raise
            with _writing(self._part):  # it is no beginning of what is there now
                self._part.remove()
            self._tell(-have)
            return self._source.size
        with answer:
            if have and not (answer.status == 206 and _starts_at(answer, have)):
                self._tell(-have)
                have = 0
            length = _length(answer)
            self._append(answer, have, length)
        return None if length is None else have + length

    def _append(self, answer: http.client.HTTPResponse, have: int, length: int | None) -> None:
        """Write bytes as they come: a server that falls silent, or a kill, costs none of them."""
        with _writing(self._part):
            if self._digest:
                self._digest.follow(self._part, have, self._stop)
            file = self._part.open("ab" if have else "wb")
        left = length
        with file:
            while left != 0 and (data := answer.read1(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))):
                if self._stop.is_set():
                    raise Stopped
                with _writing(self._part):
                    file.write(data)
                    file.flush()
                if self._digest:
                    self._digest.hear(data)
                self._tell(len(data))
                left = None if left is None else left - len(data)

    def _problem(self, why: str) -> RuntimeProblem:
        return _problem(self._source.url, why, self._part)


def _checked(source: Source) -> Source:
    if urlsplit(source.url).scheme not in ("http", "https"):
        raise _problem(source.url, "it is no http address")
    return source


def _length(answer: http.client.HTTPResponse) -> int | None:
    text = answer.headers.get("Content-Length") or ""
    return int(text) if text.isdecimal() and not answer.headers.get("Content-Encoding") else None


def _starts_at(answer: http.client.HTTPResponse, start: int) -> bool:
    return (answer.headers.get("Content-Range") or "").startswith(f"bytes {start}-")


@contextmanager
def _writing(part: Part) -> Iterator[None]:
    """Tell what the disk refuses from trouble of the network."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        what = f"{part.path} cannot be written: {error.strerror}"
        raise RuntimeProblem(what, "what came so far is kept", cause=Cause.DISK) from error


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        wait = tries.wanted_s(error)
        later = f", and asks to wait {wait:.0f} s" if wait > tries.PATIENCE_S else ""
        return f"the server answered {error.code} {' '.join(str(error.reason).split())}{later}"
    if isinstance(error, urllib.error.URLError):
        return f"the server cannot be reached: {error.reason}"
    return str(error) or type(error).__name__


def _problem(url: str, why: str, part: Part | None = None) -> RuntimeProblem:
    from madlite.assets.room import size_text

    have = part.size() if part is not None else 0
    kept = f"{size_text(have)} of it are kept for the next try" if have > 0 else ""
    return RuntimeProblem(f"{url} cannot be fetched: {why}", kept, cause=Cause.PREPARE)
