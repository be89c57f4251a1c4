"""The follower: whatever the pieces, the same is seen; nothing is lost, and what is kept is bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from madlite.backends.base import PatternReader
from madlite.backends.step_lines import step_pattern
from madlite.measure.failure_scan import KEPT
from madlite.measure.lines import LONGEST
from madlite.measure.monitor import LogMonitor
from madlite.model import EffectiveConfig, Ended, ErrorScan, FailureRule, Phase, Quantity, Step, Summary
from madlite.plan.actions import BENIGN, PATTERNS
from tests.monitors import monitored
from tests.rows import each_row
from tests.tiers import examples

PATTERN = step_pattern(r"step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>[\d,.]+)(?: loss=(?P<loss>\S+))?")
RULES = (
    FailureRule(pattern=r"boom \d+", cause="boom"),
    FailureRule(pattern=r"(?i)out of memory", cause="memory"),
    FailureRule(pattern=r"^\s*Killed$|SIGKILL", cause="killed"),
)
LOGS = Path(__file__).parents[1] / "data/logs"
TEXTS = st.sampled_from(
    [
        *("step=1 tps=1,000 loss=2.5", "step=2 tps=2 loss=nan", "[rank1]: step=2 tps=4 loss=1", "step=3 tps=7"),
        *("\x1b[31mstep=4\x1b[0m tps=5 loss=1", "⊘ ü loss", "10%|#\r20%|##", "\x1b]0;title", "x" * 300, "", "   "),
        *("Traceback (most recent call last):", "Exception ignored in: x", "ChildFailedError", "died by signal 9"),
        *("performance: 5 tok/s", "performance: 6 x", "'train_samples_per_second': 3", "done"),
        *("RuntimeError: x", "ValueError: FutureWarning", "boom 7", "boom", "Killed", "HIP OUT OF MEMORY"),
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n"])


class Counter:
    """A reader that takes every line, as a third party's may."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def feed(self, line):
        self.lines.append(line.text)
        return ()

    def finish(self, outputs):
        return ()


def follow(*chunks: bytes, reader=None) -> LogMonitor:
    scan = ErrorScan(patterns=PATTERNS, benign=BENIGN)
    log = LogMonitor([PatternReader(PATTERN), reader or Counter()], RULES, error_scan=scan)
    for chunk in chunks:
        log.feed(chunk)
    log.finish()
    return log


def seen(log: LogMonitor) -> dict[str, object]:
    return {
        "lines": log.lines,
        "steps": [(step.n, step.rank, {key: repr(value) for key, value in step.values.items()}) for step in log.steps],
        "nan": log.nan_loss,
        "fatal": (log.failures.fatal_line, log.failures.launcher_line, log.ended),
        "rule": (log.rule, log.failures.candidate and log.failures.candidate.rule and log.failures.candidate.line),
        "telling": log.best_error_line,
        "patterns": dict(log._patterns.found),
        "order": list(log._patterns.found),
        "result": (log.scan.result, log.scan.evidence, log.scan.findings),
    }


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(min(place, len(data)) for place in places)})
    return [data[a:b] for a, b in zip(ends, ends[1:], strict=False)]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(TEXTS, ENDS), max_size=25), st.lists(st.integers(0, 1500), max_size=12))
@example([("Exception ignored in: x", "\n"), ("1%|\r2%|", "\r\n"), ("Traceback (most recent call last):", "\n")], [])
def test_how_a_log_arrives_does_not_matter(parts, places):
    data = "".join(text + end for text, end in parts).encode()
    whole = seen(follow(data))
    assert seen(follow(*cut(data, places))) == whole
    assert seen(follow(*[data[at : at + 1] for at in range(len(data))])) == whole


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=8))
def test_noise_is_the_same_noise_in_any_pieces(data, places):
    assert seen(follow(*cut(data, places))) == seen(follow(data))


@each_row("size", [1, 4096, 1 << 20])
@each_row(
    "name",
    ["torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log", "hf-trainer-peft-transformers5.17-cpu-notqdm.log"],
)
def test_every_line_of_a_log_is_read_once(name, size):
    data, reader = (LOGS / name).read_bytes(), Counter()
    log = follow(*[data[at : at + size] for at in range(0, len(data), size)], reader=reader)
    wanted = [line for line in data.decode().replace("\r", "\n").split("\n") if line.strip()]
    assert len(reader.lines) == log.lines == len(wanted)
    assert not any("\x1b" in line for line in reader.lines)
    plain = [(one, line) for one, line in zip(reader.lines, wanted, strict=True) if "\x1b" not in line]
    assert plain and all(one == line for one, line in plain)


