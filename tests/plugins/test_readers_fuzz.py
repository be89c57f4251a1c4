"""Readers of pretraining logs against bytes as they come: cut anywhere, in any pieces, with other things in between."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.measure.lines import LineSplitter
from madlite.model import Event, Quantity
from madlite_plugins.megatron_lm.reader import MegatronReader
from madlite_plugins.primus.reader import PrimusReader
from madlite_plugins.torchtitan.reader import TorchtitanReader
from tests.plugins.logs import LOGS, steps
from tests.rows import each_row
from tests.tiers import examples

pytestmark = pytest.mark.host  # many examples

TOLD_BEFORE = (Quantity.MEMORY_ALLOCATED_GIB, Quantity.MEMORY_RESERVED_GIB)  # and given with the next step, whichever


def piece(name: str, first: bytes, count: int) -> bytes:
    """Return lines of a real log from the one that holds `first`."""
    rows = (LOGS / name).read_bytes().splitlines(keepends=True)
    at = next(number for number, row in enumerate(rows) if first in row)
    return b"".join(rows[at : at + count])


CASES = {
    "titan": (TorchtitanReader, piece("torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log", b"step:  1", 12)),
    "titan-colours": (TorchtitanReader, piece("torchtitan-0.2.2-debugmodel-1xH200.log", b"step: ", 8)),
    "megatron": (MegatronReader, piece("megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log", b"iteration        1/", 50)),
    "megatron-nan": (
        MegatronReader,
        piece("megatron-lm-rocm_dev-gpt-cpu-nan-continue.log", b"iteration        1/", 32),
    ),
    "gpu-lines": (MegatronReader, (LOGS / "megatron-gpu-lines.txt").read_bytes()),
    "primus": (PrimusReader, piece("primus-main-megatron-tiny-cpu-2ranks.log", b"iteration        4/", 10)),
    "primus-titan": (PrimusReader, piece("primus-main-torchtitan0.2.2-debug-cpu-2ranks.log", b"step:  1", 12)),
}
case = st.sampled_from(sorted(CASES))


def follow(reader, chunks) -> list[Event]:
    reader, splitter = reader(), LineSplitter(now=lambda: 0.0)
    blocks = [*map(splitter.take, chunks), splitter.take_rest()]
    return [event for block in blocks for row in splitter.number(block) for event in reader.feed(row)]


def numbers(found: list[Event]) -> list[tuple[int, int | None, dict[Quantity, str]]]:
    """Return the steps in a form in which NaN is the same as NaN."""
    return [(step.n, step.rank, {key: repr(value) for key, value in step.values.items()}) for step in steps(found)]


WHOLE = {name: numbers(follow(reader, [data])) for name, (reader, data) in CASES.items()}


@each_row("name", sorted(CASES))
def test_the_pieces_hold_steps(name):
    assert len(WHOLE[name]) >= 4


def belongs(one, whole) -> bool:
    return any(one[:2] == other[:2] and one[2].items() <= other[2].items() for other in whole)


@given(case, st.integers(0, 10_000))
@settings(max_examples=examples(200))
def test_a_log_that_was_cut_off_never_has_a_number_that_the_whole_log_has_not(name, length):
    reader, data = CASES[name]
    found = numbers(follow(reader, [data[:length]]))
    assert all(belongs(one, WHOLE[name]) for one in found)


@given(case, st.integers(0, 10_000), st.text(max_size=40))
@settings(max_examples=examples(200))
def test_an_interrupted_write_never_shortens_a_number(name, at, noise):
    """One process writes a line into another's: numbers may be lost, and the word loss itself torn apart."""
    reader, data = CASES[name]
    found = steps(follow(reader, [data[:at] + b"[rank9]: " + noise.encode() + b" |\n" + data[at:]]))
    for one in numbers(found):
        assert any(
            one[0] == other[0]
            and all(text in ("nan", other[2].get(key)) for key, text in one[2].items() if key not in TOLD_BEFORE)
            for other in WHOLE[name]
        )


@given(case, st.lists(st.tuples(st.integers(0, 30), st.binary(max_size=60)), max_size=6))
@settings(max_examples=examples(60))
def test_lines_of_others_in_between_change_no_step(name, noise):
    reader, data = CASES[name]
    rows = data.splitlines(keepends=True)
    for at, text in noise:
        rows.insert(min(at, len(rows)), text.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
    assert numbers(follow(reader, [b"".join(rows)])) == WHOLE[name]


@given(
    case, st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(["\x1b[31m", "\x1b[38;2;54;234;195m", "\x1b[0m"])))
)
@settings(max_examples=examples(60))
def test_colours_anywhere_change_no_step(name, colours):
    reader, data = CASES[name]
    text = re.sub(r"\x1b\[[0-9;]*m", "", data.decode())
    places = {at % len(text): colour for at, colour in colours}
    coloured = "".join(places.get(at, "") + character for at, character in enumerate(text))
    assert numbers(follow(reader, [coloured.encode()])) == WHOLE[name]
