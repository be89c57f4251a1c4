"""A folder of recipes is read as one book."""

from __future__ import annotations

import pytest

from madlite import Knob, PluginError
from madlite.backends.recipe_book import read_book
from tests.rows import each_row

FIRST = """
[defaults]
model = "m"
steps = 1
[env.all]
A = "1"
[recipe.r]
steps = 2
model = "one"
[release.v1]
image = "x:1"
steps = 5
[[run]]
card = "a"
recipe = "r"
"""
SECOND = """
[defaults]
steps = 3
[env.all]
B = "2"
[recipe.r]
steps = 4
[release.v1]
image = "x:2"
[[run]]
card = "b"
recipe = "r"
"""


def test_tables_of_one_name_are_merged_and_recipes_replaced(tmp_path):
    (tmp_path / "a.toml").write_text(FIRST)
    (tmp_path / "b.toml").write_text(SECOND)
    book = read_book(tmp_path)
    assert book.defaults == {"model": "m", "steps": 3} and book.env == {"all": {"A": "1", "B": "2"}}
    assert book.releases == {"v1": {"image": "x:2", "steps": 5}}
    assert book.recipes["r"].values == {"steps": 4}
    assert [run.cards for run in book.runs] == [("a",), ("b",)]


KNOBS = """
[defaults]
recompute = false
tp = 1
[recipe.r]
tp = 2
[tune.micro_batch]
[tune.recompute]
values = [false, true]
memory = [1.0, 0.3]
requires = { tp = [1, 2] }
"""


def test_what_may_be_tuned_is_data_of_a_book(tmp_path):
    (tmp_path / "a.toml").write_text(KNOBS)
    batch, recompute = read_book(tmp_path / "a.toml").knobs
    assert batch == Knob(key="micro_batch")
    assert recompute == Knob(key="recompute", values=(False, True), memory=(1.0, 0.3), requires={"tp": (1, 2)})


@each_row(
    ("text", "said"),
    [
        ("[tune.global_batch]\nvalues = [8]", "knob 'global_batch' decides what is trained"),
        ("[tune.precision]\nvalues = ['FP8']", "knob 'precision' decides what is trained"),
        ("[tune.tp]", "knob 'tp' needs values"),
        ("[tune.tp]\nvalues = [1]\nparts = [0.5]", "knob 'tp' needs values, or parts of the layers"),
        ("[tune.tp]\nparts = [0.5, 2]", "knob 'tp': parts of the layers are from 0 to 1"),
        ("[tune.tp]\nvalues = [1, 2]\nspeed = [1.0]", "speed needs a number above 0 for each value"),
        ("[tune.tp]\nvalues = [1, 2]\nstart_s = [30]", "start_s needs seconds for each of the values"),
        ("[tune.tp]\nvalues = [1]\nacts_on = ['matmul']", "knob 'tp' acts on matmul: a step has GEMM, attention"),
        ("[tune.tp]\nvalues = [1]\nfaster = true", "unknown field `faster`"),
    ],
)
def test_a_wrong_knob_is_told_with_its_book(tmp_path, text, said):
    (tmp_path / "a.toml").write_text(KNOBS + text + "\n")
    with pytest.raises(PluginError) as raised:
        read_book(tmp_path / "a.toml")
    assert said in str(raised.value) and "a.toml" in str(raised.value)
