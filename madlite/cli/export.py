"""Results for other programs: `madlite export` to files, databases and trackers, with --to mongodb to MongoDB."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from madlite.cli import setup
from madlite.cli.arguments import FILE
from madlite.cli.completion import complete_runs
from madlite.cli.options import (
    Command,
    common_options,
    dir_option,
    read_filters,
    read_where,
    verbose_option,
    where_option,
)
from madlite.cli.terminal import echo, masker
from madlite.errors import ExitCode, UsageProblem
from madlite.model import ExportOptions, Secret
from madlite.reports.export import RowReader, find_format, formats_of
from madlite.reports.mongodb import DatabaseTarget, Server, check_unique, read_documents, upload
from madlite.reports.runs import runs_folder
from madlite.text import align, printable


@click.command("export", cls=Command)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", shell_complete=complete_runs)
@click.option("--to", "name", default="", metavar="FORMAT", help="See --list.")
@click.option("-o", "--output", "target", default="", metavar="TARGET", help="The file, database or tracker.")
@where_option
@click.option("--append", is_flag=True, help="Keep what the file has, and add the results that it lacks.")
@click.option("--option", "values", multiple=True, metavar="NAME=VALUE", help="An option of the format.")
@click.option("--list", "show_list", is_flag=True, help="List the formats, also those of plugins.")
@dir_option
@common_options
def command(
    sources: tuple[str, ...],
    name: str,
    target: str,
    where: tuple[str, ...],
    append: bool,
    values: tuple[str, ...],
    show_list: bool,
    directory: Path,
    no_plugins: bool,
) -> None:
    """Write results for other programs: files, databases, trackers; each result once.

    SOURCE is a results file, a folder, a run (an id, last, last~1), a study, a baseline, or KEY=VALUE of the runs of
    this folder. Without any it is this folder: its runs, or else perf.csv.

    \b
    madlite export --to csv -o results.csv
    madlite export perf.csv --to parquet -o results.parquet
    madlite export last --to postgresql -o postgresql://bench@db/results
    madlite export --to prometheus -o /var/lib/node_exporter/textfile/madlite.prom
    """
    plugins = setup.load(no_plugins)
    formats = formats_of(plugins)
    setup.print_problems(plugins.problems)
    if show_list:
        rows = [(known, printable(str(getattr(formats[known].exporter, "summary", "")))) for known in formats]
        rows.append(("mongodb", "documents of MongoDB; options of its own: madlite export --to mongodb --help"))
        echo(*align(rows))
        return
    if not name:
        raise UsageProblem("no format is named", "--to csv; madlite export --list has all")
    chosen = find_format(name, formats)
    options = ExportOptions(append=append, values=dict(read_filters(values, "--option", "table=results")))
    reader = RowReader(runs_folder(directory), read_where(where), masker())
    done = chosen.write(reader.read(sources or (str(directory),)), target, options)
    setup.warn(*dict.fromkeys((*reader.notes, *done.notes)))
    if done.target:
        there = f", {done.present:,} were there" if done.present else ""
        echo(f"exported to {done.target}: {done.new:,} new{there}")


@click.command("export --to mongodb", cls=Command)
@click.argument("source", required=False, default="", metavar="[FILE]")
@click.option("-f", "--file", "--csv-file-path", "file", type=FILE, metavar="FILE", help="The same file.")
@click.option("--database", "--db", "--database-name", "database", required=True, metavar="NAME", help="The database.")
@click.option(
    "-c", "--collection", "--collection-name", "collection", required=True, metavar="NAME", help="The collection."
)
@click.option("-k", "--unique-key", default="", metavar="FIELDS", help="Fields, with commas, that identify a document.")
@click.option(
    "--batch-size", type=click.IntRange(1, 100_000), default=1000, help="Documents per request.  [default: 1000]"
)
@click.option("--no-upsert", is_flag=True, help="Add every document, also one that is there.")
@click.option("--no-index", is_flag=True, help="Make no index.")
@click.option("-n", "--dry-run", is_flag=True, help="Read the file and say what would be uploaded.")
@verbose_option
def to_mongodb(source: str, file: Path | None, **params: Any) -> int:
    """Upload a results file to MongoDB; the same row uploaded again is the same document.

    \b
    madlite export --to mongodb perf.csv --db benchmarks -c runs
    madlite export --to mongodb perf_entry.json --db benchmarks -c runs --dry-run

    The server is that of MONGO_HOST (localhost) and MONGO_PORT (27017), the login of MONGO_USER, MONGO_PASSWORD and
    MONGO_AUTH_SOURCE (admin); it has MONGO_TIMEOUT_MS (5000) to answer. madengine's `database upload-mongodb` does the
    same.
    """
    source = "" if source == "upload-mongodb" else source
    if bool(source) == bool(file):
        raise UsageProblem("no file is named" if not source else f"two files: {source} and {file}", "name one file")
    file = file or Path(source)
    documents = read_documents(file)
    unique = tuple(filter(None, (name.strip() for name in params["unique_key"].split(","))))
    upsert = not params["no_upsert"]
    target = DatabaseTarget(
        database=params["database"],
        collection=params["collection"],
        unique=unique,
        upsert=upsert,
        index=not params["no_index"],
        batch_size=params["batch_size"],
    )
    server = read_server(os.environ)
    shared = check_unique(documents, unique)
    if shared and upsert:
        setup.warn(f"{shared} rows have the {', '.join(unique)} of another: of each such the last stays")
    into = f"{target.database}.{target.collection} at {server.address}"
    if params["dry_run"]:
        how = f"told apart by {', '.join(unique) or 'all they hold'}" if upsert else "each added"
        echo(f"would upload {len(documents):,} documents of {file} to {into}, {how}")
        return int(ExitCode.OK)
    done = upload(documents, server, target)
    setup.warn(*done.problems)
    refused = f", {done.failed:,} refused" if done.failed else ""
    echo(f"uploaded {file} to {into}: {done.inserted:,} new, {done.updated:,} were there{refused}")
    return int(ExitCode.RUN_FAILED if done.failed else ExitCode.OK)


def read_server(environ: Mapping[str, str]) -> Server:
    """Return the server that the environment names.

    Raises:
        UsageProblem: a port or a time is no number.
    """

    def number(name: str, usual: int, most: int) -> int:
        text = environ.get(name, "").strip() or str(usual)
        if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= most):
            raise UsageProblem(
                f"{name} of the environment is {text!r}, which is no number from 1 to {most}", "unset it"
            )
        return int(text)

    username, password = environ.get("MONGO_USER", ""), environ.get("MONGO_PASSWORD", "")
    if bool(username) != bool(password):  # madengine goes without, too
        lacks = "MONGO_PASSWORD" if username else "MONGO_USER"
        setup.warn(f"the environment has no {lacks}: the server is asked without a login")
    return Server(
        host=environ.get("MONGO_HOST", "") or "localhost",
        port=number("MONGO_PORT", 27017, 65535),
        username=username if password else "",
        password=Secret(password),
        auth_source=environ.get("MONGO_AUTH_SOURCE", "") or "admin",
        timeout_ms=number("MONGO_TIMEOUT_MS", 5000, 3_600_000),
    )
