"""A table in one test: `each_row` stands where parametrize would make an item of every row.

An item costs its collection in every worker and its set-up; a row costs its assertions.  All rows run, and those that
fail are named.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import ALL

_Test = Callable[..., None]
_LONGEST, _MOST = 100, 10  # characters of a row's values; rows whose failure is shown


def each_row(
    names: str | Sequence[str], rows: Iterable[Any], ids: Sequence[str] | None = None
) -> Callable[[_Test], _Test]:
    """Return what runs a test once with each row, as `pytest.mark.parametrize` but within one item.

    Rows that `tests.tiers` leaves to `make test-all` are left out elsewhere.  Of pytest's fixtures each row has a
    tmp_path and a monkeypatch of its own, and finds nothing in capsys and capfd; of other fixtures it has what their
    `for_row(number)` makes, where they have that, else they are shared.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cases = [*_cases(keys, [*rows], None if ids is None or callable(ids) else [*ids])]

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def all_rows(**fixtures: Any) -> None:
            _run(test, cases, fixtures)

        parameters = inspect.signature(test).parameters
        missing = [key for key in keys if key not in parameters]
        assert not missing, f"{test.__name__} takes no {missing}"
        all_rows.__signature__ = inspect.Signature([item for name, item in parameters.items() if name not in keys])  # type: ignore[attr-defined]
        return all_rows

    return decorate


def _cases(keys: Sequence[str], rows: Sequence[Any], ids: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    assert rows, "a table without a row tests nothing"
    for n, row in enumerate(rows):
        marks = {mark.name for mark in row.marks} if hasattr(row, "marks") else set()
        assert marks <= {"full"}, f"row {n} has marks of its own: {marks}"
        if marks and not ALL:
            continue
        values = tuple(row.values) if hasattr(row, "marks") else (row,) if len(keys) == 1 else tuple(row)
        assert len(values) == len(keys), f"row {n} has {len(values)} values for {len(keys)} names"
        label = ids[n] if ids is not None else ", ".join(map(repr, values))
        yield f"row {n}: {label[:_LONGEST]}", dict(zip(keys, values, strict=True))


def _run(test: _Test, cases: Sequence[tuple[str, dict[str, Any]]], fixtures: dict[str, Any]) -> None:
    failed: list[str] = []
    skipped: list[BaseException] = []
    for n, (label, values) in enumerate(cases):
        with ExitStack() as opened:
            try:
                test(**{name: _own(name, value, n, opened) for name, value in fixtures.items()}, **values)
            except pytest.skip.Exception as reason:
                skipped.append(reason)
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - the other rows run all the same
                failed.append(f"{label}\n{traceback.format_exc(limit=-4)}")
    if failed:
        pytest.fail(f"{len(failed)} of {len(cases)} rows fail\n" + "\n".join(failed[:_MOST]), pytrace=False)
    if len(skipped) == len(cases):
        raise skipped[0]


def _own(name: str, value: Any, n: int, opened: ExitStack) -> Any:
    """Return a row's own of what pytest gives each item its own of."""
    if name == "tmp_path":
        own: Path = value / f"row{n}"
        own.mkdir(exist_ok=True)  # a fixture's `for_row` may have made it
        return own
    if name == "monkeypatch":
        return opened.enter_context(value.context())
    if name in ("capsys", "capfd", "capsysbinary", "capfdbinary"):
        value.readouterr()
    return value.for_row(n) if hasattr(type(value), "for_row") else value
