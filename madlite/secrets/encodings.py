"""A secret as tools write it: URLs, JSON, shells, base64."""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

SHORTEST = 4  # masking shorter text would eat ordinary words and digits out of a log
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")  # what nothing but base64 writes otherwise
# what is kept as it is: Python's default, all of it, JavaScript's two functions, what RFC 3986 allows in a user
_SAFE_SETS = ("/", "", "!'()*", ";,/?:@&=+$!'()*#", "!$&'()*+,;=")
_UNICODE = re.compile(r"\\u[0-9a-f]{4}")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SHELL = re.compile(r"(^[~#]|[\s'\"\\|&;()<>!{}*\[?\]^$`,])")  # what printf %q puts a backslash before
_CONTROLS = dict(zip("\a\b\x1b\f\n\r\t\v", "abEfnrtv", strict=True))  # in $'…' of a shell


@lru_cache(maxsize=256)
def spellings(secret: str) -> frozenset[bytes]:
    """Return a secret as it stands, line by line, and as others write it; of SHORTEST bytes at least each."""
    found = {encoded(name) for text in as_it_stands(secret) for name in (text, *_written(text))}
    found |= {digits for text in (secret, secret.strip()) for digits in _in_base64(encoded(text))}
    return frozenset(spelling for spelling in found if len(spelling) >= SHORTEST)


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
    for quoted in (*(quote(encoded(text), safe=kept) for kept in _SAFE_SETS), quote_plus(encoded(text))):
        yield from _either_case(_PERCENT, quoted, str.lower)
    for ascii_ in (True, False):
        written = json.dumps(text, ensure_ascii=ascii_)[1:-1]
        yield from _either_case(_UNICODE, written, str.upper)
        for unsafe in ("[&<>]", "[&<>']"):  # as Go and Jinja have it
            yield re.sub(unsafe, lambda found: f"\\u{ord(found[0]):04x}", written)
    yield from (text.replace("'", "'\\''"), text.replace("'", "'\"'\"'"), re.sub(r'(["\\$`])', r"\\\1", text))
    yield from (_SHELL.sub(r"\\\1", text), _dollar_quoted(text), _dollar_quoted(encoded(text).decode("latin-1"), 0x7F))


def _dollar_quoted(text: str, last: int = 0x110000) -> str:
    """Return a text as bash puts it into $'…'; characters from `last` on are bytes that it knows no character for."""

    def written(char: str) -> str:
        if char in "'\\":
            return f"\\{char}"
        if char in _CONTROLS:
            return f"\\{_CONTROLS[char]}"
        return char if char.isprintable() and ord(char) < last else f"\\{ord(char) & 0xFF:03o}"

    return "".join(map(written, text))


def _either_case(what: re.Pattern[str], text: str, case: Callable[[str], str]) -> Iterator[str]:
    r"""Yield a text, and it with other digits: `%2F` and `%2f`, `\u00e9` and `\u00E9`."""
    yield text
    yield what.sub(lambda found: found[0][:2] + case(found[0][2:]) if found[0][0] == "\\" else case(found[0]), text)


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
