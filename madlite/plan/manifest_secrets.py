"""Secrets that cards and a context spell out: under a key of a secret's name, or assigned within a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from madlite.model import Json
from madlite.secrets import MASK, SHORTEST, assigned, is_secret


def spelled_out(value: Json, name: str = "") -> Iterator[str]:
    """Yield the secret texts of a value that stands under `name`, those that are long enough to be masked anywhere."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from spelled_out(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from spelled_out(item, name)
    elif _is_secret(name, value):
        yield from [str(value)] if len(str(value)) >= SHORTEST else []
    elif isinstance(value, str):
        yield from assigned([value])


def hidden(value: Json, mask: Callable[[str], str], path: str = "") -> tuple[Json, tuple[str, ...]]:
    """Return a value with `***` for every secret in it, and the dotted paths of what was changed; `mask` does texts."""
    if isinstance(value, Mapping):
        parts = {key: hidden(item, mask, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        return {key: item for key, (item, _) in parts.items()}, _joined(parts.values())
    if isinstance(value, (list, tuple)):
        items = [hidden(item, mask, path) for item in value]
        return [item for item, _ in items], _joined(items)
    is_text = isinstance(value, str)
    shown = MASK.decode() if _is_secret(path.rpartition(".")[2], value) else mask(value) if is_text else value
    return shown, (path,) if shown != value else ()


def _is_secret(name: str, value: Json) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and is_secret(name, str(value))


def _joined(parts: Iterable[tuple[Json, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, names in parts for name in names))
