"""What torchtitan would refuse, or train on with a number that means nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from madlite import FEW, Finding, RunPlan, Scalar, Variant, few_steps
from madlite_plugins.choices import checkpoint_findings, unknown_checkpointing, unknown_choice
from madlite_plugins.nodes import NODE_SETTINGS
from madlite_plugins.schedule import schedule_findings
from madlite_plugins.torchtitan.args import arg_findings
from madlite_plugins.torchtitan.eras import BEFORE, ERAS, OLD, converter_fits, float8_converter, quantises

PRECISIONS = ("BF16", "FP8", "FP32")
_NUMBER = re.compile("[0-9]{1,4}")
_RESHARD = ("default", "always", "never")
_KERNELS = ("fused", "foreach", "for-loop")
_WITHOUT_FP8 = ("A100", "A800", "V100", "MI100", "MI210", "MI250", "MI250X")
# what an image's own script is given, besides sizes
_PASSED_ON = ("log_freq", "recipe", "recipe_device", "script", "tokenizer_repo")


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend."""
    if plan.variant is None:
        return
    yield from _machine(plan, plan.variant)
    yield from _degrees(plan, plan.variant)
    if any(file.template.endswith("script.sh.j2") for file in plan.templates):
        yield from _own_configuration(plan, plan.variant)
        return
    yield from arg_findings(plan)
    yield from _era(plan, plan.variant)
    yield from _precision(plan, plan.variant)
    yield from _settings(plan)
    yield from _logging(plan)
    yield from schedule_findings(plan, plan.variant)


_DEGREES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")  # the sizes of the device mesh


def _degrees(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check the sizes of the device mesh: their product is the number of ranks, -1 standing for what is left."""
    world = _ranks(plan)
    degrees = {name: int(plan.settings[name]) for name in _DEGREES}
    wrong = [f"{name}={n}" for name, n in degrees.items() if n < 1 and (name, n) != ("dp_shard", -1)]
    if wrong:
        yield Finding(message=f"parallel degrees are 1 or more: {', '.join(wrong)}", fatal=True, keys=_DEGREES)
        return
    product = 1
    for n in degrees.values():
        product *= abs(n)
    if world % product or (degrees["dp_shard"] != -1 and world != product):
        shape = " × ".join(f"{name} {n}" for name, n in degrees.items())
        yield Finding(
            message=f"{shape} does not fit {world} rank(s)",
            hint=_fitting(degrees),
            fatal=True,
            keys=(*_DEGREES, "n_gpus", "nnodes"),
        )
        return
    yield from _experts(plan, world // (degrees["pp"] * degrees["dp_replicate"]))
    yield from _batch(variant, world // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    if degrees["pp"] > (micro_batch := variant.micro_batch or 1):  # torch.distributed.pipelining refuses it
        yield Finding(
            message=f"pp {degrees['pp']} needs a micro batch of as many sequences or more, not {micro_batch}",
            hint=f"--batch-size {degrees['pp']}, or --set pp=1",
            fatal=True,
            keys=("pp", "micro_batch"),
        )
    yield from _mixed_precision(plan, variant, world // (degrees["dp_replicate"] * degrees["tp"] * degrees["pp"]))


def _mixed_precision(plan: RunPlan, variant: Variant, shards: int) -> Iterator[Finding]:
    """Check that the weights, kept in float32, are computed in another precision: see torchtitan's `maybe_enable_amp`.

    `shards` are the ranks of FSDP, those of context parallelism among them.
    """
    shared = [f"{name} {plan.settings[name]}" for name in ("tp", "pp") if int(plan.settings[name]) > 1]
    if shared and shards == 1 and plan.settings["dtype"] == "float32" and variant.precision != "FP32":
        yield Finding(
            message=f"with {' and '.join(shared)} and one FSDP shard torchtitan trains in float32, not "
            f"{variant.precision}: it mixes precisions in FSDP alone",
            hint="smaller degrees or more GPUs, or --set dtype=bfloat16",
            fatal=True,
            keys=(*_DEGREES, "dtype", "precision", "n_gpus", "nnodes"),
        )


def _experts(plan: RunPlan, ranks: int) -> Iterator[Finding]:
    """Check that the experts' degree divides the ranks it borrows: shards × context × tensor parallel."""
    ep = int(plan.settings["ep"])
    if ep < 1 or ranks % ep:
        yield Finding(
            message=f"ep {ep} does not divide the {ranks} rank(s) that share the weights",
            fatal=True,
            keys=("ep", *_DEGREES, "n_gpus", "nnodes"),
        )


def _batch(variant: Variant, data_ranks: int) -> Iterator[Finding]:
    local = (variant.micro_batch or 1) * data_ranks
    if variant.global_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch × data ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
            keys=("global_batch", "micro_batch", *_DEGREES, "n_gpus", "nnodes"),
        )


