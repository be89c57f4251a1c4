"""How much is kept of what a workload, a card or a results file says: all of these limits, and what they do to a text.

docs/perf-csv.md tells of them.  None of them is near to what a benchmark prints.
"""

from __future__ import annotations

CELL_BYTES = 4096  # of UTF-8, of a cell and of a sentence
LINE_BYTES = 1024  # of a log's line that is kept as evidence
NAME_CHARACTERS = 200  # of a column, a label, a metric
MOST_DIGITS = 400  # of a number; a float holds 17, and the longest that is finite has 309
MOST_RESULTS = 10_000  # a row of perf.csv each
MOST_COLUMNS = 1000  # of a results file: as many as the header of perf.csv can have
MOST_CELLS_READ, MOST_CELLS_KEPT = 4_000_000, 250_000  # of a results file
CUT = "…"  # what a text that was cut ends with


def shortened(text: str, most_bytes: int = CELL_BYTES) -> str:
    """Return a text of so many bytes of UTF-8 at most; one that was cut ends with `CUT`."""
    if not is_long(text, most_bytes):
        return text
    data = text.encode("utf-8", "surrogatepass")
    room = most_bytes - len(CUT.encode())
    while room and data[room] & 0xC0 == 0x80:  # in the middle of a character
        room -= 1
    return data[:room].decode("utf-8", "surrogatepass") + CUT


def is_long(text: str, most_bytes: int = CELL_BYTES) -> bool:
    """Say whether a text has more bytes of UTF-8 than that."""
    return 4 * len(text) > most_bytes and len(text.encode("utf-8", "surrogatepass")) > most_bytes


def short_name(text: str) -> str:
    """Return a name of `NAME_CHARACTERS` at most; one that was cut ends with `CUT`."""
    return text if len(text) <= NAME_CHARACTERS else text[: NAME_CHARACTERS - len(CUT)] + CUT


def is_too_long(number: str) -> bool:
    """Say whether a number has more digits than are taken: programs trip over such a one, each in its own way."""
    return len(number) > MOST_DIGITS and sum(map(str.isdigit, number)) > MOST_DIGITS


TOO_LONG = f"a number of more than {MOST_DIGITS} digits is none"


def several(words: list[str], most: int = 5) -> str:
    """Return the first few of many words, each short, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(shortened(word, 60) for word in words[:most]) + more
