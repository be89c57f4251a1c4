"""One rule for which text is a number: `performance:` lines, results files, patterns of steps and JSON."""

from __future__ import annotations

import math
import re

from madlite.backends.step_lines import number, number_or_none, step_pattern
from madlite.measure.performance import judge_number, read_performance
from madlite.model import Line, Quantity
from madlite.text import group_texts, whole_number, without_groups
from tests.rows import each_row

NUMBERS = {"2,872": 2872.0, "1,234,567.5": 1234567.5, "12.5": 12.5, "1.5e+03": 1500.0, "-1,000": -1000.0, ".5": 0.5}
NONE = ["12,5", "5.121,5", "1.004,8", "0,512", "1.234.567", "12,34,567", "1234,567", "1,23", "1,2345", "1 234", "1'234"]


@each_row(("text", "value"), NUMBERS.items())
def test_commas_separate_groups_of_three(text, value):
    assert number(text) == value == judge_number(without_groups(text), "x")[0]
    assert read_performance(f"performance: {text} x") == (text.replace(",", ""), "x")


@each_row("text", NONE)
def test_decimal_commas_and_foreign_grouping_make_no_number_anywhere(text):
    assert math.isnan(number(text)) and number_or_none(text) is None
    assert judge_number(without_groups(text), "tokens/s")[0] is None
    assert read_performance(f"performance: {text} tokens/s") is None


@each_row(
    ("pattern", "line", "text"),
    [
        (r"tps (?P<x>[\d.]+)", "tps 5.121,5 loss 2", "5.121,5"),
        (r"tps (?P<x>[\d.]+)", "tps 512,001.0", "512,001.0"),
        (r"tps (?P<x>\d+)", "tps 1,234, loss", "1,234"),
        (r"tps (?P<x>[\d.]+)", "tps 1.5e+03 x", "1.5e+03"),
        (r"tps (?P<x>[\d.]+).*", "tps 12.5, 3 x", "12.5"),
        (r"tps (?P<x>[\d.]+)", "tps 12.5s", "12.5"),
        (r"tps (?P<x>\S+)", "tps nan", "nan"),
        (r"^\d+,[\d.]+,(?P<x>[\d.]+)", "7,2.5,5121.5,0.001", "5121.5"),  # a table's columns
        (r"(?P<n>\d+),[^,]*,(?P<x>[\d.]+)", "7,2.5,5121.5,3", "5121.5"),
        (r": (?P<x>[\d.]+),(?P<y>[\d.]+)$", "it: 2.5,5121", "2.5"),
        (r"tps=(?P<x>[\d.]+),\d+ms", "tps=5121.5,12ms", "5121.5"),  # the pattern says where the number ends
        (r"tps=(?P<x>\d+),\d+ms", "tps=5121,512ms", "5121"),
        (r"tps=(?P<x>\d+)(?:,\d+ms)?", "tps=5121,12ms", "5121"),
        (r"tps=(?P<x>[\d.]+)(?=,|$)", "tps=5121.5,12ms", "5121.5"),
        (r"(?P<n>\d+) (?P<x>[\d.]+),", "7 5121.5,3", "5121.5"),
        (r"(?P<n>\d+) (?P<x>[\d.]+)[, ]+\d+", "7 5121.5,3", "5121.5"),
        (r".*tps (?P<x>[\d.]+),\d", "tps 1.5 tps 5121.5,3", "5121.5"),
        (r"tps (?P<x>[\d.]+).*", "tps 5.121,5 loss 2", "5.121,5"),  # it only passes over the comma
        (r"tps (?P<x>[\d.]+).*loss (?P<y>\S+)", "tps 5.121,5 loss 2", "5.121,5"),
        (r"tps (?P<x>[\d.]+).*", "tps 5,121.5 loss 2", "5,121.5"),
        (r"tps (?P<x>[\d.]+).*", "tps 5121.5,12ms", "5121.5"),  # one number in no language
        (r"tps (?P<x>\d+).*", "tps 5121.5,12ms", "5121.5"),
        (r"tps (?P<x>[\d.]+)\D+(?P<y>[\d.]+)", "tps 5.121,5", "5.121"),  # the other group's
        (r"tps (?P<x>[^,]+)", "tps 12,5 loss", "12,5"),
        (r"tps (?P<x>\d+)\b", "tps 12,5 loss", "12,5"),
        (r"(?P<x>[\d.]+) tok/s", "rate 5,121.5 tok/s", "5,121.5"),  # the end alone
        (r"(?P<n>\d+): .*?(?P<x>[\d.]+) tok/s", "7: rate 1,005,121.5 tok/s", "1,005,121.5"),
        (r"(?P<x>\d+) tok/s", "rate 5121.5 tok/s", "5121.5"),
        (r"(?P<x>[\d.]+) tok/s", "rate 5.121,5 tok/s", "5.121,5"),
        (r"(?P<x>[\d.]+) tok/s", "rate 12,5 tok/s", "12,5"),
        (r"(?P<x>[\d.]+) tok/s", "7,121.5 tok/s", "121.5"),  # a table
        (r"(?P<n>\d+),(?P<x>[\d.]+) tok/s", "step 7,121.5 tok/s", "121.5"),
        (r",(?P<x>[\d.]+) tok/s", "step 7,121.5 tok/s", "121.5"),  # the pattern says where the number begins
        (r"(?<=,)(?P<x>[\d.]+) tok/s", "step 7,121.5 tok/s", "121.5"),
        (r"(?P<x>[\d.]+) tok/s", "loss 2.5,121.5 tok/s", "121.5"),  # one number in no language
        (r"(?P<x>[\d.]+) tok/s", "at 10:00:01,121 5 tok/s", "5"),
    ],
)
def test_a_group_has_the_whole_number_that_stands_there(pattern, line, text):
    found = re.search(pattern, line)
    assert found and group_texts(found)["x"] == text


