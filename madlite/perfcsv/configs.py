"""The file that a script's `--config` names → `configs` of the side files: found, read, without secrets.

Where it is searched: docs/perf-csv.md (source: madengine 2.1).
"""

from __future__ import annotations

import csv
import io
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import msgspec

from madlite.files import read_plain, way_out
from madlite.jsontext import read_json, readable
from madlite.measure.performance import is_too_long
from madlite.model import Json, RunPlan
from madlite.perfcsv.header import as_cell, typed_rows
from madlite.secrets import MASK, Redactor, assigned, is_secret, is_secret_name
from madlite.text import unlimited_fields

# What a configuration file holds → what may stand in the side files: JSON, without secrets.

_Mask = Callable[[str], str]
# `{"name": "HF_TOKEN", "value": "…"}`: how lists of variables are written (Kubernetes, AWS)
_NAMES, _VALUES = ("name", "key"), ("value", "values")
_ANY = "anything"


def clean(value: Json, mask: _Mask, name: str = "") -> Json:
    """Return a value as JSON can hold it, masked: known secrets anywhere, and values under a secret's name.

    `name` is the value's own name.  Names are also searched inside of texts (`HF_TOKEN=…`, `--hf-token …`),
    in the words of a list (`["--hf-token", "…"]`) and in objects that hold a name and its value.
    """
    if isinstance(value, Mapping):
        return _object(value, mask)
    if isinstance(value, (list, tuple, set)):
        pairs = zip(["", *value], value, strict=False)
        return [
            MASK.decode() if _follows_secret_flag(before, item) else clean(item, mask, name) for before, item in pairs
        ]
    if value is None or isinstance(value, bool):
        return value
    return _scalar(value, mask, name)


def _object(value: Mapping[Json, Json], mask: _Mask) -> Json:
    names = [item for key, item in value.items() if _is(key, _NAMES) and isinstance(item, str)]
    secret = next(filter(is_secret_name, names), "")
    return {
        readable(_with_assigned_secrets(str(key), mask)(str(key))): clean(
            item, mask, secret if secret and _is(key, _VALUES) else str(key)
        )
        for key, item in value.items()
    }


def _follows_secret_flag(before: Json, word: Json) -> bool:
    """Return whether a word of a command is a secret because the one before it is a flag such as `--hf-token`."""
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
    shown = readable(_with_assigned_secrets(text, mask)(text))
    return value if number and shown == text and not is_too_long(text) else shown


def _with_assigned_secrets(text: str, mask: _Mask) -> _Mask:
    """Return a mask that also covers the secrets that this text assigns."""
    found = assigned([text])
    if not found:
        return mask
    redact = Redactor(found).text
    return lambda shown: redact(mask(shown))


_OPTION = "--config"
# where MAD and the repositories that hold it as a submodule keep what their scripts share
_SHARED = ("scripts", "scripts/MAD", "scripts/MAD-private", "scripts/MAD-internal")
_CREDENTIALS = "credential.json"
_LARGEST_BYTES = 1 << 20  # it is repeated in every entry of a list that grows
_log = logging.getLogger(__name__)


def read_configs(plan: RunPlan, mask: Callable[[str], str] = str) -> Json:
    """Return what the file named by the run's `--config` holds: the rows of a CSV as objects, else as it stands.

    None where the args name no file of a known kind; also, with a warning, where it is not there or cannot be read.
    """
    name = _config_argument(plan.run_args)
    read = _READERS.get(Path(name).suffix.lower())
    if read is None:
        return None
    path: Path | None = None
    try:
        path, problem = _find(plan, name)
        if path is not None:
            return clean(read(read_plain(path, *_roots(plan), limit_bytes=_LARGEST_BYTES)), mask)
    except Exception as error:  # noqa: BLE001 - PyYAML raises errors of many types, and none may cost the run
        problem = f"{path or name} cannot be read: {_first_line(error)}"
    _log.warning("%s: entries have no configs, %s", plan.card.name, mask(problem))
    return None


def _config_argument(args: str) -> str:
    """Return the value of the last `--config`, as scripts' own parsers take it; "" where there is none."""
    try:
        words = shlex.split(args)
    except ValueError:  # an open quote
        words = args.split()
    named = ""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if word == _OPTION:
            named = after
        elif word.startswith(f"{_OPTION}="):
            named = word.partition("=")[2]
    return named


def _find(plan: RunPlan, name: str) -> tuple[Path | None, str]:
    """Return the file that the args name, else the reason: one elsewhere on this machine is not read."""
    problem = f"the file of {_OPTION} {name} is not there"
    for path in _candidates(plan, name):
        if path.is_file():
            why = way_out(path, *_roots(plan)) or _reason_private(path, plan)
            if not why:
                return path, ""
            problem = f"{path} is not read: {why}"
    return None, problem


def _roots(plan: RunPlan) -> tuple[Path, Path]:
    return plan.workspace, plan.card.root


def _reason_private(path: Path, plan: RunPlan) -> str:
    """Return why a file of the folder itself must not be published, "" if it may."""
    for root in _roots(plan):
        with suppress(OSError):
            if path.samefile(root / _CREDENTIALS):
                return f"it is {_CREDENTIALS}"
    return ""


def _candidates(plan: RunPlan, name: str) -> Iterable[Path]:
    path = Path(name)
    if not path.is_absolute():
        return (place / path for place in _places(plan))
    if path.is_relative_to(plan.inside):
        return (plan.workspace / path.relative_to(plan.inside),)
    return (path,) if not plan.traits.containerised else ()  # what is in the image alone is not on this machine


def _places(plan: RunPlan) -> Iterable[Path]:
    """Yield the folder of the script, its parents up to the checkout, and what the checkout's scripts share."""
    root = plan.card.root
    script = root / plan.card.scripts
    folder = script if script.is_dir() else script.parent
    yield folder
    yield from (parent for parent in folder.parents if parent.is_relative_to(root))
    yield from (root / shared for shared in _SHARED)


def _csv(data: bytes) -> Json:
    text = data.decode("utf-8-sig")
    with unlimited_fields():
        header, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if any(map(str.strip, line))]
    names = [name.strip() for name in header]
    return typed_rows([{name: text for name, text in zip(names, line, strict=False) if name} for line in lines])


def _yaml(data: bytes) -> Json:
    import yaml

    value: Json = yaml.safe_load(data)
    return value


def _toml(data: bytes) -> Json:
    import tomli

    return tomli.loads(data.decode("utf-8"))


_READERS: dict[str, Callable[[bytes], Json]] = {
    ".csv": _csv,
    ".json": read_json,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
