"""Which values are secret, and how they are kept out of everything that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import AnyStr, Generic
from urllib.parse import quote

import msgspec

from madlite.types import EnvValue, Secret, to_json

MASK = b"***"
SHORTEST = 4  # masking shorter text would eat ordinary words and digits out of a log
_LONGEST = 4096  # characters of a value without quotes, which reaches to the end of its word
_MOST = 16  # assignments of a word whose values may reach to its end: those after them are in the first one's
_ALL = 256  # assignments of a word that are looked at: one of more is no command line
_HEAD = 32  # characters by which a spelling is looked for: a pattern of long texts takes seconds to make
_ALWAYS = "MAD_SECRETS"
_NAMES = re.compile(
    r"TOKEN(?!IZ|S(?![A-Z]))|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|_PAT$|^PAT$",
    re.IGNORECASE,
)
# names that mean nothing else: a number or a path under one of them is a secret too
_KNOWN = re.compile(
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


def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name may hold a secret: MAD_SECRETS…, HF_TOKEN, …_PASSWORD, WANDB_API_KEY, …

    MAX_NUM_BATCHED_TOKENS and TOKENIZERS_PARALLELISM count or set something.
    """
    return _ALWAYS in name or bool(_NAMES.search(name))


def is_secret(name: str, value: str) -> bool:
    """Say whether a variable is a secret; numbers, booleans and files' paths under a doubtful name are settings."""
    if _ALWAYS in name:
        return True
    if not is_secret_name(name) or _WORD.fullmatch(value):
        return False
    if _KNOWN.search(name):
        return True
    return not (_NUMBER.fullmatch(value) or (_OF_A_PLACE.search(name) and value.startswith(("/", "~", "."))))


def guard(env: Mapping[str, str], known: Iterable[str] = ()) -> dict[str, EnvValue]:
    """Return the environment with every secret value wrapped: secret by its name, or for holding a `known` secret."""
    texts = tuple(known)
    return {
        name: Secret(value) if is_secret(name, value) or any(text in value for text in texts) else value
        for name, value in env.items()
    }


