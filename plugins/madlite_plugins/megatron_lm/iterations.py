"""Megatron's iteration lines → numbers: Megatron-LM of 2024 to core 0.16, Megatron-Bridge, Megatron-DeepSpeed, Primus.

`iteration N/ M | label: value | label: value | …`: which segments there are, their order and what stands around them
vary.  `a/b` and `a (avg b)` are this line's number and a running mean.  A number counts only where something follows
that ends it: the bar and the space before it, a percent sign or a bracket; so a line that was cut off, or that another
process wrote into, loses numbers and never shortens one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from madlite import NUMBER, Quantity, is_foreign, number

_START = re.compile(r"iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_NUMBER = rf"(?:{NUMBER}|[-+]?(?i:nan|inf))"  # the loss is printed with capitals
_VALUE = re.compile(rf"\s*({_NUMBER})(?:TFLOPS)?(?:/({_NUMBER})|\s*\(avg ({_NUMBER})\))?\s+")
_SIZE = r"\d+(?:\.\d+)?\s?Gi?B"
_DEVICE_MEMORY = re.compile(
    rf"mem usage/free/total/usage_ratio:\s*(\d+(?:\.\d+)?)\s?Gi?B/{_SIZE}/{_SIZE}/(\d+(?:\.\d+)?)%"
)
_COUNT = re.compile(r"\s*(\d{1,12})\b")
_IN_THOUSANDS = re.compile(r"\d[\d.]{0,20}\s?[kKMG]")
_SKIPPED, _NAN = "number of skipped iterations", "number of nan iterations"
_OTHER_LOSS = re.compile(r"(?!mtp|indexer).*\bloss|reduced_train_loss")  # diffusion's is the last
# what GPT-NeoX and trainers of preferences call it; not a router's or an auxiliary one
_NAMED_LOSS = re.compile(
    r"(?:lm|train(?:ing)?|total|dpo|ipo|kto|orpo|simpo|grpo|gspo|ppo|sft|policy|actor|rm|reward|distill(?:ation)?|kd|ce|mlm"
    r"|nll|cross_entropy|pretrain(?:ing)?|language_model|model)_loss"
)
_FIRST_LOSSES = ("total_loss", "train_loss", "lm_loss")
_LABELS: dict[str, tuple[Quantity, Quantity | None, float]] = {
    "elapsed time per iteration (ms)": (Quantity.STEP_TIME_S, Quantity.STEP_TIME_S_MEAN, 1000),
    "elapsed time per iteration (s)": (Quantity.STEP_TIME_S, None, 1),  # Megatron-DeepSpeed of BigScience
    "throughput per GPU (TFLOP/s/GPU)": (Quantity.TFLOPS_PER_GPU, Quantity.TFLOPS_PER_GPU_MEAN, 1),
    "compute per GPU (TFLOP/s/GPU)": (Quantity.TFLOPS_PER_GPU, Quantity.TFLOPS_PER_GPU_MEAN, 1),
    "tokens per GPU (tokens/s/GPU)": (Quantity.TOKENS_PER_S_PER_GPU, Quantity.TOKENS_PER_S_PER_GPU_MEAN, 1),
    "tokens/s/GPU inst/harmonic mean": (Quantity.TOKENS_PER_S_PER_GPU, Quantity.TOKENS_PER_S_PER_GPU_MEAN, 1),
    "tokens per gpu per second (tgs)": (Quantity.TOKENS_PER_S_PER_GPU, None, 1),  # Megatron-DeepSpeed, and the next
    "TFLOPs": (Quantity.TFLOPS_PER_GPU, None, 1),
    "approx flops per GPU": (Quantity.TFLOPS_PER_GPU, None, 1),  # GPT-NeoX
    "images per GPU (images/s/GPU)": (Quantity.IMAGES_PER_S_PER_GPU, None, 1),
    "lm loss": (Quantity.LOSS, None, 1),
    "grad norm": (Quantity.GRAD_NORM, None, 1),
    "learning rate": (Quantity.LEARNING_RATE, None, 1),
    "mem usages": (Quantity.MEMORY_USED_PERCENT, None, 0.01),  # a share of the device, 0 to 1
}


class Iteration(NamedTuple):
    """What one iteration line says: it is number `n` of `of`, and begins in the text at `start`.

    Sizes are None where it has none; `skipped` is how many of those that it covers were left out, `unread` the text of
    what is no number here.
    """

    n: int
    of: int
    start: int
    values: dict[Quantity, float]
    global_batch: int | None = None
    seq_len: int | None = None
    of_images: bool = False
    skipped: int = 0
    unread: dict[Quantity, str] = {}


def read_iterations(text: str) -> Iterator[Iteration]:
    """Yield the iterations of a line: several where processes wrote into one line."""
    starts = list(_START.finditer(text))
    for at, start in enumerate(starts, 1):
        body = text[start.end() : starts[at].start() if at < len(starts) else len(text)]
        *segments, rest = body.split("|")
        # the first of a label counts
        fields = {label.strip(): value for label, _, value in [part.partition(":") for part in reversed(segments)]}
        values = _read_values(fields)
        values |= _read_memory(body)
        other = "" if "lm loss" in fields else next(filter(_OTHER_LOSS.fullmatch, fields), "")
        label = other or ("lm loss" if "lm loss" in fields else _named_loss(fields))
        if label and (loss := _VALUE.fullmatch(fields[label])):
            values[Quantity.LOSS] = number(loss[1])
        loss_text = fields.get(label)
        unread = _is_word(loss_text) and bool(values.keys() - {Quantity.LOSS}) and Quantity.LOSS not in values
        if unread or _lost(fields, rest, has_loss=loss_text is not None):
            values[Quantity.LOSS] = math.nan
        yield Iteration(
            n=int(start[1]),
            of=int(start[2]),
            start=start.start(),
            values=values,
            global_batch=_size(fields.get("global batch size")),
            seq_len=_count(fields.get("seq_length", fields.get("actual seqlen"))),
            of_images=bool(other),
            skipped=_count(fields.get(_SKIPPED)) or 0,
            unread=_unread(fields),
        )


def _unread(fields: Mapping[str, str]) -> dict[Quantity, str]:
    """Return the text of each number that is another language's, or in thousands."""
    texts = {known[0]: fields[label].strip() for label, known in _LABELS.items() if label in fields}
    return {quantity: text for quantity, text in texts.items() if is_foreign(text) or _IN_THOUSANDS.fullmatch(text)}


