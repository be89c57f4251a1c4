"""Text of the screens: durations, counts, causes, checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from madlite.model import (
    QUANTITIES,
    Diagnosis,
    Metric,
    Quantity,
    Result,
    RunPlan,
    Status,
    Step,
    Study,
    Telemetry,
    Variant,
    Window,
)
from madlite.model.results import Attempt
from madlite.text import change, counted, figure, first_of, percent, status_text

_BUILT_IN = frozenset(("", *(quantity.unit for quantity in QUANTITIES.values())))  # units

# Runs on the screen: one line each, with the reason of a failure.


def title(plan: RunPlan, position: int, total: int) -> str:
    """Return the first line of a run, in the format that MAD's tooling parses."""
    variant = plan.variant
    what = [plan.card.name if plan.blocked else f"Running model {plan.card.name}"]
    what += [plan.backend] if plan.backend else []
    if plan.image is not None:
        what.append(plan.image.ref)
    if variant:
        what += [part for part in (variant.mode, variant.precision) if part]
    gpus = f"{plan.place.gpus_per_node}x{plan.machine.device}" if plan.place.gpus_per_node else "cpu"
    nodes = [f"{plan.place.spanned} nodes"] if plan.place.spanned > 1 else []
    return f"[{position}/{total}] " + " · ".join([*what, *filter(None, [plan.known_runtime]), *nodes, gpus])


def study_text(study: Study) -> str:
    """Return the study of a run: `sweep 20261122T093011-3fa91c: batch_size=4`, `repeat …: run 2 of 5, caches warm`."""
    from madlite.secrets import masked_value

    said = [f"{name}={masked_value(name, value)}" for name, value in study.varied.items()]
    said += ["warm-up, no result"] if study.warm_up else []
    said += ["short, no result"] if study.short else []
    of = f" of {study.count}" if study.count is not None else ""  # of a search nobody knows how many it takes
    said += [f"run {study.index}{of}"] if study.index is not None else []
    said += [f"caches {study.caches}"] if study.caches and not study.warm_up else []
    return f"{study.kind} {study.id}" + (f": {', '.join(said)}" if said else "")


def attempt_text(attempt: Attempt) -> str:
    """Return which attempt of a run this is: `2, after ID [network]; tried again as ID`."""
    earlier = ", ".join(f"{failed.run} [{failed.cause}]" for failed in attempt.earlier)
    after = f", after {earlier}" if earlier else ""
    return f"{attempt.number}{after}" + (f"; tried again as {attempt.next}" if attempt.next else "")


CACHES = {
    "cold": "cold: nothing was compiled or tuned before it",
    "warm": "warm: filled by a run before it, of the same study",
    "user": "the user's: whatever they hold",
}
"""What a record's `caches` mean."""


def step_line(plan: RunPlan, step: Step) -> str:
    """Return a training step as a line: number, speed, loss."""
    total = plan.trained_steps
    parts = [f"step {step.n}/{total}" if total else f"step {step.n}"]
    if step.speed is not None:
        quantity, value = step.speed
        parts.append(f"{figure(value)} {quantity.label}")
    if Quantity.LOSS in step.values:
        parts.append(f"loss {figure(step.values[Quantity.LOSS])}")
    return "  ".join(parts)


def verdict_line(plan: RunPlan, result: Result) -> str:
    """Return the outcome in one line."""
    name = plan.card.name
    if result.status is not Status.SUCCESS:
        cause = f" [{result.code}]" if result.code else ""
        return f"{result.status.value} {name}{cause} {short_reason(result)}"
    return f"{status_text(result.status.value, result.suspect)} {name}  {figures(result)}"


def short_reason(result: Result) -> str:
    """Return why a run is no success without its cause and what to do, which have places of their own."""
    found = result.diagnosis
    if found is None:
        return result.reason
    return result.reason.removesuffix(f"; {found.hint}").removesuffix(f" ({found.cause})")


