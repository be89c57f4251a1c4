"""A results file → documents, and these → a collection of MongoDB, each once however often it is uploaded.

Types: a blank is null, a cell that holds a list or an object is that, as madengine 2 has them; what is a number goes by
the column, so that a commit such as `1234567e8` stays a text.

Fields that are added, environment and options: madengine 2's.  What says which document is the same is its content
(`_id`), or the fields that the caller names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from madlite.errors import RuntimeProblem, UsageProblem
from madlite.files import read_bytes
from madlite.jsontext import read_json
from madlite.model import Json, Secret, Value
from madlite.perfcsv.header import STANDARD_COLUMNS, as_number, typed_rows
from madlite.reports.results_files import ContentKeys, Table, read_table

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

    Found: TypeAlias = Collection[dict[str, Any]]
    Client: TypeAlias = MongoClient[dict[str, Any]]

_NUMBERS = {
    *("n_gpus", "nnodes", "gpus_per_node", "performance", "relative_change"),
    *("build_duration", "test_duration", "data_download_duration"),
}
_LARGEST_INTEGER = 1 << 63  # of BSON's 64 bits
_NAME = "a field's name is no empty text, and has neither a dot nor a first $"


class Document(Value, frozen=True):
    """One row or object; `key` is of its content, and of how many like it came before in the file."""

    key: str
    fields: dict[str, Json]


def read_documents(file: Path) -> list[Document]:
    """Return the documents of a CSV or JSON file, the kind by its name's end, else by its first character.

    Raises:
        UsageProblem: it cannot be read, is neither, or holds nothing.
    """
    is_json = file.suffix.lower() == ".json"
    if not is_json and file.suffix.lower() != ".csv" and file.is_file():
        is_json = read_bytes(file, given=True).lstrip()[:1] in (b"{", b"[")
    found = _of_json(file) if is_json else _of_table(file)
    if not found:
        raise UsageProblem(f"{file} holds no row: there is nothing to upload", "madlite run appends rows to perf.csv")
    for name in dict.fromkeys(name for document in found for name in document.fields):
        if not name or "." in name or "\0" in name or name.startswith("$"):
            raise UsageProblem(f"{file} has a column '{name}', which MongoDB takes for no field", _NAME)
    return found


def _of_table(file: Path) -> list[Document]:
    table = read_table(file)
    if table.notes:
        raise UsageProblem(table.notes[0], "repair the file: nothing was uploaded")
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.rows]
    contents = [{name: text for name, text in row.items() if text.strip()} for row in rows]
    return _keyed(contents, _typed(table, rows))


def _typed(table: Table, rows: Sequence[Mapping[str, str]]) -> list[dict[str, Json]]:
    """Return the rows with their types; columns of one's own by what they hold, as in perf_entry.json."""
    others = [name for name in table.columns if name not in STANDARD_COLUMNS]
    own = typed_rows([{name: row[name] for name in others} for row in rows])
    return [
        {name: _parse_cell(more[name]) if name in more else _cell(name, row[name]) for name in row}
        for row, more in zip(rows, own, strict=True)
    ]


def _cell(name: str, text: str) -> Json:
    if not text.strip():
        return None
    number = as_number(text.strip()) if name in _NUMBERS else None
    return text if number is None else _bson_value(number)


def _of_json(file: Path) -> list[Document]:
    try:
        value = read_json(read_bytes(file, given=True))
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageProblem(f"{file} is no JSON: {why}{at}", "name a results file: perf.csv, perf_entry.json") from None
    objects = value if isinstance(value, list) else [value]
    for n, object_ in enumerate(objects, 1):
        if not isinstance(object_, dict):
            raise UsageProblem(
                f"{file}: entry {n} is no object but a {type(_bson_value(object_)).__name__}", "a list of objects"
            )
    documents: list[dict[str, Json]] = [
        {name: _bson_value(item) for name, item in object_.items()} for object_ in objects if isinstance(object_, dict)
    ]
    contents = [{name: item for name, item in document.items() if item is not None} for document in documents]
    return _keyed(contents, documents)


def _keyed(contents: Iterable[Mapping[str, Json]], documents: Iterable[dict[str, Json]]) -> list[Document]:
    """Return documents with their keys; of blanks nothing goes into a key, so that a column more changes none."""
    key = ContentKeys()
    return [Document(key=key(content), fields=fields) for content, fields in zip(contents, documents, strict=True)]


def _bson_value(value: Json) -> Json:
    """Return a value for BSON: numbers as Python has them, an integer too large for it as its digits."""
    if isinstance(value, msgspec.Raw):
        value = json.loads(bytes(value))
    if isinstance(value, int) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, dict):
        return {name: _bson_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_bson_value(item) for item in value]
    return value


def _parse_cell(value: Json) -> Json:
    """Return the list or object in a cell (`configs`, `multi_results`), else the cell."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return _bson_value(value)
    try:
        return _bson_value(read_json(value.encode()))
    except (ValueError, RecursionError):
        return value


# The upload.

UPLOADED, CREATED = "_meta_uploaded_at", "created_date"
INDEXED = ("model", "timestamp", "date", "status", "pipeline")  # where the caller names no fields
_MOST_ERRORS = 3
_WRONG_LOGIN, _NOT_ALLOWED = 18, 13  # https://www.mongodb.com/docs/manual/reference/error-codes


class Server(Value, frozen=True):
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


class DatabaseTarget(Value, frozen=True):
    """Where documents go, and how: `unique` are the fields that say which is the same, none its content."""

    database: str
    collection: str
    unique: tuple[str, ...] = ()
    upsert: bool = True
    index: bool = True
    batch_size: int = 1000


class Uploaded(Value, frozen=True):
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
