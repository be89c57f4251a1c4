"""The context of a run as its folder keeps it: the same values, for doing the run again, without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from madlite.measure.performance import CELL_BYTES, LINE_BYTES, shortened
from madlite.model import Json, Result, Value, to_json
from madlite.perfcsv.rows import cut_of, limited_metric, masked_metric
from madlite.perfcsv.stored import read_record
from madlite.plan.inputs import RUNS
from madlite.secrets import is_secret
from madlite.store.folder import CONTEXT
from madlite.store.record import sanitized

_OF_A_RUN = re.compile(rf"(?:^|[=/]){RUNS}/(?P<id>[^/]+)/{re.escape(CONTEXT)}$")


class ContextFile(Value, frozen=True):
    """A context that can be given again, and the places of what was left out of it."""

    values: dict[str, Json] = {}
    left_out: tuple[str, ...] = ()

    @property
    def data(self) -> bytes:
        """The file; nothing where there is no value."""
        return to_json(self.values).encode() if self.values else b""


def context_file(values: Mapping[str, Json], mask: Callable[[str], str]) -> ContextFile:
    """Return the context without what is secret, by its name or for holding a secret that `mask` knows."""
    left_out: list[str] = []
    public = dict(_without_secrets(values, mask, "", left_out))
    return ContextFile(values=public, left_out=tuple(left_out))


def left_out_before(command: Iterable[str], workspace: Path) -> tuple[str, ...]:
    """Return the places that were left out of the context of an earlier run, where a command names its file."""
    for word in command:
        if found := _OF_A_RUN.search(word):
            record = read_record(workspace / RUNS / found["id"])
            return record.context_left_out if record is not None else ()
    return ()


def _without_secrets(
    values: Mapping[str, Json], mask: Callable[[str], str], above: str, left_out: list[str]
) -> Iterator[tuple[str, Json]]:
    for name, value in values.items():
        place = f"{above}.{name}" if above else str(name)
        if _holds_secret(str(name), mask):
            left_out.append(mask(place))
        elif isinstance(value, Mapping):
            yield name, dict(_without_secrets(value, mask, place, left_out))
        elif (isinstance(value, str) and is_secret(str(name), value)) or _holds_secret(value, mask):
            left_out.append(mask(place))
        else:
            yield name, value


def _holds_secret(value: Json, mask: Callable[[str], str]) -> bool:
    if isinstance(value, str):
        return mask(value) != value
    if isinstance(value, Mapping):
        return any(
            _holds_secret(item, mask) or (isinstance(item, str) and is_secret(str(key), item))
            for key, item in value.items()
        )
    return isinstance(value, (list, tuple)) and any(_holds_secret(item, mask) for item in value)


# The border where what a workload, an engine or a results file reported becomes a result: without secrets, and short.
#
# Masked first: half of a secret would be none to the mask.

# fields with foreign text, and how long it may be
_TEXT_LIMITS = {
    **dict.fromkeys(("evidence", "diagnosis"), LINE_BYTES),
    **dict.fromkeys(
        ("reason", "findings", "suspect", "checks", "config", "provenance", "telemetry", "nodes", "outcome"), CELL_BYTES
    ),
}
_MOST_CONFIG = 1000  # keys of the configuration that a log reports


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked, and of its size; a cut cell is reported."""

    def shortener(most_bytes: int) -> Callable[[str], str]:
        return lambda text: shortened(mask(text), most_bytes)

    whole = tuple(masked_metric(metric, mask) for metric in result.metrics)
    cut_note = cut_of(whole)
    config = dict(islice(result.config.items(), _MOST_CONFIG))
    result = replace(result, config=config, findings=(*result.findings, *([cut_note] if cut_note else [])))
    texts = {name: sanitized(getattr(result, name), shortener(most_bytes)) for name, most_bytes in _TEXT_LIMITS.items()}
    data_size = shortened(result.data_size, LINE_BYTES)
    return replace(result, metrics=tuple(map(limited_metric, whole)), data_size=data_size, **texts)
