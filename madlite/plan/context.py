"""The context: the keys of `--additional-context` and its file, checked and merged.

Keys and types: madengine's (docs/context.md).  Unknown keys pass, as they do there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from madlite.catalog.cards import args_of
from madlite.errors import UsageProblem, did_you_mean, likeness
from madlite.files import NotJson, decode_json, read_text, wrong_key
from madlite.model import Json, Request, RunSpec, Scalar, Value
from madlite.plan.fields import ALIASES, CONTEXT_KEYS, PLAN_KEYS, VARIABLE, VARIANT_KEYS, canonical_key

# The keys of the context that have a meaning, with their types; names and types are madengine's (docs/context.md).

# madengine's keys that nothing here acts on; their types are checked all the same
REMOTE_KEYS = ("slurm", "k8s", "kubernetes", "deploy")  # they send runs to other machines
NOT_YET = (*REMOTE_KEYS, "vllm", "deployment_config", "env_vars", "timeout", "debug")
_Text = Annotated[str, msgspec.Meta(min_length=1)]  # the empty text is in every line


class ScanKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the scan for error patterns, with their types; a card can have them too."""

    log_error_pattern_scan: bool | int | str | None = None
    log_error_benign_patterns: tuple[_Text, ...] = ()
    log_error_patterns: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1)] | None = None


class Script(msgspec.Struct, frozen=True):
    """A script of the checkout that runs before or after the model."""

    path: _Text
    args: str | int | float = ""


class Tool(msgspec.Struct, frozen=True):
    """A tool of tools.json, by name, with what the context changes of it."""

    name: _Text
    cmd: str | None = None
    env_vars: dict[str, str | int | float | bool] = {}


class ContextKeys(ScanKeys, frozen=True, kw_only=True):
    """The context keys madlite acts on, with their types; those of a plan are in the table of `plan.fields`."""

    gpu_vendor: str | None = None
    guest_os: str | None = None
    host_os: str | None = None
    ctx_test: str | None = None
    docker_env_vars: dict[str, str | int | float | bool | None] = {}
    docker_mounts: dict[str, str] = {}
    docker_build_arg: dict[str, str | int | float | bool] = {}
    docker_gpus: str | None = None
    docker_cpus: str | None = None
    additional_docker_run_options: str = ""
    gpu_renderDs: list[int] | None = None
    model_args: str | None = None
    encapsulate_script: str | None = None
    MAD_CONTAINER_IMAGE: str | None = None
    SHM_SIZE: str | None = None
    tools: list[Tool] = []
    pre_scripts: list[Script] = []
    post_scripts: list[Script] = []
    data: dict[str, dict[str, dict[str, str | bool]]] = {}
    gen_sys_env_details: bool | None = None
    rocenv_mode: Literal["lite", "full"] = "lite"
    rocenv_format: Literal["facts", "sections"] | None = None
    multi_node_args: dict[str, str | int] | None = None
    skip_perf_collection: bool = False
    settings: dict[str, str | int | float | bool] = {}
    gpus_per_node: int | None = None
    gpu_count: int | None = None
    n_gpus: int | None = None
    num_gpus: int | None = None
    ngpus: int | None = None
    distributed: dict[str, Any] = {}  # of it the launcher
    # without effect yet, see NOT_YET
    slurm: dict[str, Any] = {}
    k8s: dict[str, Any] = {}
    kubernetes: dict[str, Any] = {}
    vllm: dict[str, Any] = {}
    deploy: dict[str, Any] | str = {}
    deployment_config: dict[str, Any] = {}
    env_vars: dict[str, Any] = {}
    timeout: int | float | None = None
    debug: bool = False


# tables whose keys are names that the user makes up: one may begin with `_`
_NAMING = ("env_vars", "docker_env_vars", "docker_build_arg", "docker_mounts", "data", "settings")

