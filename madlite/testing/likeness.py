"""Marks, odd values in their places, and whether nothing else differs between what holds the one and the other."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeAlias

_VALUE = "\x03"  # stands for a value among words for people
_NAMED = 2  # words that begin what is noted of a variable
Other: TypeAlias = "tuple[str, str] | None"
"""A key and what became of its value."""


def _as_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _as_template_json(text: str) -> str:
    """Return what Jinja's filter tojson makes of a text: safe for HTML too."""
    for character in "<>&'":
        text = text.replace(character, f"\0{ord(character):04x}")
    return _as_json(text).replace("\\u0000", "\\u")


def _in_double_quotes(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _as_bash(text: str) -> str:
    """Return what bash's printf %q makes of a text."""
    if "\n" in text:
        return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


_FORMS = (
    *(str, _as_json, lambda text: json.dumps(text, ensure_ascii=False)[1:-1], _as_template_json),
    *(_in_double_quotes, _as_bash),
)


def plain_mark(key: str) -> str:
    """Return a word for a key's place, of letters and digits alone."""
    return f"MARK{re.sub('[^A-Za-z0-9]', '', key)}KRAM"


def odd_value(key: str) -> str:
    """Return a value that, out of its quotes anywhere, calls a program that is not there or makes a file."""
    name = f"kit_canary_{key}"
    return (
        f"-x  'one two' \"three\" $({name}) `{name}` ; : > {name} & # \u00fc\u00f1\u4e2d \\ * ~ !! $HOME %s"
        f" {{{{ 7 }}}}\n{name} | {name}\n-y"
    )


def told_keys(text: str, keys: Sequence[str]) -> list[str]:
    """Return the keys whose odd value left its name in a text, or whose mark stands in it."""
    return [key for key in keys if f"kit_canary_{key}" in text or plain_mark(key) in text]


def without_common(
    plain: Sequence[tuple[str, ...]], odd: Sequence[tuple[str, ...]], keys: Sequence[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """Return the commands of each side that the other has not: those of a pipeline come in any order."""
    marked = [tuple(_marked(word, keys) for word in words) for words in odd]
    left = Counter(marked)
    before = []
    for words in plain:
        if left[words]:
            left[words] -= 1
        else:
            before.append(list(words))
    after = []
    for words, own in zip(marked, odd, strict=True):
        if left[words]:
            left[words] -= 1
            after.append(list(own))
    return before, after


def first_unsaid(plain: Sequence[tuple[str, ...]], odd: Sequence[tuple[str, ...]], keys: Sequence[str]) -> Other:
    """Return the first words for people, or of a variable, that hold a mark and have no like on the other side.

    A value may be in them as a word, as some where a setting is meant to be some, or joined again.
    """
    marked = [words for words in plain if told_keys(repr(words), keys)]
    kinds = {words[:_NAMED] if words[0] == "variable" else words[:1] for words in marked}
    others = [words for words in odd if words[:_NAMED] in kinds or words[:1] in kinds]
    said = {_as_said(words, keys) for words in others}
    for words in marked:
        if _as_said(words, keys) not in said:
            like = next((one for one in others if one[0] == words[0]), ("nothing",))
            return told_keys(repr(words), keys)[0], f"{' '.join(like)!r:.80} in place of {' '.join(words)!r:.80}"
    return None


def _as_said(words: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """Return words with marks for values; of words that are values or parts of them one for all that are in a row."""
    whole = {part for key in keys for some in _parts(key) for part in some} | set(map(plain_mark, keys))
    found: list[str] = []
    for word in words:
        told = reduce(_with_mark, keys, word)
        told = _VALUE if told in whole else told
        if told != _VALUE or found[-1:] != [_VALUE]:
            found.append(told)
    return tuple(found)


@cache
def _parts(key: str) -> tuple[tuple[str, ...], ...]:
    """Return what splitting makes of a key's odd value, as it is and as printf %q has it."""
    value = odd_value(key)
    parts = (tuple(_split(value)), tuple(value.split()))
    return (*parts, *(tuple(map(_as_bash, some)) for some in parts))


def _with_mark(word: str, key: str) -> str:
    if f"kit_canary_{key}" in word:
        for text in (*(form(odd_value(key)) for form in _FORMS), *map(" ".join, _parts(key))):
            word = word.replace(text, plain_mark(key))
    return word


def _marked(word: str, keys: Sequence[str]) -> str:
    for key in keys:
        if f"kit_canary_{key}" in word:
            word = word.replace(odd_value(key), plain_mark(key))
    return word


def first_other(plain: Any, odd: Any, keys: Sequence[str]) -> Other:
    """Return where two contents differ in more than marks and values, or None: tables, lists and texts."""
    if isinstance(plain, Mapping) and isinstance(odd, Mapping):
        if len(plain) != len(odd):
            return _told(keys, plain, f"there are {len(odd)} keys, not {len(plain)}")
        pairs = zip(plain.items(), odd.items(), strict=True)
        return _first(first_other(list(one), list(other), keys) for one, other in pairs)
    if isinstance(plain, list) and isinstance(odd, list):
        return _lists(plain, odd, keys)
    if isinstance(plain, str) and isinstance(odd, str):
        return None if _like(plain, odd, keys) else _told(keys, plain, f"{odd[:80]!r} in place of {plain[:80]!r}")
    return None if plain == odd else _told(keys, plain, f"{odd!r:.80} in place of {plain!r:.80}")


def _lists(plain: list[Any], odd: list[Any], keys: Sequence[str]) -> Other:
    """Compare in order; a mark alone may have become several words, where a setting is meant to be some."""
    at = 0
    for one in plain:
        taken = next((count for count in _lengths(one, odd[at:], keys)), 0)
        if not taken:
            other = odd[at] if at < len(odd) else "nothing"
            return first_other(one, other, keys) or _told(keys, one, f"{other!r:.80} in place of {one!r:.80}")
        at += taken
    return None if at == len(odd) else _told(keys, plain, f"{odd[at]!r:.80} more than {plain[-1:]!r:.80}")


def _lengths(one: Any, odd: list[Any], keys: Sequence[str]) -> Iterator[int]:
    """Yield how many of the following items stand for one."""
    if odd and first_other(one, odd[0], keys) is None:
        yield 1
    for key in keys:
        if one == plain_mark(key):
            yield from (len(words) for words in _parts(key) if odd[: len(words)] == list(words))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _like(plain: str, odd: str, keys: Sequence[str]) -> bool:
    """Say whether a text is the other with values in the places of marks, as they are or as JSON writes them."""
    if not any(plain_mark(key) in plain for key in keys) and plain == odd:
        return True
    for form in _FORMS:
        wanted = plain
        for key in keys:
            wanted = wanted.replace(plain_mark(key), form(odd_value(key)))
        if wanted.casefold() == odd.casefold():
            return True
    return False


def _told(keys: Sequence[str], plain: Any, what: str) -> tuple[str, str]:
    return (told_keys(repr(plain), keys) or told_keys(what, keys) or list(keys) or ["args"])[0], what


def _first(found: Iterator[Other]) -> Other:
    return next((one for one in found if one is not None), None)