@pytest.mark.host
def test_a_log_that_repeats_itself_does_not_grow():
    log, lines = (
        LogMonitor([PatternReader(PATTERN)], RULES),
        b"step=1 tps=1 loss=1\nstep=2 tps=2 loss=1\nwords\n" * 1000,
    )
    for _ in range(20):
        log.feed(lines)
    assert log.lines == 60_000
    assert (len(log.steps), len(log.failures.last_lines)) == (2, KEPT)


def test_the_two_streams_do_not_mix_their_lines():
    log = LogMonitor([PatternReader(PATTERN)])
    for chunk, stream in ((b"step=1 tp", 1), (b"warning\nstep", 2), (b"s=5 loss=1\n", 1), (b"=2 tps=6 loss=1\n", 2)):
        log.feed(chunk, stream)
    assert [step.n for step in log.steps] == [1, 2]
    # noise without a lines end is not collected
    log = LogMonitor([], RULES)
    for _ in range(200):
        log.feed(b"x" * 10_000)
    held = [splitter._rest for splitter in log._splitters.values()]
    assert sum(map(sys.getsizeof, held)) < 2 * LONGEST
    log.finish()
    assert log.lines == -(-2_000_000 // LONGEST)
    # what a log says of its configuration is kept
    first, second = EffectiveConfig(values={"steps": 5, "tp": "1"}), EffectiveConfig(values={"tp": "2", "pp": None})
    log = LogMonitor([Tells(first, second)])
    log.feed(b"x\n")
    assert log.config == {"steps": "5", "tp": "2"}
    # a figure at the very end that no line end follows is left out
    log = monitored([Sums()], b"TFLOPS: 540.25\ntokens/GPU/s: 20")
    assert (log.summary, log.torn) == ({"TFLOPS": "540.25"}, ("tokens/GPU/s",))
    log = monitored([Sums()], b"TFLOPS: 540.25\ntokens/GPU/s: 20000.0\r\n")
    assert (log.summary, log.torn) == ({"TFLOPS": "540.25", "tokens/GPU/s": "20000.0"}, ())


class Tells:
    """A reader that tells what it is given, once."""

    def __init__(self, *events) -> None:
        self.events = events

    def feed(self, line):
        events, self.events = self.events, ()
        return iter(events)

    def finish(self, outputs):
        return ()


class Sums:
    """A reader of figures that a framework prints of the whole run."""

    def feed(self, line):
        name, colon, value = line.text.partition(": ")
        return [Summary(values={name: value})] if colon else []

    def finish(self, outputs):
        return ()


@each_row("code", [1, 137, -9])
def test_a_launcher_s_code_is_no_end_mark(code):
    log = LogMonitor([Tells(Ended(marker="launcher: code", code=code))])
    log.feed(b"the launcher says so\n")
    assert not log.ended and log.failures.launcher_line == log.failures.fatal_line == "the launcher says so"
    log = LogMonitor([Tells(Ended(marker="launcher: code 0"))])
    log.feed(b"x\n")
    assert log.ended and not log.failures.launcher_line


@each_row(
    "event",
    [
        Step(n="one", values={}),
        Step(n=1, values={"speed": 3.0}),
        Step(n=1, values=None),
        Summary(values=None),
        EffectiveConfig(values=7),
    ],
)
def test_a_reader_that_tells_nonsense_is_left_out_and_the_rest_goes_on(event):
    told = []
    log = LogMonitor([Tells(event), PatternReader(PATTERN)], on_step=told.append)
    log.feed(b"step=1 tps=5 loss=1\nstep=2 tps=5 loss=1\n")
    assert [step.n for step in log.steps] == [step.n for step in told] == [1, 2]
    assert len(log._readers) == 1


def test_who_waits_for_steps_is_told_that_their_reader_is_left_out():
    """The training may go on as it did: its silence is the reader's, not its own."""
    told: list[object] = []

    class Breaks:
        def feed(self, line):
            if "2" in line.text:
                raise RuntimeError("of a plugin")
            return [Step(n=1, values={Quantity.LOSS: 1.0})]

        def finish(self, outputs):
            return ()

    log = LogMonitor([Breaks()], on_event=told.append)
    log.feed(b"step 1\nstep 2\nstep 3\n")
    assert [type(event) for event in told] == [Step, Phase]
