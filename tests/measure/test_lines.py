"""Bytes → lines: escapes gone, carriage returns split, nothing lost however the bytes arrive."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.measure.lines import LONGEST, LineSplitter, rank_of


def lines(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    found = [line.text for chunk in chunks for line in splitter.feed(chunk)]
    return found + [line.text for line in splitter.flush()]


def test_colours_and_progress_bars_are_taken_apart():
    assert lines(b"\x1b[31mstep:  2\x1b[0m\n 10%|#\r 20%|##\rdone\r\n") == ["step:  2", " 10%|#", " 20%|##", "done"]


def test_a_title_sequence_and_a_cut_escape_do_no_harm():
    assert lines(b"\x1b]0;evil\x07hello\n\x1b[3") == ["hello", "\x1b[3"]


def test_characters_split_across_reads_stay_whole():
    text = "loss ✓ ü\n".encode()
    assert lines(*[text[n : n + 1] for n in range(len(text))]) == ["loss ✓ ü"]


def test_a_line_without_end_is_cut_not_collected():
    found = lines(b"x" * (3 * LONGEST + 5))
    assert "".join(found) == "x" * (3 * LONGEST + 5) and max(map(len, found)) <= LONGEST


def test_ranks():
    assert rank_of("[rank3]:[titan] x") == 3
    assert rank_of("[20261121 00:17:16][rank-7/8][INFO] x") == 7
    assert rank_of("step 3 of rank 5") is None


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=6))
def test_how_the_bytes_arrive_does_not_matter(data, cuts):
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    assert lines(*[data[a:b] for a, b in zip(places, places[1:], strict=False)]) == lines(data)
