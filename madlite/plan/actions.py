"""What a session does, and in which folder."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from madlite.catalog.datasets import Provider
from madlite.errors import CardProblem, UsageProblem
from madlite.files import exists, is_file, wrong_key
from madlite.model import (
    Action,
    Card,
    DataUse,
    EnvValue,
    ErrorScan,
    FileTemplate,
    Mount,
    RunPlan,
    RunSpec,
    Secret,
    Value,
)
from madlite.plan.context import Context, Options, ScanKeys, Script
from madlite.plan.fields import as_bool
from madlite.plan.inputs import COMMON, RunInputs, ScriptCall, Toolset, find_scripts, read_tools, stack
from madlite.secrets import shaped, split_userinfo

# A card's data sets → where each comes from: its mount, its variables, and the action that fetches it.
#
# Keys, folders, variables and limits: madengine's (docs/data.md lists what differs).

HOME = "/data_dlm"
CUSTOM_LIMIT_S, S3_LIMIT_S, NAS_COPY_LIMIT_S, NAS_MOUNT_LIMIT_S = 1200.0, 3600.0, 2400.0, 120.0
AWS_REGION = "us-east-2"
_NOWHERE = "is neither in the environment nor in credential.json"
_SIZE = ' && du -sh -- "$1"'  # the last line of a fetch is the size of the data
_CUSTOM = 'mkdir -p -- "$1" && cd -- "$1" && bash "$2" {args}' + _SIZE
# the client goes into a folder of its own, so that it changes no package of the training's
_AWS = (
    'if ! command -v aws >/dev/null; then own=$(mktemp -d) && python3 -m pip install --quiet --target "$own" awscli '
    '&& aws() { PYTHONPATH="$own" python3 -m awscli "$@"; }; fi'
)
# a bucket or a folder of it is copied whole; of any other path the object of that name
_SYNC = (
    'rest=${place#s3://} && name=${place##*/} && if [ "$rest" = "$name" ] || '
    'aws "$@" s3 ls "$place" | grep -qF " PRE $name/"; then aws "$@" s3 sync --no-progress "$place" "$home"; '
    'else aws "$@" s3 sync --no-progress "${place%/*}" "$home" --exclude "*" --include "$name"; fi'
)
_CHECK_CONTENT = 'if [ -z "$(ls -A "$home")" ]; then echo "$place is empty or not there" >&2; exit 1; fi'
_S3 = (
    f'home=$1 place=${{2%/}} && shift 2 && mkdir -p -- "$home" && {{ {_AWS}; }} && {_SYNC} && {_CHECK_CONTENT} && '
    'du -sh -- "$home"'
)
_FIND_MISSING = (
    'lacks=; for tool in ssh sshpass {copier}; do command -v "$tool" >/dev/null || lacks="$lacks $tool"; done'
)
_INSTALL = (
    'if [ -n "$lacks" ]; then if command -v apt-get >/dev/null; then apt-get update -qq; '
    "apt-get install -y -qq openssh-client sshpass {copier}; elif command -v yum >/dev/null; then "
    "yum install -y -q openssh-clients sshpass {copier}; fi; fi"
)
_REFUSE = 'if [ -n "$lacks" ]; then echo "data of a NAS needs$lacks, not installed here" >&2; exit 127; fi'
_SSH = "ssh -p $3 -o StrictHostKeyChecking=accept-new"  # a port is digits alone
# -s: no shell of the storage reads the path
_COPY = f'mkdir -p -- "$1" && sshpass -e rsync -azs -e "{_SSH}" -- "$2/" "$1/"'
_MOUNT = (
    'mkdir -p -- "$1" && sshfs "$2" "$1" -p "$3" -o "ssh_command=sshpass -e ssh" -o StrictHostKeyChecking=accept-new'
)


class DataPlan(Value, frozen=True):
    """What one or all data sets of a card add to a plan.

    `problem` keeps it from starting; of one provider it says why that has not the data.
    """

    uses: tuple[DataUse, ...] = ()
    mounts: tuple[Mount, ...] = ()
    actions: tuple[Action, ...] = ()
    env: dict[str, EnvValue] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""


def plan_data(inputs: RunInputs) -> DataPlan:
    """Return where the card's data comes from."""
    card = inputs.request.card
    if not card.data:
        return DataPlan()
    if inputs.data_sets is None:
        return DataPlan(notes=(f"there is no data.json: the script has to find {', '.join(card.data)} itself",))
    if unknown := [name for name in card.data if name not in inputs.data_sets]:
        return DataPlan(problem=f"card '{card.name}' needs data set '{unknown[0]}', which data.json does not have")
    found = [_find(name, inputs.data_sets[name], n, card, inputs) for n, name in enumerate(card.data)]
    uses = tuple(use for item in found for use in item.uses)
    return DataPlan(
        uses=uses,
        mounts=tuple(mount for item in found for mount in item.mounts),
        actions=tuple(action for item in found for action in item.actions),
        env={"MAD_DATAHOME": ",".join(use.home for use in uses)} if uses else {},
        notes=tuple(note for item in found for note in item.notes),
        problem=next((item.problem for item in found if item.problem), ""),
    )


