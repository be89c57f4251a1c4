"""`madlite show`: everything recorded about one run, on a page; of several what differs, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from madlite.cli.completion import complete_run
from madlite.cli.format import (
    CACHES,
    LONGEST,
    all_telemetry_lines,
    attempt_text,
    compute_lines,
    duration,
    figures,
    mad_lines,
    may_have_reference,
    short_reason,
    status_text,
    study_text,
    suspect_lines,
)
from madlite.cli.options import Command, dir_option, verbose_option
from madlite.cli.terminal import echo, echo_status, shell_line, without_secrets
from madlite.errors import ExitCode
from madlite.model import Status
from madlite.reports.runs import CUT_OFF, RUNNING, UNREADABLE, StoredRun
from madlite.store.journal import read_run
from madlite.store.record import Record, result_of
from madlite.text import printable, scalar_text


@click.command("show", cls=Command)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--all", "every", is_flag=True, help="Of several runs also what is equal.")
@click.option(
    "--json",
    "wants_json",
    is_flag=True,
    help="Print the record itself; without one, what is known. Of several runs a list.",
)
@dir_option
@verbose_option
def command(runs: tuple[str, ...], every: bool, wants_json: bool, directory: Path) -> int:
    """Show one run: verdict, number, window, power, checks, configuration, provenance, files; or several side by side.

    RUN is a run's id, a part of it that no other has, last, or last~1; or the id of a study, for what that came to. Of
    several runs first what they ran with is shown, as far as it differs, then number, window, GPUs, checks, versions.

    \b
    madlite show last
    madlite show 3fa91c --json
    madlite show last~1 last
    """
    from madlite.reports.runs import as_json, find_run, open_run, runs_folder

    folder = runs_folder(directory)
    if len(runs) == 1 and not wants_json and (lines := _study(folder, runs[0])):
        for line in lines:
            echo(line)
        return int(ExitCode.OK)
    opened = [open_run(find_run(folder, run)) for run in runs]
    if len(opened) > 1:
        _show_several(opened, every=every, wants_json=wants_json)
        return int(ExitCode.OK)
    (found,) = opened
    if wants_json:
        click.echo(without_secrets(as_json(found)), nl=False)
    else:
        for line in page(found, _compared(found, directory)):
            echo_status(line, VALUES_AT)
    return int(ExitCode.OK)


def _study(folder: Path, name: str) -> list[str]:
    """Return what a study of this id came to; nothing where it is no study's, or a run's."""
    from madlite.reports.runs import find_named

    if find_named(folder, name) is not None:
        return []
    from madlite.reports.index import RunFilter, RunIndex

    with RunIndex.open(folder) as index:
        index.refresh()
        wanted = index.ids(RunFilter(of=name.removeprefix("study-")))
        found = [run for run in index.opened(wanted) if run.record.study is not None]
    if not found:
        return []
    from madlite.cli.studies import outcome_lines

    return outcome_lines(found, folder.parent)


def _show_several(runs: Sequence[StoredRun], *, every: bool, wants_json: bool) -> None:
    import textwrap

    from madlite.cli.terminal import terminal_width
    from madlite.reports import side_by_side
    from madlite.reports.runs import as_json

    if wants_json:
        import json

        click.echo(without_secrets(json.dumps([json.loads(as_json(run)) for run in runs], indent=2)))
        return
    found = side_by_side.sections(runs, every=every)
    echo(printable(f"{len(runs)} runs   {side_by_side.common_name(runs)}".rstrip()))
    for line in side_by_side.as_lines(runs, found, terminal_width()):
        echo(line)
    if not every and found[0].title == "number":
        echo("no difference in what is recorded of what they ran with: --all shows it")
    if unknown := side_by_side.unknown(runs):
        text = f"not recorded of all, so that a difference cannot be seen: {', '.join(unknown)}"
        for line in textwrap.wrap(text, terminal_width() or len(text), subsequent_indent="  "):
            echo(line)


def _compared(run: StoredRun, directory: Path) -> str:
    """Return how a success compares with published figures; what can have none loads none."""
    if not may_have_reference(result_of(run.record), run.record.variant):
        return ""
    from madlite.cli import setup
    from madlite.cli.references import compare_recorded

    return compare_recorded(setup.load(no_plugins=False, verbose=False), directory, run.record)


# One run as a page of lines, most important first.

_WIDE = 14
VALUES_AT = _WIDE + 4  # characters before the values of a page
_SHORTEST_S = 0.05  # shorter parts of a run are not shown


def page(run: StoredRun, compared: str = "") -> Iterator[str]:
    """Yield the lines; `compared` is how its number compares with published figures."""
    record = run.record
    yield f"{record.card or run.folder.name}  {run.folder.name}"
    for title, pairs in sections(run, compared):
        yield from filter(None, (title, *map(_line, pairs)))


def sections(run: StoredRun, compared: str = "") -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the parts of the page that have something: a title, "" of the first, and names with their texts."""
    record = run.record
    parts: tuple[tuple[str, Iterable[tuple[str, str]]], ...] = (
        ("", _verdict(run)),
        ("number", (*_number(record), ("compared", compared))),
        ("GPUs", (("", text) for text in all_telemetry_lines(result_of(record)))),
        ("checks", ((one.name, f"{one.status}  {one.text}".rstrip()) for one in record.checks)),
        ("what ran", _ran(record)),
        ("values", _values(record)),
        ("by its own log", record.config.items()),
        ("provenance", _provenance(record)),
        ("row", _row(record, run.origin)),
        ("files", _files(run)),
    )
    for title, pairs in parts:
        if known := [pair for pair in pairs if pair[1]]:
            yield title, known


