"""No pattern of ours takes a line's length squared: the longest line that anything is asked about, made to be slow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from madlite.backends.loader import load_plugins
from madlite.backends.log_formats import FormatBackend
from madlite.measure.lines import LONGEST
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.measure.verdict import Observation, judge
from madlite.model import ErrorScan, Exit, FailureRule, Line
from madlite.plan.actions import BENIGN, PATTERNS
from madlite.secrets import Redactor, assigned
from tests.factories import make_plan
from tests.rows import each_row

LIMIT_S = 3.0  # of this process's time for one pattern and one line; those that are well take 0.01
QUICK_S = 0.1  # of one pattern and a quarter of such a line of what it looks for; the slowest takes a third of it


def long_lines(pattern: str) -> Iterator[str]:
    """Yield lines as long as they can be: what a pattern asks for, again and again, and never to its end."""
    words = re.findall(r"[A-Za-z_:=./-]{4,}", pattern)[:3]
    for text in words:
        for more in (text, " ", "1", "a", " 1", "a."):
            yield (text + more * LONGEST)[:LONGEST]


PLAIN = (
    " ",
    "a",
    "1",
    "1,",
    ".",
    "a.",
    "/a",
    "-",
    "=",
    "[",
    "a ",
    "1 ",
    '"',
    "\\",
    "a=",
    "[rank0]:",
    "Error: ",
    "a: ",
    "{'a': 1, ",
    "a:",
    "x://b:c",
    "http://h:80/x,",
)
RULES = with_common(load_plugins("", only_built_in=True).failure_rules())
FORMATS = [one for one, _ in load_plugins("", only_built_in=True).backends().values() if isinstance(one, FormatBackend)]
# what a pattern has beside plain characters
_WILD = re.compile(r"\(\?[=!<:][=!]?|\(\?P<\w+>|\\[dDsSwWbB]|\[\^?\]?(?:\\.|[^\]\\])*\]|[.(){}|^$?*+]|\d*,\d+\}")


def repeated(pattern: str) -> set[str]:
    """Return what a pattern's runs look for: its plain pieces, one alone and one after another, to be said again."""
    pieces = [re.sub(r"\\(.)", r"\1", piece) for piece in _WILD.sub("\0", pattern).split("\0")]
    kept = [piece for piece in pieces if len(piece) > 1 and piece.strip()]
    pairs = zip(kept, [*kept[1:], ""], strict=False)
    return {text for one, other in pairs for text in (one, f"{one}a", f"{one}a {other}")}


@pytest.mark.host
@pytest.mark.full
@each_row("rule", RULES, ids=lambda rule: rule.pattern[:30])
def test_no_failure_rule_begins_again_and_again_in_what_it_looks_for(rule: FailureRule) -> None:
    pattern = re.compile(rule.pattern)
    for text in ("a:", "x://b:c", "http://h:80/x,", *sorted(repeated(rule.pattern))):
        line = (text * (LONGEST // 4 // len(text) + 1))[: LONGEST // 4]
        assert is_done_in(QUICK_S, lambda: pattern.search(line)), text  # noqa: B023 - called at once


@pytest.mark.host
@each_row("backend", FORMATS, ids=lambda backend: backend.name)
def test_no_pattern_of_a_format_begins_again_and_again_in_what_it_looks_for(backend: FormatBackend) -> None:
    form = backend.format
    texts = {text for pattern in (*form.step, *form.marks, *form.end, *form.failed) for text in repeated(pattern)}
    for text in ("1.", "1 ", "9.9", " 1ms", *sorted(texts)):
        line = (text * (LONGEST // 4 // len(text) + 1))[: LONGEST // 4]
        reader = backend.reader(None)
        assert is_done_in(QUICK_S, lambda: backend.detect([line])), text  # noqa: B023 - called at once
        assert is_done_in(LIMIT_S / 4, lambda: reader.feed(Line(text=line))), text  # noqa: B023


def took_s(*calls: Callable[[], object]) -> float:
    begun_s = time.process_time()
    for call in calls:
        call()
    return time.process_time() - begun_s


def is_done_in(limit_s: float, call: Callable[[], object]) -> bool:
    """Say whether a call takes less, at one of three times: other threads and memory that is freed count, too."""
    return any(took_s(call) < limit_s for _ in range(3))


@pytest.mark.host
def test_no_failure_rule_is_slow_on_a_long_line() -> None:
    """Of a quarter of the longest line, on which what takes its length squared takes a sixteenth of the time."""
    slow = []
    for rule in RULES:
        pattern = re.compile(rule.pattern)
        for whole in (*(text * (LONGEST // len(text)) for text in PLAIN), *long_lines(rule.pattern)):
            line = whole[: LONGEST // 4]
            if not is_done_in(LIMIT_S / 16, lambda: pattern.search(line)):  # noqa: B023 - called at once
                slow.append((rule.pattern, line[:30]))
                break
    assert slow == []


@pytest.mark.host
@pytest.mark.full
@each_row("text", PLAIN, ids=ascii)
def test_a_log_of_one_long_line_again_and_again_is_read_by_all_readers_in_time(text: str, tmp_path: Path) -> None:
    plugins = load_plugins("", only_built_in=True)
    readers = [backend.reader(None) for backend, _ in plugins.backends().values()]
    monitor = LogMonitor(
        [reader for reader in readers if reader is not None],
        RULES,
        error_scan=ErrorScan(patterns=PATTERNS, benign=BENIGN),
    )
    line = (text * LONGEST)[: LONGEST - 1].encode()[:LONGEST] + b"\n"

    def judged() -> object:
        return judge(make_plan(tmp_path), Observation(exit=Exit(code=1, duration_s=1.0)), monitor)

    assert took_s(*[lambda: monitor.feed(line)] * 2, monitor.finish, judged) < 4 * LIMIT_S


@pytest.mark.host
@each_row(
    "text",
    ["token=a", "HF_TOKEN=abcdefgh ", 'token:"', "token=", "token==:", "x=", "--token ", 'TOKEN="\\', "\\token="],
)
def test_hundreds_of_assignments_are_masked_in_no_time(text: str) -> None:
    line = text * (LONGEST // 4 // len(text))
    begun_s = time.process_time()
    redactor = Redactor(assigned([line]))
    redactor.text(line)
    assert redactor.feed(line.encode()) is not None and redactor.flush() is not None
    assert time.process_time() - begun_s < 10 * LIMIT_S


def test_every_secret_of_such_a_line_is_masked_where_it_stands_and_alone() -> None:
    line = "".join(f"A{n}_TOKEN=hf_secret{n:04}&" for n in range(100))
    redactor = Redactor(assigned([line]))
    assert "hf_secret" not in redactor.text(line)
    assert "hf_secret" not in redactor.text(" ".join(f"hf_secret{n:04}&" for n in range(100)))
