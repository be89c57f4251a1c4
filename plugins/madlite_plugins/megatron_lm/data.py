"""What a plan's script reads: the tokenizer's repository, and the data that AMD's document names.

Data: https://rocm.docs.amd.com, Training a model with Megatron-LM, v25.4, "Dataset options".
"""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Asset, RunPlan
from madlite_plugins.tokenizers import GATED, REPOSITORY, TOKENIZER_FILES

DEEPSEEK_SCRIPT = "examples/deepseek_v2/train_deepseekv2.sh"
_DEEPSEEK = (
    "https://atp-modelzoo-wlcb-pai.oss-cn-wulanchabu.aliyuncs.com/release/models/pai-megatron-patch/deepseek-datasets/"
)
_DEEPSEEK_FILES = (
    "SlimPajama.json",
    "alpaca_zh-train.json",
    "alpaca_zh-valid.json",
    "mmap_deepseekv2_datasets_text_document.bin",
    "mmap_deepseekv2_datasets_text_document.idx",
)
_FILES = (".model", ".json")


def needed(plan: RunPlan) -> Iterator[Asset]:
    """Yield the tokenizer, which made-up data needs too, and data unless the user has some."""
    ref = tokenizer(plan)
    if REPOSITORY.fullmatch(ref) and not ref.endswith(_FILES):
        yield Asset(kind="tokenizer", ref=ref, gated=ref.startswith(GATED), files=TOKENIZER_FILES)
    settings = plan.settings
    own = settings.get("data_path") or settings.get("data_dir") or plan.env.get("DATA_PATH") or plan.env.get("DATA_DIR")
    if settings["mock_data"] or own:
        return
    if dataset := str(settings.get("dataset", "")):
        slug = ref.strip("/").replace("/", "--") or "tokenizer"
        yield Asset(kind="dataset", ref=dataset, source="made", path=f"megatron_lm/{dataset}/{slug}", env="DATA_DIR")
    elif settings["script"] == DEEPSEEK_SCRIPT:
        for name in _DEEPSEEK_FILES:
            path = f"megatron_lm/deepseek-datasets/{name}"
            yield Asset(kind="dataset", ref=f"{_DEEPSEEK}{name}", source="url", path=path, env="DATA_DIR")


def tokenizer(plan: RunPlan) -> str:
    """Return the tokenizer's repository or place."""
    return str(plan.settings["tokenizer_model"] or plan.settings["tokenizer_repo"])
