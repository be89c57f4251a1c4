"""`madlite parse`: what the logs of trainings show, of those that somebody else ran and of runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click
import msgspec
from msgspec.structs import asdict, replace

from madlite.archive.verify import limited
from madlite.backends.loader import Plugins
from madlite.backends.log_formats import step_format
from madlite.cli import setup
from madlite.cli.arguments import FAIL_ON_SUSPECT, count_option
from madlite.cli.format import LONGEST, figures, mad_lines, place_and_hint, suspect_lines, window_statistics
from madlite.cli.options import Command, common_options, complete_runs, dir_option
from madlite.cli.terminal import coloured, has_colour, mask
from madlite.errors import ExitCode, MadliteError, UsageProblem
from madlite.files import exists, shown
from madlite.measure.parse_log import LogReading, open_log, read_chunks, read_log
from madlite.model import Backend, Json, Metric, Result, Status, Step, Variant, Window, to_json
from madlite.reports.log import read_log as log_of_run
from madlite.reports.runs import find_named, open_run, runs_folder
from madlite.run.backend_choice import find_backend
from madlite.secrets import Redactor, assigned, collect, masked_json
from madlite.store.record import read_plan
from madlite.text import counted, figure, first_of, printable, status_text

_STDIN = "-"
_WARMUP_STEPS = Variant(model="").warmup_steps


@click.command("parse", cls=Command)
@click.argument("log", nargs=-1, required=True, metavar="LOG...", shell_complete=complete_runs)
@click.option("--backend", default="", metavar="NAME", help="Framework of the log; overrides detection.")
@click.option("--step", default="", metavar="REGEX", help="How a step's line reads; docs/parse.md.")
@count_option("--warmup", 0, f"Steps to leave out.  [default: {_WARMUP_STEPS}, or the run's]")
@click.option("--json", "as_json", is_flag=True, help="Print an object with every step; a list of them for several.")
@FAIL_ON_SUSPECT
@dir_option
@common_options
def command(
    log: tuple[str, ...],
    backend: str,
    step: str,
    warmup: int | None,
    as_json: bool,
    fail_on_suspect: bool,
    directory: Path,
    no_plugins: bool,
) -> int:
    """Read logs of trainings: steps, steady throughput, verdict.

    A LOG is a file, packed by gzip, xz or bzip2 or not, - for stdin, or a run: its id, a part of it that no other has,
    last, or last~1. Nothing is run or written.

    \b
    madlite parse train.log
    madlite parse last
    kubectl logs trainer | madlite parse - --json
    madlite parse mine.log --step 'step (?P<n>\\d+) loss (?P<loss>\\S+) (?P<tokens_per_s>\\S+) tok/s'
    """
    plugins = setup.load(no_plugins)
    try:
        given = _given(plugins, backend, step)
        codes = []
        for place, name in enumerate(log):
            found = _read(name, plugins, given, warmup, directory)
            if isinstance(found, MadliteError):
                if len(log) == 1:
                    raise found
                setup.warn(f"{found.message}; {found.hint}" if found.hint else found.message)
            codes.append(_code(found, fail_on_suspect))
            text = _text(name, found, as_json)
            if as_json and len(log) > 1:
                text = f"{',' if place else '['}\n{text}"
                text += "]\n" if place == len(log) - 1 else ""
            elif place and text:
                text = f"\n{text}"
            click.echo(text, nl=False)
        return int(max(codes))  # wrong usage, 4, comes before a failed run, 3
    finally:
        setup.print_problems(plugins.problems)


def _given(plugins: Plugins, backend: str, step: str) -> Backend | None:
    """Return the backend that the command line names or describes, None where it does neither."""
    if step and backend:
        raise UsageProblem("--backend and --step are two ways to read a log", "leave one of them out")
    if step:
        return step_format(step)
    return find_backend(plugins, backend, "--backend")[0] if backend else None


def _read(
    name: str, plugins: Plugins, backend: Backend | None, warmup: int | None, directory: Path
) -> LogReading | MadliteError:
    steps = _WARMUP_STEPS if warmup is None else warmup
    try:
        if name == _STDIN:
            return read_log("stdin", read_chunks(sys.stdin.buffer, "stdin"), plugins, backend, steps)
        is_file = "/" in name or not name or exists(Path(name))
        if not is_file and (folder := find_named(runs_folder(directory), name)) is not None:
            return _read_run(folder, plugins, backend, warmup)
        called = shown(Path(name))
        with open_log(Path(name)) as file:
            return read_log(called, read_chunks(file, called), plugins, backend, steps)
    except MadliteError as error:
        return error


def _read_run(folder: Path, plugins: Plugins, given: Backend | None, warmup: int | None) -> LogReading:
    """Return what a run's log shows, by its own backend and warm-up where the command line names no others."""
    run = open_run(folder)
    record = run.record
    own = plugins.backends().get(record.backend) if record.rendered else None
    backend = given or (own[0] if own else None)
    warmup = record.variant.warmup_steps if record.variant and warmup is None else warmup
    steps = _WARMUP_STEPS if warmup is None else warmup
    plan = read_plan(folder) if own is not None and backend is own[0] else None
    own_plan = plan if plan is not None and plan.backend == record.backend else None

    def read_it() -> LogReading:
        return read_log(f"run {folder.name}", _output(log_of_run(folder)), plugins, backend, steps, own_plan)

    found = limited(folder, read_it) if own_plan is not None and run.origin else read_it()
    known, there = record.diagnosis, found.diagnosis
    if found.verdict.status is Status.FAILURE and known is not None and (there is None or not there.hint):
        return replace(found, diagnosis=known)  # of which the run's end says more than its log
    return found


