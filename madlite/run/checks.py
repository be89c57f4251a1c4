"""What speaks against a batch before anything of it starts: the backends' and the plugins' checks, and gated assets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from urllib.parse import urlsplit

from msgspec.structs import replace

from madlite.assets.paths import command, find_token, is_found, is_offline, needed_assets
from madlite.backends.base import describe_setting
from madlite.backends.loader import Plugins
from madlite.errors import CheckFailed, UsageProblem, inline_hint, one_hint
from madlite.model import Asset, Blocked, Cause, Finding, Request, RunPlan, RunSpec, Scalar, Status
from madlite.perfcsv.append import check_appendable
from madlite.plan.context import Options
from madlite.plan.fields import VARIANT_KEYS, canonical_key
from madlite.plan.inputs import is_of_command
from madlite.plan.render import Rendered, run_content
from madlite.plan.submission import PlannedRun
from madlite.store.folder import check_runs_folder

_NO_LINT_HINT = "--no-lint starts it all the same"


def check_plans(
    planned: Sequence[PlannedRun], plugins: Plugins, lint: bool = True
) -> tuple[list[PlannedRun], tuple[str, ...]]:
    """Return the plans, those with a fatal finding kept from starting, and what is warned of, each once.

    Without `lint` nothing is fatal.

    Raises:
        CheckFailed: as in `keep_refused`.
    """
    refused, warnings = run_checks(planned, plugins, lint)
    return keep_refused(planned, refused, plugins), tuple(warnings)


def keep_refused(
    planned: Sequence[PlannedRun], refused: Sequence[Sequence[Finding]], plugins: Plugins
) -> list[PlannedRun]:
    """Return the plans, those of which `run_checks` found something fatal kept from starting.

    Raises:
        CheckFailed: what was asked for is fatal, for a card has no such finding otherwise; nothing starts.
    """
    pairs = list(zip(planned, refused, strict=True))
    failures = [
        (card_or_run(item.plan, planned) + finding.message, one_hint(finding.hint, _NO_LINT_HINT))
        for item, findings in pairs
        for finding in _of_command(item, findings, plugins)
    ]
    if failures:
        raise CheckFailed.of_all(failures)
    return [_blocked(item, findings) for item, findings in pairs]


def _of_command(run: PlannedRun, findings: Sequence[Finding], plugins: Plugins) -> Sequence[Finding]:
    """Return the findings that a run has by what the command asked for; a token is never an option."""
    own = tuple(_token_findings(run, plugins)) if findings else ()
    read = (*run.plan.settings, *VARIANT_KEYS)  # what a finding is about that names no keys
    return [
        item
        for item in findings
        if item not in own and is_of_command(read if item.keys is None else item.keys, run.requested)
    ]


def _blocked(run: PlannedRun, findings: Sequence[Finding]) -> PlannedRun:
    if not findings or run.plan.blocked is not None:
        return run
    reason = "; ".join(dict.fromkeys(finding.message for finding in findings))
    hint = one_hint(*dict.fromkeys(finding.hint for finding in findings), _NO_LINT_HINT)
    return replace(run, plan=replace(run.plan, blocked=Blocked.failure(Cause.PREPARE, reason, hint)))


def find_findings(run: PlannedRun, plugins: Plugins) -> tuple[Finding, ...]:
    """Return what speaks against a run; nothing against one that a rule skips."""
    if run.plan.blocked is not None and run.plan.blocked.status is Status.SKIPPED:
        return ()
    return (*plugins.checks(run.plan, run.backends), *_token_findings(run, plugins))


def run_checks(
    planned: Sequence[PlannedRun], plugins: Plugins, lint: bool = True
) -> tuple[list[list[Finding]], list[str]]:
    """Return what keeps each of the plans from starting, nothing without `lint`, and what is warned of, each once."""
    refused: list[list[Finding]] = []
    warnings: dict[str, None] = {}
    for run in planned:
        refused.append([])
        for finding in find_findings(run, plugins):
            if finding.fatal and lint:
                refused[-1].append(finding)
            else:
                warnings[in_one_line(finding, card_or_run(run.plan, planned) + finding.message)] = None
    return refused, list(warnings)


def in_one_line(finding: Finding, message: str = "") -> str:
    """Return a finding with its hint; `message` in place of its own."""
    return (message or finding.message) + (f" ({inline_hint(finding.hint)})" if finding.hint else "")


def card_or_run(plan: RunPlan, planned: Sequence[PlannedRun]) -> str:
    """Return which run of the batch a message is about, where it could be about another."""
    if len({(run.plan.card.name, run.plan.variant) for run in planned}) < 2:
        return ""
    variant = plan.variant
    text = (plan.card.name, variant.mode, variant.precision) if variant else (plan.card.name,)
    return f"{' '.join(filter(None, text))}: "


def _token_findings(run: PlannedRun, plugins: Plugins) -> Iterator[Finding]:
    needed = needed_assets(run.plan, run.backends, plugins)
    if gated := [asset for asset in needed if asset.gated and not is_found(run.plan, asset)]:
        yield from _gated(run.plan, gated)


def _gated(plan: RunPlan, gated: Sequence[Asset]) -> Iterator[Finding]:
    """Find gated repositories that a run would ask for in vain; what is prepared it does not ask for."""
    if is_offline(plan.env) or find_token(plan.env) is not None:
        return
    refs = ", ".join(sorted({asset.ref for asset in gated}))
    before = f"{command(plan)} once, after which runs need none"
    ways = ("export MAD_SECRETS_HFTOKEN=…", before, "--set env.HF_HUB_OFFLINE=1 where the run finds it in its cache")
    yield Finding(
        message=f"{refs} is a gated repository, and there is no Hugging Face token",
        hint=", or ".join((*ways, *dict.fromkeys(asset.hint for asset in gated if asset.hint))),
        fatal=True,
    )


# Whether something listens where data is to come from, and for `ssh://` whether it is an SSH server.

LIMIT_S = 30.0  # as madengine has it
_PORTS = {"https": 443, "ssh": 22}


@cache
def why_unreachable(endpoint: str) -> str:
    """Return why there is no answer from an address such as `http://host:9000`, or nothing; queried once per address.

    An SSH server speaks first (RFC 4253, 4.2): nothing more is checked.
    """
    name = endpoint.rpartition("@")[2]  # a user's name and password must not be reported
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        name = parts.hostname or name
        port = parts.port or _PORTS.get(parts.scheme, 80)
        with socket.create_connection((parts.hostname or "", port), timeout=LIMIT_S) as connected:
            if parts.scheme == "ssh" and not connected.recv(255).startswith(b"SSH-"):
                return f"{name} answers at port {port}, but not as an SSH server"
            return ""
    except (OSError, ValueError) as error:
        return f"{name} cannot be reached: {getattr(error, 'strerror', None) or error}"


# What is written is what runs: a value that a backend has no use for is refused, with what it does use.

_ROW_KEYS = ("model", "mode", "precision", "seq_len", "micro_batch", "global_batch", "steps", "release", "args")
"""Values of a row that a user can set; `warmup_steps` is madlite's own."""
_COUNTS = ("seq_len", "micro_batch", "global_batch", "steps")
_OTHER_WORD = "madlite-tries-another-word"  # which no backend accepts
_MOST = 8  # settings that a hint names

