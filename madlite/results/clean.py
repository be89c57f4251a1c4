"""What a configuration file holds → what may stand in the side files: JSON, without secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from madlite.measure.limits import is_too_long
from madlite.model import Json
from madlite.results.lines import readable
from madlite.results.typed import as_cell
from madlite.secrets import MASK, Redactor, assigned, is_secret, is_secret_name

_Mask = Callable[[str], str]
# `{"name": "HF_TOKEN", "value": "…"}`: how lists of variables are written (Kubernetes, AWS)
_NAMES, _VALUES = ("name", "key"), ("value", "values")
_ANY = "anything"


def clean(value: Json, mask: _Mask, name: str = "") -> Json:
    """Return a value as JSON can hold it, masked: known secrets anywhere, and what stands under a secret's name.

    `name` is what the value stands under.  Names are also looked for inside of texts (`HF_TOKEN=…`, `--hf-token …`),
    in the words of a list (`["--hf-token", "…"]`) and in objects that hold a name and its value.
    """
    if isinstance(value, Mapping):
        return _object(value, mask)
    if isinstance(value, (list, tuple, set)):
        pairs = zip(["", *value], value, strict=False)
        return [MASK.decode() if _is_told(before, item) else clean(item, mask, name) for before, item in pairs]
    if value is None or isinstance(value, bool):
        return value
    return _scalar(value, mask, name)


def _object(value: Mapping[Json, Json], mask: _Mask) -> Json:
    names = [item for key, item in value.items() if _is(key, _NAMES) and isinstance(item, str)]
    told = next(filter(is_secret_name, names), "")
    return {
        readable(_in_words(str(key), mask)(str(key))): clean(
            item, mask, told if told and _is(key, _VALUES) else str(key)
        )
        for key, item in value.items()
    }


def _is_told(before: Json, word: Json) -> bool:
    """Say whether a word of a command is a secret because the one before it is a flag such as `--hf-token`."""
    if not (isinstance(before, str) and before.startswith("--") and isinstance(word, str)):
        return False
    return not word.startswith(("-", "$")) and _ANY in assigned([f"{before} {_ANY}"])


def _is(key: Json, names: tuple[str, ...]) -> bool:
    return isinstance(key, str) and key.lower() in names


def _scalar(value: Json, mask: _Mask, name: str) -> Json:
    number = isinstance(value, (int, float, msgspec.Raw))
    text = as_cell(value) if number else str(value)
    if is_secret(name, text) and not text.startswith("<"):  # eos_token: <|end_of_text|>
        return MASK.decode()
    shown = readable(_in_words(text, mask)(text))
    return value if number and shown == text and not is_too_long(text) else shown


def _in_words(text: str, mask: _Mask) -> _Mask:
    """Return a mask that also knows the secrets that this text spells out."""
    found = assigned([text])
    if not found:
        return mask
    told = Redactor(found).text
    return lambda shown: told(mask(shown))
