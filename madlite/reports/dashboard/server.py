"""The server of the dashboard: its addresses, and what is answered there.

Nothing of the data becomes markup: templates escape, and the Content-Security-Policy lets only its own scripts and
styles run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from madlite.errors import UsageProblem
from madlite.reports.dashboard.access import PARAMETER, Guard
from madlite.reports.dashboard.api import ENDPOINTS, NO_SUCH, Answers, Endpoint, NotHere, openapi
from madlite.reports.dashboard.live import END, Live
from madlite.reports.dashboard.pages import STATIC, Pages, Words, templates
from madlite.reports.dashboard.queries import Problem, parsed
from madlite.reports.ledger import Ledger
from madlite.secrets import masked_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


_ALIVE_S = 15.0  # a comment in an event stream, by which a tab that is gone is noticed
_END_S = 2  # for answers under way at the end
_NICE = 10  # runs on this machine come first
_log = logging.getLogger(__name__)


def make_app(live: Live, words: Words, hosts: frozenset[str], token: str) -> Starlette:
    """Return the application for the runs that `live` watches; `hosts` are the names under which it is called.

    With an empty set every numeric address is one: it listens on all of them.  With a blank token none is needed.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Route

    answers = Answers(live)
    pages = Pages(answers, words)
    routes = [
        *(Route(path, _page(getattr(pages, name))) for path, name in Pages.PATHS.items()),
        *(Route(one.path, _endpoint(one, answers)) for one in ENDPOINTS),
        Route("/api/openapi.json", lambda request: _json(openapi())),
        Route("/events", _events(live)),
        Route("/static/{name}", _static),
    ]
    middleware = [Middleware(Guard, hosts=hosts, token=token)]
    handlers: Any = {404: _not_found, 500: _broken}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


# Answers.


def _page(make: Callable[..., str]) -> Callable[[Request], Response]:
    """Return a page's endpoint; it runs in a thread of its own."""
    from starlette.responses import HTMLResponse

    def answer(request: Request) -> Response:
        status = 200
        try:
            text = make(dict(request.query_params), **request.path_params)
        except UsageProblem as problem:
            status = NO_SUCH if isinstance(problem, NotHere) else 400
            text = make.__self__.problem(problem)  # type: ignore[attr-defined]
        return HTMLResponse(text, status, {"cache-control": "no-store"})

    return answer


def _endpoint(one: Endpoint, answers: Answers) -> Callable[[Request], Response]:
    call = one.call(answers)

    def answer(request: Request) -> Response:
        try:
            query: Any = parsed(one.query, dict(request.query_params))
            return _json(call(query, **request.path_params))
        except UsageProblem as problem:
            status = NO_SUCH if isinstance(problem, NotHere) else 400
            return _json(Problem(error=problem.message, hint=problem.hint), status)

    return answer


def _json(value: object, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(masked_json(value, ()), status, {"cache-control": "no-store"}, "application/json")


def _static(request: Request) -> Response:
    """Return a script or style sheet of ours; its address has the hash of what it holds."""
    from starlette.responses import PlainTextResponse, Response

    found = STATIC.get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("there is no such file\n", NO_SUCH)
    path, kind = found
    return Response(path.read_bytes(), 200, {"cache-control": "public, max-age=31536000, immutable"}, kind)


def _events(live: Live) -> Callable[[Request], Any]:
    """Return the event stream of a tab: what is running, and what changes."""
    import asyncio

    from starlette.responses import PlainTextResponse, StreamingResponse

    async def answer(request: Request) -> Response:
        tab = live.open(asyncio.get_running_loop(), request.query_params.get("run", "")[:300], request.state.client)
        if tab is None:
            return PlainTextResponse("too many tabs are open\n", 503, {"retry-after": "30"})

        async def stream() -> AsyncIterator[str]:
            try:
                yield "retry: 3000\n\n"
                while True:
                    try:
                        event = await asyncio.wait_for(tab.events.get(), _ALIVE_S)
                    except asyncio.TimeoutError:
                        yield ": alive\n\n"
                        continue
                    if event is END:
                        return
                    yield event.text
            finally:
                live.close(tab)

        return StreamingResponse(stream(), 200, {"cache-control": "no-store"}, "text/event-stream")

    return answer


def _not_found(request: Request, error: Exception) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse("there is nothing at this address\n", NO_SUCH)


def _broken(request: Request, error: Exception) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(f"internal error: {type(error).__name__}; the terminal has more\n", 500)


# The process.


def serve(runs: Path, words: Words, *, host: str, port: int, token: str, started: Callable[[str], None]) -> None:
    """Serve until Ctrl-C those who have the token, everybody where it is blank; `started` gets the address with it.

    Raises:
        UsageProblem: the address or port cannot be used.
    """
    import uvicorn

    listener = listen(host, port)
    url = address(host, listener.getsockname()[1], token)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with Ledger.open(runs) as ledger:
        live = Live(ledger)

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: Any) -> None:
                live.stop()  # streams never end by themselves
                super().handle_exit(sig, frame)

        hosts = frozenset() if host in ("0.0.0.0", "::") else frozenset({host.lower()})  # noqa: S104 - compared alone
        config = uvicorn.Config(
            make_app(live, words, hosts, token),
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
            Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn passes it on once it has ended
            pass
        finally:
            live.stop()
            live.join()
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
