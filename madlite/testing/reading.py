"""Readers: a log is the same events however its bytes come, with the stated steps, and what is no log upsets none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from msgspec.structs import replace

from madlite.measure.lines import LONGEST
from madlite.measure.steps import Steps
from madlite.model import Backend, Event, Line, Phase, Quantity, Reader, RunPlan, Step
from madlite.testing.flaws import Flaw, answered, limited
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
_EVENTS = get_args(Event)
HEADS: dict[str, tuple[str, ...]] = {
    "torchtitan": (
        "[titan] 2026-03-02 10:00:00,100 - root - INFO - Starting job: a job",
        "[titan] 2026-03-02 10:00:09,100 - root - INFO - step:  1  loss:  8.1000  grad_norm:  1.4000  "
        "memory:  2.00GiB(2.50%)  tps: 1,234  tflops: 5.60  mfu: 0.70%",
    ),
    "megatron_lm": (
        "using world size: 8, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 1",
        " [2026-03-02 10:00:00.100000] iteration        1/      50 | consumed samples:            8 | elapsed time per "
        "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-05 | "
        "global batch size:     8 | lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: 5.000 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
    ),
    "hf": (
        "trainable params: 1,000 || all params: 100,000 || trainable%: 1.0000",
        "{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 0.0001, 'epoch': 0.01}",
    ),
    "pytorch_fsdp": (
        "Initing communication",
        "Step: 3; TFLOP/s: 123.0; iteration time: 0.5; token per second: 1234.5",
    ),
}


_HEAD_LINES = 500  # lines, as many as a log's owner is searched for in
_ODD: tuple[tuple[str, ...], ...] = (
    (),
    ("",),
    ("\x00\ufffd" * 100,),
    ("nothing that any framework prints",),
    ("x" * 65_536,),
    ("Traceback (most recent call last):",),
)
_SURE = "be as sure as the lines are yours alone: 0.9 a prefix of your own, 0.5 a step line, 0.0 nothing"
_QUICK = "begin a pattern with plain text, let no two repeats take the same characters, and bound them: \\s{0,40}"


def is_event(value: object) -> bool:
    """Return whether a value is what a reader may answer with."""
    return isinstance(value, _EVENTS)


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


def check_finish(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield what a reader does wrong at the end of a run that left nothing; `folder` is empty."""
    plans = [made.plan for made in subject.spread(2)]
    for plan in (None, *plans):
        for outputs in (folder, folder / "not_there"):
            where = f"finish({'an empty folder' if outputs == folder else 'a folder that is not there'})"
            try:
                events: list[Event] = answered(subject.backend.reader(plan).finish, outputs)
            except Exception as error:  # noqa: BLE001 - as above
                yield Flaw("finish", where, f"it raised {raised(error)}", "return nothing where no file is")
                continue
            if odd := [event for event in events if not is_event(event)]:
                yield Flaw("finish", where, f"it answered {odd[0]!r}", "return events of madlite")


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


def check_detection(subject: Subject) -> Iterator[Flaw]:
    """Yield answers that are no certainty, and logs of others that are claimed."""
    for head in _ODD:
        sure = yield from _detected(subject, head, f"{head!r:.40}")
        if sure and head[:1] != ("Traceback (most recent call last):",):
            yield Flaw("detection", f"detect of {head!r:.40}", f"it answered {sure:g} of what is no log", _SURE)
    for path, data in subject.bytes.items():
        own = _head(data)
        sure = yield from _detected(subject, own, f"log {path.name}")
        yield from _claimed_by_others(subject, path.name, own, sure)
    for owner, begin in HEADS.items():
        yield from _foreign(subject, f"a log of {owner}", owner, begin)
    for path, owner in subject.foreign.items():
        if path.is_file():
            yield from _foreign(subject, f"log {path.name} of {owner}", owner, _head(path.read_bytes()))
        else:
            yield Flaw("detection", f"foreign log {path}", "it is not there", NAME_IT)


def _head(data: bytes) -> list[str]:
    return [line.text for line in lines_of(data)[:_HEAD_LINES]]


def _detected(subject: Subject, head: Sequence[str], where: str) -> Generator[Flaw, None, float]:
    """Yield what is wrong with the answer, and return it as a number."""
    try:
        sure = subject.backend.detect(head)
    except Exception as error:  # noqa: BLE001 - the border to the backend under test
        yield Flaw("detection", f"detect of {where}", f"it raised {raised(error)}", "answer 0.0")
        return 0.0
    if isinstance(sure, bool) or not isinstance(sure, (int, float)) or not 0 <= sure <= 1 or math.isnan(sure):
        yield Flaw("detection", f"detect of {where}", f"it answered {sure!r}", "answer a number from 0.0 to 1.0")
        return 0.0
    return float(sure)


def _claimed_by_others(subject: Subject, name: str, head: Sequence[str], sure: float) -> Iterator[Flaw]:
    """Yield that another installed backend is as sure of a log that is this one's."""
    for other, backend in subject.others.items():
        theirs = _certainty(backend, head)
        if sure and theirs >= sure:
            what = f"backend {other} is {theirs:g} sure of it, this one {sure:g}"
            hint = "detect your own log by a line that no other framework prints"
            yield Flaw("detection", f"log {name}", what, hint)


def _foreign(subject: Subject, where: str, owner: str, head: Sequence[str]) -> Iterator[Flaw]:
    if owner == subject.name:
        return
    backend = subject.others.get(owner)
    theirs = _certainty(backend, head) if backend is not None else 0.5
    sure = yield from _detected(subject, head, where)
    if sure and sure >= theirs:
        yield Flaw("detection", f"detect of {where}", f"it answered {sure:g}, its owner {theirs:g}", _SURE)


def _certainty(backend: Backend, head: Sequence[str]) -> float:
    try:
        return float(backend.detect(head))
    except Exception:  # noqa: BLE001 - another backend's mistake is not this one's
        return 0.0
