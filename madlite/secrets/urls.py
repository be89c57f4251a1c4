"""A URL without the user and the password that may stand in it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

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
