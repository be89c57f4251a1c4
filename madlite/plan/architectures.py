"""Which shape a planned model has: the draft's own, else that of madlite's table, with what settings put over it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from madlite.backends.recipe_book import read_architectures
from madlite.model import Architecture, Draft, Scalar, Value, Variant

TABLE = Path(__file__).with_name("architectures.toml")
_NEEDED = ("layers", "hidden", "heads", "vocab", "ffn")  # fields without which there is no shape


class Known(Value, frozen=True):
    """What is known of a model's shape: where it is from, or why there is none."""

    architecture: Architecture | None
    origin: str


@cache
def known_architectures() -> dict[str, Architecture]:
    """Return madlite's own table."""
    import tomli

    tables = tomli.loads(TABLE.read_text(encoding="utf-8"))["architecture"]
    return {name: one for name, one in read_architectures(tables).items() if isinstance(one, Architecture)}


def find_architecture(draft: Draft, variant: Variant | None, settings: Mapping[str, Scalar]) -> Known:
    """Return the shape of a draft's model once it is decided what `variant` and `settings` are."""
    if variant is None or not variant.model:
        return Known(architecture=None, origin="no model is named")
    own = draft.variant is not None and variant.model == draft.variant.model
    if own and draft.shape.unknown:
        return Known(architecture=None, origin=draft.shape.unknown)
    changed = [key for key in draft.shape.others if settings.get(key) != draft.settings.get(key)]
    if changed:
        words = ", ".join(f"{key}={settings.get(key)}" for key in changed)
        return Known(architecture=None, origin=f"no shape is known with {words}")
    base = (draft.architecture if own else None) or _named(variant.model)
    return _over(base, variant.model, draft.shape.fields, settings)


def _named(name: str) -> Architecture | None:
    table = known_architectures()
    exact = {one.casefold(): one for one in table}
    return table.get(exact.get(name.casefold(), ""))


def _over(base: Architecture | None, name: str, fields: Mapping[str, str], settings: Mapping[str, Scalar]) -> Known:
    """Return a shape with the fields that settings have."""
    set_by = {field: value for field, key in fields.items() if (value := settings.get(key))}
    if base is None and not all(field in set_by for field in _NEEDED):
        return Known(architecture=None, origin=f"no shape is known of a model '{name}'")
    before = {} if base is None else msgspec.structs.asdict(base)
    if not (set_by.get("experts") or before.get("experts")):
        set_by = {field: value for field, value in set_by.items() if "expert" not in field}
    differing = [field for field, value in set_by.items() if before.get(field) != value]
    if base is not None and not differing:
        return Known(architecture=base, origin=base.source)
    origin = ", ".join(filter(None, (base.source if base else "", "settings")))
    try:
        made = msgspec.convert({**before, **set_by, "name": name, "source": origin}, Architecture)
    except msgspec.ValidationError as error:
        return Known(architecture=None, origin=str(error))
    return Known(architecture=made, origin=origin)
