"""What a training log can tell in numbers: the built-in quantities, and what one of a plugin's own is."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec.structs import force_setattr

from madlite.model.values import Value


class Quantity(Value, frozen=True, cache_hash=True):
    """A number that a training log can hold.

    `name` is a lower-case identifier: the group of a pattern, and the metric of a row.  `direction` is which is better,
    a `higher` value or a `lower` one; `neutral` where neither is.  `label` is what JSON and tables call it, the name
    where nothing else is said.  A plugin's reader brings quantities of its own by making them::

        LATENCY = Quantity(name="latency_ms", unit="ms", direction="lower")
    """

    name: str
    unit: str = ""
    direction: Literal["higher", "lower", "neutral"] = "neutral"
    label: str = ""

    LOSS: ClassVar[Quantity]
    GRAD_NORM: ClassVar[Quantity]
    LEARNING_RATE: ClassVar[Quantity]
    TOKENS_PER_S_PER_GPU: ClassVar[Quantity]
    SAMPLES_PER_S_PER_GPU: ClassVar[Quantity]
    IMAGES_PER_S_PER_GPU: ClassVar[Quantity]
    TFLOPS_PER_GPU: ClassVar[Quantity]
    STEP_TIME_S: ClassVar[Quantity]
    TOKENS_PER_S_PER_GPU_MEAN: ClassVar[Quantity]
    TFLOPS_PER_GPU_MEAN: ClassVar[Quantity]
    STEP_TIME_S_MEAN: ClassVar[Quantity]
    MEMORY_USED_GIB: ClassVar[Quantity]
    MEMORY_RESERVED_GIB: ClassVar[Quantity]
    MEMORY_ALLOCATED_GIB: ClassVar[Quantity]
    MEMORY_PERCENT: ClassVar[Quantity]
    MEMORY_USED_PERCENT: ClassVar[Quantity]
    MFU_PERCENT: ClassVar[Quantity]

    def __post_init__(self) -> None:
        if not self.label:
            force_setattr(self, "label", self.name)

    @property
    def is_speed(self) -> bool:
        """Whether it is work by time: of a training that runs it is above zero."""
        return self.direction == "higher" and "/s" in self.unit


_BUILT_IN = (
    Quantity(name="loss", direction="lower"),
    Quantity(name="grad_norm"),
    Quantity(name="learning_rate"),
    Quantity(name="tokens_per_s_per_gpu", unit="tokens/s/GPU", direction="higher", label="tokens/s/GPU"),
    Quantity(name="samples_per_s_per_gpu", unit="samples/s/GPU", direction="higher", label="samples/s/GPU"),
    Quantity(name="images_per_s_per_gpu", unit="images/s/GPU", direction="higher", label="images/s/GPU"),
    Quantity(name="tflops_per_gpu", unit="TFLOP/s/GPU", direction="higher", label="TFLOP/s/GPU"),
    Quantity(name="step_time_s", unit="s/step", direction="lower", label="s/step"),
    Quantity(
        name="tokens_per_s_per_gpu_mean",
        unit="tokens/s/GPU",
        direction="higher",
        label="tokens/s/GPU, running mean",
    ),
    Quantity(name="tflops_per_gpu_mean", unit="TFLOP/s/GPU", direction="higher", label="TFLOP/s/GPU, running mean"),
    Quantity(name="step_time_s_mean", unit="s/step", direction="lower", label="s/step, running mean"),
    Quantity(name="memory_used_gib", unit="GiB", label="GiB used on the device"),
    Quantity(name="memory_reserved_gib", unit="GiB", label="GiB reserved"),
    Quantity(name="memory_allocated_gib", unit="GiB", label="GiB allocated"),
    Quantity(name="memory_percent", unit="%", label="% of GPU memory"),
    Quantity(name="memory_used_percent", unit="%", label="% of GPU memory used"),
    Quantity(name="mfu_percent", unit="%", direction="higher", label="% MFU"),
)
for _one in _BUILT_IN:
    setattr(Quantity, _one.name.upper(), _one)

QUANTITIES = {one.name: one for one in _BUILT_IN}
"""The built-in quantities by their names, in the order in which they are shown."""
SPEEDS = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)
"""Those that a training is measured by, the first that it has."""
