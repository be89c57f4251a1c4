"""Secrets: which texts are some, and how they are kept out of everything that is written.

By name: a variable, a key or a flag says so.  By shape: a URL's password, a header, a token (`shapes`).
What is known of either is masked as it stands and in URLs, JSON, shells and base64 (`spellings`, `search`), wherever it
stands (`Redactor`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import islice
from pathlib import Path

import msgspec

from madlite.model import EnvValue, Secret, to_json
from madlite.secrets import patterns
from madlite.secrets.encodings import SHORTEST as SHORTEST
from madlite.secrets.encodings import as_it_stands, encoded, errors_of, spellings
from madlite.secrets.encodings import split_userinfo as split_userinfo
from madlite.secrets.patterns import meanings
from madlite.secrets.search import Search

MASK = b"***"
_PLAIN = frozenset((int, float, bool))  # most of a plan's values; without a text, and no part of them is one
_SHORT, _MOST_SHORT = 1024, 2048  # characters of a text that is looked through once only, and how many of those


class Redactor:
    """Masks secrets in text, and in a stream of bytes however it is cut; those that overlap share one mask.

    Without any known ones it masks what is a secret by its shape; with `named` also values of settings by their names,
    of files that are fed by whole lines.
    """

    def __init__(self, secrets: Iterable[str] = (), *, named: bool = False) -> None:
        known = tuple(dict.fromkeys(secrets))
        self._named = named
        self._search = _search(known)
        self._masked = _masked_texts(known, named)
        self._pending = b""
        self._out = 0  # so many bytes of what is held have been returned: they are kept for what comes after them
        self._covered = 0  # so many of them belong to a mask that is out

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be written now; the end is held while it may be the start of a secret, or of a longer one.

        Where too little stands there to be worth waiting for it is only remembered, and of a secret that goes on after
        it the rest is masked.
        """
        data = self._pending + chunk
        kept, held = patterns.begun(data)
        if self._search is not None:
            begun = self._search.begun(data)
            kept, held = min(kept, begun.kept), min(held, begun.held)
        return self._pass(data, max(self._out, held), kept)

    def flush(self) -> bytes:
        """Return what was held; call it when the stream ends."""
        data = self._pass(self._pending, len(self._pending), len(self._pending))
        self._covered = 0
        return data

    def text(self, text: str) -> str:
        """Return the text with every secret masked; never raises.

        The short texts of a batch's plans and records are the same from run to run.
        """
        if len(text) > _SHORT:
            return self._whole(text)
        if (masked := self._masked.get(text)) is None:
            if len(self._masked) >= _MOST_SHORT:
                self._masked.clear()
            masked = self._masked[text] = self._whole(text)
        return masked

    def _whole(self, text: str) -> str:
        errors = errors_of(text)
        data = text.encode("utf-8", errors)
        spans = self._spans(data)
        return _mask(data, spans, 0, 0, len(data))[0].decode("utf-8", errors) if spans else text

    def _spans(self, data: bytes) -> list[patterns.Span]:
        found = patterns.spans(data, named=self._named)
        if self._search is not None:
            found += self._search.spans(data)
        return sorted(found)

    def _pass(self, data: bytes, cut: int, kept: int) -> bytes:
        """Return the data up to `cut`, masked, as far as it is not out; keep it from `kept` on."""
        out, end = _mask(data, self._spans(data), self._covered, self._out, cut)
        kept = min(kept, cut)
        self._pending, self._out, self._covered = data[kept:], cut - kept, max(0, end - kept)
        return out


def masked_json(value: object, secrets: Iterable[str]) -> str:
    """Return a value as `to_json` does, secrets masked; text by text, for a masked number would be no JSON."""
    return to_json(_masked(value, Redactor(secrets).text))


@lru_cache(maxsize=8)
def _masked_texts(secrets: tuple[str, ...], named: bool) -> dict[str, str]:
    """Return what is known of short texts, by these secrets: text → masked."""
    return {}


@lru_cache(maxsize=8)
def _search(secrets: tuple[str, ...]) -> Search | None:
    long = [secret for secret in secrets if len(secret) >= SHORTEST]
    plain = {encoded(text) for secret in long for text in as_it_stands(secret)}
    return Search({spelling for secret in long for spelling in spellings(secret)}, plain) if long else None


def _mask(data: bytes, spans: Iterable[patterns.Span], at: int, out: int, cut: int) -> tuple[bytes, int]:
    """Return data[out:cut] with the spans, given in order, masked, and where the last mask ends.

    Up to `at` the data belongs to a mask that is out.
    """
    parts: list[bytes] = []
    done = max(at, out)
    for start, end in spans:
        if start >= cut:
            break
        if end > done:
            parts += [data[done:start], MASK] if start >= at else []
            done = end
        at = max(at, end)
    parts.append(data[done:cut])
    return b"".join(parts), at


def texts_of(value: object) -> list[str]:
    """Return all texts of a value but those that are wrapped as secrets, names of a table too."""
    found: list[str] = []
    _add_texts(value, found.append)
    return found


def _add_texts(value: object, add: Callable[[str], None]) -> None:
    parts: Iterable[object] = ()
    if isinstance(value, (str, Path)):
        add(str(value))
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = value
    elif isinstance(value, Mapping):
        parts = (*value, *value.values())
    for part in parts:
        if part is not None and type(part) not in _PLAIN:
            _add_texts(part, add)


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
    return _shaped_short(text) if len(text) <= _SHORT else _shaped(text)


@lru_cache(maxsize=_MOST_SHORT)
def _shaped_short(text: str) -> tuple[str, ...]:
    return _shaped(text)


def _shaped(text: str) -> tuple[str, ...]:
    found = [part.decode("utf-8", "surrogateescape") for part in meanings(encoded(text))]
    if "@" in text:
        found += [match["password"] for match in _PASSWORD.finditer(text) if "/" in match["password"]]
    return tuple(part for part in dict.fromkeys(found) if len(part) >= SHORTEST)


def spelled_out(value: object) -> tuple[str, ...]:
    """Return the secrets by their shape in all texts of a value, such as a plan."""
    return tuple(dict.fromkeys(part for text in texts_of(value) for part in shaped(text)))


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
