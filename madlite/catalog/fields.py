"""Fields of cards that nothing reads: named, for one that is misspelt would else be left out in silence."""

from __future__ import annotations

from collections.abc import Iterable

from madlite.catalog.cards import KNOWN_FIELDS
from madlite.model import Card
from madlite.nearest import did_you_mean

# what madengine, MAD's own tools and people have fields for, and madlite reads elsewhere or has no use for
_THEIRS = frozenset(
    {
        *("distributed", "slurm", "k8s", "kubernetes", "env_vars", "vllm", "nnodes", "launcher", "deploy"),
        *("deployment_config", "shared_data", "primus", "description", "comment", "_comment", "_source"),
        *("log_error_pattern_scan", "log_error_patterns", "log_error_benign_patterns"),
    }
)


def odd_fields(cards: Iterable[Card]) -> list[str]:
    """Return a sentence for each field that no card has a meaning for, with the cards that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        for field in card.extra:
            if field not in _THEIRS and not field.startswith("_"):
                names = found.setdefault((card.source, field), [])
                names += [card.name] if card.name not in names else []
    return [_sentence(source, field, names) for (source, field), names in found.items()]


def _sentence(source: str, field: str, names: list[str]) -> str:
    whose = f"card '{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    close = did_you_mean(field, (*KNOWN_FIELDS, *_THEIRS), most=1)
    return f"{source}: field '{field}' of {whose} has no effect" + (f": {close}" if close else "")
