"""Text of the screens: made harmless for a terminal; durations, counts, causes, checks."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator

import click

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
from madlite.text import change, counted, figure, percent, status_text

# Text for terminals: no text of a card, a workload or a file may control the terminal.
#
# What is written by madlite itself holds no control character at all.  The workload's own output (`--live-output`)
# keeps on a terminal what progress bars and colours need; into a pipe or a file it goes byte for byte.


# colours, "erase the line" and "a line up" of progress bars
_HARMLESS = r"\x1b\[[0-9;]{0,40}[mKA]"
_UNSAFE = re.compile(rf"({_HARMLESS})|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PARTIAL = re.compile(r"\x1b(?:\[[0-9;]{0,40})?\Z")


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is, or $COLUMNS where that is set; None in a pipe or a file."""
    import shutil

    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


# a status as `status_text` writes it, and the first word of a warning about a result
_STATUS = re.compile(r"(?:SUCCESS \(suspect\)|SUCCESS|FAILURE|suspect)(?![\w-])")
_IN_COLUMN = re.compile(rf"(?:(?<=  )|^ *)({_STATUS.pattern})")
_COLOURS = {"SUCCESS": "green", "FAILURE": "red"}
_DOUBT = "yellow"


def has_colour(is_terminal: bool) -> bool:
    """Return whether statuses are coloured: on a terminal that can, unless $NO_COLOR is set (https://no-color.org)."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(line: str) -> str:
    """Return a printable line with the first status in colour that begins it or a column of it."""
    found = _IN_COLUMN.search(line)
    return f"{line[: found.start(1)]}{all_coloured(found[1])}{line[found.end(1) :]}" if found else line


def all_coloured(line: str) -> str:
    """Return a printable line with every status in colour."""
    return _STATUS.sub(lambda found: click.style(found[0], fg=_COLOURS.get(found[0], _DOUBT)), line)


def echo_status(*lines: str) -> None:
    """Print lines as `echo` does, with the status of each in colour on a terminal."""
    colour = coloured if has_colour(sys.stdout.isatty()) else str
    for line in lines:
        click.echo(colour(one_line(without_secrets(line))))


def printable_lines(text: str) -> str:
    r"""Return text of several lines with what cannot be printed spelled out, as in `\x1b`; tabs stay."""
    if text.isprintable():
        return text
    # line by line: few lines of a long text have such a character, and each is a call
    return "\n".join(line if line.isprintable() else "".join(map(_escape, line)) for line in text.split("\n"))


def _escape(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()


def shell_line(words: Iterable[str]) -> str:
    """Return arguments quoted for bash, on one line; what cannot be printed is spelled out, as in `$'a\\x0ab'`."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_for_bash(word)}'" for word in words)


def _for_bash(word: str) -> str:
    return "".join(char if char.isprintable() and char not in "'\\" else _in_bytes(char) for char in word)


def _in_bytes(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogateescape"))


def one_line(text: str) -> str:
    r"""Return a text as one line: as `printable_lines`, and ends of lines are spelled out too, as `\n`.

    So whatever has a name in it, of a card, a run or a file that others named, is no line that they made up.
    """
    return printable_lines(text).replace("\n", "\\n")


def echo(*lines: str, err: bool = False) -> None:
    """Print lines, each made printable, without what is a secret by its shape."""
    for line in lines:
        click.echo(one_line(without_secrets(line)), err=err)


def echo_json(value: object) -> None:
    """Print a JSON value, without what is a secret by its shape."""
    click.echo(without_secrets(json.dumps(value, indent=2)))


def echo_lines(text: str) -> None:
    """Print text of several lines as `echo` does one: of madlite's own, or of files that the caller named."""
    click.echo(printable_lines(without_secrets(text)))


def echo_on(text: str, *, err: bool = False) -> None:
    """Print a line as `echo`; where nobody reads them any more they are discarded, and the command goes on."""
    try:
        echo(text, err=err)
    except OSError:  # the terminal was closed, or the reader of a pipe is gone
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2 if err else 1)
        os.close(nothing)


def without_secrets(text: str) -> str:
    """Return text without what is a secret by its shape: for what is printed that others wrote, cards or records."""
    from madlite.secrets import Redactor

    return Redactor().text(text)


def masker() -> Callable[[str], str]:
    """Return what masks the secrets of the environment and of the command line in a text."""
    from madlite.secrets import Redactor, assigned, collect

    return Redactor((*collect(os.environ), *assigned(sys.argv))).text


def mask(text: str) -> str:
    """Mask the secrets of the environment and of the command line."""
    return masker()(text)


class Sanitizer:
    """Filters one output stream of a workload for a terminal: no sequences that clear, retitle, query or reorder."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be shown now; an incomplete escape sequence is buffered, a few characters."""
        text = self._pending + self._decoder.decode(chunk)
        partial = _PARTIAL.search(text, max(0, len(text) - 50))
        cut = partial.start() if partial else len(text)
        self._pending = text[cut:]
        return _UNSAFE.sub(lambda found: found[1] or "", text[:cut]).encode()


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
    total = plan.variant.steps if plan.variant and plan.variant.steps else None
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
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return ", ".join(shown[:3]) + more


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
    built_in = {quantity.unit for quantity in QUANTITIES.values()}
    is_in_name = metric.unit.replace("/", "_per_") in metric.metric
    return f" {metric.unit}" if metric.unit and metric.unit not in built_in and not is_in_name else ""


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
    built_in = {"", *(quantity.unit for quantity in QUANTITIES.values())}
    of_mad = [metric for metric in result.metrics[:-1] if metric.unit in built_in]
    others = [metric for metric in result.metrics[:-1] if metric.unit not in built_in]
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
