"""What the Trainer, accelerate or a package below them would refuse, and what would not be what it is called."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.choices import checkpoint_findings, part_findings, unknown_choice
from madlite_plugins.hf.here_checks import PATHS, here_findings
from madlite_plugins.hf.model_checks import model_findings
from madlite_plugins.hf.sizes import ranks_of
from madlite_plugins.hf.value_checks import value_findings
from madlite_plugins.schedule import schedule_findings

PRECISIONS = ("BF16", "FP32", "FP16", "FP8")
_WORDS = {
    "method": ("lora", "qlora", "full"),
    "strategy": ("ddp", "fsdp", "deepspeed"),
    "fsdp_version": ("1", "2"),
    "zero_stage": ("2", "3"),
    "dtype": ("float32", "bfloat16", "float16"),
    "chat_template": ("", "chatml"),
    "compile_mode": ("", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
}
_STRATEGIES = {
    "fsdp_version": ("fsdp",),
    "reshard": ("fsdp",),
    "offload": ("fsdp", "deepspeed"),
    "zero_stage": ("deepspeed",),
}


def findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with a plan of our own script, but for its number of steps."""
    words = [*unknown_choice("precision", variant.precision, PRECISIONS)]
    for name, known in _WORDS.items():
        words += unknown_choice(name, str(plan.settings[name]), known)
    if words:
        yield from words
        return
    if int(plan.settings["cpu_ranks"]) < 1:
        yield Finding(
            message=f"cpu_ranks is {plan.settings['cpu_ranks']}",
            hint="--set cpu_ranks=1",
            fatal=True,
            keys=("cpu_ranks",),
        )
        return
    yield from value_findings(plan)
    yield from here_findings(plan, variant)
    yield from _batch(plan, variant)
    yield from _strategy(plan, variant)
    yield from part_findings(plan, is_possible=plan.settings["strategy"] == "ddp", where="with strategy ddp")
    yield from checkpoint_findings(plan)
    if plan.settings["compile_mode"] and not plan.settings["compile"]:
        message = "compile_mode means nothing without compile"
        yield Finding(message=message, hint="--set compile=true", fatal=True, keys=("compile_mode", "compile"))
    yield from _precision(plan, variant)
    yield from _four_bits(plan)
    yield from _data(plan, variant)
    yield from model_findings(plan, variant)
    yield from schedule_findings(plan, variant)


