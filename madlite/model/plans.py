"""Everything decided about one run before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from madlite.model.architectures import Architecture
from madlite.model.cards import Card
from madlite.model.drafts import Action, ErrorScan, FileTemplate, ResultRule, Variant
from madlite.model.machines import Machine
from madlite.model.values import EnvValue, Scalar, Secret, Value
from madlite.model.verdicts import Cause, Status


class Login(Value, frozen=True):
    """How to log in to a registry; `host` is what its images' names begin with."""

    host: str
    username: str
    password: Secret


class Image(Value, frozen=True):
    """The container image of a run: `ref` to pull or find, or to build from `dockerfile`.

    `registry` is its name in a registry: what is built is pushed there.  A prebuilt one came from its Dockerfile
    earlier and perhaps elsewhere: it is pulled from there, gets the name `ref`, and has the digest of its base and the
    build's duration from then.  `root` is the checkout that Dockerfile and context are named in: a link of the
    Dockerfile stays there.  `from_context`: the context's MAD_CONTAINER_IMAGE named it, for every card.
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
    base_digest: str = ""
    build_duration_s: float | None = None


class Traits(Value, frozen=True):
    """What a runtime is like: asked instead of its name or its class.

    `containerised`: a plan's actions run in its image, and see the workspace as the plan's `inside` and only what they
    are given.  `local`: they run on this machine, so that its GPUs, its process table and its kernel tell of them.
    `sees_processes`: a session's `probe` works, so that a run that hangs can be looked into.  `shares_files`: what they
    write in the workspace is seen here at once; else the results are collected.  `streams`: their output comes while
    they run, not at their end.
    """

    containerised: bool = True
    local: bool = True
    sees_processes: bool = True
    shares_files: bool = True
    streams: bool = True


class Place(Value, frozen=True):
    """Where a plan runs, apart from in what: on how many machines, and which of this one's GPUs.

    A plan that runs here on more `nodes` than one is this machine's part: each of the others has a madlite of its own.
    """

    where: str = "local"  # else the runtime that has the machines; perf.csv's deployment_type
    nodes: Annotated[int, Meta(ge=1)] = 1
    gpus_per_node: Annotated[int, Meta(ge=0)] = 0
    gpu_ids: tuple[int, ...] = ()

    @property
    def spanned(self) -> int:
        """How many nodes the plan's own session has."""
        return 1 if self.where == "local" else self.nodes

    @property
    def whole(self) -> bool:
        """Whether the plan's own session has all of its nodes, so that its log tells of each."""
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
    cpuset: str = ""
    extra: str = ""


class Study(Value, frozen=True):
    """Runs that answer one question together, as one of them has it.

    `kind` is what they do: `repeat`, `sweep`, `tune`, …; `varied` are the values in which this run differs from the
    others, by the names of `--set`.
    """

    id: str
    kind: str
    varied: dict[str, Scalar] = {}


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
    result_rule: ResultRule = ResultRule()
    args: str = ""  # the card's args with the tag's additions, as perf.csv shows them
    model_args: str | None = None  # the context's, which replace args at the run
    model_dir: str = ""  # relative to the workspace, the folder a MAD script runs in
    timeout_s: Annotated[float, Meta(gt=0)] | None = None  # wall clock of the open session, None without limit
    start_silence_s: float = 1800.0  # without any output before the first step; 0 without limit
    silence_s: float = 300.0  # without a step after it, or 20 median steps where that is longer; 0 without limit
    telemetry_s: float = 1.0  # between two samples of the GPUs; 0 takes none
    probe: bool = True  # whether it is asked, before the model's own step, what is where it runs
    architecture: Architecture | None = None  # of the model, where it is known: its work follows from it
    log_limit_bytes: Annotated[int, Meta(ge=0)] = 2 << 30  # of run.log, its beginning and its end; 0 without limit
    stop_grace_s: Annotated[float, Meta(ge=0)] = 10.0  # INT, this long, TERM, this long, KILL
    keep_alive: bool = False
    keep_model_dir: bool = False
    skip_model_run: bool = False
    name: str = ""  # container name the contract asks for; taken when free
    log_name: str = ""  # what the names of its logs in the workspace begin with
    give_back: tuple[int, int] | None = None  # uid, gid that own what the container wrote as root
    origins: dict[str, str] = {}
    notes: tuple[str, ...] = ()  # what the user should know before the start, one line each
    blocked: Blocked | None = None
    data: tuple[DataUse, ...] = ()
    outputs: tuple[str, ...] = ()  # glob patterns, in the folder the script runs in, of what goes up to the workspace
    writes_row: bool = True
    overrides: tuple[tuple[str, str | None], ...] = ()  # what followed the tag's colon
    error_scan: ErrorScan | None = None  # of a script's own output; None where nothing is looked for
    batch: str = ""  # the id of the command that runs it, with all of its runs
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
    def own_script(self) -> bool:
        """Whether a card's own script runs, of whatever framework, to which madlite's options of sizes are nothing."""
        return self.result_rule.kind != "steps" and not self.templates

    @property
    def folder_inside(self) -> str:
        """The run folder as the actions see it."""
        return f"{self.inside}/{self.folder.relative_to(self.workspace)}"
