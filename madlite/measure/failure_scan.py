"""Find the line that says why a run ended: one pass over the lines since the last training step.

No exit code shows in a log, and `tee` hides it.  What was printed before a step did not end the training: Primus prints
tracebacks of packages that it does without, and a log goes on where a training was started again.  Of lines before the
step the last few hundred are kept all the same: a program may write its steps later than its errors, for its stdout is
buffered.  The lines are looked at once the log is finished.  A log without steps can be long: of it the first and the
last megabytes are matched against all rules, what is between for exceptions, launchers and the rules that show an end.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from signal import SIGABRT

from msgspec.structs import replace

from madlite.backends.log_formats import read_failure_rules
from madlite.measure.launchers import FirstFailure, LauncherScan
from madlite.measure.lines import TERMINATIONS, Block, is_warning, make_block, signal_of
from madlite.measure.rules import (
    COMMON,
    ERROR,
    FOLLOWER,
    LAST,
    LAUNCHER,
    ROOT,
    SIGN,
    FailureCandidate,
    RuleMatch,
    RulePatterns,
    RuleScan,
    compile_rules,
    looks_like_error,
    plain,
    without_rank,
)
from madlite.measure.tracebacks import TracebackScan
from madlite.model import Cause, FailureRule

_TIERS = {"root": ROOT, "error": ERROR, "follower": FOLLOWER}
_NEAR = 4000  # characters of a log that one message of several lines has at most
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
# what a library raises after that message: NCCL's `unhandled cuda error`, MIOpen's `miopenStatusInternalError`; a fault
# that is a root (an illegal access) does not come of it
_COMES_OF = {"gpu_out_of_memory": {"gpu_fault"}}
# what the others raise that wait for a pod which has no image, or no place
_WAITS, _FOR = {"network", "collective_timeout"}, {"image_missing", "too_few_gpus"}
_GOES_ON = re.compile(
    r"\b(?:[Ss]kipp(?:ed|ing)|[Ff]all(?:ing|s)? ?back|[Ii]gnor(?:ed|ing)|disabled|[Rr]etrying|[Cc]ontinuing"
    r"|running offline|thrown while requesting)\b"
)


def first_cause(candidates: Sequence[FailureCandidate], first: FirstFailure | None) -> FailureCandidate | None:
    """Return the candidate that explains best; `first` is what the launcher saw fail first."""
    candidates = [candidate for candidate in candidates if not _survived(candidate, candidates)]
    if not candidates:
        return None
    tier = min(candidate.tier for candidate in candidates)
    kept = [candidate for candidate in candidates if candidate.tier == tier]
    rank = first.rank if first is not None and not first.was_terminated else None
    best = min(kept, key=lambda candidate: _weight(candidate, kept, _exited(candidates) if rank is None else rank))
    best = _fuller(_continued(best), candidates)
    return best if best.rank is not None else with_rank(best, rank)


def _survived(candidate: FailureCandidate, others: Sequence[FailureCandidate]) -> bool:
    """Return whether the same process went on after a root that was not raised, until an exception ended it."""
    if candidate.tier != ROOT or candidate.uncaught or candidate.cause not in _SURVIVABLE:
        return False
    later = (item for item in others if item.uncaught and item.rank == candidate.rank and item.at > candidate.at)
    ended = (item for item in later if item.tier <= ERROR and not item.of_import and item.cause != candidate.cause)
    return any(item.tier == ROOT or item.cause not in _COMES_OF.get(candidate.cause, ()) for item in ended)


def _weight(
    candidate: FailureCandidate, others: Sequence[FailureCandidate], rank: int | None
) -> tuple[bool, bool, bool, bool, int]:
    """Return what orders candidates of one tier: what a program can do without comes last, then who failed first, …"""
    elsewhere = rank is not None and candidate.rank is not None and candidate.rank != rank
    weak = _is_weak(candidate) and any(other.uncaught and not _is_weak(other) for other in others)
    weak = weak or (candidate.cause in _WAITS and any(other.cause in _FOR for other in others))
    warns = not candidate.uncaught and is_warning(candidate.line)
    return weak, warns, elsewhere, candidate.tier == ERROR and not candidate.uncaught, candidate.at


def is_of_package(candidate: FailureCandidate) -> bool:
    """Return whether a package is what is missing, by an import that failed or by a program's own words."""
    return candidate.of_import or (candidate.cause == "missing_package" and not candidate.uncaught)


