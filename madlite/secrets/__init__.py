"""Secrets: which texts are some, and how they are kept out of everything that is written.

By name: a variable, a key or a flag says so.  By shape: a URL's password, a header, a token (`patterns`).
What is known of either is masked as it stands and in URLs, JSON, shells and base64 (`spellings`), wherever it
stands (`Redactor`).
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

import msgspec

from madlite.model import EnvValue, Json, Secret, to_json
from madlite.secrets import patterns
from madlite.secrets.patterns import Span, meanings

MASK = b"***"
_PLAIN = frozenset((int, float, bool))  # most of a plan's values; without a text, and no part of them is one
_SHORT, _MOST_SHORT = 1024, 2048  # characters of a text that is looked through once only, and how many of those


class Redactor:
    """Masks secrets in text, and in a stream of bytes line by line; those that overlap share one mask.

    Without any known ones it masks what is a secret by its shape; with `named` also values of settings by their names.
    """

    def __init__(self, secrets: Iterable[str] = (), *, named: bool = False) -> None:
        self._known, self._named = tuple(dict.fromkeys(secrets)), named
        self._search = _search(self._known)
        self._pending = b""
        self._longest = max(patterns.LONGEST_KEY, self._search.longest if self._search else 0)  # bytes of a secret

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that the chunk completes, as far as no secret may go on after them.

        A carriage return ends a line, as of a progress bar.  Of what is held longer than four secrets could be, as a
        line without an end, all but the last `_longest` bytes come out.
        """
        data = self._pending + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1  # the last may belong to a \n
        is_long = len(data) > 4 * self._longest
        spans = self._spans(data) if end or is_long else []
        end = min(patterns.complete(data[:end]), self._search.complete(data, end) if self._search else end)
        for begin, over in reversed(spans):
            end = data.rfind(b"\n", 0, begin) + 1 if begin < end < over else end
        if is_long and len(data) - end > 4 * self._longest:
            end = len(data) - self._longest
            for begin, over in spans:
                end = over if begin < end < over else end
        self._pending = data[end:]
        return _mask(data[:end], (span for span in spans if span[0] < end))

    def flush(self) -> bytes:
        """Return what was held; call it when the stream ends."""
        data, self._pending = self._pending, b""
        return _mask(data, self._spans(data))

    def text(self, text: str) -> str:
        """Return the text with every secret masked; never raises.

        The short texts of a batch's plans and records are the same from run to run.
        """
        return self._whole(text) if len(text) > _SHORT else _masked_short(self._known, self._named, text)

    def _whole(self, text: str) -> str:
        errors = errors_of(text)
        data = text.encode("utf-8", errors)
        spans = self._spans(data)
        return _mask(data, spans).decode("utf-8", errors) if spans else text

    def _spans(self, data: bytes) -> list[Span]:
        found = patterns.spans(data, named=self._named)
        if self._search is not None:
            found += self._search.spans(data)
        return sorted(found)


def masked_json(value: object, secrets: Iterable[str]) -> str:
    """Return a value as `to_json` does, secrets masked; text by text, for a masked number would be no JSON."""
    return to_json(_masked(value, Redactor(secrets).text))


@lru_cache(maxsize=_MOST_SHORT)
def _masked_short(secrets: tuple[str, ...], named: bool, text: str) -> str:
    return Redactor(secrets, named=named)._whole(text)


@lru_cache(maxsize=8)
def _search(secrets: tuple[str, ...]) -> Search | None:
    found = {spelling for secret in secrets if len(secret) >= SHORTEST for spelling in spellings(secret)}
    return Search(found) if found else None


def _mask(data: bytes, spans: Iterable[Span]) -> bytes:
    """Return data with the spans, given in order, masked."""
    parts: list[bytes] = []
    done = 0
    for start, end in spans:
        parts += [data[done:start], MASK] if start >= done else []
        done = max(done, end)
    return b"".join((*parts, data[done:]))


