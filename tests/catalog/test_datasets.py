"""data.json and the context's `data`, field by field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.catalog.datasets import Provider, read_data_sets
from madlite.errors import UsageProblem
from tests.rows import each_row


def read(folder: Path, table: object, overrides: dict[str, object] | None = None, mirror: str = ""):
    file = folder / "data.json"
    file.write_text(table if isinstance(table, str) else json.dumps(table))
    return read_data_sets(file, overrides or {}, "--additional-context", mirror)


def test_sets_have_every_field_and_their_providers_in_order(tmp_path: Path) -> None:
    # providers come in the order they are asked in
    shuffled = {name: {"path": name} for name in ("aws", "local", "nas", "custom", "minio")}
    assert list(read(tmp_path, {"set": shuffled})["set"]) == ["custom", "local", "minio", "nas", "aws"]
    fields = {"path": "p", "home": "/h", "mirrorlocal": "m", "readwrite": True, "args": "-x", "more": 1}
    assert read(tmp_path, {"set": {"custom": fields}})["set"]["custom"] == Provider(
        path="p", home="/h", mirrorlocal="m", readwrite=True, args="-x"
    )
    # a forced mirror is for all but local
    sets = read(tmp_path, {"a": {"local": {"path": "1"}, "minio": {"path": "2"}}}, mirror="/cache")
    assert (sets["a"]["local"].mirrorlocal, sets["a"]["minio"].mirrorlocal) == ("", "/cache")


def test_the_context_replaces_a_set_and_adds_one(tmp_path: Path) -> None:
    sets = read(tmp_path, {"a": {"aws": {"path": "1"}}}, {"a": {"local": {"path": "2"}}, "b": {"local": {"path": "3"}}})
    assert sets == {"a": {"local": Provider(path="2")}, "b": {"local": Provider(path="3")}}
    # without a file and overrides there are none
    assert read_data_sets(tmp_path / "none.json", {}, "context") is None


@each_row(
    ("table", "words"),
    [
        ("{", "data.json: line 1, column 2 is not JSON"),
        ('{"a":' * 5000, "nested too deep"),
        ('{"set": {"local": {"path": "x\\u0000"}}}', "$.set.local.path holds a NUL"),
        ([], "must be an object of data sets, found a list"),
        ({"set": 3}, "data set 'set': expected `object`, got `int`"),
        ({"set": {"ftp": {"path": "x"}}}, "unknown field `ftp`"),
        ({"set": {"local": {}}}, "`path`"),
        ({"set": {"local": {"path": 7}}}, "path"),
        ({"set": {"local": "x"}}, "key 'local' is wrong"),
        ({"set": {"local": {"path": "x", "mirrorlocal": "/m"}}}, "takes no mirrorlocal"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, table: object, words: str) -> None:
    with pytest.raises(UsageProblem) as raised:
        read(tmp_path, table)
    assert words in raised.value.message


def test_a_name_that_the_system_refuses_and_bytes_that_are_no_utf8_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="too long"):
        read_data_sets(tmp_path / ("x" * 300), {}, "context")
    (tmp_path / "data.json").write_bytes(b'{"\xff": {}}')
    with pytest.raises(UsageProblem, match="is not UTF-8"):
        read_data_sets(tmp_path / "data.json", {}, "context")


def test_sets_of_the_context_need_no_file(tmp_path: Path) -> None:
    found = read_data_sets(tmp_path / "none.json", {"wiki": {"local": {"path": "/w"}}}, "context", "")
    assert found is not None and found["wiki"]["local"].path == "/w"
