"""Python's tracebacks in a log, each process's for itself: the exception that ended it, and where it was raised.

What stands before the first line of a traceback (a rank, a node, a time) is expected before its other lines too; where
they come without it, they are those that come next.  Lines of several processes may be mixed as far as they differ in
it.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from madlite.measure.lines import (
    ASIDE,
    CAUSED,
    EXCEPTION,
    EXIT_BARRIER,
    HANDLING,
    MARK,
    Block,
    pattern_of,
    rank_in,
    rank_of_task,
    shape_of,
    without_logger,
)
from madlite.measure.rules import ERROR, LAST, LAUNCHER, FailureCandidate, plain
from madlite.rank_labels import LABEL, OF_RANK

_HEADLESS = re.compile(r'^(?P<label>.{0,200}?)(?:  |\s)File "[^"]{1,500}", line \d+, in \S')
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_LAUNCHERS = re.compile(
    r"^(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|SignalException|SystemExit|Process(?:Raised|Exited)Exception|_?RemoteTraceback|ActorDiedError|RayActorError|WorkerCrashedError|NodeDiedError)\b"
)
_IMPORT = re.compile(r"^(?:[\w.]*\.)?(?:ImportError|ModuleNotFoundError)\b")
_WARNS = re.compile(r"^[\w.]*Warning\b")
_OF_SPAWNED = " terminated with the following error:"
_MARKS = (MARK, HANDLING, CAUSED, _OF_SPAWNED, *ASIDE)
_SPAWNED = re.compile(r"-- Process (\d{1,9})$")
# a process that was begun reads what it is to do from the one that began it, whose end this tells
_ORPHAN = re.compile(r"EOFError: Ran out of input$|_pickle\.UnpicklingError: pickle data was truncated$")
_READS_PARENT = "/multiprocessing/spawn.py:"
_OF_OTHERS = re.compile(r"\): \(RANK (\d{1,9})\)\s*$")  # ends the first line of what another rank reported of itself
_NAME_ALONE = re.compile(r"^[\w.]+:$")  # an exception whose message begins on the next line
_BEGIN = re.compile("|".join(map(re.escape, _MARKS)))
# rich draws a traceback as a box, and the exception comes below it: what a box, or one whose head was cut off, has
_IN_BOX = ("\u2771", "\u2570\u2500")  # an arrow before the line that was reached, and the lower corner
_SIDES, _CORNERS = ("\u2502", "\u2503", "|"), ("\u2570\u2500", "\u2517\u2501", "+--")
_HEAD_OF_BOX = re.compile(r"(?P<label>.*?)(?:[\u256d\u250f][\u2500\u2501]|\+-)[\u2500\u2501-]* ?$")
_PART_OF_BOX = re.compile(
    r"(?P<label>.{0,200}?)(?=[\u2502\u2503](?:.{0,2000}\u2771| [^\u2502\u2503]{1,500}\.py:\d+ in )|\u2570\u2500)"
)
_BOX_FRAME = re.compile(r"[\u2502\u2503|] (?P<file>\S.{0,500}?):(?P<line>\d+) in (?P<function>[^\u2502\u2503|]+)")
_FRAME_BEGINS = ' File "'
_PLACE = ".py:"  # of a frame in a box
_FIRST = re.compile("|".join((*map(re.escape, (*_MARKS, *_IN_BOX, _FRAME_BEGINS)), r"\.py:\d+ in [^\u2502]*\u2502")))
_NONE = ("traceback :", "Original")  # a traceback after these was raised elsewhere
_REPEATED = _NONE[0]  # of a rank, by torchrun
_SOON = 3  # lines
_MIXED = 40  # lines of other ranks at most that come within a message
# what another program says, or a logger: not the next line of an exception's message
_FOREIGN = re.compile(
    r"[\w./-]+: (?:line )?\d+: |[\w./-]+: (?:ERROR|WARNING)\b|(?:srun|slurmstepd|(?:ba)?sh): |\[?[EWIF]\d{3,4} "
    r"|\[?\d{4}-\d\d-\d\d[T ]|\[?\d\d:\d\d:\d\d|\[?(?:ERROR|WARNING|INFO)\b|[\w.-]+:\d+:\d+ \["
)
_LOST = 3000  # lines after which a traceback that does not end is given up
_MOST = 64
_MOST_IGNORED = 10_000
_INDENT = "    "
_GLUED = re.compile(r"\w(?:Error|Exception): \w")  # what another process wrote into a line of the program's text
_LONGEST = 200  # characters of a label; a longer one is text
_PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")


class _Open:
    """A traceback whose exception has not come yet."""

    def __init__(self, label: str, rank: int | None = None, *, aside: bool = False) -> None:
        self.label = pattern_of(label) if label else None
        self.rank = rank_in(label) if rank is None else rank
        self.aside = aside  # it ends nothing
        self.task = rank_of_task(label)
        self.labelled: bool | None = None if label else False  # whether its other lines have the label; None: not seen
        self.lines = 0
        self.shows_code = False  # on the next line, behind a frame's own
        self.waited = 0  # lines of others, once its exception came
        self.frame = self.own_frame = ""
        self.is_handled = False  # whether it ends nothing, and its exception is no more than another line
        self.headless = False  # its first line is not in the log: it ends with the first line that is none of it
        self.boxed = self.is_box_over = False
        self.first = ""  # line of it

    def after_label(self, line: str) -> str | None:
        """Return what comes after the label; None of a line that does not have it."""
        if self.labelled is False or self.label is None or (found := self.label.match(line)) is None:
            return None
        self.labelled = True
        return line[found.end() :]

    def takes_plain(self, line: str) -> bool:
        """Return whether a line without the label can be of this traceback: if its first frame had none either."""
        if self.labelled is None and (_FRAME.match(line) or (self.boxed and line.startswith(_SIDES))):
            self.labelled = False
        return self.labelled is False

    def note(self, frame: re.Match[str]) -> None:
        inside = f" in {frame['function'].strip()}" if frame["function"] else ""
        self.frame = f"{frame['file']}:{frame['line']}{inside}"
        if not any(part in frame["file"] for part in _PACKAGES):
            self.own_frame = self.frame

    @property
    def owner(self) -> int | None:
        return self.task if self.rank is None and self.labelled else self.rank

    def exception(self, at: int, line: str) -> FailureCandidate:
        """Return the exception that ends it; a launcher's means that its workers failed."""
        return FailureCandidate(
            cause="python_error",
            line=line,
            tier=LAUNCHER if _LAUNCHERS.match(line) else ERROR,
            at=at,
            rank=self.owner,
            where=self.own_frame or self.frame,
            uncaught=True,
            of_import=_IMPORT.match(line) is not None,
        )