def _find(name: str, providers: Mapping[str, Provider], n: int, card: Card, inputs: RunInputs) -> DataPlan:
    """Try the providers in order; the first that has the data is used."""
    missing: list[str] = []
    for kind, provider in providers.items():
        use = DataUse(name=name, provider=kind, home=_home(name, kind, provider, n, inputs))
        found = _KINDS[kind](use, provider, inputs)
        if not found.problem:
            return found
        missing.append(f"{kind}: {found.problem}")
    why = "; ".join(missing) or "it names none"
    if "aws" in providers:  # madengine too starts no run without it
        return DataPlan(problem=f"card '{card.name}': no provider has data set '{name}' ({why})")
    return DataPlan(notes=(f"no provider has data set '{name}' ({why}): the script runs without it",))


def _home(name: str, kind: str, provider: Provider, n: int, inputs: RunInputs) -> str:
    """Return the folder the data is in, as the actions see it; a local one of its own name is where it was wanted."""
    if inputs.runtime.traits.containerised:
        return provider.home if kind == "local" and provider.home else f"{provider.home or HOME}_{n}"
    if kind == "local":
        return str(inputs.options.workspace / provider.path)
    return (
        str(inputs.options.workspace / provider.mirrorlocal / name)
        if provider.mirrorlocal
        else f"{inputs.folder_inside}/data_{n}"
    )


def _path_problem(is_there: Callable[[Path], bool], place: str, provider: Provider, inputs: RunInputs) -> str:
    try:
        return "" if is_there(inputs.options.workspace / provider.path) else f"{provider.path} is not {place}"
    except UsageProblem as problem:
        return problem.message


def _local(use: DataUse, provider: Provider, inputs: RunInputs) -> DataPlan:
    if problem := _path_problem(exists, "on this machine", provider, inputs):
        return DataPlan(problem=problem)
    source = str(inputs.options.workspace / provider.path)
    mount = Mount(source=source, target=use.home, read_only=provider.readwrite not in (True, "true"))
    return DataPlan(
        uses=(use,),
        mounts=(mount,) if inputs.runtime.traits.containerised else (),
        notes=_link_notes(source, use.name, inputs),
    )


def _link_notes(source: str, name: str, inputs: RunInputs) -> tuple[str, ...]:
    """Return a note where a link leads a path of the workspace outside of it: a workload may have made the link."""
    place, home = os.path.realpath(source), os.path.realpath(inputs.options.workspace)
    if not Path(source).is_relative_to(inputs.options.workspace) or Path(place).is_relative_to(home):
        return ()
    return (f"data set '{name}': a link takes {source} to {place}",)


