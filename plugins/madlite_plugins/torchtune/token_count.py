"""How often torchtune counted each token where a tensor-parallel group shares them.

Its tokens are summed over all ranks, and ranks of one group have the same.  0.6.1 leaves it at that; later sources
divide by what is not data parallel.  Which of the two a recipe does, madlite's run says (templates/torchtune/
make_config.py looks into the recipe's file); of another log the configuration may, by keys that 0.6.1 does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from madlite import Event, Quantity, Step, Summary

LATER = frozenset({"cp", "dp_shard", "dp_replicate"})  # of ConfigLines: no key of 0.6.1
_COUNTED_BY = re.compile(
    r"madlite: this torchtune counts each token (once|by every rank of a tensor-parallel group)\s*$"
)
_SPEED = Quantity.TOKENS_PER_S_PER_GPU


class TokenCount:
    """Follows what a log reports about it; `tp` is the degree as text, as a configuration has it."""

    def __init__(self, tp: str = "1") -> None:
        self._tp = tp
        self._later = False
        self._once: bool | None = None

    def begin(self) -> None:
        """Take the next configuration's word for the degree."""
        self._tp, self._later = "1", False

    def read_config(self, values: Mapping[str, str]) -> None:
        """Take what a line of the configuration tells."""
        self._tp = values.get("tp", self._tp)
        self._later = self._later or bool(LATER & values.keys())

    def read_remark(self, text: str) -> None:
        """Take what madlite's own line of the recipe says."""
        if found := _COUNTED_BY.match(text):
            self._once = found[1] == "once"

    def corrected(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield events with each token counted once, without a speed where it is not known how often it was."""
        times = self._times()
        for event in events:
            if times == 1:
                yield event
            elif isinstance(event, Step):
                if values := _divided(event.values, times):
                    yield replace(event, values=values)
            elif not isinstance(event, Summary):
                yield event
            elif values_ := {key: text for key, text in event.values.items() if "tokens" not in key}:
                yield Summary(values=values_)

    def _times(self) -> int:
        """Return how often each token was counted, 0 where it is not known."""
        if self._once or self._tp == "1" or (self._once is None and self._later):
            return 1
        known = self._once is False and self._tp.isdecimal() and len(self._tp) < 7
        return int(self._tp) if known else 0


def _divided(values: Mapping[Quantity, float], times: int) -> dict[Quantity, float]:
    rest = {quantity: value for quantity, value in values.items() if quantity != _SPEED}
    return {**rest, _SPEED: values[_SPEED] / times} if times and _SPEED in values else rest
