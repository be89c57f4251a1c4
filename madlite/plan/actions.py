"""What a session does, and in which folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import exists, wrong_key
from madlite.model import Action, Card, EnvValue, ErrorScan, RunPlan, RunSpec, Secret
from madlite.plan.context import Context, Options, ScanKeys, Script
from madlite.plan.inputs import RunInputs
from madlite.plan.tools import COMMON, ScriptCall, Toolset, find_scripts, read_tools, stack
from madlite.plan.values import as_bool
from madlite.secrets import shaped, split_userinfo

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
    inputs: RunInputs, inside: str, folder: str, fetches: Sequence[Action], tools: Toolset, secret: Sequence[str] = ()
) -> tuple[Action, ...]:
    """Return the spec's actions: scripts and fetches in their places, `{args}` and `{encapsulate}` filled in.

    `inside` and `folder` are the workspace and the run folder as the actions see them; `{model_dir}` waits for its
    claim.  `secret` are the names of variables that a snapshot of the environment must not show.
    """
    rendered = not inputs.spec.actions
    cwd = "{folder}" if rendered else MODEL_DIR
    calls = {"pre": tools.pre, "post": tools.post}
    env: dict[str, EnvValue] = {"MADLITE_SECRET_NAMES": " ".join(secret)} if secret else {}
    placed: dict[str, list[Action]] = {
        kind: [replace(_script(kind, call, inside, folder, cwd), env=env if call.bundled else {}) for call in scripts]
        for kind, scripts in calls.items()
    }
    placed["data"] = [*fetches]
    templates = _RENDERED if rendered else inputs.spec.actions
    actions = [one for action in templates for one in ([action] if action.argv else placed[action.kind])]
    wrapped = tools.command.replace("{tools}", shlex.quote(f"{folder}/{TOOLS}"))
    filled = (_fill(_with_credential(action, inputs), inputs, wrapped) for action in _joined(actions))
    return tuple(filled)


def bundled_tools(tools: Toolset) -> bool:
    """Return whether a run needs madlite's bundled tools."""
    return "{tools}" in tools.command or any(call.bundled for call in (*tools.pre, *tools.post))


def _script(kind: str, call: ScriptCall, inside: str, folder: str, cwd: str) -> Action:
    """Return the action of a pre- or post-script: copied to where the model's script is, and run there."""
    path = f"{folder}/{TOOLS}/{call.path}" if call.bundled else f"{inside}/{call.path}"
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
    fill = {"{args}": _run_args(inputs), "{encapsulate}": f"{wrapped} " if wrapped else ""}
    return replace(action, argv=tuple(_filled(word, fill) for word in action.argv))


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


def _run_args(inputs: RunInputs) -> str:
    """Return the args the run gets: the context's model_args replace the card's; the row has the card's."""
    replaced = inputs.context.typed.model_args
    return inputs.args if replaced is None else replaced


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


def _filled(word: str, fill: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: fill.get(found[0], found[0]), word)


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
        tools = stack(keys.tools, read_tools(own, bundled, given=inputs), options.workspace, bundled)
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
    snapshot = ScriptCall(path=SNAPSHOT, args=shlex.join((name, mode, guest, up)), bundled=True)
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
        raise UsageProblem(f"{_named(card)}: {wrong_key(error)[1]}") from None


def _is_on(own: ScanKeys, keys: ScanKeys, card: Card, context: Context) -> bool:
    key = "log_error_pattern_scan"
    by_context = keys.log_error_pattern_scan is not None
    switch = keys.log_error_pattern_scan if by_context else own.log_error_pattern_scan
    try:
        return switch is None or as_bool(switch)
    except ValueError:
        where = context.origins.get(key, "context") if by_context else _named(card)
        raise UsageProblem(f"{where}: key '{key}' is wrong: {switch!r} is neither true nor false") from None


def _named(card: Card) -> str:
    return f"card '{card.name}' ({card.source})"