class TracebackScan:
    """Store the exceptions in the order of the log, at most a few dozen."""

    def __init__(self) -> None:
        self.raised: list[FailureCandidate] = []
        self.ignored: set[int] = set()  # places of a program's text that is shown, and of exceptions that end nothing
        self.begun = ""  # the first line by which a traceback begins
        self._keys: list[str] = []  # of each that was raised, the shape of its label
        self._open: dict[str, _Open] = {}
        # place of an exception → its traceback, until the next line of its message
        self._unfinished: dict[int, _Open] = {}
        self._survived: set[str] = set()  # shapes of labels whose last traceback ended nothing
        self._spawned: dict[str, int] = {}  # shape of a label → the process whose traceback comes next
        self._aside: dict[str, int] = {}  # of how many lines the next may begin a traceback that ends nothing

    def feed(self, block: Block, begin: int = 0) -> None:
        """Take lines in, which begin at a place of the log."""
        text, at = block.text, 0
        marked = any(mark in text for mark in (*_MARKS, *_IN_BOX, _FRAME_BEGINS)) or (
            _SIDES[0] in text and _PLACE in text
        )
        while at < len(text):
            if not self._open and not self._aside and not self._unfinished:
                found = _FIRST.search(text, at) if marked else None
                if found is None:
                    return
                at = text.rfind("\n", 0, found.start()) + 1
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            self._take(begin + at, text[at:end])
            at = end + 1

    def _take(self, at: int, line: str) -> None:
        if not line.strip():  # between the redrawings of a bar there are more or fewer, as the log comes in
            return
        begins = _BEGIN.search(line)
        if self._unfinished:
            self._continue_message(line, ends=begins is not None)
        if begins is not None:
            label = line[: begins.start()]
            self._start(begins[0], label if len(label) <= _LONGEST else "", line)
        elif not (self._open and self._go_on(at, line)):
            self._begin_within(at, line)
        if self._aside:
            self._age(line)

    def _start(self, mark: str, label: str, line: str) -> None:
        key = shape_of(label)
        if mark in ASIDE:
            self._set_aside(mark, label)
        elif mark == _OF_SPAWNED:
            if found := _SPAWNED.search(label):
                self._spawned = {shape_of(label[: found.start()]): int(found[1])}
        elif mark in (HANDLING, CAUSED):
            self._chain(mark, key)
        elif label.strip().endswith(_NONE):
            self._open_quiet(key, label)
        elif (box := _HEAD_OF_BOX.match(label)) is not None:
            self._open_box(box["label"], line)
        else:
            self._open_one(key, label, line)

    def _chain(self, mark: str, key: str) -> None:
        """Note what comes between two tracebacks of a chain."""
        if key in self._survived:
            self._aside[key] = _SOON + 1
        elif mark == HANDLING:
            self._handled(key)

    def _open_box(self, label: str, line: str) -> None:
        key = shape_of(label)
        self._open_one(key, label, line)
        self._open[key].boxed = True

    def _begin_within(self, at: int, line: str) -> None:
        """Take a line of a traceback whose head is not in the log, where it is one."""
        boxed = _PART_OF_BOX.match(line) if any(mark in line for mark in (*_IN_BOX, _SIDES[0])) else None
        found = boxed or (_HEADLESS.match(line) if _FRAME_BEGINS in line else None)
        key = shape_of(found["label"]) if found is not None else ""
        if found is None or key in self._open or self._aside.get(key):
            return
        entry = self._open[key] = _Open(found["label"])
        entry.labelled, entry.headless, entry.boxed, entry.first = bool(found["label"]), True, boxed is not None, line
        self._read(at, line[found.end("label") :], entry, key)

    def _set_aside(self, mark: str, label: str) -> None:
        """Note that the next traceback of a label ends nothing."""
        self._aside[shape_of(label)] = _SOON + 1
        if mark == EXIT_BARRIER:  # a logger may write what it is called before the first line alone
            self._survived |= {shape_of(label), _of_launcher(label)}
            self._aside[_of_launcher(label)] = _SOON + 1

    def _open_one(self, key: str, label: str, line: str) -> None:
        if self._aside.pop(key, 0):
            self._open[key] = _Open(label, aside=True)
            self._open[key].is_handled = key not in self._survived
            return
        self._survived.discard(key)
        other_rank = _OF_OTHERS.search(line)
        if other_rank is not None:
            self._mark_wrapper(key)
            key += "\0"  # what it reports concerns no other rank
        spawned = self._spawned.pop(key, None) if rank_in(label) is None else None
        self._open[key] = _Open(label, int(other_rank[1]) if other_rank else spawned)
        self._open[key].first = line
        self.begun = self.begun or line

    def _open_quiet(self, key: str, label: str) -> None:
        """Pass over what one process repeats of another's traceback; torchrun's table is read as the rank's own."""
        if not label.strip().endswith(_REPEATED):
            self._open[key] = _Open(label, aside=True)
            self._open[key].is_handled = True

    def _mark_wrapper(self, key: str) -> None:
        """Note that the last exception of a label tells what ranks raised."""
        place = next((n for n in reversed(range(len(self._keys))) if self._keys[n] == key), None)
        if place is not None:
            self.raised[place] = replace(self.raised[place], tier=LAUNCHER)

    def _handled(self, key: str) -> None:
        """Note that the last exception was handled; a logger's label may be before another line of its message."""
        if key:
            places = [place for place, other in enumerate(self._keys) if other == key]
        else:
            places = [place for place, other in enumerate(self._keys) if not OF_RANK.search(other)]
        if places:
            self.raised[places[-1]] = replace(self.raised[places[-1]], handled=True)

    @property
    def cut(self) -> list[FailureCandidate]:
        """The tracebacks in which the log ends so far, each by its first line."""
        words = "the log ends within this traceback, and lacks the exception: look at the whole of it"
        return [
            replace(item.exception(0, plain(item.first.strip())), tier=LAST, advice=words)
            for item in self._open.values()
            if not item.aside and (item.frame or not item.headless)
        ]

    def _go_on(self, at: int, line: str) -> bool:
        """Give a line to the traceback that it is of, and return whether there is one."""
        for key, item in self._open.items():
            if (text := item.after_label(line)) is not None:
                self._read(at, text, item, key)
                return True
        last = next((key for key, item in reversed(self._open.items()) if item.takes_plain(line)), None)
        if last is not None:
            self._read(at, without_logger(line), self._open[last], last)
        return last is not None

    def _read_box(self, at: int, text: str, item: _Open, key: str) -> None:
        """Read a line of a box, or the one below it, which is the exception."""
        bare = text.strip()
        if not item.is_box_over and bare.startswith(_SIDES):
            if frame := _BOX_FRAME.match(bare):
                item.note(frame)
            self._ignore(at)
        elif not item.is_box_over:
            item.is_box_over = bare.startswith(_CORNERS)
        else:
            del self._open[key]
            if EXCEPTION.match(text):
                self._add(at, text, item, key)

    def _read(self, at: int, text: str, item: _Open, key: str) -> None:
        item.lines += 1
        if item.boxed and item.lines <= _LOST:
            self._read_box(at, text, item, key)
            return
        shows_code, item.shows_code = item.shows_code, False
        if frame := _FRAME.match(text):
            item.note(frame)
            item.shows_code = True
        elif shows_code and text.startswith(_INDENT):
            if not _GLUED.search(text):
                self._ignore(at)
        elif EXCEPTION.match(text) and not (item.headless and _WARNS.match(text)):
            del self._open[key]
            self._end(at, text, item, key)
        elif item.lines > _LOST or (item.headless and not text.startswith(" ")):
            del self._open[key]

    def _end(self, at: int, text: str, item: _Open, key: str) -> None:
        """Take the exception that ends a traceback."""
        if item.is_handled:
            return
        if item.aside or (_ORPHAN.match(text) and _READS_PARENT in item.frame):
            self._ignore(at)
        else:
            self._add(at, text, item, key)

    def _ignore(self, at: int) -> None:
        if len(self.ignored) < _MOST_IGNORED:
            self.ignored.add(at)

    def _continue_message(self, line: str, *, ends: bool) -> None:
        """Take the next line of a message that goes on: of the same label, and where it has none the very next."""
        for at, item in list(self._unfinished.items()):
            text = without_logger(line) if item.label is None or not item.labelled else item.after_label(line)
            item.waited += 1
            if not (text or "").strip() and item.waited <= _MIXED:  # another rank's, or a blank one of its own
                continue
            del self._unfinished[at]
            if text and not ends and not LABEL.match(text) and not _FOREIGN.match(text):
                self.raised = [_with_more(other, text.strip()) if other.at == at else other for other in self.raised]

    def _age(self, line: str) -> None:
        """Count a line of whom an exception aside was said."""
        head = shape_of(line[:_LONGEST])
        for key in [key for key in self._aside if head.startswith(key) and (key or rank_in(line) is None)]:
            self._aside[key] -= 1
            if not self._aside[key]:
                del self._aside[key]

    def _again(self, at: int, text: str) -> None:
        """Note that an exception came once more, of the same rank or of one of many."""
        place = next((n for n, other in enumerate(self.raised) if other.line == text), None)
        if place is not None:
            self.raised[place] = replace(self.raised[place], again=at)

    def _add(self, at: int, line: str, item: _Open, key: str) -> None:
        rank, text = item.owner, line.strip()
        same = next((n for n, other in enumerate(self.raised) if other.rank == rank and other.line == text), None)
        if same is not None and self.raised[same].handled:  # this time nobody handled it
            del self.raised[same], self._keys[same]
        elif same is not None or len(self.raised) >= _MOST:
            self._again(at, text)
            return
        self.raised.append(item.exception(at, text))
        self._keys.append(key)
        if text.endswith(":") or (item.boxed and line.endswith(" ")):  # rich breaks lines between words
            self._unfinished[at] = item


def _with_more(raised: FailureCandidate, more: str) -> FailureCandidate:
    """Return an exception with the next line of its message, which is all of it where the first has its name alone."""
    if not raised.line.endswith(":"):
        return replace(raised, line=f"{raised.line} {more}")
    whole = f"{raised.line} {more}" if _NAME_ALONE.match(raised.line) and raised.tier != LAUNCHER else raised.line
    return replace(raised, next_line=more, line=whole)


def _of_launcher(label: str) -> str:
    """Return the shape of what a launcher put before a line, without what the program's logger did."""
    found = LABEL.match(label)
    return shape_of(found[0]) if found else ""