FROM_FILE = "context file"
FROM_OPTION = "--additional-context"
MACHINE_KEYS = ("gpu_arch", "gpu_product", "device", "rocm_version", "cuda_version", "MAD_ROCM_PATH", "numa_balancing")
_COUNTS = {"NNODES": 1, "MAD_RUNTIME_NGPUS": 1, "MASTER_PORT": 0}  # whole numbers of multi_node_args, each's least
_UPPER = ("gpu_vendor", "guest_os")  # as Dockerfiles spell them
GPUS_OPTION = "--gpus"
"""The option of the key `docker_gpus`, as its origin has it."""
GPU_COUNTS = ("gpus_per_node", "gpu_count", "n_gpus", "num_gpus", "ngpus")


class Context(Value, frozen=True):
    """The merged context: all its `values`, those of known keys `typed`.

    `origins` names the file or option of each top-level key, and of each below `settings` (`settings.steps`).
    """

    typed: ContextKeys = ContextKeys()
    values: dict[str, Json] = {}
    origins: dict[str, str] = {}

    @property
    def plan_values(self) -> list[tuple[str, str, Scalar]]:
        """Return origin, key and value of a plan's values, those that win last: the option's after a file's.

        Of one source those below `settings` win over those at its top.
        """
        given = [(key, key, self.values.get(key)) for key in CONTEXT_KEYS]
        given += [(f"settings.{key}", key, value) for key, value in self.typed.settings.items()]
        found = [(self.origins.get(path, "context"), key, value) for path, key, value in given if value is not None]
        return sorted(found, key=lambda value: (value[0].startswith("-"), value[0].startswith(FROM_FILE)))

    @property
    def n_gpus(self) -> int | None:
        """The requested GPU count, by the first alias present."""
        return next((n for name in GPU_COUNTS if (n := getattr(self.typed, name)) is not None), None)

    @property
    def target(self) -> str:
        """Where it sends runs: `slurm`, `kubernetes`, `local`, the word itself where that is none; "" unsaid."""
        keys = self.typed
        deploy = keys.deploy if isinstance(keys.deploy, str) else str(keys.deploy.get("target") or "")
        if deploy.strip():
            return TARGETS.get(deploy.strip().lower(), deploy.strip())
        if keys.slurm:
            return "slurm"
        if "k8s" in self.values or "kubernetes" in self.values:
            return "kubernetes"
        target = str(keys.deployment_config.get("target") or "")
        return TARGETS.get(target.lower(), target)


TABLES = {"slurm": "slurm", "k8s": "kubernetes", "kubernetes": "kubernetes"}
"""The tables of a context that are about one platform, and which that is."""
TRANSLATED = (*TABLES, "deploy", "deployment_config", "env_vars", "device", "gpu_product", "distributed")
"""Keys of a context that are done with once a platform has translated it: what they say is below it."""
TARGETS = {**TABLES, "local": "local", "docker": "local"}
"""madengine's words for where runs go."""


def without_comments(tree: Json, names: bool = False) -> Json:
    """Return a table without the keys that stand for comments, at any depth: `_comment…`, and others with `_` in front
    except where `names` of the user's own are keys.
    """
    if isinstance(tree, (list, tuple)):
        return [without_comments(item) for item in tree]
    if not isinstance(tree, Mapping):
        return tree
    begins = "_comment" if names else "_"
    return {
        key: without_comments(value, key in _NAMING)
        for key, value in tree.items()
        if not (isinstance(key, str) and key.startswith(begins))
    }


def read_context(file: Path | None, option: str, named: Mapping[str, tuple[str, Json]] | None = None) -> Context:
    """Return the context of a file overlaid, level by level, by the option's text.

    `named` are keys that have an option of their own, with the option's name; they come last.

    Raises:
        UsageProblem: one of them cannot be read, is no table, or has a key of the wrong type. The message shows none
            of its text, which may be secret.
    """
    named = named or {}
    from_file = _parse(read_text(file, f"{FROM_FILE} {file}", given=True), f"{FROM_FILE} {file}") if file else {}
    from_option = _parse(option, FROM_OPTION) if option.strip() else {}
    merged = {**merge(from_file, from_option), **{key: value for key, (_, value) in named.items()}}
    upper = {key: value.strip().upper() for key in _UPPER if isinstance(value := merged.get(key), str)}
    values = {**merged, **upper}
    origins = {
        **_origins(from_file, f"{FROM_FILE} {file}"),
        **_origins(from_option, FROM_OPTION),
        **{key: by for key, (by, _) in named.items()},
    }
    keys = _convert_keys(values, origins)
    _check_names("docker_env_vars", keys.docker_env_vars, origins)
    _check_names("docker_build_arg", keys.docker_build_arg, origins)
    _check_counts(keys, origins)
    return Context(typed=keys, values=values, origins=origins)


