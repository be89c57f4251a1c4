"""Bytes of a log → clean lines: decoded, without terminal escapes, split where a progress bar returns its carriage.

A log can have gigabytes, so what can be done once for a whole chunk is: decoding, escapes, carriage returns, and the
question whether a text that is searched for is in any of its lines at all.
"""

from __future__ import annotations

import codecs
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from madlite.model import Image, ImageUsed, Line, Metric, ResultRule, Status, Value
from madlite.rank_labels import CLOCK, LABEL, RankLabels, node_label, nodes_of, rank_of

# How the lines of a log are built: what launchers and loggers put before them, and Python's tracebacks.
#
# One place for what several rooms look for.  Sources: docs.python.org, library/traceback; torchrun's `[rank0]:` and
# `[default0]:`, Primus's `[rank-0/8]`, Open MPI's `--tag-output` (`[1,5]<stderr>:`) and Slurm's `srun --label` (`5: `).

MARK = "Traceback (most recent call last)"
EXIT_BARRIER = "Error waiting on exit barrier"
"""torchrun's agent logs it where another node was gone first: its own ranks had come to their end."""
ASIDE = ("Exception ignored", "Exception in thread", "--- Logging error ---", "Error in atexit", EXIT_BARRIER)
"""What comes before a traceback that ends nothing."""
HANDLING = "During handling of the above exception, another exception occurred"
"""Comes between the tracebacks of an exception that was handled and of the one that came out of it."""
CAUSED = "The above exception was the direct cause of the following exception"
"""Comes between the tracebacks of an exception and of the one that was made of it."""
_HEAD = 200  # characters in which what a launcher puts before a line is looked for

_LOGGED = re.compile(r"^.*?\[rank-\d+/\d+\]\s*\[\w+\s*\]\s+\[[^\]]*:\d+\]\s?: ?")  # Primus's logger
_TIME = re.compile(CLOCK)
# Slurm's, Open MPI's
_EXIT_REPORT = re.compile(r"\bsrun: error: \S+: task (\d{1,9}): |\bprocess rank (\d{1,9}) with PID\b")
_TASK = re.compile(rf"^(?:{CLOCK}\s+)?(\d{{1,5}}): ")

_WARNING = re.compile(
    r"(?<!CCL )\bWARN(?:ING)?\b|\b\w*[Ww]arning: |\[W\d{3,4} |\[W\] |(?:^|[\]>:] ?)W\d{4} \d\d:"
    r"|\bwas not called before\b"
)

_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
EXCEPTION = re.compile(
    rf"^(?:{_NAME}(?:Error|Exception|Interrupt|Exit|Iteration|Warning|Timeout|Failure)|Exception"
    r"|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*|error))"
    r"(?:: |:?\s*$)"
)
"""The line that ends a traceback, without what is put before it."""


def is_warning(line: str) -> bool:
    """Return whether a line is a warning by its own words, as loggers and Python's `warnings` mark them."""
    return _WARNING.search(line) is not None


def without_label(line: str) -> str:
    """Return a line as its process wrote it, without what a launcher put before it."""
    return LABEL.sub("", line)


def without_logger(line: str) -> str:
    """Return a line without what Primus's logger put before it."""
    return _LOGGED.sub("", line)


def rank_in(line: str) -> int | None:
    """Return the rank that the beginning of a line names, or of which Slurm or Open MPI reports how it ended."""
    rank = rank_of(line)
    if rank is None and (found := _EXIT_REPORT.search(line, 0, _HEAD)):
        return int(found[1] or found[2])
    return rank


def rank_of_task(label: str) -> int | None:
    """Return the rank of `srun --label`, which is a number and nothing else: sure where every line has it."""
    found = _TASK.match(label)
    return int(found[1]) if found else None


def shape_of(label: str) -> str:
    """Return what stays the same of a label from one line to the next: all but the time."""
    return _TIME.sub("@", label)


def pattern_of(label: str) -> re.Pattern[str]:
    """Return what matches a label before another line, at another time."""
    return re.compile(CLOCK.join(map(re.escape, _TIME.split(label))))


