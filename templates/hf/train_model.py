"""The model of a run: random, of a shape, or real weights; with LoRA beside frozen weights where that is asked for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

ON_GPU = torch.cuda.is_available()
# settings → what transformers calls them; 0 leaves the architecture's own
SHAPE = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "head_dim": "head_dim",
    "experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "sliding_window": "sliding_window",
}


def build_model(values: dict[str, Any]) -> torch.nn.Module:
    """Return the model to train, on this rank's device or where its sharding takes it from."""
    folder = os.environ.get("MADLITE_WEIGHTS", "")
    model = load_model(values, folder) if folder else make_model(values)
    model.config.use_cache = False
    if values["precision"] == "FP8" and values["strategy"] == "fsdp":
        compute_in_fp8(model)
    return model if values["method"] == "full" else add_lora(model, values)


def device() -> torch.device:
    """Return this rank's device."""
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if ON_GPU else "cpu")


def make_model(values: dict[str, Any]) -> PreTrainedModel:
    """Return a random model, the same on every rank: they have one seed."""
    dtype = getattr(torch, values["dtype"])
    torch.set_default_dtype(dtype)
    with device():
        model = AutoModelForCausalLM.from_config(make_config(values), attn_implementation=values["attention"])
    torch.set_default_dtype(torch.float32)
    if model.dtype != dtype:
        model.to(dtype)
    if values["method"] == "qlora":
        quantise(model, values)
    return model


def make_config(values: dict[str, Any]) -> Any:
    """Return the configuration of a random model: a file's, else of the shape that was asked for."""
    more = {"max_position_embeddings": values["seq_len"], "use_cache": False}
    if values["config_file"]:
        given = json.loads(Path(values["config_file"]).read_text(encoding="utf-8"))
        for name in ("quantization_config", "dtype", "torch_dtype"):  # those of weights
            given.pop(name, None)
        longest = max(values["seq_len"], given.get("max_position_embeddings") or 0)
        return AutoConfig.for_model(**{**given, **more, "max_position_embeddings": longest})
    shape = {theirs: values[ours] for ours, theirs in SHAPE.items() if values[ours]}
    return AutoConfig.for_model(values["architecture"], **shape, **more)


def load_model(values: dict[str, Any], folder: str) -> PreTrainedModel:
    """Return real weights; where FSDP shards them, accelerate's settings make all ranks but the first load none."""
    dtype = getattr(torch, values["dtype"])
    release = tuple(map(int, transformers.__version__.split(".")[:2]))
    named = "dtype" if release >= (4, 56) else "torch_dtype"
    more: dict[str, Any] = {named: dtype, "attn_implementation": values["attention"]}
    packed = getattr(AutoConfig.from_pretrained(folder), "quantization_config", None) or {}
    if packed.get("quant_method") == "mxfp4":
        more["quantization_config"] = transformers.Mxfp4Config(dequantize=True)  # four bits cannot be trained
    if values["method"] == "qlora":
        more["quantization_config"] = four_bits(values)
        if values["strategy"] == "ddp":
            more["device_map"] = {"": device()}
    return AutoModelForCausalLM.from_pretrained(folder, **more)


def compute_in_fp8(model: PreTrainedModel) -> None:
    """Make each forward pass one of Transformer Engine's FP8.

    accelerate turns the layers into Transformer Engine's, and leaves this out where fully_shard has the model (seen in
    1.15): then they would silently compute in bfloat16.
    """
    from accelerate.utils import TERecipeKwargs
    from accelerate.utils.transformer_engine import apply_fp8_autowrap

    apply_fp8_autowrap(model, TERecipeKwargs())


def storage(values: dict[str, Any]) -> torch.dtype:
    """Return the type that four-bit weights are kept in: FSDP and ZeRO shard only what looks like the other weights."""
    return torch.uint8 if values["strategy"] == "ddp" else getattr(torch, values["dtype"])


def computing(values: dict[str, Any]) -> torch.dtype:
    """Return the type that matrices are multiplied in."""
    return {"BF16": torch.bfloat16, "FP16": torch.float16}.get(values["precision"], torch.float32)


def four_bits(values: dict[str, Any]) -> Any:
    """Return QLoRA's quantisation of real weights (https://arxiv.org/abs/2305.14314)."""
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=computing(values),
        bnb_4bit_quant_storage=storage(values),
    )


def quantise(model: PreTrainedModel, values: dict[str, Any]) -> None:
    """Put the linear layers of a random model into four bits, all but the one that gives the logits."""
    import bitsandbytes as bnb

    kinds = {"compute_dtype": computing(values), "quant_type": "nf4", "quant_storage": storage(values)}
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not torch.nn.Linear or child is head:
                continue
            small = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=child.bias is not None, **kinds)
            weight = child.weight.detach().cpu()
            of_weight = {"quant_type": "nf4", "quant_storage": kinds["quant_storage"], "compress_statistics": True}
            small.weight = bnb.nn.Params4bit(weight, requires_grad=False, **of_weight)
            small.bias = child.bias
            setattr(parent, name, small.to(device()))
    model.is_loaded_in_4bit = True  # PEFT asks for it


def add_lora(model: PreTrainedModel, values: dict[str, Any]) -> torch.nn.Module:
    """Return the frozen model with LoRA weights to train; they have its type where FSDP1 makes one tensor of both."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=values["lora_r"],
        lora_alpha=values["lora_alpha"],
        lora_dropout=values["lora_dropout"],
        target_modules=[name.strip() for name in values["lora_targets"].split(",")],
        task_type="CAUSAL_LM",
    )
    flattened = values["strategy"] == "fsdp" and values["fsdp_version"] == 1
    return get_peft_model(model, lora, autocast_adapter_dtype=not flattened)


def tell_parameters(model: torch.nn.Module) -> None:
    """Print how many parameters there are, and how many of them are trained, in PEFT's words."""
    if hasattr(model, "print_trainable_parameters"):
        model.print_trainable_parameters()
        return
    whole = sum(parameter.numel() for parameter in model.parameters())
    sys.stdout.write(f"trainable params: {whole:,} || all params: {whole:,} || trainable%: 100.0000\n")
    sys.stdout.flush()
