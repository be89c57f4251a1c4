"""Text as numbers, as fields of CSV, as JSON, and for a terminal."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from madlite.model import Json

# CSV as programs write it, with fields longer than the csv module reads by itself.


@contextmanager
def unlimited_fields() -> Iterator[None]:
    """Let csv read fields of any size: its limit of 131072 characters must cost a user neither a row nor a result."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


# Which text is a number: one rule for `performance:` lines, results files, and the steps of a log.
#
# A comma separates groups of three digits and is nothing else: `2,872.5` is a number.  A decimal comma (`12,5`),
# foreign grouping (`5.121,5`, `1.234.567`, `12,34,567`, `1 004.8`) and a group that begins with 0 (`0,512`) make
# none: read as if they were English they would be another number, in silence.

GROUPS = r"[1-9]\d{0,2}(?:,\d{3})+"
"""Digits in groups of three."""
NUMERAL = rf"[-+]?(?:{GROUPS}(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
"""A number, as a regular expression."""
_SIGNS = ".,'\u2019_\u00b7\u066b\u066c"  # that separate decimals or groups, here or elsewhere
_SPACES = " \u00a0\u2009\u202f"  # which groups of three digits alone have between them
ANY_NUMERAL = rf"[-+]?(?:\d+|\.\d+)(?:[{_SIGNS}]\d+|[{_SPACES}]\d{{3}}(?!\d))*\.?(?:[eE][-+]?\d+)?"
"""A number of whatever language, as a regular expression; versions and dates look alike."""
_NUMERAL = re.compile(NUMERAL, re.ASCII)
_ANY = re.compile(ANY_NUMERAL)
_DOTTED = re.compile(r"[-+]?\d+(?:\.\d+){2,}", re.ASCII)  # groups, or a version, a date
_DOTTED_GROUPS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3}){2,}", re.ASCII)
_ONE_GROUP = re.compile(r"[-+]?\d{1,3},\d{3}", re.ASCII)
_GROUPED = re.compile(rf"\s*[-+]?{GROUPS}(?:\.\d*)?(?:[eE][-+]?\d+)?\s*", re.ASCII)
_ELSEWHERE = re.compile(r"\s*[-+]?\d{1,3}\.\d{3}\s*", re.ASCII)  # 1234 where a comma begins the decimals
# of a number that a pattern took the beginning of
_REST = re.compile(rf"(?:[{_SIGNS}]?\d|[.,])*(?:[eE][-+]?\d+)?", re.ASCII)
_CUT = re.compile(rf"[{_SIGNS}]?\d|(?<=[\d.])[eE][-+]?\d", re.ASCII)
_BLANK_GROUPS = re.compile(rf"(?:[{_SPACES}]\d{{3}}(?!\d))+(?:[.,]\d+)?", re.ASCII)
_FIRST_GROUP = re.compile(r"[-+]?[1-9]\d{0,2}", re.ASCII)
_STEP = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_REST_OF_STEP = re.compile(r"(?:,\d{3})+(?!\d|[.,]\d)|(?:['\u2019_\u00a0\u2009\u202f]\d{3})+(?!\d)", re.ASCII)
_DOT_GROUPS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+", re.ASCII)
_HEAD = re.compile(rf"(?<![\w{_SIGNS}])\d[\d{_SIGNS}{_SPACES[1:]}]*[{_SIGNS}{_SPACES[1:]}]$", re.ASCII)
_WITH_HEAD = re.compile(
    rf"{GROUPS}(?:\.\d*)?|\d{{1,3}}(?:\.\d{{3}})*,\d+|\d+\.\d+|\d{{1,3}}(?:['\u2019_{_SPACES[1:]}]\d{{3}})+(?:[.,]\d*)?",
    re.ASCII,
)
_LONGEST = 40  # characters of a number
_ELSE = "\ue000"  # a character that is none of a number, a word or a space: no pattern names it
_COUNT = re.compile(rf"\d+|{GROUPS}|[1-9]\d{{0,2}}(?:_\d{{3}})+", re.ASCII)
_MOST_DIGITS = 18  # of a count


