"""The frozen values that pass between rooms; no behaviour beyond what they are.

Every value is a `msgspec.Struct`: frozen, cheap to create, compared by value, written as JSON by `to_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

Scalar: TypeAlias = str | int | float | bool
Json: TypeAlias = Any  # a value as JSON knows it; only Card.extra and Context carry it


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: immutable and keyword-only; make a changed copy with `msgspec.structs.replace`."""


class Secret:
    """Text that must never be seen: prints and serialises as `***`, `reveal()` gives it to an API."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself; only for handing it to a container's or a process's environment."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


EnvValue: TypeAlias = str | Secret


# --- catalogue ---------------------------------------------------------------------------------------------------


class Card(Value, frozen=True):
    """One model card in MAD's schema; `extra` keeps every field madlite has no meaning for.

    `timeout_s`: None stands for the default (7200 s), 0 for no limit.  `runtimes` is empty where the card names
    none.  `recipe` is a recipe's name or a table of values that overlay the backend's own.
    """

    name: str
    root: Path  # the folder that dockerfile, scripts and dockercontext are relative to
    source: str  # the file or plugin the card came from, for messages
    scope: str = ""  # the sub-folder of scripts/ it came from, "" for a card of the root
    dockerfile: str = ""
    dockercontext: str = ""
    scripts: str = ""
    args: str = ""
    n_gpus: str = "1"
    tags: tuple[str, ...] = ()
    timeout_s: int | None = None
    multiple_results: str = ""
    data: tuple[str, ...] = ()
    cred: str = ""
    url: str = ""
    owner: str = ""
    training_precision: str = ""
    skip_gpu_arch: tuple[str, ...] = ()
    additional_docker_run_options: str = ""
    is_deprecated: bool = False
    backend: str = ""
    recipe: str | dict[str, Scalar] = ""
    image: str = ""
    runtimes: tuple[str, ...] = ()
    extra: dict[str, Json] = {}


class Request(Value, frozen=True):
    """One card that was asked for, by which tag, with the values that followed the tag's colon."""

    card: Card
    tag: str
    overrides: tuple[tuple[str, str | None], ...] = ()  # in the order given; None for a bare flag
    settings: dict[str, str] = {}  # what --set and the tag ask of the backend, for choosing a recipe


class Problem(Value, frozen=True):
    """Something that is broken and was left out, so that the rest could go on."""

    where: str
    what: str


# --- machine -----------------------------------------------------------------------------------------------------

Vendor: TypeAlias = Literal["AMD", "NVIDIA", "CPU"]


class Gpu(Value, frozen=True):
    """One GPU (or partition of one) as a workload sees it."""

    index: int
    arch: str = ""  # gfx942, or NVIDIA's product name
    product: str = ""  # AMD Instinct MI300X, NVIDIA H100 80GB HBM3
    memory_bytes: int | None = None
    render_minor: int | None = None  # /dev/dri/renderD<minor>, AMD only
    unique_id: str = ""
    bus: str = ""


class Machine(Value, frozen=True):
    """What a run can use here. A CPU machine has no GPU and architecture `cpu`."""

    vendor: Vendor = "CPU"
    gpus: tuple[Gpu, ...] = ()
    architecture: str = "cpu"  # perf.csv's gpu_architecture: gfx942, NVIDIA H100 80GB HBM3, cpu
    product: str = "cpu"
    device: str = "cpu"  # short name of result rows: MI300X, MI325X, MI350X, MI355X, H100, H200, cpu
    driver_version: str = ""
    rocm_version: str = ""
    cuda_version: str = ""
    hostname: str = ""
    host_os: str = ""
    sources: dict[str, str] = {}  # which tool or override each fact came from
    problems: tuple[Problem, ...] = ()  # tools that failed or hung while another one answered
    pretended: bool = False  # GPUs that are not here: to plan for, never to run on


# --- what a backend answers ---------------------------------------------------------------------------------------


