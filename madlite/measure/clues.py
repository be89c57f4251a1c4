"""What in a log can explain a failure, and which of it is the first cause: tiers first, then order in the log.

The lines since the last training step are asked first: what was said before a step did not end the training.  Those
just before it come second, for a program may write its steps later than its errors (a buffered stdout).  What a program
survived, by its own words or by an exception that came later, is no cause by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from signal import SIGABRT

from msgspec.structs import replace

from madlite.measure.footer import FirstFailure, LauncherScan
from madlite.measure.grammar import EXCEPTION, MARK, TOLD, is_warning, rank_in, shape_of, signal_of, without_label
from madlite.measure.lines import Block
from madlite.measure.rules import RuleMatch, RuleScan, looks_like_error
from madlite.measure.tracebacks import RaisedError, TracebackScan
from madlite.model import FailureRule, Value

# What a rank said before it ended by itself, as with `sys.exit("why")`: no traceback and no rule tells of it.

_NUMBERS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
# with these torchrun begins to tell: what comes after is none of its ranks' words
_LAUNCHER = re.compile(r"ChildFailedError|failed \(exitcode|Sending process \d+ closing signal")
_LOGGED = re.compile(r"\b(?:INFO|DEBUG)\b|^\s*[-=*_#~+]{5,}\s*$|^\s*\S*%\|")  # a logger's usual words, rulers, bars
_LAST = 5  # of its lines one that looks like an error is its message


def last_words(lines: Sequence[str], rank: int | None) -> str:
    """Return the message of a rank that ended by itself, "" where none of the last lines can be one.

    Lines that name no rank can be of any.  What is said again and again, numbers apart, is no message.
    """
    end = next((n for n, line in enumerate(lines) if _LAUNCHER.search(line)), len(lines))
    said = [(rank_in(line), without_label(line)) for line in _without_tracebacks(lines[:end])]
    usual = Counter(_shape(text) for _, text in said)
    own = [text for whose, text in said if whose is not None and whose == rank]
    words = [text.strip() for text in own or [text for whose, text in said if whose is None] if not _is_logged(text)]
    errors = [text for text in words[-_LAST:] if looks_like_error(text)]
    told = errors[-1:] or words[-1:]
    return next((text for text in told if usual[_shape(text)] == 1 or errors), "")


def _without_tracebacks(lines: Iterable[str]) -> Iterable[str]:
    """Yield the lines that are of no traceback."""
    begun: set[str] = set()  # labels of tracebacks whose exception has not come
    for line in lines:
        text = without_label(line)
        label = shape_of(line[: len(line) - len(text)]).rstrip()  # of a frame the label takes a blank with it
        if MARK in text:
            begun.add(label)
        elif label not in begun:
            yield line
        elif EXCEPTION.match(text):
            begun.discard(label)


def _is_logged(text: str) -> bool:
    return not text.strip() or is_warning(text) or _LOGGED.search(text) is not None


def _shape(text: str) -> str:
    return _NUMBERS.sub("0", text.strip())


ROOT, ERROR, FOLLOWER, LAST, LAUNCHER = range(5)  # LAST: counts where nothing else was said
_TIERS = {"root": ROOT, "error": ERROR, "follower": FOLLOWER}
_NEAR = 4000  # characters of a log that one message of several lines has at most
_SAID = 400  # lines before a launcher's word, in which a rank's own last words are looked for
_FAR = 20_000  # characters of a log; what lacks a package and needs it ends within a few hundred
_RANK = re.compile(r"\[(?:PG [^\]]*)?[Rr]ank (\d{1,9})\]")
# roots that a program can go on after, where nothing was raised; none goes on after a fault or without its memory
_SURVIVABLE = {
    "gpu_out_of_memory",
    "disk_full",
    "inodes_full",
    "gated_repository",
    "missing_repository",
    "missing_file",
}
# what a library raises after it said that: NCCL's `unhandled cuda error`, MIOpen's `miopenStatusInternalError`; a fault
# that is a root (an illegal access) does not come of it
_COMES_OF = {"gpu_out_of_memory": {"gpu_fault"}}
# what the others raise that wait for a pod which has no image, or no place
_WAITS, _FOR = {"network", "collective_timeout"}, {"image_missing", "too_few_gpus"}
# what launchers put before the lines of a rank
_LABELS = ("[rank{}]", "[default{}]", "[rank-{}/", ",{}]<std", "\n{}: ")
# how it ends the tasks of a step of which one failed
_OF_SLURM = re.compile(
    r"slurmstepd: error: \*\*\* (?!.*DUE TO )|srun: error: \S{1,400}: tasks? [\d,-]{1,400}: (?:Killed|Terminated)\b"
)
_GOES_ON = re.compile(
    r"\b(?:[Ss]kipp(?:ed|ing)|[Ff]all(?:ing|s)? ?back|[Ii]gnor(?:ed|ing)|disabled|[Rr]etrying|[Cc]ontinuing"
    r"|running offline|thrown while requesting)\b"
)


class FailureCandidate(Value, frozen=True):
    """A line that can explain a failure; `at` is its place in the log, `uncaught` whether an exception ended there."""

    cause: str
    line: str
    tier: int
    at: int
    rank: int | None = None
    rule: FailureRule | None = None
    groups: dict[str, str] = {}
    where: str = ""
    uncaught: bool = False
    of_import: bool = False
    again: int = 0  # its last place, of an exception that came more than once
    handled: bool = False  # another exception came while this one was handled
    more: RuleMatch | None = None  # what a rule makes of the next line of its message
    signal: int = 0  # that ended the process, where a launcher says so and nothing else does
    exit_code: int = 0  # with which the process ended by itself, where a launcher says so and nothing else does


class CandidateScan:
    """Takes lines in and keeps what can explain a failure; what it keeps does not grow with the log."""

    def __init__(self, rules: Iterable[FailureRule]) -> None:
        self._rules = RuleScan(rule for rule in rules if rule.tier != "sign")
        self._tracebacks, self._footer = TracebackScan(), LauncherScan()
        self._before: list[str] = []  # the last lines of the blocks before, until a launcher tells of an end
        self._words: str | None = None  # what the rank said that a launcher saw exit first
        self.size = 0  # characters taken in
        self._ends: dict[int, int] = {}  # rank that an import failed in → place of its last line

    def take(self, block: Block, every_rule: bool = True) -> None:
        """Take lines in; without `every_rule` they are looked through for exceptions and launchers' words alone."""
        if every_rule:
            self._rules.feed(block, self.size)
        self._tracebacks.feed(block, self.size)
        self._footer.feed(block, self.size)
        self._note_words(block)
        for rank in {one.rank for one in self._tracebacks.raised if one.of_import and one.rank is not None}:
            at = max(block.text.rfind(label.format(rank)) for label in _LABELS)
            self._ends[rank] = max(self._ends.get(rank, 0), self.size + at if at >= 0 else 0)
        self.size += len(block.text) + 1

    @property
    def first(self) -> FirstFailure | None:
        """What a launcher says failed first."""
        return self._footer.first

    @property
    def exited(self) -> FailureCandidate | None:
        """How a process ended by itself that a launcher saw fail first, which explains where nothing else does."""
        first, words = self._footer.first or self._footer.task, self._words or ""
        if first is None or first.code <= 0 or first.signal:
            return None
        return _of_exit(first, words if looks_like_error(words) else "")

    def clues(self) -> list[FailureCandidate]:
        """Return what was found, in the order of the log."""
        raised, none = self._tracebacks.raised, self._tracebacks.code | self._tracebacks.aside
        ruled = [_of_rule(hit, _raised_by(hit, raised)) for hit in self._rules.hits() if hit.at not in none]
        told = {clue.at for clue in ruled}
        plain = [self._of_exception(one) for one in raised if one.at not in told]
        more = {one.at: self._rules.match(one.more, one.at, one.rank) for one in raised if one.more}
        found = [replace(clue, more=more.get(clue.at)) for clue in sorted([*ruled, *plain], key=_place)]
        found = [clue if clue.rank is not None else _with_rank(clue, self._footer.rank_at(clue.at)) for clue in found]
        found = sorted([*found, *self._ended(found)], key=_place)
        found = [replace(clue, tier=LAUNCHER) if self._was_ended(clue) else clue for clue in found]
        without = {clue.line for clue in found if self._went_on(clue, found)}
        return [self._weaker(clue, found) if clue.line in without else clue for clue in found]

    def _note_words(self, block: Block) -> None:
        """Note what the rank said that a launcher saw exit first, from the lines before it tells so."""
        if self._words is not None:
            return
        first = self._footer.first or self._footer.task
        if first is None:
            self._before = [*self._before, *block.lines[-_SAID:]][-_SAID:]
        else:
            before = block.text[: max(0, first.at - self.size)].split("\n")
            self._words = last_words([*self._before, *before][-_SAID:], first.rank)

    def _ended(self, others: Sequence[FailureCandidate]) -> list[FailureCandidate]:
        """Return how the rank ended that a launcher saw fail first: by a signal, or by itself.

        What it said explains then, and where it said nothing no other rank's word of a link that was gone does.
        """
        first, task = self.first, self._footer.task
        if first is None and task is not None:  # which may be a whole node: what others lost tells that it is a rank
            lost = task.rank is not None and _followed(others, task.rank)
            return [_of_exit(task, self._words or "")] if lost or any(map(self._was_ended, others)) else []
        if first is None or first.was_told or not first.code:
            return []
        if first.signal:
            return [_of_signal(first)]
        told = self._words or first.spawned or _followed(others, first.rank)
        return [_of_exit(first, self._words or "")] if told else []

    def _was_ended(self, clue: FailureCandidate) -> bool:
        """Say whether Slurm ended tasks because another one had failed before, by itself."""
        task = self._footer.task
        return task is not None and not task.signal and clue.at > task.at and _OF_SLURM.match(clue.line) is not None

    def _weaker(self, clue: FailureCandidate, others: Sequence[FailureCandidate]) -> FailureCandidate:
        """Return a clue that a rank did without as what is left to be said, unless a launcher saw its own rank fail."""
        if not _can_be_missed(clue) or (self._footer.raised(clue.rank) and not self._went_on(clue, others)):
            return clue
        return replace(clue, tier=LAST if clue.uncaught else LAUNCHER)

    def _went_on(self, clue: FailureCandidate, others: Sequence[FailureCandidate]) -> bool:
        """Say whether a process went on for long without a package: until something else came of it, or the end.

        Where a launcher saw it fail first by an exit code, no more than another exception shows that.
        """
        if not _can_be_missed(clue):
            return False
        of_it, raised = [one for one in others if _same_process(one, clue)], self._footer.raised(clue.rank)
        last = max(max(one.at, one.again) for one in of_it if one.line == clue.line)
        later = [one for one in of_it if one.at > last and one.tier <= FOLLOWER and not _is_of_package(one)]
        end = next((one.at for one in later if one.uncaught or not raised), self._end(clue, last))
        return end - last > _FAR

    def _end(self, clue: FailureCandidate, last: int) -> int:
        """Return where a process ended of which nothing else explains why: `last` where a launcher tells."""
        if self.first is not None or self._footer.raised(clue.rank):
            return last
        return self.size if clue.rank is None else self._ends.get(clue.rank, self.size)

    def _of_exception(self, one: RaisedError) -> FailureCandidate:
        """Return an exception as a clue, of a rule where one matches: its line may not have been asked about."""
        hit = self._rules.match(one.line, one.at, one.rank)
        return _of_rule(hit, one) if hit is not None else _of_exception(one)