def without_groups(text: str) -> str:
    """Return a number's text without thousands separators; any other text as it is, which with a comma is no number."""
    return text.replace(",", "") if "," in text and _GROUPED.fullmatch(text) else text


def has_decimal_comma(text: str) -> bool:
    """Return whether digits have commas that separate no groups of three: a number in another locale's format."""
    return "," in text and not _GROUPED.fullmatch(text) and not set(text.strip()) - set("+-0123456789.,")


def is_foreign(text: str, *, groups: bool = True) -> bool:
    """Return whether a text is a number in another locale's format alone: `12,5`, `1.234.567`, `1'004.8`.

    Of a program that prints no `groups` so is `34,570`.  Versions and dates (`2.5.1`) are none in any language.
    """
    if _NUMERAL.fullmatch(text):
        return not groups and _ONE_GROUP.fullmatch(text) is not None
    return _ANY.fullmatch(text) is not None and (
        _DOTTED.fullmatch(text) is None or _DOTTED_GROUPS.fullmatch(text) is not None
    )


def foreign_number_at(text: str, begin: int) -> str:
    """Return the number of another language that a text has at a place, "" where there is none."""
    found = _ANY.match(text, begin)
    return found[0] if found and is_foreign(found[0]) else ""


def may_be_foreign(text: str) -> bool:
    """Return whether a text is another number with a decimal comma, as `1,234` and `1.234` are."""
    return "," in text or _ELSEWHERE.fullmatch(text) is not None


def whole_number(text: str) -> int | None:
    """Read a count, as of steps or ranks: digits, in groups of three or not (`1,200`, `1_200`); None of other text.

    More than 18 digits make none.
    """
    plain = text.strip()
    if _COUNT.fullmatch(plain) is None:
        return None
    digits = plain.replace(",", "").replace("_", "")
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def group_texts(found: re.Match[str]) -> dict[str, str]:
    r"""Return the text of each named group that a pattern found, a number as it stands in the line.

    A pattern that takes the beginning of a number alone, as `[\d.]+` does of `5.121,5` and of `512,001.0`, has taken
    another number: the whole one is returned in its place.  Where the pattern itself says what stands behind the group,
    as `[\d.]+,\d+ms` does, it knows where the number ends.  A step (`n`) has thousands separators and nothing else.
    One that takes the end alone, as `([\d.]+) tok/s` does of `5,121.5 tok/s`, has taken another number as well; at the
    begin of a line that stands for two columns of a table.
    """
    starts = [found.start(name) for name in found.re.groupindex]
    texts = {name: text for name, text in found.groupdict().items() if text is not None}
    return {name: _head(found, name) + text + _rest(found, name, starts) for name, text in texts.items()}


def _head(found: re.Match[str], name: str) -> str:
    """Return what a group lacks of the number that it ends, "" where the pattern or another group has it."""
    line, begin = found.string, found.start(name)
    head = _HEAD.search(line[max(0, begin - _LONGEST) : begin])
    if head is None or _WITH_HEAD.fullmatch(head[0] + found[name]) is None or not line[: begin - len(head[0])].strip():
        return ""
    first = begin - len(head[0])
    others = (found.span(other) for other in found.re.groupindex if other != name)
    if any(start < begin and first < end for start, end in others) or _names(found, name, begin - 1):
        return ""
    return head[0]


def _rest(found: re.Match[str], name: str, starts: list[int]) -> str:
    """Return what a group lacks of the number that it begins."""
    line, (begin, end) = found.string, found.span(name)
    rest = _rest_of_step(found[name], line, end) if name == "n" else _rest_of_number(found[name], line, end)
    listed = begin > 0 and line[begin - 1] in ",;"  # values of a table, with commas between them
    if not rest or listed or any(end <= start <= end + len(rest) for start in starts) or _is_named(found, name):
        return ""
    return _of_one_number(found[name], rest) if found.end() > end else rest