def can_be_missed(candidate: FailureCandidate) -> bool:
    """Return whether a candidate is what a program may do without."""
    return candidate.tier <= FOLLOWER and is_of_package(candidate)


def _is_weak(candidate: FailureCandidate) -> bool:
    return candidate.of_import or candidate.handled


def _continued(best: FailureCandidate) -> FailureCandidate:
    """Return an exception with what the next line of its message reports, where its own line ends with a colon."""
    if best.more is None or (tier := _tier(best.more, None)) > ERROR or tier > best.tier:
        return best
    line = best.line if best.line.endswith(best.more.line) else best.more.line
    return replace(of_rule(best.more), line=line, rank=best.rank, where=best.where, uncaught=True)


def _fuller(best: FailureCandidate, others: Sequence[FailureCandidate]) -> FailureCandidate:
    """Return the candidate of the same message that names more: a message may have several lines.

    Of two rules that match one line that counts which comes first, and so does a plugin's before a common one.
    """
    if best.rule is None or any(best.groups.values()):
        return best
    same = (item for item in others if item.cause == best.cause and item.rank in (None, best.rank))
    near = (item for item in same if any(item.groups.values()) and 0 < abs(item.at - best.at) < _NEAR)
    found = next((item for item in near if item.rule and item.rule.source == best.rule.source), None)
    return best if found is None else replace(found, rank=best.rank, where=best.where, uncaught=best.uncaught)


def with_rank(candidate: FailureCandidate, rank: int | None) -> FailureCandidate:
    """Return a candidate with the rank that its line names, else this one."""
    found = _RANK.search(candidate.line)
    if found:
        rank = int(found[1])
    return replace(candidate, rank=rank) if rank is not None else candidate


def raised_by(hit: RuleMatch, raised: Sequence[FailureCandidate]) -> FailureCandidate | None:
    """Return the exception of a line, or of the traceback whose source code a rule matched."""
    if (chained := next((raised_error for raised_error in raised if raised_error.at == hit.at), None)) is not None:
        return chained
    near = (item for item in raised if item.rank == hit.rank and 0 < item.at - hit.at < _NEAR)
    return next((item for item in near if re.search(hit.rule.pattern, item.line)), None)


def _tier(hit: RuleMatch, raised: FailureCandidate | None) -> int:
    """Return how conclusive a line is: less where it reports that the program goes on, and little for a warning."""
    tier = _TIERS[hit.rule.tier]
    if raised is not None or tier > ERROR or not (_GOES_ON.search(hit.line) or is_warning(hit.line)):
        return tier
    return ERROR if tier == ROOT else LAUNCHER


def of_rule(hit: RuleMatch, raised: FailureCandidate | None = None) -> FailureCandidate:
    """Return a line that a rule matches as a candidate, with what is known of the exception that it is of."""
    base, signal = raised or FailureCandidate(cause="", line=hit.line, tier=ROOT, at=hit.at), _signal_in(hit)
    return replace(
        base,
        cause=hit.rule.cause,
        tier=max(_tier(hit, raised), _tier_of(signal)),
        rank=hit.rank if base.rank is None else base.rank,
        rule=hit.rule,
        groups=hit.groups,
        signal=signal,
    )


def _signal_in(hit: RuleMatch) -> int:
    """Return the signal that a group of the pattern is, by its name; 0 where none is."""
    if hit.rule.cause != "killed":
        return 0
    named = (signal_of(text) for name, text in hit.groups.items() if name.startswith("signal"))
    return next(filter(None, named), 0)


def _tier_of(signal: int) -> int:
    """Return how conclusive a signal is: a program ends itself by SIGABRT for a reason that it prints before."""
    return FOLLOWER if signal == SIGABRT or signal in TERMINATIONS else ERROR if signal else ROOT


def of_signal(first: FirstFailure) -> FailureCandidate:
    """Return the signal of a rank as a candidate."""
    line, rank, signal = first.line, first.rank, first.signal
    tier = _tier_of(signal)
    return FailureCandidate(cause="killed", line=line, tier=tier, at=first.at, rank=rank, uncaught=True, signal=signal)


