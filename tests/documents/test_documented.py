"""docs/differences.md has every named difference from AMD's documents, whose they are, and why; and no others."""

from __future__ import annotations

from pathlib import Path

from tests.documents.table import Difference, documents, shared

PAGE = Path(__file__).parents[2] / "docs/differences.md"


def users(one: Difference) -> str:
    """Return the documents that name a difference."""
    names = [row.document for row in documents() if one.name in _names(row)]
    return ", ".join(names) if len(names) < len(documents()) else "all"


def _names(document) -> set[str]:
    named = [(*command.differences, *sum(command.on.values(), ())) for command in document.command]
    return {*document.always, *sum(named, ())}


def test_the_page_s_table_is_the_tests_own():
    part = PAGE.read_text().partition("## From the commands of AMD's documents")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][1:]
    every = (*shared(), *(one for document in documents() for one in document.difference))
    told = [
        f"| {one.name} | {users(one)} | {', '.join(f'`{what}`' for what in one.what)} | {one.why} |" for one in every
    ]
    assert rows == told