Expand = Callable[[Request], Sequence[RunSpec]]
"""Returns the backend's specs of a request; raises UsageProblem where it has none."""
Render = Callable[[RunPlan], Sequence[Rendered]]


def refuse_without_effect(
    request: Request, spec: RunSpec, plan: RunPlan, files: Sequence[Rendered], expand: Expand, render: Render
) -> None:
    """Refuse what was requested and changes nothing of a run but its labels.

    Raises:
        UsageProblem: a template makes the same of another value, and the backend the same spec without it.
    """
    settled = (*spec.settings, *spec.declared, *spec.chosen)
    for key in _ROW_KEYS:
        label = plan.args if key == "args" else getattr(plan.variant, key, None)
        requested = key in request.origins and key not in settled and label not in (None, "")
        if not requested or _is_rendered(key, label, spec, plan, files, render):
            continue
        if _relabels(key, label, request, spec, expand):
            raise _refusal(describe_setting(request, key), key, plan)


def _is_rendered(
    key: str, label: Scalar | None, spec: RunSpec, plan: RunPlan, files: Sequence[Rendered], render: Render
) -> bool:
    """Return whether the files or commands of a run depend on a value; one that a comment alone has is none of them."""
    if key == "args":
        of_actions = any("{args}" in word for action in spec.actions for word in action.argv)
        other = replace(plan, args=_OTHER_WORD, model_args=None if plan.model_args is None else _OTHER_WORD)
    else:
        of_actions, value = False, int(str(label)) * 2 if key in _COUNTS else _OTHER_WORD
        other = replace(plan, variant=replace(plan.variant, **{key: value})) if plan.variant is not None else plan
    try:
        return of_actions or run_content(other, render(other)) != run_content(plan, files)
    except UsageProblem:  # the template knows no such word
        return True


def _relabels(key: str, label: Scalar | None, request: Request, spec: RunSpec, expand: Expand) -> bool:
    """Return whether the backend has the same run without a requested value, under another label."""
    card, left = request.card, {name: text for name, text in request.settings.items() if name != key}
    if isinstance(card.recipe, dict):
        card = replace(card, recipe={name: value for name, value in card.recipe.items() if canonical_key(name) != key})
    try:
        specs = expand(replace(request, card=card, settings=left))
    except UsageProblem:  # it is what makes a run possible
        return False
    alike = [item for item in specs if _without_label(item, key) == _without_label(spec, key)]
    labels = [card.args if key == "args" else getattr(item.variant, key, None) for item in alike]
    return bool(alike) and label not in labels


def _without_label(spec: RunSpec, key: str) -> RunSpec:
    labels = {key: ""} if key != "args" else {}
    variant = replace(spec.variant, **labels) if spec.variant is not None else None
    return replace(spec, variant=variant, origin="", notes=(), left_out={})


def _refusal(text: str, key: str, plan: RunPlan) -> UsageProblem:
    what = f"{text} is nothing to backend '{plan.backend}': the run would be the same, and its row would say otherwise"
    settings = [name for name in plan.settings if name != "recipe"]
    more = ", …" if len(settings) > _MOST else ""
    named = f"settings {', '.join(settings[:_MOST])}{more}" if settings else "explain --all shows what it uses"
    return UsageProblem(what, one_hint("leave it out", named), keys=(key,))


def check_start(planned: Sequence[PlannedRun], options: Options, *, pretended: bool = False) -> None:
    """Refuse what no run can be started for, or its row not be written.

    Raises:
        MadliteError: GPUs of the context are not here (unless all is `pretended`), or files are in the way.
    """
    if not pretended:
        refuse_pretended([run for run in planned if run.plan.traits.local])
    check_runs_folder(options.workspace)
    if options.rows:
        check_appendable(options.output, options.workspace)


def refuse_pretended(planned: Sequence[PlannedRun]) -> None:
    """Keep a row from naming GPUs that are not here."""
    for run in planned:
        if run.plan.machine.pretended:
            what = f"{len(run.plan.machine.gpus)} x {run.plan.machine.device}"
            raise UsageProblem(f"the context describes {what}, which are not here", "add --dry-run, or use explain")
