"""What speaks against a plan's inputs: data, nodes, the environment, arguments, and text that a shell reads again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.choices import unknown_choice
from madlite_plugins.megatron_lm.data import DEEPSEEK_SCRIPT
from madlite_plugins.megatron_lm.scripts import plan_values, plan_variables, script_name
from madlite_plugins.nodes import node_findings

_DATA_SETS = ("wiki", "bookcorpus", "fineweb")
_SHELL = re.compile(r"[;&|<>`$\"'(){}*?!#~\\\[\]\n\r\t]")
_SWITCH = ("", "0", "1", "true", "false")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_OF_MAD = "--model_repo"  # what MAD's own script is called with


def input_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with what a plan gives to its script."""
    if plan.variant is None:
        return
    yield from _data(plan)
    yield from _nodes(plan)
    yield from _texts(plan)
    yield from _environment(plan)
    yield from _args(plan)
    if not plan.settings.get("tee_output", True):
        yield Finding(message="without TEE_OUTPUT nothing is seen before the run's end", hint="--set tee_output=true")


def _data(plan: RunPlan) -> Iterator[Finding]:
    settings, keys = plan.settings, {variable.key: variable.name for variable in plan_variables(plan)}
    dataset, fetched = str(settings.get("dataset", "")), bool(settings["prepare"])
    if settings["mock_data"]:
        given = [key for key in ("data_path", "dataset") if settings.get(key)] + [
            n for n in ("DATA_PATH",) if n in plan.env
        ]
        if given:
            yield Finding(message=f"{given[0]} is not read: the run trains on mock data", hint="--no-mock-data")
        return
    ways = [key for key in ("data_path", "data_dir") if key in keys]
    prepare = f"madlite prepare --tags {plan.card.name} --no-mock-data, which fetches its document's"
    others = [(fetched, "--set dataset=wiki"), (settings["script"] == DEEPSEEK_SCRIPT, prepare)]
    hint = " or ".join([*(f"--set {key}=" for key in ways), *(text for fits, text in others if fits)])
    if dataset and not fetched:
        yield Finding(
            message=f"no script fetches data for {script_name(plan)}",
            hint=hint,
            fatal=True,
            keys=("dataset", "mock_data"),
        )
    elif dataset:
        yield from unknown_choice("dataset", dataset, _DATA_SETS)
    elif not dataset and not any(settings[key] or plan.env.get(keys[key]) for key in ways):
        yield Finding(
            message="without mock data the run needs data of its own",
            hint=hint,
            fatal=True,
            keys=("mock_data", "data_path", "data_dir"),
        )
    for key in ways:
        if (path := str(settings[key])) and not path.startswith("/") and not path[0].isdigit():
            yield Finding(message=f"{key} '{path}' is relative: it counts from Megatron's folder in the run")


def _nodes(plan: RunPlan) -> Iterator[Finding]:
    """Find what keeps nodes from meeting; the last rank, which prints the iterations, is on the last of them."""
    nodes = plan.place.nodes
    if nodes > 1 and not any(variable.key == "nnodes" for variable in plan_variables(plan)):
        return
    yield from node_findings(plan, nodes - 1, _of_extra(plan))
    if nodes > 1 and not plan.settings.get("data_cache_path"):
        yield Finding(
            message="several nodes need a common folder for their data cache", hint="--set data_cache_path=/nfs/cache"
        )


def _of_extra(plan: RunPlan) -> dict[str, str]:
    """Return the variables that a release's scripts are given beyond their own."""
    return dict(word.partition("=")[::2] for word in str(plan.settings["extra"]).split())


def _texts(plan: RunPlan) -> Iterator[Finding]:
    """Find what the script, which builds a command line without quotes and evaluates it, would read as shell."""
    values = plan_values(plan)
    for variable in plan_variables(plan):
        text = str(values.get(variable.key, ""))
        if variable.kind and text.lower() not in _SWITCH:
            yield Finding(
                message=f"{variable.key} is {text!r}",
                hint=f"--set {variable.key}=0 or 1",
                fatal=True,
                keys=(variable.key,),
            )
        elif _SHELL.search(text) or (" " in text and variable.key != "data_path"):  # which may be a list with weights
            yield Finding(
                message=f"{variable.key} {text!r} has characters that {script_name(plan)} hands to a shell unquoted",
                hint="a path of letters, digits and ._/-",
                fatal=True,
                keys=(variable.key,),
            )


def _environment(plan: RunPlan) -> Iterator[Finding]:
    """Find variables of the environment that the run's own values go before."""
    values = plan_values(plan)
    for variable in plan_variables(plan):
        given, own = plan.env.get(variable.name), values.get(variable.key)
        text = str(int(own)) if isinstance(own, bool) else str(own or "")
        if given is not None and text and str(given) != text:
            yield Finding(
                message=f"{variable.name}={given} of the environment is not passed on: {variable.key} is {text}",
                hint=f"--set {variable.key}={given}",
            )


def _args(plan: RunPlan) -> Iterator[Finding]:
    others = [word for word in plan.run_args.split() if not _ASSIGNMENT.match(word)]
    if others and others[0] != _OF_MAD:
        yield Finding(message=f"args '{' '.join(others)}' are left out: the scripts take NAME=value alone")
