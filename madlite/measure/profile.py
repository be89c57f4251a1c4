"""A trace of torch's profiler over a few steps → where a step's time goes, and its largest loss.

Chrome's trace events as kineto writes them (https://github.com/pytorch/kineto): kernels name the operator that started
them by `External id` and the call by `correlation`, operators have `Input Dims`, collectives their bytes.  The parts of
a step follow HolisticTraceAnalysis' definitions: computation before communication before idle, so that communication is
exposed where nothing is computed meanwhile; they add up to the step.
"""

from __future__ import annotations

import math
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from madlite.files import read_plain
from madlite.model import STEP_PARTS, Knob, StepPart, StepProfile
from madlite.text import figure, percent

TRACE = "profile.json.gz"  # beside run.sh
_BEGIN, _END = "madlite.begin", "madlite.end"  # templates/profile/sitecustomize.py puts them around the steps
# of a trace, unpacked: three steps of an 8B model have 48 MB, 265,000
_LIMIT_BYTES, _MOST_OBJECTS = 512 << 20, 5_000_000

GEMM, ATTENTION, OPTIMIZER, OTHER, COPIES, COMMUNICATION, DATA, IDLE = STEP_PARTS
PARTS = STEP_PARTS[:-1]
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_OPTIMIZER_STEP = "Optimizer.step#"
_COMMUNICATION = re.compile(r"nccl|rccl|gloo|c10d::|record_param_comms", re.IGNORECASE)
_FUSED = re.compile(r"triton_(poi|red|per)_")  # inductor's kernels that are no product, named by what they stand beside
_ATTENTION = re.compile(r"attention|flash|fmha|attn|sdpa", re.IGNORECASE)
_GEMM = re.compile(
    r"gemm|nvjet|cutlass|cijk_|_mm\b|triton_tem_fused.*mm|^aten::(mm|addmm|bmm|baddbmm|linear)$", re.IGNORECASE
)


class _Args(msgspec.Struct):
    external: int = msgspec.field(name="External id", default=-1)
    correlation: int = -1
    dims: Any = msgspec.field(name="Input Dims", default=())
    concrete: Any = msgspec.field(name="Concrete Inputs", default=())
    collective: str = msgspec.field(name="Collective name", default="")
    elements_in: int = msgspec.field(name="In msg nelems", default=0)
    elements_out: int = msgspec.field(name="Out msg nelems", default=0)
    group: int = msgspec.field(name="Group size", default=0)
    dtype: str = ""


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ph: str = ""
    ts: float = 0.0  # microseconds, as `dur`
    dur: float = 0.0
    args: _Args = msgspec.field(default_factory=_Args)

    @property
    def end(self) -> float:
        return self.ts + self.dur


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")


