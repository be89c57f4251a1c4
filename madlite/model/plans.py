"""The catalogue, and everything decided about one run before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from madlite.model.values import (
    Cause,
    EnvValue,
    FileName,
    Json,
    PathBelow,
    Quantity,
    RunId,
    Scalar,
    Secret,
    Status,
    Value,
)

# The catalogue: cards and requests for them.


class Card(Value, frozen=True):
    """One model card in MAD's schema; `extra` keeps every field madlite has no meaning for.

    `timeout_s`: None stands for the default (7200 s), 0 for no limit.  `runtimes` is empty where the card names
    none.  `recipe` is a recipe's name or a table of values that overlay the backend's own.
    """

    name: str
    root: Path  # the folder that dockerfile, scripts and dockercontext are relative to
    source: str  # the file or plugin the card came from, for messages
    scope: str = ""  # the folder that the name begins with: the sub-folder of scripts/ that the card is from
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
    """One selected card, its tag, and the values after the tag's colon."""

    card: Card
    tag: str
    overrides: tuple[tuple[str, str | None], ...] = ()  # in the order given; None for a bare flag
    settings: dict[str, str] = {}  # requested values, by which the backend chooses a recipe
    origins: dict[str, str] = {}  # the origin of each, e.g. --precision or card


class Problem(Value, frozen=True):
    """Something broken that was left out so that the rest works."""

    where: str
    what: str


class TreeCards(Value, frozen=True):
    """What a plugin found in a folder of `--cards-from`: cards in MAD's schema, and what is broken in between.

    `tree` is the folder as it was given; paths in the cards are relative to it.
    """

    tree: Path
    found: tuple[Mapping[str, Json] | Problem, ...]


CardItem: TypeAlias = Mapping[str, Json] | Path | TreeCards | Problem
"""What a plugin gives for cards: one in MAD's schema, a models.json, those of a folder, or what was left out."""


# What a run can use.

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

    @property
    def words(self) -> str:
        """How messages name it: what is only planned for, for the nodes of a cluster say, is not this machine."""
        return "the planned machine" if self.pretended else "this machine"


# The shape of a model, as far as its floating-point work follows from it.

Attention = Literal["full", "causal"]
"""Whether a model's FLOPs count each query with every key (`full`), or with those before it alone (`causal`)."""


class Architecture(Value, frozen=True):
    """What of a model's shape its FLOPs follow from; docs/measurement.md has the formula.

    Plan files have it, those of a later madlite with fields that are unknown here: who reads a book checks its keys.

    Raises:
        ValueError: the sizes are no model's.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int  # as the output layer has it, padding included
    ffn: int  # of a dense layer
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden ÷ heads
    gated: bool = True  # three matrices in a feed-forward layer (SwiGLU), else two
    window: int = 0  # tokens a query sees at most; 0: all of the sequence
    full_every: int = 0  # every how many layers a query sees all in spite of it; 0: in none
    experts: int = 0
    active_experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # of the experts that every token passes, together
    dense_layers: int = 0  # of a model with experts, the first layers without
    q_lora_rank: int = 0  # multi-head latent attention, where kv_lora_rank is not 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no shape, wherever it comes from."""
        if problem := _problem(self):
            raise ValueError(f"architecture '{self.name}': {problem}")


class Shape(Value, frozen=True):
    """Which settings of a spec may change its model's architecture.

    `fields` names, for a field of the architecture, the setting that has it where it is not 0.  Where one of `others`
    was changed nothing is known of the shape.  `unknown` says why there is none, whatever a table has under the name.
    """

    fields: dict[str, str] = {}
    others: tuple[str, ...] = ()
    unknown: str = ""


def _problem(item: Architecture) -> str:
    sizes = {name: getattr(item, name) for name in item.__struct_fields__}
    for name, value in sizes.items():
        if isinstance(value, int) and value < (name in ("layers", "hidden", "heads", "vocab")):
            return f"{name} is {value}"
    if item.experts and not (0 < item.active_experts <= item.experts and item.expert_ffn):
        return f"{item.active_experts} of {item.experts} experts see a token, each of {item.expert_ffn}"
    if item.dense_layers > item.layers:
        return f"{item.dense_layers} of {item.layers} layers are dense"
    if not item.ffn and (item.dense_layers or not item.experts):
        return "ffn is 0"
    if item.kv_lora_rank and not (item.qk_nope_head_dim + item.qk_rope_head_dim and item.v_head_dim):
        return "latent attention needs qk_nope_head_dim, qk_rope_head_dim and v_head_dim"
    if not item.kv_lora_rank and not item.head_dim and item.hidden % item.heads:
        return f"hidden {item.hidden} is no multiple of {item.heads} heads: head_dim is needed"
    return ""