def first_cause(clues: Sequence[FailureCandidate], first: FirstFailure | None) -> FailureCandidate | None:
    """Return the clue that explains best; `first` is what the launcher saw fail first."""
    clues = [clue for clue in clues if not _survived(clue, clues)]
    if not clues:
        return None
    tier = min(clue.tier for clue in clues)
    kept = [clue for clue in clues if clue.tier == tier]
    rank = first.rank if first is not None and not first.was_told else None
    best = min(kept, key=lambda clue: _weight(clue, kept, _exited(clues) if rank is None else rank))
    best = _fuller(_continued(best), clues)
    return best if best.rank is not None else _with_rank(best, rank)


def _survived(clue: FailureCandidate, others: Sequence[FailureCandidate]) -> bool:
    """Say whether the same process went on after a root that was not raised, until an exception ended it."""
    if clue.tier != ROOT or clue.uncaught or clue.cause not in _SURVIVABLE:
        return False
    later = (one for one in others if one.uncaught and one.rank == clue.rank and one.at > clue.at)
    ended = (one for one in later if one.tier <= ERROR and not one.of_import and one.cause != clue.cause)
    return any(one.tier == ROOT or one.cause not in _COMES_OF.get(clue.cause, ()) for one in ended)


def _weight(
    clue: FailureCandidate, others: Sequence[FailureCandidate], rank: int | None
) -> tuple[bool, bool, bool, bool, int]:
    """Return what orders clues of one tier: what a program can do without comes last, then who failed first, …"""
    elsewhere = rank is not None and clue.rank is not None and clue.rank != rank
    weak = _is_weak(clue) and any(other.uncaught and not _is_weak(other) for other in others)
    weak = weak or (clue.cause in _WAITS and any(other.cause in _FOR for other in others))
    warns = not clue.uncaught and is_warning(clue.line)
    return weak, warns, elsewhere, clue.tier == ERROR and not clue.uncaught, clue.at


