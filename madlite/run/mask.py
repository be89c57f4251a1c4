"""The border where what a workload, an engine or a results file said becomes a result: without secrets, and short.

Masked first: half of a secret would be none to the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace

from madlite.measure.limits import CELL_BYTES, LINE_BYTES, shortened
from madlite.model import Result
from madlite.results.rows import cut_of, limited_metric, masked_metric
from madlite.results.tame import tame

# what is said, and how long a text of it may be
_SAID = {
    **dict.fromkeys(("evidence", "diagnosis"), LINE_BYTES),
    **dict.fromkeys(
        ("reason", "findings", "suspect", "witnesses", "config", "provenance", "telemetry", "outcome"), CELL_BYTES
    ),
}
_MOST_CONFIG = 1000  # keys of the configuration that a log tells


def masked(result: Result, mask: Callable[[str], str]) -> Result:
    """Return the result with every text of foreign origin masked, and of its size; what was cut of a cell is told."""

    def short(most_bytes: int) -> Callable[[str], str]:
        return lambda text: shortened(mask(text), most_bytes)

    whole = tuple(masked_metric(metric, mask) for metric in result.metrics)
    note = cut_of(whole)
    config = dict(islice(result.config.items(), _MOST_CONFIG))
    result = replace(result, config=config, findings=(*result.findings, *([note] if note else [])))
    said = {name: tame(getattr(result, name), short(most_bytes)) for name, most_bytes in _SAID.items()}
    data_size = shortened(result.data_size, LINE_BYTES)
    return replace(result, metrics=tuple(map(limited_metric, whole)), data_size=data_size, **said)