def _masked(value: object, mask: Callable[[str], str]) -> object:
    """Return a value's parts with their texts masked; names of fields stay."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, (str, Path)):
        return value.value if isinstance(value, Enum) else mask(str(value))
    if isinstance(value, msgspec.Struct):
        return {name: _masked(getattr(value, name), mask) for name in value.__struct_fields__}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(item, mask) for item in value]
    if isinstance(value, Mapping):
        return {_masked(key, mask): _masked(item, mask) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


# Which values of the environment, of settings and of command lines are secret.

_LONGEST = 4096  # characters of a value without quotes, which reaches to the end of its word
_MOST = 16  # assignments of a word whose values may reach to its end: those after them are in the first one's
_ALL = 256  # assignments of a word that are inspected: one of more is no command line
_ALWAYS = "MAD_SECRETS"
_NAMES = re.compile(
    r"TOKEN(?!IZ|S(?![A-Z]))|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|_PAT$|^PAT$",
    re.IGNORECASE,
)
# keys of a context whose values name secrets of a cluster, and are none
_REFERENCES = ("image_pull_secrets", "image_pull_secret_names", "runtime_secret", "runtime_secret_name")
# names that mean nothing else: a number or a path under one of them is a secret too
_ALWAYS_SECRET = re.compile(
    r"PASSWORD|PASSWD|^AWS_SECRET_ACCESS_KEY$|^AWS_SESSION_TOKEN$|^(GH|GITHUB|GITLAB|HF)_TOKEN$"
    r"|^HUGGING_FACE_HUB_TOKEN$|^(WANDB|OPENAI|NGC|COMET|MLFLOW_TRACKING)_(API_KEY|TOKEN)$",
    re.IGNORECASE,
)
_OF_A_PLACE = re.compile(r"_(FILE|PATH|DIR|FOLDER)$", re.IGNORECASE)
_WORD = re.compile(r"(|true|false|none|null|yes|no|on|off)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d*\.?\d+")
_ASSIGNED = re.compile(
    r"""(?<!\w)(?P<name>\w+)["']?\s*[=:]\s*"""
    r"""(?=(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s"',{}]+)))"""
)
# `--hf_token abc` of a command; a variable's name is no secret, nor is a token of a vocabulary
_FLAG = re.compile(
    r"(?<!\S)--(?!(?:pad|eos|bos|unk|mask|sep|cls)[_-]token)(?:[\w-]+[_-])?"
    r"(?:token|password|passwd|secret|api[_-]?key|access[_-]?key|pat)(?:=|\s+)(?P<value>\"[^\"$]+\"|'[^']+'|[^\s$\"'-]\S*)",
    re.IGNORECASE,
)

# a password may hold a / that no URL's should; in a setting, unlike in a log, such a text is one
_PASSWORD = re.compile(r"://[^\s/:@\[]*:(?!\d{1,5}(?:[/,;|)&]|$))(?P<password>[^\s\"'<>$*{]{1,500})@(?!sha\d{3}:)")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name may hold a secret: MAD_SECRETS…, HF_TOKEN, …_PASSWORD, WANDB_API_KEY, …

    MAX_NUM_BATCHED_TOKENS and TOKENIZERS_PARALLELISM count or set something.
    """
    return _ALWAYS in name or (name not in _REFERENCES and bool(_NAMES.search(name)))


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is a secret; numbers, booleans and files' paths under a doubtful name are settings."""
    if _ALWAYS in name:
        return True
    if not is_secret_name(name) or _WORD.fullmatch(value):
        return False
    if _ALWAYS_SECRET.search(name):
        return True
    return not (_NUMBER.fullmatch(value) or (_OF_A_PLACE.search(name) and value.startswith(("/", "~", "."))))


def guard(env: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, EnvValue]:
    """Return the environment with every secret value wrapped: secret by its name, or for holding a secret.

    That is one of `known`, or one by its shape.
    """
    texts = tuple(known)
    return {
        name: Secret(value)
        if is_secret(name, value) or shaped(value) or any(text in value for text in texts)
        else value
        for name, value in env.items()
    }


