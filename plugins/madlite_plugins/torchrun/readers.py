"""Readers of other backends that a card may name, for a script whose log is a known framework's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from madlite import Reader, RunPlan
from madlite_plugins.megatron_lm.reader import MegatronReader


class KnownLog(NamedTuple):
    """A framework's log: its reader, the speeds that its steps have, the first the result, and the node they are on."""

    reader: Callable[[RunPlan], Reader]
    speeds: tuple[str, ...]
    printed_on: Literal["first", "last"]


READERS: Mapping[str, KnownLog] = {
    "megatron_lm": KnownLog(MegatronReader, ("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_s"), "last")
}
"""By the name of the backend."""