# What a backend returns for a card.


class Variant(Value, frozen=True):
    """One combination a backend can run: model × mode × precision, with sizes per GPU.

    `micro_batch` is sequences per GPU and forward pass, `global_batch` sequences per optimizer step over all GPUs,
    `seq_len` tokens, `warmup_steps` the first steps, whose speed does not count.
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


_TRAINED = ("model", "mode", "precision", "seq_len", "global_batch", "steps", "warmup_steps", "release")


STEP_PARTS = ("GEMM", "attention", "optimizer", "other kernels", "copies", "exposed communication", "data", "host gaps")
"""The parts of a profiled step, the first that goes on has the time; in host gaps none of the others does."""


class Knob(Value, frozen=True, forbid_unknown_fields=True):
    """A setting that `madlite tune` may change: it decides how fast a model trains, and never what is trained.

    `key` is a setting of the spec, or `micro_batch`, of which any number up to `most` is tried (0: any that fits).  Any
    other has `values`, or `parts` of the model's layers from 0 to 1; for each, relative to each other, `memory` is a
    first guess of what a sequence needs and `speed` one of the throughput, and `start_s` one of the seconds before the
    first step, beside those of the others.  It is offered where each setting in `requires` has one of the values
    there, on `vendors` (any, where there is none), from `least_gpus` of a node on.  A `later` one is tried at the best
    micro batch, once nothing else promises a gain and the budget leaves room; so is a value whose start takes longer.
    `acts_on` are the parts of a profiled step (`STEP_PARTS`) that it shortens.

    Raises:
        ValueError: it is none.
    """

    key: str
    values: tuple[Scalar, ...] = ()
    parts: tuple[float, ...] = ()
    memory: tuple[float, ...] = ()
    speed: tuple[float, ...] = ()
    start_s: tuple[float, ...] = ()
    requires: dict[str, tuple[Scalar, ...]] = {}
    vendors: tuple[str, ...] = ()
    least_gpus: int = 0
    most: int = 0
    later: bool = False
    acts_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what would change what is trained, and tables that do not fit."""
        if self.key in _TRAINED:
            raise ValueError(f"knob '{self.key}' decides what is trained")
        if (self.key == "micro_batch") == bool(self.values or self.parts) or (self.values and self.parts):
            raise ValueError(f"knob '{self.key}' needs values, or parts of the layers; micro_batch has none")
        if any(not 0 <= part <= 1 for part in self.parts):
            raise ValueError(f"knob '{self.key}': parts of the layers are from 0 to 1")
        for name, table in (("memory", self.memory), ("speed", self.speed)):
            if table and (len(table) != len(self.values or self.parts) or min(table) <= 0):
                raise ValueError(f"knob '{self.key}': {name} needs a number above 0 for each value")
        if unknown := sorted(set(self.acts_on) - set(STEP_PARTS)):
            raise ValueError(f"knob '{self.key}' acts on {', '.join(unknown)}: a step has {', '.join(STEP_PARTS)}")
        if self.start_s and (len(self.start_s) != len(self.values) or min(self.start_s) < 0):
            raise ValueError(f"knob '{self.key}': start_s needs seconds for each of the values")

    def why_not(self, plan: RunPlan) -> str:
        """Return why it is not offered for a run; "" where it is."""
        if self.key != "micro_batch" and self.key not in plan.settings:
            return "this run has no such setting"
        for key, values in self.requires.items():
            found = plan.settings[key] if key in plan.settings else getattr(plan.variant, key, None)
            if ("" if found is None else found) not in values:
                return f"only with {key} {' or '.join(str(value) or repr('') for value in values)}"
        if self.vendors and plan.machine.vendor not in self.vendors:
            return f"only on {', '.join(self.vendors)}"
        if self.parts and plan.architecture is None:
            return "how many layers the model has is not known"
        if plan.place.gpus_per_node < self.least_gpus:
            return f"only with {self.least_gpus} GPU{'s' if self.least_gpus > 1 else ''} or more"
        return ""


class FileTemplate(Value, frozen=True):
    """A file of the run folder: rendered from `template`, or copied byte for byte where `raw`."""

    path: PathBelow  # relative to the run folder
    template: str  # name on the template search path, e.g. torchtitan/run.sh.j2
    raw: bool = False


