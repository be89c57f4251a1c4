"""A secret as tools write it: URLs, JSON, HTML, YAML, Python, shells, base64, hexadecimal digits.

Quotes and backslashes of a longer secret need no spelling of their own: they are looked through (`search.py`).
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64, hexlify
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

SHORTEST = 4  # masking shorter text would eat ordinary words and digits out of a log
_LONG = 512  # characters: a key file or a table of credentials, which few tools write otherwise than JSON does
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")  # what nothing but base64 and digits writes otherwise
# what is kept as it is: Python's default, all of it, JavaScript's two functions, what RFC 3986 allows in a user
_SAFE_SETS = ("/", "", "!'()*", ";,/?:@&=+$!'()*#", "!$&'()*+,;=")
_OF_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# quotes as Python, Jinja and Go, XML and PHP write them, and left as they are
_QUOTES: tuple[dict[str, str], ...] = (
    {'"': "&quot;", "'": "&#x27;"},
    {'"': "&#34;", "'": "&#39;"},
    {'"': "&quot;", "'": "&#39;"},
    {'"': "&quot;", "'": "&apos;"},
    {'"': "&quot;", "'": "&#039;"},
    {'"': "&quot;"},
    {},
)
_OF_XML = {**_QUOTES[0], "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}  # its attributes have no line ends
_UNICODE = re.compile(r"\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|U[0-9a-f]{8})")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SHELL = re.compile(r"([^\w@%+=:./-])")  # what printf %q puts a backslash before
_CONTROLS = dict(zip("\a\b\x1b\f\n\r\t\v", "abEfnrtv", strict=True))  # in $'…' of a shell
_OF_YAML = dict(zip("\a\b\x1b\f\n\r\t\v\0\x85\xa0\u2028\u2029", "abefnrtv0N_LP", strict=True))


@lru_cache(maxsize=256)
def spellings(secret: str) -> frozenset[bytes]:
    """Return a secret as it stands, line by line, and as others write it; of SHORTEST bytes at least each."""
    found: set[bytes] = set()
    for text in as_it_stands(secret):
        found |= {encoded(text), *map(encoded, _written(text))}
    for data in {encoded(secret), encoded(secret.strip()), *_in_json(secret)}:
        found |= {hexlify(data), hexlify(data).upper(), *_in_base64(data)}
    return frozenset(one for one in found if len(one) >= SHORTEST)


def encoded(text: str) -> bytes:
    """Return the bytes behind a text of the environment; text that stands for none gives some all the same."""
    return text.encode("utf-8", errors_of(text))


def errors_of(text: str) -> str:
    """Return how the text becomes bytes and comes back: as the environment's does, if that is possible."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "surrogatepass"
    return "surrogateescape"


def as_it_stands(secret: str) -> set[str]:
    """Return the whole, its lines, and what becomes of bytes that are no UTF-8."""
    lines = [line for line in secret.splitlines() if len(line) >= 2 * SHORTEST]  # a key file, printed line by line
    whole = {secret, secret.strip(), *lines}
    if not secret.isascii():
        whole |= {encoded(secret).decode("utf-8", broken) for broken in ("replace", "backslashreplace")}
        whole.add(secret.encode("utf-8", "backslashreplace").decode())  # as our own screen and JSON show such bytes
    return whole


def _written(text: str) -> Iterator[str]:
    if _PLAIN.fullmatch(text):
        return
    as_json = [json.dumps(text, ensure_ascii=ascii_)[1:-1] for ascii_ in (True, False)]
    for written in dict.fromkeys((text, *as_json)):
        yield written
        data = encoded(written)
        if len(text) > _LONG:
            yield from (quote(data), quote(data, safe=""), quote_plus(data))
            continue
        for quoted in (*(quote(data, safe=kept) for kept in _SAFE_SETS), quote_plus(data), quote_plus(data, safe="/")):
            yield from _either_case(_PERCENT, quoted, str.lower)
        yield quote(quote(data, safe=""))
        yield from _in_html(written)
    if len(text) <= _LONG:
        yield from _in_programs(text, as_json)


