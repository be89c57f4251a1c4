"""perf.csv: its first line, the cells of a line, and a plan and its result → rows.  Columns: docs/perf-csv.md."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import msgspec
from msgspec.structs import replace

from madlite.errors import RecordError
from madlite.measure.performance import (
    CELL_BYTES,
    NAME_CHARACTERS,
    is_long,
    is_too_long,
    several,
    short_name,
    shortened,
)
from madlite.measure.verdict import result_columns
from madlite.model import Cause, Json, Metric, Result, RunPlan, Status, Value
from madlite.plan.manifest import NO_DOCKERFILE
from madlite.secrets import Redactor
from madlite.store.folder import RunStart
from madlite.text import readable

# Cells as lines of CSV, alike on every Python: a row is one physical line, whatever its cells hold.

# where programs see the end of a line: str.splitlines, spreadsheets, JavaScript, `sshd` reading authorized_keys
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ESCAPES = {ord(char): ascii(char)[1:-1] for char in (*_BREAKS, "\0")}


def plain(text: str) -> str:
    r"""Return readable text on one line: line ends are escaped as `\n`, `\r`, `\u2028`, …

    A program that reads a results file line by line (a spreadsheet, a shell) must see no line that a workload made up.
    """
    return text if text.isprintable() else readable(text.translate(_ESCAPES))


def plain_name(text: str) -> str:
    """Return text as the name of a column: plain, without blanks around it."""
    return plain(text.strip())


def plain_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a row as plain text, under plain names; cells without a name are dropped."""
    plain_texts = {plain_name(name): plain(text) for name, text in cells.items()}
    return {name: text for name, text in plain_texts.items() if name}


def comparable(cells: Iterable[str]) -> tuple[str, ...]:
    """Return a row of a file in the form for comparison: plain cells, without blank ones at its end."""
    texts = list(map(plain, cells))
    while texts and not texts[-1]:
        texts.pop()
    return tuple(texts)


