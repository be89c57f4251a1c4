"""What a plan is made from, the sources of its values in their order, and what tools add to it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from madlite.catalog.datasets import DataSets
from madlite.errors import UsageProblem, did_you_mean, one_hint
from madlite.files import is_file, read_json, read_text, wrong_key
from madlite.machine.host_facts import GID_INDEX, HCA, IB_DISABLE, INTERFACES, Fabric
from madlite.model import Image, Machine, Request, RunPlan, RunSpec, Scalar, Value
from madlite.model.values import EnvValue
from madlite.plan.context import ASKED, Context, Options, Script, Tool
from madlite.plan.fields import BACKEND, VARIABLE, Layer, canonical_key, requested_values
from madlite.plan.images import Dockerfile
from madlite.plan.place import RuntimeChoice

# tools.json → what the selected tools add to a run: scripts before and after it, variables, a command prefix.
#
# Format and order: madengine's (docs/tools.md).  madlite brings tools of its own; those of the checkout's tools.json
# come before them, tool by tool.  A helper below `scripts/common/` that the checkout lacks is madlite's of that name,
# if it brings one: nothing is ever copied into the checkout.


COMMON = "scripts/common/"  # where madengine puts the helpers of its package
FOLDER = "{tools}"  # in a command, the folder of madlite's own helpers as the run sees it
_COUNTERS = ("compute_bound", "memory_bound", "communication_bound", "full_profile", "instruction_mix")
# madengine's helpers and their replacements here; "" where none is needed
_INSTEAD = {
    "tools/get_library_trace.py": "library_trace.py",
    "tools/detect_therock.sh": "therock_check.sh",
    "tools/rocprof_wrapper.sh": "profiler.sh run rocprof",
    "tools/rtl_trace_wrapper.sh": "profiler.sh run rocm_trace_lite",
    **{f"tools/counters/{name}.txt": f"counters/{name}.txt" for name in _COUNTERS},
    "pre_scripts/trace.sh": "profiler.sh check",
    "post_scripts/trace.sh": "profiler.sh collect",
    "pre_scripts/run_rocenv_tool.sh": "env_snapshot.sh",
    "pre_scripts/gpu_info_pre.sh": "",
    "pre_scripts/gpu_info_power_start.sh": "gpu_info.sh start power",
    "pre_scripts/gpu_info_vram_start.sh": "gpu_info.sh start vram",
    "post_scripts/gpu_info_power_stop.sh": "gpu_info.sh stop power",
    "post_scripts/gpu_info_vram_stop.sh": "gpu_info.sh stop vram",
    "post_scripts/gpu_info_post.sh": "",
}
_HELPER = re.compile(rf"(?<![\w./-])\.\./({COMMON}[\w./+-]+)")  # as the model's folder sees it


class ScriptCall(Value, frozen=True):
    """A script that runs before or after the model; its path is the workspace's, or, `bundled`, that of our tools."""

    path: str
    args: str = ""
    bundled: bool = False


class Toolset(Value, frozen=True):
    """What the tools of a run add to it; `command` is put in front of the model's, and may name `{tools}`."""

    pre: tuple[ScriptCall, ...] = ()
    post: tuple[ScriptCall, ...] = ()
    env: dict[str, str] = {}
    command: str = ""


class ToolEntry(Value, frozen=True):
    """A tool of a tools.json; `file` is where it stands."""

    pre_scripts: tuple[Script, ...] = ()
    cmd: str = ""
    env_vars: dict[str, str | int | float | bool] = {}
    post_scripts: tuple[Script, ...] = ()
    file: str = ""


def read_tools(own: Path | None, bundled: Path, *, contract: int = 0, given: bool = False) -> dict[str, ToolEntry]:
    """Return the tools by name: those in the folder `bundled`, overlaid by those of the file `own`.

    Under `contract` 1 those whose command is another one in madengine 1 are as there.  `own` may be a pipe where the
    user has `given` it on the command line.

    Raises:
        UsageProblem: a file cannot be read, is no JSON, or a key has the wrong type.
    """
    table = _read(bundled / "tools.json")
    if contract == 1:
        table |= _read(bundled / "tools.json", "contract_1")
    return {**table, **_read(own, given=given)} if own else table


