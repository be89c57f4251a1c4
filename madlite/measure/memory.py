"""Memory of GPUs in a log: what was allocated, and how much more a run would have needed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from madlite.backends.log_formats import read_failure_rules
from madlite.measure.lines import Block, lines_with
from madlite.measure.rules import COMMON, needed_texts, without_rank
from madlite.measure.steps import Steps
from madlite.model import Cause, Quantity, RunPlan, Value
from madlite.text import whole_number

# Find lines by which memory ran short: an allocation failed, or succeeded only after the cache was freed.
#
# Sources of the formats: torch (`CUDA out of memory`, the table of `memory_summary`), torchtitan (`N CUDA memory
# allocation retries.`, `N CUDA OOM errors thrown.`), DeepSpeed (`N pytorch allocator cache flushes since last step`).

_SURVIVED = (
    re.compile(r"\b(?:CUDA|HIP|ROCm|XPU) out of memory\b.{0,80}\b(?:retry|retried|skipp|trying again)"),
    re.compile(r"\b[1-9]\d* [A-Z]+ OOM errors thrown|\bCUDA OOMs: [1-9]"),
)
_RETRIED = (
    re.compile(r"\b[1-9]\d* [A-Z]+ memory allocation retries|\bcudaMalloc retries: [1-9]"),
    re.compile(r"\b[1-9]\d* pytorch allocator cache flushes since last step"),
)
_LONGEST = 300  # characters of such a line that are kept


class MemoryScan:
    """Store the last line of each kind: counters in them only grow."""

    def __init__(self) -> None:
        self.out = ""  # by which memory ran out
        self.retried = ""  # by which an allocation was tried again

    def feed(self, block: Block) -> None:
        """Take lines in."""
        self.out = _last(block, _ran_out()) or self.out
        self.retried = _last(block, _RETRIED) or self.retried


@cache
def _ran_out() -> tuple[re.Pattern[str], ...]:
    """Return what shows that memory ran out: the failure rules that a process ends by, and what it survives."""
    rules = [rule for rule in read_failure_rules(COMMON) if rule.ends and rule.cause == Cause.GPU_MEMORY.value]
    return (*(re.compile(rule.pattern) for rule in rules), *_SURVIVED)


def _last(block: Block, patterns: Iterable[re.Pattern[str]]) -> str:
    found = ""
    for pattern in patterns:
        for text in needed_texts(pattern):  # most blocks of lines hold none of them, which is quick to see
            found = next((line for _, line in [*lines_with(block.text, text)][::-1] if pattern.search(line)), found)
    return without_rank(found)[:_LONGEST]


# What to do when a GPU's memory ran out, in the numbers of the run: its micro batch, its peak, the message's own.

# PyTorch's message, of 2.1 and later and of 1.x in brackets
_SIZE = r"(?<![\d.])(\d{1,15}(?:\.\d{0,15})?) ([KMGT]i?B|bytes)"
_REPORTED = {
    "total": re.compile(rf"(?:total capacity of {_SIZE}|{_SIZE} total capacity)"),
    "free": re.compile(rf"of which {_SIZE} is free|; {_SIZE} free"),
    "wanted": re.compile(rf"Tried to allocate {_SIZE}"),
    "own": re.compile(rf"this process has {_SIZE} memory in use"),
}
_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2**10, "KB": 2**-20, "MB": 2**-10, "GB": 1.0}


_MUCH = 0.05  # of a GPU's memory


class _OomReport(Value, frozen=True):
    """What the message reports, in GiB."""

    total: float | None
    free: float | None
    wanted: float | None
    own: float | None


def gpu_memory_hint(line: str, plan: RunPlan | None, steps: Steps, config: Mapping[str, str]) -> str:
    """Return what to try; `plan` None for a log that madlite's run did not make."""
    report = _OomReport(**{name: _gib(pattern, line) for name, pattern in _REPORTED.items()})
    used = _peak_usage(steps, report)
    smaller = _smaller(plan, config, report, completed=bool(steps))
    return "; ".join((*_foreign(report), f"{smaller}: {used}" if used else smaller))


def _smaller(plan: RunPlan | None, config: Mapping[str, str], report: _OomReport, *, completed: bool) -> str:
    """Return what would need less memory."""
    variant = plan.variant if plan else None
    takes_options = plan is not None and not plan.own_script
    micro = variant.micro_batch if variant else _whole(config.get("micro_batch", ""))
    if micro is None:
        return "a smaller batch per GPU, a shorter sequence or activation checkpointing"
    if micro > 1:
        less = _less(micro, report, completed=completed)
        options = f" ({_options(plan, micro, less)})" if plan and takes_options else ""
        return f"micro batch {micro} → {less}{options}"
    seq = (variant.seq_len if variant else None) or _whole(config.get("seq_len", ""))
    shorter = ("a shorter --seq-len" if takes_options else "a shorter sequence") + (f" than {seq}" if seq else "")
    return f"micro batch is 1 already: activation checkpointing, {shorter}, more GPUs or a narrower number format"