def _custom(use: DataUse, provider: Provider, inputs: RunInputs) -> DataPlan:
    if problem := _path_problem(is_file, "in this folder", provider, inputs):
        return DataPlan(problem=problem)
    command = _CUSTOM.replace("{args}", provider.args)  # the author's shell text, for the workload's shell
    argv = ("bash", "-c", command, "data", use.home, f"{inputs.inside}/{provider.path}")
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=CUSTOM_LIMIT_S))


def _service(name: str, inputs: RunInputs) -> Mapping[str, str]:
    return next(iter(inputs.services.get(name, ())), {})


def _minio(use: DataUse, provider: Provider, inputs: RunInputs) -> DataPlan:
    service = _service("MAD_MINIO", inputs)
    address = service.get("MINIO_ENDPOINT", "")
    region, endpoint = service.get("REGION", "us-east-1"), service.get("AWS_ENDPOINT_URL_S3") or address
    problem = inputs.check_endpoint(address) if address else f"MAD_MINIO with MINIO_ENDPOINT {_NOWHERE}"
    return DataPlan(problem=problem) if problem else _of_bucket(use, provider, inputs, service, region, endpoint)


def _aws(use: DataUse, provider: Provider, inputs: RunInputs) -> DataPlan:
    service = _service("MAD_AWS_S3", inputs)
    region, endpoint = service.get("REGION", AWS_REGION), service.get("AWS_ENDPOINT_URL_S3", "")
    problem = f"MAD_AWS_S3 with USERNAME and PASSWORD {_NOWHERE}"
    if service.get("USERNAME") and service.get("PASSWORD"):
        problem = inputs.check_endpoint(endpoint or f"https://s3.{region}.amazonaws.com")
    return DataPlan(problem=problem) if problem else _of_bucket(use, provider, inputs, service, region, endpoint)


def _of_bucket(
    use: DataUse, provider: Provider, inputs: RunInputs, service: Mapping[str, str], region: str, endpoint: str
) -> DataPlan:
    env: dict[str, EnvValue] = {
        "AWS_ACCESS_KEY_ID": Secret(service.get("USERNAME", "")),
        "AWS_SECRET_ACCESS_KEY": Secret(service.get("PASSWORD", "")),
        "AWS_DEFAULT_REGION": region,
        **({"AWS_ENDPOINT_URL": endpoint, "AWS_ENDPOINT_URL_S3": endpoint} if endpoint else {}),
    }
    place = provider.path.rpartition("://")[2].lstrip("/")  # s3://bucket/key, minio://bucket/key, bucket/key
    where = ("--region", region, *(("--endpoint-url", endpoint) if endpoint else ()))
    argv = ("bash", "-c", _S3, "data", use.home, f"s3://{place}", *where)
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=S3_LIMIT_S, env=env))


def _node_problem(node: Mapping[str, str], inputs: RunInputs) -> str:
    """Return why a storage of `NAS_NODES` cannot be used, or nothing."""
    name = node.get("NAME") or node.get("HOST") or "a table without HOST"
    if lacks := [key for key in ("HOST", "USERNAME", "PASSWORD") if not node.get(key)]:
        return f"{name} of NAS_NODES has no {', '.join(lacks)}"
    port = node.get("PORT", "22")
    if not (port.isascii() and port.isdigit()):
        return f"{name} of NAS_NODES: PORT {port!r} is no number"
    return inputs.check_endpoint(f"ssh://{node['HOST']}:{port}")