def reveal(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Return the environment as plain text, for an engine's API or a process."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in env.items()}


def mask_values(env: Mapping[str, EnvValue]) -> dict[str, EnvValue]:
    """Return the environment with `***` for every secret, for eyes and hands that must not have it."""
    return {name: MASK.decode() if isinstance(value, Secret) else value for name, value in env.items()}


def masked_value(key: str, value: object) -> str:
    """Return a value of `--set` as text, `***` for one that is a secret by its key or its shape."""
    text = str(value)
    return MASK.decode() if is_secret(key.rpartition(".")[2], text) or shaped(text) else text


def collect(environ: Mapping[str, str], *more: Iterable[EnvValue]) -> tuple[str, ...]:
    """Return every secret text worth masking: of the environment by name or shape, and of `more` where wrapped.

    Text below SHORTEST characters is left out: it would be masked wherever it happens to stand.
    """
    found = [value for name, value in environ.items() if is_secret(name, value)]
    found += [value.reveal() for values in more for value in values if isinstance(value, Secret)]
    found += [text for value in (*environ.values(), *found) for text in shaped(value)]
    return tuple(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def shaped(text: str) -> tuple[str, ...]:
    """Return the secrets of a setting by their shape, as they stand there and as they are meant: unquoted, decoded.

    Of text below SHORTEST characters, and of a URL's user who is a plain word, nothing is known elsewhere.
    """
    return (_shaped if len(text) <= _SHORT else _shaped.__wrapped__)(text)


@lru_cache(maxsize=_MOST_SHORT)
def _shaped(text: str) -> tuple[str, ...]:
    found = [part.decode("utf-8", "surrogateescape") for part in meanings(encoded(text))]
    if "@" in text:
        found += [match["password"] for match in _PASSWORD.finditer(text) if "/" in match["password"]]
    return tuple(part for part in dict.fromkeys(found) if len(part) >= SHORTEST)


def spelled_out(value: object) -> tuple[str, ...]:
    """Return the secrets by their shape in all texts of a value, such as a plan, but those that are wrapped as such."""
    found: dict[str, None] = {}

    def note(text: str) -> str:
        found.update(dict.fromkeys(shaped(text)))
        return text

    _masked(value, note)
    return tuple(found)


def assigned(words: Iterable[str]) -> tuple[str, ...]:
    """Return the secrets that a command line spells out: `env.HF_TOKEN=…`, `{"HF_TOKEN": "…"}`, `--hf-token …`.

    With them come those that are one by their shape.
    """
    found: list[str] = []
    for word in words:
        found += shaped(word)
        found += [match["value"].strip("\"'") for match in _FLAG.finditer(word)]
        matches = list(islice(_ASSIGNED.finditer(word), _ALL))
        for place, match in enumerate(matches):
            value = match["double"] or match["single"] or match["bare"] or ""
            if not is_secret(match["name"], value):
                continue
            begin = match.start("bare")
            if match["bare"] and place < _MOST:
                found += [word[begin:][:_LONGEST], value, value.split(":")[0]]
            if match["bare"] and place + 1 < len(matches):  # what comes after is in the first one's too
                value = value[: matches[place + 1].start() - begin]
            found += [value, value.rstrip("&;|"), value.split(":")[0]]
    return tuple(text for text in dict.fromkeys(found) if len(text) >= SHORTEST)


# A secret as tools write it: URLs, JSON, shells, base64.

SHORTEST = 4  # masking shorter text would eat ordinary words and digits out of a log
_AS_IT_IS = re.compile(r"[A-Za-z0-9_.-]*")  # what nothing but base64 writes otherwise
# what is kept as it is: Python's default, all of it, JavaScript's two functions, what RFC 3986 allows in a user
_SAFE_SETS = ("/", "", "!'()*", ";,/?:@&=+$!'()*#", "!$&'()*+,;=")
_UNICODE = re.compile(r"\\u[0-9a-f]{4}")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_SHELL = re.compile(r"(^[~#]|[\s'\"\\|&;()<>!{}*\[?\]^$`,])")  # what printf %q puts a backslash before
_CONTROLS = dict(zip("\a\b\x1b\f\n\r\t\v", "abEfnrtv", strict=True))  # in $'…' of a shell


# Secrets in plain text of cards and a context: under a key of a secret's name, or assigned within a text.


def plaintext_secrets(value: Json, name: str = "") -> Iterator[str]:
    """Yield the secret texts of the value of key `name` that are long enough to be masked anywhere."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from plaintext_secrets(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from plaintext_secrets(item, name)
    elif _is_plaintext(name, value):
        yield from [str(value)] if len(str(value)) >= SHORTEST else []
    elif isinstance(value, str):
        yield from assigned([value])


def mask_json(value: Json, mask: Callable[[str], str], path: str = "") -> tuple[Json, tuple[str, ...]]:
    """Return a value with `***` for every secret in it, names included, and the dotted paths of the changes.

    `mask` masks texts.
    """
    if isinstance(value, Mapping):
        names = {key: mask(key) for key in value}
        places = {key: f"{path}.{name}" if path else name for key, name in names.items()}
        parts = {key: mask_json(item, mask, places[key]) for key, item in value.items()}
        renamed = [(item, (places[key],)) for key, item in value.items() if names[key] != key]
        return {names[key]: item for key, (item, _) in parts.items()}, _joined([*renamed, *parts.values()])
    if isinstance(value, (list, tuple)):
        items = [mask_json(item, mask, path) for item in value]
        return [item for item, _ in items], _joined(items)
    is_text = isinstance(value, str)
    shown = MASK.decode() if _is_plaintext(path.rpartition(".")[2], value) else mask(value) if is_text else value
    return shown, (path,) if shown != value else ()


def _is_plaintext(name: str, value: Json) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and is_secret(name, str(value))


def _joined(parts: Iterable[tuple[Json, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, names in parts for name in names))


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
    if _AS_IT_IS.fullmatch(text):
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


# Finds many texts in bytes, most of which hold none of them: by the rarest four characters of each.

ANCHOR = 4  # characters by which a text is searched for; none is shorter
_BEGIN = 128  # characters of a text among which the rarest are chosen
# bytes of real logs by how common they are
_COMMON = b" -.[me01rato2n]:il_ps6duc3/ykgh54NF=8fb7IO(G)UEBD9v,wPTzx'|R\"AqSLCMW%j*><+#`{H}VK?YX@&J~QZ!^"
_RANKS = bytes(_COMMON.find(byte) % 256 for byte in range(256))


class Search:
    """Finds texts of ANCHOR bytes or more.  What a search needs is made when it is first used."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = sorted(texts, key=len, reverse=True)
        self.longest = len(self._texts[0])  # bytes

    def spans(self, data: bytes) -> list[Span]:
        """Return where texts are, in no order; most of those that overlap as one."""
        found = self._anchor.search(data)
        places: list[Span] = []
        first = last = 0
        while found:
            at = found.start()
            for before, texts in self._table[found[0]].items():
                start = at - before
                text = next((text for text in texts if data.startswith(text, start)), None) if start >= 0 else None
                if text is None:
                    continue
                if not first <= start < last:
                    places += [(first, last)] if last else []
                    first, last = start, 0
                last = max(last, start + len(text))
            found = self._anchor.search(data, at + 1)
        return [*places, (first, last)] if last else []

    def complete(self, data: bytes, end: int) -> int:
        """Return up to where the lines before `end` hold all of each text of several lines: one may go on."""
        begun = end
        for text, first in self._of_lines:
            at = data.find(first, max(0, end - len(text) + 1), end)
            while at >= 0 and not text.startswith(data[at:end]):
                at = data.find(first, at + 1, end)
            begun = min(begun, at) if at >= 0 else begun
        return data.rfind(b"\n", 0, begun) + 1 if begun < end else end

    @cached_property
    def _of_lines(self) -> list[tuple[bytes, bytes]]:
        """The texts of several lines, each with its first one."""
        lines_of = {text: text.splitlines(keepends=True) for text in map(bytes.lstrip, self._texts)}
        return [(text, lines[0]) for text, lines in lines_of.items() if len(lines) > 1]

    @cached_property
    def _table(self) -> dict[bytes, dict[int, list[bytes]]]:
        """The texts by what is searched for of them, and where in them that is."""
        table: dict[bytes, dict[int, list[bytes]]] = {}
        for text in self._texts:
            at = _rarest(text)
            table.setdefault(text[at : at + ANCHOR], {}).setdefault(at, []).append(text)
        return table

    @cached_property
    def _anchor(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self._table)))


def _rarest(text: bytes) -> int:
    """Return where the four characters of a text begin that the fewest places of a log look like."""
    ranks = text[: min(len(text) - ANCHOR + 1, _BEGIN)].translate(_RANKS)
    return ranks.index(max(ranks))