def _less(micro: int, report: _OomReport, *, completed: bool) -> int:
    """Return a micro batch that may fit: half of one that no step was completed with, for most was still to come.

    After a completed step, what was wanted beyond the GPU's memory is to be saved by samples of one size.
    """
    if not completed:
        return micro // 2
    if not report.total or report.wanted is None or report.free is None:
        return micro - 1
    whole = report.total + max(0.0, report.wanted - report.free)
    return max(1, min(micro - 1, int(micro * report.total / whole)))


def _options(plan: RunPlan, micro: int, less: int) -> str:
    """Return the options for a smaller micro batch; a planned global batch has to be a multiple of what it comes to."""
    whole = plan.variant.global_batch if plan.variant else None
    if not whole:
        return f"--batch-size {less}"
    ranks = data_ranks(plan)
    accumulation, rest = divmod(whole, micro * ranks)
    fixed = accumulation in (_setting(plan, "accumulation"), _setting(plan, "gas"))
    if accumulation > 1 and not fixed and whole % (less * ranks) == 0:
        return f"--batch-size {less}"  # in more passes
    fits = max(1, whole // (less * ranks)) if rest else accumulation
    return f"--batch-size {less} --set global_batch={fits * less * ranks}"


def data_ranks(plan: RunPlan) -> int:
    """Return how many ranks have samples of their own; all where the degrees of parallelism do not divide them."""
    ranks = plan.place.nodes * (plan.place.gpus_per_node or _setting(plan, "cpu_ranks"))
    degrees = math.prod(_setting(plan, name) for name in ("tp", "pp", "cp"))
    return ranks // degrees if ranks % degrees == 0 else ranks


def sequences_per_step(plan: RunPlan) -> int | None:
    """Return the global batch: the plan's, else what its micro batch comes to; None without a micro batch."""
    variant = plan.variant
    if variant is None or not variant.micro_batch:
        return None
    own = variant.micro_batch * data_ranks(plan) * _setting(plan, "accumulation") * _setting(plan, "gas")
    return variant.global_batch or own


def _setting(plan: RunPlan, name: str) -> int:
    """Return a number of the settings, 1 where it is none above that."""
    return _whole(str(plan.settings.get(name, ""))) or 1


def _peak_usage(steps: Steps, report: _OomReport) -> str:
    """Return how much was used at most: by the steps before or, where that is more, by the message."""
    percent = _most(steps, Quantity.MEMORY_PERCENT) or _most(steps, Quantity.MEMORY_USED_PERCENT)
    gib = _most(steps, Quantity.MEMORY_RESERVED_GIB) or _most(steps, Quantity.MEMORY_USED_GIB)
    now = _in_use(report)
    if now is not None and report.total and (now >= (gib or 0.0) or 100 * now / report.total >= (percent or 100.0)):
        return _used(report)
    if percent and gib:
        return f"peak was {percent:.0f} % of {100 * gib / percent:.0f} GiB"
    return f"peak was {percent:.0f} %" if percent else f"peak was {gib:.0f} GiB" if gib else _used(report)


def _in_use(report: _OomReport) -> float | None:
    known = report.total and report.free is not None and report.free <= report.total
    return report.total - report.free if known and report.total and report.free is not None else None


def _most(steps: Steps, quantity: Quantity) -> float | None:
    if quantity not in steps.quantities():
        return None
    values = [value for value in steps.curve(quantity).values if math.isfinite(value) and value > 0]
    return max(values, default=None)


def _used(report: _OomReport) -> str:
    now = _in_use(report)
    if now is not None and report.total:
        more = f", {report.wanted:.2f} GiB more were asked for" if report.wanted else ""
        return f"{100 * now / report.total:.0f} % of {report.total:.0f} GiB were in use{more}"
    return f"{report.wanted:.2f} GiB more were asked for" if report.wanted else ""


def _foreign(report: _OomReport) -> Iterator[str]:
    """Yield what to do about other processes on the GPU: a smaller run would still not be alone there."""
    if report.total and report.free is not None and report.own is not None:
        foreign = report.total - report.free - report.own
        if foreign > _MUCH * report.total:
            yield f"other processes hold {foreign:.0f} GiB of this GPU: end them or take other GPUs"


def _gib(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    if found is None:
        return None
    number, unit = (part for part in found.groups() if part is not None)
    return float(number) * _GIB[unit]


def _whole(text: str) -> int | None:
    return whole_number(text) or None  # 0 is no value