def stack(selected: Iterable[Tool], table: Mapping[str, ToolEntry], workspace: Path, bundled: Path) -> Toolset:
    """Return what the selected tools add to a run: the last one's scripts run first before the model and last after it.

    Later variables win, the last command is outermost, and the same command is put there once.

    Raises:
        UsageProblem: there is no such tool, a script of it is not there, or a variable's name is none.
    """
    tools, commands = Toolset(), list[str]()
    for tool in selected:
        entry = _find(tool.name, table)
        where = f"tool '{tool.name}' of {entry.file}"
        missing = partial(_missing, where, workspace)
        command = _with_helpers(entry.cmd if tool.cmd is None else tool.cmd, workspace, bundled, missing).strip()
        if command and command not in commands:
            commands.insert(0, command)
        tools = Toolset(
            pre=(*find_scripts(entry.pre_scripts, workspace, bundled, missing), *tools.pre),
            post=(*tools.post, *find_scripts(entry.post_scripts, workspace, bundled, missing)),
            env={**tools.env, **_variables({**entry.env_vars, **tool.env_vars}, where)},
        )
    return msgspec.structs.replace(tools, command=" ".join(commands))


def find_script(
    path: str, args: str, workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]
) -> tuple[ScriptCall, ...]:
    """Return how to run a script of the checkout, or madlite's in its place; () for nothing to do.

    A path that leaves the workspace is missing: a container has nothing else of the machine.

    Raises:
        UsageProblem: `missing` of a script that is not there; or the system refuses to check whether it exists.
    """
    within = posixpath.normpath(path)
    is_inside = not within.startswith(("/", "../"))
    if is_inside and is_file(workspace / path):
        return (ScriptCall(path=path, args=args),)
    if is_inside and within.startswith(COMMON):
        helper = within.removeprefix(COMMON)
        name, _, own_args = _INSTEAD.get(helper, helper).partition(" ")
        if not name:
            return ()
        if is_file(bundled / name):
            return (ScriptCall(path=name, args=" ".join(filter(None, (own_args, args))), bundled=True),)
    raise missing(path)


def _read(file: Path, key: str = "tools", *, given: bool = False) -> dict[str, ToolEntry]:
    content = read_json(file, given=given)
    tools = content.get(key) if isinstance(content, dict) else None
    if not isinstance(tools, dict):
        raise UsageProblem(f"{file} has no table 'tools'", """write it like {"tools": {"NAME": {"cmd": "…"}}}""")
    return {name: _entry(name, value, file) for name, value in tools.items()}


def _entry(name: str, value: Any, file: Path) -> ToolEntry:
    try:
        return msgspec.structs.replace(msgspec.convert(value, ToolEntry), file=str(file))
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{file}: tool '{name}': {wrong_key(error)[1]}") from None


def _find(name: str, table: Mapping[str, ToolEntry]) -> ToolEntry:
    if name in table:
        return table[name]
    hint = f"tools: {', '.join(table)}"
    raise UsageProblem(f"there is no tool '{name}'", one_hint(did_you_mean(name, table, most=1), hint))


def find_scripts(
    scripts: Iterable[Script], workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]
) -> tuple[ScriptCall, ...]:
    """Return how to run each script as `find_script` does.

    Raises:
        UsageProblem: `missing` of a script that is not there.
    """
    found = (find_script(script.path, str(script.args), workspace, bundled, missing) for script in scripts)
    return tuple(chain.from_iterable(found))


def _with_helpers(command: str, workspace: Path, bundled: Path, missing: Callable[[str], UsageProblem]) -> str:
    """Return the command with the paths of madlite's helpers where it names ones of madengine's that are not here."""

    def replaced(found: re.Match[str]) -> str:
        calls = find_script(found[1], "", workspace, bundled, missing)
        if not calls:
            raise missing(found[1])
        return f"{FOLDER}/{calls[0].path} {calls[0].args}".rstrip() if calls[0].bundled else found[0]

    return _HELPER.sub(replaced, command)


def _missing(where: str, workspace: Path, path: str) -> UsageProblem:
    return UsageProblem(f"{where} needs {path}, which is not in {workspace} and does not come with madlite")


