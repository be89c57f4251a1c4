"""One run: `madlite show`, of several what differs; `log`; `reproduce`."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from msgspec.structs import asdict

from madlite.batch.leftovers import still_running
from madlite.cli import setup
from madlite.cli.format import (
    CACHES,
    LONGEST,
    all_telemetry_lines,
    attempt_text,
    compute_lines,
    figures,
    mad_lines,
    may_have_reference,
    short_reason,
    study_text,
    suspect_lines,
    window_statistics,
)
from madlite.cli.options import Command, complete_run, folder_options, is_given, option_words
from madlite.cli.terminal import echo, echo_json, echo_status, shell_line, terminal_width, without_secrets
from madlite.errors import MadliteError, UsageProblem
from madlite.measure.profile import part_texts
from madlite.model import Status
from madlite.reports import side_by_side
from madlite.reports.index import RunFilter, open_index
from madlite.reports.log import masked, plain_text, read_log
from madlite.reports.reproduce import CommandOptions, dotted_values
from madlite.reports.runs import (
    BACK,
    CUT_OFF,
    IN_CLUSTER,
    RUNNING,
    UNREADABLE,
    StoredRun,
    as_json,
    find_named,
    find_run,
    open_run,
    runs_folder,
    why_not_over,
)
from madlite.store.folder import read_run
from madlite.store.record import Record, result_of
from madlite.text import counted, duration, printable, scalar_text, status_text


@click.command("show", cls=Command)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--all", "every", is_flag=True, help="All that is recorded; of several runs also what is equal.")
@click.option("--json", "wants_json", is_flag=True, help="Print the record itself; of several runs a list.")
@folder_options
def command(runs: tuple[str, ...], every: bool, wants_json: bool, directory: Path) -> None:
    """Show a run, or how several differ.

    Of one: verdict, number, window, power, the checks that did not pass, what ran and what was set; with --all every
    check and value, provenance, files. Of several first what they ran with is shown, as far as it differs, then
    number, window, GPUs, checks, versions. RUN is a run's id, a part of it that no other has, last, or last~1; or the
    id of a study, for what that came to.

    \b
    madlite show last
    madlite show last --all
    madlite show 3fa91c --json
    madlite show last~1 last
    """
    folder = runs_folder(directory)
    if len(runs) == 1 and not wants_json and (lines := _study(folder, runs[0])):
        echo(*lines)
        return
    found, *others = opened = [open_run(find_run(folder, run)) for run in runs]
    if others:
        _show_several(opened, every=every, wants_json=wants_json)
    elif wants_json:
        click.echo(without_secrets(as_json(found)), nl=False)
    else:
        echo_status(*page(found, _compared(found, directory), every=every))
        if not every:
            there = () if directory == Path() else ("--dir", str(directory))
            echo(f"all that is recorded: {shell_line(('madlite', 'show', *runs, *there, '--all'))}")


def _study(folder: Path, name: str) -> list[str]:
    """Return what a study of this id came to; nothing where it is no study's, or a run's."""
    if find_named(folder, name) is not None or BACK.fullmatch(name):
        return []

    with open_index(folder) as index:
        wanted = index.ids(RunFilter(of=index.named_by(name.removeprefix("study-"))))
        found = [run for run in index.opened(wanted) if run.record.study is not None]
    if not found:
        return []
    from madlite.cli.studies import outcome_lines

    return outcome_lines(found, folder.parent)


def _show_several(runs: Sequence[StoredRun], *, every: bool, wants_json: bool) -> None:
    if wants_json:
        echo_json([json.loads(as_json(run)) for run in runs])
        return
    found = side_by_side.sections(runs, every=every)
    echo(printable(f"{len(runs)} runs   {side_by_side.common_name(runs)}".rstrip()))
    echo(*side_by_side.as_lines(runs, found, terminal_width()))
    differing = [field.name for field in found.get(side_by_side.DIFFERS, ())]
    sides = [run.folder / "run.sh" for run in (runs[0], runs[-1])]
    if "script" in differing and all(map(Path.exists, sides)):
        echo(f"the changed lines: {shell_line(('diff', '-u', *map(str, sides)))}")
    if not every and side_by_side.DIFFERS not in found:
        echo("no difference in what is recorded of what they ran with: --all shows it")
    if unknown := side_by_side.unknown(runs):
        text = f"not recorded of all, so that a difference cannot be seen: {', '.join(unknown)}"
        echo(*textwrap.wrap(text, terminal_width() or len(text), subsequent_indent="  "))


def _compared(run: StoredRun, directory: Path) -> str:
    """Return how a success compares with published figures; what can have none loads none."""
    if not may_have_reference(result_of(run.record), run.record.variant):
        return ""
    from madlite.reports.references import compared_text, of_record

    return compared_text(setup.load(), directory, os.environ, of_record(run.record))


# One run as a page of lines, most important first.

_WIDE = 14
_FROM = "   <- "  # between a value and its origin
_SHORTEST_S = 0.05  # shorter parts of a run are not shown


def page(run: StoredRun, compared: str = "", *, every: bool = True) -> Iterator[str]:
    """Yield the lines; `compared` is how its number compares with published figures."""
    record = run.record
    yield f"{record.card or run.folder.name}  {run.folder.name}"
    for title, pairs in sections(run, compared, every=every):
        yield from filter(None, (title, *map(_line, pairs)))


_Section = tuple[str, Iterable[tuple[str, str]]]


def sections(run: StoredRun, compared: str = "", *, every: bool = True) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the parts of the page that have something: a title, "" of the first, and names with their texts.

    Not of `every` value, check and file: what fits on a screen, and of checks and values those to look at.
    """
    record = run.record
    doctor = ("doctor", record.provenance.host.get("doctor", ""))
    yield from _known(
        ("", _verdict(run)),
        ("number", (*_number(record), ("compared", compared))),
        ("a step", part_texts(record.profile) if record.profile is not None else ()),
        ("GPUs", (("", text) for text in all_telemetry_lines(result_of(record)))),
        ("checks", _all_checks(record) if every else _open_checks(record)),
        ("what ran", _ran(record) if every else (*(pair for pair in _ran(record) if pair[0] not in _SELDOM), doctor)),
        ("values", (pair for pair in _values(record) if every or pair[0] in _MAIN or _is_given(pair[1]))),
        ("by its own log", record.config.items() if every else ()),
        ("provenance", _provenance(record) if every else ()),
        ("row", _row(record, run.origin)),
        ("files", _files(run)) if every else ("", [("folder", str(run.folder))]),
    )


