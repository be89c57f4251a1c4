"""What happens in a run, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from madlite.model.plans import Attention
from madlite.model.values import QUANTITIES, SPEEDS, Cause, FileName, Quantity, RunId, Status, Value

# What a run's numbers come to, how they were checked, and why a run failed.


class Window(Value, frozen=True):
    """Statistics of the steady steps, in the headline quantity's unit; `cv` is std ÷ mean.

    `drift` is how far the Theil-Sen line moves over the window, as a part of the median, None where too few steps say,
    and `drift_z` how sure that is, in Mann and Kendall's standard deviations; `outliers` counts the steps far from the
    median.  `began_s` and `ended_s` are seconds since the start of the run between which the window's steps were done,
    None for a log without times.
    """

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
    last: float = 0.0
    drift: float | None = None
    drift_z: float = 0.0
    outliers: int = 0
    began_s: float | None = None
    ended_s: float | None = None


class Compute(Value, frozen=True):
    """A throughput as floating-point work, by our own formula, and how far the framework's figure is from it.

    `flops_per_token` of forward and backward, for sequences of `seq_len` tokens; `otherwise` is the same by the other
    convention of attention.  `apart` is framework ÷ ours - 1, None where one of them is too small for its digits;
    `mfu` a part of the peak, None where `no_mfu` says why.
    """

    architecture: str
    attention: Attention
    flops_per_token: float
    tflops_per_gpu: float
    tokens_per_s_per_gpu: float = 0.0
    seq_len: int = 0
    otherwise: float = 0.0
    frozen: bool = False  # the weights: adapters alone are trained
    framework_tflops_per_gpu: float | None = None
    apart: float | None = None
    peak_tflops: float | None = None
    peak_of: str = ""  # GPU and number format, e.g. MI300X BF16
    peak_source: str = ""
    mfu: float | None = None
    no_mfu: str = ""


class Check(Value, frozen=True):
    """The outcome of one check of a run's number; docs/verdict.md has the table.

    `warn` marks a success as suspect, `fail` makes the run a failure, `unknown` is a check without the facts it needs.
    """

    name: str
    status: Literal["pass", "warn", "fail", "unknown"]
    text: str = ""


class Diagnosis(Value, frozen=True):
    """Why a run failed: a cause code, the line that shows it, whose rank it was, and what to do.

    `where` is the deepest frame of the user's own code below an exception, as `file:line in function`.
    """

    cause: str
    line: str = ""
    rank: int | None = None
    hint: str = ""
    where: str = ""
    source: str = ""  # whose rule it was; "" where none was needed


# What a run ran on and with, and what its GPUs did meanwhile; docs/provenance.md has the tables.


class Provenance(Value, frozen=True):
    """What a run ran with: enough to tell two rows apart, and to run one again."""

    versions: dict[str, str] = {}  # of madlite and each plugin's distribution
    script: str = ""  # the script that ran, relative to the workspace
    script_sha256: str = ""  # of the rendered or copied script that ran
    files: dict[str, str] = {}  # the user's script, what it starts and imports below its folder → SHA-256
    labels: dict[str, str] = {}  # of the image
    repositories: dict[str, str] = {}  # folder where it ran → commit, with " (changed)" where tracked files differ
    packages: dict[str, str] = {}  # Python distributions where it ran; torch.hip, torch.cuda: what torch was built for
    inside: dict[str, str] = {}  # what else is where it ran: os, python, rocm or cuda
    host: dict[str, str] = {}  # kernel, cpu, memory, numa_balancing, …
    gpu: dict[str, str] = {}  # product, driver, rocm or cuda, firmware, …
    environment: dict[str, str] = {}  # what can change a training's speed, secrets masked
    notes: tuple[str, ...] = ()  # what could not be asked


class GpuUse(Value, frozen=True):
    """One GPU over the steady window; None is what it does not tell."""

    index: int
    power_w: float | None = None  # mean
    power_max_w: float | None = None
    clock_mhz: float | None = None  # of its compute units, mean
    memory_clock_mhz: float | None = None  # mean
    temperature_c: float | None = None  # the highest
    memory_used_gib: float | None = None  # the highest
    utilization_percent: float | None = None  # mean
    throttled: dict[str, float] = {}  # why → part of the window
    power_cap: float | None = None  # part of the window in which its power limit held the clocks, as at full load


class GpuStart(Value, frozen=True):
    """One GPU right before the workload began; None is what it does not report."""

    index: int
    temperature_c: float | None = None
    clock_mhz: float | None = None


class Settling(Value, frozen=True):
    """A wait for the hottest GPU to cool down before the workload began.

    `target_c` is what it waited for; `reached` is False where the time was over first, or the run was ended.
    """

    target_c: float
    waited_s: float
    from_c: float
    to_c: float
    reached: bool = True


class Telemetry(Value, frozen=True):
    """Samples of the GPUs, over the steady window where there is one, else over the whole run.

    `start` and `settling` are of the time before the workload began.
    """

    source: str = ""  # NVML, nvidia-smi, amd-smi, rocm-smi
    interval_s: float = 0.0
    samples: int = 0
    over: str = ""  # window or run
    gpus: tuple[GpuUse, ...] = ()
    power_w: float | None = None  # mean of one GPU
    tokens_per_joule: float | None = None  # tokens/s/GPU ÷ power_w
    throttled: float | None = None  # part of the window in which any GPU was slowed down
    throttled_by: dict[str, float] = {}  # why → part of the window, of the GPU that has most of it
    power_cap: float | None = None  # part of the window in which any GPU was at its power limit
    foreign_processes: tuple[str, ...] = ()  # processes on these GPUs that are not of the run
    processes_known: bool = False  # whether processes could be told apart at all
    cost: float | None = None  # of the sampling, as a part of one CPU core
    problem: str = ""
    start: tuple[GpuStart, ...] = ()
    settling: Settling | None = None

    @property
    def start_c(self) -> float | None:
        """The temperature of the hottest GPU right before the workload began."""
        return max((item.temperature_c for item in self.start if item.temperature_c is not None), default=None)


class NodeUse(Value, frozen=True):
    """One node of several: what its own lines and its GPUs told over the steady window; None is what they do not tell.

    `speed` is the median of the window's quantity over the `steps` of the node's lines, `noise` its standard error.
    `slow` is why the node is slower than the others, "" where it is not.
    """

    node: int
    name: str = ""
    steps: int = 0
    speed: float | None = None
    noise: float | None = None
    clock_mhz: float | None = None  # mean of its GPUs, as the others
    power_w: float | None = None
    utilization_percent: float | None = None
    temperature_c: float | None = None  # the highest
    samples: int = 0
    slow: str = ""

    @property
    def label(self) -> str:
        """Its number and name, as text."""
        return f"node {self.node} ({self.name})" if self.name else f"node {self.node}"


class Line(Value, frozen=True):
    """One line of a log; `t_s` seconds since the start of the run, NaN for a foreign log."""

    text: str
    t_s: float = 0.0
    node: int = 0
    rank: int | None = None


STEPS_APART = 5
"""How many steps the lines of one training's ranks may come apart; further back is a training that began again."""


