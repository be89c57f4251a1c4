"""Logs: the same events however the bytes come; what is no log upsets no reader, and others' logs are left to them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import tomli
from msgspec.structs import replace

from madlite.measure.lines import LONGEST
from madlite.measure.steps import Steps
from madlite.model import Backend, Event, Line, Phase, Quantity, Reader, Step
from madlite.testing.flaws import Defect, answered, attempt
from madlite.testing.subject import NAME_IT, Subject, lines_of, read

LINE_LIMIT_S = 2.0  # of this process's time for the longest line that a reader can get
_LINES = 5  # such lines may a broken log take as long as
_CHUNK_BYTES = 997
_LABELS = {"srun --label": b"%d: ", "mpirun --tag-output": b"[1,%d]<stdout>:", "torchrun": b"[rank%d]: "}
_NOISE = (
    b"\x00\xff\xfe\x80\xc3(" * 20,
    b"step: nan loss: inf {'loss': 1e999, 'n': -0} " + b"9" * 5000,
    "\u0661\u0662\u0663 \u00bd \u2460 \u202e step\u00a01 loss\uff1a1".encode(),
    b'{"n": ' + b"[" * 5000,
    b"step=1 " * 50,
    b"performance: 1,,2 .. e+ %s {} \\x1b[",
)
_OTHER_DIGITS = (b"-", b"", b"9" * 400, b"1e400", b"\xd9\xa3", b".", b",")
_NO_PLACE = "keep what is held back for each (line.node, line.rank), and give a step its line's t_s and rank"
_NO_LABEL = "madlite.without_label(line) is what the process wrote, where a pattern begins with the line"
_NO_STATE = "keep the state of a log in the reader, never in the module or the class, and depend on no chunk"
_QUICK = "begin a pattern with plain text, let no two repeats take the same characters, and bound them: \\s{0,40}"


def is_event(value: object) -> bool:
    """Return whether a value is what a reader may answer with."""
    return isinstance(value, get_args(Event))


def check_reading(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield logs that are read otherwise than stated, or otherwise in other pieces, at other times, of other ranks."""
    yield from missing_logs(subject)
    for path, stated in subject.logs.items():
        if path not in subject.bytes:
            yield f"log {path}", "it is not there", NAME_IT
            continue
        defects, error = attempt(lambda: list(_read(subject, path, stated)))  # noqa: B023
        yield from ((f"log {path.name}", what, hint) for what, hint in defects or ())
        if error:
            hint = "a reader returns () for lines that it does not recognise"
            yield f"log {path.name}", f"the reader raised {error}", hint


def missing_logs(subject: Subject) -> Iterator[Defect]:
    """Yield that there is no log, where steps of logs are what the backend's runs are judged by."""
    rules = [made.spec.result_rule.kind for made in subject.made]
    if not subject.logs and ("steps" in rules or not rules):
        hint = "logs = {path: number of training steps}: what the framework printed in a run"
        yield f"backend {subject.name}", "there is no log to read", hint


