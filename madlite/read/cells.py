"""Cells of an export that a spreadsheet opens: none of them is a formula there.

Source: OWASP, "CSV Injection" (what begins with =, +, -, @, a tab or a carriage return is run).
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def harmless(text: str) -> str:
    """Return a cell that a spreadsheet shows and does not run: a quote before what would be a formula."""
    return f"'{text}" if text.startswith(_STARTS) and not _NUMBER.fullmatch(text) else text