def figures(result: Result) -> str:
    """Return a success's numbers: the window's median where there is one, else the first metrics."""
    window = result.window
    if window is not None:
        headline = result.metrics[-1]
        less = "; less is better" if headline.lower_is_better else ""
        return f"{headline.text} {headline.metric}{_unit(headline)} ({window_text(window)}{less})"
    good = [metric for metric in result.metrics if metric.status is Status.SUCCESS]
    shown = [
        f"{metric.label + ' ' if metric.label else ''}{metric.text} {metric.metric}{_unit(metric)}" for metric in good
    ]
    return first_of(shown, 3)


def outcome_text(result: Result | None) -> str:
    """Return how a run ended, before what became of its rows: `SUCCESS 12.5 tok, `; "" of one that has none."""
    if result is None:
        return ""
    more = f" {figures(result)}" if result.status is Status.SUCCESS and result.metrics else ""
    if result.status is Status.FAILURE and result.diagnosis is not None:
        more = f" [{result.diagnosis.cause}]"
    return f"{status_text(result.status.value, result.suspect)}{more}, "


def _unit(metric: Metric) -> str:
    """Return the unit of a plugin's own metric; those of the built-in ones are in their names."""
    is_in_name = metric.unit.replace("/", "_per_") in metric.metric
    return f" {metric.unit}" if metric.unit not in _BUILT_IN and not is_in_name else ""


def window_text(window: Window) -> str:
    """Return which steps a median covers, with their spread where there is more than one."""
    if window.n == 1:
        return f"of step {window.first_step} alone"
    return f"median of {window.n} steps, {window.first_step} to {window.last_step}, CV {percent(window.cv)}"


def window_statistics(window: Window) -> str:
    """Return the statistics of a window beside its median, in the unit of that."""
    spread = f"mean {figure(window.mean)}, std {figure(window.std)}, min {figure(window.min)}, max {figure(window.max)}"
    drift = "" if window.drift is None else f", drift {change(window.drift)}"
    return f"{spread}, last {figure(window.last)}{drift}, {window.outliers} outliers, {window.dropped} dropped"


def may_have_reference(result: Result, variant: Variant | None) -> bool:
    """Return whether a published figure may apply to a result: its model and sizes are known."""
    known = variant is not None or any(metric.columns for metric in result.metrics)
    return result.status is Status.SUCCESS and bool(result.metrics) and known


