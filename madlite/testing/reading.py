"""Readers: the same log is the same events however its bytes come, and the stated steps are in it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from madlite.measure.steps import Steps
from madlite.testing.flaws import Flaw
from madlite.testing.members import is_event
from madlite.testing.subject import Subject, follow, raised
from madlite.types import Event, Step

CHECK = "reading"
_BYTE_BY_BYTE = 16 * 1024  # bytes of a log's begin that come one at a time
_SIZES = (7, 997, 65_536)
_NO_STATE = "keep what a line says in the reader, never in the module or the class, and know no chunk"


def check_reading(subject: Subject) -> Iterator[Flaw]:
    """Yield logs that are read otherwise than stated, or otherwise in other pieces."""
    for path in subject.logs:
        where = f"log {path.name}"
        try:
            yield from _steps(subject, path, where)
            yield from _pieces(subject, path, where)
        except Exception as error:  # noqa: BLE001 - the border to the reader under test
            mend = "a reader answers () for what it does not know"
            yield Flaw(check=CHECK, where=where, what=f"the reader raised {raised(error)}", mend=mend)


def _steps(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    events, stated = subject.told[path], subject.logs[path]
    if odd := [event for event in events if not is_event(event)]:
        mend = "Step, Phase, Summary, EffectiveConfig and Ended are what a reader answers with"
        yield Flaw(check=CHECK, where=where, what=f"the reader answered {odd[0]!r}", mend=mend)
        return
    count = Steps(event for event in events if isinstance(event, Step)).count()
    if stated is not None and count != stated:
        what = f"{count} training steps were read, {stated} are stated"
        mend = "compare the pattern with the lines of the log; each number of a step counts once"
        yield Flaw(check=CHECK, where=where, what=what, mend=mend)


def _pieces(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    data, whole = subject.bytes[path], repr(list(subject.told[path]))
    if repr(follow(subject.backend.reader(None), [data])) != whole:
        yield Flaw(check=CHECK, where=where, what="a second fresh reader told something else", mend=_NO_STATE)
        return
    chance = random.Random(path.name)  # noqa: S311 - places to cut at, the same ones every time
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(20))
    ways = {f"chunks of {size} bytes": list(range(size, len(data), size)) for size in _SIZES}
    ways["chunks of chance"] = cuts
    for how, ends in ways.items():
        if repr(_in_pieces(subject, data, ends)) != whole:
            yield Flaw(check=CHECK, where=where, what=f"{how} gave other events than the whole", mend=_NO_STATE)
    begin = data[:_BYTE_BY_BYTE]
    alone = repr(follow(subject.backend.reader(None), [begin]))
    if repr(_in_pieces(subject, begin, list(range(1, len(begin))))) != alone:
        yield Flaw(check=CHECK, where=where, what="single bytes gave other events than the whole", mend=_NO_STATE)


def _in_pieces(subject: Subject, data: bytes, ends: list[int]) -> list[Event]:
    places = [0, *ends, len(data)]
    chunks = (data[begin:end] for begin, end in pairwise(places))
    return follow(subject.backend.reader(None), chunks)