class MadMetric(Value, frozen=True):
    """A result row that MAD's own parser would have written: its name and its rule over the printed steps.

    `rule`: `last` the last printed value; `mean` and `max` over `[start:stop]` of the printed values, as Python slices
    do, or over their second half; `summary` a figure the framework prints once (`key` names it).
    """

    metric: str
    quantity: Quantity | None = None
    rule: Literal["last", "mean", "max", "summary"] = "last"
    start: int = 0
    stop: int | None = None
    second_half: bool = False  # of an odd number of values the one in the middle too
    key: str = ""


class ResultRule(Value, frozen=True):
    """Where a run's result comes from.

    `performance_line`: MAD's `performance: <number> <metric>`, where there is none the CSV named `file`, if any;
    `multiple_results`: the CSV named `file`; `steps`: the
    steady window of the backend's steps, `headline` being its metric, plus `mad` for published numbers.  `columns` are
    settings of the plan that its rows have as columns too.  `attention` is how the framework counts the work of its
    own TFLOP/s, and how ours is counted beside it.  `end_mark` is what the framework prints at each training's end.
    `ranks` is `all` where each rank of a node prints its steps, `ranks_setting` a setting that lists those which do.
    `printed_on` is the node, of several, that prints the steps: `each` of them, or the first or the last alone.
    """

    kind: Literal["performance_line", "multiple_results", "steps"] = "performance_line"
    file: PathBelow = ""
    headline: Quantity = Quantity.TOKENS_PER_S_PER_GPU
    headline_metric: str = "tokens_per_s_per_gpu"
    mad: tuple[MadMetric, ...] = ()
    loss_expected: bool = True
    columns: tuple[str, ...] = ()
    attention: Attention = "full"
    end_mark: str = ""
    ranks: Literal["", "all"] = ""
    ranks_setting: str = ""
    printed_on: Literal["each", "first", "last"] = "each"


class Action(Value, frozen=True):
    """One command of a session; `cwd` is relative to the workspace, `env` is the command's alone.

    `{folder}` in `cwd` stands for the run folder; a `cwd` or a word of `argv` that is `{model_dir}` for the folder
    that a MAD script runs in.  In a RunSpec, one of kind `pre`, `data` or `post` without argv marks where the context's
    scripts and the fetching of data have their place.
    """

    kind: Literal["prepare", "clone", "pre", "data", "run", "post", "clean"]
    argv: tuple[str, ...]
    cwd: str = "."
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    env: dict[str, EnvValue] = {}


class RunSpec(Value, frozen=True):
    """A backend's specification of one run, before card, context and options are applied."""

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
    outputs: tuple[str, ...] = ()  # glob patterns of what the run leaves in its folder for the workspace
    notes: tuple[str, ...] = ()  # notes for the user on how this spec was chosen
    left_out: dict[str, str] = {}  # other runs of the card, as `mode precision`, and the releases that alone have them
    architecture: Architecture | None = None  # of the model, where madlite's own table does not have its name
    shape: Shape = Shape()  # which settings may change that
    chosen: tuple[str, ...] = ()  # requested keys that selected the recipe: nothing overrides them afterwards
    tag_args: bool = False  # whether what a tag adds beyond known keys are arguments, as for a MAD card's script
    runtimes: tuple[str, ...] = ()  # where it can run without an image, of a card that does not say
    declared: tuple[str, ...] = ()  # keys whose values the user declares of the run; the trainer does not get them
    knobs: tuple[Knob, ...] = ()  # what `madlite tune` may change of it
    planned_options: dict[str, str] = {}  # option of the trainer → key of the plan that decides it; args set none


class ErrorScan(Value, frozen=True):
    """Text that makes a run with a result a FAILURE where its log has it, and what makes a line of it harmless.

    Both are plain text, upper and lower case told apart.
    """

    patterns: tuple[str, ...]
    benign: tuple[str, ...] = ()


class Login(Value, frozen=True):
    """How to log in to a registry; `host` is what its images' names begin with."""

    host: str
    username: str
    password: Secret


class Image(Value, frozen=True):
    """The container image of a run: `ref` to pull or find, or to build from `dockerfile`.

    `registry` is its name in a registry: what is built is pushed there; `archive` the file that it is saved in instead.
    A prebuilt one came from its Dockerfile earlier and perhaps elsewhere: it is pulled or loaded from there, gets the
    name `ref`, and has the digest of its base and the build's duration from then.  `root` is the checkout that
    Dockerfile and context are named in: a link of the Dockerfile stays there.  `from_context`: the context's
    MAD_CONTAINER_IMAGE named it, for every card.
    """

    ref: str
    dockerfile: Path | None = None
    context: Path | None = None
    root: Path | None = None
    build_args: dict[str, EnvValue] = {}
    base: str = ""  # the Dockerfile's BASE_DOCKER
    no_cache: bool = False
    contexts: dict[str, Path] = {}  # further build contexts by name, which BuildKit alone knows
    prebuilt: bool = False
    from_context: bool = False
    registry: str = ""
    login: Login | None = None  # to that registry
    archive: Path | None = None
    base_digest: str = ""
    build_duration_s: float | None = None