class Quantity(str, Enum):
    """A number a training log can hold; the value names the unit."""

    LOSS = "loss"
    GRAD_NORM = "grad_norm"
    LEARNING_RATE = "learning_rate"
    TOKENS_PER_S_PER_GPU = "tokens/s/GPU"
    SAMPLES_PER_S_PER_GPU = "samples/s/GPU"
    IMAGES_PER_S_PER_GPU = "images/s/GPU"
    TFLOPS_PER_GPU = "TFLOP/s/GPU"
    STEP_TIME_S = "s/step"
    MEMORY_RESERVED_GIB = "GiB reserved"
    MEMORY_ALLOCATED_GIB = "GiB allocated"
    MEMORY_PERCENT = "% of GPU memory"
    MFU_PERCENT = "% MFU"


class Variant(Value, frozen=True):
    """One combination a backend can run: model × mode × precision, with sizes per GPU.

    `micro_batch` is sequences per GPU and forward pass, `global_batch` sequences per optimizer step over all GPUs,
    `seq_len` tokens, `warmup_steps` the first steps whose speed says nothing.
    """

    model: str
    mode: str = "pretrain"
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    steps: int | None = None
    warmup_steps: int = 5
    release: str = ""


class FileTemplate(Value, frozen=True):
    """A file of the run folder: rendered from `template`, or copied byte for byte where `raw`."""

    path: str  # relative to the run folder
    template: str  # name on the template search path, e.g. torchtitan/run.sh.j2
    raw: bool = False


class MadMetric(Value, frozen=True):
    """A result row that MAD's own parser would have written: its name and its rule over the printed steps.

    `rule`: `last` the last printed value; `mean` over `[start:stop]` of the printed values, as Python slices do;
    `summary` a figure the framework prints once (`key` names it).
    """

    metric: str
    quantity: Quantity | None = None
    rule: Literal["last", "mean", "summary"] = "last"
    start: int = 0
    stop: int | None = None
    key: str = ""


class ResultRule(Value, frozen=True):
    """Where a run's result comes from.

    `performance_line`: MAD's `performance: <number> <metric>`; `multiple_results`: the CSV named `file`; `steps`: the
    steady window of the backend's steps, `headline` being its metric, plus `mad` for published numbers.
    """

    kind: Literal["performance_line", "multiple_results", "steps"] = "performance_line"
    file: str = ""
    headline: Quantity = Quantity.TOKENS_PER_S_PER_GPU
    headline_metric: str = "tokens_per_s_per_gpu"
    mad: tuple[MadMetric, ...] = ()
    loss_expected: bool = True


class Action(Value, frozen=True):
    """One command of a session; `cwd` is relative to the workspace.

    `{folder}` in `cwd` stands for the run folder; a `cwd` or a word of `argv` that is `{model_dir}` for the folder
    that a MAD script runs in.
    """

    kind: Literal["prepare", "clone", "pre", "data", "run", "post", "clean"]
    argv: tuple[str, ...]
    cwd: str = "."
    timeout_s: float | None = None


class Draft(Value, frozen=True):
    """A backend's answer for one variant: what it wants, before card, context and options have their say."""

    variant: Variant | None = None
    templates: tuple[FileTemplate, ...] = ()  # the one with path run.sh is what runs, where actions is empty
    actions: tuple[Action, ...] = ()
    settings: dict[str, Scalar] = {}  # the backend's own knobs, open to card, context, tag and --set
    env: dict[str, str] = {}
    image: str = ""
    launcher: str = ""
    result_rule: ResultRule = ResultRule()
    readers: tuple[str, ...] = ()  # backends whose readers follow the log, this backend's own where empty
    origin: str = ""  # where the values came from, e.g. "recipe demo.toml"
    problem: str = ""  # why this cannot start here; it becomes a FAILURE row


# --- verdicts -------------------------------------------------------------------------------------------------------