def _named_loss(fields: Mapping[str, str]) -> str:
    """Return the label of a training's loss that has an underscore in it, "" where there is none."""
    named = list(filter(_NAMED_LOSS.fullmatch, fields))
    return next((label for label in _FIRST_LOSSES if label in named), named[-1] if named else "")


def _read_values(fields: Mapping[str, str]) -> dict[Quantity, float]:
    values: dict[Quantity, float] = {}
    for label, text in fields.items():
        if (known := _LABELS.get(label)) and (found := _VALUE.fullmatch(text)):
            quantity, mean, in_unit = known
            values[quantity] = number(found[1]) / in_unit
            if mean and (second := found[2] or found[3]):
                values[mean] = number(second) / in_unit
    return values


def _read_memory(text: str) -> dict[Quantity, float]:
    """Return the device's memory in use, bytes ÷ 1024³ whatever the label says.

    What rocm-smi told some iterations ago is left out: it is of another kind, and stands beside the other.
    """
    found = next(
        (usage for usage in _DEVICE_MEMORY.finditer(text) if not text.endswith("rocm ", 0, usage.start())), None
    )
    return {Quantity.MEMORY_USED_GIB: number(found[1]), Quantity.MEMORY_USED_PERCENT: number(found[2])} if found else {}


def _lost(fields: Mapping[str, str], rest: str, *, has_loss: bool) -> bool:
    """Return whether the loss of an iteration was NaN, as far as its line shows; one that was cut off shows nothing.

    Megatron leaves out a loss that is not above zero, and so one that is NaN, without a word elsewhere in the line.
    It also leaves out the loss of iterations that it skipped; those are no failure where none is counted as NaN, for
    so the scale of FP16 is found.
    """
    label, _, last = rest.partition(":")
    failed = _count(fields.get(_NAN, last if label.strip() == _NAN else None))
    if failed is None:
        return False
    return failed > 0 or not (has_loss or _count(fields.get(_SKIPPED)))


def _is_word(text: str | None) -> bool:
    """Return whether this stands where a number should; of several words some are another process's."""
    return text is not None and len(text.split()) < 2


def _size(text: str | None) -> int | None:
    """Return a number that stands alone: what another process wrote into may have lost digits."""
    return _count(text) if text and text.strip().isdecimal() else None


def _count(text: str | None) -> int | None:
    found = _COUNT.match(text) if text else None
    return int(found[1]) if found else None