class Step(Value, frozen=True):
    """One training step's numbers, read from one log line that covers `span` steps.

    `unread` has the text of quantities that the line should have and that is no number, as `12,5`.  A `late` step was
    read from an earlier line than the one at which it is told, which is none of the training's.  Of a `skipped` one the
    optimizer changed no weight, as where its gradient is not finite.
    """

    n: int
    values: dict[Quantity, float]
    rank: int | None = None
    t_s: float = 0.0
    phase: Literal["warmup", "train", "validate"] = "train"
    span: int = 1
    unread: dict[Quantity, str] = {}
    late: bool = False
    skipped: bool = False

    @property
    def speed(self) -> tuple[Quantity, float] | None:
        """The training's speed as the line has it, of one GPU; None where it has none."""
        own = (quantity for quantity in self.values if quantity.is_speed and quantity.name not in QUANTITIES)
        found = next((quantity for quantity in (*SPEEDS, *own) if quantity in self.values), None)
        return (found, self.values[found]) if found is not None else None


class Phase(Value, frozen=True):
    """The run entered a new phase, e.g. `compile`; where it `begins` a training, what came before is another one's.

    One that `starts` a training, as what a trainer prints before its first step, does so where the one before, if there
    was one, had come to its end: else it may be the same one, started again, or another rank's word.
    """

    name: str
    t_s: float = 0.0
    begins: bool = False
    starts: bool = False


class Summary(Value, frozen=True):
    """Figures the framework computed itself over the whole run, as printed.

    A reader that knows of how many steps they are compares that with the steps it read: `doubt` is "" where both are
    the same, else why the figures are doubtful, and None where nobody compared.  `computed` has figures of the steps
    that were read, in place of those of other steps.
    """

    values: dict[str, str]
    computed: dict[str, str] = {}
    doubt: str | None = None