# What a signal that ended a process means, however it is named: by number, by name, or as the C library spells it.

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
"""What a process does to itself, in native code."""
TERMINATIONS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""How a launcher, a scheduler or a user ends those that did not fail."""
_SHELL = 128  # a shell's exit code for a signal is this and its number
_LAST_SIGNAL = 64  # Linux has no signal beyond
_CRASHED = "native code crashed: the lines above may name the library; PYTHONFAULTHANDLER=1 shows where"
_ASKED: dict[int, str] = {
    signal.SIGTERM: "by the scheduler (its time limit, a preemption, scancel), a user, or its launcher where another "
    "rank or node failed before",
    signal.SIGINT: "Ctrl-C, or whatever runs the job",
    signal.SIGHUP: "the terminal or ssh connection that it was started from was closed; nohup, tmux or sbatch keep it "
    "going",
}
_SIGNAL_TEXTS: dict[int, str] = {
    signal.SIGBUS: f"{_CRASHED}; a file mapped into memory ends so too where its disk, as /dev/shm, is full: "
    "df -h /dev/shm; in a container --shm-size or --ipc=host gives more",
    signal.SIGXCPU: "its limit of processor time was over (ulimit -t)",
    signal.SIGXFSZ: "a file became larger than its limit (ulimit -f)",
    signal.SIGPIPE: "the reader of its output was gone",
}


def signal_name(number: int) -> str:
    """Return a signal's name, SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_text(number: int) -> str:
    """Return how a process ended by a signal: SIGSEGV and its like are what it did itself."""
    return f"crashed by signal {number}" if number in CRASHES else f"killed by signal {number}"


def signal_meaning(number: int) -> str:
    """Return what a signal means, and what to do; SIGKILL is handled elsewhere."""
    if number in TERMINATIONS:
        return f"it was asked to end by a signal: {_ASKED[number]}"
    return _SIGNAL_TEXTS.get(
        number, _CRASHED if number in CRASHES else "it was sent from outside, or the process ended itself"
    )


def signal_of_code(code: int | None) -> int:
    """Return the signal that an exit code stands for, 0 where it stands for none."""
    if code is None:
        return 0
    number = -code if code < 0 else code - _SHELL
    return number if 0 < number <= _LAST_SIGNAL else 0


def signal_of(text: str) -> int:
    """Return the signal that a text names, as `SIGSEGV`, `11`, `139` or `Segmentation fault`; 0 where it names none."""
    if text.isdecimal():
        number = int(text[:9])
        return number if number <= _LAST_SIGNAL else signal_of_code(number)
    return _signal_numbers().get(text, 0)


@cache
def _signal_numbers() -> dict[str, int]:
    """Return numbers by name and by the words of strsignal(3), which shells and Slurm print."""
    named = {Signal.name: Signal.value for Signal in signal.Signals}
    return {**named, **{words: int(item) for item in signal.valid_signals() if (words := signal.strsignal(item))}}


__all__ = ["Block", "LONGEST", "LineSplitter", "lines_with", "make_block", "rank_of"]

# The lines that madengine writes around a workload's output, which scripts grep its live logs for.
#
# A log of a run in the workspace (`*.live.log`) has them in madengine's words, place and order; a reader of a log
# leaves them out, madengine's own too: they say nothing of the training.  Words and order: madengine 1.0.0 and 2.1.0.

_STATUS = {
    Status.SUCCESS: "Status: SUCCESS (performance metrics found, no errors)",
    Status.FAILURE: "Status: FAILURE (no performance metrics)",
}
ERROR_PATTERNS = "Status: FAILURE (error patterns detected in logs)"
_OTHER_NODE = "Status: SUCCESS (worker node, no errors detected)"
_STATUSES = frozenset((*_STATUS.values(), ERROR_PATTERNS, _OTHER_NODE))
_PERFORMANCE = re.compile(r"\S+ performance is \S.*")
RUNNING = "Running model..."
"""The line before the model's own step."""
# a part of each of them, by which a text without any is known at once
_MARKS = (
    *("MAD_CONTAINER_IMAGE is ", "BASE DOCKER ", "MODEL GIT COMMIT is ", "MODEL REPO COMMIT: "),
    *("Build Duration: ", "Setting timeout to ", "Test Duration: ", "test_duration: ", "Status: "),
    *("> docker ", RUNNING),
)
_SECONDS = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_LINE = re.compile(
    rf"\W*(?:Build Duration: {_SECONDS} seconds|MAD_CONTAINER_IMAGE is .*|Setting timeout to \S+ seconds\.)"
    r"|BASE DOCKER (?:SHA )?is ?.*|MODEL GIT COMMIT is [0-9a-f]{40}|MODEL REPO COMMIT: .*"
    rf"|Test Duration: {_SECONDS} seconds|test_duration: {_SECONDS}s"
    rf"|> docker (?:build|run|exec) .*|{re.escape(RUNNING)}"
)