def test_a_step_s_number_is_taken_as_the_pattern_has_it():
    (step,) = step_pattern(r"^(?P<n>\d+),[^,]*,(?P<tokens_per_s_per_gpu>[\d.]+)").steps(Line(text="7,2.5,5121.5,1"))
    assert step.n == 7 and step.values == {Quantity.TOKENS_PER_S_PER_GPU: 5121.5} and step.unread == {}


@each_row(
    ("pattern", "line", "n"),
    [
        (r"step (?P<n>\d+)", "step 1,200", 1200),
        (r"step (?P<n>\d+)", "step 1,234,567: tps 5", 1234567),
        (r"step (?P<n>\d+)", "step 1,200, tps 5", 1200),
        (r"step (?P<n>\d+)", "step 1,200.", 1200),
        (r"step (?P<n>\d+).*tps (?P<tokens_per_s_per_gpu>[\d.]+)", "step 1,200 of 9,000: tps 5121.5", 1200),
        (r"step (?P<n>\d+)\D", "step 1,200 tps 5", 1200),
        (r"(?P<n>\d+) tps", "step 1,200 tps 5", 1200),
        (r"step (?P<n>[\d,]+)", "step 1,200", 1200),
        (r"step (?P<n>\d+)", "step 999", 999),
        (r"step (?P<n>\d+)", "step 7, 200 tokens", 7),
        (r"step (?P<n>\d+)", "step 7,20", 7),
        (r"step (?P<n>\d+)", "step 7,2000", 7),
        (r"step (?P<n>\d+)", "step 7,250.5", 7),
        (r"step (?P<n>\d+)", "step 7,250,1", 7),
        (r"step (?P<n>\d+)", "step 0,250", 0),
        (r"step (?P<n>\d+)", "step 1200,250", 1200),
        (r"step (?P<n>\d+)", "step 7.250", 7),
        (r"(?P<n>\d+),\d+ms", "step 7,250ms", 7),  # the pattern names the comma
        (r"^(?P<n>\d+),[^,]*,(?P<tokens_per_s_per_gpu>[\d.]+)", "7,250,512", 7),
        (r"^(?P<n>\d+)\D(?P<tokens_per_s_per_gpu>\d+)", "7,250", 7),
        (r"^[\d.]+,(?P<n>\d+)", "1.5,7,250", 7),  # a table's columns
    ],
)
def test_a_step_s_number_has_thousands_separators_and_nothing_else(pattern, line, n):
    assert [step.n for step in step_pattern(pattern).steps(Line(text=line))] == [n]


@each_row("sep", [" ", " of 1,200, ", ": "])
def test_a_script_that_groups_the_digits_of_its_steps_comes_to_its_end(sep):
    pattern = step_pattern(r"step (?P<n>\d+)\b.*tps (?P<tokens_per_s_per_gpu>[\d.]+)")
    lines = [f"step {n:,}{sep}tps {5000 + n}.5" for n in range(1, 1201)]
    assert [step.n for line in lines for step in pattern.steps(Line(text=line))] == list(range(1, 1201))


@each_row(
    ("text", "count"),
    [("8", 8), (" 1,200 ", 1200), ("1_200", 1200), ("007", 7), ("1,234,567", 1234567), ("1" * 18, int("1" * 18))],
)
def test_a_count_is_a_whole_number(text, count):
    assert whole_number(text) == count


@each_row("text", ["", "-1", "1.5", "12,5", "1,2", "0,512", "1,200_000", "1_20", "\u0663", "8 GPUs", "auto", "1" * 19])
def test_what_is_no_count(text):
    assert whole_number(text) is None


def test_what_a_step_should_say_and_is_no_number_is_kept_as_text():
    pattern = step_pattern(r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d.]+)")
    (step,) = pattern.steps(Line(text="step 3 loss 2,99 tps 5.121,5"))
    assert step.values == {}
    assert step.unread == {Quantity.LOSS: "2,99", Quantity.TOKENS_PER_S_PER_GPU: "5.121,5"}
    (step,) = pattern.steps(Line(text="step 3 loss nan tps 5121.5"))
    assert math.isnan(step.values[Quantity.LOSS]) and step.unread == {}