def _nas(use: DataUse, provider: Provider, inputs: RunInputs) -> DataPlan:
    """Return the copy into a mirror; without one the folder itself, but on the host, where no mount is to stay."""
    nodes = inputs.services.get("NAS_NODES", ())
    if not nodes:
        return DataPlan(problem=f"NAS_NODES {_NOWHERE}")
    problems = [_node_problem(node, inputs) for node in nodes]
    if "" not in problems:
        return DataPlan(problem="; ".join(problems))
    node = nodes[problems.index("")]
    mounts = inputs.runtime.traits.containerised and not provider.mirrorlocal
    ready = (
        (_FIND_MISSING, _INSTALL, _FIND_MISSING, _REFUSE)
        if inputs.runtime.traits.containerised
        else (_FIND_MISSING, _REFUSE)
    )
    command = "; ".join((*ready, _MOUNT if mounts else _COPY)).replace("{copier}", "sshfs" if mounts else "rsync")
    source = f"{node['USERNAME']}@{node['HOST']}:{provider.path.rstrip('/')}"
    limit_s = NAS_MOUNT_LIMIT_S if mounts else NAS_COPY_LIMIT_S
    argv = ("bash", "-c", command, "data", use.home, source, node.get("PORT", "22"))
    env: dict[str, EnvValue] = {"SSHPASS": Secret(node["PASSWORD"])}
    return _fetched(use, provider, inputs, Action(kind="data", argv=argv, timeout_s=limit_s, env=env))


def _fetched(use: DataUse, provider: Provider, inputs: RunInputs, action: Action) -> DataPlan:
    """Return what a fetch adds; a mirror is a folder of the machine under the data set's name."""
    if not provider.mirrorlocal:
        return DataPlan(uses=(use,), actions=(action,))
    mirror = str(inputs.options.workspace / provider.mirrorlocal / use.name)
    mount = Mount(source=mirror, target=use.home, create=True)
    mounts = (mount,) if inputs.runtime.traits.containerised else ()
    return DataPlan(uses=(use,), actions=(action,), mounts=mounts, notes=_link_notes(mirror, use.name, inputs))


_KINDS: Mapping[str, Callable[[DataUse, Provider, RunInputs], DataPlan]] = {
    "custom": _custom,
    "local": _local,
    "minio": _minio,
    "nas": _nas,
    "aws": _aws,
}

MODEL_DIR = "{model_dir}"
SCRIPT_LIMIT_S = 600.0  # of a pre- or post-script, as madengine has it
TOOLS = "tools"  # the folder of the run folder that holds madlite's own tools
_PLACE = re.compile(r"\{(?:args|encapsulate)\}")
_SCRIPT = 'cp -L -- "$1" . && bash -- "${1##*/}"'
_RENDERED = (
    Action(kind="pre", argv=()),
    Action(kind="data", argv=()),
    Action(kind="run", argv=("bash", "run.sh"), cwd="{folder}"),
    Action(kind="post", argv=()),
)
# git's credential helper; the values are read from the environment, so that no command line has them
_HELPER = '!f() { printf "username=%s\\npassword=%s\\n" "$MADLITE_GIT_USERNAME" "$MADLITE_GIT_PASSWORD"; }; f'


def make_actions(
    inputs: RunInputs, fetches: Sequence[Action], tools: Toolset, variables: Mapping[str, EnvValue]
) -> tuple[Action, ...]:
    """Return the spec's actions: scripts and fetches in their places, `{args}` and `{encapsulate}` filled in.

    `{model_dir}` waits for its claim.  A snapshot of the environment does not show which of the run's `variables` are
    secrets.
    """
    secret = [name for name, value in variables.items() if isinstance(value, Secret)]
    rendered = not inputs.spec.actions
    cwd = "{folder}" if rendered else MODEL_DIR
    calls = {"pre": tools.pre, "post": tools.post}
    env: dict[str, EnvValue] = {"MADLITE_SECRET_NAMES": " ".join(secret)} if secret else {}
    placed: dict[str, list[Action]] = {
        kind: [replace(_script(kind, call, inputs, cwd), env=env if call.bundled else {}) for call in scripts]
        for kind, scripts in calls.items()
    }
    placed["data"] = [*fetches]
    templates = _RENDERED if rendered else inputs.spec.actions
    actions = [item for action in templates for item in ([action] if action.argv else placed[action.kind])]
    wrapped = tools.command.replace("{tools}", shlex.quote(f"{inputs.folder_inside}/{TOOLS}"))
    filled = (_fill(_with_credential(action, inputs), inputs, wrapped) for action in _joined(actions))
    return tuple(filled)


