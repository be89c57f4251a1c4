"""Bytes → lines: escapes gone, carriage returns split, nothing lost however the bytes arrive."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.measure.lines import LONGEST, LineSplitter, rank_of
from tests.tiers import examples


def lines(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    found = [line.text for chunk in chunks for line in splitter.number(splitter.take(chunk))]
    return found + [line.text for line in splitter.number(splitter.take_rest())]


def test_colours_bars_and_escapes_are_taken_apart_within_a_line():
    assert lines(b"\x1b[31mstep:  2\x1b[0m\n 10%|#\r 20%|##\rdone\r\n") == ["step:  2", " 10%|#", " 20%|##", "done"]
    # a title sequence and a cut escape do no harm
    assert lines(b"\x1b]0;evil\x07hello\n\x1b[3") == ["hello", "\x1b[3"]
    # an escape does not reach over a lines end
    assert lines(b"\x1b]0;no end\nstep 1\n\x1b]0;title\x07step 2\n") == ["0;no end", "step 1", "step 2"]
    assert lines(b"\x1b[31\nm red\n") == ["\x1b[31", "m red"]
    # what is in a line is in its blocks text
    splitter = LineSplitter()
    block = splitter.take(b"perfor\x1b[1mmance: 1\n \nlong " + b"x" * LONGEST + b"y\nrest")
    assert [line[:14] for line in block.lines] == ["performance: 1", "long xxxxxxxxx", "xxxxxy"]
    assert all(line in block.text for line in block.lines)
    assert splitter.take_rest().lines == ["rest"]


def test_a_line_is_cut_not_collected_and_characters_stay_whole():
    # characters split across reads stay whole
    text = "loss ✓ ü\n".encode()
    assert lines(*[text[n : n + 1] for n in range(len(text))]) == ["loss ✓ ü"]
    # a line without end is cut not collected
    found = lines(b"x" * (3 * LONGEST + 5))
    assert "".join(found) == "x" * (3 * LONGEST + 5) and max(map(len, found)) <= LONGEST
    # a line with an end is cut where one without is
    data = b"a" * (LONGEST - 1) + b"\n" + b"b" * LONGEST + b"\n" + b"c" * (LONGEST + 1) + b"\n\nd\n"
    whole = lines(data)
    assert list(map(len, whole)) == [LONGEST - 1, LONGEST, LONGEST, 1, 1]
    assert lines(*[data[at : at + 1000] for at in range(0, len(data), 1000)]) == whole


def test_ranks():
    assert rank_of("[rank3]:[titan] x") == 3
    assert rank_of("[20261121 00:17:16][rank-7/8][INFO] x") == 7
    assert rank_of("[default2]:x") == 2
    assert rank_of("step 3 of rank 5") is None
    assert rank_of(f"[rank{'9' * 60}] x") is None
    splitter = LineSplitter()
    assert [line.rank for line in splitter.number(splitter.take(b"[rank1]: a\nb\n[rank0]: c\n"))] == [1, None, 0]


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_how_the_bytes_arrive_does_not_matter(data, cuts):
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    assert lines(*[data[a:b] for a, b in zip(places, places[1:], strict=False)]) == lines(data)
