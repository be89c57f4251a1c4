"""Cards as they were found, and all of them together."""

from __future__ import annotations

from collections.abc import Callable

from madlite.model import Card, Problem, Value


class Found(Value, frozen=True):
    """A card and, where it was computed by a program, what completes it once it is selected."""

    card: Card
    finish: Callable[[], Card] | None = None

    def complete(self) -> Card:
        """Return the card as it is to be run; the program behind it is asked at most once.

        Raises:
            CatalogError: the program failed.
        """
        return self.finish() if self.finish else self.card


class Catalog(Value, frozen=True):
    """Every card there is, by layer; a card that a nearer one of the same name hides is in none of them."""

    checkout: tuple[Found, ...] = ()  # of the working folder
    installed: tuple[Found, ...] = ()  # of plugins, then those that come with madlite
    problems: tuple[Problem, ...] = ()  # files and cards that were left out

    @property
    def cards(self) -> tuple[Card, ...]:
        """All cards, nearest layer first; a computed one is not completed yet."""
        return tuple(found.card for found in (*self.checkout, *self.installed))