class Status(str, Enum):
    """perf.csv's status."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    SKIPPED = "SKIPPED"


class Cause(str, Enum):
    """Why a run is no SUCCESS."""

    NONE = ""
    BUILD = "build_failed"
    IMAGE = "image_missing"
    ENGINE = "engine_unreachable"
    DISK = "disk_full"
    PREPARE = "prepare_failed"
    EXIT_CODE = "exit_code"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    NO_METRIC = "no_metric"
    BAD_NUMBER = "bad_number"
    NAN_LOSS = "nan_loss"
    INCOMPLETE = "incomplete"
    GPUS = "too_few_gpus"
    SKIPPED_ARCH = "skip_gpu_arch"
    DEPRECATED = "deprecated"
    INTERNAL = "internal_error"


# --- the plan -----------------------------------------------------------------------------------------------------


class Image(Value, frozen=True):
    """The container image of a run: `ref` to pull or find, or to build from `dockerfile`."""

    ref: str
    dockerfile: Path | None = None
    context: Path | None = None
    build_args: dict[str, EnvValue] = {}
    base: str = ""  # the Dockerfile's BASE_DOCKER
    no_cache: bool = False


class Place(Value, frozen=True):
    """Where a plan runs, apart from in what: one machine, and which of its GPUs."""

    where: Literal["local", "slurm", "kubernetes"] = "local"
    engine: Literal["none", "docker", "podman", "apptainer", "pyxis"] = "docker"
    nodes: int = 1
    gpus_per_node: int = 0
    gpu_ids: tuple[int, ...] = ()


class Mount(Value, frozen=True):
    """A host path made visible at `target` inside a container."""

    source: str
    target: str
    read_only: bool = False


class EngineOptions(Value, frozen=True):
    """How a container is started, beyond image, environment and mounts; `extra` is verbatim `docker run` options."""

    user: str = "root"
    network: str = "host"
    ipc: str = "host"
    group_add: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    cpuset: str = ""
    extra: str = ""


class Blocked(Value, frozen=True):
    """Why a plan must not start; it still becomes a row."""

    status: Status
    cause: Cause
    reason: str
    hint: str = ""


class RunPlan(Value, frozen=True):
    """Everything decided about one run before it starts.

    Paths: `workspace` is the caller's folder on the host and `inside` what the actions see it as (`/myworkspace` in a
    container); `folder` is the run folder on the host, always below `workspace`.  `origins` names for each dotted
    field the source its value came from.
    """

    id: str
    card: Card
    backend: str
    place: Place
    machine: Machine
    workspace: Path
    inside: str
    folder: Path
    runtime: str = "docker"
    readers: tuple[str, ...] = ()
    variant: Variant | None = None
    settings: dict[str, Scalar] = {}
    image: Image | None = None
    env: dict[str, EnvValue] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()  # host device files given to the container
    engine_options: EngineOptions = EngineOptions()
    templates: tuple[FileTemplate, ...] = ()
    actions: tuple[Action, ...] = ()
    launcher: str = ""
    result_rule: ResultRule = ResultRule()
    args: str = ""  # the card's args with the tag's additions, as perf.csv shows them
    model_args: str | None = None  # the context's, which replace args at the run
    model_dir: str = ""  # relative to the workspace, the folder a MAD script runs in
    timeout_s: float | None = None  # wall clock of open … close, None without limit
    stop_grace_s: float = 10.0  # INT, this long, TERM, this long, KILL
    keep_alive: bool = False
    keep_model_dir: bool = False
    skip_model_run: bool = False
    name: str = ""  # container name the contract asks for; taken when free
    log_name: str = ""  # legacy log name in the workspace
    give_back: tuple[int, int] | None = None  # uid, gid that own what the container wrote as root
    origins: dict[str, str] = {}
    notes: tuple[str, ...] = ()  # what the user should know before the start, one line each
    blocked: Blocked | None = None

    @property
    def run_args(self) -> str:
        """The args that the run gets."""
        return self.args if self.model_args is None else self.model_args

    @property
    def folder_inside(self) -> str:
        """The run folder as the actions see it."""
        return f"{self.inside}/{self.folder.relative_to(self.workspace)}"


# --- what happens -------------------------------------------------------------------------------------------------


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
    """The run entered a new phase, e.g. `compile`."""

    name: str
    t_s: float = 0.0


class Summary(Value, frozen=True):
    """Figures the framework computed itself over the whole run, as printed."""

    values: dict[str, str]


class EffectiveConfig(Value, frozen=True):
    """What the trainer says it runs with."""

    values: dict[str, str]


class Ended(Value, frozen=True):
    """The framework's own mark that it came to its end."""

    marker: str


Event: TypeAlias = Step | Phase | Summary | EffectiveConfig | Ended


class Exit(Value, frozen=True):
    """How an action ended: its exit code, or the signal (negative) that ended it; `timed_out` at its own limit."""

    code: int
    duration_s: float
    timed_out: bool = False