def read_profile(path: Path, steps: int, peak_tflops: float | None) -> StepProfile:
    """Return where the time of a step goes; `peak_tflops` is that of the GPU in the run's precision.

    Raises:
        ValueError: the file is no trace of profiled steps, or too large.
    """
    try:
        data = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(read_plain(path, links=False), _LIMIT_BYTES + 1)
        if len(data) > _LIMIT_BYTES or data.count(b"{") > _MOST_OBJECTS:
            raise ValueError("the trace is too large to be read")
        events = msgspec.json.decode(data, type=_Trace).events
    except FileNotFoundError:
        what = "no torch optimizer of rank 0 made the steps, or its Python does not import sitecustomize"
        raise ValueError(what) from None
    except (OSError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the trace cannot be read: {error}") from error
    marks = {event.name: event for event in events if event.cat == "user_annotation"}
    begin, end = (marks[name].end if name in marks else 0.0 for name in (_BEGIN, _END))
    if not 0 < begin < end:
        raise ValueError("the trace has no steps in it")
    return _profile([event for event in events if event.ph == "X"], (begin, end), steps, peak_tflops)


def _profile(
    events: Sequence[_Event], within: tuple[float, float], steps: int, peak_tflops: float | None
) -> StepProfile:
    begin, end = within
    kernels = [event for event in events if event.cat in _ON_GPU and begin <= event.ts <= end]
    operators = [event for event in events if event.cat == "cpu_op"]
    work = _Classified(kernels or operators, operators, events)
    spans = work.spans | {DATA: [_span(event) for event in events if event.name.startswith("enumerate(DataLoader)")]}
    alone, communicating = exclusive_times(spans, begin, end)
    each_s = 1e6 * steps
    parts = [
        StepPart(name=name, time_s=alone[name] / each_s, **work.rates(name, peak_tflops if kernels else None))
        for name in STEP_PARTS
        if alone[name] > 0
    ]
    return StepProfile(
        steps=steps,
        step_s=(end - begin) / each_s,
        parts=tuple(sorted(parts, key=lambda part: -part.time_s)),
        hidden_communication_s=(communicating - alone[COMMUNICATION]) / each_s,
        on_gpu=bool(kernels),
    )


class _Classified:
    """What computed, or communicated: kernels, of a trace of a CPU alone its operators."""

    def __init__(self, busy: Sequence[_Event], operators: Sequence[_Event], events: Sequence[_Event]) -> None:
        self._by_id = {event.args.external: event for event in operators if event.args.external >= 0}
        self._called = {
            event.args.correlation: event for event in events if "runtime" in event.cat or "driver" in event.cat
        }
        self._stepping = sorted(_span(event) for event in events if event.name.startswith(_OPTIMIZER_STEP))
        self._events: dict[str, list[_Event]] = defaultdict(list)
        for event in busy:
            self._events[self._part(event)].append(event)

    @property
    def spans(self) -> dict[str, list[tuple[float, float]]]:
        return {name: list(map(_span, events)) for name, events in self._events.items()}

    def _part(self, event: _Event) -> str:
        operator = self._by_id.get(event.args.external)
        names = (event.name, operator.name if operator is not None else "")
        if any(map(_COMMUNICATION.search, names)):
            return COMMUNICATION
        if event.cat in ("gpu_memcpy", "gpu_memset"):
            return COPIES
        call = self._called.get(event.args.correlation) if event.cat == "kernel" else event
        place = bisect_right(self._stepping, (call.ts, math.inf)) - 1 if call is not None else -1
        if call is not None and place >= 0 and call.ts < self._stepping[place][1]:
            return OPTIMIZER
        if _FUSED.match(event.name):
            return OTHER
        if any(map(_ATTENTION.search, names)):
            return ATTENTION
        return GEMM if any(map(_GEMM.search, names)) else OTHER

    def rates(self, part: str, peak_tflops: float | None) -> dict[str, float]:
        """Return how fast a part was, as fields of a StepPart: of operators with shapes, of collectives with sizes."""
        if part == COMMUNICATION:
            moved = [(size, event.dur) for event in self._events[part] if (size := _bus_bytes(event.args))]
            took_us = sum(dur for _, dur in moved)
            return {"bus_gb_per_s": sum(size for size, _ in moved) / took_us / 1e3} if took_us else {}
        flops = dict[int, float]()
        took_us = 0.0
        for event in self._events[part] if part in (GEMM, ATTENTION) and peak_tflops else ():
            operator = self._by_id.get(event.args.external)
            count = operator_flops(operator.name, operator.args.dims, operator.args.concrete) if operator else 0.0
            if count:
                flops[event.args.external] = count
                took_us += event.dur
        if not took_us or not peak_tflops:
            return {}
        tflops = sum(flops.values()) / took_us / 1e6
        return {"tflops": tflops, "of_peak": tflops / peak_tflops}


def _span(event: _Event) -> tuple[float, float]:
    return event.ts, event.end


def exclusive_times(
    spans: Mapping[str, Iterable[tuple[float, float]]], begin: float, end: float
) -> tuple[dict[str, float], float]:
    """Return how long each part of `PARTS` goes on and none before it does, `IDLE` for none of all, and how long
    anything communicates, in the unit of the spans; the parts add up to `end - begin`.
    """
    changes = [(begin, 0, 0), (end, 0, 0)]
    for place, name in enumerate(PARTS):
        for span in spans.get(name, ()):
            first, last = max(span[0], begin), min(span[1], end)
            if first < last:
                changes += [(first, place, 1), (last, place, -1)]
    alone, open_spans, communicating = dict.fromkeys(STEP_PARTS, 0.0), [0] * len(PARTS), 0.0
    of_communication = PARTS.index(COMMUNICATION)
    for (now, place, change), (after, _, _) in pairwise(sorted(changes, key=itemgetter(0))):
        open_spans[place] += change
        if after > now:
            busy = next((name for name, count in zip(PARTS, open_spans, strict=True) if count), IDLE)
            alone[busy] += after - now
            communicating += (after - now) * bool(open_spans[of_communication])
    return alone, communicating


# Floating-point operations of an operator by the sizes of its inputs, as torch's own flop counter counts them
# (torch/utils/flop_counter.py): attention's way back computes two and a half times the matrix products of its way
# forward, and half of them where a query sees the keys before it alone.

_WAY_BACK = 2.5
# operator → where its query is among the inputs, where the length of the keys is in them, and its `is_causal`
_ATTENTION_INPUTS = {
    "aten::_scaled_dot_product_flash_attention": (0, -2, 4),
    "aten::_scaled_dot_product_efficient_attention": (0, -2, 6),
    "aten::_scaled_dot_product_cudnn_attention": (0, -2, 6),
    "aten::_cudnn_attention_forward": (0, -2, 10),
    "aten::_flash_attention_forward": (0, -3, 8),
    "aten::_efficient_attention_forward": (0, -3, 9),
    "aten::_scaled_dot_product_flash_attention_backward": (1, -2, 11),
    "aten::_scaled_dot_product_efficient_attention_backward": (1, -2, 11),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, -2, 14),
    "aten::_cudnn_attention_backward": (1, -2, 14),
    "aten::_flash_attention_backward": (1, -3, 11),
    "aten::_efficient_attention_backward": (1, -3, -1),
}


