from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.errors import UsageProblem
from madlite.plan.fields import LEAST_BYTES, Layer, as_size, resolve, size_words
from tests.rows import each_row


@each_row(
    ("text", "count"),
    [
        ("0", 0),
        ("16K", 16 << 10),
        ("65536", 65536),
        ("500M", 500 << 20),
        ("2g", 2 << 30),
        (" 1.5 GiB ", 3 << 29),
        ("64kb", 64 << 10),
        ("1T", 1 << 40),
    ],
)
def test_sizes_are_read_as_people_type_them(text: str, count: int) -> None:
    assert as_size(text) == count


@each_row(
    "text",
    [
        "",
        "much",
        "-1",
        "2X",
        "1K",
        "16383",
        "0.5",
        "1e9",
        "nan",
        "2 2G",
        "9" * 40,
        "9" * 18 + "T",
        "٣G",
        "True",
        "G",
        "+2G",
    ],
)
def test_what_is_no_size_or_too_small_a_limit_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageProblem, match="log_limit takes a size of at least 16K, such as 500M or 2G, or 0"):
        resolve(None, {}, [Layer(origin="--set", values={"log_limit": text})], "card")


@given(st.integers(LEAST_BYTES, 1 << 50))
def test_a_size_that_is_shown_can_be_typed(count: int) -> None:
    assert as_size(size_words(count)) == count


def test_a_size_is_shown_in_its_largest_whole_unit() -> None:
    assert [size_words(n) for n in (0, 2 << 30, 1536 << 20, 64 << 10, 65537)] == ["none", "2G", "1536M", "64K", "65537"]
