"""Which values are secret, and how they are kept out of everything that is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from madlite.types import EnvValue, Secret

MASK = b"***"
SHORTEST = 4  # masking shorter text would eat ordinary words and digits out of a log
_NAMES = re.compile(
    r"MAD_SECRETS|TOKEN(?!IZER)|PASSWORD|PASSWD|SECRET|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|_PAT$|^PAT$",
    re.IGNORECASE,
)
_INNOCENT = re.compile(r"^(true|false|none|null|yes|no|on|off|\d{1,5}|/[\w./-]*)$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Say whether a variable of this name holds a secret: MAD_SECRETS…, HF_TOKEN, …_PASSWORD, WANDB_API_KEY, …"""
    return bool(_NAMES.search(name))


def guard(env: Mapping[str, str]) -> dict[str, EnvValue]:
    """Return the environment with every secret value wrapped."""
    return {name: Secret(value) if is_secret_name(name) else value for name, value in env.items()}


def reveal(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Return the environment as plain text, for an engine's API or a process."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in env.items()}


def collect(environ: Mapping[str, str], *more: Iterable[EnvValue]) -> tuple[str, ...]:
    """Return every secret text worth masking: of the environment by name, and of `more` where wrapped.

    Numbers, booleans and paths under a secret-sounding name are settings, not secrets.
    """
    found = [value for name, value in environ.items() if is_secret_name(name)]
    found += [value.reveal() for values in more for value in values if isinstance(value, Secret)]
    return tuple(dict.fromkeys(text for text in found if len(text) >= SHORTEST and not _INNOCENT.match(text)))


class Redactor:
    """Masks secrets in a stream of bytes, also one that is split across reads or written in another spelling."""

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = sorted({spelling for secret in secrets for spelling in _spellings(secret)}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, spellings))) if spellings else None
        self._spellings = spellings
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be written now; the end of the chunk is held while it may be the start of a secret."""
        if self._pattern is None:
            return chunk
        data = self._pattern.sub(MASK, self._held + chunk)
        keep = self._possible_start(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def flush(self) -> bytes:
        """Return what was held; call it when the stream ends."""
        held, self._held = self._held, b""
        return held

    def text(self, text: str) -> str:
        """Return the text with every secret masked."""
        if self._pattern is None:
            return text
        return self._pattern.sub(MASK, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _possible_start(self, data: bytes) -> int:
        longest = min(len(data), max(map(len, self._spellings)) - 1)
        for length in range(longest, 0, -1):
            tail = data[-length:]
            if any(spelling.startswith(tail) for spelling in self._spellings):
                return length
        return 0


def _spellings(secret: str) -> set[bytes]:
    """A secret as it stands, line by line, and as URLs and JSON write it."""
    texts = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    texts |= {line for line in secret.splitlines() if len(line) >= 2 * SHORTEST}  # a key file, printed line by line
    return {text.encode("utf-8", "surrogateescape") for text in texts if text}
