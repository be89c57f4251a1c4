"""The witness of a run's configuration: what the trainer's own log says it ran with, against what was planned.

EffectiveConfig has numbers as text.  What a log does not say is no difference, and neither is what a plan leaves open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from madlite.measure.witnesses import table
from madlite.measure.witnesses.known import Known
from madlite.measure.witnesses.table import Testimony, say
from madlite.model import RunPlan, Value
from madlite.text import whole_number

OF_ROW = ("seq_len", "micro_batch", "global_batch", "world_size", "precision")
# key of EffectiveConfig → settings that plan it, the first that the backend has
OTHERS: dict[str, tuple[str, ...]] = {
    "steps": (),
    "tp": ("tp",),
    "pp": ("pp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp_replicate": ("dp_replicate",),
    "dp_shard": ("dp_shard",),
    "family": ("family",),
    "flavor": ("flavor",),
    "packed": ("packed",),
}
_OPEN = frozenset({"", "0", "-1", "none", "null", "auto"})  # what leaves a value to the framework
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_PRECISIONS = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "tf32", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp8", "float8", "mxfp8", "fp8_e4m3", "hybrid", "e4m3"), "fp8"),
    **dict.fromkeys(("fp4", "mxfp4", "nvfp4", "float4"), "fp4"),
}


class Difference(Value, frozen=True):
    """A value that is another one in the trainer's log."""

    key: str
    planned: str
    effective: str

    @property
    def text(self) -> str:
        """The difference in words."""
        return f"{self.key} is {self.effective} in the trainer's log, {self.planned} was planned"


def config(known: Known) -> Testimony:
    """Compare all that the log says with the plan."""
    plan, said = known.plan, known.log.config
    if plan is None or not known.by_steps:
        return say(table.CONFIG_UNKNOWN, "a card's own script decides" if plan else "no plan says what was to run")
    of_row, others = list(_differences(planned_row(plan), said)), list(_differences(planned_others(plan), said))
    if of_row:
        text = "; ".join(one.text for one in of_row)
        line = known.log.config_lines.get(of_row[0].key, "")
        return say(table.CONFIG_OTHER, f"{text}: the row would have a configuration that did not run", line)
    if others:
        return say(table.CONFIG_ODD, "; ".join(one.text for one in others))
    same = [key for key in (*planned_row(plan), *planned_others(plan)) if key in said]
    if not same:
        return say(table.CONFIG_UNKNOWN, "the log says nothing of what was planned")
    return say(table.CONFIG_SAME, ", ".join(f"{key} {said[key]}" for key in same))


def planned_row(plan: RunPlan) -> dict[str, str]:
    """Return what a row says of the configuration, by EffectiveConfig's names; the ranks of a CPU run are no GPUs."""
    variant = plan.variant
    sizes = {name: getattr(variant, name) for name in OF_ROW if name != "world_size"} if variant else {}
    ranks = plan.place.nodes * plan.place.gpus_per_node
    return _told({**sizes, "world_size": ranks})


def planned_others(plan: RunPlan) -> dict[str, str]:
    """Return what else is planned and logs tell of."""
    planned: dict[str, object] = {"steps": plan.variant.steps if plan.variant else None}
    for key, names in OTHERS.items():
        name = next((name for name in names if name in plan.settings), None)
        if name is not None:
            planned[key] = plan.settings[name]
    return _told(planned)


def normal(key: str, text: str) -> str:
    """Return a value in one spelling: numbers plain, switches as true or false, precisions by their bits."""
    word = text.strip().casefold()
    if key == "precision":
        return _PRECISIONS.get(word, "")
    number = whole_number(word)
    return _SWITCHES.get(word, word) if number is None else str(number)


def _told(planned: Mapping[str, object]) -> dict[str, str]:
    texts = {key: str(value) for key, value in planned.items() if value is not None}
    return {key: text for key, text in texts.items() if text.strip().casefold() not in _OPEN}


def _differences(planned: Mapping[str, str], said: Mapping[str, str]) -> Iterator[Difference]:
    for key, wanted in planned.items():
        ours, theirs = normal(key, wanted), normal(key, said.get(key, ""))
        if ours and theirs and theirs not in _OPEN and ours != theirs:
            yield Difference(key=key, planned=wanted, effective=said[key])
