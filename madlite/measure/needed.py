"""What a text must hold for a regular expression to match in it: a plain search for that is quicker by far."""

from __future__ import annotations

import re
from functools import lru_cache

# The parts of Python's regular expressions (docs.python.org/3/library/re.html) as far as they matter here.
_PART = re.compile(
    r"(?P<anything>\\[dDsSwWbBAZ]|\[\^?\]?(?:\\.|[^\]\\])*\]|[.^$])"
    r"|(?P<many>[*?]|\{\d*,?\d*\})"
    r"|(?P<more>\+)"
    r"|(?P<bracket>[()])"
    r"|(?P<bar>\|)"
    r"|\\(?P<escaped>[^\w])"
    r"|(?P<plain>[^\\])",
    re.DOTALL | re.ASCII,
)
# characters beyond ASCII that a pattern without case takes for i, s or k
_TWINS = ("\u0130", "\u0131", "\u017f", "\u212a")


@lru_cache(maxsize=4096)
def needed_texts(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return texts of which every match holds at least one; none where the pattern does not show them.

    Looked at is what stands outside of groups, for each alternative its longest run of plain characters.  The texts of
    a pattern without case are ASCII: what they are to be looked for in is the business of `without_case`.
    """
    if pattern.flags & (re.VERBOSE | re.LOCALE) or "(?#" in pattern.pattern:
        return ()
    found: list[list[str]] = [[""]]
    depth = end = 0
    for part in _PART.finditer(pattern.pattern):
        if part.start() != end:  # an escape that stands for something else, \n or \x41
            return ()
        end, kind, runs = part.end(), part.lastgroup, found[-1]
        if kind == "bracket":
            depth += 1 if part[0] == "(" else -1
            runs.append("")
        elif depth == 0:
            _note(found, str(kind), part[str(kind)])
    longest = tuple(max(runs, key=len) for runs in found)
    if end < len(pattern.pattern) or not all(longest):
        return ()
    return longest if not ignores_case(pattern) or all(map(str.isascii, longest)) else ()


def ignores_case(pattern: re.Pattern[str]) -> bool:
    """Say whether a pattern takes capitals for small letters."""
    return bool(pattern.flags & re.IGNORECASE)


def without_case(text: str) -> bytes | None:
    """Return a text with ASCII's capitals as small letters; None where it has others that pass for those of ASCII."""
    if not text.isascii() and any(twin in text for twin in _TWINS):
        return None
    return text.encode("utf-8", "surrogatepass").lower()  # much quicker than lower() of a text that is not all ASCII


def _note(found: list[list[str]], kind: str, text: str) -> None:
    """Add a part to the last alternative's runs; the last of them is the one that goes on."""
    runs = found[-1]
    if kind in ("plain", "escaped"):
        runs[-1] += text
    elif kind == "bar":
        found.append([""])
    else:
        if kind == "many":  # the character before may be missing
            runs[-1] = runs[-1][:-1]
        runs.append("")