class EffectiveConfig(Value, frozen=True):
    """What the trainer says it runs with.

    `marked_precisions`, of a trainer's start line, are those that its log names where the training computes in them:
    a log with that line and without their mark is of a training in another precision.
    """

    values: dict[str, str]
    marked_precisions: tuple[str, ...] = ()


class Ended(Value, frozen=True):
    """The framework's own mark that it came to its end, or its launcher's word on how.

    `code` is the exit code that the launcher names, negative for a signal; other than 0 the training failed.  `missed`
    is the opposite of a mark: `marker` says that the one which tells of the end is not there, so that there was none.
    """

    marker: str
    code: int = 0
    missed: bool = False


class Unread(Value, frozen=True):
    """What of the log a reader could not read as its user described it, and what there is instead, as a sentence.

    Of a failure that nothing else explains it is the hint, else a finding of the run.
    """

    text: str


Event: TypeAlias = Step | Phase | Summary | EffectiveConfig | Ended | Unread


class ImageUsed(Value, frozen=True):
    """The image a run used: `digest` is its repository digest, else its image id `id`; empty without an image.

    `base_digest` is the same of the image that a built one is based on; empty for others, and where nobody knows it.
    `pinned` is its name by digest, under which a registry has it; empty for one that is only here, as `id` alone.
    """

    ref: str = ""
    digest: str = ""
    base_digest: str = ""
    labels: dict[str, str] = {}  # in a result they are its provenance's
    registry: str = ""  # the name under which it was pushed or pulled, or the file that it was saved in
    pinned: str = ""
    id: str = ""
    build_duration_s: float | None = None
    notes: tuple[str, ...] = ()  # for a reader of the result, e.g. of a base image that could not be refreshed


class Metric(Value, frozen=True):
    """One result row: `label` is appended to the model's name, `text` is the number as it goes into perf.csv.

    `lower_is_better` where the metric counts time or loss, e.g. `step_time_s`; of a throughput more is better.  `unit`
    is that of its quantity, "" where only a script knows what the number is.
    """

    metric: str
    text: str
    status: Status
    label: str = ""
    value: float | None = None
    cause: Cause = Cause.NONE
    columns: dict[str, str] = {}
    lower_is_better: bool = False
    unit: str = ""


class StepPart(Value, frozen=True):
    """A part of a step of `madlite run --profile`: its time, and where that is known how fast it was.

    `of_peak` is `tflops` as a part of the GPU's peak; `bus_gb_per_s` what its collectives moved over a GPU's links.
    """

    name: str
    time_s: float
    tflops: float | None = None
    of_peak: float | None = None
    bus_gb_per_s: float | None = None


class StepProfile(Value, frozen=True):
    """Where a step's time goes, by the trace of rank 0 over so many `steps` after the measured ones.

    `parts` add up to `step_s`, the longest first; communication during computation is none of them.  Not `on_gpu` the
    operators of the CPU are the parts.  `loss` names the largest loss, as a sentence.
    """

    steps: int
    step_s: float
    parts: tuple[StepPart, ...]
    hidden_communication_s: float = 0.0
    on_gpu: bool = True
    loss: str = ""


class AdaptiveLength(Value, frozen=True):
    """How long a run with `--until` was: `target` is the half-width of the 95 % interval relative to the median.

    Where it was `reached` madlite ended the run after `steps_run` steps, of which `steady_steps` were in the window;
    `low` and `high` are the interval then, of the median that all planned steps would have.  Else `why` is what kept it
    from ending before its own end.
    """

    target: float
    reached: bool
    steps_planned: int | None = None
    steps_run: int = 0
    steady_steps: int = 0
    median: float | None = None
    low: float | None = None
    high: float | None = None
    why: str = ""


def headline_of(metrics: Sequence[Metric], window: Window | None) -> Metric | None:
    """Return the number that stands for all of a success: the steady window's, else the first one with a value."""
    found = metrics if window is None else metrics[-1:]
    return next((item for item in found if item.status is Status.SUCCESS and item.value is not None), None)


class StopReason(Value, frozen=True):
    """Why a run was ended before it ended by itself; `evidence` is the line that shows it, where there is one.

    No cause: its steps are enough for its number, so that ending it is no failure.
    `short` is what the screen shows meanwhile, where it printed the rest just before; `hint` is what to do.
    """

    cause: Cause
    text: str
    evidence: str = ""
    short: str = ""
    hint: str = ""