def _in_programs(text: str, as_json: list[str]) -> Iterator[str]:
    """Yield a text between the quotes of JSON that is safe in HTML, of JSON in JSON, Python, YAML and shells."""
    for written in as_json:
        yield from _either_case(_UNICODE, written, str.upper)
        yield json.dumps(written)[1:-1]
        for unsafe in ("[&<>]", "[&<>']"):  # as Go and Jinja have it
            yield re.sub(unsafe, lambda found: f"\\u{ord(found[0]):04x}", written)
    yield from _either_case(_UNICODE, ascii(text)[1:-1], str.upper)
    if not text.isprintable():
        for spell in (ascii, repr):
            yield from _either_case(_UNICODE, _in_yaml(text, spell), str.upper)
    yield from (repr(text)[1:-1], repr(encoded(text))[2:-1], text.replace("'", "''"))
    yield from (text.replace("'", "'\\''"), text.replace("'", "'\"'\"'"), re.sub(r'(["\\$`])', r"\\\1", text))
    yield from (_SHELL.sub(r"\\\1", text), _dollar_quoted(text), _dollar_quoted(encoded(text).decode("latin-1"), 0x7F))


def _in_yaml(text: str, spell: Callable[[str], str]) -> str:
    return "".join(f"\\{_OF_YAML[char]}" if char in _OF_YAML else spell(char)[1:-1] for char in text)


def _dollar_quoted(text: str, last: int = 0x110000) -> str:
    """Return a text as bash puts it into $'…'; characters from `last` on are bytes that it knows no character for."""

    def written(char: str) -> str:
        if char in "'\\":
            return f"\\{char}"
        if char in _CONTROLS:
            return f"\\{_CONTROLS[char]}"
        return char if char.isprintable() and ord(char) < last else f"\\{ord(char) & 0xFF:03o}"

    return "".join(map(written, text))


def _in_html(text: str) -> Iterator[str]:
    for quotes in _QUOTES if text.isprintable() else (*_QUOTES, _OF_XML):
        table = str.maketrans(_OF_HTML | quotes)
        yield text.translate(table)
        if not text.isascii():
            yield text.translate(table).encode("ascii", "xmlcharrefreplace").decode()


def _either_case(what: re.Pattern[str], text: str, case: Callable[[str], str]) -> Iterator[str]:
    r"""Yield a text, and it with other digits: `%2F` and `%2f`, `\u00e9` and `\u00E9`."""
    yield text
    yield what.sub(lambda found: found[0][:2] + case(found[0][2:]) if found[0][0] == "\\" else case(found[0]), text)


def _in_json(secret: str) -> Iterator[bytes]:
    for ascii_ in (True, False):
        yield encoded(json.dumps(secret, ensure_ascii=ascii_)[1:-1])


def _in_base64(data: bytes) -> Iterator[bytes]:
    """Yield what all base64 has in common that holds the data at its first, second or third byte, in both alphabets.

    The first and the last digit may belong to a neighbour too, and are left out then.
    """
    for before in range(3):
        digits = b2a_base64(bytes(before) + data, newline=False)
        core = digits[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        yield core
        if b"+" in core or b"/" in core:
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
            yield from (encoded(one) for one in _either_case(_PERCENT, quote(core, safe=""), str.lower))


# A URL without the user and the password that may stand in it.

_AUTHORITY = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<userinfo>[^/?#]*)@")
_RAW = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<userinfo>[^/?#:@\[]*:(?!\d{1,5}/).*)@", re.DOTALL)


class Userinfo(NamedTuple):
    """A URL without user and password, and these as they are meant; `password` is None where the URL has none."""

    url: str
    user: str = ""
    password: str | None = None


def split_userinfo(url: str) -> Userinfo:
    """Return a URL and what it says of who asks; what is no URL (`git@host:path`) comes back as it is.

    A user of `ssh://` stays, for ssh has no other way to be told, and its password goes, for ssh takes none.
    """
    found = _AUTHORITY.match(url) or _RAW.match(url)
    if found is None:
        return Userinfo(url)
    user, colon, password = found["userinfo"].partition(":")
    rest, scheme = url[found.end() :], found["scheme"]
    if scheme.endswith("ssh"):
        return Userinfo(f"{scheme}://{user}@{rest}")
    return Userinfo(f"{scheme}://{rest}", unquote(user), unquote(password) if colon else None)