def _origins(values: Mapping[str, Json], origin: str) -> dict[str, str]:
    settings = values.get("settings")
    below = [f"settings.{key}" for key in settings] if isinstance(settings, Mapping) else []
    return dict.fromkeys((*values, *below), origin)


def context_on(under: Mapping[str, Json], origin: str, context: Context, done: Collection[str] = ()) -> Context:
    """Return a context, without the keys that are `done` with, over other values.

    Raises:
        UsageProblem: one of the values has the wrong type.
    """
    values = merge(under, {key: value for key, value in context.values.items() if key not in done})
    origins = {**_origins(under, origin), **context.origins}
    return replace(context, typed=_convert_keys(values, origins), values=values, origins=origins)


def unused_keys(context: Context) -> list[str]:
    """Return a sentence for each key that nothing here acts on; a misspelt one gets a suggestion."""
    known = [*ContextKeys.__struct_fields__, *CONTEXT_KEYS, *MACHINE_KEYS]
    found = []
    for key in context.values:
        if key in REMOTE_KEYS or (key in NOT_YET and not context.values[key]):
            continue
        if key in ("env_vars", "distributed") and context.target in TABLES.values():
            continue  # a build keeps them for the jobs, and who plans these has put them elsewhere
        if key in NOT_YET:
            found.append(f"context key '{key}' has no effect yet")
        elif key == "distributed" and set(context.typed.distributed) - {"launcher", "nnodes"}:
            found.append("context key 'distributed' has no effect yet beyond its launcher")
        elif key not in known:
            setting = key in VARIANT_KEYS or key in PLAN_KEYS
            suggestion = f"did you mean settings.{key}?" if setting else did_you_mean(key, known, most=1)
            found.append(f"context key '{key}' has no effect" + (f"; {suggestion}" if suggestion else ""))
    return found


