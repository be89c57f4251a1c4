"""Results on their way to another program: one row each, and what writes them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, Protocol

from madlite.model.values import Value


class ExportRow(Value, frozen=True):
    """One result of one run, as every export has it.

    `key` is the same whenever this result is exported: of the run's id, model and metric, or else of the row's content.
    Texts are printable and without secrets, numbers finite; "" and None are what is not known.  `value` is None where
    the run has no number, which `status` and `cause` explain; `suspect` says why a number is doubtful.  `started` is in
    UTC, `steady_cv` std ÷ mean of the steady steps, `source` the run's folder or the file and its line, `facts` what
    the run ran with.
    """

    key: str
    model: str
    metric: str = ""
    value: float | None = None
    unit: str = ""
    direction: Literal["higher", "lower", "neutral"] = "neutral"
    status: str = ""
    cause: str = ""
    suspect: str = ""
    backend: str = ""
    recipe: str = ""
    mode: str = ""
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    device: str = ""
    gpus: int | None = None
    nodes: int | None = None
    run: str = ""
    started: datetime | None = None
    steady_cv: float | None = None
    source: str = ""
    facts: dict[str, str] = {}


class ExportOptions(Value, frozen=True):
    """How an export is made: `append` keeps what the target has, `values` are those of `--option NAME=VALUE`."""

    append: bool = False
    values: dict[str, str] = {}


class Exported(Value, frozen=True):
    """What an export did: results that came new, those that were there, what to print as the target, warnings."""

    new: int
    present: int = 0
    target: str = ""
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """What writes results somewhere; `madlite export --to NAME` calls it.

    `summary` is its line in `madlite export --list`, `options` the names that `--option` may have; with "append" among
    them it knows `--append`.
    """

    name: str
    summary: str
    options: tuple[str, ...]

    def write(self, rows: Iterable[ExportRow], target: str, options: ExportOptions) -> Exported:
        """Write results to what `-o` names, "" where it names nothing; a result that is there is not doubled.

        Raises:
            UsageProblem: the target cannot be used: nothing was written.
            RuntimeProblem: it broke off; what was written is named.
        """