class Traits(Value, frozen=True):
    """Properties of a runtime; code checks these instead of its name or class.

    `containerised`: a plan's actions run in its image, and see the workspace as the plan's `inside` and only what they
    are given.  `local`: they run on this machine, so that its GPUs, its process table and its kernel show them.
    `sees_processes`: a session's `probe` works, so that a run that hangs can be looked into.  `shares_files`: what they
    write in the workspace is seen here at once; else the results are collected.  `streams`: their output comes while
    they run, not at their end.  `manifests`: a dry run prints what the runtime's `manifest` returns, which the engine's
    own tool takes.  `names_gpus`: a session's `gpu_ids` reports which of a node's GPUs the run has.
    """

    containerised: bool = True
    local: bool = True
    sees_processes: bool = True
    shares_files: bool = True
    streams: bool = True
    manifests: bool = False
    names_gpus: bool = False


class Place(Value, frozen=True):
    """Where a plan runs, apart from in what: on how many machines, and which of this one's GPUs.

    A plan that runs here on more `nodes` than one is this machine's part: each of the others has a madlite of its own.
    """

    where: str = "local"  # else the runtime that has the machines
    nodes: Annotated[int, Meta(ge=1)] = 1
    gpus_per_node: Annotated[int, Meta(ge=0)] = 0
    gpu_ids: tuple[int, ...] = ()

    @property
    def spanned(self) -> int:
        """How many nodes the plan's own session has."""
        return 1 if self.where == "local" else self.nodes

    @property
    def whole(self) -> bool:
        """Whether the plan's own session has all of its nodes, so that its log covers each."""
        return self.spanned == self.nodes


class Mount(Value, frozen=True):
    """A host path made visible at `target` inside a container."""

    source: str
    target: str
    read_only: bool = False
    create: bool = False  # make the host's folder where it is not there


class DataUse(Value, frozen=True):
    """A data set of a card and where it comes from; `home` is its folder as the actions see it."""

    name: str
    provider: str
    home: str


class EngineOptions(Value, frozen=True):
    """How a container is started, beyond image, environment and mounts; `extra` is verbatim `docker run` options.

    `ulimits` are as `docker run --ulimit` has them: `memlock=-1`.
    """

    user: str = "root"
    network: str = "host"
    ipc: str = "host"
    group_add: tuple[str, ...] = ()
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    ulimits: tuple[str, ...] = ()
    cpuset: str = ""  # CPUs; on the host too
    cpuset_mems: str = ""  # NUMA nodes of its memory
    extra: str = ""


class Study(Value, frozen=True):
    """Runs that answer one question together, as one of them has it.

    `kind` is what they do: `repeat`, `sweep`, `tune`, …; `varied` are the values in which this run differs from the
    others, by the names of `--set`.  Runs of one `series` measure the same: this one is its run `index` of `count`, all
    counted from 1.  A `warm_up` is no result: it fills the caches of its series, and has no index.  Neither is a
    `short` run of a search, of too few steps for one.  `caches` is what the study did about the caches of compiled and
    tuned kernels: each run's are its own and empty (`cold`), or its series' own and filled by a run before it
    (`warm`); "" where the run uses others.
    """

    id: FileName
    kind: str
    varied: dict[str, Scalar] = {}
    series: int | None = None
    index: int | None = None
    count: int | None = None
    warm_up: bool = False
    short: bool = False
    caches: Literal["", "cold", "warm"] = ""

    @property
    def point(self) -> dict[str, Scalar]:
        """`varied` of a configuration that is compared with others: in a sweep, or in the search of the fastest one."""
        return self.varied if self.kind in ("sweep", "tune") else {}


class Blocked(Value, frozen=True):
    """Why a plan must not start; it still becomes a row."""

    status: Status
    cause: Cause
    reason: str
    hint: str = ""

    @classmethod
    def failure(cls, cause: Cause, reason: str, hint: str = "") -> Blocked:
        """Return what makes a FAILURE row of a plan."""
        return cls(status=Status.FAILURE, cause=cause, reason=reason, hint=hint)


