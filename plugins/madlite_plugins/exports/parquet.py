"""Rows → an Apache Parquet file by pandas: typed columns, compressed; pandas, DuckDB and Spark read it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from madlite import Exported, ExportOptions, ExportRow, UsageProblem, rewriting_named, writing_named
from madlite_plugins.exports.columns import COLUMNS, cells_of
from madlite_plugins.exports.lines import NewRows

if TYPE_CHECKING:
    import pandas
    import pyarrow

_TYPES = {"text": "string", "json": "string", "integer": "Int64", "number": "float64", "time": "datetime64[us, UTC]"}
_HINT = "name another file, or write it as a whole, without --append"


class ParquetExporter:
    """Apache Parquet."""

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write the rows into a file, as a whole or after those that it has."""
        try:
            import pyarrow.parquet  # noqa: F401 - a part of it may be missing
        except ImportError:
            raise UsageProblem("pyarrow is not installed", "pip install 'madlite[parquet]'") from None
        if target in ("", "-"):
            raise UsageProblem("Parquet is written to a file, and none is named", "-o results.parquet")
        path = Path(target)
        if options.append:
            with rewriting_named(path) as (old, stream):
                return _append(rows, path, old, stream)
        frame = _frame(rows)
        with writing_named(path) as stream:
            _write(frame, stream)
        return Exported(new=len(frame), target=target)


def _frame(rows: Iterable[ExportRow]) -> pandas.DataFrame:
    import pandas

    columns = list(zip(*map(cells_of, rows), strict=True)) or [()] * len(COLUMNS)
    kinds = zip(COLUMNS.items(), columns, strict=True)
    return pandas.DataFrame({name: pandas.array(cells, dtype=_TYPES[kind]) for (name, kind), cells in kinds})


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    times, text = pa.timestamp("us", tz="UTC"), pa.string()
    kinds = {"text": text, "json": text, "integer": pa.int64(), "number": pa.float64(), "time": times}
    return pa.schema([pa.field(name, kinds[kind], nullable=name != "key") for name, kind in COLUMNS.items()])


def _write(frame: pandas.DataFrame, stream: IO[bytes]) -> None:
    frame.to_parquet(stream, engine="pyarrow", compression="zstd", index=False, schema=_schema())


def _append(rows: Iterable[ExportRow], path: Path, old: IO[bytes], stream: IO[bytes]) -> Exported:
    import pandas

    before = _read(path, old)
    coming = NewRows(rows, before["key"])
    _write(pandas.concat([before, _frame(coming)], ignore_index=True), stream)
    return Exported(new=coming.new, present=coming.present, target=str(path))


def _read(path: Path, old: IO[bytes]) -> pandas.DataFrame:
    """Return the table that a file holds."""
    import pandas
    import pyarrow as pa

    if not old.seek(0, 2):
        return _frame(())
    old.seek(0)
    try:
        frame = pandas.read_parquet(old, engine="pyarrow")
    except (pa.ArrowException, OSError) as error:
        raise UsageProblem(f"{path} is no Parquet file: {str(error).splitlines()[0]}", _HINT) from None
    if list(frame.columns) != list(COLUMNS):
        raise UsageProblem(f"{path} has other columns than an export", _HINT)
    return frame.astype({name: _TYPES[kind] for name, kind in COLUMNS.items()})
