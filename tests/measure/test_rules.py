"""Failure rules: however lines come together, each is matched alone, and what is passed over could not match."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from madlite.measure.lines import make_block, rank_of
from madlite.measure.rules import RuleScan, compile_rules, ignores_case, needed_texts, plain, with_common
from madlite.model import FailureRule
from tests.rows import each_row
from tests.tiers import examples

PATTERNS = (
    r"No module named '?torch\b(?!itan)",
    r"Unrecognized options: ",
    r"KeyError: 'float8'",
    r"not finite \(loss=",
    r"^boom$",
    r"boom|bang",
    r"(?:CUDA|HIP) out of memory",
    r"(?i)out of memory",
    r"(?i:quiet) please",
    r"(?x) spaced  out",
    r"a{2,}b?c*d+e",
    r"x{y}z",
    r"[]a|b]c",
    r"(a|b)|c",
    r"tab\there",
    r"",
    r"foo(?=bar)",
    r"(?<!no )error",
    r"\d+ of (\d+)",
    r"end\Z",
)
WORDS = st.sampled_from(
    "boom bang a b c d e aa aade aaaade x{y}z c error no foo foobar spaced out spacedout quiet QUIET please OUT of "
    "Memory memory CUDA HIP torch torchtitan named No module end 12 ]c bc |c tab\there KeyError: 'float8' not finite "
    "(loss= Unrecognized options: \u017fpaced \u212a \u0130 memor\u0131".split(" ")
)
LINES = st.lists(st.lists(WORDS, max_size=7).map(" ".join), max_size=6)


def by_hand(lines, pattern):
    """Return the first line of each rank that a pattern matches, as processes wrote them."""
    found = {}
    for line in lines:
        if re.search(pattern, line):
            found.setdefault(rank_of(line), line.removeprefix("[rank1]: ").strip())
    return found


@pytest.mark.host
@settings(max_examples=examples(400), deadline=None)
@given(LINES, st.lists(st.sampled_from(PATTERNS), max_size=5), st.integers(0, 6))
@example(["spaced  out", "boom", "bang"], [r"^boom$", r"boom|bang"], 1)
@example(["[rank1]: bang", "x", "[rank1]: boom", "boom"], [r"boom|bang"], 2)
def test_of_each_rank_the_first_line_that_a_rule_matches_is_found(lines, patterns, cut):
    lines = [line for line in lines if line.strip()]
    rules = compile_rules(FailureRule(pattern=one, cause=f"{n}") for n, one in enumerate(patterns))
    scan, begin = RuleScan(rules), 0
    for part in (lines[:cut], lines[cut:]):
        block = make_block(part)
        scan.feed(block, begin)
        begin += len(block.text) + 1
    hits = scan.hits()
    assert [hit.at for hit in hits] == sorted(hit.at for hit in hits)
    for n, pattern in enumerate(patterns):
        assert {hit.rank: hit.line for hit in hits if hit.rule.cause == f"{n}"} == by_hand(lines, pattern)


def test_rules_of_other_backends_are_left_out():
    ours = FailureRule(pattern="a", cause="x", backends=("one", "two"))
    any_ones = FailureRule(pattern="b", cause="x")
    common = with_common(())
    assert with_common([ours, any_ones], {"two"}) == (ours, any_ones, *common)
    assert with_common([ours, any_ones], {"three"}) == (any_ones, *common)
    assert with_common([ours, any_ones]) == (ours, any_ones, *common), "where nobody knows whose training it is"
    # of many ranks some are kept
    scan = RuleScan(compile_rules([FailureRule(pattern="boom", cause="x")]))
    scan.feed(make_block(f"[rank{n}]: boom" for n in range(500)))
    assert 8 <= len(scan.hits()) < 50 and scan.hits()[0].rank == 0
    # a box around a line is no part of it
    assert plain("[rank0]:│ Unrecognized options: --a, 2         │") == "Unrecognized options: --a, 2"
    assert plain("[rank0]: ────") == "────"


@each_row(
    ("pattern", "needed"),
    [
        (PATTERNS[0], ("No module named ",)),
        (r"not finite \(loss=", ("not finite (loss=",)),
        (r"boom|(a)bang", ("boom", "bang")),
        (r"(?:CUDA|HIP) out of memory", (" out of memory",)),
        (r"(?i)Out of Memory", ("Out of Memory",)),
        (r"ab+c?d*efg", ("efg",)),
        (r"ab{3}", ("a",)),
        (r"(?P<n>x[)\]]y)tail", ("tail",)),
        (r"[^]abc]+z", ("z",)),
        (r"(foo|bar)", ()),
        (r"foo|", ()),
        (r"foo\x41bar", ()),
        (r"(?x) f o o", ()),
        (r"(?#|)foo", ()),
        (r"(?i)größe", ()),
    ],
)
def test_what_a_pattern_needs(pattern, needed):
    assert needed_texts(re.compile(pattern)) == needed


@pytest.mark.host
@pytest.mark.filterwarnings("ignore:Possible nested set")
@settings(max_examples=examples(300), deadline=None)
@given(st.from_regex(re.compile(r"(?:[ab|()\[\]{}*+?^$.\\dnx1,]|\(\?[:=!i]){0,12}"), fullmatch=True), st.data())
def test_no_match_is_without_what_its_pattern_needs(pattern, data):
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    needed = needed_texts(compiled)
    text = data.draw(st.one_of(st.text("ab|()[]{}*+?^$.dnx1,AB", max_size=12), st.from_regex(compiled)))
    if not needed or not compiled.search(text):
        return
    if ignores_case(compiled):
        small = text.lower()  # of ASCII alone
        assert any(one.lower() in small for one in needed)
    else:
        assert any(one in text for one in needed)
