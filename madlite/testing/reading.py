"""Readers: the same log is the same events however its bytes come, and the stated steps are in it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from madlite.measure.monitor import LogMonitor
from madlite.measure.steps import Steps
from madlite.measure.verdict import Expected, judge_steps
from madlite.model import Event, Line, Phase, Reader, ResultRule, Step
from madlite.testing.flaws import Flaw
from madlite.testing.limits import answered, limited
from madlite.testing.members import is_event
from madlite.testing.subject import LOG_LIMIT_S, NAME_IT, Subject, follow, lines_of, raised

CHECK = "reading"
_BYTE_BY_BYTE = 16 * 1024  # bytes of a log's begin that come one at a time
_FEW_BYTES = 2 * 1024  # likewise, of a sample
_SIZES = (7, 997, 65_536)
_NO_PLACE = "keep what is held back for each (line.node, line.rank), and give a step its line's t_s and rank"
_NO_LABEL = "madlite.without_label(line) is what the process wrote, where a pattern begins with the line"
_LABELS = {"srun --label": b"%d: ", "mpirun --tag-output": b"[1,%d]<stdout>:", "torchrun": b"[rank%d]: "}
_NO_STATE = "keep what a line says in the reader, never in the module or the class, and know no chunk"


def check_reading(subject: Subject) -> Iterator[Flaw]:
    """Yield logs that are read otherwise than stated, or otherwise in other pieces, at other times, of other ranks."""
    yield from missing_logs(subject, CHECK)
    for path in subject.logs:
        where = f"log {path.name}"
        if path not in subject.bytes:
            yield Flaw(check=CHECK, where=f"log {path}", what="it is not there", mend=NAME_IT)
            continue
        try:
            yield from _steps(subject, path, where)
            yield from _pieces(subject, path, where)
            yield from _otherwise(subject, path, where)
            yield from _whole(subject, path, where)
        except Exception as error:  # noqa: BLE001 - the border to the reader under test
            mend = "a reader answers () for what it does not know"
            yield Flaw(check=CHECK, where=where, what=f"the reader raised {raised(error)}", mend=mend)


def missing_logs(subject: Subject, check: str) -> Iterator[Flaw]:
    """Yield that there is no log, where steps of logs are what the backend's runs are judged by."""
    rules = [made.draft.result_rule.kind for made in subject.made]
    if not subject.logs and ("steps" in rules or not rules):
        mend = "logs = {path: number of training steps}: what the framework printed in a run"
        yield Flaw(check=check, where=f"backend {subject.name}", what="there is no log to read", mend=mend)


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


def _whole(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    """Yield that a log which has each of its steps is not whole for as many, whether they are counted from 0 or 1.

    Of several trainings that is asked of the last one.
    """
    told = subject.told[path]
    begins = [at for at, event in enumerate(told) if isinstance(event, Phase) and event.begins]
    last = told[begins[-1] if begins else 0 :]
    steps = [event for event in last if isinstance(event, Step) and event.phase == "train"]
    numbers = sorted({step.n for step in steps})
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] not in (0, 1):
        return
    for first in (0, 1):
        asked = Expected(rule=ResultRule(kind="steps", loss_expected=False), steps=len(numbers))
        log = LogMonitor([_Again(replace(step, n=step.n - numbers[0] + first) for step in steps)])
        log.feed(b"step\n" * len(steps))
        said = {one.name: one for one in judge_steps(asked, log).checks}["last_step"]
        if said.status == "fail":
            what = f"steps counted from {first}, {len(numbers)} of {len(numbers)}, are not the whole: {said.text}"
            mend = "a step's number is the one that is printed, and grows by one from step to step"
            yield Flaw(check=CHECK, where=where, what=what, mend=mend)