def tool_files(inputs: RunInputs, tools: Toolset) -> Iterator[FileTemplate]:
    """Yield madlite's bundled tools as files of the run folder, where a run needs any of them."""
    if "{tools}" in tools.command or any(call.bundled for call in (*tools.pre, *tools.post)):
        names = (f"{TOOLS}/{name}" for name in inputs.tool_files)
        yield from (FileTemplate(path=name, template=name, raw=True) for name in names)


def _script(kind: str, call: ScriptCall, inputs: RunInputs, cwd: str) -> Action:
    """Return the action of a pre- or post-script: copied to where the model's script is, and run there."""
    path = f"{inputs.folder_inside}/{TOOLS}/{call.path}" if call.bundled else f"{inputs.inside}/{call.path}"
    command = f"{_SCRIPT} {call.args}".rstrip()
    return Action(kind=kind, argv=("bash", "-c", command, kind, path), cwd=cwd, timeout_s=SCRIPT_LIMIT_S)  # type: ignore[arg-type]


def _joined(actions: Iterable[Action]) -> Iterator[Action]:
    """Join neighbouring preparations of the same arguments into one shell: each costs a container some 0.1 s."""
    pending: Action | None = None
    for action in actions:
        if pending and action.kind == pending.kind == "prepare" and action.argv[3:] == pending.argv[3:]:
            pending = replace(pending, argv=("bash", "-c", f"{pending.argv[2]} && {action.argv[2]}", *pending.argv[3:]))
            continue
        if pending:
            yield pending
        pending = action
    if pending:
        yield pending


def _fill(action: Action, inputs: RunInputs, tools: str) -> Action:
    if action.kind != "run":
        return action
    wrapped = " ".join(filter(None, (tools, inputs.context.typed.encapsulate_script)))
    if wrapped and action == _RENDERED[2]:
        action = replace(action, argv=("bash", "-c", "{encapsulate}bash run.sh"))
    replaced = inputs.context.typed.model_args  # they replace the card's args; the row has the card's
    args = inputs.args if replaced is None else replaced
    fill = {"{args}": args, "{encapsulate}": f"{wrapped} " if wrapped else ""}
    return replace(action, argv=tuple(_PLACE.sub(lambda found: fill[found[0]], word) for word in action.argv))


def _with_credential(action: Action, inputs: RunInputs) -> Action:
    """Give a clone the user and password of the card's URL, which leave it, or else those of its credential."""
    card = inputs.request.card
    if action.kind != "clone":
        return action
    table = (inputs.credentials or {}).get(card.cred, {})
    argv = tuple(split_userinfo(card.url).url if word == card.url else word for word in action.argv)
    return replace(action, argv=argv, env={**action.env, **_git_environment(table, card.url)})


def _git_environment(table: Mapping[str, str], url: str) -> dict[str, EnvValue]:
    """Return the variables with which git never prompts; formats: git-config(1), gitcredentials(7), ssh(1).

    A password of the URL comes before any other that git knows, a user alone after them.  Either is for the host of
    the card's repository alone: a submodule may lie anywhere.
    """
    userinfo = split_userinfo(url)
    of_url: EnvValue = Secret(userinfo.user) if userinfo.user in shaped(url) else userinfo.user
    place, helper = f"credential.{_host(url)}", (f"credential.{_host(url)}.helper", _HELPER)
    if userinfo.password is not None:
        return _helper_environment(of_url, userinfo.password, (f"{place}.helper", ""), helper)
    if key := table.get("ssh_key_file", ""):
        options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"
        user = shlex.quote(table.get("username", ""))
        return {"GIT_SSH_COMMAND": f"ssh {options} -l {user} -i {shlex.quote(key)}"}
    if table:
        return _helper_environment(
            table.get("username", ""), table.get("password", "") or table.get("token", ""), helper
        )
    return _helper_environment(of_url, "", (f"{place}.username", of_url), helper) if userinfo.user else {}