def _verdict(run: StoredRun) -> Iterator[tuple[str, str]]:
    record = run.record
    cause = f" [{record.cause}]" if record.cause else ""
    yield "status", f"{status_text(run.state, record.suspect)}{cause} {_why(run)}".rstrip()
    yield "processes", _processes(run)
    yield "doubt", run.doubt
    yield (
        "imported",
        f"from {run.origin}" + (f", as {run.archived_id}" if run.archived_id else "") if run.origin else "",
    )
    yield "pruned", "its log and other files were removed: madlite prune" if run.pruned else ""
    if record.diagnosis is not None:
        rank = f"rank {record.diagnosis.rank}: " if record.diagnosis.rank is not None else ""
        yield "because", f"{rank}{record.diagnosis.line or record.evidence}"[:LONGEST].removesuffix(": ")
        yield "what to do", record.diagnosis.hint
    elif record.evidence and record.status is not Status.SUCCESS:
        yield "because", record.evidence[:LONGEST]
    if record.attempt is not None and (record.attempt.earlier or record.attempt.next):
        yield "attempt", attempt_text(record.attempt)
    yield "started", run.when
    took_s = {name: value for name, value in record.durations_s.items() if value >= _SHORTEST_S}
    yield "took", ", ".join(f"{name} {duration(value)}" for name, value in took_s.items())


def _processes(run: StoredRun) -> str:
    """Return what a run that was cut off still has running."""
    if run.state != CUT_OFF:
        return ""
    from madlite.batch.recovery.leftovers import still_running

    return still_running(run.folder.parent.parent).get(run.folder.name, "")


def _why(run: StoredRun) -> str:
    if run.state == RUNNING:
        return f"madlite log {run.folder.name} --follow"
    if run.state == CUT_OFF:
        return "its record could not be written, or it was killed" + (
            ", acknowledged" if read_run(run.folder).cleaned is not None else ". madlite clean lists what is left"
        )
    return run.problem if run.state == UNREADABLE else short_reason(result_of(run.record))


def _number(record: Record) -> Iterator[tuple[str, str]]:
    result = result_of(record)
    if not record.metrics:
        return
    yield "number", figures(result) or ", ".join(f"{one.text or '-'} {one.metric}" for one in record.metrics)
    window = record.window
    if window is not None:
        spread = f"mean {window.mean:.6g}, std {window.std:.4g}, min {window.min:.6g}, max {window.max:.6g}"
        moves = "" if window.drift is None else f", drift {100 * window.drift:+.2f} %"
        yield "window", f"{spread}, last {window.last:.6g}{moves}, {window.outliers} outliers, {window.dropped} dropped"
        for words, text in mad_lines(result):
            yield ("MAD's figures" if "MAD" in words else words), text
    for lines in (compute_lines, suspect_lines):
        for text in lines(result):
            yield "", text
    for text in record.findings:
        yield "note", text


def _ran(record: Record) -> Iterator[tuple[str, str]]:
    yield "card", f"{record.card} ({record.card_source})" if record.card_source else record.card
    yield "tags", ", ".join(record.tags)
    yield "backend", f"{record.backend}, recipe {record.recipe}" if record.recipe else record.backend
    gpus = record.place.nodes * record.place.gpus_per_node if record.place else 0
    yield "machine", f"{record.hostname}, {gpus} x {record.device}" if record.hostname else ""
    yield "runtime", record.runtime
    yield "batch", record.batch
    yield "beside", f"{len(record.beside)} in its course: {', '.join(record.beside)}" if record.beside else ""
    yield "study", study_text(record.study) if record.study else ""
    yield "caches", CACHES.get(record.caches, "")
    yield "image", record.image.ref
    yield "digest", record.image.digest
    yield "commit", record.git_commit
    yield "command", shell_line(("madlite", *record.command)) if record.command else ""
    yield "args", record.args


def _values(record: Record) -> Iterator[tuple[str, str]]:
    from madlite.reports.reproduce import dotted_values

    for key, value in dotted_values(record).items():
        if value not in (None, ""):
            origin = record.origins.get(key, "")
            text = scalar_text(value)
            yield key.partition(".")[2], f"{text}   <- {origin}" if origin else text


def _provenance(record: Record) -> Iterator[tuple[str, str]]:
    from msgspec.structs import asdict

    if record.madlite:
        yield "madlite", record.madlite
    for name, value in asdict(record.provenance).items():
        if isinstance(value, Mapping):
            yield name, ", ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, tuple):
            yield name, "; ".join(map(str, value))
        else:
            yield name, str(value or "")


def _row(record: Record, origin: str) -> Iterator[tuple[str, str]]:
    """Yield where the rows are; of an imported run, where they were in the folder of its record."""
    rows = record.rows
    if rows is None:
        return
    count = "1 row" if len(rows.cells) == 1 else f"{len(rows.cells)} rows"
    if not rows.path:
        yield "row", f"{count}, not collected yet: madlite collect"
        return
    where = f"in {rows.path}" if rows.appended else f"not in {rows.path}; {rows.kept or 'in the record alone'}"
    there = ", in the folder that it was packed in" if origin else ""
    yield "row", f"{count} {where}, {rows.at[:19].replace('T', ' ')}{there}"


def _files(run: StoredRun) -> Iterator[tuple[str, str]]:
    yield "folder", str(run.folder)
    for file in run.record.files:
        sha = f"  sha256 {file.sha256}" if file.sha256 else ""
        yield "", f"{file.path}  {file.bytes} B{sha}"


def _line(pair: tuple[str, str]) -> str:
    return f"  {pair[0]:<{_WIDE}}  {' '.join(pair[1].split(chr(10)))}".rstrip()