def _is_of_package(clue: FailureCandidate) -> bool:
    """Say whether a package is what is missing, by an import that failed or by a program's own words."""
    return clue.of_import or (clue.cause == "missing_package" and not clue.uncaught)


def _can_be_missed(clue: FailureCandidate) -> bool:
    return clue.tier <= FOLLOWER and _is_of_package(clue)


def _same_process(one: FailureCandidate, other: FailureCandidate) -> bool:
    """Say whether two clues are of one rank; of lines without a rank nobody knows."""
    return other.rank is None or one.rank == other.rank


def _place(clue: FailureCandidate) -> int:
    return clue.at


def _is_weak(clue: FailureCandidate) -> bool:
    return clue.of_import or clue.handled


def _continued(best: FailureCandidate) -> FailureCandidate:
    """Return an exception with what the next line of its message says, where its own line ends with a colon."""
    if best.more is None or (tier := _tier(best.more, None)) > ERROR or tier > best.tier:
        return best
    line = best.line if best.line.endswith(best.more.line) else best.more.line
    return replace(_of_rule(best.more, None), line=line, rank=best.rank, where=best.where, uncaught=True)


def _fuller(best: FailureCandidate, others: Sequence[FailureCandidate]) -> FailureCandidate:
    """Return the clue of the same message that names more: a message may have several lines.

    Of two rules that match one line that counts which comes first, and so does a plugin's before a common one.
    """
    if best.rule is None or any(best.groups.values()):
        return best
    same = (one for one in others if one.cause == best.cause and one.rank in (None, best.rank) and one.at != best.at)
    near = (one for one in same if any(one.groups.values()) and abs(one.at - best.at) < _NEAR)
    found = next((one for one in near if one.rule and one.rule.source == best.rule.source), None)
    return best if found is None else replace(found, rank=best.rank, where=best.where, uncaught=best.uncaught)


