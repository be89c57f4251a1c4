"""A folder of recipes is read as one book."""

from __future__ import annotations

from madlite.backends.recipe_book import read_book

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
