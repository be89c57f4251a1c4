"""Whom the dashboard answers: GET requests for its own name that have its token; and headers for every answer.

Other users of the machine reach its port, and so do pages elsewhere whose name is made to resolve to 127.0.0.1.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from madlite.reports.dashboard.pages import templates

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PARAMETER = "token"
_SCHEMES = (b"bearer", b"token")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_ERROR = "this dashboard is opened with its token"
_HINT = (
    "open the whole address that madlite dashboard printed, http://…/?token=…; "
    "a script sends the token as the header 'Authorization: Bearer …'"
)


class Guard:
    """Refuses what is not a GET for this server with its token, and adds the headers to every answer.

    Without a token everybody is let in.  An answer of the application finds the client in `request.state.client`: its
    address, and how it has shown the token.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str) -> None:
        self._app, self._hosts, self._token = app, hosts, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), text.encode()) for name, text in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        app: ASGIApp = self._refusal(scope) or self._admission(scope) or self._app
        await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to what is no request for this server."""
        from starlette.responses import PlainTextResponse

        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("the dashboard only answers GET\n", 405, {"allow": "GET, HEAD"})
        found = list(_values(scope, b"host"))
        if len(found) != 1 or not is_own_host(found[0].decode("latin-1"), self._hosts):
            return PlainTextResponse("this is not the server of that host\n", 421)
        return None

    def _admission(self, scope: Scope) -> Response | None:
        """Return the answer to a request without the token, or to one that has it in its address."""
        if scope["path"].startswith("/static/"):  # the same for everybody who has madlite
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        has_token = any(self._is_token(text.encode()) for name, text in query if name == PARAMETER)
        how = PARAMETER if has_token else self._shown(scope)
        if how is None:
            return _forbidden(scope["path"])
        scope.setdefault("state", {})["client"] = (*(scope.get("client") or ("",))[:1], how)
        rest = [(name, text) for name, text in query if name != PARAMETER]
        return self._entered(scope, rest, has_token=has_token) if rest != query else None

    def _shown(self, scope: Scope) -> str | None:
        """Return how a request shows the token outside of its address; None where it does not."""
        if not self._token:
            return ""
        for value in _values(scope, b"authorization"):
            scheme, _, text = value.partition(b" ")
            if scheme.lower() in _SCHEMES and self._is_token(text.strip()):
                return "header"
        name = _cookie(scope).encode()
        pairs = (pair.strip().partition(b"=") for value in _values(scope, b"cookie") for pair in value.split(b";"))
        return "cookie" if any(own == name and self._is_token(text) for own, _, text in pairs) else None

    def _is_token(self, text: bytes) -> bool:
        return bool(self._token) and hmac.compare_digest(text, self._token)

    def _entered(self, scope: Scope, query: list[tuple[str, str]], *, has_token: bool) -> Response:
        """Return the page that sets the cookie and leads to the address without the token.

        A redirect would not do: a browser that comes from a link of another site sends no `SameSite=Strict` cookie to
        where it is redirected, but to where a page of this site leads.
        """
        from starlette.responses import HTMLResponse

        path = "/" + quote(scope["path"].lstrip("/"))  # `//name/` would be another host
        target = f"{path}?{urlencode(query)}" if query else path
        text = templates().get_template("enter.html.j2").render(target=target)
        answer = HTMLResponse(text, headers={"cache-control": "no-store"})
        if has_token:
            answer.set_cookie(_cookie(scope), self._token.decode(), httponly=True, samesite="strict")
        return answer


def _forbidden(path: str) -> Response:
    from starlette.responses import JSONResponse, PlainTextResponse

    headers = {"cache-control": "no-store"}
    if path.startswith("/api/"):
        return JSONResponse({"error": _ERROR, "hint": _HINT}, HTTPStatus.FORBIDDEN, headers)
    return PlainTextResponse(f"{_ERROR}: {_HINT}\n", HTTPStatus.FORBIDDEN, headers)


def _values(scope: Scope, name: bytes) -> Iterator[bytes]:
    return (value for own, value in scope["headers"] if own == name)


def _cookie(scope: Scope) -> str:
    """Return the name of the cookie: browsers keep those of all ports of a host together.

    The port is that of the browser's address, which is another one behind `ssh -L`.
    """
    _, port = _split(next(_values(scope, b"host"), b"").decode("latin-1"))
    return f"madlite-dashboard-{port or 80}"


def _split(host: str) -> tuple[str, str]:
    """Return the name and the port of a Host header, "" without one."""
    name, _, port = host.rpartition(":")
    return (name, port) if name and port.isascii() and port.isdigit() else (host, "")


def is_own_host(host: str, hosts: frozenset[str]) -> bool:
    """Return whether a Host header names this server; a name that anybody can make resolve to it does not."""
    name = _split(host)[0].removeprefix("[").removesuffix("]").lower()
    if name in LOOPBACK or name in hosts:
        return True
    if hosts:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return True
