"""How `madlite prepare` is worded on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from madlite.assets.room import size_text
from madlite.cli.format import duration
from madlite.cli.screens import PlainScreen
from madlite.run.needs import Need, Survey
from madlite.run.prepare import Prepared
from madlite.text import printable

_SHOW_EVERY_S = 0.2
_HEADS = ("what", "from", "size", "state", "where")


def table(found: Survey) -> str:
    """Return what runs need, a line each, and how much is still to come."""
    if not found.needs:
        return "nothing is needed from elsewhere"
    rows = [_HEADS, *(_cells(need) for need in found.needs)]
    wide = [max(len(row[n]) for row in rows) for n in range(len(_HEADS) - 1)]
    lines = ["  ".join([*(cell.ljust(size) for cell, size in zip(row, wide, strict=False)), row[-1]]) for row in rows]
    notes = [f"note: {need.what}: {printable(need.note)}" for need in found.needs if need.note]
    missing = sum(need.missing for need in found.needs)
    return "\n".join(
        [*(line.rstrip() for line in lines), *notes, *([f"to fetch: {size_text(missing)}"] if missing else [])]
    )


def _cells(need: Need) -> tuple[str, ...]:
    size = "?" if need.size is None else size_text(need.size)
    state = f"partly here, {size_text(need.missing)} left" if need.state == "partly here" else need.state
    return tuple(
        map(printable, (need.what, need.source, "-" if need.what.startswith("image ") else size, state, need.place))
    )


class PrepareLines:
    """Shows preparations on a screen of runs."""

    def __init__(
        self, screen: PlainScreen, mask: Callable[[str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._screen, self._mask, self._clock = screen, mask, clock
        self._began_s = self._shown_s = 0.0

    def need_started(self, need: Need, position: int, total: int) -> None:
        """Name what is fetched now."""
        self._began_s, self._shown_s = self._clock(), float("-inf")
        self._lines("", [f"[{position}/{total}] {need.what} · {need.source}"], begin=True, size=need.missing or None)

    def need_advanced(self, done: int, total: int) -> None:
        """Say how far it is and how fast it comes; how long it takes a terminal's progress line says."""
        now = self._clock()
        if now - self._shown_s < _SHOW_EVERY_S and done < total:
            return
        self._shown_s = now
        speed = max(done, 0) / max(now - self._began_s, 0.1)
        self._screen.advance(done, f"{size_text(max(done, 0))} of {size_text(total)}, {size_text(int(speed))}/s")

    def need_said(self, text: str) -> None:
        """Pass on what whoever fetches it says."""
        self._screen.phase(self._mask(text))

    def need_output(self, chunk: bytes, stream: int) -> None:
        """Pass the output of a preparation on where asked for."""
        self._screen.output(chunk, stream)

    def need_here(self, need: Need, place: str) -> None:
        """Say where it lies."""
        self._lines("      ", [f"READY {place}", f"  took {duration(self._clock() - self._began_s)}"])

    def need_failed(self, need: Need, message: str, hint: str) -> None:
        """Say why it is not here."""
        self._lines("      ", [f"FAILURE {need.what}: {message}", *([f"  hint: {hint}"] if hint else [])])

    def total(self, done: Prepared) -> None:
        """Say how all of it ended."""
        if done.failed:
            self._lines("", [f"failed: {', '.join(done.failed)}; what came is kept, the next try goes on from there"])
        if done.left:
            self._lines(
                "", [f"not fetched: {', '.join(done.left)}; what came is kept, the next try goes on from there"]
            )
        if not done.failed and not done.left:
            rest = f", but for what each run fetches: {', '.join(done.by_runs)}" if done.by_runs else ""
            self._lines("", [f"everything is here{rest}"])

    def _lines(self, indent: str, lines: Iterable[str], begin: bool = False, size: int | None = None) -> None:
        told = [indent + printable(self._mask(line)) for line in lines]
        if begin:
            self._screen.begin(told, size)
        else:
            self._screen.end(told)