def _helper_environment(user: EnvValue, password: str, *settings: tuple[str, EnvValue]) -> dict[str, EnvValue]:
    """Return the variables of git's settings and of the credential helper's answer."""
    every: tuple[tuple[str, EnvValue], ...] = (("safe.directory", "*"), *settings)
    return {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(every)),
        **{f"GIT_CONFIG_KEY_{n}": key for n, (key, _) in enumerate(every)},
        **{f"GIT_CONFIG_VALUE_{n}": value for n, (_, value) in enumerate(every)},
        "MADLITE_GIT_USERNAME": user,
        "MADLITE_GIT_PASSWORD": Secret(password),
    }


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def bind_model_dir(plan: RunPlan, name: str) -> RunPlan:
    """Return the plan with `name` as the folder its script runs in.

    `{model_dir}` counts only as a whole word or folder: text of a card's args that looks like it stays what it is.
    """
    actions = tuple(
        replace(
            action,
            argv=tuple(name if word == MODEL_DIR else word for word in action.argv),
            cwd=name if action.cwd == MODEL_DIR else action.cwd,
        )
        for action in plan.actions
    )
    return replace(plan, actions=actions, model_dir=name if plan.model_dir else "")


def model_dir(card: Card) -> str:
    """Return the folder that a MAD script runs in: the repository's name, else run_directory."""
    name = re.split(r"[/:]", split_userinfo(card.url).url.rstrip("/"))[-1].removesuffix(".git") if card.url else ""
    return name if name not in ("", ".", "..") else "run_directory"


# The context's scripts and tools → what runs before and after the model, in MAD's order.
#
# Order (contract of madengine 1 and 2): the tools' pre-scripts, the context's, the environment's snapshot; afterwards
# the context's post-scripts, the tools'.  A script that the checkout lacks is madlite's own of that name, if it brings
# one.

SNAPSHOT = "env_snapshot.sh"


def make_toolset(context: Context, options: Options, bundled: Path) -> Toolset:
    """Return what the context's tools and scripts add to every run.

    `bundled` is the folder of the tools that madlite brings.

    Raises:
        UsageProblem: a tool or a script is not there, or tools.json cannot be used.
    """
    keys = context.typed
    tools = Toolset()
    if keys.tools:
        own = options.tools_file if exists(options.tools_file) else None
        inputs = options.tools_file != options.workspace / f"{COMMON}tools.json"
        table = read_tools(own, bundled, contract=options.contract, given=inputs)
        tools = stack(keys.tools, table, options.workspace, bundled)
    pre = _calls("pre_scripts", keys.pre_scripts, context, options.workspace, bundled)
    post = _calls("post_scripts", keys.post_scripts, context, options.workspace, bundled)
    return replace(tools, pre=(*tools.pre, *pre), post=(*post, *tools.post))


def tools_of(inputs: RunInputs) -> Toolset:
    """Return the tools and scripts of one run, with a snapshot of its environment where requested."""
    requested = inputs.context.typed.gen_sys_env_details
    if not (inputs.options.snapshot or requested):
        return inputs.tools
    name = f"{inputs.request.card.name.replace('/', '_')}_env"
    mode, guest = inputs.context.typed.rocenv_mode, inputs.context.typed.guest_os or "UBUNTU"
    up = ".." if inputs.spec.actions else "../.."  # from where the script runs to the workspace
    usual = "sections" if inputs.options.contract else "facts"
    form = inputs.context.typed.rocenv_format or usual
    words = (name, mode, guest, up, *((form,) if form != "facts" else ()))
    snapshot = ScriptCall(path=SNAPSHOT, args=shlex.join(words), bundled=True)
    return replace(inputs.tools, pre=(*inputs.tools.pre, snapshot))


