"""What every value is made of, and text that must not be seen."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec.structs import force_setattr

Scalar: TypeAlias = str | int | float | bool
Json: TypeAlias = Any  # a value as JSON knows it; only Card.extra and Context carry it


# Names in JSON that become paths: a value that is read anywhere is refused with another one.

RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$(?!\n)")
_FILE_NAME = r"^(?!\.{1,2}$)[^/\x00]*$"
_PATH_BELOW = r"^(?!/)(?!(?:[^\x00]*/)?\.\.(?:/|$))[^\x00]*$"
WRONG_NAMES = {
    RUN_ID.pattern: "is no id of a run",
    _FILE_NAME: "is no name of a file",
    _PATH_BELOW: "is no path below a folder",
}
"""What is wrong with a text that has not one of the patterns."""
RunId: TypeAlias = Annotated[str, msgspec.Meta(pattern=RUN_ID.pattern)]
"""The id of a run, which names its folder."""
FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=_FILE_NAME)]
"""One component of a path, or nothing."""
PathBelow: TypeAlias = Annotated[str, msgspec.Meta(pattern=_PATH_BELOW)]
"""A path below a folder, or nothing."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: immutable and keyword-only; make a changed copy with `msgspec.structs.replace`."""


class Secret:
    """Text that must never be seen: prints and serialises as `***`, `reveal()` gives it to an API."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself; only for handing it to a container's or a process's environment."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


if TYPE_CHECKING:
    EnvValue: TypeAlias = str | Secret
else:  # msgspec knows no union of text and a class of ours: who reads such values checks them
    EnvValue = Any


# Values as JSON.

# what JSON lets stand and terminals take for a command, or for the order in which text runs
_UNSAFE = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def json_line(value: object) -> bytes:
    """Return a value as one line of a file of JSON lines; bytes of the command line that are no UTF-8 as escapes."""
    return _to_bytes(value) + b"\n"


def to_json(value: object) -> str:
    """Return a value as indented JSON; paths as text, secrets as `***`, infinities and NaN as null.

    Bytes of the command line that are no UTF-8 are written as escapes: JSON knows text alone.  So are characters that
    could steer the terminal of who looks at the file; the value is the same.
    """
    text = msgspec.json.format(_to_bytes(value), indent=2).decode() + "\n"
    return text if text.isascii() and "\x7f" not in text else _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _to_bytes(value: object) -> bytes:
    plain = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_utf8(plain))


def _as_utf8(plain: Json) -> Json:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in plain.items()}
    return [_as_utf8(item) for item in plain] if isinstance(plain, (list, tuple)) else plain


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Secret):
        return "***"
    raise TypeError(f"{type(value).__name__} does not go into JSON")


# What a training log can tell in numbers: the built-in quantities, and what one of a plugin's own is.


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
    TOKENS_SEEN: ClassVar[Quantity]
    SAMPLES_SEEN: ClassVar[Quantity]

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
        name="tokens_per_s_per_gpu_mean", unit="tokens/s/GPU", direction="higher", label="tokens/s/GPU, running mean"
    ),
    Quantity(name="tflops_per_gpu_mean", unit="TFLOP/s/GPU", direction="higher", label="TFLOP/s/GPU, running mean"),
    Quantity(name="step_time_s_mean", unit="s/step", direction="lower", label="s/step, running mean"),
    Quantity(name="memory_used_gib", unit="GiB", label="GiB used on the device"),
    Quantity(name="memory_reserved_gib", unit="GiB", label="GiB reserved"),
    Quantity(name="memory_allocated_gib", unit="GiB", label="GiB allocated"),
    Quantity(name="memory_percent", unit="%", label="% of GPU memory"),
    Quantity(name="memory_used_percent", unit="%", label="% of GPU memory used"),
    Quantity(name="mfu_percent", unit="%", direction="higher", label="% MFU"),
    Quantity(name="tokens_seen", unit="tokens", label="tokens since the start"),
    Quantity(name="samples_seen", unit="samples", label="samples since the start"),
)
for _quantity in _BUILT_IN:
    setattr(Quantity, _quantity.name.upper(), _quantity)

QUANTITIES = {quantity.name: quantity for quantity in _BUILT_IN}
"""The built-in quantities by their names, in the order in which they are shown."""
SPEEDS = (Quantity.TOKENS_PER_S_PER_GPU, Quantity.SAMPLES_PER_S_PER_GPU, Quantity.IMAGES_PER_S_PER_GPU)
"""Those that a training is measured by, the first that it has."""


# How a run can end.


class Status(str, Enum):
    """perf.csv's status."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"


class Cause(str, Enum):
    """Why a run is no SUCCESS."""

    NONE = ""
    BUILD = "build_failed"
    IMAGE = "image_missing"
    ENGINE = "engine_unreachable"
    DISK = "disk_full"
    PREPARE = "prepare_failed"
    EXIT_CODE = "exit_code"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    NO_METRIC = "no_metric"
    BAD_NUMBER = "bad_number"
    ERROR_PATTERN = "error_pattern"
    NAN_LOSS = "nan_loss"
    INCOMPLETE = "incomplete"
    GPUS = "too_few_gpus"
    SKIPPED_ARCH = "skip_gpu_arch"
    DEPRECATED = "deprecated"
    INTERNAL = "internal_error"
    HANG = "hang"
    CONFIG = "config_mismatch"
    GPU_MEMORY = "gpu_out_of_memory"
    HOST_MEMORY = "host_out_of_memory"
    COLLECTIVE = "collective_timeout"
    NETWORK = "network"
    GATED = "gated_repository"
    MISSING_REPOSITORY = "missing_repository"
    INODES = "inodes_full"
    BAD_OPTION = "bad_option"
    MISSING_FILE = "missing_file"
    MISSING_PACKAGE = "missing_package"
    PACKAGE_CONFLICT = "package_conflict"
    GPU_FAULT = "gpu_fault"
    PYTHON = "python_error"
    KILLED = "killed"
    PREEMPTED = "preempted"
    CRASH = "crash"
    JOB = "job_failed"
    JOB_NEVER = "job_cannot_start"
    JOB_REFUSED = "job_refused"
    NODE = "node_failed"
