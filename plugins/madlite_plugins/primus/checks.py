"""What Primus would refuse, or train on with a number that means something else than its row says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.primus.config_checks import config_findings
from madlite_plugins.primus.precision import split_words
from madlite_plugins.primus.rules import FRAMEWORKS

STARTERS = ("run_pretrain.sh", "primus-cli")
SUITES = ("pretrain", "posttrain")
_CHECKPOINTING = ("none", "selective", "full", "memory_budget")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII)
_DEGREES = ("tp", "pp", "cp", "ep")
_OF_THE_ROW = {
    *("--training.steps", "--training.seq_len", "--training.local_batch_size", "--training.batch_size"),
    *("--training.global_batch_size", "--train_iters", "--seq_length", "--micro_batch_size", "--global_batch_size"),
}


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend."""
    if plan.variant is None:
        return
    yield from _machine(plan)
    yield from _settings(plan)
    yield from config_findings(plan, plan.variant)
    yield from _args(plan)
    yield from _steps(plan, plan.variant)
    if plan.settings["framework"] in FRAMEWORKS:
        yield from _parallel(plan, plan.variant)


def _machine(plan: RunPlan) -> Iterator[Finding]:
    if plan.machine.vendor == "AMD":
        return
    yield Finding(
        message=f"Primus and its images are for AMD GPUs, this machine has {plan.machine.product}",
        hint="madlite explain TAG --machine 8xMI300X shows the plan of another machine",
        fatal=plan.runtime == "docker",
    )


def _settings(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    known = {"suite": SUITES, "starter": ("", *STARTERS), "activation_checkpoint": ("", *_CHECKPOINTING)}
    for name, words in known.items():
        if settings[name] not in words:
            hint = f"one of {', '.join(filter(None, words))}"
            yield Finding(message=f"{name} '{settings[name]}' is unknown", hint=hint, fatal=True)
    if settings["suite"] == "posttrain" and settings["starter"] == STARTERS[0]:
        yield Finding(message=f"{STARTERS[0]} knows pretraining alone", hint="--set starter=primus-cli", fatal=True)
    for word in str(settings["exports"]).split():
        if not _VARIABLE.fullmatch(word):
            yield Finding(message=f"exports has '{word}', which is no NAME=VALUE", fatal=True)
    if settings["framework"] not in FRAMEWORKS:
        yield Finding(
            message=f"no option of framework '{settings['framework']}' is known: sizes are those of the config file",
            hint="give others as args",
        )
    changed = not plan.origins.get("settings.mock_data", "recipe").startswith("recipe")
    if settings["framework"] == "megatron_bridge" and changed:
        yield Finding(message="Megatron-Bridge knows no made-up data: mock_data changes nothing")


def _args(plan: RunPlan) -> Iterator[Finding]:
    given = "" if plan.card.scripts and plan.model_args is None else plan.run_args
    named = sorted({word.partition("=")[0] for word in split_words(given)} & _OF_THE_ROW)
    if named:
        yield Finding(
            message=f"args set {', '.join(named)}, which the result's row does not show",
            hint="--set steps=, seq_len=, micro_batch= or global_batch= instead",
        )


def _steps(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if variant.steps is None:
        return
    if variant.steps <= variant.warmup_steps:
        yield Finding(
            message=f"{variant.steps} steps are over before {variant.warmup_steps} of warm-up are",
            hint=f"--set steps={variant.warmup_steps + 15}",
            fatal=True,
        )
    rising = int(plan.settings["lr_warmup_steps"])
    if rising > variant.steps:
        yield Finding(
            message=f"the learning rate rises for {rising} steps, longer than this run: its loss says little, its "
            "speed counts all the same"
        )


def _parallel(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check the ranks against the degrees of parallelism and the nodes that the model is documented for."""
    degrees = {name: int(plan.settings[name]) for name in _DEGREES}
    if wrong := [f"{name}={n}" for name, n in degrees.items() if n < 1]:
        yield Finding(message=f"parallel degrees are 1 or more: {', '.join(wrong)}", fatal=True)
        return
    gpus, nodes = max(1, plan.place.gpus_per_node), plan.place.nodes
    needed = ranks_needed(str(plan.settings["framework"]), **degrees)
    if gpus * nodes % needed:
        yield _ranks_missing(degrees, needed, gpus, nodes)
    elif (least := int(plan.settings["nodes"])) > nodes:
        yield Finding(
            message=f"{variant.model} is documented for {least} nodes, this run has {nodes}",
            hint="take a smaller model; --no-lint tries it all the same",
            fatal=True,
        )
    else:
        yield from _global_batch(variant, gpus * nodes // (degrees["tp"] * degrees["pp"] * degrees["cp"]))


def ranks_needed(framework: str, *, tp: int, pp: int, cp: int, ep: int) -> int:
    """Return of what the number of ranks must be a multiple.

    Experts lie across data, context and, in torchtitan, tensor parallel ranks of a pipeline stage; Megatron splits
    each of them by the tensor degree too (megatron/core/parallel_state.py, torchtitan/distributed/parallel_dims.py).
    """
    experts = ep * pp if framework == "torchtitan" else ep * pp * tp
    return math.lcm(tp * pp * cp, experts)


def _ranks_missing(degrees: dict[str, int], needed: int, gpus: int, nodes: int) -> Finding:
    shape = ", ".join(f"{name} {n}" for name, n in degrees.items() if n > 1)
    where = f"{gpus} GPUs" if nodes == 1 else f"{nodes} nodes of {gpus} GPUs"
    too_few = gpus * nodes < needed
    more = f" ({-(-needed // gpus)} nodes of {gpus} GPUs would do)" if too_few and gpus * nodes >= 8 else ""
    hint = "--set pp=, ep= or tp= to lower one, or another config" if too_few else f"--set n_gpus={needed}"
    message = f"with {shape} the number of ranks must be a multiple of {needed}; {where} are here{more}"
    return Finding(message=message, hint=hint, fatal=True)


def _global_batch(variant: Variant, data_ranks: int) -> Iterator[Finding]:
    local = (variant.micro_batch or 1) * data_ranks
    if variant.global_batch and variant.micro_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch {variant.micro_batch} × "
            f"{data_ranks} data ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
        )