def followed(others: Sequence[FailureCandidate], rank: int | None) -> bool:
    """Return whether another rank reports that it lost one."""
    return any(candidate.tier == FOLLOWER and candidate.rank not in (None, rank) for candidate in others)


def of_exit(first: FirstFailure, last_output: str) -> FailureCandidate:
    """Return that a rank ended by itself: it comes before what others say of a link, not before any exception."""
    unexplained = "the log does not say why: look at what it printed before"
    advice = "" if last_output else "; ".join(filter(None, (unexplained, first.advice)))
    line, rank = last_output or first.line, first.rank
    base = FailureCandidate(cause="exit_code", line=line, tier=FOLLOWER, at=first.at, rank=rank, advice=advice)
    return replace(base, exit_code=first.code)


def _exited(candidates: Sequence[FailureCandidate]) -> int | None:
    """Return the rank that ended by itself first, where a candidate reports one."""
    return next((candidate.rank for candidate in candidates if candidate.exit_code), None)


_BUFFER_SIZE = 4 * 1024 * 1024  # characters that wait for the log's end
_HEAD_SIZE = _BUFFER_SIZE  # characters at the begin of a log without steps that are matched against every rule too
KEPT = 400  # last lines, and lines before the step
_FAR = 20_000  # characters of a log; what lacks a package and needs it ends within a few hundred
# what launchers put before the lines of a rank
_LABELS = ("[rank{}]", "[default{}]", "[rank-{}/", ",{}]<std", "\n{}: ")
# how Slurm ends the tasks of a step of which one failed
_OF_SLURM = re.compile(
    r"slurmstepd: error: \*\*\* (?!.*DUE TO )|srun: error: \S{1,400}: tasks? [\d,-]{1,400}: (?:Killed|Terminated)\b"
)
_RULER = re.compile(r"[-=*_#~+]{5,}\s*$")  # a line of them has no content


_compiled = lru_cache(maxsize=32)(compile_rules)  # a run's logs are read with the same rules, and so are all runs'