def _rest_of_step(text: str, line: str, end: int) -> str:
    rest = _REST_OF_STEP.match(line, end) if _STEP.fullmatch(text) else None
    return rest[0] if rest else ""


def _rest_of_number(text: str, line: str, end: int) -> str:
    if _FIRST_GROUP.fullmatch(text) and (groups := _BLANK_GROUPS.match(line, end)):
        return groups[0]
    rest = _REST.match(line, end) if text[-1:].isdigit() and _CUT.match(line, end) else None
    return rest[0].rstrip(".,") if rest else ""


def _of_one_number(text: str, rest: str) -> str:
    """Return a rest up to a comma behind decimals: `5121.5,12` are two numbers, `5.121,5` may be one."""
    before, comma, _ = rest.partition(",")
    has_decimals = "." in text + before and _DOT_GROUPS.fullmatch(text + before) is None
    return before if comma and has_decimals else rest


def _is_named(found: re.Match[str], name: str) -> bool:
    """Return whether a pattern depends on the character behind a group: with another one it matches differently.

    One that only passes over it, as `.*` does, knows nothing of it.
    """
    end = found.end(name)
    return _names(found, name, end, within=found.end() > end)


def _names(found: re.Match[str], name: str, at: int, *, within: bool = True) -> bool:
    """Return whether a pattern matches differently with another character at an index."""
    line = found.string
    again = found.re.match(f"{line[:at]}{_ELSE}{line[at + 1 :]}", found.start(), found.endpos)
    if again is None:
        return True
    return within and (again.end(), again.span(name)) != (found.end(), found.span(name))


# Cells of an export that a spreadsheet opens: none of them is a formula there.
#
# Source: OWASP, "CSV Injection" (what begins with =, +, -, @, also of full width, a tab or a line's end is run), and
# its verification standard (1.2.10 adds the zero byte).  Blanks and what is not shown do not count as a beginning.

_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_STARTS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
_LINES = ("\t", "\r", "\n", "\0")


def escape_formula(text: str) -> str:
    """Return a cell that a spreadsheet shows and does not run: a quote before what would be a formula."""
    first = next((char for char in text if char.isprintable() and char != " "), "")
    runs = text.startswith(_LINES) or first in _STARTS
    return f"'{text}" if runs and not _PLAIN_NUMBER.fullmatch(text.strip()) else text


# Text of workloads, cards and processes for one line of a terminal.


def scalar_text(value: object) -> str:
    """Return a value as text, booleans as `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def align(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return the lines of a table: columns as wide as their longest cell, two blanks between them.

    Cells of the columns `right`, counted from 0, stand at the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    put = [str.rjust if at in right else str.ljust for at in range(len(widths))]
    return ["  ".join(to(cell, wide) for to, cell, wide in zip(put, row, widths, strict=True)).rstrip() for row in rows]


def first_of(texts: Sequence[str], most: int, between: str = ", ", more: str = " and {} more") -> str:
    """Return the first few texts, and how many more there are."""
    left = len(texts) - most
    return between.join(texts[:most]) + (more.format(left) if left > 0 else "")


def shortened(text: str, most: int) -> str:
    """Return at most so many characters of a text, an ellipsis the last of a longer one."""
    return text if len(text) <= most else text[: most - 1] + "…"


def shortened_middle(text: str, most: int) -> str:
    """Return at most so many characters of a text, an ellipsis in place of the middle of a longer one."""
    if len(text) <= most:
        return text
    end = 3 * most // 10
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def printable(text: str) -> str:
    """Return the text with a blank for each character that is not shown, the ends of lines among them."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


# Numbers as screens, pages and messages have them.


def figure(value: float | None, unknown: str = "–") -> str:
    """Return a number with four significant digits, five where it is 10,000 or more: `9,210`, `542.9`, `0.0123`."""
    if value is None or not math.isfinite(value):
        return unknown
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-4:
        return f"{value:.3e}"
    if size >= 999.95:
        return f"{value:,.0f}"
    return f"{value + 0.0:.4g}"