def _read(subject: Subject, path: Path, stated: int | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the events of a log, and what to do."""
    data, events = subject.bytes[path], list(subject.events[path])
    if odd := [event for event in events if not is_event(event)]:
        hint = "Step, Phase, Summary, EffectiveConfig, Ended and Unread are what a reader answers with"
        yield f"the reader answered {odd[0]!r}", hint
        return
    count = _count(events)
    if stated is not None and count != stated:
        hint = "compare the pattern with the lines of the log; each number of a step counts once"
        yield f"{count} training steps were read, {stated} are stated", hint
    lines, chunks = lines_of(data), f"chunks of {_CHUNK_BYTES} bytes gave other events than the whole"
    later = [replace(line, t_s=0.5 + n) for n, line in enumerate(lines)]
    elsewhere = [replace(line, node=1) for line in lines]
    for what, changed, form, hint in (
        ("a second fresh reader returned other events", lines, repr, _NO_STATE),
        (chunks, lines_of(data, _CHUNK_BYTES), repr, _NO_STATE),
        ("the same lines later gave other events", later, _timeless, _NO_PLACE),
        ("the same lines of another node gave other events", elsewhere, _timeless, _NO_PLACE),
    ):
        if form(read(subject.backend.reader(None), changed)) != form(events):
            yield what, hint
            if hint == _NO_STATE:
                return
    if all(line.rank is None for line in lines):
        both = [replace(line, rank=rank) for line in lines for rank in (0, 1)]
        if (doubled := _count(read(subject.backend.reader(None), both))) != count:
            yield f"two ranks that print the same, line by line, gave {doubled} steps in place of {count}", _NO_PLACE
        yield from _labelled(subject, data, count)


def _labelled(subject: Subject, data: bytes, count: int) -> Iterator[tuple[str, str]]:
    """Yield that a launcher's labels hide steps, or that these do not have the ranks that the labels name."""
    for how, label in _LABELS.items():
        labelled = b"".join(label % rank + row + b"\n" for row in data.splitlines() for rank in (0, 1))
        steps = [event for event in read(subject.backend.reader(None), lines_of(labelled)) if isinstance(event, Step)]
        if (found := _count(steps)) != count:
            yield f"two ranks behind the labels of {how} gave {found} steps in place of {count}", _NO_LABEL
        elif any(step.rank is None for step in steps):
            yield f"a step behind the labels of {how} has no rank", _NO_PLACE


def _count(events: Iterable[Event]) -> int:
    return Steps(event for event in events if isinstance(event, Step)).count()


def _timeless(events: Iterable[Event]) -> str:
    return repr([replace(event, t_s=0.0) if isinstance(event, Step | Phase) else event for event in events])


def check_finish(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what a reader does wrong at the end of a run that left nothing; `folder` is empty."""
    for plan in (None, *(made.plan for made in subject.spread(2))):
        for outputs, words in ((folder, "an empty folder"), (folder / "none", "a folder that is not there")):
            events, error = attempt(lambda: answered(subject.backend.reader(plan).finish, outputs))  # noqa: B023
            if error:
                yield f"finish({words})", f"it raised {error}", "return nothing where no file is"
            elif odd := [event for event in events or () if not is_event(event)]:
                yield f"finish({words})", f"it answered {odd[0]!r}", "return events of madlite"


def check_fuzz(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield what a reader raises or answers of broken logs, and lines that take too long.

    Each log is broken in some ways, and read by readers of no plan and of one.
    """
    yield from missing_logs(subject)
    seen: set[str] = set()
    plans = (None, *(made.plan for made in subject.spread(1)))
    for plan, (name, data, step) in product(plans, (*_parts_of_logs(subject), ("noise", b"\n".join(_NOISE), ""))):
        for logs, most in ((_broken(data, name, subject.examples), _LINES), (_slow(step, subject.examples // 3), 1)):
            flaws = (_survived(subject.backend.reader(plan), log, most * LINE_LIMIT_S) for log in logs)
            what, hint = next(filter(None, flaws), ("", ""))
            if what and what not in seen:
                seen.add(what)
                yield f"broken {name}", what, hint
            if hint == _QUICK:  # each further one would cost as much time
                return


def _parts_of_logs(subject: Subject) -> Iterator[tuple[str, bytes, str]]:
    """Yield a part of each log, where the steps begin, and the line of the first step."""
    for path, data in subject.bytes.items():
        rows = data.splitlines(keepends=True) or [b""]
        at = next((number for number, row in enumerate(rows) if _has_step(subject, row)), 0)
        part = b"".join((*rows[:20], *rows[max(20, at - 3) : at + 12]))[: 4 * LONGEST]
        yield f"log {path.name}", part, rows[at].decode("utf-8", "replace").rstrip()


def _has_step(subject: Subject, row: bytes) -> bool:
    events, _ = attempt(read, subject.backend.reader(None), lines_of(row))
    return any(isinstance(event, Step) for event in events or ())


def _broken(data: bytes, name: str, count: int) -> Iterator[list[Line]]:
    chance = random.Random(name)  # noqa: S311 - the same every time
    return (lines_of(_break(data, chance)) for _ in range(count))


def _slow(text: str, count: int) -> Iterator[list[Line]]:
    """Yield lines as long as one can be: parts of a step's line, from as many places in it, again and again."""
    ends = [place for place, character in enumerate(text) if character in " :=|,"]
    for end in sorted({*(ends[at * len(ends) // count] for at in range(count) if ends), len(text)}):
        for more in (text[:end] or "x", " ", "9", "9,", ".9", text[max(0, end - 6) : end] or " "):
            yield [Line(text=(text[:end] + more * (LONGEST // len(more)))[:LONGEST])]


def _survived(reader: Reader, lines: Sequence[Line], limit_s: float) -> tuple[str, str] | None:
    """Return that a reader raised, gave nonsense or took longer than some lines may, and what to do."""
    events, error = attempt(read, reader, lines, limit_s)
    if error.startswith("TimeoutError"):
        text = "\n".join(line.text for line in lines)
        return f"a text of {len(text)} characters that begins with {text[:60]!r} takes over {limit_s:g} s", _QUICK
    if error:
        return f"the reader raised {error}", "answer () for what cannot be read"
    if odd := [event for event in events or () if not _is_sane(event)]:
        return f"the reader answered {odd[0]!r}"[:300], "a step has a number from 0 and floats by madlite.Quantity"
    return None


def _is_sane(event: object) -> bool:
    if not isinstance(event, Step):
        return is_event(event)
    whole = type(event.n) is int and event.n >= 0 and event.span >= 1
    return whole and all(
        isinstance(quantity, Quantity) and type(value) in (float, int) for quantity, value in event.values.items()
    )


def _break(data: bytes, chance: random.Random) -> bytes:
    """Return a log with some of its lines cut, doubled, mixed, or with noise in them."""
    rows = data.splitlines(keepends=True) or [b"\n"]
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(rows))
        row, noise = rows[at], chance.choice(_NOISE)
        cut = chance.randrange(len(row) + 1)
        digit = chance.choice([place for place, byte in enumerate(row) if 48 <= byte <= 57] or [0])
        changes = [row[:cut], row * 2, row[:cut] + chance.choice(rows), row[:cut] + noise + row[cut:], noise + b"\n"]
        changes += [row.replace(b" ", b"", 1), row[:digit] + chance.choice(_OTHER_DIGITS) + row[digit + 1 :]]
        rows[at] = chance.choice(changes)
    return b"".join(rows)


LINES_OF_OTHERS = Path(__file__).with_name("lines_of_others.toml")
_NO_LOG: tuple[list[str], ...] = ([], [""], ["\x00\ufffd" * 100], ["nothing that any framework prints"], ["x" * 65_536])
_HINT = "be as sure as the lines are yours alone: 0.9 a prefix of your own, 0.5 a step line, 0.0 nothing"


def check_detection(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield answers that are no certainty, and logs of others that are claimed."""
    foreign = [(f"{head!r:.40}, which is no log", head, 0.0) for head in _NO_LOG]
    foreign.append(("an error", ["Traceback (most recent call last):"], 1.1))
    for owner, line in tomli.loads(LINES_OF_OTHERS.read_text("utf-8")).items():
        theirs = _certainty(subject.others[owner], [line]) if owner in subject.others else 0.5
        foreign.append((f"a line of {owner}", [line], 1.1 if owner == subject.name else theirs))
    for what, head, theirs in foreign:
        sure, wrong = _detected(subject, head, f"detect of {what}")
        yield from wrong
        if sure and sure >= theirs:
            yield f"detect of {what}", f"it answered {sure:g}, its owner {theirs:g}", _HINT
    for path, data in subject.bytes.items():
        head = [line.text for line in lines_of(data)[:500]]  # as many as a log's owner is searched for in
        sure, wrong = _detected(subject, head, f"detect of log {path.name}")
        yield from wrong
        for other, backend in subject.others.items():
            if sure and (theirs := _certainty(backend, head)) >= sure:
                hint = "detect your own log by a line that no other framework prints"
                yield f"log {path.name}", f"backend {other} is {theirs:g} sure of it, this one {sure:g}", hint


def _detected(subject: Subject, head: Sequence[str], where: str) -> tuple[float, list[Defect]]:
    """Return the answer as a number, 0 for one that is wrong, and what is wrong with it."""
    sure, error = attempt(subject.backend.detect, head)
    if error:
        return 0.0, [(where, f"it raised {error}", "answer 0.0")]
    if isinstance(sure, bool) or not isinstance(sure, (int, float)) or not 0 <= sure <= 1:
        return 0.0, [(where, f"it answered {sure!r}", "answer a number from 0.0 to 1.0")]
    return float(sure), []


def _certainty(backend: Backend, head: Sequence[str]) -> float:
    return attempt(backend.detect, head)[0] or 0.0  # another backend's mistake is not this one's


CHECKS = (check_reading, check_finish, check_fuzz, check_detection)