class CandidateScan:
    """Takes lines in and keeps what can explain a failure; what it keeps does not grow with the log."""

    def __init__(self, rules: RulePatterns) -> None:
        self._rules, self._tracebacks, self.launchers = RuleScan(rules), TracebackScan(), LauncherScan()
        self.size = 0  # characters taken in
        self._ends: dict[int, int] = {}  # rank that an import failed in → place of its last line

    def feed(self, block: Block, *, every_rule: bool = True) -> None:
        """Take lines in; without `every_rule` only the rules that show an end are matched."""
        self._rules.feed(block, self.size, every_rule=every_rule)
        self._tracebacks.feed(block, self.size)
        self.launchers.feed(block, self.size)
        for rank in {item.rank for item in self._tracebacks.raised if item.of_import and item.rank is not None}:
            at = max(block.text.rfind(label.format(rank)) for label in _LABELS)
            self._ends[rank] = max(self._ends.get(rank, 0), self.size + at if at >= 0 else 0)
        self.size += len(block.text) + 1

    @property
    def launcher_line(self) -> str:
        """The line by which a launcher reports that a process of it failed."""
        return next((hit.line for hit in self._hits() if hit.rule.ends == "launcher"), "")

    @property
    def fatal_line(self) -> str:
        """The line that shows best that the training failed, a launcher's aside; "" where none does."""
        ends = [hit for hit in self._hits() if hit.rule.ends == "process"]
        memory = [hit.line for hit in ends if hit.rule.cause == Cause.GPU_MEMORY.value]
        raised = [item.line for item in self._tracebacks.raised[:1]]
        others = [hit.line for hit in ends]
        return next(iter([*memory, *raised, *others]), "") or without_rank(self._tracebacks.begun)

    @property
    def exited(self) -> FailureCandidate | None:
        """How a process ended by itself that a launcher saw fail first, which explains where nothing else does."""
        seen, last_output = self.launchers, self.launchers.last_output
        first = seen.first or seen.task or seen.process
        if first is None or first.code <= 0 or first.signal:
            return None
        return of_exit(first, last_output if looks_like_error(last_output) else "")

    def candidates(self) -> list[FailureCandidate]:
        """Return what was found, in the order of the log."""
        raised = self._tracebacks.raised
        ruled = [of_rule(hit, raised_by(hit, raised)) for hit in self._hits(explaining=True) if hit.rule.tier != SIGN]
        places = {item.at for item in ruled}
        others = [self._of_exception(item) for item in raised if item.at not in places]
        others += [replace(item, at=self.size) for item in self._tracebacks.cut]
        more = {item.at: self._rules.match(item.next_line, item.at, item.rank) for item in raised if item.next_line}
        found = [replace(item, more=more.get(item.at)) for item in _in_order([*ruled, *others])]
        found = [item if item.rank is not None else with_rank(item, self.launchers.rank_at(item.at)) for item in found]
        found = _in_order([*found, *self._ended(found)])
        found = [replace(item, tier=LAUNCHER) if self._was_ended(item) else item for item in found]
        without = {item.line for item in found if self._went_on(item, found)}
        return [self._weaker(item, found) if item.line in without else item for item in found]

    def _hits(self, *, explaining: bool = False) -> list[RuleMatch]:
        """Return the matches in the order of the log, without lines of which nothing happened."""
        return [hit for hit in self._rules.hits(explaining=explaining) if hit.at not in self._tracebacks.ignored]

    def _of_exception(self, raised_error: FailureCandidate) -> FailureCandidate:
        """Return an exception as a candidate, of a rule where one matches: its line may not have been matched yet."""
        hit = self._rules.match(raised_error.line, raised_error.at, raised_error.rank)
        return of_rule(hit, raised_error) if hit is not None else raised_error

    def _ended(self, others: Sequence[FailureCandidate]) -> list[FailureCandidate]:
        """Return how the rank ended that a launcher saw fail first: by a signal, or by itself.

        Its message then explains the failure; without one, other ranks' messages of a lost connection do not.
        """
        first, task, last_output = self.launchers.first, self.launchers.task, self.launchers.last_output
        if first is None and task is not None:  # which may be a whole node: what others lost tells that it is a rank
            lost = task.rank is not None and followed(others, task.rank)
            return [of_exit(task, last_output)] if lost or any(map(self._was_ended, others)) else []
        if first is not None and first.was_terminated:
            return [replace(of_signal(first), tier=LAST)]
        if first is None or not first.code:
            return []
        if first.signal:
            return [of_signal(first)]
        return [of_exit(first, last_output)] if last_output or first.spawned or followed(others, first.rank) else []

    def _was_ended(self, item: FailureCandidate) -> bool:
        """Return whether Slurm ended tasks because another one had failed before, by itself."""
        task = self.launchers.task
        return task is not None and not task.signal and item.at > task.at and _OF_SLURM.match(item.line) is not None

    def _weaker(self, item: FailureCandidate, others: Sequence[FailureCandidate]) -> FailureCandidate:
        """Return what a rank did without as the last resort, unless a launcher saw its own rank fail."""
        if not can_be_missed(item) or (self.launchers.raised(item.rank) and not self._went_on(item, others)):
            return item
        return replace(item, tier=LAST if item.uncaught else LAUNCHER)

    def _went_on(self, item: FailureCandidate, others: Sequence[FailureCandidate]) -> bool:
        """Return whether a process went on for long without a package: until something else came of it, or the end.

        Where a launcher saw it fail first by an exit code, no more than another exception shows that.
        """
        if not can_be_missed(item):
            return False
        of_it = [other for other in others if item.rank is None or other.rank == item.rank]
        raised = self.launchers.raised(item.rank)
        last = max(max(other.at, other.again) for other in of_it if other.line == item.line)
        later = [other for other in of_it if other.at > last and other.tier <= FOLLOWER and not is_of_package(other)]
        end = next((other.at for other in later if other.uncaught or not raised), None)
        if end is None and (raised or self.launchers.first is not None):
            return False  # the launcher reports the end
        unknown = self.size if item.rank is None else self._ends.get(item.rank, self.size)
        return (unknown if end is None else end) - last > _FAR