_LONGEST_WORD = 1 << 16


def _output(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a run's log without madlite's own word at its end, which is no evidence."""
    held = b""
    for chunk in chunks:
        held += chunk
        yield held[:-_LONGEST_WORD]
        held = held[-_LONGEST_WORD:]
    yield re.sub(rb"(?m)^madlite: FAILURE .*\n?\Z", b"", held)


def _text(name: str, found: LogReading | MadliteError, as_json: bool) -> str:
    """Return what is printed of a log, each line of a page in colour on a terminal."""
    if isinstance(found, MadliteError):
        facts: Json = {"log": mask(name), "error": mask(found.message), "hint": mask(found.hint)}
        return to_json(facts) if as_json else ""
    if as_json:
        return _object(found)
    colour = coloured if has_colour(sys.stdout.isatty()) else str
    return "".join(map(colour, page(found).splitlines(keepends=True)))


def _code(found: LogReading | MadliteError, fail_on_suspect: bool) -> ExitCode:
    if isinstance(found, MadliteError):
        return found.exit_code
    is_doubtful = fail_on_suspect and bool(found.verdict.suspect)
    return ExitCode.RUN_FAILED if is_doubtful or found.verdict.status is Status.FAILURE else ExitCode.OK


# Masking: the secrets of a foreign log are not in our environment, but the log may contain them.


def secrets_in(reading: LogReading) -> tuple[str, ...]:
    """Return the secrets of this process's environment and command line, and those that the log assigns to a name."""
    found = reading.diagnosis
    diagnosis = (found.line, found.hint, found.where) if found else ()
    verdict = reading.verdict
    texts = (verdict.evidence, verdict.reason, *verdict.suspect, *verdict.findings, *diagnosis)
    pairs = {**reading.config, **reading.summary}
    named = (f"{name}={value}" for name, value in pairs.items())
    return (*collect(os.environ), *assigned((*sys.argv, *texts, *named)), *collect(pairs))


# What a log shows, on a page for people.

_FIRST = ("steps", "seq_len", "micro_batch", "global_batch", "world_size")
_PAIRS = 10


def page(reading: LogReading) -> str:
    """Return what people want to know first, secrets masked."""
    mask = Redactor(secrets_in(reading)).text
    return "".join(f"{printable(mask(line)).rstrip()}\n" for line in _lines(reading))


def _lines(reading: LogReading) -> Iterator[str]:
    verdict = reading.verdict
    yield f"{reading.log}  ({f'backend {reading.backend}' if reading.backend else 'no framework recognised'})"
    yield from _outcome(reading)
    if reach := reading.steps.reach():
        yield f"  steps     {_steps(reading, *reach)}"
    if reading.config:
        yield f"  config    {_pairs(reading.config)}"
    if verdict.window is not None:
        yield f"  window    {window_statistics(verdict.window)}"
        if medians := ", ".join(f"{quantity.label} {figure(value)}" for quantity, value in reading.medians.items()):
            yield f"  medians   {medians}"
        yield from (f"  {words}: {text}" for words, text in mad_lines(_result(reading)))
    if reading.line is not None and verdict.window is not None:
        yield f"  performance line: {reading.line.text or 'no number'} {reading.line.metric}"
    if reading.summary:
        yield f"  the framework's own summary: {_pairs(reading.summary)}"
    for finding in verdict.findings:
        yield f"  note: {finding[:LONGEST]}"


def _outcome(reading: LogReading) -> Iterator[str]:
    """Yield the verdict, and for a failure the line that decided it, its rank and a hint."""
    verdict, found = reading.verdict, reading.diagnosis
    if verdict.status is Status.SUCCESS:
        result = _result(reading)
        yield f"  {status_text(verdict.status.value, verdict.suspect)}   {figures(result)}"
        yield from (f"            {line[:LONGEST]}" for line in suspect_lines(result))
    else:
        yield f"  {verdict.status.value}   [{found.cause if found else verdict.cause.value}] {verdict.reason}"
    if verdict.evidence:
        yield f"            > {verdict.evidence[:LONGEST]}"
    yield from (f"            {line}" for line in (place_and_hint(found) if found else ()))


def _result(reading: LogReading) -> Result:
    verdict = reading.verdict
    return Result(
        plan_id="", status=verdict.status, window=verdict.window, metrics=verdict.metrics, suspect=verdict.suspect
    )


def _steps(reading: LogReading, first: int, last: int) -> str:
    count, left_out = reading.steps.count(), reading.steps.count("validate")
    parts = [f"{first} to {last}" + (f" of {reading.expected_steps}" if reading.expected_steps else "")]
    if count != last - first + 1:
        parts.append(f"{count} of them reported")
    if ranks := reading.steps.ranks():
        parts.append(f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}")
    if left_out:
        parts.append(f"{counted(left_out, 'validation step')} left out")
    return ", ".join(parts)


def _pairs(values: Mapping[str, str]) -> str:
    """Return the first few pairs of a mapping as text, common keys first."""
    names = [*(name for name in _FIRST if name in values), *(name for name in values if name not in _FIRST)]
    pairs = [f"{name} {values[name][:LONGEST]}" for name in names]
    return first_of(pairs, _PAIRS, " · ", " and {} more (--json)")


# What a log shows, as JSON for scripts.


def _object(reading: LogReading) -> str:
    """Return one object, secrets masked; the steps come last, one a line."""
    head = masked_json(_facts(reading), secrets_in(reading)).rstrip().removesuffix("}").rstrip()
    steps = ",".join(f"\n    {_step(step)}" for step in reading.steps)
    end = "\n  ]\n}\n" if steps else "]\n}\n"
    return f'{head},\n  "steps": [{steps}{end}'


def _facts(reading: LogReading) -> dict[str, Json]:
    verdict, found = reading.verdict, reading.diagnosis
    return {
        "log": reading.log,
        "backend": reading.backend or None,
        "lines": reading.lines,
        "config": reading.config,
        "training": _training(reading),
        "window": _window(verdict.window),
        "medians": {quantity.label: value for quantity, value in reading.medians.items()},
        "result": {
            "status": verdict.status,
            "cause": verdict.cause,
            "reason": verdict.reason,
            "evidence": verdict.evidence,
            "metrics": list(map(_metric, verdict.metrics)),
        },
        "performance_line": _metric(reading.line) if reading.line else None,
        "summary": reading.summary,
        "diagnosis": found,
        "ended": reading.ended,
        "suspect": list(verdict.suspect),
        "findings": list(verdict.findings),
    }


def _window(window: Window | None) -> dict[str, Json] | None:
    """Return a window with its quantity by its label, the way the medians are named."""
    return None if window is None else {**asdict(window), "quantity": window.quantity.label}


def _training(reading: LogReading) -> dict[str, Json] | None:
    steps = reading.steps
    if (reach := steps.reach()) is None:
        return None
    return {
        "first_step": reach[0],
        "last_step": reach[1],
        "steps": steps.count(),
        "asked_steps": reading.expected_steps,
        "ranks": list(steps.ranks()),
        "validation_steps": steps.count("validate"),
    }


def _metric(metric: Metric) -> dict[str, Json]:
    return {"metric": metric.metric, "text": metric.text, "value": metric.value}


def _step(step: Step) -> str:
    values = {quantity.label: value for quantity, value in step.values.items()}
    plain = {"n": step.n, "rank": step.rank, "phase": step.phase, "values": values}
    return msgspec.json.encode(plain).decode()
