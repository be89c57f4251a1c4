"""Tables of model shapes, as madlite's own file and recipe books have them: `[architecture.NAME]`, a model each.

The keys are the fields of `Architecture`, and `also`, further names of the same shape.  A table whose one key is
`unknown` says why nothing is to be taken for known of a model, whatever another table has under its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from madlite.model import Architecture


def read_architectures(tables: Mapping[str, Mapping[str, object]]) -> dict[str, Architecture | str]:
    """Return the architecture of each name, or why it has none.

    Raises:
        ValueError: a table names what is no key, lacks one, or its sizes are no model's.
    """
    return {name: found for named, values in tables.items() for name, found in _read(named, values)}


def _read(named: str, values: Mapping[str, object]) -> Iterator[tuple[str, Architecture | str]]:
    if unknown := values.get("unknown"):
        if len(values) > 1 or not isinstance(unknown, str):
            raise ValueError(f"architecture '{named}' is unknown, and has keys beside that")
        yield named, unknown
        return
    sizes = {key: value for key, value in values.items() if key not in ("also", "name")}
    if strange := sorted(sizes.keys() - set(Architecture.__struct_fields__)):
        raise ValueError(f"architecture '{named}' sets {', '.join(strange)}, which no shape has")
    for name in (named, *msgspec.convert(values.get("also", ()), tuple[str, ...])):
        try:
            yield name, msgspec.convert({**sizes, "name": name}, Architecture)
        except msgspec.ValidationError as error:
            raise ValueError(f"architecture '{named}': {error}") from None