class _Again:
    """Answers each line with the next of some steps."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = iter(steps)

    def feed(self, line: Line) -> Iterable[Event]:
        return tuple(islice(self._steps, 1))

    def finish(self, outputs: Path) -> Iterable[Event]:
        return ()


def _pieces(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    data, whole = subject.bytes[path], repr(list(subject.told[path]))
    if repr(follow(subject.backend.reader(None), [data])) != whole:
        yield Flaw(check=CHECK, where=where, what="a second fresh reader told something else", mend=_NO_STATE)
        return
    chance = random.Random(path.name)  # noqa: S311 - places to cut at, the same ones every time
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(20))
    ways = {f"chunks of {size} bytes": list(range(size, len(data), size)) for size in _SIZES if size < len(data)}
    ways["chunks of chance"] = cuts
    for how, ends in ways.items():
        if repr(_in_pieces(subject, data, ends)) != whole:
            yield Flaw(check=CHECK, where=where, what=f"{how} gave other events than the whole", mend=_NO_STATE)
    begin = data[: _BYTE_BY_BYTE if subject.most is None else _FEW_BYTES]
    alone = repr(follow(subject.backend.reader(None), [begin]))
    if repr(_in_pieces(subject, begin, list(range(1, len(begin))))) != alone:
        yield Flaw(check=CHECK, where=where, what="single bytes gave other events than the whole", mend=_NO_STATE)


def _otherwise(subject: Subject, path: Path, where: str) -> Iterator[Flaw]:
    """Yield that time, node or rank of the lines change what is read, or that a second finish() does."""
    lines = lines_of(subject.bytes[path])
    reader = subject.backend.reader(None)
    plain = _fed(reader, lines)
    ways = {"later": [replace(line, t_s=0.5 + n) for n, line in enumerate(lines)]}
    ways["of another node"] = [replace(line, node=1) for line in lines]
    for how, changed in ways.items():
        if _timeless(_fed(subject.backend.reader(None), changed)) != _timeless(plain):
            yield Flaw(check=CHECK, where=where, what=f"the same lines {how} gave other events", mend=_NO_PLACE)
    if all(line.rank is None for line in lines):
        both = [replace(line, rank=rank) for line in lines for rank in (0, 1)]
        count, doubled = _count(plain), _count(_fed(subject.backend.reader(None), both))
        if count != doubled:
            what = f"two ranks that say the same, line by line, gave {doubled} steps in place of {count}"
            yield Flaw(check=CHECK, where=where, what=what, mend=_NO_PLACE)
        yield from _labelled(subject, path, where, count)
    yield from _finished_twice(reader, plain, where)


def _labelled(subject: Subject, path: Path, where: str, count: int) -> Iterator[Flaw]:
    """Yield that a launcher's labels hide steps, or that these do not have the ranks that the labels name."""
    rows = subject.bytes[path].splitlines()
    for how, label in _LABELS.items():
        data = b"".join(label % rank + row + b"\n" for row in rows for rank in (0, 1))
        steps = [event for event in follow(subject.backend.reader(None), [data]) if isinstance(event, Step)]
        if (found := _count(steps)) != count:
            what = f"two ranks behind the labels of {how} gave {found} steps in place of {count}"
            yield Flaw(check=CHECK, where=where, what=what, mend=_NO_LABEL)
        elif any(step.rank is None for step in steps):
            what = f"a step behind the labels of {how} has no rank"
            yield Flaw(check=CHECK, where=where, what=what, mend=_NO_PLACE)


def _finished_twice(reader: Reader, told: list[Event], where: str) -> Iterator[Flaw]:
    with TemporaryDirectory(prefix="madlite_kit_") as folder:
        first = answered(reader.finish, Path(folder))
        second = answered(reader.finish, Path(folder))
    if _count([*told, *first, *second]) != _count([*told, *first]):
        mend = "tell what is held back once, and forget it"
        yield Flaw(check=CHECK, where=where, what="a second finish() told further steps", mend=mend)


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
    return follow(subject.backend.reader(None), chunks)
