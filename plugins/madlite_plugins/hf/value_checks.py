"""Values that no training takes: found before the packages are loaded that would say so."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.choices import unknown_choice

# transformers' decoders whose configuration takes a shape of ours; config_file and model_id take any
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LIKE_LLAMA = (
    *("llama", "cohere", "cohere2", "cwm", "diffllama", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text"),
    *("granite", "helium", "hyperclovax", "internlm3", "ministral", "ministral3", "mistral", "olmo", "olmo2", "olmo3"),
    *("qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "vaultgemma"),
)
_OTHERS = (
    *("apertus", "arcee", "bloom", "cohere2_moe", "dbrx", "deepseek_v2", "deepseek_v3", "ernie4_5_moe", "falcon"),
    *("falcon_h1", "falcon_mamba", "flex_olmo", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neo"),
    *("gpt_neox", "gpt_oss", "gptj", "granitemoe", "granitemoehybrid", "granitemoeshared", "jamba", "jetmoe", "lfm2"),
    *("llama4_text", "mamba", "mamba2", "minimax", "mixtral", "mpt", "nemotron", "olmoe", "opt", "persimmon", "phi"),
    *("phi3", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "starcoder2"),
    *("zamba", "zamba2"),
)
_NAMES = {
    **dict.fromkeys(_LIKE_LLAMA, (*_PROJECTIONS, "embed_tokens", "lm_head")),
    "gpt_oss": (*_PROJECTIONS[:4], "embed_tokens", "lm_head"),
}
_ATTENTION = re.compile(r"eager|sdpa|flex_attention|flash_attention_[2-9]|[\w.-]+/\S+|paged\|\S+")
_SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
)


def value_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with single values of a plan."""
    settings = plan.settings
    if has_our_shape(plan) and settings["architecture"] not in (*_LIKE_LLAMA, *_OTHERS):
        what = f"architecture '{settings['architecture']}' is none that takes a shape of ours"
        hint = "--set architecture=llama; any other by --set config_file=/its/config.json"
        yield Finding(message=what, hint=hint, fatal=True, keys=("architecture",))
    if not _ATTENTION.fullmatch(str(settings["attention"])):
        hint = "one of sdpa, eager, flex_attention, flash_attention_2, or a kernel's OWNER/NAME"
        yield Finding(
            message=f"attention '{settings['attention']}' is unknown", hint=hint, fatal=True, keys=("attention",)
        )
    yield from unknown_choice("lr_schedule", settings["lr_schedule"], _SCHEDULES)
    for name in ("lr", "weight_decay", "lr_warmup_steps"):
        if float(settings[name]) < 0:
            yield Finding(
                message=f"{name} is {settings[name]}, below 0", hint=f"--set {name}=0 or more", fatal=True, keys=(name,)
            )
    if settings["method"] != "full":
        yield from _lora(plan)


def has_our_shape(plan: RunPlan) -> bool:
    """Return whether a plan's model has the shape that its settings say: neither weights nor a file have another."""
    return not plan.settings["model_id"] and not plan.settings["config_file"]


def _lora(plan: RunPlan) -> Iterator[Finding]:
    settings, rank = plan.settings, int(plan.settings["lora_r"])
    if rank < 1:
        yield Finding(message=f"lora_r is {rank}", hint="--set lora_r=8", fatal=True, keys=("lora_r",))
    elif rank > int(settings["hidden_size"]) and (has_our_shape(plan) or rank > _WIDEST):
        what = f"lora_r {rank} is above the model's hidden size"
        yield Finding(
            message=f"{what}, {settings['hidden_size']}",
            hint="--set lora_r=8",
            fatal=True,
            keys=("lora_r", "hidden_size"),
        )
    if not 0 <= float(settings["lora_dropout"]) < 1:
        what = f"lora_dropout is {settings['lora_dropout']}, and a share of what is dropped is from 0 to below 1"
        yield Finding(message=what, hint="--set lora_dropout=0.1", fatal=True, keys=("lora_dropout",))
    yield from _targets(plan)


_WIDEST = 65536  # of all published weights: a rank above is wrong for those whose shape is not known here


def _targets(plan: RunPlan) -> Iterator[Finding]:
    """Yield targets that the model has no layer of; PEFT searches for them at the end of layers' names."""
    text = str(plan.settings["lora_targets"])
    targets = [part.strip() for part in text.split(",")]
    names = _NAMES.get(str(plan.settings["architecture"]), ()) if has_our_shape(plan) else ()
    if not all(targets):
        what = f"lora_targets '{text}' names no layer"
        yield Finding(message=what, hint="--set lora_targets=q_proj,v_proj", fatal=True, keys=("lora_targets",))
    elif names and not any(target.rpartition(".")[2] in names for target in targets):
        what = f"lora_targets '{text}' are no layers of {plan.settings['architecture']}"
        yield Finding(message=what, hint=f"of {', '.join(names)}", fatal=True, keys=("lora_targets", "architecture"))
