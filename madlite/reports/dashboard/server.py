"""The server of the dashboard: its addresses, and what is answered there.

Nothing of the data becomes markup: templates escape, and the Content-Security-Policy lets only its own scripts and
styles run.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import socket
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from madlite.errors import UsageProblem
from madlite.reports.dashboard.live import Live
from madlite.reports.dashboard.pages import STATIC, Details, NotHere, Pages, templates
from madlite.reports.index import RunIndex
from madlite.secrets import masked_json

_END_S = 2  # for answers under way at the end
_NICE = 10  # runs on this machine come first
_log = logging.getLogger(__name__)


def make_app(live: Live, details: Details, hosts: Iterable[str], token: str) -> Starlette:
    """Return the application for the runs that `live` watches; `hosts` are the names under which it is called.

    A name of somebody else's that leads here (DNS rebinding) is none of them.  With a blank token none is needed.
    """
    pages = Pages(live, details)
    routes = [
        *(Route(path, _page(getattr(pages, name))) for path, name in Pages.PATHS.items()),
        Route("/now", _now(live)),
        Route("/static/{name}", _static),
    ]
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    middleware = [Middleware(Guard, token=token), trusted]
    handlers: Any = {404: _not_found, 500: _broken}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


# Answers.


def _page(make: Callable[..., Any]) -> Callable[[Request], Response]:
    """Return the endpoint of a page, or of a log; it runs in a thread of its own."""

    def answer(request: Request) -> Response:
        status = HTTPStatus.OK
        try:
            text = make(dict(request.query_params), **request.path_params)
        except UsageProblem as problem:
            status = HTTPStatus.NOT_FOUND if isinstance(problem, NotHere) else HTTPStatus.BAD_REQUEST
            text = make.__self__.problem(problem)  # type: ignore[attr-defined]
        if not isinstance(text, str):
            return StreamingResponse(text, 200, {"cache-control": "no-store"}, "text/plain")
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    return answer


def _static(request: Request) -> Response:
    """Return a script or style sheet of ours; its address has the hash of what it holds."""
    found = STATIC.get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("there is no such file\n", HTTPStatus.NOT_FOUND)
    path, kind = found
    return Response(path.read_bytes(), 200, {"cache-control": "public, max-age=31536000, immutable"}, kind)


def _now(live: Live) -> Callable[[Request], Response]:
    """Return the endpoint that tabs ask what is running; it runs in a thread of its own."""

    def answer(request: Request) -> Response:
        text = masked_json(live.now(request.query_params.get("run", "")), ())
        return Response(text, headers={"cache-control": "no-store"}, media_type="application/json")

    return answer


def _not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("there is nothing at this address\n", HTTPStatus.NOT_FOUND)


def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"internal error: {type(error).__name__}; the terminal has more\n", 500)


# The process.


def serve(runs: Path, details: Details, *, host: str, port: int, token: str, started: Callable[[str], None]) -> None:
    """Serve until Ctrl-C those who have the token, everybody where it is blank; `started` gets the address with it.

    Raises:
        UsageProblem: the address or port cannot be used.
    """
    listener = listen(host, port)
    url = address(host, listener.getsockname()[1], token)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with RunIndex(runs) as index:
        live = Live(index)
        hosts = ("*",) if host in ("0.0.0.0", "::") else (*LOOPBACK, host)  # noqa: S104 - compared alone
        config = uvicorn.Config(
            make_app(live, details, hosts, token),
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_S,
            lifespan="off",
        )
        live.start()
        templates().get_template("runs.html.j2")  # compiled by the time of the first request
        started(url)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn passes it on once it has ended
            pass
        finally:
            live.stop()
            listener.close()


def address(host: str, port: int, token: str) -> str:
    """Return the address for a browser on this machine, with the token where there is one."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/" + (f"?{PARAMETER}={token}" if token else "")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        UsageProblem: the port is in use, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageProblem(f"port {port} is in use", "madlite dashboard --port 0   takes a free one") from error
        if error.errno == errno.EACCES:
            raise UsageProblem(f"port {port} is not for this user", "a port from 1024 on: --port 8080") from error
        raise UsageProblem(f"--host {host}: {error.strerror or error}", "--host 127.0.0.1 is this machine") from error


LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
PARAMETER = "token"
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
    """Refuses what comes without the token, and adds the headers to every answer; a blank token lets everybody in."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it; of anything else the application knows nothing."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        is_request = scope["type"] == "http"
        app: ASGIApp = (self._admission(Request(scope)) if is_request else None) or self._app
        await app(scope, receive, with_headers)

    def _admission(self, request: Request) -> Response | None:
        """Return the answer to a request without the token, or to one that has it in its address."""
        path, query = request.scope["path"], request.query_params.multi_items()
        if path.startswith("/static/"):  # the same for everybody who has madlite
            return None
        has_token = any(self._is_token(text) for name, text in query if name == PARAMETER)
        if not has_token and not self._is_shown(request):
            return PlainTextResponse(f"{_ERROR}: {_HINT}\n", HTTPStatus.FORBIDDEN, {"cache-control": "no-store"})
        rest = [(name, text) for name, text in query if name != PARAMETER]
        return self._entered(request, rest, has_token=has_token) if rest != query else None

    def _is_shown(self, request: Request) -> bool:
        """Return whether a request shows the token outside of its address."""
        if not self._token or self._is_token(request.cookies.get(_cookie(request), "")):
            return True
        shown = (text.partition(" ") for text in request.headers.getlist("authorization"))
        return any(scheme.lower() == "bearer" and self._is_token(text.strip()) for scheme, _, text in shown)

    def _is_token(self, text: str) -> bool:
        return bool(self._token) and hmac.compare_digest(text.encode(), self._token)

    def _entered(self, request: Request, query: list[tuple[str, str]], *, has_token: bool) -> Response:
        """Return the page that sets the cookie and leads to the address without the token.

        A redirect would not do: a browser that comes from a link of another site sends no `SameSite=Strict` cookie to
        where it is redirected, but to where a page of this site leads.
        """
        path = "/" + quote(request.scope["path"].lstrip("/"))  # `//name/` would be another host
        target = f"{path}?{urlencode(query)}" if query else path
        text = templates().get_template("enter.html.j2").render(target=target)
        answer = HTMLResponse(text, headers={"cache-control": "no-store"})
        if has_token:
            answer.set_cookie(_cookie(request), self._token.decode(), httponly=True, samesite="strict")
        return answer


def _cookie(request: Request) -> str:
    """Return the name of the cookie: browsers keep those of all ports of a host together.

    The port is that of the browser's address, which is another one behind `ssh -L`.
    """
    name, _, port = request.headers.get("host", "").rpartition(":")
    return f"madlite-dashboard-{port if name and port.isascii() and port.isdigit() else 80}"
