"""What happens in a run, and what it comes to."""

from __future__ import annotations

from typing import Literal, TypeAlias

from madlite.types.drafts import Quantity
from madlite.types.values import Value
from madlite.types.verdicts import Cause, Status


class Line(Value, frozen=True):
    """One line of a log; `t_s` seconds since the start of the run, NaN for a foreign log."""

    text: str
    t_s: float = 0.0
    node: int = 0
    rank: int | None = None


class Step(Value, frozen=True):
    """One training step's numbers, read from one log line that covers `span` steps."""

    n: int
    values: dict[Quantity, float]
    rank: int | None = None
    t_s: float = 0.0
    phase: Literal["warmup", "train", "validate"] = "train"
    span: int = 1


class Phase(Value, frozen=True):
    """The run entered a new phase, e.g. `compile`; where it `begins` a training, what came before is another one's."""

    name: str
    t_s: float = 0.0
    begins: bool = False


class Summary(Value, frozen=True):
    """Figures the framework computed itself over the whole run, as printed."""

    values: dict[str, str]


class EffectiveConfig(Value, frozen=True):
    """What the trainer says it runs with."""

    values: dict[str, str]


class Ended(Value, frozen=True):
    """The framework's own mark that it came to its end, or its launcher's word on how.

    `code` is the exit code that the launcher names, negative for a signal; other than 0 the training failed.
    """

    marker: str
    code: int = 0


Event: TypeAlias = Step | Phase | Summary | EffectiveConfig | Ended


class Exit(Value, frozen=True):
    """How an action ended: its exit code, or the signal (negative) that ended it; `timed_out` at its own limit."""

    code: int
    duration_s: float
    timed_out: bool = False


class ImageUsed(Value, frozen=True):
    """The image a run used: `digest` is its repository digest, else its image id; empty without an image.

    `base_digest` is the same of the image that a built one is based on; empty for others, and where nobody knows it.
    """

    ref: str = ""
    digest: str = ""
    base_digest: str = ""
    registry: str = ""  # the name under which it was pushed or pulled
    build_duration_s: float | None = None
    notes: tuple[
        str, ...
    ] = ()  # what a reader of the result should know, e.g. a base image that could not be refreshed


class Window(Value, frozen=True):
    """Statistics of the steady steps, in the headline quantity's unit; `cv` is std ÷ mean."""

    quantity: Quantity
    n: int
    first_step: int
    last_step: int
    dropped: int
    median: float
    mean: float
    std: float
    cv: float
    min: float
    max: float


class Metric(Value, frozen=True):
    """One result row: `label` is appended to the model's name, `text` is the number as it goes into perf.csv.

    `lower_is_better` where the metric counts time or loss, e.g. `step_time_s`; of a throughput more is better.
    """

    metric: str
    text: str
    status: Status
    label: str = ""
    value: float | None = None
    cause: Cause = Cause.NONE
    columns: dict[str, str] = {}
    lower_is_better: bool = False


class Result(Value, frozen=True):
    """The outcome of one run; without a metric it is one blank FAILURE or SKIPPED row."""

    plan_id: str
    status: Status
    cause: Cause = Cause.NONE
    reason: str = ""  # one sentence for people
    evidence: str = ""  # the line that decided it
    window: Window | None = None
    metrics: tuple[Metric, ...] = ()
    findings: tuple[str, ...] = ()
    exit_code: int | None = None
    image: ImageUsed = ImageUsed()
    durations_s: dict[str, float] = {}  # build, data, run, total
    git_commit: str = ""
    steps: int = 0
    started: str = ""  # ISO 8601, UTC
    data_size: str = ""  # of the last data set that was fetched, as `du -sh` says it
    data_download_s: float | None = None  # of that set


class Row(Value, frozen=True):
    """One line of perf.csv, as text."""

    cells: dict[str, str]


class Finding(Value, frozen=True):
    """What a check found; `fatal` keeps the run from starting."""

    message: str
    hint: str = ""
    fatal: bool = False


class Asset(Value, frozen=True):
    """Something a plan needs from elsewhere: weights, a tokenizer, a data set; `hint` says how to do without it.

    A `hub` asset is a Hugging Face repository, or what of it matches the glob patterns `files`, and is kept in the
    hub's cache.  A `url` asset is one file, and a `made` one a folder that the run's own preparation fills: both are
    kept at `path` below the folder of prepared data, and where they are the run's variable `env` names the folder.  One
    without a `path` is fetched by each run anew.
    """

    kind: Literal["model", "dataset", "tokenizer", "file"]
    ref: str
    gated: bool = False
    size_bytes: int | None = None
    hint: str = ""
    source: Literal["hub", "url", "made"] = "hub"
    revision: str = ""  # of a repository: a commit, branch or tag, its default branch where empty
    files: tuple[str, ...] = ()
    path: str = ""
    env: str = ""


class FailureRule(Value, frozen=True):
    """A pattern of a log line that explains a failure."""

    pattern: str
    cause: str
    hint: str = ""


class Reference(Value, frozen=True):
    """A published number: which model, on what, by whom."""

    model: str
    device: str
    metric: str
    value: float
    source: str
    columns: dict[str, str] = {}
