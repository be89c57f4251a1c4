"""Text of workloads, cards and processes that stays on its line and steers no terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with a blank for each character that is not shown, the ends of lines among them."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