def operator_flops(name: str, dims: Any, concrete: Any) -> float:
    """Return the operations of a matrix product or an attention; 0 where its inputs do not say them."""
    with suppress(IndexError, TypeError, ValueError, OverflowError):
        if name in ("aten::mm", "aten::bmm", "aten::_scaled_mm"):
            return float(2 * math.prod(dims[0]) * dims[1][-1])
        if name in ("aten::addmm", "aten::baddbmm"):
            return float(2 * math.prod(dims[1]) * dims[2][-1])
        if name in _ATTENTION_INPUTS:
            query, length, causal = _ATTENTION_INPUTS[name]
            pairs = math.prod(dims[query]) * dims[query + 1][length]
            is_causal = causal >= 0 and str(concrete[causal]) in ("True", "1")
            return float(4 * pairs * (_WAY_BACK if query else 1) * (0.5 if is_causal else 1))
    return 0.0


_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1}


def _bus_bytes(args: _Args) -> float:
    """Return what a collective moves over each GPU's links (nccl-tests, doc/PERFORMANCE.md); 0 if not known."""
    size, others = _BYTES.get(args.dtype, 1 if "Float8" in args.dtype else 0), (args.group - 1) / max(1, args.group)
    if "allreduce" in args.collective:
        return 2 * others * size * args.elements_in
    return others * size * max(args.elements_in, args.elements_out)


# What a reader should know.


def part_texts(profile: StepProfile) -> Iterator[tuple[str, str]]:
    """Yield the parts of a step with their times, shares, and how fast they were."""
    yield "step", f"{_ms(profile.step_s)}, mean of {profile.steps}, {'rank 0' if profile.on_gpu else 'on the CPU'}"
    for part in profile.parts:
        texts = [_ms(part.time_s), f"{percent(part.time_s / profile.step_s)} of the step"]
        if part.tflops is not None and part.of_peak is not None:
            texts.append(f"{figure(part.tflops)} TFLOP/s, {percent(part.of_peak)} of the peak")
        if part.bus_gb_per_s is not None:
            texts.append(f"{figure(part.bus_gb_per_s)} GB/s over a GPU's links")
        yield part.name, ", ".join(texts)
    if profile.hidden_communication_s:
        yield "hidden communication", f"{_ms(profile.hidden_communication_s)}, while something is computed"


def _ms(time_s: float) -> str:
    return f"{figure(1e3 * time_s)} ms"


def most_saved(profile: StepProfile) -> dict[str, float]:
    """Return what settings that act on a part can save at most, as a part of the step.

    Hidden communication counts as communication: it takes units and bandwidth from what is computed meanwhile.
    """
    parts = {part.name: part.time_s / profile.step_s for part in profile.parts}
    hidden = profile.hidden_communication_s / profile.step_s
    return {**parts, COMMUNICATION: parts.get(COMMUNICATION, 0.0) + hidden}


def most_lost(profile: StepProfile) -> StepPart:
    """Return the part of a step that could shrink by most."""
    return max(profile.parts, key=_lost_s)


def largest_loss(profile: StepProfile, knobs: Iterable[Knob]) -> str:
    """Return the part of a step that is lost most of, as a sentence with the knobs that act on it."""
    part = most_lost(profile)
    share = percent(part.time_s / profile.step_s)
    told = {
        COMMUNICATION: f"{share} of the step waits for communication that no computation hides",
        DATA: f"{share} of the step waits for data",
        IDLE: f"in {share} of the step nothing runs: the host is too slow to start it",
    }.get(
        part.name,
        f"{part.name} takes {share} of the step" + (f" at {percent(part.of_peak)} of the peak" if part.of_peak else ""),
    )
    settings = ", ".join(knob.key for knob in knobs if part.name in knob.acts_on)
    return f"the largest loss: {told}" + (f" (settings that act on it: {settings})" if settings else "")


def _lost_s(part: StepPart) -> float:
    """Return the time of a part that better settings could save at most."""
    if part.of_peak is not None:
        return part.time_s * max(0.0, 1 - part.of_peak)
    return 0.0 if part.name in (GEMM, ATTENTION) else part.time_s
