"""Cells of an export that a spreadsheet opens: none of them is a formula there.

Source: OWASP, "CSV Injection" (what begins with =, +, -, @, also of full width, a tab or a line's end is run), and its
verification standard (1.2.10 adds the zero byte).  Blanks and what is not shown do not count as a beginning.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_STARTS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
_LINES = ("\t", "\r", "\n", "\0")


def harmless(text: str) -> str:
    """Return a cell that a spreadsheet shows and does not run: a quote before what would be a formula."""
    first = next((char for char in text if char.isprintable() and char != " "), "")
    runs = text.startswith(_LINES) or first in _STARTS
    return f"'{text}" if runs and not _NUMBER.fullmatch(text.strip()) else text
