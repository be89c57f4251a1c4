"""The eras of torchtitan's configuration: what each calls its options, and which it does not know.

Sources: torchtitan's job configuration at 0.1.0, 0.2.0, 0.2.1 and 0.2.2.  A key that it does not know ends it, so a
run is rendered for one era.  From 0.3 on the configuration is Python, and nothing is rendered for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

BEFORE = "0.0"  # until June 2025, which is what ROCm's images have
ERAS = {BEFORE: "before 0.1", "0.1": "0.1.0", "0.2.0": "0.2.0", "0.2": "0.2.1 and 0.2.2"}
OLD = frozenset({BEFORE, "0.1"})  # tiktoken files, [float8], compile below [training]
NEW = frozenset(ERAS) - OLD


class Option(NamedTuple):
    """An option that some eras alone know, or a section where it ends in a dot, and what sets it in all of them."""

    name: str
    eras: frozenset[str]
    instead: str


OPTIONS = (
    Option("training.compile", OLD, "compile=true"),
    Option("compile.", NEW, "compile=true"),
    Option("float8.", OLD, "precision=FP8"),
    Option("quantize.", NEW, "precision=FP8"),
    Option("model.hf_assets_path", NEW, "hf_assets_path=PATH"),
    Option("checkpoint.enable_checkpoint", OLD, "checkpoint=true"),
    Option("checkpoint.enable", NEW, "checkpoint=true"),
    Option("training.seed", frozenset(ERAS) - {"0.2"}, "seed=N"),
    Option("training.deterministic", frozenset(ERAS) - {"0.2"}, "deterministic=true"),
    Option("debug.", frozenset({"0.2"}), "seed=N or deterministic=true"),
    Option("parallelism.fsdp_reshard_after_forward", frozenset(ERAS) - {BEFORE}, "reshard=never"),
)
CONVERTERS = {"float8": OLD, "mx": OLD, "quantize.": NEW}


def unknown_options(names: Iterable[str], era: str) -> list[Option]:
    """Return those of the options that another era has and this one does not."""
    return [option for name in names for option in OPTIONS if era not in option.eras and _is(name, option.name)]


def float8_converter(era: str) -> str:
    """Return what an era calls the converter that makes linear layers FP8."""
    return "float8" if era in OLD else "quantize.linear.float8"


def converter_fits(name: str, era: str) -> bool:
    """Return whether an era can know a converter of this name; a user's own may have any."""
    return all(era in eras for known, eras in CONVERTERS.items() if _is(name, known))


def quantises(converter: str) -> bool:
    """Return whether a converter makes layers compute in fewer bits than the plan's precision says."""
    return re.search(r"(?:^|\.)(?:float8|mx)", converter) is not None


def _is(name: str, known: str) -> bool:
    return name.startswith(known) if known.endswith(".") else name == known
