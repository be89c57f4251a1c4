"""What stands below a run's verdict on the screen: one function per kind of detail, each a line or none."""

from __future__ import annotations

from collections.abc import Iterator

from madlite.machine.telemetry.summary import LEAST_SAMPLES, throttled_words
from madlite.model import Result, RunPlan, Status, Telemetry

LONGEST = 300  # characters of a line of a log
FEW_SAMPLES = 5  # of the GPUs: from there on nothing is said of how many


def details(plan: RunPlan, result: Result) -> Iterator[str]:
    """Yield the lines, without their indentation, in the order in which they explain."""
    yield from compute_lines(result)
    yield from telemetry_lines(result)
    yield from diagnosis_lines(plan, result)
    yield from suspect_lines(result)


def compute_lines(result: Result) -> Iterator[str]:
    """Yield a success's throughput as floating-point work, and how much of the peak it is."""
    found = result.compute
    if found is None or result.status is not Status.SUCCESS:
        return
    frozen = ", frozen weights" if found.frozen else ""
    figure = f"{found.tflops_per_gpu:.0f}" if found.tflops_per_gpu >= 100 else f"{found.tflops_per_gpu:.3g}"
    text = f"{figure} TFLOP/s/GPU ({found.attention} attention{frozen})"
    if found.mfu is not None and found.peak_tflops is not None:
        gpu, _, number_format = found.peak_of.rpartition(" ")
        text += f", {100 * found.mfu:.1f} % of {gpu}'s {found.peak_tflops:.0f} TFLOP/s in {number_format}"
    yield text if found.mfu is not None else f"{text}; no MFU: {found.no_mfu}"


def telemetry_lines(result: Result) -> Iterator[str]:
    """Yield what the GPUs did in the steady window of a success, where it was looked at often enough."""
    found = result.telemetry
    if found is None or result.status is not Status.SUCCESS:
        return
    if found.over == "window" and found.samples >= LEAST_SAMPLES:
        yield from _gpu_line(found)
    elif not found.samples and found.problem:
        yield f"no telemetry: {found.problem[:LONGEST]}"


def all_telemetry_lines(result: Result) -> Iterator[str]:
    """Yield what the GPUs did however short it was looked at, and what could not be asked."""
    if (found := result.telemetry) is not None:
        yield from _gpu_line(found)
        if found.problem:
            yield f"telemetry: {found.problem[:LONGEST]}"


def _gpu_line(found: Telemetry) -> Iterator[str]:
    over = " over the whole run" if found.over == "run" else ""
    said = [] if found.power_w is None else [f"power {found.power_w:,.0f} W/GPU{over}"]
    said += [] if found.tokens_per_joule is None else [f"{_three_digits(found.tokens_per_joule)} tokens/J"]
    said += [throttled] if (throttled := throttled_words(found)) else []
    if said and found.samples < FEW_SAMPLES:
        said.append(f"{found.samples} sample" + "s" * (found.samples > 1))
    if said:
        yield ", ".join(said)


def _three_digits(value: float) -> str:
    """Return a number with three digits that count, as people write it: 14.5, 1,390."""
    short = f"{value:.3g}"
    return f"{float(short):,.0f}" if abs(value) >= 100 else short


def diagnosis_lines(plan: RunPlan, result: Result) -> Iterator[str]:
    """Yield the line that explains a failure, whose rank it was and where in the code, and what to do."""
    found = result.diagnosis
    line = found.line if found is not None and found.line else result.evidence
    if line and line not in result.reason and result.status is not Status.SUCCESS:
        yield f"> {line[:LONGEST]}"
    if found is None:
        return
    whose = f"rank {found.rank}" if found.rank is not None else ""
    if whose or found.where:
        yield ", ".join(filter(None, (whose, found.where and f"at {found.where[:LONGEST]}")))
    if found.hint:
        yield f"try: {found.hint}"


def suspect_lines(result: Result) -> Iterator[str]:
    """Yield why a success's number is doubtful."""
    yield from (f"suspect: {text}" for text in result.suspect)
