"""Readers: a log is the same events however its bytes come, with the stated steps, and what is no log upsets none."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from madlite.measure.lines import LONGEST
from madlite.measure.steps import Steps
from madlite.model import Event, Line, Phase, Quantity, Reader, RunPlan, Step
from madlite.testing.flaws import Flaw, answered, limited
from madlite.testing.members import is_event
from madlite.testing.subject import LOG_LIMIT_S, NAME_IT, Subject, lines_of, raised, read_events

_BYTE_BY_BYTE = 16 * 1024  # bytes of a log's begin that come one at a time
_FEW_BYTES = 2 * 1024  # likewise, of a sample
_SIZES = (7, 997, 65_536)
_NO_PLACE = "keep what is held back for each (line.node, line.rank), and give a step its line's t_s and rank"
_NO_LABEL = "madlite.without_label(line) is what the process wrote, where a pattern begins with the line"
_LABELS = {"srun --label": b"%d: ", "mpirun --tag-output": b"[1,%d]<stdout>:", "torchrun": b"[rank%d]: "}
_NO_STATE = "keep the state of a log in the reader, never in the module or the class, and depend on no chunk"
LINE_LIMIT_S = 2.0  # of this process's time for the longest line that a reader can get
_LINES = 5  # such lines may a broken log take as long as
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


def check_reading(subject: Subject) -> Iterator[Flaw]:
    """Yield logs that are read otherwise than stated, or otherwise in other pieces, at other times, of other ranks."""
    yield from missing_logs(subject, "reading")
    for path in subject.logs:
        where = f"log {path.name}"
        if path not in subject.bytes:
            yield Flaw("reading", f"log {path}", "it is not there", NAME_IT)
            continue
        try:
            yield from _steps(subject, path, where)
            yield from _pieces(subject, path, where)
            yield from _otherwise(subject, path, where)
        except Exception as error:  # noqa: BLE001 - the border to the reader under test
            hint = "a reader returns () for lines that it does not recognise"
            yield Flaw("reading", where, f"the reader raised {raised(error)}", hint)


def missing_logs(subject: Subject, check: str) -> Iterator[Flaw]:
    """Yield that there is no log, where steps of logs are what the backend's runs are judged by."""
    rules = [made.spec.result_rule.kind for made in subject.made]
    if not subject.logs and ("steps" in rules or not rules):
        hint = "logs = {path: number of training steps}: what the framework printed in a run"
        yield Flaw(check, f"backend {subject.name}", "there is no log to read", hint)