def merge(under: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """Return `under` overlaid by `over`; tables are merged level by level, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _parse(text: str, where: str) -> dict[str, Json]:
    """Read JSON, else a Python literal, as madengine does."""
    try:
        value = decode_json(text.encode(errors="surrogatepass"))
    except NotJson as not_json:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError):
            raise UsageProblem(
                f"{where} is neither JSON nor a Python literal ({not_json})",
                """write it like {"docker_env_vars": {"NAME": "value"}}""",
            ) from None
    if not isinstance(value, dict):
        raise UsageProblem(f"{where} must be a table, found {type(value).__name__}")
    if not all(isinstance(key, str) for key in value):
        raise UsageProblem(f"{where} must be a table with text keys")
    return dict(without_comments(value))


def _convert_keys(values: Mapping[str, Json], origins: Mapping[str, str]) -> ContextKeys:
    try:
        return msgspec.convert(values, ContextKeys)
    except msgspec.ValidationError as error:
        key, words = wrong_key(error)
        raise UsageProblem(f"{origins.get(re.split(r'[.[]', key)[0], FROM_OPTION)}: {words}") from None


def _check_names(key: str, variables: Iterable[str], origins: Mapping[str, str]) -> None:
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise UsageProblem(f"{origins[key]}: {key} has {name!r}, which is no name of a variable")


def _check_counts(keys: ContextKeys, origins: Mapping[str, str]) -> None:
    """Refuse a number that is none where a launcher needs one."""
    for name, least in _COUNTS.items():
        value = str((keys.multi_node_args or {}).get(name, least))
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) < least:
            where = f"{origins['multi_node_args']}: multi_node_args.{name}"
            raise UsageProblem(f"{where} {value!r} is no whole number of at least {least}")


# What the caller requests beyond tags: options of the command line, with environment, paths and user.


ASKED = "--runtime"


class Options(Value, frozen=True):
    """Options of one `run`, `explain` or dry run. `timeout_s`: None follows the card, 0 is no limit."""

    workspace: Path
    output: Path
    output_target: Path | None = None  # what `output` led to, links followed, when the command began
    nodes: int = 0  # of each run; 0 leaves it to the context and the backend
    elsewhere: bool = False  # whether the runs are for the nodes of a cluster, which cannot be queried from here
    allocation: str = ""  # in which allocation of a scheduler this is, as a note
    runtime: str = ""  # "" leaves the choice to the card and the machine
    runtime_origin: str = ASKED  # else what it follows from
    image: str = ""
    backend: str = ""
    timeout_s: int | None = None
    named: tuple[tuple[str, str, str], ...] = ()  # options of their own for a key: option, key, value
    sets: tuple[tuple[str, str], ...] = ()  # --set key=value, in order
    fallback: tuple[tuple[str, str], ...] = ()  # what --oom-fallback puts in the place of all other values
    live_output: bool = False
    keep_alive: bool = False
    keep_model_dir: bool = False
    skip_model_run: bool = False
    clean_docker_cache: bool = False
    strict_header: bool = False
    rows: bool = True  # False leaves results to `madlite runs collect`: no results file, no side files, no record
    result_file: bool = False  # whether a run's folder gets a result file also where rows are written
    side_files: bool = True  # whether MAD's files beside perf.csv are written
    columns: tuple[str, ...] = ()  # of madlite's own, that rows are to have: record.rows.OWN_COLUMNS
    ignore_deprecated: bool = False
    disable_skip_gpu_arch: bool = False
    environ: dict[str, str] = {}
    python: str = "python3"  # the interpreter that runs madlite, for workloads of the host runtime
    user: tuple[int, int] = (0, 0)  # uid and gid of the caller
    data_file: Path = Path("data.json")
    tools_file: Path = Path("scripts/common/tools.json")
    snapshot: bool = False  # of the environment, before the model
    mirror: str = ""  # folder that keeps what data providers bring
    registry: str = ""  # where built images are pushed to
    contract: int = 0  # the version of madengine to be like where scripts look; 0 for none
    lint: bool = True  # whether a fatal finding keeps a run from starting
    command: tuple[str, ...] = ()  # the words of the command line, secrets masked, without the program's name

    @property
    def asked(self) -> dict[str, str]:
        """The plan values that the command line sets, by key; --set wins over other options."""
        return {**{key: value for _, key, value in self.named}, **dict(self.sets)}


# What of a tag's additions are arguments of what runs, and no keys of its plan: `my_ddp:steps=20:lr=0.01` has both.


def argument_keys(request: Request, spec: RunSpec) -> frozenset[str]:
    """Return the names of the tag's additions that are arguments, for a spec that takes any.

    Raises:
        UsageProblem: one is a slip away from a key of the plan.
    """
    if not spec.tag_args:
        return frozenset()
    known = (*VARIANT_KEYS, *PLAN_KEYS, *spec.settings)
    added = [name for name, _ in request.overrides if not _is_key(name, known)]
    for name in added:
        if suggestion := next((key for key in (*known, *ALIASES) if _is_slip(name, key)), ""):
            raise UsageProblem(
                f"--tags {request.tag}: '{name}' is no key of this run, and nearly '{suggestion}'",
                f"did you mean {suggestion}?   an argument of that name: --set 'args=--{name} …'",
            )
    return frozenset(added)


def _is_slip(name: str, key: str) -> bool:
    return len(name) > 4 and abs(len(name) - len(key)) < 2 and likeness(name, key) >= 0.8


def args_for(request: Request, spec: RunSpec, added: frozenset[str]) -> str:
    """Return the card's args with what the tag adds to them; all of it where the card's own script runs."""
    if spec.actions:
        return args_of(request)
    return args_of(replace(request, overrides=tuple(pair for pair in request.overrides if pair[0] in added)))


def _is_key(name: str, known: tuple[str, ...]) -> bool:
    key = canonical_key(name)
    return key.startswith("env.") or key in known or name in known
