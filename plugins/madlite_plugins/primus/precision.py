"""What a config file trains in, as far as its name and the command line say it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from madlite import RunPlan
from madlite_plugins.primus.tree import precision_of

_OFF = ("", "null", "none", "false")
_MAKES_FP8 = ("--fp8", "--primus_turbo.use_moe_fp8")


def trained_precision(config: str, words: Sequence[str]) -> str:
    """Return BF16, FP8, MXFP8, …: a file that names none is for BF16, and an option makes FP8 of that.

    Of torchtitan that is `use_moe_fp8`, the experts' products; `use_turbo_float8_linear` changes how linear layers are
    computed where the model's file converts them, and makes none FP8 by itself.
    """
    named = precision_of(PurePosixPath(config).stem) or "BF16"
    return "FP8" if named == "BF16" and any(_option(words, name) not in _OFF for name in _MAKES_FP8) else named


def precision_of_run(plan: RunPlan) -> str:
    """Return what a plan's run trains in; of a card made of a config file the card knows it, from inside the file."""
    given = plan.card.recipe
    words = split_words(f"{plan.settings['flags']} {plan.run_args if not plan.card.scripts else ''}")
    found = trained_precision(str(plan.settings["config"]), words)
    if isinstance(given, dict) and given.get("config") == plan.settings["config"] and found == "BF16":
        return str(given.get("precision", "")) or found
    return found


def is_mislabelled(precision: str, settings: Mapping[str, object]) -> bool:
    """Return whether a recipe's config trains in another precision than the recipe is called by."""
    trained = trained_precision(str(settings["config"]), split_words(str(settings["flags"])))
    return bool(settings["config"]) and trained != precision.upper()


def split_words(text: str) -> list[str]:
    """Return the words of a command line, split at blanks where it has a quote that does not end."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def is_shell_words(text: str) -> bool:
    """Return whether a text can be split into the words of a command line, as templates do it."""
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def _option(words: Sequence[str], name: str) -> str:
    """Return the value that an option has in the end; nothing where it is not given."""
    value = ""
    for at, word in enumerate(words):
        if word == name:
            value = words[at + 1] if at + 1 < len(words) else ""
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value.lower()
