"""What a run's numbers come to, who bears witness to them, and why a run failed."""

from __future__ import annotations

from typing import Literal

from madlite.model.architectures import Attention
from madlite.model.quantities import Quantity
from madlite.model.values import Value


class Window(Value, frozen=True):
    """Statistics of the steady steps, in the headline quantity's unit; `cv` is std ÷ mean.

    `drift` is how far the Theil-Sen line moves over the window, as a part of the median, None where too few steps say,
    and `drift_z` how sure that is, in Mann and Kendall's standard deviations; `outliers` counts the steps far from the
    median.  `began_s` and `ended_s` are seconds since the start of the run between which the window's steps were done,
    None for a log without times.
    """

    quantity: Quantity
    n: int
    first_step: int
    last_step: int
    dropped: int
    median: float
    mean: float
    std: float
    cv: float
    min: float
    max: float
    last: float = 0.0
    drift: float | None = None
    drift_z: float = 0.0
    outliers: int = 0
    began_s: float | None = None
    ended_s: float | None = None


class Compute(Value, frozen=True):
    """A throughput as floating-point work, by our own formula, and how far the framework's figure is from it.

    `flops_per_token` of forward and backward, for sequences of `seq_len` tokens; `otherwise` is the same by the other
    convention of attention.  `apart` is framework ÷ ours - 1, None where one of them is too small for its digits;
    `mfu` a part of the peak, None where `no_mfu` says why.
    """

    architecture: str
    attention: Attention
    flops_per_token: float
    tflops_per_gpu: float
    tokens_per_s_per_gpu: float = 0.0
    seq_len: int = 0
    otherwise: float = 0.0
    frozen: bool = False  # the weights: adapters alone are trained
    framework_tflops_per_gpu: float | None = None
    apart: float | None = None
    peak_tflops: float | None = None
    peak_of: str = ""  # GPU and number format, e.g. MI300X BF16
    peak_source: str = ""
    mfu: float | None = None
    no_mfu: str = ""


class Witness(Value, frozen=True):
    """One thing that speaks for or against a run's number; docs/verdict.md has the table.

    `agrees`; `doubts` marks a success as suspect; `denies` makes it a failure; `silent` where it cannot know.
    """

    name: str
    says: Literal["agrees", "doubts", "denies", "silent"]
    text: str = ""


class Diagnosis(Value, frozen=True):
    """Why a run failed: a cause code, the line that shows it, whose rank it was, and what to do.

    `where` is the deepest frame of the user's own code below an exception, as `file:line in function`.
    """

    cause: str
    line: str = ""
    rank: int | None = None
    hint: str = ""
    where: str = ""
    source: str = ""  # whose rule it was; "" where none was needed