class LiveLines:
    """Leaves these lines out of one stream of a log; a workload's other lines stay."""

    def __init__(self) -> None:
        self._after_status = False

    def without(self, lines: list[str], text: str) -> list[str]:
        """Return lines, none of them blank, without these; `text` holds whatever is in one of them."""
        if not self._after_status and not any(mark in text for mark in _MARKS):
            return lines
        return [line for line in lines if not self._is_one(line)]

    def _is_one(self, line: str) -> bool:
        """Return whether a line is one; numbers, which a script of one's own may print too, are behind their status."""
        self._after_status = line in _STATUSES or (self._after_status and bool(_PERFORMANCE.fullmatch(line)))
        return self._after_status or bool(_LINE.fullmatch(line))


def image_lines(image: Image, used: ImageUsed) -> tuple[str, ...]:
    """Return the lines for a run's image; of one that was built for it also the build duration."""
    named = f"🏷️  MAD_CONTAINER_IMAGE is {image.ref}"
    if image.dockerfile is None or image.prebuilt:
        return (named,)
    built = (f"⏱️  Build Duration: {used.build_duration_s:.2f} seconds",) if used.build_duration_s is not None else ()
    sha = used.base_digest or used.digest
    return (*built, named, f"BASE DOCKER is {image.base}", *((f"BASE DOCKER SHA is {sha}",) if sha else ()))


def command_line(command: str) -> str:
    """Return the line for a command of docker, as madengine's console has it before each; on one line."""
    return f"> {command}".replace("\r", "\\r").replace("\n", "\\n")


def limit_line(timeout_s: float) -> str:
    """Return the lines for a run's time limit."""
    return f"⏰ Setting timeout to {timeout_s:.0f} seconds."


def clone_line(commit: str) -> str:
    """Return the lines for the commit that a card's repository was cloned at."""
    return f"MODEL GIT COMMIT is {commit}"


def scripts_line(commit: str) -> str:
    """Return the lines for the commit of a card's scripts; it is empty where they are in no repository."""
    return f"MODEL REPO COMMIT:  {commit}"


def duration_lines(duration_s: float) -> tuple[str, ...]:
    """Return the lines for how long the model's script ran, in seconds."""
    return f"Test Duration: {duration_s!r} seconds", f"test_duration: {duration_s:.2f}s"


def result_lines(
    model: str, status: Status, metrics: Iterable[Metric], rule: ResultRule, *, by_patterns: bool
) -> tuple[str, ...]:
    """Return the lines for the result of a script that came to its end: status, and a line for each number.

    `by_patterns`: error patterns in the output are what made it a FAILURE.  Of a results file its name is reported.
    """
    if status not in _STATUS:
        return ()
    words = ERROR_PATTERNS if by_patterns else _STATUS[status]
    told = [f"{metric.text} {metric.metric}" for metric in metrics if metric.text]
    if rule.kind == "multiple_results" and told:
        told = [f"{rule.file} "]
    return words, *(f"{model} performance is {item}" for item in told or ["None None"])


LONGEST = 64 * 1024  # characters; a longer line is cut into pieces, so that noise cannot fill the memory
# nothing of it reaches beyond a line's end, so that a text of many lines comes out as its lines would
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Block(Value, frozen=True):
    """Clean lines that came together, none of them blank; what is in one of them is also in `text`.

    `ranks` are those of the lines, one each; None where none of them names one.  `nodes` the same of nodes.
    """

    lines: list[str]
    text: str
    ranks: list[int | None] | None = None
    nodes: list[int] | None = None

    def split(self, at: int) -> tuple[Block, Block]:
        """Return the lines before a place, and those from it on."""
        return self._part(slice(0, at)), self._part(slice(at, None))

    def _part(self, of: slice) -> Block:
        lines = self.lines[of]
        ranks = self.ranks[of] if self.ranks is not None else None
        nodes = self.nodes[of] if self.nodes is not None else None
        return Block(lines=lines, text="\n".join(lines), ranks=ranks, nodes=nodes)


def lines_with(text: str, needed: str = "") -> Iterator[tuple[int, str]]:
    """Yield offset and line of every line of a text that holds a needed text, in order."""
    at = text.find(needed)
    while at >= 0:
        begin = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        if end < 0:
            yield begin, text[begin:]
            return
        yield begin, text[begin:end]
        at = text.find(needed, end + 1)


