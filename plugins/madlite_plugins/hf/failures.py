"""Failures that come from this stack's packages, weights and data."""

from __future__ import annotations

from madlite import FailureRule

RULES = (
    FailureRule(
        pattern=r"madlite: \S+/train_llama\.py is not here",
        cause="missing_file",
        hint="$TRAIN_LLAMA_ROOT names a folder without it; unset, the run fetches MAD's",
    ),
    FailureRule(
        pattern=r"QLoRA needs bitsandbytes|No module named '?bitsandbytes\b|"
        r"requires? (?:the latest version of )?bitsandbytes",
        cause="missing_package",
        hint="pip install bitsandbytes where the run happens; --set method=lora needs none",
    ),
    FailureRule(
        pattern=r"strategy deepspeed needs deepspeed|DeepSpeed is not installed|No module named '?deepspeed\b",
        cause="missing_package",
        hint="pip install deepspeed where the run happens; --set strategy=fsdp needs none",
    ),
    FailureRule(
        pattern=r"FP8 needs transformer-engine|TransformerEngine is not available|FP8 is not available on this machine|"
        r"No module named '?transformer_engine\b",
        cause="missing_package",
        hint="FP8 needs Transformer Engine: an image of rocm/pytorch-training or NVIDIA's; --precision BF16 needs none",
    ),
    FailureRule(
        pattern=r"No module named '?(transformers|peft|accelerate)\b|"
        r"(?:a training|LoRA) needs (transformers|peft|accelerate), which is not installed",
        cause="missing_package",
        hint="install transformers, peft and accelerate where the run happens",
    ),
    FailureRule(
        pattern=r"Found an incompatible version of torchao",
        cause="package_conflict",
        hint="PEFT refuses this torchao: uninstall it, or install torchao>=0.16",
    ),
    FailureRule(
        pattern=r"gpt_oss needs transformers|model type `?gpt_oss`? but Transformers does not recognize|"
        r"Unrecognized model identifier: gpt_oss",
        cause="package_conflict",
        hint="GPT-OSS needs transformers 4.55 or later: pip install -U transformers",
    ),
    FailureRule(
        pattern=r"GatedRepoError|Access to model \S+ is restricted|You are trying to access a gated repo",
        cause="gated_repository",
        hint="accept the model's terms on its page of huggingface.co, and set MAD_SECRETS_HFTOKEN to a token of yours",
    ),
)