def _with_rank(clue: FailureCandidate, rank: int | None) -> FailureCandidate:
    found = _RANK.search(clue.line)
    if found:
        rank = int(found[1])
    return replace(clue, rank=rank) if rank is not None else clue


def _raised_by(hit: RuleMatch, raised: Sequence[RaisedError]) -> RaisedError | None:
    """Return the exception of a line, or of the traceback whose source code a rule matched."""
    if (one := next((one for one in raised if one.at == hit.at), None)) is not None:
        return one
    near = (one for one in raised if one.rank == hit.rank and 0 < one.at - hit.at < _NEAR)
    return next((one for one in near if re.search(hit.rule.pattern, one.line)), None)


def _tier(hit: RuleMatch, raised: RaisedError | None) -> int:
    """Return how much a line says; one that says itself that the program goes on says less, and a warning little."""
    tier = _TIERS[hit.rule.tier]
    if raised is not None or tier > ERROR or not (_GOES_ON.search(hit.line) or is_warning(hit.line)):
        return tier
    return ERROR if tier == ROOT else LAUNCHER


def _of_rule(hit: RuleMatch, raised: RaisedError | None) -> FailureCandidate:
    signal = _signal_in(hit)
    clue = FailureCandidate(
        cause=hit.rule.cause,
        line=hit.line,
        tier=max(_tier(hit, raised), _tier_of(signal)),
        signal=signal,
        at=hit.at,
        rank=hit.rank,
        rule=hit.rule,
        groups=hit.groups,
    )
    if raised is None:
        return clue
    return replace(
        clue,
        line=raised.line,
        at=raised.at,
        rank=raised.rank if raised.rank is not None else hit.rank,
        where=raised.where,
        uncaught=True,
        of_import=raised.of_import,
        again=raised.again,
        handled=raised.handled,
    )