def _steps(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    events, stated = subject.told[path], subject.logs[path]
    if odd := [event for event in events if not is_event(event)]:
        hint = "Step, Phase, Summary, EffectiveConfig, Ended and Unread are what a reader answers with"
        yield Flaw("reading", where, f"the reader answered {odd[0]!r}", hint)
        return
    count = Steps(event for event in events if isinstance(event, Step)).count()
    if stated is not None and count != stated:
        hint = "compare the pattern with the lines of the log; each number of a step counts once"
        yield Flaw("reading", where, f"{count} training steps were read, {stated} are stated", hint)


def _pieces(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    data, whole = subject.bytes[path], repr(list(subject.told[path]))
    if repr(read_events(subject.backend.reader(None), [data])) != whole:
        yield Flaw("reading", where, "a second fresh reader returned other events", _NO_STATE)
        return
    chance = random.Random(path.name)  # noqa: S311 - places to cut at, the same ones every time
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(20))
    ways = {f"chunks of {size} bytes": list(range(size, len(data), size)) for size in _SIZES if size < len(data)}
    ways["chunks of chance"] = cuts
    for how, ends in ways.items():
        if repr(_in_pieces(subject, data, ends)) != whole:
            yield Flaw("reading", where, f"{how} gave other events than the whole", _NO_STATE)
    begin = data[: _BYTE_BY_BYTE if subject.most is None else _FEW_BYTES]
    alone = repr(read_events(subject.backend.reader(None), [begin]))
    if repr(_in_pieces(subject, begin, list(range(1, len(begin))))) != alone:
        yield Flaw("reading", where, "single bytes gave other events than the whole", _NO_STATE)


def _otherwise(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    """Yield that time, node or rank of the lines change what is read, or that a second finish() does."""
    lines = lines_of(subject.bytes[path])
    reader = subject.backend.reader(None)
    plain = _fed(reader, lines)
    ways = {"later": [replace(line, t_s=0.5 + n) for n, line in enumerate(lines)]}
    ways["of another node"] = [replace(line, node=1) for line in lines]
    for how, changed in ways.items():
        if _timeless(_fed(subject.backend.reader(None), changed)) != _timeless(plain):
            yield Flaw("reading", where, f"the same lines {how} gave other events", _NO_PLACE)
    if all(line.rank is None for line in lines):
        both = [replace(line, rank=rank) for line in lines for rank in (0, 1)]
        count, doubled = _count(plain), _count(_fed(subject.backend.reader(None), both))
        if count != doubled:
            what = f"two ranks that print the same, line by line, gave {doubled} steps in place of {count}"
            yield Flaw("reading", where, what, _NO_PLACE)
        yield from _labelled(subject, path, where, count)
    yield from _finished_twice(reader, plain, where)


def _labelled(subject: Subject, path: Path, where: str, count: int) -> Iterator[Flaw]:
    """Yield that a launcher's labels hide steps, or that these do not have the ranks that the labels name."""
    rows = subject.bytes[path].splitlines()
    for how, label in _LABELS.items():
        data = b"".join(label % rank + row + b"\n" for row in rows for rank in (0, 1))
        steps = [event for event in read_events(subject.backend.reader(None), [data]) if isinstance(event, Step)]
        if (found := _count(steps)) != count:
            what = f"two ranks behind the labels of {how} gave {found} steps in place of {count}"
            yield Flaw("reading", where, what, _NO_LABEL)
        elif any(step.rank is None for step in steps):
            yield Flaw("reading", where, f"a step behind the labels of {how} has no rank", _NO_PLACE)


def _finished_twice(reader: Reader, told: list[Event], where: str) -> Iterator[Flaw]:
    with TemporaryDirectory(prefix="madlite_kit_") as folder:
        first = answered(reader.finish, Path(folder))
        second = answered(reader.finish, Path(folder))
    if _count([*told, *first, *second]) != _count([*told, *first]):
        hint = "return what is held back once, and clear it"
        yield Flaw("reading", where, "a second finish() returned further steps", hint)


def _fed(reader: Reader, lines: Sequence[Line]) -> list[Event]:
    with limited(LOG_LIMIT_S):
        return [event for line in lines for event in reader.feed(line)]


def _count(events: Iterable[Event]) -> int:
    return Steps(event for event in events if isinstance(event, Step)).count()


def _timeless(events: Iterable[Event]) -> str:
    return repr([replace(event, t_s=0.0) if isinstance(event, Step | Phase) else event for event in events])


def _in_pieces(subject: Subject, data: bytes, ends: list[int]) -> list[Event]:
    places = [0, *ends, len(data)]
    chunks = (data[begin:end] for begin, end in pairwise(places))
    return read_events(subject.backend.reader(None), chunks)


def check_fuzz(subject: Subject) -> Iterator[Flaw]:
    """Yield what a reader raises or answers of broken logs, and lines that take too long.

    Each log is broken in some ways, and read by readers of no plan and of one.
    """
    yield from missing_logs(subject, "fuzz")
    plans: list[RunPlan | None] = [None, *(made.plan for made in subject.spread(1))]
    seen: set[str] = set()
    for plan in plans:
        for name, data in (*_logs(subject), ("noise", b"\n".join(_NOISE))):
            for flaw in (*_broken(subject, plan, name, data), *_slow(subject, plan, name, data)):
                if flaw.what not in seen:
                    seen.add(flaw.what)
                    yield flaw
                if flaw.hint == _QUICK:  # each further one would cost as much time
                    return


def _logs(subject: Subject) -> Iterator[tuple[str, bytes]]:
    """Yield a part of each log: where the steps begin."""
    for path, data in subject.bytes.items():
        rows = data.splitlines(keepends=True)
        at = next((number for number, row in enumerate(rows) if _has_step(subject, row)), len(rows))
        yield f"log {path.name}", b"".join((*rows[:20], *rows[max(20, at - 3) : at + 12]))[: 4 * LONGEST]


def _has_step(subject: Subject, row: bytes) -> bool:
    try:
        return any(isinstance(event, Step) for event in read_events(subject.backend.reader(None), [row]))
    except Exception:  # noqa: BLE001 - told by the checks, not by the search for a place
        return False


def _broken(subject: Subject, plan: RunPlan | None, name: str, data: bytes) -> Iterator[Flaw]:
    chance = random.Random(name)  # noqa: S311 - the same every time
    for _ in range(subject.examples):
        broken = _break(data, chance)
        what = f"a log of {len(broken)} bytes"
        events = yield from _survived(lambda: read_events(subject.backend.reader(plan), [broken]), name, what, _LINES)  # noqa: B023
        if events is None:
            return
        if (odd := next((event for event in events if not _is_sane(event)), None)) is not None:
            yield Flaw("fuzz", f"broken {name}", f"the reader answered {odd!r}"[:300], _NO_STEP)
            return


def _slow(subject: Subject, plan: RunPlan | None, name: str, data: bytes) -> Iterator[Flaw]:
    """Yield that a long line takes too long."""
    for text in _long_lines(subject, data):
        what = f"a line of {len(text)} characters that begins with {text[:60]!r}"
        reader = subject.backend.reader(plan)
        if (yield from _survived(lambda: reader.feed(Line(text=text)), name, what, 1)) is None:  # noqa: B023
            return


def _survived(
    read: Callable[[], Iterable[Event]], name: str, what: str, lines: int
) -> Generator[Flaw, None, list[Event] | None]:
    """Return the events; yield that reading raised or took longer than for so many long lines, and return None."""
    limit_s = lines * LINE_LIMIT_S
    try:
        with limited(limit_s):
            return list(read())
    except TimeoutError:
        yield Flaw("fuzz", f"broken {name}", f"{what} takes over {limit_s:g} s", _QUICK)
    except Exception as error:  # noqa: BLE001 - the border to the reader under test
        yield Flaw("fuzz", f"broken {name}", f"the reader raised {raised(error)}", "answer () for what cannot be read")
    return None


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


def _long_lines(subject: Subject, data: bytes) -> Iterator[str]:
    """Yield lines as long as they can be: parts of a step's line again and again, or one of its characters."""
    texts = [line.text for line in lines_of(data)]
    steps = [text for text in texts if _has_step(subject, text.encode("utf-8", "replace"))][:1] or texts[:1]
    for text in steps:
        ends = [place for place, character in enumerate(text) if character in " :=|,"]
        count = subject.examples // 3  # places in the line
        spots = sorted({*(ends[at * len(ends) // count] for at in range(count) if ends), len(text)})
        for end in spots:
            for more in (text[:end] or "x", " ", "9", "9,", ".9", text[max(0, end - 6) : end] or " "):
                yield (text[:end] + more * (LONGEST // len(more)))[:LONGEST]