class ImageUsed(Value, frozen=True):
    """The image a run used: `digest` is its repository digest, else its image id; empty without an image."""

    ref: str = ""
    digest: str = ""
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
    """One result row: `label` is appended to the model's name, `text` is the number as it goes into perf.csv."""

    metric: str
    text: str
    status: Status
    label: str = ""
    value: float | None = None
    cause: Cause = Cause.NONE
    columns: dict[str, str] = {}


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
    durations_s: dict[str, float] = {}  # prepare, run, total
    git_commit: str = ""
    steps: int = 0
    started: str = ""  # ISO 8601, UTC


class Row(Value, frozen=True):
    """One line of perf.csv, as text."""

    cells: dict[str, str]


class Finding(Value, frozen=True):
    """What a check found; `fatal` keeps the run from starting."""

    message: str
    hint: str = ""
    fatal: bool = False


class Asset(Value, frozen=True):
    """Something a plan needs from elsewhere: weights, a tokenizer, a data set."""

    kind: Literal["model", "dataset", "tokenizer", "file"]
    ref: str
    gated: bool = False
    size_bytes: int | None = None


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


# --- protocols ----------------------------------------------------------------------------------------------------

Say: TypeAlias = Callable[[str], None]


class Reader(Protocol):
    """Reads one run's log, line by line; a fresh one for each run."""

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; never raises for what a log may hold."""

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the events of files the framework left in `outputs`."""


class Backend(Protocol):
    """Knows one training framework."""

    name: str

    def claim(self, card: Card, checkout: Path) -> int:
        """Say how surely this backend owns the card: 0 not at all; the highest wins, a tie is an error."""

    def expand(self, request: Request, machine: Machine) -> Sequence[Draft]:
        """Return one draft per run the card stands for.

        Raises:
            UsageProblem: the combination asked for is not known.
        """

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Return what is wrong with the plan, before anything starts."""

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Return what the plan needs from elsewhere."""

    def recognise(self, head: Sequence[str]) -> float:
        """Say how surely (0 to 1) the first lines of a log are this framework's."""

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader; None stands for a log madlite did not start."""


class Session(Protocol):
    """A place held open in which actions run one by one."""

    handle: str  # enough for Runtime.attach, also from another process

    def run(self, action: Action, out: Callable[[bytes, int], None]) -> Exit:
        """Run the action to its end; `out` gets its output as it comes, with 1 for stdout and 2 for stderr."""

    def stop(self, grace_s: float) -> None:
        """End the running action: INT, `grace_s`, TERM, `grace_s`, KILL. Safe from another thread."""

    def collect(self, patterns: Sequence[str], into: Path) -> None:
        """Copy the files of the workspace that match into the folder `into`."""


class Runtime(Protocol):
    """Executes plans somewhere."""

    name: str

    def supports(self, place: Place) -> bool:
        """Say whether plans for this place can run here."""

    def available(self) -> Problem | None:
        """Return why this runtime cannot be used now, or None."""

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return what would be asked of the engine, for people; touches nothing."""

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Build, pull or find the image, off the run's clock.

        Raises:
            RuntimeProblem: the engine, the image or the disk does not allow it.
        """

    def open(self, plan: RunPlan) -> AbstractContextManager[Session]:
        """Hold a session open; leaving it ends every process in it, unless the plan keeps it alive."""

    def attach(self, handle: str) -> Session:
        """Return the session that `handle` names, for clean and resume."""


def to_json(value: object) -> str:
    """Return a value as indented JSON; paths as text, secrets as `***`, infinities and NaN as null.

    Bytes of the command line that are no UTF-8 are written as escapes: JSON knows text alone.
    """
    plain = msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)
    try:
        data = msgspec.json.encode(plain)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_as_utf8(plain))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def _as_utf8(plain: Json) -> Json:
    if isinstance(plain, str):
        return plain.encode("utf-8", "backslashreplace").decode()
    if isinstance(plain, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in plain.items()}
    return [_as_utf8(item) for item in plain] if isinstance(plain, (list, tuple)) else plain


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Secret):
        return "***"
    raise TypeError(f"{type(value).__name__} does not go into JSON")