def _of_exception(one: RaisedError) -> FailureCandidate:
    return FailureCandidate(
        cause="python_error",
        line=one.line,
        tier=LAUNCHER if one.by_launcher or one.holds else ERROR,
        at=one.at,
        rank=one.rank,
        where=one.where,
        uncaught=True,
        of_import=one.of_import,
        again=one.again,
        handled=one.handled,
    )


def _signal_in(hit: RuleMatch) -> int:
    """Return the signal that a group of the pattern is, by its name; 0 where none is."""
    if hit.rule.cause != "killed":
        return 0
    named = (signal_of(text) for name, text in hit.groups.items() if name.startswith("signal"))
    return next(filter(None, named), 0)


def _tier_of(signal: int) -> int:
    """Return how much a signal says: a program ends itself by SIGABRT, for a reason that it tells before."""
    return FOLLOWER if signal == SIGABRT or signal in TOLD else ERROR if signal else ROOT


def _of_signal(first: FirstFailure) -> FailureCandidate:
    """Return what a rank's signal says."""
    line, rank, signal = first.line, first.rank, first.signal
    tier = _tier_of(signal)
    return FailureCandidate(cause="killed", line=line, tier=tier, at=first.at, rank=rank, uncaught=True, signal=signal)


def _followed(others: Sequence[FailureCandidate], rank: int | None) -> bool:
    """Say whether another rank tells that it lost one."""
    return any(one.tier == FOLLOWER and one.rank not in (None, rank) for one in others)


def _of_exit(first: FirstFailure, words: str) -> FailureCandidate:
    """Return that a rank ended by itself: it comes before what others say of a link, not before any exception."""
    line, code = words or first.line, first.code
    return FailureCandidate(cause="exit_code", line=line, tier=FOLLOWER, at=first.at, rank=first.rank, exit_code=code)


def _exited(clues: Sequence[FailureCandidate]) -> int | None:
    """Return the rank that ended by itself first, where a clue tells of one."""
    return next((clue.rank for clue in clues if clue.exit_code), None)
