"""Primus: AMD's launcher of pretraining with torchtitan, Megatron-LM and Megatron-Bridge (docs/backends/primus.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from madlite import Backend, FailureRule, LazyBackend, TreeCards, hookimpl, read_failure_rules


@hookimpl
def madlite_backends() -> Iterable[Backend]:
    """Bring the backend `primus`."""
    book = Path(__file__).with_name("recipes")
    return [LazyBackend("primus", "madlite_plugins.primus.backend:Primus", book)]


@hookimpl
def madlite_cards(trees: Sequence[Path]) -> Iterator[Mapping[str, object] | Path | TreeCards]:
    """Bring the documents' tags that no models.json of MAD has, and a card per config file of a Primus tree."""
    yield Path("models.json")
    for tree in trees:
        from madlite_plugins.primus.tree import cards_of_tree, is_primus_tree

        if is_primus_tree(tree):
            yield TreeCards(tree=tree, found=tuple(cards_of_tree(tree)))


@hookimpl
def madlite_failure_rules() -> Iterable[FailureRule]:
    """Explain the failures that Primus words itself."""
    return read_failure_rules(Path(__file__).with_name("failures.toml"))