def list_tools(bundled: Path) -> tuple[str, ...]:
    """Return the files of madlite's bundled tools, relative to their folder."""
    names = sorted(path.relative_to(bundled) for path in bundled.rglob("*") if path.is_file())
    return tuple(str(name) for name in names if not any(part.startswith((".", "__")) for part in name.parts))


def _calls(
    key: str, scripts: Iterable[Script], context: Context, workspace: Path, bundled: Path
) -> tuple[ScriptCall, ...]:
    def missing(path: str) -> UsageProblem:
        where = context.origins.get(key, "context")
        what = f"{where}: {key} names {path}, which is not in {workspace}"
        return UsageProblem(what, "paths are relative to the working folder")

    return find_scripts(scripts, workspace, bundled, missing)


# Which text in a script's output makes a run with a result a FAILURE: madengine 2's keys and defaults.
#
# Keys, in the context and on a card: `log_error_pattern_scan`, `log_error_patterns`, `log_error_benign_patterns`.

PATTERNS = (
    "OutOfMemoryError",
    "HIP out of memory",
    "CUDA out of memory",
    "RuntimeError:",
    "AssertionError:",
    "ValueError:",
    "SystemExit",
    "failed (exitcode:",
    "Traceback (most recent call last)",
    "FAILED",
    "Exception:",
    "ImportError:",
    "ModuleNotFoundError:",
)
# what Ray's metrics agent, Python's warnings and AMD's profilers print of a run that is well
BENIGN = (
    "Failed to establish connection to the metrics exporter agent",
    "RpcError: Running out of retries to initialize the metrics agent",
    "Metrics will not be exported",
    "FutureWarning",
    "Opened result file:",
    "SQLite3 generation ::",
    "rocpd_op:",
    "rpd_tracer:",
)
_KEYS = ScanKeys.__struct_fields__


def make_error_scan(card: Card, context: Context, spec: RunSpec) -> ErrorScan | None:
    """Return what to look for in the output of a script; None for a rendered run, and where the scan is switched off.

    The context's switch and patterns win over the card's, harmless text of both is added to the usual.

    Raises:
        UsageProblem: a key of the card or of the context has the wrong type.
    """
    if spec.templates or spec.result_rule.kind == "steps":
        return None
    own, keys = _card_keys(card), context.typed
    if not _is_on(own, keys, card, context):
        return None
    return ErrorScan(
        patterns=keys.log_error_patterns or own.log_error_patterns or PATTERNS,
        benign=(*BENIGN, *own.log_error_benign_patterns, *keys.log_error_benign_patterns),
    )


def error_scan_origin(card: Card, context: Context) -> str:
    """Return the origin of a changed scan, "" for the default."""
    changed = ["card"] if any(key in card.extra for key in _KEYS) else []
    changed += [context.origins[key] for key in _KEYS if key in context.origins]
    return ", ".join(dict.fromkeys(changed))


def _card_keys(card: Card) -> ScanKeys:
    inputs = {key: card.extra[key] for key in _KEYS if card.extra.get(key) not in (None, [])}
    try:
        return msgspec.convert(inputs, ScanKeys)
    except msgspec.ValidationError as error:
        raise CardProblem(f"{_named(card)}: {wrong_key(error)[1]}") from None


def _is_on(own: ScanKeys, keys: ScanKeys, card: Card, context: Context) -> bool:
    key = "log_error_pattern_scan"
    by_context = keys.log_error_pattern_scan is not None
    switch = keys.log_error_pattern_scan if by_context else own.log_error_pattern_scan
    try:
        return switch is None or as_bool(switch)
    except ValueError:
        where = context.origins.get(key, "context") if by_context else _named(card)
        what = f"{where}: key '{key}' is wrong: {switch!r} is neither true nor false"
        raise UsageProblem(what, keys=(key,)) from None


def _named(card: Card) -> str:
    return f"card '{card.name}' ({card.source})"