class FailureScan:
    """Holds the lines since the last training step; `relabel` puts their ranks' labels in one form.

    Without rules the common ones apply.
    """

    def __init__(self, rules: Iterable[FailureRule], relabel: Callable[[Iterable[str]], list[str]] = list) -> None:
        self.step_line = ""  # of the last training step
        self._relabel, self._rules = relabel, _compiled(tuple(rules) or read_failure_rules(COMMON))
        self._buffer: deque[Block] = deque()
        self._last: deque[str] = deque(maxlen=KEPT)
        self._since = 0  # lines since the last training step
        self._before: list[str] = []  # the last lines up to the step
        self._reported = ""  # what a reader took for a launcher's word of its end

    def feed(self, block: Block, trained: int | None) -> None:
        """Take lines in, of which the first `trained` go up to the last training step; None without one."""
        self.__dict__.pop("candidate", None)
        if trained is not None:
            self._last.extend(block.lines[:trained])
            self._before, self._since = list(self._last), 0
            self._buffer.clear()
            block = make_block(block.lines[trained:])
        self._last.extend(block.lines[-KEPT:])
        self._since += len(block.lines)
        self._buffer.append(block)
        while sum(len(item.text) for item in self._buffer) > _BUFFER_SIZE:
            self._scan_block(self._buffer.popleft(), every_rule=self.scan.size < _HEAD_SIZE)

    @cached_property
    def scan(self) -> CandidateScan:
        """The lines since the last training step that were looked at."""
        return CandidateScan(self._rules)

    def end(self, line: str) -> None:
        """Take the line by which a launcher reports that it failed."""
        self._reported = self._reported or line

    def begin_again(self) -> None:
        """Forget all lines: another job begins."""
        self.forget()
        self._buffer.clear()
        self._last.clear()
        self.__dict__.pop("candidate", None)
        self._before, self._since, self.step_line = [], 0, ""

    def forget(self) -> None:
        """Forget what was found: the training went on."""
        self._reported = ""
        if self.scan.size:  # not at each of millions of steps
            del self.scan

    def finish(self) -> None:
        """Look at what is held: no more comes."""
        self.__dict__.pop("candidate", None)
        while self._buffer:
            self._scan_block(self._buffer.popleft())

    @cached_property
    def candidate(self) -> FailureCandidate | None:
        """What explains a failure best, of the lines since the last step, else of those before it."""
        late = self.late_candidate
        if not self._before or (late is not None and late.tier <= ERROR):
            return late
        early = CandidateScan(self._rules)
        early.feed(make_block(self._relabel(self._before)))
        return first_cause([*filter(ends_training, early.candidates())], self.scan.launchers.first) or late

    @property
    def late_candidate(self) -> FailureCandidate | None:
        """The same of the lines since the last step alone."""
        return first_cause(self.scan.candidates(), self.scan.launchers.first)

    @property
    def launcher_line(self) -> str:
        """The line since the last step by which a launcher reports that the training failed."""
        return self._reported or self.scan.launcher_line

    @property
    def fatal_line(self) -> str:
        """Of the lines since the last step the one that shows best that the training failed; "" where none does."""
        return self.scan.fatal_line or self.launcher_line

    @property
    def last_lines(self) -> list[str]:
        """The last lines so far; safe to call from another thread."""
        return list(self._last)

    @property
    def error_line(self) -> str:
        """The last line since the step that looks like an error; a warning is none."""
        looks = (text for text in self._late_lines() if looks_like_error(text))
        return plain(next((text for text in looks if not is_warning(text)), ""))

    @property
    def last_line(self) -> str:
        """The last line with content since the step, else the step's own."""
        last_output = (text for text in self._late_lines() if not _RULER.search(text) and not is_warning(text))
        return plain(next(last_output, "") or self.step_line or next(iter(self.last_lines[-1:]), ""))

    def _late_lines(self) -> list[str]:
        """Return the lines since the step, the last one first."""
        return self.last_lines[-self._since :][::-1] if self._since else []

    def _scan_block(self, block: Block, *, every_rule: bool = True) -> None:
        lines = self._relabel(block.lines)
        self.scan.feed(block if lines == block.lines else make_block(lines), every_rule=every_rule)


def _in_order(found: Iterable[FailureCandidate]) -> list[FailureCandidate]:
    return sorted(found, key=lambda candidate: candidate.at)


def ends_training(item: FailureCandidate) -> bool:
    """Return whether a line can have ended the training, wherever it is: one goes on although a package is missing."""
    return item.tier == ROOT or (item.tier == ERROR and item.uncaught and not item.of_import and not item.handled)
