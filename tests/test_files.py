"""What a path names, and the JSON in it, told in sentences."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from madlite.errors import UsageProblem
from madlite.files import NotJson, decode_json, exists, is_file, is_folder, read_json, read_text, texts, wrong_key


def test_a_path_names_a_file_a_folder_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    paths = (tmp_path, tmp_path / "f", tmp_path / "nothing", tmp_path / "f/below", tmp_path / "dangling")
    assert [(is_file(path), is_folder(path), exists(path)) for path in paths] == [
        (False, True, True),
        (True, False, True),
        *[(False, False, False)] * 3,
    ]


@pytest.mark.parametrize(("name", "why"), [("x" * 300, "too long"), ("a\0b", "null"), ("loop/x", "symbolic links")])
@pytest.mark.parametrize("ask", [is_file, is_folder, exists, read_text, read_json])
def test_a_path_the_system_refuses_is_one_sentence(tmp_path: Path, name: str, why: str, ask) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageProblem, match=why) as refused:
        ask(tmp_path / name)
    assert refused.value.message.isprintable() and len(refused.value.message) < 300


def test_a_shut_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(self: Path, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", shut)
    with pytest.raises(UsageProblem, match="cannot be inspected: Permission denied"):
        is_file(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf[1]")
    assert (read_text(tmp_path / "f"), read_json(tmp_path / "f")) == ("[1]", [1])


def test_bytes_that_are_no_utf8_are_refused_unless_they_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\xff")
    with pytest.raises(UsageProblem, match="here: line 2, column 2 is not UTF-8"):
        read_text(tmp_path / "f", "here")
    assert read_text(tmp_path / "f", errors="replace") == "a\nb\ufffd"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "line 1, column 2 is not JSON"),
        (b'["hush", \n]', "line 2, column 1 is not JSON"),
        (b'"\xff"', "line 1, column 2 is not UTF-8"),
        (b"[" * 5000, "nested too deep"),
        (b"[" * 5000 + b"]" * 5000, "nested too deep"),
        (b'"\\ud800"', "is not JSON"),
    ],
)
def test_what_is_no_json_is_told_with_the_place_and_without_its_text(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(NotJson, match=said):
        decode_json(data)
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(UsageProblem, match=f"the file: .*{said}") as refused:
        read_json(tmp_path / "f", "the file")
    assert "hush" not in refused.value.message


def test_a_text_that_nothing_can_be_given_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(r'{"a": [{"b": "hush\u0000"}]}')
    with pytest.raises(UsageProblem, match=r"\$\.a\[0\]\.b holds a NUL") as refused:
        read_json(tmp_path / "f")
    assert "hush" not in refused.value.message


def test_every_text_has_its_place() -> None:
    assert set(texts({"a": ["x", {"b": "y"}], "c": 1}, "$")) == {
        ("$ key", "a"),
        ("$ key", "c"),
        ("$.a[0]", "x"),
        ("$.a[1] key", "b"),
        ("$.a[1].b", "y"),
    }


class Shape(msgspec.Struct):
    table: dict[str, int] = {}
    rows: list[int] = []


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        ({"table": 3}, "table", "key 'table' is wrong: expected `object`, got `int`"),
        ({"table": {"x": "y"}}, "table[...]", "key 'table[...]' is wrong: expected `int`, got `str`"),
        ({"table": {1: 2}}, "table", "key 'table' is wrong: expected `str`, got `int`"),
        ({"rows": ["x"]}, "rows[0]", "key 'rows[0]' is wrong: expected `int`, got `str`"),
        (3, "", "expected `object`, got `int`"),
    ],
)
def test_a_wrong_type_is_told_with_its_key(value: object, key: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.convert(value, Shape)
    assert wrong_key(wrong.value) == (key, said)


@pytest.mark.parametrize("name", ["plan.josn", "no/plan.json"])
def test_a_given_file_that_is_not_there_is_told_with_where_to_look(name, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UsageProblem, match="cannot be read: No such file") as refused:
        read_json(tmp_path / name, given=True)
    near = "did you mean plan.json?   " if "/" not in name else ""
    assert refused.value.hint == f"{near}ls {tmp_path}"