def _fitting(degrees: dict[str, int]) -> str:
    """Return what to lower: the shards, where their number is fixed, else the other degrees."""
    if degrees["dp_shard"] != -1:
        return "--set dp_shard=-1"
    return " ".join(f"--set {name}=1" for name, n in degrees.items() if n > 1)


def _machine(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if variant.precision == "FP8" and plan.machine.device in _WITHOUT_FP8:
        yield Finding(
            message=f"{plan.machine.device} has no FP8",
            hint="--precision BF16",
            fatal=True,
            keys=("precision", "n_gpus"),
        )
    if plan.place.gpus_per_node:
        return
    if plan.machine.vendor != "CPU":
        yield Finding(
            message="no GPU is granted, and torchtitan runs on a CPU only where there is no GPU",
            hint="--set n_gpus=1",
            fatal=True,
            keys=("n_gpus",),
        )
    if variant.precision == "FP8":
        yield Finding(message="FP8 needs a GPU", hint="--set precision=BF16", fatal=True, keys=("precision", "n_gpus"))
    if plan.settings["compile"]:
        yield Finding(
            message="torch.compile on a CPU takes minutes and needs a C++ compiler", hint="--set compile=false"
        )
    if plan.settings["flavor"] != "debugmodel":
        yield Finding(message=f"{variant.model} on a CPU takes very long and much memory", hint="--set recipe=debug")


def _era(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check that the era is one that is rendered, and can do what is requested of it."""
    era, settings = str(plan.settings["era"]), plan.settings
    if era not in ERAS:
        number = re.match(r"(\d{1,4})\.(\d{1,4})\b", era)
        newer = number is not None and (int(number[1]), int(number[2])) >= (0, 3)
        why = "its configuration is Python, and madlite renders TOML" if newer else f"one of {', '.join(ERAS)}"
        hint = (
            "install torchtitan==0.2.2 and leave era out" if newer else "--set era=0.2 for torchtitan 0.2.1 and 0.2.2"
        )
        yield Finding(
            message=f"torchtitan of era '{era}' cannot be rendered: {why}", hint=hint, fatal=True, keys=("era",)
        )
        return
    requested = (
        ("dtype", "dtype bfloat16", settings["dtype"] != "float32" and era in OLD),
        ("activation_checkpoint", "memory_budget", settings["activation_checkpoint"] == "memory_budget" and era in OLD),
        ("ep", "expert parallelism", int(settings["ep"]) > 1 and era in OLD),
        ("reshard", f"reshard {settings['reshard']}", settings["reshard"] != "default" and era == BEFORE),
        ("global_batch", "gradient accumulation", era == BEFORE and _accumulates(plan, variant)),
    )
    for key, what in ((key, what) for key, what, wanted in requested if wanted):
        yield Finding(
            message=f"torchtitan {ERAS[era]} has no {what}",
            hint="another era needs another torchtitan: --set era=0.2 --image REF, or --image-release upstream",
            fatal=True,
            keys=(key, "era"),
        )


def _accumulates(plan: RunPlan, variant: Variant) -> bool:
    sharing = int(plan.settings["tp"]) * int(plan.settings["pp"]) * int(plan.settings["cp"])
    local = (variant.micro_batch or 1) * _ranks(plan) // max(1, sharing)
    return bool(variant.global_batch) and variant.global_batch != local


def _precision(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    yield from unknown_choice("precision", variant.precision, PRECISIONS)
    era = str(plan.settings["era"])
    converters = [name for name in str(plan.settings["converters"]).split(",") if name]
    if era in ERAS and (foreign := [name for name in converters if not converter_fits(name, era)]):
        yield Finding(
            message=f"torchtitan {ERAS[era]} has no converter {', '.join(foreign)}: it calls FP8's "
            f"{float8_converter(era)}",
            hint="--set precision=FP8 alone sets it",
            fatal=True,
            keys=("converters", "era"),
        )
    elif variant.precision != "FP8" and any(map(quantises, converters)):
        yield Finding(
            message=f"converters {','.join(converters)} quantise, and the result's row would have {variant.precision}",
            hint="--set precision=FP8 --set converters=",
            fatal=True,
            keys=("converters", "precision"),
        )


def lines_left(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that too few log lines come after the warm-up, of a run that logs every so many steps."""
    every, steps, warmup = int(plan.settings["log_freq"]), variant.steps or 0, variant.warmup_steps
    before = -(-warmup // every)
    words = f"{steps} steps, with a line for every {every},"
    yield from few_steps(words, steps // every - before, warmup, f"--steps {(before + FEW) * every}")


def _logging(plan: RunPlan) -> Iterator[Finding]:
    every, ranks = int(plan.settings["log_freq"]), str(plan.settings["log_ranks"])
    if every < 1:
        yield Finding(message=f"log_freq is {every}", hint="--set log_freq=1", fatal=True, keys=("log_freq",))
    printing = ranks.split(",") if ranks else ["0"]
    known = max(1, plan.place.gpus_per_node)
    if not all(_NUMBER.fullmatch(rank) and int(rank) < known for rank in printing):
        hint = f"--set log_ranks= with a number from 0 to {known - 1}"
        yield Finding(
            message=f"log_ranks '{ranks}' names no rank of {known}",
            hint=hint,
            fatal=True,
            keys=("log_ranks", "n_gpus", "nnodes"),
        )
    elif len(printing) > 1:
        message = "lines of several ranks cannot be distinguished: of each step the last one counts"
        yield Finding(message=message, hint="--set log_ranks= with one number")


def _checkpointing(settings: Mapping[str, Scalar]) -> Iterator[Finding]:
    mode = str(settings["activation_checkpoint"])
    yield from unknown_checkpointing(mode)
    if mode == "memory_budget" and not settings["compile"]:
        keys = ("activation_checkpoint", "compile")
        yield Finding(message="memory_budget needs a compiled model", hint="--set compile=true", fatal=True, keys=keys)
    if not 0 <= float(settings["memory_budget"]) <= 1:
        message = f"memory_budget {settings['memory_budget']} is not from 0 to 1"
        yield Finding(message=message, fatal=True, keys=("memory_budget",))


def _settings(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    yield from _checkpointing(settings)
    yield from checkpoint_findings(plan)
    yield from unknown_choice("reshard", settings["reshard"], _RESHARD)
    yield from unknown_choice("optimizer_kernel", settings["optimizer_kernel"], _KERNELS)
    if settings["script"]:
        yield Finding(
            message="script comes from an image release alone",
            hint="--image-release v25.2",
            fatal=True,
            keys=("script", "release"),
        )
    if settings["dataset"] and (settings["mock_data"] or settings["dataset_path"]):
        instead = "dataset_path" if settings["dataset_path"] else "made-up text"
        yield Finding(message=f"dataset '{settings['dataset']}' is not read: {instead} is", hint="--no-mock-data")
    if int(settings["vocab_size"]) < 512:
        yield Finding(
            message=f"vocab_size {settings['vocab_size']} is below 512, a tokenizer's least",
            fatal=True,
            keys=("vocab_size",),
        )
    for name in ("hf_assets_path", "dataset_path"):
        path = str(settings[name])
        if path and not PurePosixPath(path).is_absolute():
            yield Finding(
                message=f"{name} '{path}' is relative, and the run starts in its own folder",
                hint=f"give the full path as the run sees it: {plan.inside}/{path}",
                fatal=True,
                keys=(name,),
            )


def _own_configuration(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Refuse what would not reach an image's own script, which takes sizes alone."""
    passed = _PASSED_ON if plan.place.nodes > 1 else (*_PASSED_ON, *NODE_SETTINGS)
    changed = [
        name
        for name in plan.settings
        if name not in passed and not plan.origins.get(f"settings.{name}", "recipe").startswith("recipe")
    ]
    changed += ["precision"] * (variant.precision != "BF16") + ["global_batch"] * bool(variant.global_batch)
    if changed:
        yield Finding(
            message=f"{', '.join(sorted(changed))} would not reach {plan.settings['script']}: the image of release "
            f"{variant.release} trains with its own configuration",
            hint="another --image-release has its configuration rendered",
            fatal=True,
            keys=tuple(changed),
        )


def _ranks(plan: RunPlan) -> int:
    return max(1, plan.place.gpus_per_node) * plan.place.nodes
