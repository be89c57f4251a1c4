"""Readers against what no framework prints: cut, doubled and foreign lines, bytes that are no text, endless lines."""

from __future__ import annotations

import random
from collections.abc import Iterator

from madlite.measure.lines import LONGEST
from madlite.model import Line, Quantity, RunPlan, Step
from madlite.testing.flaws import Flaw
from madlite.testing.limits import limited
from madlite.testing.members import is_event
from madlite.testing.reading import missing_logs
from madlite.testing.subject import Subject, follow, lines_of, raised

CHECK = "fuzz"
LINE_LIMIT_S = 2.0  # of this process's time for the longest line that a reader can get
_LINES = 5  # such lines may a broken log take as long as
_SPOTS, _FEW_SPOTS = 8, 2  # of a step's line, at which a long line goes on
_NOISE = (
    b"\x00\xff\xfe\x80\xc3(" * 20,
    b"step: nan loss: inf {'loss': 1e999, 'n': -0} " + b"9" * 5000,
    "\u0661\u0662\u0663 \u00bd \u2460 \u202e step\u00a01 loss\uff1a1".encode(),
    b'{"n": ' + b"[" * 5000,
    b"step=1 " * 50,
    b"performance: 1,,2 .. e+ %s {} \\x1b[",
)
_NO_STEP = "a step has a number from 0 and floats by madlite.Quantity"
_QUICK = "begin a pattern with plain text, let no two repeats take the same characters, and bound them: \\s{0,40}"


def check_fuzz(subject: Subject) -> Iterator[Flaw]:
    """Yield what a reader raises or answers of broken logs, and lines that take too long.

    Each log is broken in some ways, and read by readers of no plan and of one.
    """
    yield from missing_logs(subject, CHECK)
    plans: list[RunPlan | None] = [None, *(made.plan for made in subject.spread(1))]
    seen: set[str] = set()
    for plan in plans:
        for name, data in (*_logs(subject), ("noise", b"\n".join(_NOISE))):
            for flaw in (*_broken(subject, plan, name, data), *_slow(subject, plan, name, data)):
                if flaw.what not in seen:
                    seen.add(flaw.what)
                    yield flaw
                if flaw.mend == _QUICK:  # each further one would cost as much time
                    return


def _logs(subject: Subject) -> Iterator[tuple[str, bytes]]:
    """Yield a part of each log: where the steps begin."""
    for path, data in subject.bytes.items():
        rows = data.splitlines(keepends=True)
        at = next((number for number, row in enumerate(rows) if _has_step(subject, row)), len(rows))
        yield f"log {path.name}", b"".join((*rows[:20], *rows[max(20, at - 3) : at + 12]))[: 4 * LONGEST]


def _has_step(subject: Subject, row: bytes) -> bool:
    try:
        return any(isinstance(event, Step) for event in follow(subject.backend.reader(None), [row]))
    except Exception:  # noqa: BLE001 - told by the checks, not by the search for a place
        return False


def _broken(subject: Subject, plan: RunPlan | None, name: str, data: bytes) -> Iterator[Flaw]:
    chance = random.Random(name)  # noqa: S311 - the same every time
    for _ in range(subject.examples):
        broken = _break(data, chance)
        try:
            with limited(_LINES * LINE_LIMIT_S):
                events = follow(subject.backend.reader(plan), [broken])
        except TimeoutError:
            what = f"a log of {len(broken)} bytes takes over {_LINES * LINE_LIMIT_S:g} s"
            yield Flaw(check=CHECK, where=f"broken {name}", what=what, mend=_QUICK)
            return
        except Exception as error:  # noqa: BLE001 - the border to the reader under test
            mend = "answer () for what cannot be read"
            yield Flaw(check=CHECK, where=f"broken {name}", what=f"the reader raised {raised(error)}", mend=mend)
            return
        if (odd := next((event for event in events if not _is_sane(event)), None)) is not None:
            what = f"the reader answered {odd!r}"[:300]
            yield Flaw(check=CHECK, where=f"broken {name}", what=what, mend=_NO_STEP)
            return


def _is_sane(event: object) -> bool:
    if not isinstance(event, Step):
        return is_event(event)
    whole = isinstance(event.n, int) and not isinstance(event.n, bool) and event.n >= 0 and event.span >= 1
    return whole and all(
        isinstance(quantity, Quantity) and isinstance(value, float | int) and not isinstance(value, bool)
        for quantity, value in event.values.items()
    )


def _break(data: bytes, chance: random.Random) -> bytes:
    """Return a log with some of its lines cut, doubled, mixed, or with noise in them."""
    rows = data.splitlines(keepends=True) or [b"\n"]
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(rows))
        row = rows[at]
        cut = chance.randrange(len(row) + 1)
        other = rows[chance.randrange(len(rows))]
        rows[at] = chance.choice(
            (
                row[:cut],
                row * 2,
                row[:cut] + other,
                row[:cut] + chance.choice(_NOISE) + row[cut:],
                chance.choice(_NOISE) + b"\n",
                row.replace(b" ", b"", 1),
                _with_other_digits(row, chance),
            )
        )
    return b"".join(rows)


def _with_other_digits(row: bytes, chance: random.Random) -> bytes:
    digits = [place for place, byte in enumerate(row) if 48 <= byte <= 57]
    if not digits:
        return row
    at = chance.choice(digits)
    return row[:at] + chance.choice((b"-", b"", b"9" * 400, b"1e400", b"\xd9\xa3", b".", b",")) + row[at + 1 :]


def _slow(subject: Subject, plan: RunPlan | None, name: str, data: bytes) -> Iterator[Flaw]:
    """Yield that a long line takes too long."""
    for text in _long_lines(subject, data):
        reader = subject.backend.reader(plan)
        try:
            with limited(LINE_LIMIT_S):
                tuple(reader.feed(Line(text=text)))
        except TimeoutError:
            begin = text[:60]
            what = f"a line of {len(text)} characters that begins with {begin!r} takes over {LINE_LIMIT_S:g} s"
            yield Flaw(check=CHECK, where=f"long lines of {name}", what=what, mend=_QUICK)
            return
        except Exception as error:  # noqa: BLE001 - the border to the reader under test
            what = f"the reader raised {raised(error)}"
            yield Flaw(check=CHECK, where=f"long lines of {name}", what=what, mend="answer () for what cannot be read")
            return


def _long_lines(subject: Subject, data: bytes) -> Iterator[str]:
    """Yield lines as long as they can be: parts of a step's line again and again, or one of its characters."""
    texts = [line.text for line in lines_of(data)]
    steps = [text for text in texts if _has_step(subject, text.encode("utf-8", "replace"))][:1] or texts[:1]
    for text in steps:
        ends = [place for place, character in enumerate(text) if character in " :=|,"]
        count = _SPOTS if subject.most is None else _FEW_SPOTS
        spots = sorted({*(ends[at * len(ends) // count] for at in range(count) if ends), len(text)})
        for end in spots:
            for more in (text[:end] or "x", " ", "9", "9,", ".9", text[max(0, end - 6) : end] or " "):
                yield (text[:end] + more * (LONGEST // len(more)))[:LONGEST]
