"""A results file → documents in a collection of MongoDB, each once however often it is uploaded.

Types of a document, fields that are added, environment and options: madengine 2's.  What says which document is the
same is its content (`_id`), or the fields that the caller names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from madlite import (
    ExitCode,
    ExportCommand,
    Json,
    RuntimeProblem,
    Secret,
    UsageProblem,
    echo,
    read_typed_rows,
    verbose_option,
    warn,
)

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

    Found: TypeAlias = Collection[dict[str, Any]]
    Client: TypeAlias = MongoClient[dict[str, Any]]

_NAME = "a field's name is no empty text, and has neither a dot nor a first $"
_FILE = click.Path(path_type=Path)


@click.command(
    "mongodb",
    cls=ExportCommand,
    short_help="documents of MongoDB; options of its own: madlite export --to mongodb --help",
)
@click.argument("source", required=False, default="", metavar="[FILE]")
@click.option("-f", "--file", "--csv-file-path", "file", type=_FILE, metavar="FILE", help="The same file.")
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
def command(source: str, file: Path | None, **params: Any) -> int:
    """Upload a results file to MongoDB; the same row uploaded again is the same document.

    \b
    madlite export --to mongodb perf.csv --db benchmarks -c runs
    madlite export --to mongodb perf_entry.json --db benchmarks -c runs --dry-run

    The server is that of MONGO_HOST (localhost) and MONGO_PORT (27017), the login of MONGO_USER, MONGO_PASSWORD and
    MONGO_AUTH_SOURCE (admin); it has MONGO_TIMEOUT_MS (5000) to answer. madengine's `database upload-mongodb` does the
    same.
    """  # noqa: D301 - click wants a real backspace
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
        warn(f"{shared} rows have the {', '.join(unique)} of another: of each such the last stays")
    into = f"{target.database}.{target.collection} at {server.address}"
    if params["dry_run"]:
        how = f"told apart by {', '.join(unique) or 'all they hold'}" if upsert else "each added"
        echo(f"would upload {len(documents):,} documents of {file} to {into}, {how}")
        return int(ExitCode.OK)
    done = upload(documents, server, target)
    warn(*done.problems)
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
        warn(f"the environment has no {lacks}: the server is asked without a login")
    return Server(
        host=environ.get("MONGO_HOST", "") or "localhost",
        port=number("MONGO_PORT", 27017, 65535),
        username=username if password else "",
        password=Secret(password),
        auth_source=environ.get("MONGO_AUTH_SOURCE", "") or "admin",
        timeout_ms=number("MONGO_TIMEOUT_MS", 5000, 3_600_000),
    )


class Document(msgspec.Struct, frozen=True):
    """One row or object; `key` is of its content, and of how many like it came before in the file."""

    key: str
    fields: dict[str, Json]


def read_documents(file: Path) -> list[Document]:
    """Return the documents of a CSV or JSON file.

    Raises:
        UsageProblem: it cannot be read as a whole, is neither, or holds nothing.
    """
    rows, notes = read_typed_rows(file)
    if notes:
        raise UsageProblem(notes[0], "repair the file: nothing was uploaded")
    if not rows:
        raise UsageProblem(f"{file} holds no row: there is nothing to upload", "madlite run appends rows to perf.csv")
    for name in dict.fromkeys(name for fields in rows.values() for name in fields):
        if not name or "." in name or "\0" in name or name.startswith("$"):
            raise UsageProblem(f"{file} has a column '{name}', which MongoDB takes for no field", _NAME)
    return [Document(key=key, fields=fields) for key, fields in rows.items()]


# The upload.

UPLOADED, CREATED = "_meta_uploaded_at", "created_date"
INDEXED = ("model", "timestamp", "date", "status", "pipeline")  # where the caller names no fields
_MOST_ERRORS = 3
_WRONG_LOGIN, _NOT_ALLOWED = 18, 13  # https://www.mongodb.com/docs/manual/reference/error-codes


class Server(msgspec.Struct, frozen=True):
    """A MongoDB server and a login to it, which an empty name does without."""

    host: str = "localhost"
    port: int = 27017
    username: str = ""
    password: Secret = Secret("")
    auth_source: str = "admin"
    timeout_ms: int = 5000

    @property
    def address(self) -> str:
        """The host and port, without a login."""
        place = self.host.rpartition("@")[2]
        return place if "://" in self.host else f"{place}:{self.port}"


class DatabaseTarget(msgspec.Struct, frozen=True):
    """Where documents go, and how: `unique` are the fields that say which is the same, none its content."""

    database: str
    collection: str
    unique: tuple[str, ...] = ()
    upsert: bool = True
    index: bool = True
    batch_size: int = 1000


class Uploaded(msgspec.Struct, frozen=True):
    """How many documents came new, were there and were written again, and were refused, with the server's words."""

    inserted: int
    updated: int
    failed: int = 0
    problems: tuple[str, ...] = ()


def check_unique(documents: Sequence[Document], unique: Sequence[str]) -> int:
    """Return how many documents share the fields with an earlier one, which they would replace.

    Raises:
        UsageProblem: a document lacks one of the fields.
    """
    for n, document in enumerate(documents, 1):
        if lacks := [name for name in unique if document.fields.get(name) is None]:
            fields = ", ".join(list(document.fields)[:8])
            raise UsageProblem(f"row {n} has no '{lacks[0]}', which is to tell rows apart", f"its fields: {fields}, …")
    values = {repr([document.fields[name] for name in unique]) for document in documents}
    return len(documents) - len(values) if unique else 0


