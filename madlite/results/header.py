"""The first line of perf.csv: which columns the file has, and in which order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.model import Value
from madlite.results.lines import csv_line, plain_name

# The columns of madengine 2, in its order; madengine 1 has all but the four marked in docs/perf-csv.md.
STANDARD_COLUMNS: tuple[str, ...] = (
    *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "pipeline", "args", "tags"),
    *("docker_file", "base_docker", "docker_sha", "docker_image", "git_commit", "machine_name"),
    *("deployment_type", "launcher", "gpu_architecture", "performance", "metric", "relative_change", "status"),
    *("build_duration", "test_duration", "dataname", "data_provider_type", "data_size", "data_download_duration"),
    *("build_number", "additional_docker_run_options"),
)
_NOT_OF_CONTRACT_1 = ("nnodes", "gpus_per_node", "deployment_type", "launcher")
_REQUIRED = {"model", "performance", "metric", "status"}
MOST_COLUMNS, MOST_AT_ONCE = 1000, 100  # that joining columns can make, and that can join by one append
_LONGEST_WRITTEN, _LONGEST_AT_ONCE = 1 << 16, 1 << 13
_LONGEST_LINE = 1 << 20  # characters; what is longer is no header, and reading it would cost what the file costs


def new_columns(contract: int) -> tuple[str, ...]:
    """Return the columns that a new file begins with: under contract 1 madengine 1's 25, else madengine 2's 29."""
    return tuple(name for name in STANDARD_COLUMNS if contract != 1 or name not in _NOT_OF_CONTRACT_1)


class Header(Value, frozen=True):
    """The columns a file has, without the blanks around their names, and how its lines end."""

    columns: tuple[str, ...]
    newline: str = "\n"
    bom: str = ""

    @property
    def line(self) -> str:
        """The first line of a file."""
        return self.bom + csv_line(self.columns, self.newline)

    def arrange(self, cells: Mapping[str, str]) -> list[str]:
        """Return the cells in the file's order: blank where a row has none, once where a name stands twice.

        Names of cells are plain; those of a file that others wrote may have a line's end in them.
        """
        left = dict(cells)
        return [left.pop(name if name.isprintable() else plain_name(name), "") for name in self.columns]


def text_of(fd: int) -> TextIO:
    """Return the file from its start as text that gives back every byte it was read from."""
    text = open(fd, newline="", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115 - the caller closes it
    text.seek(0)
    return text


def read_header(path: Path, text: TextIO) -> Header | None:
    """Read the header and leave `text` behind it; None for a file that holds nothing but blanks.

    Raises:
        RecordError: the first line with text in it is no header of a perf.csv; `path` is for the message.
    """
    lines: list[str] = []
    try:
        cells = _first_record(_taken(text, lines))
    except csv.Error as error:
        raise _foreign(path, lines) from error
    if cells is None:
        return None
    columns = tuple(name.strip() for name in cells)
    if not _REQUIRED.issubset(columns) or len(lines[-1]) == _LONGEST_LINE:
        raise _foreign(path, lines)
    return Header(columns=columns, newline=_ending(lines[-1]), bom="\ufeff" if lines[0][:1] == "\ufeff" else "")


def may_join(header: Header, joining: Sequence[str]) -> bool:
    """Say whether columns can join a header, all of them: it keeps a size that people use, and is read as it is.

    Each row has a cell for each column: a results file with 100,000 of them would make all later rows of 100 KB.  What
    one append brings is far less than what there is room for: no results file alone takes the room of all later ones.
    """
    wide = replace(header, columns=(*header.columns, *joining))
    at_once = len(joining) <= MOST_AT_ONCE and len(wide.line) - len(header.line) <= _LONGEST_AT_ONCE
    if not at_once or len(wide.columns) > MOST_COLUMNS or len(wide.line) > _LONGEST_WRITTEN:
        return False
    with io.StringIO(wide.line, newline="") as text:
        try:
            return read_header(Path("perf.csv"), text) == wide
        except RecordError:
            return False


def _taken(text: TextIO, lines: list[str]) -> Iterator[str]:
    """Yield lines as csv asks for them, without a byte order mark, and note them as they were."""
    while line := text.readline(_LONGEST_LINE):
        lines.append(line)
        yield line.removeprefix("\ufeff") if len(lines) == 1 else line


def _first_record(lines: Iterator[str]) -> list[str] | None:
    # madengine 1 writes a blank after each comma of a new file's header
    records = csv.reader(lines, skipinitialspace=True)
    return next((cells for cells in records if any(cell.strip() for cell in cells)), None)


def _ending(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :] or "\n"


def _foreign(path: Path, lines: list[str]) -> RecordError:
    start = next((line.strip() for line in lines if line.strip()), "")[:60]
    return RecordError(
        f"{path}: its first line is no perf.csv header: {start!r}",
        "a perf.csv has at least the columns model, performance, metric and status, divided by commas; "
        f"choose another file: -o {path.with_name('madlite-perf.csv')}",
    )
