"""Open an address: through the proxies of the environment, with a token that goes to its own host alone."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from collections.abc import Mapping
from email.message import Message
from functools import cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from madlite.assets.client import named
from madlite.errors import RuntimeProblem
from madlite.model import Cause, Value

SILENT_S = 30.0  # without a byte, and the connection is given up
_PORTS = {"http": 80, "https": 443}


class Source(Value, frozen=True):
    """A file of a server: `size` and `etag` as far as they are known, `headers` for its own host alone."""

    url: str
    size: int | None = None
    etag: str = ""
    headers: dict[str, str] = {}


def open_source(source: Source, method: str, environ: Mapping[str, str], have: int = 0) -> http.client.HTTPResponse:
    """Ask the server for a file, from its byte `have` on.

    Raises:
        OSError: it cannot be reached, or answers that it cannot be had.
        http.client.HTTPException: what it answers is no answer.
        RuntimeProblem: it sends us on to where no file of ours is fetched from.
    """
    request = urllib.request.Request(source.url, method=method, headers={"User-Agent": "/".join(named().values())})  # noqa: S310
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


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Goes where the server sends us; a repository that was renamed is on the same host, and wants the token too.

    What was asked for by https comes by https: anybody on the way could exchange it.
    """

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """Return what to ask then; Python 3.10 does not know that 308 is like 307."""
        then = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)  # type: ignore[arg-type]
        token = req.unredirected_hdrs.get("Authorization")
        if then is not None and token and origin(newurl) == origin(req.full_url):
            then.add_unredirected_header("Authorization", token)
        return then

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> Any:
        """Go on; urllib itself refuses some addresses, in words of its own."""
        where = headers.get("location") or headers.get("uri") or ""
        if where:
            _check_way(req.full_url, urljoin(req.full_url, where))
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _check_way(old: str, new: str) -> None:
    """Refuse a redirect to another kind of address.

    Raises:
        RuntimeProblem: it leaves https, or the web.
    """
    before, after = urlsplit(old).scheme.lower(), urlsplit(new).scheme.lower()
    if after == before or (before, after) == ("http", "https"):
        return
    what = (
        f"{_shown(old)} cannot be fetched: its server sends us on to {_shown(new)}, and what is asked for by {before} "
    )
    what += "comes by https alone" if after in _PORTS else "comes by http or https alone"
    raise RuntimeProblem(what, "ask whoever runs that server; a proxy may have done it too", cause=Cause.PREPARE)


def _shown(url: str) -> str:
    """Return an address without its query, which may hold a signature."""
    parts = urlsplit(url)
    return ascii(f"{parts.scheme}://{parts.hostname or ''}{parts.path}")[1:-1][:200]


@cache
def _opener(bundle: str) -> urllib.request.OpenerDirector:
    """Return what opens addresses, through the proxies of the environment, and trusts a bundle of certificates."""
    context = ssl.create_default_context(cafile=bundle or None)
    opener = urllib.request.OpenerDirector()  # urllib's own would also open `ftp:`, `file:` and `data:`
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
