"""Files of the user: what a path names, and the JSON in it, each asked and worded in one place."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from madlite.errors import CatalogError, UsageProblem, did_you_mean, one_hint
from madlite.model import WRONG_NAMES, Json
from madlite.safe_read import read_given, read_named

BOM = b"\xef\xbb\xbf"
UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, which no path, variable or command can hold, and half of a surrogate pair, which UTF-8 cannot."""
_PLACE = re.compile(r"(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<key>.*)`", re.DOTALL)


class NotJson(ValueError):
    """Bytes that are no JSON text; its text says where and why and shows none of them."""


def is_file(path: Path) -> bool:
    """Say whether a path names a plain file.

    Raises:
        UsageProblem: the system does not say (a name too long, a folder that is shut, links in a circle).
    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Say whether a path names a folder.

    Raises:
        UsageProblem: as `is_file`.
    """
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Say whether a path names anything; a link that leads nowhere does not.

    Raises:
        UsageProblem: as `is_file`.
    """
    return bool(_mode(path))


def read_text(file: Path, where: str = "", errors: str = "strict", *, given: bool = False) -> str:
    """Return the UTF-8 text of a file without its byte order mark; messages call it `where`, else by its path.

    One that the user has `given` on the command line may be a pipe.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large, or, with `errors` strict, is no UTF-8.
    """
    data = read_bytes(file, where, given=given)
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{where or shown(file)}: {_not_utf8(data, error)}") from None


def read_json(file: Path, where: str = "", *, given: bool = False) -> Json:
    """Return what a JSON file holds, `given` as for `read_text`; messages call it `where`, else by its path.

    They show none of it.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large, is no JSON, or has a text with a character that
            nothing can be given.
    """
    try:
        value = decode_json(read_bytes(file, where, given=given))
    except NotJson as error:
        raise UsageProblem(f"{where or shown(file)}: {error}") from None
    for place, text in texts(value, "$"):
        if UNUSABLE.search(text):
            raise UsageProblem(f"{where or shown(file)}: {ascii(place)[1:-1]} holds a NUL character")
    return value


def read_bytes(file: Path, where: str = "", *, given: bool = False) -> bytes:
    """Return what a file holds without its byte order mark, `where` and `given` as for `read_text`.

    Raises:
        UsageProblem: it cannot be read, is no plain file or too large.
    """
    try:
        return (read_given(file) if given else read_named(file)).removeprefix(BOM)
    except (OSError, ValueError) as error:
        hint = look_for(file) if given and isinstance(error, FileNotFoundError) else ""
        raise UsageProblem(f"{where or shown(file)} cannot be read: {_why(error)}", hint) from None


def look_for(file: Path) -> str:
    """Return the hint for a file that is not there: names like its own, and what lists where it should be."""
    folder = next((one for one in file.parents if one.is_dir()), Path())
    try:
        near = did_you_mean(file.name, (one.name for one in folder.iterdir())) if folder == file.parent else ""
    except OSError:
        near = ""
    return one_hint(near, f"ls {shlex.quote(str(folder))}")


def decode_json(data: bytes) -> Json:
    """Return what UTF-8 bytes hold as JSON, with or without a byte order mark.

    Raises:
        NotJson: they hold none.
    """
    data = data.removeprefix(BOM)
    try:
        return msgspec.json.decode(data.decode())
    except UnicodeDecodeError as error:
        raise NotJson(_not_utf8(data, error)) from None
    except RecursionError:
        raise NotJson("brackets are nested too deep") from None
    except msgspec.DecodeError as error:
        reason, _, byte = str(error).removesuffix(")").partition(" (byte ")
        at = _position(data, int(byte) if byte else len(data))
        raise NotJson(f"{at} is not JSON: {reason.removeprefix('JSON is malformed: ')}") from None


def texts(value: Json, at: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value, keys too, each after its place, as in `$[0].name`; `at` is the value's own."""
    pending = [(at, value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            pending += [(f"{place} key", key) for key in item]
            pending += [(f"{place}.{key}", below) for key, below in item.items()]
        elif isinstance(item, list | tuple):
            pending += [(f"{place}[{n}]", below) for n, below in enumerate(item)]


def wrong_key(error: msgspec.ValidationError, tree: Json = None) -> tuple[str, str]:
    """Return the key whose value has the wrong type, and a sentence that names it; "" where it is the whole value.

    `tree` is what was read; with it the sentence has the value of a name that is none.
    """
    found = _PLACE.fullmatch(str(error))
    what = found["what"] if found else str(error)
    for pattern, words in WRONG_NAMES.items():
        if repr(pattern) in what:
            values = _values_at(tree, found["key"] if found else "")
            what = f"{next((ascii(one) for one in values if not re.search(pattern, one)), 'it')[:200]} {words}"
    what = what[:1].lower() + what[1:]
    return (found["key"], f"key '{found['key']}' is wrong: {what}") if found and found["key"] else ("", what)


def _values_at(tree: Json, place: str) -> list[str]:
    """Return the text at a place of a JSON value, or the keys of the table there."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        try:
            tree = tree[int(number) if number else name]
        except (LookupError, TypeError, ValueError):
            return []
    return [tree] if isinstance(tree, str) else list(tree) if isinstance(tree, dict) else []


def shown(path: Path) -> str:
    """Return a path as a message can hold it."""
    text = str(path) if str(path).isprintable() else ascii(str(path))
    return text if len(text) <= 200 else f"{text[:197]}..."


def _mode(path: Path) -> int:
    """Return type and rights of what a path names, 0 for nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except (OSError, ValueError) as error:
        raise UsageProblem(f"{shown(path)} cannot be inspected: {_why(error)}") from None


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    return f"{_position(data, error.start)} is not UTF-8: {error.reason}"


def _position(data: bytes, offset: int) -> str:
    before = data[:offset].decode(errors="replace")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


# Finds what comes with madlite: the bundled models.json and the templates.

_PACKAGE = Path(__file__).parent


def bundled_models(home: Path | None) -> Path:
    """Return the models.json that comes with madlite; `home` is $MADLITE_HOME, which comes before every other place.

    Raises:
        CatalogError: it is not there.
    """
    return _find("models.json", home)


def template_root(home: Path | None) -> Path:
    """Return the folder of templates that comes with madlite; `home` is $MADLITE_HOME, as above.

    Raises:
        CatalogError: it is not there.
    """
    return _find("templates", home)


def _find(name: str, home: Path | None) -> Path:
    # A wheel carries them as package data; an editable install leaves them where the checkout has them.
    places = [home] if home else [_PACKAGE / "data", _PACKAGE.parent]
    for place in places:
        if (place / name).exists():
            return place / name
    if home:
        raise CatalogError(
            f"MADLITE_HOME={home} holds no {name}", "unset MADLITE_HOME, or put models.json and templates/ there"
        )
    raise CatalogError(
        f"madlite's own {name} is in none of {', '.join(map(str, places))}", "pip install --force-reinstall madlite"
    )
