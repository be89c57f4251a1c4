"""Any bytes as a log, in any pieces: nothing raises, and what is seen does not hang on how they came."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.backends.loader import load_plugins
from madlite.cli.parse import _text, page
from madlite.errors import MadliteError
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import read_chunks, read_log
from madlite.measure.verdict import Observation, judge
from madlite.model import ErrorScan, Exit
from madlite.plan.actions import BENIGN, PATTERNS
from tests.factories import make_plan
from tests.rows import each_row
from tests.tiers import examples

pytestmark = pytest.mark.host  # many examples

PLUGINS = load_plugins("", only_built_in=True)
BACKENDS = [backend for backend, _ in PLUGINS.backends().values()]
with TemporaryDirectory() as made:
    PLAN = make_plan(Path(made))
RULES = tuple(PLUGINS.failure_rules())
WORDS = st.sampled_from(
    [
        *(
            "step:  1  loss: 8.1  grad_norm: 1.9  memory:  0.99GiB(1.04%)  tps: 1,407  tflops: 0.1  mfu: N/A\n",
            "[rank0]: ",
        ),
        *(
            " iteration        4/      20 | elapsed time per iteration (ms): 31.2 | lm loss: 9.1E+00 |\n",
            "{'loss': 1.5, ",
        ),
        *(
            "'train_samples_per_second': 3.1}\n",
            "performance: 12,345.5 tok/s\n",
            "performance: nan x\n",
            "HF_TOKEN=hf_x1234 ",
        ),
        *("Traceback (most recent call last):\n", "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB\n"),
        *(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
            "NaN",
            "inf",
            "-0",
            "1e999",
            "Killed\n",
        ),
        *(
            "\x1b[31m",
            "\x1b]0;",
            "\r",
            "\n",
            "\0",
            "\ud800",
            "é",
            "\u2028",
            "x" * 300,
            "1|5|Loss: 2.0:",
            "{",
            '"',
            "[" * 50,
        ),
    ]
)
LOGS = st.binary(max_size=200) | st.lists(WORDS | st.text(max_size=5), max_size=25).map(
    lambda words: "".join(words).encode("utf-8", "surrogatepass")
)
CUTS = st.lists(st.integers(0, 3000), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def verdict(chunks: list[bytes], code: int) -> str:
    """Return in words what a run of these bytes comes to, by every built-in reader at once."""
    readers = [reader for reader in (backend.reader(None) for backend in BACKENDS) if reader is not None]
    monitor = LogMonitor(readers, RULES, error_scan=ErrorScan(patterns=PATTERNS, benign=BENIGN))
    for chunk in chunks:
        monitor.feed(chunk)
    monitor.finish()
    assert len(monitor._readers) == len(readers), "a reader raised, and was left out"
    return repr((judge(PLAN, Observation(exit=Exit(code=code, duration_s=1.0)), monitor), list(monitor.steps)))


@given(LOGS, CUTS, st.sampled_from([0, 1, 137]))
@settings(max_examples=examples(40))
def test_the_verdict_of_any_bytes_is_the_same_in_any_pieces(data: bytes, cuts: list[int], code: int) -> None:
    assert verdict(pieces(data, cuts), code) == verdict([data], code)


@pytest.mark.host
@pytest.mark.full
@given(LOGS, CUTS, st.sampled_from([0, 1, 137]))
@settings(max_examples=examples(1500))
def test_the_same_of_many_more(data: bytes, cuts: list[int], code: int) -> None:
    assert verdict(pieces(data, cuts), code) == verdict([data], code)


@given(LOGS)
@settings(max_examples=examples(30))
def test_parse_of_any_bytes_says_something(data: bytes) -> None:
    try:
        reading = read_log("x.log", read_chunks(io.BufferedReader(io.BytesIO(data)), "x.log"), PLUGINS, None, 5)
    except MadliteError as problem:
        assert problem.message
        return
    assert page(reading).isprintable() or "\n" in page(reading)
    assert _text("x", reading, as_json=True).endswith("}\n")


@each_row("word", ["[" * 100_000, '{"a":' * 50_000, "performance: " + "9" * 60_000, "\0" * 70_000])
def test_deep_and_long_texts_are_no_bombs(word: str) -> None:
    assert verdict([word.encode(), b"\n"], 1)


def peak_kib(size_bytes: int, folder: Path) -> int:
    """Return the most memory that `madlite parse` of one endless line takes.

    The line is cut into shorter pieces than usual: some hundreds of the last ones are kept, and it takes no more of it
    until they are.
    """
    program = (
        "import resource; from madlite.measure import lines; lines.LONGEST = 8192; from madlite.cli.main import call; "
        "code = call(['parse', '-', '--backend', 'torchtitan']); "
        "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    feed = f'head -c {size_bytes} /dev/zero | tr "\\0" x | "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", feed, sys.executable, program], capture_output=True, text=True, cwd=folder, check=True
    )
    code, peak = done.stdout.split()[-2:]
    assert code == "3" and "FAILURE" in done.stdout
    return int(peak)


@pytest.mark.host
def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    assert peak_kib(14 << 20, tmp_path) - peak_kib(6 << 20, tmp_path) < 4 << 10
