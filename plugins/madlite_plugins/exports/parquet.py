"""Rows → an Apache Parquet file: typed columns, compressed; pandas, DuckDB and Spark read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from madlite import Exported, ExportOptions, ExportRow, UsageProblem, rewriting_named, writing_named
from madlite_plugins.exports.columns import COLUMNS, cells_of
from madlite_plugins.exports.lines import NewRows

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 50_000


class ParquetExporter:
    """Apache Parquet."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write the rows into a file, as a whole or after those that it has."""
        _check_installed()
        if target in ("", "-"):
            raise UsageProblem("Parquet is written to a file, and none is named", "-o results.parquet")
        path = Path(target)
        if options.append:
            with rewriting_named(path) as (old, stream):
                return _append(rows, path, old, stream)
        with writing_named(path) as stream:
            return Exported(new=_write(rows, stream, None), target=target)


def _check_installed() -> None:
    try:
        import pyarrow.parquet  # noqa: F401 - a part of it may be missing
    except ImportError:
        raise UsageProblem("pyarrow is not installed", "pip install 'madlite[parquet]'") from None


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "json": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "time": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(name, kinds[kind], nullable=name != "key") for name, kind in COLUMNS.items()])


def _write(rows: Iterable[ExportRow], stream: IO[bytes], before: Any) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, count = _schema(), 0
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        if before is not None:
            writer.write_table(before)
        for part in _parts(rows):
            columns = list(zip(*map(cells_of, part), strict=True))
            writer.write_table(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema))
            count += len(part)
    return count


def _parts(rows: Iterable[ExportRow]) -> Iterator[list[ExportRow]]:
    pending = iter(rows)
    while part := list(itertools.islice(pending, _ROWS_AT_ONCE)):
        yield part


def _append(rows: Iterable[ExportRow], path: Path, old: IO[bytes], stream: IO[bytes]) -> Exported:
    before = _read(path, old)
    coming = NewRows(rows, before["key"].to_pylist() if before is not None else ())
    new = _write(coming, stream, before)
    return Exported(new=new, present=coming.present, target=str(path))


def _read(path: Path, old: IO[bytes]) -> Any:
    """Return the table that a file holds, None where it is empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not old.seek(0, 2):
        return None
    old.seek(0)
    hint = "name another file, or write it as a whole, without --append"
    try:
        table = pq.read_table(old)
    except (pa.ArrowException, OSError) as error:
        raise UsageProblem(f"{path} is no Parquet file: {str(error).splitlines()[0]}", hint) from None
    if table.schema.names != list(COLUMNS):
        raise UsageProblem(f"{path} has other columns than an export", hint)
    return table.cast(_schema())
