"""What torchtune would refuse, or train on with a number that means nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from madlite import Finding, RunPlan, Variant
from madlite_plugins.choices import part_findings, unknown_choice
from madlite_plugins.schedule import schedule_findings

MODES = ("finetune_fw", "finetune_lora", "finetune_qlora")
PRECISIONS = ("BF16", "FP8", "FP32")
_WEIGHTS = ("fetched", "made")
_DATASETS = ("alpaca", "alpaca_cleaned", "the_cauldron", "wikitext")
_LORA = ("q_proj", "k_proj", "v_proj", "output_proj")
_POSITIVE = ("gas", "epochs", "tp", "log_freq", "cpu_ranks", "checkpoint_every")
_NF4 = 256 * 64
_WITHOUT_FP8 = ("A100", "A800", "V100", "MI100", "MI210", "MI250", "MI250X")


def findings(plan: RunPlan, image: str) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend; `image` is the one that its release names."""
    if plan.variant is None:
        return
    yield from _words(plan, plan.variant)
    wrong = [f"{name} is {plan.settings[name]}" for name in _POSITIVE if int(plan.settings[name]) < 1]
    if wrong:
        yield Finding(message=f"{', '.join(wrong)}, which is 1 or more", fatal=True, keys=_POSITIVE)
        return
    yield from _machine(plan, plan.variant)
    yield from _precision(plan, plan.variant, image)
    yield from _batch(plan, plan.variant)
    yield from _length(plan, plan.variant)
    ranks = plan.place.nodes * max(1, plan.place.gpus_per_node or int(plan.settings["cpu_ranks"]))
    is_possible = plan.variant.mode == "finetune_fw" and ranks > 1
    yield from part_findings(plan, is_possible=is_possible, where="in full fine-tuning on several GPUs")
    yield from _settings(plan)
    yield from _data(plan)
    yield from _epochs(plan.variant.steps or 0, int(plan.settings["epochs"]))
    yield from schedule_findings(plan, plan.variant)