def recorded_row(cells: Mapping[str, str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return recorded cells as `comparable` gives the row of a file with these columns."""
    return comparable(Header(columns=tuple(columns)).arrange(plain_cells(cells)))


def limited_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return plain cells of the size that a cell may have, under names that are short."""
    return {short_name(name): shortened(text) for name, text in plain_cells(cells).items()}


def truncation_text(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a message that names the columns of rows whose cells or names are truncated; "" for none."""
    cells = (cell for row in rows for cell in row.items())
    cut = [plain_name(name) for name, text in cells if len(name) > NAME_CHARACTERS or is_long(plain(text))]
    what = f"cells of more than {CELL_BYTES >> 10} KiB, or names of more than {NAME_CHARACTERS} characters, were cut"
    return f"{what}: {several(list(dict.fromkeys(cut)), 3)}" if cut else ""


class _Echo:
    def write(self, text: str) -> str:
        return text


def csv_line(cells: Iterable[str], newline: str) -> str:
    r"""Return one record: cells with a comma, quote or line end are quoted, all others stand as they are.

    Of plain cells it is one line.
    """
    # csv's own "\r\n" makes it quote a lone "\r", which with "\n" only Python 3.13 does
    line: str = csv.writer(_Echo(), lineterminator="\r\n").writerow(cells)
    return line.removesuffix("\r\n") + newline


# The columns of madengine 2, in its order; madengine 1 has all but the four marked in docs/perf-csv.md.
STANDARD_COLUMNS: tuple[str, ...] = (
    *("model", "n_gpus", "nnodes", "gpus_per_node", "training_precision", "pipeline", "args", "tags"),
    *("docker_file", "base_docker", "docker_sha", "docker_image", "git_commit", "machine_name"),
    *("deployment_type", "launcher", "gpu_architecture", "performance", "metric", "relative_change", "status"),
    *("build_duration", "test_duration", "dataname", "data_provider_type", "data_size", "data_download_duration"),
    *("build_number", "additional_docker_run_options"),
)
_NOT_IN_CONTRACT_1 = ("nnodes", "gpus_per_node", "deployment_type", "launcher")
_REQUIRED = {"model", "performance", "metric", "status"}
MOST_COLUMNS, MOST_AT_ONCE = 1000, 100  # that joining columns can make, and that can join by one append
_LONGEST_WRITTEN, _LONGEST_AT_ONCE = 1 << 16, 1 << 13
_LEAST_TORN = len("model,n_gpus,")  # of a header's beginning: less may be any text
_LONGEST_LINE = 1 << 20  # characters; what is longer is no header, and reading it would cost what the file costs


def new_columns(contract: int) -> tuple[str, ...]:
    """Return the columns that a new file begins with: under contract 1 madengine 1's 25, else madengine 2's 29."""
    return tuple(name for name in STANDARD_COLUMNS if contract != 1 or name not in _NOT_IN_CONTRACT_1)


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
    """Read the header and leave `text` behind it; None for a file that holds nothing but blanks, or a part of a header.

    Raises:
        RecordError: the first line with text in it is no header of a perf.csv; `path` is for the message.
    """
    lines: list[str] = []
    try:
        cells = _first_record(_recorded_lines(text, lines))
    except csv.Error as error:
        raise _no_header_error(path, lines) from error
    if cells is None or _is_torn(lines[-1]):
        return None
    columns = tuple(name.strip() for name in cells)
    if not _REQUIRED.issubset(columns) or len(lines[-1]) == _LONGEST_LINE:
        raise _no_header_error(path, lines)
    return Header(columns=columns, newline=_ending(lines[-1]), bom="\ufeff" if lines[0][:1] == "\ufeff" else "")


def _is_torn(line: str) -> bool:
    """Return whether a line begins a header that madlite writes: a file whose first append was cut off."""
    if line.endswith("\n") or len(line) < _LEAST_TORN:
        return False
    whole = (Header(columns=new_columns(contract)).line.rstrip() for contract in (1, 2))
    return any(name.startswith(line) and name != line for name in whole)


def may_join(header: Header, joining: Sequence[str]) -> bool:
    """Return whether all these columns can join a header: it stays within the limits, and can be read back.

    Each row has a cell for each column: a results file with 100,000 of them would make all later rows 100 KB long.  The
    limit of one append is far below that of the file: one results file alone cannot use up the limit of later ones.
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


def _recorded_lines(text: TextIO, lines: list[str]) -> Iterator[str]:
    """Yield lines without a byte order mark, and append them to `lines` as they were."""
    while line := text.readline(_LONGEST_LINE):
        lines.append(line)
        yield line.removeprefix("\ufeff") if len(lines) == 1 else line


def _first_record(lines: Iterator[str]) -> list[str] | None:
    # madengine 1 writes a blank after each comma of a new file's header
    records = csv.reader(lines, skipinitialspace=True)
    return next((cells for cells in records if any(cell.strip() for cell in cells)), None)


def _ending(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :] or "\n"


def _no_header_error(path: Path, lines: list[str]) -> RecordError:
    start = next((line.strip() for line in lines if line.strip()), "")[:60]
    return RecordError(
        f"{path}: its first line is no perf.csv header: {start!r}",
        "a perf.csv has at least the columns model, performance, metric and status, divided by commas; "
        f"choose another file: -o {path.with_name('madlite-perf.csv')}",
    )


# Cells and JSON: what is a number in a file of JSON, spelled as it was written.

_NUMBER = re.compile(r"([-+]?)(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_NO_NUMBER = frozenset(("", "nan", "+nan", "-nan", "n/a", "na", "null", "none", "inf", "+inf", "-inf", "infinity"))


def as_number(text: str) -> msgspec.Raw | None:
    """Return a number as JSON spells it, digit for digit; None for other text, or what JSON cannot express.

    `0012` is text: JSON has no such number, and it may be a name.  So is one of too many digits, for which readers
    reject the whole file.
    """
    found = None if is_too_long(text) else _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = (part or "" for part in found.groups())
    digits = fraction if len(fraction) > 1 else ""
    if not (whole or digits) or not math.isfinite(float(text)):
        return None
    return msgspec.Raw(f"{'-' if sign == '-' else ''}{whole or '0'}{digits}{exponent}".encode())


def typed_rows(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Json]]:
    """Return the rows of a table as objects: a column with only numbers holds numbers, any other text.

    A blank is null; so is a word for "no number" (nan, inf, N/A, none, …) in a column of numbers.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        for name, text in row.items():
            texts.setdefault(name, []).append(text)
    columns = {name: iter(_column(column)) for name, column in texts.items()}
    return [{name: next(columns[name]) for name in row} for row in rows]


def _column(texts: Sequence[str]) -> list[Json]:
    numbers = [as_number(text.strip()) for text in texts]
    others = {text.strip().lower() for text, number in zip(texts, numbers, strict=True) if number is None}
    if any(number is not None for number in numbers) and others <= _NO_NUMBER:
        return [*numbers]
    return [text if text.strip() else None for text in texts]


# A plan and its result → rows.

# Causes found by checks of the output; after any other failure the numbers before it are no result.
_JUDGED = {
    Cause.NONE,
    Cause.NO_METRIC,
    Cause.BAD_NUMBER,
    Cause.ERROR_PATTERN,
    Cause.NAN_LOSS,
    Cause.INCOMPLETE,
    Cause.GPUS,
}
# Columns of a skipped run (madengine 1).
_SKIPPED_COLUMNS = ("n_gpus", "training_precision", "pipeline", "args", "tags", "additional_docker_run_options")
_USER_INPUT = ("pipeline", "args", "additional_docker_run_options")
# madlite's own columns, on request (docs/perf-csv.md).
CONFIGS = "configs"
"""madengine 2's column: blank, before the columns of a results file, in rows of one alone."""
OWN_COLUMNS: dict[str, Callable[[RunPlan, Result], str]] = {
    "cause": lambda plan, result: "" if result.status is Status.SUCCESS else result.code,
    "reason": lambda plan, result: result.reason,
    "suspect": lambda plan, result: "; ".join(result.suspect),
    "run": lambda plan, result: plan.id,
    "notes": lambda plan, result: "; ".join(result.findings),
}
_NO_METRIC = Metric(metric="", text="", status=Status.FAILURE)
# What launches the ranks where the plan names nothing, away from this machine (madengine 2).
_LAUNCHERS = {"slurm": "torchrun", "kubernetes": "native"}


def build_rows(plan: RunPlan, result: Result, start: RunStart) -> tuple[dict[str, str], ...]:
    """Return one row per metric, or one blank FAILURE or SKIPPED row where the run gave none.

    A row has every standard column and the result columns that its metric brings; with the `strict_header` of its
    `start` it has no result columns, and the mode and precision of a rendered run are part of the model's name.
    Without a build's number that is 0.  The `columns` of the start are those of OWN_COLUMNS to add to each row, and
    CONFIGS.
    """
    own = {name: OWN_COLUMNS[name](plan, result) for name in start.columns if name != CONFIGS}
    common = _common(plan, result, start.pipeline, start.build_number or "0")
    metrics = result.metrics if has_results(result) else ()
    if CONFIGS in start.columns and metrics and plan.result_rule.kind == "multiple_results":
        common[CONFIGS] = ""
    rows = (
        [_skipped(plan, common, start.strict_header)]
        if result.status is Status.SKIPPED
        else [_row(plan, common, metric, start.strict_header) for metric in metrics or (_NO_METRIC,)]
    )
    return tuple(row | own for row in rows)


def masked_cells(cells: Mapping[str, str], mask: Callable[[str], str]) -> dict[str, str]:
    """Return the cells of a row without secrets, in the names of result columns too.

    Of the standard columns only those with user input are masked fully; values of a results file are masked where it is
    read.  A short secret may be part of an image's name or a status by chance: there only the shape counts.
    """
    by_shape = Redactor().text
    own = {name: by_shape(text) for name, text in cells.items() if name.strip() in STANDARD_COLUMNS}
    typed = {name: mask(text) for name, text in own.items() if name.strip() in _USER_INPUT}
    return {**own, **typed, **{mask(name): mask(text) for name, text in cells.items() if name not in own}}


def masked_metric(metric: Metric, mask: Callable[[str], str]) -> Metric:
    """Return a result without secrets in the texts of its script or results file; its number stays as it is."""
    cells = metric.columns.items()
    columns = {name if name.strip() in STANDARD_COLUMNS else mask(name): mask(text) for name, text in cells}
    return replace(metric, label=mask(metric.label), metric=mask(metric.metric), columns=columns)


def limited_metric(metric: Metric) -> Metric:
    """Return a result whose texts are plain and of the size that a cell and a name may have; its number stays."""
    label, name = short_name(plain_name(metric.label)), short_name(plain_name(metric.metric))
    return replace(metric, label=label, metric=name, columns=limited_cells(metric.columns))


def cut_of(metrics: Iterable[Metric]) -> str:
    """Return a message that names what `limited_metric` truncates; "" for nothing."""
    return truncation_text({**metric.columns, metric.label: "", metric.metric: ""} for metric in metrics)


def has_row(plan: RunPlan, result: Result) -> bool:
    """Return whether a run has a row: one that skips its model has none, unless it failed."""
    return plan.writes_row and (not plan.skip_model_run or result.status is Status.FAILURE)


def has_results(result: Result) -> bool:
    """Return whether the result's numbers count: after most failures earlier numbers are no result."""
    return result.status is Status.SUCCESS or (result.cause in _JUDGED and not result.exit_code)


def _row(plan: RunPlan, common: dict[str, str], metric: Metric, strict_header: bool) -> dict[str, str]:
    columns = {**_variant_columns(plan), **_varied(plan), **metric.columns}
    # a result may set any column but these four: MAD's rule for a file of multiple results
    judged = {
        "model": _model(plan, metric.label, columns, strict_header),
        "performance": metric.text,
        "metric": metric.metric,
        "status": metric.status.value,
    }
    cells = common | columns | judged
    return {name: text for name, text in cells.items() if name in STANDARD_COLUMNS or not strict_header}


def _skipped(plan: RunPlan, common: dict[str, str], strict_header: bool) -> dict[str, str]:
    cells = dict.fromkeys(STANDARD_COLUMNS, "") | {
        name: common[name] for name in (*_SKIPPED_COLUMNS, "gpu_architecture")
    }
    model = _model(plan, "", _variant_columns(plan), strict_header)
    return cells | {"model": model, "status": Status.SKIPPED.value}


def _model(plan: RunPlan, label: str, columns: dict[str, str], strict_header: bool) -> str:
    parts = [plan.card.name, label]
    if strict_header and _is_rendered(plan):
        parts += [columns.get("mode", ""), columns.get("precision", "")]
    return "_".join(part for part in parts if part)


def _variant_columns(plan: RunPlan) -> dict[str, str]:
    """Return the columns that distinguish the runs of one card, also for a run that ended before its first result."""
    if plan.variant is None or not _is_rendered(plan):
        return {}
    return result_columns(plan, plan.variant)


# keys whose values a rendered run's own columns have
_OWN_COLUMN = {"micro_batch": "batch_size", **{name: name for name in ("mode", "precision", "seq_len")}}


# keys by whose names the readers of results files find what is no study's point there
_KEYED = (
    "backend",
    "recipe",
    "mode",
    "precision",
    "seq_len",
    "micro_batch",
    "global_batch",
    "runtime",
    "args",
    "device",
)


def _varied(plan: RunPlan) -> dict[str, str]:
    """Return the values in which a run of a sweep differs from the others, or of tune from the default's.

    Those that the row has a column for are left out.
    """
    if plan.study is None:
        return {}
    own = _variant_columns(plan)
    values = {key: str(value) for key, value in plan.study.point.items() if _OWN_COLUMN.get(key, key) not in own}
    # by which a copy of the file, without the records, still tells the points apart
    point = ", ".join(f"{key}={text}" for key, text in sorted(values.items()) if key not in _KEYED)
    return {**values, "varied": point} if point else values


def _is_rendered(plan: RunPlan) -> bool:
    return plan.result_rule.kind == "steps"


def _common(plan: RunPlan, result: Result, pipeline: str, build_number: str) -> dict[str, str]:
    """Return every standard column, blank where this result has no value."""
    place = plan.place
    return (
        dict.fromkeys(STANDARD_COLUMNS, "")
        | {
            "n_gpus": str(place.nodes * place.gpus_per_node),
            "nnodes": str(place.nodes),
            "gpus_per_node": str(place.gpus_per_node),
            "training_precision": plan.row_precision,
            "pipeline": pipeline,
            "args": plan.args,
            "tags": ",".join(plan.card.tags),
            "git_commit": result.git_commit,
            "machine_name": plan.machine.hostname,
            "deployment_type": plan.deployment or place.where,
            "launcher": _launcher(plan) if "run" in result.durations_s else "",
            "gpu_architecture": plan.machine.architecture,
            "build_duration": _seconds(result.image.build_duration_s),
            "test_duration": _test_duration(result),
            "build_number": build_number,
            "additional_docker_run_options": plan.engine_options.extra or plan.card.additional_docker_run_options,
        }
        | _image(plan, result)
        | _data(plan, result)
    )


def _data(plan: RunPlan, result: Result) -> dict[str, str]:
    """Return where the last of the data sets came from, as madengine has it: 0 s for what was here."""
    if not plan.data:
        return {}
    last = plan.data[-1]
    counts = last.provider not in ("local", "custom") and result.data_download_s is not None
    return {
        "dataname": last.name,
        "data_provider_type": last.provider,
        "data_size": "" if last.provider == "local" else result.data_size,
        "data_download_duration": _seconds(result.data_download_s) if counts else "0",
    }


def _launcher(plan: RunPlan) -> str:
    in_what = "docker" if plan.traits.containerised else "host"
    return plan.launcher or _LAUNCHERS.get(plan.deployment or plan.place.where, in_what)


def _image(plan: RunPlan, result: Result) -> dict[str, str]:
    """Return the columns of the image; its digest is the base's, as in MAD, else its own."""
    if plan.image is None:
        return {}
    return {
        "docker_file": docker_file(plan),
        "base_docker": "" if result.cause is Cause.BUILD else plan.image.base,
        "docker_sha": (result.image.base_digest or result.image.digest).rpartition("@")[2],
        "docker_image": result.image.ref or plan.image.ref,
    }


def docker_file(plan: RunPlan) -> str:
    """Return the Dockerfile as MAD names it: from the checkout's root, whatever machine it lies on."""
    if plan.image is None or plan.image.dockerfile is None:
        return NO_DOCKERFILE if plan.image is not None and plan.image.from_context else ""
    for root in (plan.workspace, plan.card.root):
        if plan.image.dockerfile.is_relative_to(root):
            return str(plan.image.dockerfile.relative_to(root))
    return str(plan.image.dockerfile)


def _test_duration(result: Result) -> str:
    """Return how long the script ran: 0 where it failed (as madengine 2 has it), blank where it never started."""
    if "run" not in result.durations_s:
        return ""
    return _seconds(result.durations_s["run"]) if has_results(result) else "0"


def _seconds(duration_s: float | None) -> str:
    return "" if duration_s is None else repr(float(duration_s))
