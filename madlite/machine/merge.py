"""Put the sources' views of the same GPUs together, fact by fact."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from madlite.machine.facts import Seen, Source

FACTS = tuple(name for name in Seen.__struct_fields__ if name != "position")
KEYS = ("node_id", "bus", "unique_id")  # what names a GPU, surest first; partitions share a unique id


class Merged(Source, frozen=True):
    """The GPUs with all that is known of them; `origins` names the source of each fact."""

    origins: dict[str, str] = {}


def merge_sources(kfd: Source, tools: Sequence[Source]) -> Merged:
    """Return the GPUs of the first source that lists any, completed from the others.

    KFD is asked first as the driver itself. GPUs are numbered as the first tool numbers them that can be matched to
    it one by one, which is how GPU ids are given on a command line.
    """
    listing = [source for source in (kfd, *tools) if source.gpus]
    if not listing:
        return Merged(name="")
    base = _in_tool_order(kfd.gpus, tools) if kfd.gpus else listing[0].gpus
    views = {source.name: _views(base, source.gpus) for source in listing}
    origins: dict[str, str] = {"gpus": listing[0].name}
    gpus = tuple(_complete(gpu.position, place, views, origins) for place, gpu in enumerate(base))
    return Merged(name=listing[0].name, gpus=gpus, origins=origins)


def pair(gpus: Sequence[Seen], others: Sequence[Seen]) -> list[Seen] | None:
    """Return for each GPU the other source's view of it, by the first key that names all of them; None without."""
    for key in KEYS:
        table = {getattr(other, key): other for other in others if getattr(other, key) not in (None, "")}
        if len(table) == len(others) and all(getattr(gpu, key) in table for gpu in gpus):
            return [table[getattr(gpu, key)] for gpu in gpus]
    return None


def _in_tool_order(gpus: Sequence[Seen], tools: Sequence[Source]) -> list[Seen]:
    for tool in tools:
        paired = pair(gpus, tool.gpus)
        if paired and len({view.position for view in paired}) == len(gpus):
            numbered = zip(gpus, paired, strict=True)
            renamed = [msgspec.structs.replace(gpu, position=view.position) for gpu, view in numbered]
            return sorted(renamed, key=lambda gpu: gpu.position)
    return list(gpus)


def _views(base: Sequence[Seen], gpus: Sequence[Seen]) -> list[Seen]:
    """Return one view per GPU; by position where nothing names them, empty where not even the counts agree."""
    paired = pair(base, gpus)
    if paired is not None:
        return paired
    return list(gpus) if len(gpus) == len(base) else [Seen(position=gpu.position) for gpu in base]


def _complete(position: int, place: int, views: dict[str, list[Seen]], origins: dict[str, str]) -> Seen:
    known: dict[str, object] = {}
    for name in FACTS:
        for source, view in views.items():
            value = getattr(view[place], name)
            if value not in (None, ""):
                known[name] = value
                origins.setdefault(name, source)
                break
    return msgspec.structs.replace(Seen(position=position), **known)