class FailedAttempt(Value, frozen=True):
    """An attempt of a run that failed and was followed by another one: its id, its cause and its micro batch."""

    run: RunId
    cause: str
    micro_batch: int | None = None


class Attempt(Value, frozen=True):
    """Which attempt this is of a run that may be tried again.

    `number` counts from 1; `retries` is how many may follow a failure that passes.  `earlier` are the attempts before
    it, oldest first.  `next` is the attempt that took its place: then this one has no row; `given_up` where one was to
    and has no result.  `micro_batch` is what it ran with in the place of the planned one, which did not fit.
    """

    number: int = 1
    retries: int = 0
    earlier: tuple[FailedAttempt, ...] = ()
    next: FileName = ""
    given_up: bool = False
    micro_batch: int | None = None


class ResultFields(Value, frozen=True, kw_only=True):
    """What the result of a run and its record have alike, under the same names."""

    reason: str = ""  # one sentence for people
    evidence: str = ""  # the line that decided it
    window: Window | None = None
    metrics: tuple[Metric, ...] = ()
    findings: tuple[str, ...] = ()
    suspect: tuple[str, ...] = ()  # of a SUCCESS, why its number is doubtful
    checks: tuple[Check, ...] = ()
    diagnosis: Diagnosis | None = None  # of a FAILURE
    compute: Compute | None = None
    config: dict[str, str] = {}  # what the trainer's own log says it ran with
    telemetry: Telemetry | None = None
    provenance: Provenance = Provenance()
    exit_code: int | None = None
    node_codes: tuple[int | None, ...] = ()  # of a run on several nodes, each one's exit code in their order
    nodes: tuple[NodeUse, ...] = ()  # of a run on several nodes
    outcome: JobOutcome | None = None  # of a failure, what the engine itself says of its end
    image: ImageUsed = ImageUsed()
    durations_s: dict[str, float] = {}  # build, data, run, total
    git_commit: str = ""
    steps: int = 0
    adaptive: AdaptiveLength | None = None  # of a run with --until
    profile: StepProfile | None = None  # of a run with --profile
    started: str = ""  # ISO 8601, UTC
    data_size: str = ""  # of the last data set that was fetched, as `du -sh` says it
    data_download_s: float | None = None  # of that set
    attempt: Attempt | None = None  # of a run that is tried again where it fails
    beside: tuple[str, ...] = ()  # ids of the runs that met it on this machine, also one after another, as far as seen


class Result(ResultFields, frozen=True):
    """The outcome of one run; without a metric it is one blank FAILURE or SKIPPED row."""

    plan_id: str
    status: Status
    cause: Cause = Cause.NONE
    shell: str = ""  # the command that opens a shell in what was kept

    @property
    def code(self) -> str:
        """The cause as the record and a `cause` column have it: the diagnosed one, else what ended the run."""
        return self.diagnosis.cause if self.diagnosis else self.cause.value

    @property
    def headline(self) -> Metric | None:
        """The number of a success, as studies and lists have it; None without any."""
        return headline_of(self.metrics, self.window) if self.status is Status.SUCCESS else None


class Finding(Value, frozen=True):
    """What a check found; `fatal` keeps the run from starting.

    `keys` are the keys of the plan whose values it is about: none where the command decides none of them, None where
    the check does not say (`madlite.errors.MadliteError`).
    """

    message: str
    hint: str = ""
    fatal: bool = False
    keys: tuple[str, ...] | None = None