# A number that is printed as an object of its library, `tensor(nan, device='cuda:0')`, `np.float64(2.5)`, and
# Lightning's `nan.0`, of which every reader gets the number alone.
# of these such a text has one
_WRAPS = ("ensor(", "loat(", "loat16(", "loat32(", "loat64(", "rray(", "an.0", "nf.0", "AN.0", "aN.0")
_WRAPPED = re.compile(
    r"(?<![\w.])(?:[a-z]{2,10}\.){0,2}(?:[Tt]ensor|array|Array|b?float(?:16|32|64)?)\([\['\"]{0,2}\s{0,4}"
    r"(?P<number>[-+]?(?:\d[\d.]{0,40}(?:[eE][-+]?\d{1,5})?|\.\d{1,40}|(?i:nan|inf)))[\]'\"]{0,2}(?:,[^()]{1,200})?\)"
    r"|(?<![\w.])(?P<word>[-+]?(?i:nan|inf))\.0(?![\w.])"
)


def has_wrapped_number(text: str) -> bool:
    """Return whether a text may have a number that its library wrapped, which is quick to see."""
    return any(mark in text for mark in _WRAPS)


def unwrap_numbers(text: str) -> str:
    """Return a text with each number alone that its library wrapped."""
    return _WRAPPED.sub(lambda found: found["number"] or found["word"], text)


def make_block(lines: Iterable[str]) -> Block:
    """Return a block of lines that are clean already."""
    kept = [line for line in lines if line and not line.isspace()]
    return Block(lines=kept, text="\n".join(kept))


class LineSplitter:
    """Splits one stream; `now` gives the seconds since the start of the run.

    Streams of one log share their `labels`.  Of a `node` of several each line gets its label, as in run.log.  The
    lines that madengine writes into a live log are left out.
    """

    def __init__(
        self, now: Callable[[], float] = lambda: float("nan"), node: int | None = None, labels: RankLabels | None = None
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._now = now
        self._node, self._label = node, "" if node is None else node_label(node)
        self._labels = labels or RankLabels()
        self._live = LiveLines()

    def take(self, chunk: bytes) -> Block:
        """Return the lines that the chunk completes."""
        return self._split(self._decoder.decode(chunk))

    def take_rest(self) -> Block:
        """Return the last line, which nothing ended."""
        return self._split(self._decoder.decode(b"", final=True) + "\n")

    def number(self, block: Block) -> Iterator[Line]:
        """Yield a block's lines as readers get them: with time, node and rank."""
        t_s = self._now()
        if block.ranks is None:
            return (Line(text=text, t_s=t_s) for text in block.lines)
        nodes = block.nodes or [0] * len(block.lines)
        triples = zip(block.lines, block.ranks, nodes, strict=True)
        return (Line(text=text, t_s=t_s, node=node, rank=rank) for text, rank, node in triples)

    def _split(self, text: str) -> Block:
        if "\r" in text:
            text = text.replace("\r", "\n")
        text = self._rest + text
        whole, end, self._rest = text.rpartition("\n")
        lines = whole.split("\n") if end else []
        if len(text) > LONGEST:
            lines, self._rest = _cut(lines, self._rest)
            whole = "\n".join(lines)
        if "\x1b" in whole:
            whole = _ESCAPE.sub("", whole)
            lines = whole.split("\n")
        lines = [line for line in lines if line and not line.isspace()]
        if len(kept := self._live.without(lines, whole)) < len(lines):
            lines, whole = kept, "\n".join(kept)
        if self._label and lines:
            lines = [self._label + line for line in lines]
            whole = "\n".join(lines)
        nodes = nodes_of(lines, whole) if self._node is None else [self._node] * len(lines)
        return Block(lines=lines, text=whole, ranks=self._labels.read(lines, whole, self._node), nodes=nodes)


def _cut(lines: list[str], rest: str) -> tuple[list[str], str]:
    """Return lines and an unfinished one with what is too long in pieces, the same pieces however the bytes came."""
    if max(map(len, lines), default=0) > LONGEST:
        lines = [line[at : at + LONGEST] for line in lines for at in range(0, len(line) or 1, LONGEST)]
    keep = (len(rest) - 1) // LONGEST * LONGEST if rest else 0
    return [*lines, *(rest[at : at + LONGEST] for at in range(0, keep, LONGEST))], rest[keep:]