def percent(part: float | None, unknown: str = "–") -> str:
    """Return a part of 1 in percent: `0.42 %`, `98.4 %`."""
    if part is None or not math.isfinite(part):
        return unknown
    return f"{100 * part:,.{_decimals(part)}f} %"


def _decimals(part: float) -> int:
    return 2 if abs(part) < 0.09995 else 1


def change(part: float | None, unknown: str = "–") -> str:
    """Return a change in percent with its sign: `+1.31 %`, `-25.0 %`."""
    if part is None or not math.isfinite(part):
        return unknown
    return f"{100 * part:+,.{_decimals(part)}f} %"


def counted(n: int, part: str, many: str = "") -> str:
    """Return a count with its noun: `1 result`, `2,113 results`."""
    return f"{n:,} {part if n == 1 else many or part + 's'}"


def size_text(size: int) -> str:
    """Return bytes as people say them, with the same units as `du -h`, three figures and no more."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """Return a duration in readable units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def status_text(status: str, suspect: Sequence[str], cause: str = "") -> str:
    """Return a status, marked where the number is suspect, and the cause of a failure."""
    marked = f"{status} (suspect)" if suspect else status
    return f"{marked} [{cause}]" if cause else marked


# JSON whose numbers stay as they are spelled: text in, text out, as files beside perf.csv have it.

_ESCAPED = re.compile(r"\\u(?:[dD]|0000)")  # what may stand for no text
_ESCAPED_BYTES = re.compile(_ESCAPED.pattern.encode())
_LINE_ENDS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")  # JSON lets them stand


def readable(text: str) -> str:
    r"""Return text that every reader of a file can read: what is no text is escaped, as `\udc80` or `\x00`.

    One bad byte keeps pandas from reading the whole file, and one NUL the csv module of Python 3.10.
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def read_json(data: bytes) -> Json:
    """Return JSON with every number as it is spelled; NaN and infinities, which madengine writes, are null.

    Texts are readable, on as many lines as they have: half of a surrogate pair, which Python's own writer escapes, is
    invalid to other readers.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    text = data.decode("utf-8-sig")
    value = json.loads(text, parse_float=_raw, parse_int=_raw, parse_constant=lambda name: None)
    return readable_json(value) if _ESCAPED.search(text) else value


def spelled_objects(data: bytes) -> list[msgspec.Raw] | None:
    """Return the objects of a JSON list as they are spelled; None where `read_json` has to look, or of another thing.

    It needs a tenth of the memory, and of the time.
    """
    try:
        found = msgspec.json.decode(data, type=list[msgspec.Raw])
        are_objects = all(isinstance(msgspec.json.decode(item), dict) for item in found)  # decoded one by one
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if are_objects and not _ESCAPED_BYTES.search(data) else None


def readable_json(value: Json) -> Json:
    """Return a value with readable texts; of YAML also names that are none, such as `on:`, are text then."""
    if isinstance(value, dict):
        return {readable(str(name)): readable_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [readable_json(item) for item in value]
    return readable(value) if isinstance(value, str) else value


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def on_one_line(value: Json) -> bytes:
    """Return a value as JSON on one line, as madengine writes it."""
    return _escape_line_ends(msgspec.json.format(msgspec.json.encode(value), indent=0))


def as_cell(value: Json) -> str:
    """Return a value as the text of a CSV cell: null is blank, lists and objects are JSON on one line."""
    if value is None:
        return ""
    return value if isinstance(value, str) else on_one_line(value).decode()


def indented(value: Json) -> bytes:
    """Return a value as JSON over many lines, as madengine writes it."""
    return _escape_line_ends(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _escape_line_ends(data: bytes) -> bytes:
    """Return JSON of the same value in which nothing inside of a text ends a line to any program."""
    if data.isascii():
        return data
    for raw, spelled in _LINE_ENDS:
        data = data.replace(raw, spelled)
    return data