def _variables(values: Mapping[str, str | int | float | bool], where: str) -> dict[str, str]:
    for name in values:
        if not VARIABLE.fullmatch(name):
            raise UsageProblem(f"{where}: key 'env_vars' has {name!r}, which is no name of a variable")
    return {name: str(value) for name, value in values.items()}  # as madengine gives them: True, False


# What a plan is made from.


# Which node of several this machine is, where each has a madlite of its own: by the variables of what starts it.
#
# Of each value the first source that has it counts: MAD's own names, which a user or a script exports; those of
# torchrun and Kubeflow (`PET_…`); Open MPI's launcher; a step of Slurm or SPUR, which is `srun madlite …` with one task
# per node; MPICH's and Intel MPI's launchers.  An allocation without a step is none of this: its nodes have one
# madlite together.
#
# Names: srun(1), OUTPUT ENVIRONMENT VARIABLES; torch/distributed/argparse_util.py; Open MPI, "Environment variables";
# MPICH, hydra's pmi.  No PMI names a node that the others could meet at: MASTER_ADDR does.

_NUMBER = re.compile(r"[0-9]{1,6}")
_LISTED = re.compile(r"(?:\[[^\]]*\]|[^,\s])+")  # a name of a host list, and its ranges: rack[1-2]n[01,07-09]
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_MOST_HOSTS = 65536  # of one list: a range beyond it is a slip
_EVERY_ONE = re.compile(r"1(\(x\d+\))?")  # SLURM_STEP_TASKS_PER_NODE where each node has one
# names of: number of processes, this one's rank, processes of this machine
_OPEN_MPI = ("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_PMI = ("MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS")


class NodeValues(Value, frozen=True):
    """What is known of a node of several; "" and 0 are what nobody says.  `origins` are those of each variable."""

    nnodes: int = 0
    variables: dict[str, str] = {}  # NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT
    origins: dict[str, str] = {}


def find_node_values(environ: Mapping[str, str]) -> NodeValues:
    """Return which node this is of several; nothing where the environment tells of no other.

    Raises:
        UsageProblem: there is one madlite for each rank: on each node one starts all of them.
    """
    found: dict[str, str] = {}
    origins: dict[str, str] = {}
    for origin, values in _sources(environ):
        for name, text in values.items():
            if text and name not in found:
                found[name], origins[name] = text, origin
    count = found.get("NNODES", "")
    if not _NUMBER.fullmatch(count) or int(count) < 2:
        return NodeValues()
    return NodeValues(nnodes=int(count), variables=found, origins=origins)


def is_task_of_several(environ: Mapping[str, str]) -> bool:
    """Return whether a step of Slurm, or Open MPI in an allocation, has started a madlite on each of several nodes."""
    return _is_of_several(environ, _OPEN_MPI) or _is_step_of_several(environ)


def _is_of_several(environ: Mapping[str, str], names: tuple[str, str, str, str]) -> bool:
    count = environ.get(names[1], "")
    return bool(_NUMBER.fullmatch(count)) and int(count) > 1


def _is_step_of_several(environ: Mapping[str, str]) -> bool:
    count = environ.get("SLURM_STEP_NUM_NODES", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    return all(_NUMBER.fullmatch(text) for text in (count, tasks)) and int(count) > 1 and int(tasks) > 1


def split_hosts(host_list: str) -> list[str]:
    """Return the parts of a host list of Slurm: `n[01-04,7],login` has two."""
    return _LISTED.findall(host_list)


def expand_hosts(host_list: str) -> tuple[str, ...]:
    """Return the names of a host list of Slurm in its order: n01, n02, n03, n04, n7 and login of `n[01-04,7],login`."""
    return tuple(name for part in split_hosts(host_list) for name in islice(_names(part), _MOST_HOSTS))


def nodes_in(file: Path) -> tuple[str, ...]:
    """Return the nodes of a list, one or a host list of Slurm on each line; what follows `#` is a comment.

    Raises:
        UsageProblem: it cannot be read.
    """
    lines = read_text(file, f"list of nodes {file}").splitlines()
    return tuple(dict.fromkeys(node for line in lines for node in split_hosts(line.partition("#")[0])))


def _names(part: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # the odd ones are lists of ranges
    choices = [[*_numbers(piece)] if at % 2 else [piece] for at, piece in enumerate(pieces)]
    return map("".join, product(*choices))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of `01-04,7`, each range with as many digits as its first one has."""
    for text in ranges.split(","):
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            yield text
            continue
        first, last = int(found[1]), int(found[2] or found[1])
        numbers = [f"{number:0{len(found[1])}d}" for number in range(first, min(last, first + _MOST_HOSTS) + 1)]
        yield from numbers or [f"[{text}]"]  # of 3-1, which is none


# What a plan of several nodes has of this.

_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET"}  # by which the log tells which network is used
_RUNNER = "MAD_MULTI_NODE_RUNNER"
_MEETING = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_PORT = "29500"


def add_node_values(plan: RunPlan, fabric: Fabric | None, environ: Mapping[str, str]) -> RunPlan:
    """Return a plan of several nodes with the network between them and the launcher of a MAD script for them.

    fabric: this machine's, None where it is none of the nodes.
    environ: the caller's, of which a run on this machine has what it names itself.
    """
    if plan.place.nodes < 2:
        return plan
    return _with_runner(plan if fabric is None else _with_fabric(plan, fabric, environ))


def _with_fabric(plan: RunPlan, fabric: Fabric, environ: Mapping[str, str]) -> RunPlan:
    """Return the plan with the variables of the fabric that nobody has set."""
    wanted: dict[str, str] = dict(fabric.variables)
    off = plan.env.get(IB_DISABLE) == "1" or environ.get(IB_DISABLE) == "1"
    if off or plan.machine.vendor == "CPU":
        wanted = {name: wanted[name] for name in INTERFACES if name in wanted}
    elif HCA in wanted and not any(name in plan.env or name in environ for name in _DEBUG):
        wanted |= _DEBUG
    if environ.get(HCA) or plan.env.get(HCA):  # the index is that of their devices
        wanted.pop(GID_INDEX, None)
    new = {name: text for name, text in wanted.items() if not _is_set(name, plan, environ)}
    note = f"between the {plan.place.nodes} nodes: {fabric.text}"
    return replace(
        plan,
        env={**plan.env, **new},
        origins={**plan.origins, **{f"env.{name}": "found on this machine" for name in new}},
        notes=(*plan.notes, note) if plan.machine.vendor != "CPU" else plan.notes,
    )


def _is_set(name: str, plan: RunPlan, environ: Mapping[str, str]) -> bool:
    return bool(plan.env.get(name) or environ.get(name) or plan.settings.get(name.lower()))


def _with_runner(plan: RunPlan) -> RunPlan:
    """Return the plan with MAD's launcher for all nodes; what a node alone knows is filled in on it, where `$NAME` is.

    A MAD script expands the variable and not what is in it.
    """
    runner = plan.env.get(_RUNNER)
    if not isinstance(runner, str) or plan.origins.get(f"env.{_RUNNER}") != "madlite" or "--standalone" not in runner:
        return plan
    known: dict[str, EnvValue] = {"MASTER_PORT": _PORT, **plan.env}
    if not plan.place.whole and not all(known.get(name) for name in _MEETING):
        missing = " and ".join(name for name in _MEETING if not known.get(name))
        text = f"{plan.place.nodes} nodes without {missing}: {_RUNNER} starts the ranks of this node alone"
        return replace(plan, notes=(*plan.notes, text))
    values = {name: f"${name}" if plan.place.whole else str(known[name]) for name in _MEETING}
    where = (
        f"--nnodes={plan.place.nodes} --node_rank={values['NODE_RANK']} "
        f"--master_addr={values['MASTER_ADDR']} --master_port={values['MASTER_PORT']}"
    )
    return replace(plan, env={**plan.env, _RUNNER: runner.replace("--standalone", where)})


# The variables of each launcher.


def _sources(environ: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    own = {name: environ.get(name, "").strip() for name in names}
    of_torchrun = {name: environ.get(f"PET_{name}", "").strip() for name in names}
    of_torchrun["NNODES"] = of_torchrun["NNODES"].partition(":")[0]  # 2:4 of an elastic job
    pod = {"NODE_RANK": environ.get("JOB_COMPLETION_INDEX", "")}
    # a NODE_RANK alone may be what a batch script exported on its own node, the same for all
    meeting = own if own["NNODES"] else {name: own[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    launcher = _of_launcher(environ) if meeting is not own or not own["NODE_RANK"] else []
    rest = [("environment", own), ("environment", pod)]
    return [("environment", meeting), ("environment", of_torchrun), *launcher, *rest]


def _of_launcher(environ: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
    if _is_of_several(environ, _OPEN_MPI):  # whose daemons are a step of Slurm on all nodes but the first
        return [_of_mpi(environ, *_OPEN_MPI)]
    if _is_step_of_several(environ):
        return [_of_step(environ)]
    by_srun = "SLURM_STEP_ID" in environ and _PMI[-1] not in environ  # srun --mpi=pmi2: the ranks of one node
    return [_of_mpi(environ, *_PMI)] if _is_of_several(environ, _PMI) and not by_srun else []


def _of_mpi(environ: Mapping[str, str], name: str, size: str, rank: str, here: str) -> tuple[str, dict[str, str]]:
    _refuse_ranks(environ.get(here, "1"), f"{name} ({here}={environ.get(here, '')})", "--map-by ppr:1:node")
    return name, {"NNODES": environ[size], "NODE_RANK": environ.get(rank, "")}


def _of_step(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the values of one task per node of a step."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    if not _EVERY_ONE.fullmatch(tasks):
        _refuse_ranks(tasks, f"srun (SLURM_STEP_TASKS_PER_NODE={tasks})", "srun --ntasks-per-node=1 madlite …")
    peers = environ.get("SPUR_PEER_NODES", "").partition(",")[0].partition(":")[0]
    values = {
        "NNODES": environ["SLURM_STEP_NUM_NODES"],
        "NODE_RANK": environ.get("SLURM_NODEID", ""),
        "MASTER_ADDR": peers or next(iter(expand_hosts(environ.get("SLURM_STEP_NODELIST", ""))), ""),
    }
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    return f"Slurm step {step}", values


def _refuse_ranks(here: str, what: str, remedy: str) -> None:
    """Refuse several processes of madlite on a node.

    Raises:
        UsageProblem: there are several.
    """
    if here not in ("", "1"):
        raise UsageProblem(
            f"{what} starts several processes of madlite on a node, and each would start all ranks of it",
            remedy,
            keys=(),
        )


# What a plan is made from, and the sources of its values in their order.

WORKSPACE_INSIDE = "/myworkspace"
CACHES_INSIDE = "/madlite_caches"  # in a container of a study: its series' caches of compiled kernels
RUNS = "madlite_runs"
_OF_CONTEXT = "context."
_OF_NODES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class PlanInputs(Value, frozen=True):
    """What all plans of a command share: options, context, machine, credentials, data sets, tools."""

    options: Options
    context: Context
    machine: Machine
    credentials: dict[str, dict[str, str]] | None = None  # None without a credential.json
    services: dict[str, tuple[dict[str, str], ...]] = {}  # MAD_MINIO and the like
    data_sets: DataSets | None = None  # None without a data.json
    tools: Toolset = Toolset()
    tool_files: tuple[str, ...] = ()  # what madlite brings of tools, below its templates' folder `tools`
    fabric: Fabric | None = None  # of this machine, where it is one of those that run
    check_endpoint: Callable[[str], str] = lambda endpoint: ""  # why an endpoint cannot be reached, or nothing


class RunInputs(PlanInputs, frozen=True, kw_only=True):
    """Everything one plan is made from; `dockerfile` is one of the card's, `missing_image` why it has none."""

    run_id: str
    request: Request
    backend: str
    spec: RunSpec
    runtime: RuntimeChoice
    args: str
    arg_keys: frozenset[str] = frozenset()  # of the tag's additions those that are arguments, and no keys of the plan
    dockerfile: Dockerfile | None = None
    missing_image: str = ""
    foreign_settings: frozenset[str] = frozenset()  # settings that other runs of the card have, and this one has not
    built: Image | None = None  # made before, as a manifest has it

    @property
    def inside(self) -> str:
        """Return the workspace as the actions see it."""
        return WORKSPACE_INSIDE if self.runtime.traits.containerised else str(self.options.workspace)

    @property
    def nodes(self) -> NodeValues:
        """Return which node of several this machine is; nothing where the runtime has all of them.

        Raises:
            UsageProblem: each rank has a madlite of its own.
        """
        return find_node_values(self.options.environ) if self.runtime.traits.local else NodeValues()

    @property
    def folder_inside(self) -> str:
        """Return the run folder as the actions see it."""
        return f"{self.inside}/{RUNS}/{self.run_id}"


def layers(
    request: Request, context: Context, options: Options, rendered: bool = True, nodes: NodeValues | None = None
) -> list[Layer]:
    """Return the sources of values over a spec's own, in order: later wins.

    What follows a tag's colon is for the card's own script where nothing is `rendered`.
    """
    card_values = request.card.recipe if isinstance(request.card.recipe, dict) else {}
    tag_values: dict[str, Scalar] = {key: "true" if value is None else value for key, value in request.overrides}
    return [
        Layer(
            origin="card", values={key: value for key, value in card_values.items() if key != "name"}, of_command=False
        ),
        *_nodes_here(nodes),
        _nodes(context),
        *(Layer(origin=origin, values={key: value}) for origin, key, value in context.plan_values),
        *(Layer(origin=option, values={key: value}) for option, key, value in options.named),
        Layer(origin="tag", values=tag_values if rendered else {}),
        *(Layer(origin="--set", values={key: value}) for key, value in options.sets),
        *(Layer(origin="--oom-fallback", values={key: value}) for key, value in options.fallback),
    ]


def with_requested_values(request: Request, context: Context, options: Options) -> Request:
    """Return a card's request with the values that are set for it, and the origin of each."""
    sources = layers(request, context, options)
    origins = {canonical_key(given): layer.origin for layer in sources for given in layer.values}
    return replace(request, settings=requested_values(sources), origins=origins)


def requested_keys(request: Request, context: Context, options: Options) -> frozenset[str]:
    """Return the keys of a card's plan that the command sets, and `context.KEY` for what its context has beyond them.

    Variables of several nodes count as the settings that backends read them as: NNODES as `nnodes`.
    """
    of_layers = {
        canonical_key(key) for layer in layers(request, context, options) if layer.of_command for key in layer.values
    }
    keys = context.typed
    variables = (*keys.docker_env_vars, *(key[4:] for key in of_layers if key.startswith("env.")))
    others = {
        "args": keys.model_args is not None or bool(request.overrides),
        "n_gpus": context.n_gpus is not None or bool(keys.docker_gpus),
        "image": bool(options.image or keys.MAD_CONTAINER_IMAGE),
        "launcher": bool(keys.distributed.get("launcher")),
        "runtime": bool(options.runtime) and options.runtime_origin == ASKED,
    }
    of_nodes = [canonical_key(name) for name in variables if name in _OF_NODES]
    of_context = {f"{_OF_CONTEXT}{key}" for key in (*context.values, *of_nodes)}
    return frozenset(of_layers | of_context | {key for key, given in others.items() if given})


def is_of_command(keys: Collection[str] | None, requested: Collection[str] | None) -> bool:
    """Return whether a problem with the values of `keys` is the command's, by the keys that it `requested`.

    None is a plan file: all of it is the command's.  So is every problem of a card that has its backend by --backend
    alone.  A problem without keys is the command's where that set anything beyond what a context alone has.
    """
    if requested is None or BACKEND in requested:
        return True
    if keys is None:
        return any(not key.startswith(_OF_CONTEXT) for key in requested)
    return any(key in requested or f"{_OF_CONTEXT}{key}" in requested for key in keys)


def _nodes_here(nodes: NodeValues | None) -> list[Layer]:
    """Return what the environment has of this node, a layer for each value, as each has an origin."""
    values = {} if nodes is None else nodes.variables
    return [
        Layer(origin=nodes.origins[name], values={name.lower(): text}, strict=False, of_command=False)
        for name, text in values.items()
        if nodes is not None
    ]


def _nodes(context: Context) -> Layer:
    """Return the context's rendezvous settings, for backends whose settings have these keys."""
    given = context.typed.multi_node_args or {}
    values: dict[str, Scalar] = {name.lower(): given[name] for name in _OF_NODES if given.get(name, "") != ""}
    return Layer(origin=context.origins.get("multi_node_args", "context"), values=values, strict=False)