def reveal(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Return the environment as plain text, for an engine's API or a process."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in env.items()}


def mask_values(env: Mapping[str, EnvValue]) -> dict[str, EnvValue]:
    """Return the environment with `***` for every secret, for eyes and hands that must not have it."""
    return {name: MASK.decode() if isinstance(value, Secret) else value for name, value in env.items()}


def collect(environ: Mapping[str, str], *more: Iterable[EnvValue]) -> tuple[str, ...]:
    """Return every secret text worth masking: of the environment by name, and of `more` where wrapped.

    Text below SHORTEST characters is left out: it would be masked wherever it happens to stand.
    """
    found = [value for name, value in environ.items() if is_secret(name, value)]
    found += [value.reveal() for values in more for value in values if isinstance(value, Secret)]
    return tuple(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


def assigned(words: Iterable[str]) -> tuple[str, ...]:
    """Return the secrets that a command line spells out: `env.HF_TOKEN=…`, `{"HF_TOKEN": "…"}`, `--hf-token …`."""
    found: list[str] = []
    for word in words:
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


def masked_json(value: object, secrets: Iterable[str]) -> str:
    """Return a value as `to_json` does, secrets masked; text by text, for a masked number would be no JSON."""
    return to_json(_masked(value, Redactor(secrets).text))


class Redactor:
    """Masks secrets in text, and in a stream of bytes however it is cut; those that overlap share one mask."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._texts = sorted({text for secret in secrets for text in _spellings(secret)}, key=len, reverse=True)
        self._spellings = sorted(set(map(_encode, self._texts)), key=len, reverse=True)
        self._finder = _Finder(self._spellings)
        self._heads = _any_of([spelling[:SHORTEST] for spelling in self._spellings])
        self._starts = frozenset(spelling[:size] for spelling in self._spellings for size in range(1, SHORTEST))
        self._inner = frozenset(byte for spelling in self._spellings for byte in spelling[:-1])
        self._text_finder: _Finder[str] | None = None
        self._held = b""
        self._covered = 0  # so many bytes of what is held belong to a mask that is out

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be written now; the end is held while it may be the start of a secret, or of a longer one."""
        if not self._spellings:
            return chunk
        data = self._held + chunk
        return self._pass(data, self._open_at(data))

    def flush(self) -> bytes:
        """Return what was held; call it when the stream ends."""
        data = self._pass(self._held, len(self._held))
        self._covered = 0
        return data

    def text(self, text: str) -> str:
        """Return the text with every secret masked; never raises."""
        if not self._texts:
            return text
        self._text_finder = self._text_finder or _Finder(self._texts)
        return _mask(self._text_finder, text, MASK.decode(), 0, len(text))[0]

    def _pass(self, data: bytes, cut: int) -> bytes:
        """Return the data up to `cut`, masked, and hold the rest."""
        out, end = _mask(self._finder, data, MASK, self._covered, cut)
        self._held, self._covered = data[cut:], end - cut
        return out

    def _open_at(self, data: bytes) -> int:
        """Return from where on the data may be the start of a secret that goes on."""
        end = len(data)
        if not data or data[-1] not in self._inner:
            return end
        at = max(0, end - len(self._spellings[0]) + 1)
        while found := self._heads.search(data, at):
            if self._begins(data, found.start()):
                return found.start()
            at = found.start() + 1
        last = range(max(0, end - SHORTEST + 1), end)  # too short a rest to hold a head
        return next((at for at in last if data[at:] in self._starts), end)

    def _begins(self, data: bytes, at: int) -> bool:
        head, size = data[at : at + _HEAD], len(data) - at
        begun = (text for text in self._spellings if len(text) > size and text.startswith(head))
        return any(data.endswith(text[:size]) for text in begun)


class _Finder(Generic[AnyStr]):
    """Finds spellings, given the longest first: by their heads, and the longest that goes on as the text does."""

    def __init__(self, spellings: list[AnyStr]) -> None:
        heads = {spelling[:_HEAD] for spelling in spellings}
        self._heads: re.Pattern[AnyStr] = _any_of(sorted(heads, key=len, reverse=True))
        self._short: frozenset[AnyStr] = frozenset(spelling for spelling in spellings if len(spelling) <= _HEAD)
        self._long: dict[AnyStr, list[AnyStr]] = {}
        for spelling in spellings:
            if len(spelling) > _HEAD:
                self._long.setdefault(spelling[:_HEAD], []).append(spelling)

    def find(self, data: AnyStr, at: int) -> tuple[int, int] | None:
        """Return where the next spelling begins and where the longest that begins there ends."""
        while found := self._heads.search(data, at) if self._short or self._long else None:
            at, head = found.span()[0], found[0]
            long = next((text for text in self._long.get(head, ()) if data.startswith(text, at)), None)
            if long is not None:
                return at, at + len(long)
            size = next((size for size in range(len(head), 0, -1) if head[:size] in self._short), 0)
            if size:
                return at, at + size
            at += 1
        return None


def _mask(finder: _Finder[AnyStr], data: AnyStr, mask: AnyStr, at: int, cut: int) -> tuple[AnyStr, int]:
    """Return data[at:cut] masked, and the end of it or of the secret that reaches beyond."""
    parts: list[AnyStr] = []
    found = finder.find(data, 0)
    while found and found[0] < cut:
        start, end = found
        if start >= at:
            parts += [data[at:start], mask]
        at = max(at, end)
        found = finder.find(data, start + 1)
    parts.append(data[at:cut])
    return data[:0].join(parts), max(at, cut)


def _any_of(spellings: list[AnyStr]) -> re.Pattern[AnyStr]:
    """Return the pattern of the spellings, given the longest first: at one place the longest is found."""
    empty: AnyStr = spellings[0][:0] if spellings else b""  # type: ignore[assignment]
    bar: AnyStr = "|" if isinstance(empty, str) else b"|"
    return re.compile(bar.join(map(re.escape, spellings)))


def _spellings(secret: str) -> set[str]:
    """A secret as it stands, line by line, and as URLs, JSON and both write it."""
    lines = [line for line in secret.splitlines() if len(line) >= 2 * SHORTEST]  # a key file, printed line by line
    whole = {secret, secret.strip(), *lines}
    whole |= {_encode(secret).decode("utf-8", broken) for broken in ("replace", "backslashreplace")}
    whole.add(secret.encode("utf-8", "backslashreplace").decode())  # as our own screen and JSON show such bytes
    written = {json.dumps(text, ensure_ascii=ascii_)[1:-1] for text in whole for ascii_ in (True, False)}
    texts = whole | written | {quote(_encode(text), safe="") for text in whole | written}
    return {text for text in texts if len(text) >= SHORTEST}


def _encode(text: str) -> bytes:
    """Return the bytes behind a text of the environment; text that stands for none gives some all the same."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _masked(value: object, mask: Callable[[str], str]) -> object:
    """Return a value's parts with their texts masked; names of fields stay."""
    if isinstance(value, msgspec.Struct):
        return {name: _masked(getattr(value, name), mask) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {_masked(key, mask): _masked(item, mask) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_masked(item, mask) for item in value]
    if isinstance(value, Enum):
        return value.value
    return mask(str(value)) if isinstance(value, (str, Path)) else value