_SELDOM = ("tags", "batch", "caches", "args")  # of what ran
_MAIN = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "steps")  # values of each training


def _known(*parts: _Section) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for title, pairs in parts:
        if known := [pair for pair in pairs if pair[1]]:
            yield title, known


def _all_checks(record: Record) -> Iterator[tuple[str, str]]:
    return ((check.name, f"{check.status}  {check.text}".rstrip()) for check in record.checks)


def _open_checks(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the checks that did not pass, and how many of the others did."""
    for check in record.checks:
        if check.status not in ("pass", "unknown"):
            yield check.name, f"{check.status}  {check.text}".rstrip()
    statuses = Counter(check.status for check in record.checks)
    if record.checks:
        yield "", f"{statuses['pass']} pass, {statuses['unknown']} unknown or without what they need"


def _is_given(text: str) -> bool:
    """Return whether a value is neither a recipe's nor a default: whoever reads it has set it."""
    origin = text.rpartition(_FROM)[2]
    return _FROM in text and not origin.startswith(("recipe", "default", "madlite"))


def _verdict(run: StoredRun) -> Iterator[tuple[str, str]]:
    record = run.record
    yield "status", f"{status_text(run.state, record.suspect, record.cause)} {_why(run)}".rstrip()
    yield "processes", _processes(run)
    archived_as = f", as {run.archived_id}" if run.archived_id else ""
    yield "imported", f"from {run.origin}{archived_as}" if run.origin else ""
    yield "pruned", "its log and other files were removed: madlite clean --old" if run.pruned else ""
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

    return still_running(run.folder.parent.parent).get(run.folder.name, "")


def _why(run: StoredRun) -> str:
    if run.state == RUNNING:
        return f"madlite log {run.folder.name} --follow"
    if run.state == IN_CLUSTER:
        return why_not_over(run)
    if run.state == CUT_OFF:
        return "its record could not be written, or it was killed" + (
            ", acknowledged" if read_run(run.folder).cleaned is not None else ". madlite clean lists what is left"
        )
    return run.problem if run.state == UNREADABLE else short_reason(result_of(run.record))


def _number(record: Record) -> Iterator[tuple[str, str]]:
    result = result_of(record)
    if not record.metrics:
        return
    yield "number", figures(result) or ", ".join(f"{metric.text or '-'} {metric.metric}" for metric in record.metrics)
    if record.window is not None:
        yield "window", window_statistics(record.window)
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

    for key, value in dotted_values(record).items():
        if value not in (None, ""):
            origin = record.origins.get(key, "")
            text = scalar_text(value)
            yield key.partition(".")[2], f"{text}{_FROM}{origin}" if origin else text


def _provenance(record: Record) -> Iterator[tuple[str, str]]:

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
    count = counted(len(rows.cells), "row")
    if not rows.path:
        yield "row", f"{count}, not collected yet: madlite runs collect"
        return
    where = f"in {rows.path}" if rows.appended else f"not in {rows.path}; in the record alone"
    there = ", in the folder that it was packed in" if origin else ""
    yield "row", f"{count} {where}, {rows.at[:19].replace('T', ' ')}{there}"


def _files(run: StoredRun) -> Iterator[tuple[str, str]]:
    yield "folder", str(run.folder)
    for file in run.record.files:
        sha = f"  sha256 {file.sha256}" if file.sha256 else ""
        yield "", f"{file.path}  {file.bytes} B{sha}"


def _line(pair: tuple[str, str]) -> str:
    return f"  {pair[0]:<{_WIDE}}  {' '.join(pair[1].split(chr(10)))}".rstrip()


@click.command("log", cls=Command)
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Byte for byte, with what steers a terminal.")
@folder_options
def log(run: str, follow: bool, tail: int | None, raw: bool, directory: Path) -> None:
    """Print a run's log; of a running one, what it has so far.

    RUN is a run's id, a part of it that no other has, last, or last~1. What would steer the terminal is
    left out.

    \b
    madlite log last --follow
    madlite log 3fa91c --tail 50
    """
    folder = find_run(runs_folder(directory), run)
    chunks = masked(read_log(folder, follow=follow, tail=tail))
    stream = sys.stdout.buffer
    for piece in chunks if raw else plain_text(chunks):
        stream.write(piece)
        stream.flush()


# options of `run` whose values are pinned otherwise, or that concern the source or the display of the original run
_NOT_REPEATED = frozenset(
    (
        *("tags", "additional_context", "additional_context_file", "sets", "mode", "precision", "seq_len"),
        *("batch_size", "steps", "image_release", "mock_data", "backend", "runtime", "gpus", "gpu_vendor", "image"),
        *("manifest_file", "batch_manifest", "manifest_output", "registry", "clean_docker_cache", "dry_run", "machine"),
        *("live_output", "summary_output", "cleanup_perf", "verbose", "use_image", "target_archs", "timeout"),
        *("build_on_compute", "repeat", "cold", "keep_going", "settle", "settle_timeout", "retry", "retry_wait"),
        *("oom_fallback", "resume", "parallel", "recipe_file", "sweep", "zip_values"),
    )
)


@click.command("reproduce", cls=Command)
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@click.option("--run", "rerun", is_flag=True, help="Run it.")
@click.option("--without-secrets", is_flag=True, help="With --run: start also where secrets of the run are not known.")
@folder_options
def reproduce(run: str, rerun: bool, without_secrets: bool, directory: Path) -> int:
    """Print, or with --run rerun, the pinned command of a run.

    Values, image digest, args and context are those of the run; what cannot be pinned is said in comments. Secrets
    are in no record: --run takes variables from the environment, and does not start where one is missing. RUN is a
    run's id, a part of it that no other has, last, or last~1.

    \b
    madlite reproduce last
    madlite reproduce 3fa91c --run
    """
    from madlite.cli.main import main
    from madlite.reports.reproduce import reproduce

    runs = runs_folder(directory)
    folder = find_run(runs, run)
    record = open_run(folder).record
    if not record.card:
        raise UsageProblem(f"nothing that can be read says what run {folder.name} was", f"ls {folder}")
    found = reproduce(record, command_options(record.command), dict(os.environ), folder)
    elsewhere = runs.parent.resolve() != Path.cwd()
    for note in found.notes:
        echo(f"# {printable(note)}", err=rerun)
    line = shell_line(("madlite", *found.words))
    echo(f"{shell_line(('cd', str(runs.parent)))} && {line}" if elsewhere else line, err=rerun)
    if not rerun:
        return 0
    if found.missing and not without_secrets:
        raise _unknown(folder.name, found.missing)
    os.chdir(runs.parent)
    secrets = [word for name in found.available for word in ("--set", f"env.{name}={os.environ[name]}")]
    words = [*found.words, *secrets]
    code = main.main(args=words, prog_name="madlite", standalone_mode=False, obj=found.words)
    return int(code or 0)


def _unknown(name: str, places: Sequence[str]) -> UsageProblem:
    """Return the error for a rerun whose secrets are missing."""
    what = f"secrets of run {name} are not known here: {', '.join(map(printable, places))}"
    return UsageProblem(
        what,
        "set variables of docker_env_vars and env. under their own names in the environment, "
        "or give all of it with the printed command; --without-secrets starts it so",
    )


def command_options(words: tuple[str, ...]) -> CommandOptions:
    """Return the options of a `run` command that its reproduction repeats; none of another command."""
    from madlite.cli.run import command as run_command

    if words[:1] != ("run",):
        return CommandOptions()
    try:
        context = _context_of(run_command, words[1:])
    except click.ClickException:  # of another version, with options that this one does not have
        return CommandOptions()
    params = {str(param.name): param for param in reversed(run_command.params)}  # of two for one value the first
    given = [
        (params[name], value) for name, value in context.params.items() if name in params and is_given(name, context)
    ]
    options = [word for param, value in given if param.name not in _NOT_REPEATED for word in option_words(param, value)]
    pairs = (text.partition("=") for text in context.params.get("sets") or ())
    recipe = context.params.get("recipe_file")
    of_file = [(key, value) for _, key, value in recipe.named] if recipe is not None else []
    return CommandOptions(words=tuple(options), sets=(*of_file, *((key, value) for key, _, value in pairs)))


def _context_of(command: click.Command, words: Sequence[str]) -> click.Context:
    """Return the options of a command line; a recipe file that is gone has no values."""
    try:
        return command.make_context(command.name or "", list(words))
    except MadliteError:
        return command.make_context(command.name or "", list(words), resilient_parsing=True)
