"""The scan for error patterns: what counts, what is harmless, and which line is kept."""

from __future__ import annotations

from madlite.measure.lines import make_block
from madlite.measure.monitor import PatternScan
from madlite.model import ErrorScan
from madlite.plan.actions import BENIGN, PATTERNS
from tests.rows import each_row


def scan(*lines: str, patterns=PATTERNS, benign=BENIGN) -> list[tuple[str, str]]:
    looked = PatternScan(ErrorScan(patterns=patterns, benign=benign))
    for line in lines:
        looked.feed(make_block([line]))
    together = PatternScan(ErrorScan(patterns=patterns, benign=benign))
    together.feed(make_block(lines))
    assert list(together.found.items()) == list(looked.found.items())
    return list(looked.found.items())


@each_row(
    ("line", "pattern"),
    [
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB", "OutOfMemoryError"),
        ("  [rank0]: RuntimeError: shape '[2]' is invalid", "RuntimeError:"),
        ("Traceback (most recent call last):", "Traceback (most recent call last)"),
        ("E0101 api.py:984] failed (exitcode: 1) local_rank: 0", "failed (exitcode:"),
        ("test_layer.py::test_norm FAILED", "FAILED"),
        ("java.lang.Exception: no", "Exception:"),
    ],
)
def test_lines_that_count(line, pattern):
    assert scan("all is well", line) == [(pattern, line.strip())]


@each_row(
    "line",
    [
        "runtimeerror: in lower case",
        "0 tests failed",
        "RuntimeError without a colon",
        "failed .exitcode: is plain text and no expression",
        "FutureWarning: this raises ValueError: some day",
        "RpcError: Running out of retries to initialize the metrics agent. Exception: timed out",
        "E20251230 16:43:09.797714 140310524069632 generateRocpd.cpp:605] Exception: none",
        "W20251230 16:43:09.797714 140310524069632 simple_timer.cpp:55] FAILED ops 0",
        "[rank3]: E20251230 16:43:09.797714 1403 tool.cpp:2420] FAILED",
        "INFO [rocprofv3] SystemExit hook is set",
    ],
)
def test_lines_that_are_harmless(line):
    assert scan(line) == []


def test_the_first_line_of_each_pattern_is_kept_in_the_order_of_the_log():
    found = scan("ValueError: known FutureWarning", "ValueError: one", "RuntimeError: two", "ValueError: three")
    assert found == [("ValueError:", "ValueError: one"), ("RuntimeError:", "RuntimeError: two")]
    # a file name of the profiler alone does not make an error harmless
    assert [pattern for pattern, _ in scan("RuntimeError: tool.cpp:12 asserts")] == ["RuntimeError:"]
    # own text is no expression
    own = {"patterns": ("O.M (",), "benign": ("[a-z]O",)}
    assert scan("OOM (", "xO.M (", **own) == [("O.M (", "xO.M (")]
    assert scan("[a-z]O.M (", **own) == []