def _batch(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that a global batch is none of the micro batch's, or that accumulation was said in two ways."""
    local = (variant.micro_batch or 1) * ranks_of(plan)
    accumulation = int(plan.settings["accumulation"])
    if accumulation < 1:
        yield Finding(
            message=f"accumulation is {accumulation}", hint="--set accumulation=1", fatal=True, keys=("accumulation",)
        )
    elif variant.global_batch and variant.global_batch % local:
        yield Finding(
            message=f"global batch {variant.global_batch} is no multiple of micro batch × ranks = {local}",
            hint=f"--set global_batch={max(1, variant.global_batch // local) * local}",
            fatal=True,
            keys=("global_batch", "micro_batch", "cpu_ranks", "n_gpus", "nnodes"),
        )
    elif variant.global_batch and is_set(plan, "accumulation") and variant.global_batch != local * accumulation:
        yield Finding(
            message=f"global batch {variant.global_batch} is not micro batch × ranks × accumulation = "
            f"{local * accumulation}",
            hint="leave accumulation out",
            fatal=True,
            keys=("global_batch", "micro_batch", "accumulation", "cpu_ranks", "n_gpus", "nnodes"),
        )


def is_set(plan: RunPlan, name: str) -> bool:
    """Return whether somebody set a value over its recipe's."""
    return not plan.origins.get(f"settings.{name}", "recipe").startswith("recipe")


def _strategy(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    strategy, gpus = str(plan.settings["strategy"]), plan.place.gpus_per_node
    if strategy != "ddp" and not gpus:
        yield Finding(
            message=f"accelerate trains with {strategy} on GPUs alone; on a CPU it would silently be DDP",
            hint="--set strategy=ddp",
            fatal=True,
            keys=("strategy", "n_gpus"),
        )
    elif strategy != "ddp" and gpus * plan.place.nodes < 2 and not plan.settings["offload"]:
        yield Finding(message=f"one GPU leaves {strategy} nothing to share out", hint="--set strategy=ddp")
    if not gpus and ranks_of(plan) > 1 and plan.launcher == "accelerate":
        several = "CPU ranks of several nodes" if plan.place.nodes > 1 else "several CPU ranks"
        hint = "leave launcher out: torchrun does it"
        yield Finding(
            message=f"accelerate starts {several} through MPI alone",
            hint=hint,
            fatal=True,
            keys=("launcher", "cpu_ranks"),
        )
    if gpus and is_set(plan, "cpu_ranks"):
        yield Finding(message="cpu_ranks mean nothing where GPUs train: they are the ranks", hint="leave it out")
    unused = [name for name, where in _STRATEGIES.items() if strategy not in where and is_set(plan, name)]
    if unused:
        yield Finding(message=f"{', '.join(unused)} mean nothing to strategy {strategy}", hint="leave it out")


def _precision(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    settings, precision = plan.settings, variant.precision
    if precision in ("FP8", "FP16") and not plan.place.gpus_per_node:
        yield Finding(
            message=f"{precision} needs a GPU", hint="--precision BF16", fatal=True, keys=("precision", "n_gpus")
        )
    if precision == "FP16" and settings["method"] == "full" and settings["dtype"] != "float32":
        what = f"FP16 trains float32 weights: gradients of {settings['dtype']} ones cannot be scaled"
        yield Finding(message=what, hint="--set dtype=float32", fatal=True, keys=("precision", "dtype"))
    if precision != "FP8":
        return
    if settings["method"] != "full":
        yield Finding(
            message="Transformer Engine's FP8 takes matrices of multiples of 16, which LoRA's are not",
            hint="--precision BF16, or --set method=full",
            fatal=True,
            keys=("precision", "method"),
        )
    if settings["strategy"] == "fsdp" and settings["fsdp_version"] == 1:
        what = "accelerate wants model and optimizer together for FP8, and the Trainer makes FSDP1's optimizer later"
        yield Finding(
            message=what, hint="--set fsdp_version=2", fatal=True, keys=("precision", "strategy", "fsdp_version")
        )
    if settings["gradient_checkpointing"]:
        what = "what gradient checkpointing computes again, in the backward pass, would not be in FP8"
        yield Finding(
            message=what,
            hint="--set gradient_checkpointing=false, with a smaller --batch-size",
            fatal=True,
            keys=("precision", "gradient_checkpointing"),
        )
    tokens = (variant.micro_batch or 1) * (variant.seq_len or 1)
    if tokens % 16:
        what = f"FP8 takes a multiple of 16 tokens per GPU and forward pass, not {tokens}"
        yield Finding(
            message=what, hint="--seq-len of a multiple of 16", fatal=True, keys=("precision", "micro_batch", "seq_len")
        )


def _four_bits(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    if settings["method"] != "qlora":
        return
    if settings["architecture"] == "gpt_oss":
        what = "QLoRA puts linear layers into 4 bits, and GPT-OSS's experts are none"
        yield Finding(message=what, hint="--set method=lora", fatal=True, keys=("method", "architecture"))
    if settings["strategy"] == "ddp":
        return
    if not settings["model_id"]:
        what = f"{settings['strategy']} shards four-bit weights as they are loaded, and random ones are not"
        yield Finding(
            message=what,
            hint="--set strategy=ddp, or real weights with model_id",
            fatal=True,
            keys=("method", "strategy", "model_id"),
        )
    if settings["dtype"] == "float32":
        what = f"{settings['strategy']} shards four-bit weights only where all others have 16 bits"
        yield Finding(message=what, hint="--set dtype=bfloat16", fatal=True, keys=("method", "strategy", "dtype"))


def _data(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    settings = plan.settings
    if (variant.seq_len or 0) == 1:
        what = "a sequence of one token has none to be predicted"
        yield Finding(message=what, hint="--seq-len 2 or more", fatal=True, keys=("seq_len",))
    for name in PATHS:
        path = str(settings[name])
        if path.startswith((".", "~")) or (name == "config_file" and path and not path.startswith("/")):
            what = f"{name} '{path}' counts from the run's own folder"
            yield Finding(message=what, hint=f"--set {name}=/its/whole/path", fatal=True, keys=(name,))
    if settings["dataset"] and not (settings["model_id"] or settings["tokenizer_id"]):
        what = f"no tokenizer is set for data set {settings['dataset']}"
        yield Finding(
            message=what,
            hint="--set tokenizer_id=REPOSITORY or FOLDER",
            fatal=True,
            keys=("dataset", "model_id", "tokenizer_id"),
        )
    unused = [name for name in ("tokenizer_id", "chat_template", "dataset_field") if is_set(plan, name)]
    if unused and not settings["dataset"]:
        yield Finding(message=f"{', '.join(unused)} mean nothing to made-up tokens", hint="--set dataset=")
