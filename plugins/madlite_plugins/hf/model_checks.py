"""What speaks against a model: its shape, its attention, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan, Variant
from madlite_plugins.hf.sizes import GIB, bytes_per_gpu, count_weights, memory_of

SHAPE = ("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "vocab_size")
_MUCH_FOR_A_CPU = 100_000_000
_MANY_SCORES = 8 * GIB
# max_position_embeddings of the published config.json: by how a model is called, and by its repository
_POSITIONS = {
    "Llama-2-": 4096,
    "Llama-3.1-": 131072,
    "GPT-OSS-": 131072,
    "meta-llama/Llama-2-": 4096,
    "meta-llama/Meta-Llama-3-": 8192,
    "meta-llama/Meta-Llama-3.1-": 131072,
    "meta-llama/Llama-3.": 131072,
    "openai/gpt-oss-": 131072,
}


def model_findings(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield what is wrong with the model of a plan."""
    made = not plan.settings["model_id"]
    shape = [*_shape(plan)] if made and not plan.settings["config_file"] else []
    yield from shape
    if any(finding.fatal for finding in shape):
        return
    yield from _length(plan, variant)
    yield from _attention(plan, variant)
    if not made:
        yield from _weights(plan, variant)
    if not plan.settings["config_file"]:
        yield from _memory(plan, variant)


def _shape(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    for name in SHAPE:
        if name not in ("heads", "kv_heads") and int(settings[name]) < 1:
            yield Finding(message=f"{name} is {settings[name]}", hint=f"--set {name}=N", fatal=True, keys=(name,))
    heads, kv_heads, hidden = (int(settings[name]) for name in ("heads", "kv_heads", "hidden_size"))
    whole = int(settings["head_dim"]) > 0 or (heads > 0 and hidden % heads == 0)
    if min(heads, kv_heads) < 1 or heads % kv_heads or not whole:
        yield Finding(
            message=f"{heads} heads fit neither hidden_size {hidden} nor {kv_heads} kv_heads",
            hint="hidden_size is a multiple of heads, heads of kv_heads",
            fatal=True,
            keys=("heads", "kv_heads", "hidden_size", "head_dim"),
        )
    if int(settings["experts_per_token"]) > int(settings["experts"]):
        what = f"a token sees {settings['experts_per_token']} of {settings['experts']} experts"
        yield Finding(
            message=what,
            hint="--set experts_per_token=N, at most experts",
            fatal=True,
            keys=("experts_per_token", "experts"),
        )


def _attention(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    attention, settings = plan.settings["attention"], plan.settings
    if attention == "sdpa" and settings["architecture"] == "gpt_oss":
        hint = "--set attention=flex_attention, or eager"
        yield Finding(
            message="GPT-OSS has no attention by sdpa, which does not support sinks",
            hint=hint,
            fatal=True,
            keys=("attention", "architecture"),
        )
    if attention == "flex_attention" and not plan.place.gpus_per_node:
        hint = "--set attention=eager"
        yield Finding(
            message="flex_attention has no backward pass on a CPU", hint=hint, fatal=True, keys=("attention", "n_gpus")
        )
    scores = 2 * (variant.micro_batch or 1) * int(settings["heads"]) * (variant.seq_len or 1) ** 2
    if attention == "eager" and scores > _MANY_SCORES:
        yield Finding(
            message=f"eager attention holds all scores: {scores / GIB:.0f} GiB for each layer, more than once",
            hint="--set attention=flex_attention or sdpa, or a smaller --batch-size",
        )


def _weights(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    ours = [name for name in SHAPE if not plan.origins.get(f"settings.{name}", "recipe").startswith("recipe")]
    if ours:
        what = f"{', '.join(ours)} are not read: the weights of {plan.settings['model_id']} have a shape of their own"
        yield Finding(message=what, hint="--set model_id= makes a random model of that shape")


def _length(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    """Yield that a sequence is longer than the positions a model has, where they are known."""
    model = str(plan.settings["model_id"] or variant.model)
    most = next((n for name, n in _POSITIONS.items() if model.startswith(name)), 0)
    if not plan.settings["config_file"] and 0 < most < (variant.seq_len or 0):
        what = f"{model} takes {most} tokens at most, and here are {variant.seq_len}"
        yield Finding(message=what, hint=f"--seq-len {most}", fatal=True, keys=("seq_len", "model_id", "model"))


def _memory(plan: RunPlan, variant: Variant) -> Iterator[Finding]:
    if not plan.place.gpus_per_node:
        if count_weights(plan.settings) > _MUCH_FOR_A_CPU:
            what = f"{variant.model} on a CPU takes very long and much memory"
            yield Finding(message=what, hint="--set recipe=tiny_lora")
        return
    needed, there = bytes_per_gpu(plan), memory_of(plan)
    logits = 4 * (variant.micro_batch or 1) * (variant.seq_len or 1) * int(plan.settings["vocab_size"])
    if there and logits > there:
        what = f"the logits of a forward pass take {logits / GIB:.0f} GiB alone, and a GPU has {there / GIB:.0f}"
        yield Finding(message=what, hint="a smaller --batch-size, or a shorter --seq-len")
    if there and needed > there:
        hint = "more GPUs, --set offload=true" if plan.settings["strategy"] != "ddp" else "--set strategy=fsdp"
        yield Finding(
            message=f"weights and what trains them take {needed / GIB:.0f} GiB on each GPU, which has "
            f"{there / GIB:.0f}, before any activation",
            hint=hint,
        )
