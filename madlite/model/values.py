"""What every value is made of, and text that must not be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

Scalar: TypeAlias = str | int | float | bool
Json: TypeAlias = Any  # a value as JSON knows it; only Card.extra and Context carry it


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: immutable and keyword-only; make a changed copy with `msgspec.structs.replace`."""


class Secret:
    """Text that must never be seen: prints and serialises as `***`, `reveal()` gives it to an API."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself; only for handing it to a container's or a process's environment."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


if TYPE_CHECKING:
    EnvValue: TypeAlias = str | Secret
else:  # msgspec knows no union of text and a class of ours: who reads such values checks them
    EnvValue = Any