PROFILED_STEPS = 3
"""How many steps a profile is of."""
PROFILER_STEPS = PROFILED_STEPS + 2
"""How many steps are made for it: with those in which the profiler starts and warms up."""


class RunPlan(Value, frozen=True):
    """Everything decided about one run before it starts.

    Paths: `workspace` is the caller's folder on the host and `inside` what the actions see it as (`/myworkspace` in a
    container); `folder` is the run folder on the host, always below `workspace`.  `origins` names for each dotted
    field the source its value came from.
    """

    id: RunId
    card: Card
    backend: str
    place: Place
    machine: Machine
    workspace: Path
    inside: str
    folder: Path
    runtime: str = "docker"
    traits: Traits = Traits()  # the runtime's
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
    deployment: str = ""  # what gave the run its machines, where the place does not say it: perf.csv's deployment_type
    result_rule: ResultRule = ResultRule()
    args: str = ""  # the card's args with the tag's additions, as perf.csv shows them
    model_args: str | None = None  # the context's, which replace args at the run
    model_dir: FileName = ""  # relative to the workspace, the folder a MAD script runs in
    timeout_s: Annotated[float, Meta(gt=0)] | None = None  # wall clock of the open session, None without limit
    start_silence_s: float = 1800.0  # without any output before the first step; 0 without limit
    silence_s: float = 300.0  # without a step after it, or 20 median steps where that is longer; 0 without limit
    telemetry_s: float = 1.0  # between two samples of the GPUs; 0 takes none
    probe: bool = True  # whether the environment is inspected before the model's own step
    architecture: Architecture | None = None  # of the model, where it is known: its work follows from it
    until: Annotated[float, Meta(ge=0)] = 0.0  # half-width of the steady median's interval that ends it; 0: none does
    profile: bool = False  # whether a few steps more are made after the measured ones, and profiled
    log_limit_bytes: Annotated[int, Meta(ge=0)] = 2 << 30  # of run.log, its beginning and its end; 0 without limit
    stop_grace_s: Annotated[float, Meta(ge=0)] = 10.0  # INT, this long, TERM, this long, KILL
    keep_alive: bool = False
    keep_model_dir: bool = False
    skip_model_run: bool = False
    name: str = ""  # container name the contract asks for; taken when free
    log_name: FileName = ""  # what the names of its logs in the workspace begin with
    give_back: tuple[int, int] | None = None  # uid, gid that own what the container wrote as root
    origins: dict[str, str] = {}
    notes: tuple[str, ...] = ()  # what the user should know before the start, one line each
    blocked: Blocked | None = None
    data: tuple[DataUse, ...] = ()
    outputs: tuple[
        PathBelow, ...
    ] = ()  # glob patterns, in the folder the script runs in, of what goes up to the workspace
    writes_row: bool = True
    overrides: tuple[tuple[str, str | None], ...] = ()  # what followed the tag's colon
    error_scan: ErrorScan | None = None  # of a script's own output; None where nothing is looked for
    batch: FileName = ""  # the id of the command that runs it, with all of its runs
    study: Study | None = None

    @property
    def run_args(self) -> str:
        """The args that the run gets: none of a card's where they are its script's, and another is rendered."""
        if self.model_args is not None:
            return self.model_args
        rendered = any(file.path == "run.sh" for file in self.templates)
        return "" if rendered and self.card.scripts else self.args

    @property
    def row_precision(self) -> str:
        """The precision of the row: the card's, as MAD has it, unless a rendered run trains in another."""
        asked, ran = self.card.training_precision, self.variant.precision if self.variant else ""
        same = not ran or not self.templates or ran.casefold() in asked.casefold()  # nanoo_fp8, mxfp8
        return asked if asked and same else ran

    @property
    def trained_steps(self) -> int | None:
        """How many steps the trainer makes: after the others the profiler's, and two in which it starts and warms up.

        None where nothing says how many.
        """
        steps = self.variant.steps if self.variant is not None else None
        return None if steps is None else steps + PROFILER_STEPS * self.profile

    @property
    def known_runtime(self) -> str:
        """The runtime; "" where no plan could be made of the card, so that nothing decided where it would have run."""
        return "" if self.blocked is not None and not self.actions else self.runtime

    @property
    def own_script(self) -> bool:
        """Whether a card's own script runs, of whatever framework, to which madlite's options of sizes are nothing."""
        return self.result_rule.kind != "steps" and not self.templates

    @property
    def folder_inside(self) -> str:
        """The run folder as the actions see it."""
        return f"{self.inside}/{self.folder.relative_to(self.workspace)}"
