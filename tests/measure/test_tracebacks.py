"""Tracebacks in a log: whoever's they are and whatever a launcher or a logger puts before their lines."""

from __future__ import annotations

from madlite.measure.lines import make_block
from madlite.measure.tracebacks import TracebackScan
from tests.rows import each_row

LINES = ["Traceback (most recent call last):", '  File "/a/t.py", line 3, in f', "    x()", "ValueError: head dim 7"]


def raised(*lines: str):
    scan = TracebackScan()
    scan.feed(make_block(lines))
    return [(one.rank, one.line, one.where) for one in scan.raised]


@each_row(
    ("label", "rank"),
    [
        ("", None),
        ("[rank5]: ", 5),
        ("[default5]:[rank5]: ", 5),
        ("5: ", 5),
        ("[1,5]<stderr>:", 5),
        ("node1: ", None),
        ("worker-5 | ", None),
        ("(RayTrainWorker pid=1, ip=1) ", None),
        ("10.0.0.1: [rank5]: ", 5),
        ("[20251121 12:10:29][rank-5/8][ERROR] [--------trainer.py:2488] : ", 5),
    ],
)
def test_a_label_before_every_line(label, rank):
    assert raised(*(label + line for line in LINES)) == [(rank, LINES[3], "/a/t.py:3 in f")]


@each_row(
    ("label", "rank"),
    [
        ("2026-11-21T00:00:0{}.123Z [rank5]: ", 5),
        ("2026-11-21 00:00:0{},000 - root - ERROR - ", None),
        ("2026-11-21T00:00:0{}Z ", None),
        ("2026-11-21T00:00:0{}Z 4: ", 4),
        ("E1121 00:00:0{}.123456 77 t.py:12] ", None),
    ],
)
def test_the_time_in_a_label_goes_on(label, rank):
    assert raised(*(label.format(n) + line for n, line in enumerate(LINES))) == [(rank, LINES[3], "/a/t.py:3 in f")]


def test_a_label_before_the_first_line_alone():
    logged = "2026-11-21 00:00:00,000 - root - ERROR - it failed: "
    assert raised(logged + LINES[0], *LINES[1:]) == [(None, LINES[3], "/a/t.py:3 in f")]
    assert raised("3: " + LINES[0], *LINES[1:])[0][0] is None, "a number that not every line has is no rank"
    # lines of others are no part of it
    lines = [f"[rank1]: {LINES[0]}", "OSError: of another", f"[rank1]: {LINES[1]}", "[rank2]: OSError: b"]
    assert raised(*lines, f"[rank1]: {LINES[3]}") == [(1, LINES[3], "/a/t.py:3 in f")]
    # a label that is none is text
    assert raised(f"{'x' * 300}{LINES[0]}", *LINES[1:])[0][1] == LINES[3]
    odd = ["[[((*+?\\ ", "a|b ", "{1,2}"]
    for label in odd:
        assert raised(*(label + line for line in LINES))[0][1] == LINES[3]


@each_row("label", ["[rank{}]: ", "{}: ", "[1,{}]<stderr>:", "node{}: "])
def test_tracebacks_of_several_processes_may_be_mixed(label):
    first = [label.format(1) + line for line in (*LINES[:3], "KeyError: 1")]
    second = [label.format(2) + line for line in (*LINES[:3], "KeyError: 2")]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    ranks = (None, None) if "node" in label else (1, 2)
    assert [one[:2] for one in raised(*mixed)] == [(ranks[0], "KeyError: 1"), (ranks[1], "KeyError: 2")]
