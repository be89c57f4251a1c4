"""Whose log it is: the backends are asked, the surest has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from madlite.backends.loader import Plugins
from madlite.errors import UsageProblem
from madlite.measure.lines import LineSplitter
from madlite.model import Backend

HEAD_BYTES = 4 << 20
MOST_LINES = 20_000
_HEADS = (500, MOST_LINES)  # an image's build or a download may come before the framework's own first line
_SURE = 0.5  # what is less is an answer only where more lines bring no better one


def take_head(chunks: Iterable[bytes]) -> list[bytes]:
    """Return the first chunks of a log, as many as backends may be asked about."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= HEAD_BYTES:
            break
    return held


def recognised(log: str, head: Sequence[bytes], plugins: Plugins) -> Backend | None:
    """Return the backend that is surest of a log that begins so; None where none knows it. Messages call it `log`.

    Raises:
        UsageProblem: several are equally sure.
        PluginError: two distributions bring a backend of one name.
    """
    backends = {name: backend for name, (backend, _) in plugins.backends().items()}
    splitter = LineSplitter()
    lines = [*splitter.take(b"".join(head)).lines, *splitter.take_rest().lines]
    sure: dict[str, float] = {}
    for count in _HEADS:
        if max(sure.values(), default=0.0) < _SURE:
            sure = _sure(backends, plugins, lines[:count]) or sure
    return _only(log, backends, sure) if sure else None


def _sure(backends: Mapping[str, Backend], plugins: Plugins, lines: Sequence[str]) -> dict[str, float]:
    """Return how sure each backend is that knows these lines."""
    answers = {known: plugins.ask(one, "recognise", lines, otherwise=0.0) for known, one in backends.items()}
    return {known: float(sure) for known, sure in answers.items() if isinstance(sure, int | float) and sure > 0}


def _only(log: str, backends: Mapping[str, Backend], sure: Mapping[str, float]) -> Backend:
    best = [known for known in sure if sure[known] == max(sure.values())]
    if len(best) > 1:
        what = f"{log} could be a log of {' or '.join(sorted(best))}: these backends are equally sure"
        raise UsageProblem(what, f"say which: --backend {sorted(best)[0]}")
    return backends[best[0]]