def mad_lines(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the metrics beside the window's median, with words for them: those of MAD's own parsers, a plugin's own."""
    of_mad = [metric for metric in result.metrics[:-1] if metric.unit in _BUILT_IN]
    others = [metric for metric in result.metrics[:-1] if metric.unit not in _BUILT_IN]
    for words, metrics in (("by MAD's own rules", of_mad), ("also", others)):
        if result.window is not None and metrics:
            yield words, ", ".join(f"{metric.text} {metric.metric}{_unit(metric)}" for metric in metrics)


def retained(plan: RunPlan, result: Result) -> list[str]:
    """Return what a run with --keep-alive or --keep-model-dir left in place, and how to open or remove it."""
    if plan.blocked is not None:
        return []
    lines = []
    if plan.keep_alive and plan.traits.containerised:
        lines.append(f"kept: a container labelled madlite.run={plan.id}; madlite clean --kept --yes removes it")
        lines += [f"kept: {result.shell}   opens a shell in it"] if result.shell else []
    elif plan.keep_alive:
        lines.append("kept: what the run left running; madlite clean --kept --yes ends it")
    if (plan.keep_alive or plan.keep_model_dir) and plan.model_dir:
        lines.append(f"kept: {plan.model_dir}/")
    return lines


# Details below a run's verdict: one function per kind, each a line or none.

LONGEST = 300  # characters of a line of a log
FEW_SAMPLES = 5  # of the GPUs: below this the count is shown


def details(plan: RunPlan, result: Result) -> Iterator[str]:
    """Yield the lines, without their indentation, in the order in which they explain."""
    yield from compute_lines(result)
    yield from telemetry_lines(result)
    yield from diagnosis_lines(plan, result)
    yield from suspect_lines(result)
    if result.beside:
        yield (
            "beside 1 other run" if len(result.beside) == 1 else f"beside {len(result.beside)} other runs in its course"
        )


def compute_lines(result: Result) -> Iterator[str]:
    """Yield a success's throughput as floating-point work, and how much of the peak it is."""
    found = result.compute
    if found is None or result.status is not Status.SUCCESS:
        return
    frozen = ", frozen weights" if found.frozen else ""
    text = f"{figure(found.tflops_per_gpu)} TFLOP/s/GPU ({found.attention} attention{frozen})"
    if found.mfu is not None and found.peak_tflops is not None:
        gpu, _, number_format = found.peak_of.rpartition(" ")
        text += f", {percent(found.mfu)} of {gpu}'s {found.peak_tflops:.0f} TFLOP/s in {number_format}"
    yield text if found.mfu is not None else f"{text}; no MFU: {found.no_mfu}"


def telemetry_lines(result: Result) -> Iterator[str]:
    """Yield the telemetry of the steady window of a success, where it has enough samples, and of its start."""
    from madlite.machine.telemetry import LEAST_SAMPLES  # with all that samples GPUs

    found = result.telemetry
    if found is None or result.status is not Status.SUCCESS:
        return
    if found.over == "window" and found.samples >= LEAST_SAMPLES:
        yield from _gpu_line(found)
    elif began := start_text(found):
        yield f"the GPUs {began}"
    elif not found.samples and found.problem:
        yield f"no telemetry: {found.problem[:LONGEST]}"


def all_telemetry_lines(result: Result) -> Iterator[str]:
    """Yield the telemetry however few samples it has, and what could not be measured."""
    if (found := result.telemetry) is not None:
        yield from _gpu_line(found)
        if found.problem:
            yield f"telemetry: {found.problem[:LONGEST]}"


def _gpu_line(found: Telemetry) -> Iterator[str]:
    from madlite.machine.telemetry import format_throttling

    over = " over the whole run" if found.over == "run" else ""
    said = [] if found.power_w is None else [f"power {found.power_w:,.0f} W/GPU{over}"]
    said += [] if found.tokens_per_joule is None else [f"{figure(found.tokens_per_joule)} tokens/J"]
    said += [throttled] if (throttled := format_throttling(found)) else []
    if said and found.samples < FEW_SAMPLES:
        said.append(counted(found.samples, "sample"))
    said += [began] if (began := start_text(found)) else []
    if said:
        yield ", ".join(said)


def start_text(found: Telemetry) -> str:
    """Return how hot and how fast the GPUs were right before the workload began: `began at 41 to 43 °C, 132 MHz`."""
    hot = span_text([gpu_start.temperature_c for gpu_start in found.start], "°C")
    fast = span_text([gpu_start.clock_mhz for gpu_start in found.start], "MHz")
    return f"began at {', '.join(filter(None, (hot, fast)))}" if hot or fast else ""


def span_text(values: Iterable[float | None], unit: str) -> str:
    """Return the least and the most of what is known, as whole numbers; "" where nothing is."""
    known = [f"{value:,.0f}" for value in sorted(value for value in values if value is not None)]
    return f"{' to '.join(dict.fromkeys((known[0], known[-1])))} {unit}" if known else ""


def diagnosis_lines(plan: RunPlan, result: Result) -> Iterator[str]:
    """Yield the line that explains a failure, its rank and place in the code, and a hint."""
    found = result.diagnosis
    line = found.line if found is not None and found.line else result.evidence
    if line and line not in result.reason and result.status is not Status.SUCCESS:
        yield f"> {line[:LONGEST]}"
    if found is None:
        return
    yield from place_and_hint(found)


def place_and_hint(found: Diagnosis) -> Iterator[str]:
    """Yield the rank and place of a failure, and a hint, as far as they are known."""
    rank = f"rank {found.rank}" if found.rank is not None else ""
    if rank or found.where:
        yield ", ".join(filter(None, (rank, found.where and f"at {found.where[:LONGEST]}")))
    if found.hint:
        yield f"try: {found.hint}"


def suspect_lines(result: Result) -> Iterator[str]:
    """Yield why a success is suspect."""
    yield from (f"suspect: {text}" for text in result.suspect)
