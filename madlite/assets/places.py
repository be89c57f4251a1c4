"""Where fetched things lie, and what the environment reports about the hub.

Variables: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from string import Template

from madlite.model import EnvValue, Secret, Value

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_HF_TOKEN")
"""Variables that hand a Hugging Face token to a run."""
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
DATA = "MADLITE_DATA_DIR"
HUB = "https://huggingface.co"
_ON = ("1", "on", "yes", "true")  # as huggingface_hub reads them


class Token(Value, frozen=True):
    """A token of the hub and the variable, or file, it comes from."""

    value: Secret
    origin: str


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder in which huggingface_hub keeps repositories."""
    for name in CACHES:
        if environ.get(name):
            return _path(environ[name], environ)
    home = _path(environ["HF_HOME"], environ) if environ.get("HF_HOME") else _cache(environ) / "huggingface"
    return home / "hub"


def data_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of prepared data."""
    return _path(environ[DATA], environ) if environ.get(DATA) else _cache(environ) / "madlite/data"


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """Return the address of the hub."""
    return (environ.get("HF_ENDPOINT", "").strip() or HUB).rstrip("/")


def is_offline(env: Mapping[str, EnvValue]) -> bool:
    """Return whether the environment forbids to ask the hub."""
    return any(is_on(env.get(name, "")) for name in OFFLINE)


def is_on(value: EnvValue) -> bool:
    """Return whether a switch of the hub's libraries is on."""
    return str(value).strip().lower() in _ON


def find_token(env: Mapping[str, EnvValue]) -> Token | None:
    """Return the hub's token of an environment."""
    for name in TOKENS:
        given = env.get(name, "")
        text = given.reveal() if isinstance(given, Secret) else given
        if text.strip():
            return Token(value=Secret(text.strip()), origin=name)
    return None


def stored_token() -> Token | None:
    """Return the token that `hf auth login` left on this machine."""
    from huggingface_hub import get_token

    text = (get_token() or "").strip()
    return Token(value=Secret(text), origin="hf auth login") if text else None


def _cache(environ: Mapping[str, str]) -> Path:
    folder = environ.get("XDG_CACHE_HOME")
    return _path(folder, environ) if folder else _home(environ) / ".cache"


def _path(text: str, environ: Mapping[str, str]) -> Path:
    """Return a folder as huggingface_hub reads it: `~` and `$NAME` mean what they mean to a shell."""
    path = Path(Template(text).safe_substitute(environ))
    if path.parts[:1] == ("~",):
        path = _home(environ).joinpath(*path.parts[1:])
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they are named


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