def _words(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    settings = plan.settings
    yield from unknown_choice("mode", variant.mode, MODES)
    yield from unknown_choice("precision", variant.precision, PRECISIONS)
    yield from unknown_choice("weights", settings["weights"], _WEIGHTS)
    yield from unknown_choice("dataset", settings["dataset"], _DATASETS)
    if not settings["family"]:
        for name in str(settings["lora_targets"]).split(","):
            yield from unknown_choice("lora_targets", name, _LORA)
        yield from _sizes(plan)


def _sizes(plan: RunPlan) -> Iterator[Finding]:
    """Check the model of a recipe that madlite configures itself."""
    builder = str(plan.settings["builder"])
    if not all(part.isidentifier() for part in builder.split(".")) or builder.count(".") != 1:
        yield Finding(
            message=f"builder '{builder}' is no MODULE.NAME of torchtune.models", fatal=True, keys=("builder",)
        )
    if not int(plan.settings["layers"]):
        return
    heads, kv_heads, dim = (int(plan.settings[name]) for name in ("heads", "kv_heads", "embed_dim"))
    if min(heads, kv_heads) < 1 or heads % kv_heads or dim % heads:
        yield Finding(
            message=f"{heads} heads fit neither embed_dim {dim} nor {kv_heads} kv_heads",
            hint="embed_dim is a multiple of heads, heads of kv_heads",
            fatal=True,
            keys=("embed_dim", "heads", "kv_heads"),
        )
    elif plan.variant is not None and plan.variant.mode == "finetune_qlora":
        yield from _quantized(dim, dim // heads * kv_heads, int(plan.settings["intermediate_dim"]))
    if int(plan.settings["vocab_size"]) < 266:
        yield Finding(
            message=f"vocab_size {plan.settings['vocab_size']} is below the tokenizer's 266",
            fatal=True,
            keys=("vocab_size",),
        )


def _quantized(dim: int, kv_dim: int, intermediate_dim: int) -> Iterator[Finding]:
    """Check that every weight has whole blocks of NF4: 256 of 64 numbers each."""
    for name, other in (("embed_dim", dim), ("kv_heads' dimension", kv_dim), ("intermediate_dim", intermediate_dim)):
        if dim * other % _NF4:
            yield Finding(
                message=f"embed_dim {dim} × {name} {other} is no multiple of {_NF4}, as NF4 wants",
                hint="--set intermediate_dim=704 and --set embed_dim=256 fit",
                fatal=True,
                keys=("mode", "embed_dim", "heads", "kv_heads", "intermediate_dim"),
            )


def _machine(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if plan.place.gpus_per_node:
        return
    if plan.machine.vendor != "CPU":
        yield Finding(
            message="no GPU is granted, and the configuration is a GPU's",
            hint="--set n_gpus=1",
            fatal=True,
            keys=("n_gpus",),
        )
    elif plan.settings["family"]:
        yield Finding(
            message=f"{variant.model} trains with torchtune's distributed recipe, which wants GPUs",
            hint="--set recipe=tiny_full",
            fatal=True,
            keys=(),
        )
    elif not int(plan.settings["layers"]):
        yield Finding(
            message=f"{variant.model} on a CPU takes very long and much memory", hint="--set recipe=tiny_full"
        )
    if plan.settings["compile"]:
        yield Finding(
            message="torch.compile on a CPU takes minutes and needs a C++ compiler", hint="--set compile=false"
        )
    if variant.precision == "BF16" and plan.machine.vendor == "CPU":
        yield Finding(
            message="torchtune has no BF16 on a CPU", hint="--precision FP32", fatal=True, keys=("precision",)
        )


def _precision(plan: RunPlan, variant: Variant, image: str) -> Iterator[Finding]:
    if variant.precision != "FP8":
        return
    if variant.mode != "finetune_fw":
        yield Finding(
            message=f"{variant.mode} trains no weights in FP8: they are frozen",
            hint="--precision BF16",
            fatal=True,
            keys=("precision", "mode"),
        )
    elif not plan.settings["fp8"]:
        yield Finding(
            message="this torchtune has no FP8: the images' has it from v25.7 on",
            hint="--precision BF16",
            fatal=True,
            keys=("precision",),
        )
    elif other := other_torchtune(plan, image):
        yield Finding(
            message=f"FP8 is known of the torchtune in {image or 'no image'}, and {other}: 0.6.1 of PyPI has none, and "
            "a run that finds no FP8 ends before it trains",
            hint="--precision BF16",
        )
    if plan.machine.device in _WITHOUT_FP8 or not plan.place.gpus_per_node:
        yield Finding(
            message=f"{plan.machine.device} has no FP8",
            hint="--precision BF16",
            fatal=True,
            keys=("precision", "n_gpus"),
        )


def other_torchtune(plan: RunPlan, image: str) -> str:
    """Say by what a plan runs another torchtune than the one of its release's image; empty where it does not."""
    if not plan.traits.containerised:
        return "--runtime host takes what is installed"
    if plan.image is not None and plan.image.ref != image:
        return f"the run is in {plan.image.ref}"
    return "TORCHTUNE_ROOT names another" if "TORCHTUNE_ROOT" in plan.env else ""


def _batch(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Check that the ranks can be shared out, and the global batch over them."""
    local = plan.place.gpus_per_node or int(plan.settings["cpu_ranks"])
    ranks, tp, gas = local * plan.place.nodes, int(plan.settings["tp"]), int(plan.settings["gas"])
    if ranks % tp:
        yield Finding(
            message=f"tp {tp} does not divide {ranks} rank(s)",
            hint="--set tp=1",
            fatal=True,
            keys=("tp", "cpu_ranks", "n_gpus", "nnodes"),
        )
        return
    if tp > 1:
        yield Finding(
            message=f"torchtune 0.6.1 counts the tokens of a tensor-parallel group {tp} times: where the recipe does "
            f"so, the log's speed is divided by {tp}",
            hint="--set tp=1",
        )
    if tp > 1 and plan.settings["fused"]:
        yield Finding(message="a fused optimizer and tensor parallelism exclude each other", hint="--set fused=false")
    if tp > 1 and plan.settings["max_norm"]:
        yield Finding(message="torchtune 0.6.1 clips no gradients of tensor parallelism", hint="--set max_norm=0")
    step = (variant.micro_batch or 1) * (ranks // tp)
    if variant.global_batch and variant.global_batch % step:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch × data ranks = {step}",
            hint=f"--set global_batch={max(1, variant.global_batch // step) * step}",
            fatal=True,
            keys=("global_batch", "micro_batch", "tp", "cpu_ranks", "n_gpus", "nnodes"),
        )
    elif variant.global_batch and gas not in (1, variant.global_batch // step):
        yield Finding(
            message=f"gas {gas} is not what global batch {variant.global_batch} needs, {variant.global_batch // step}",
            hint="set one of the two",
            fatal=True,
            keys=("gas", "global_batch", "micro_batch", "tp", "cpu_ranks"),
        )


def _length(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    length, longest = variant.seq_len or 0, int(plan.settings["max_seq_len"])
    least, most = int(plan.settings["least_seq_len"]), int(plan.settings["most_seq_len"])
    if length > longest:
        yield Finding(
            message=f"{variant.model} takes at most {longest} tokens, not {length}",
            hint=f"--seq-len {longest}",
            fatal=True,
            keys=("seq_len",),
        )
    elif length < least or 0 < most < length:
        yield Finding(
            message=f"MAD's script of {variant.release} takes sequence lengths from {least} to {most}, not {length}",
            hint=f"--seq-len {min(max(length, least), most)}, or --image-release upstream where it has the model",
            fatal=True,
            keys=("seq_len",),
        )


def _settings(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    if settings["weights"] == "made" and settings["family"]:
        yield Finding(
            message="weights are made for recipes that madlite configures itself, not for torchtune's",
            hint="--set weights=fetched",
            fatal=True,
            keys=("weights",),
        )
    if settings["weights"] == "fetched" and not (settings["repo"] or settings["weights_path"]):
        yield Finding(
            message="no repository holds these weights", hint="--set weights=made", fatal=True, keys=("weights",)
        )
    if settings["mock_data"] and settings["dataset"] == "the_cauldron":
        yield Finding(
            message="pictures are not made up", hint="--no-mock-data", fatal=True, keys=("mock_data", "dataset")
        )
    if settings["packed"] and settings["dataset"] == "the_cauldron":
        yield Finding(
            message="samples with pictures cannot be packed",
            hint="--set packed=false",
            fatal=True,
            keys=("packed", "dataset"),
        )
    for name in ("weights_path", "dataset_path"):
        path = str(settings[name])
        if path and not PurePosixPath(path).is_absolute():
            yield Finding(
                message=f"{name} '{path}' is relative, and the run starts in its own folder",
                hint=f"give the full path as the run sees it: {plan.inside}/{path}",
                fatal=True,
                keys=(name,),
            )


def _data(plan: RunPlan) -> Iterator[Finding]:
    key = f"data_{plan.settings['dataset']}"
    if len(str(plan.settings.get(key, "a b")).split()) != 2:
        yield Finding(
            message=f"{key} '{plan.settings[key]}' is not a repository and a pattern of its files",
            hint=f"--set {key}='OWNER/NAME *.parquet'",
            fatal=True,
            keys=(key, "dataset"),
        )


def _epochs(steps: int, epochs: int) -> Iterator[Finding]:
    """Check that the epochs, which torchtune makes of one length, come to these steps."""
    near = [n for n in (steps // epochs * epochs, (steps // epochs + 1) * epochs) if n]
    if steps % epochs:
        yield Finding(
            message=f"{steps} steps are no multiple of {epochs} epochs, and torchtune's are all of one length",
            hint=" or ".join(f"--set steps={n}" for n in near) + ", or --set epochs=1",
            fatal=True,
            keys=("steps", "epochs"),
        )
    if epochs > 1:
        yield Finding(message="the first step of an epoch pays for the checkpoint before it", hint="--set epochs=1")