class Asset(Value, frozen=True):
    """Something a plan needs from elsewhere: weights, a tokenizer, a data set; `hint` says how to do without it.

    A `hub` asset is a Hugging Face repository, or what of it matches the glob patterns `files`, and is kept in the
    hub's cache.  A `url` asset is one file, and a `made` one a folder that the run's own preparation fills: both are
    kept at `path` below the folder of prepared data, and where they are the run's variable `env` names the folder.  One
    without a `path` is fetched by each run anew.  `sha256` is the checksum of a `url` asset's file, in hexadecimal
    digits: another file is refused.
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
    sha256: str = ""


class FailureRule(Value, frozen=True, forbid_unknown_fields=True):
    """A pattern of a log line that explains a failure; docs/failures.md tells of causes and tiers.

    `tier` orders what explains: a `root` is a cause by itself, an `error` may be one, and a `follower` is what other
    ranks say after one of them failed, the cause only where nothing else is; a `sign` shows that something failed and
    explains nothing.  `ends` says whose failure a line shows that comes after the last training step, whatever the
    exit code is: that of a process, or of all that a launcher started, in the launcher's own words.  `hint` is what to
    do, whoever ran the training, and `here` what that is in a run of madlite's.  In both `{name}` stands for the
    pattern's group of that name; a group whose name begins with `rank` is the rank that failed, and of the cause
    `killed` one whose name begins with `signal` the signal that ended it.  `see` is the address of the thread in which
    maintainers say what helps.  `example` is a line that the pattern matches.  A rule that names `backends` explains
    their trainings alone, one that names none explains any.
    """

    pattern: str
    cause: str
    hint: str = ""
    here: str = ""
    see: str = ""
    tier: Literal["root", "error", "follower", "sign"] = "root"
    ends: Literal["", "process", "launcher"] = ""
    example: str = ""
    source: str = ""  # the file or plugin it came from
    backends: tuple[str, ...] = ()


class Reference(Value, frozen=True):
    """A published number: of which model, on what, by whom; docs/references.md has the keys.

    `source` names the document and its version, `date` is the day, month or year of the measurement or of the document
    (ISO 8601), `condition` is what else it was measured with: ROCm version, system, power limit.  `device` is as result
    rows have it (`MI300X`), or a product's full name where that stands for several (`NVIDIA H100 80GB HBM3`).
    `attention` is how a figure in TFLOP/s counts the work of attention.  What is blank or None the document does not
    state; `columns` are result columns beyond these, as perf.csv has them.
    """

    model: str
    device: str
    metric: str
    value: float
    source: str
    unit: str = ""
    url: str = ""
    date: str = ""
    condition: str = ""
    backend: str = ""
    release: str = ""  # of the image
    mode: str = ""
    precision: str = ""
    seq_len: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    gpus: int | None = None  # of all nodes
    nodes: int = 1
    attention: Attention | Literal[""] = ""
    columns: dict[str, str] = {}


# What passes between a session and who runs actions in it: output, how an action ended, what a probe printed.


class Chunk(Value, frozen=True):
    """Bytes of an action's output as they came: of `stream` 1 (stdout) or 2 (stderr), from one node of the session.

    `node` counts from 0 in the order of `Session.nodes`, as torchrun's node rank does.  `t_s` is when it was written,
    in seconds since the session's first output, where the engine knows that; None where it was written as it came.
    """

    data: bytes
    stream: int = 1
    node: int = 0
    t_s: float | None = None


Sink: TypeAlias = Callable[[Chunk], None]


class Exit(Value, frozen=True):
    """How an action ended: its exit code, or the signal (negative) that ended it; `timed_out` at its own limit.

    On several nodes `codes` has each node's, in their order, None of one that ran nothing or whose end nobody knows.
    `failed_node` is the one that failed first, and `code` is its own, 0 where none failed.
    """

    code: int
    duration_s: float
    timed_out: bool = False
    codes: tuple[int | None, ...] = ()
    failed_node: int | None = None

    @classmethod
    def of_nodes(
        cls, codes: Sequence[int | None], failed_first: int | None, duration_s: float, *, timed_out: bool = False
    ) -> Exit:
        """Return how an action of several nodes ended; `failed_first` None leaves the first in their order."""
        failed = next((node for node, code in enumerate(codes) if code), None)
        first = failed if failed_first is None or not codes[failed_first] else failed_first
        return cls(
            code=(codes[first] or 0) if first is not None else 0,
            duration_s=duration_s,
            timed_out=timed_out,
            codes=tuple(codes),
            failed_node=first,
        )


PROBE_BYTES = 1 << 20
"""What is kept at most of each stream of a probe."""


class Completed(Value, frozen=True):
    """How a probe's command ended: `code` None where its limit ended it; the output up to there, `PROBE_BYTES` each."""

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""


class JobOutcome(Value, frozen=True):
    """What an engine itself says of how a session ended, or that it goes on; evidence beside the log.

    `state` is the engine's own word, as `exited` or `NODE_FAIL`; `reason` what it adds to it.  `out_of_memory` where
    the session's own memory limit ended a process.  Times are ISO 8601, empty where they are not known.
    """

    state: str
    ended: bool = True
    code: int | None = None
    out_of_memory: bool = False
    reason: str = ""
    began_at: str = ""
    ended_at: str = ""