def upload(documents: Sequence[Document], server: Server, target: DatabaseTarget) -> Uploaded:
    """Upload the documents.

    Raises:
        UsageProblem: pymongo is not installed, no server answers, it refuses the login, or a name is none.
        RuntimeProblem: the server went away, or takes none of it, after the upload began.
    """
    with _connected(server) as client:
        collection = client[target.database][target.collection]
        problems = _index(collection, documents, target) if target.index else ()
        done = Uploaded(inserted=0, updated=0, problems=problems)
        now = datetime.now(timezone.utc)
        for start in range(0, len(documents), target.batch_size):
            done = _write(collection, documents[start : start + target.batch_size], target, now, done, server)
    return done


@contextmanager
def _connected(server: Server) -> Iterator[Client]:
    try:
        import pymongo
        from pymongo.errors import ConnectionFailure, PyMongoError
    except ImportError:
        raise UsageProblem("pymongo is not installed", "pip install 'madlite[mongodb]'") from None
    login: dict[str, Any] = {}
    if server.username:
        password = server.password.reveal()
        login = {"username": server.username, "password": password, "authSource": server.auth_source}
    try:
        client: Client
        with pymongo.MongoClient(
            server.host, server.port, serverSelectionTimeoutMS=server.timeout_ms, tz_aware=True, **login
        ) as client:
            client.admin.command("ping")
            yield client
    except ConnectionFailure:
        raise UsageProblem(
            f"no MongoDB server answers at {server.address} within {server.timeout_ms / 1000:g} s",
            "MONGO_HOST and MONGO_PORT say where it is, MONGO_TIMEOUT_MS how long it may take",
        ) from None
    except PyMongoError as error:
        raise _refusal(error, server) from None


def _refusal(error: Exception, server: Server) -> UsageProblem:
    code = getattr(error, "code", None)
    who = f"user '{server.username}'" if server.username else "a caller without a login"
    if code == _WRONG_LOGIN:
        return UsageProblem(
            f"MongoDB at {server.address} does not let {who} in",
            f"MONGO_USER and MONGO_PASSWORD, of users in database {server.auth_source} (MONGO_AUTH_SOURCE)",
        )
    if code == _NOT_ALLOWED:
        return UsageProblem(f"MongoDB at {server.address} lets {who} not write there", "MONGO_USER, MONGO_PASSWORD")
    words = str(error).partition(", full error")[0]
    return UsageProblem(f"MongoDB at {server.address}: {' '.join(words.split())}", "madlite export --to mongodb --help")


def _index(collection: Found, documents: Sequence[Document], target: DatabaseTarget) -> tuple[str, ...]:
    """Make the indexes, of which a query is the faster, and no more; return why one could not be made."""
    from pymongo.errors import OperationFailure

    there = {name for document in documents for name in document.fields}
    fields = target.unique or tuple(name for name in INDEXED if name in there)
    wanted = [[name] for name in fields] + ([list(fields)] if len(target.unique) > 1 else [])
    problems = []
    for names in wanted:
        try:
            collection.create_index([(name, 1) for name in names])
        except OperationFailure as error:
            if error.code in (_WRONG_LOGIN, _NOT_ALLOWED):
                raise
            problems.append(f"no index of {', '.join(names)}: {error.details and error.details.get('errmsg')}")
    return tuple(problems)


def _write(
    collection: Found, batch: Sequence[Document], target: DatabaseTarget, now: datetime, done: Uploaded, server: Server
) -> Uploaded:
    from bson.errors import BSONError
    from pymongo import InsertOne, UpdateOne
    from pymongo.errors import BulkWriteError, ConnectionFailure

    wanted = [
        UpdateOne(*_update(document, target, now), upsert=True)
        if target.upsert
        else InsertOne({CREATED: _created(now), **document.fields, UPLOADED: now})
        for document in batch
    ]
    count = done.inserted + done.updated + done.failed
    try:
        details: Mapping[str, Any] = collection.bulk_write(wanted, ordered=False).bulk_api_result
    except BulkWriteError as error:
        details = error.details or {}
    except ConnectionFailure as error:
        raise RuntimeProblem(
            f"MongoDB at {server.address} went away after {count:,} documents: {' '.join(str(error).split())[:200]}",
            "upload again: what is there already is not doubled",
        ) from None
    except (BSONError, OverflowError) as error:
        what = f"MongoDB cannot hold a row from {count + 1:,} on: {error}"
        raise RuntimeProblem(what, f"{count:,} documents are there") from None
    refused = list(details.get("writeErrors", ()))
    words = [*done.problems, *(str(error.get("errmsg", "")) for error in refused)]
    return Uploaded(
        inserted=done.inserted + details.get("nInserted", 0) + details.get("nUpserted", 0),
        updated=done.updated + details.get("nMatched", 0),
        failed=done.failed + len(refused),
        problems=tuple(dict.fromkeys(words))[:_MOST_ERRORS],
    )


def _update(document: Document, target: DatabaseTarget, now: datetime) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a document is looked for by, and what is written; it is created by its first upload."""
    fields = {name: value for name, value in document.fields.items() if name != "_id"}
    same = {name: document.fields[name] for name in target.unique} or {"_id": document.fields.get("_id", document.key)}
    first = {} if CREATED in fields else {"$setOnInsert": {CREATED: _created(now)}}
    return same, {"$set": {**fields, UPLOADED: now}, **first}


def _created(now: datetime) -> str:
    return now.strftime("%Y-%m-%d %H:%M:%S")
