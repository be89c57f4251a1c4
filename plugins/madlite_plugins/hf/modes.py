"""What a run is called: the mode of its row follows what it trains."""

from __future__ import annotations

from collections.abc import Mapping

from madlite import Request, RunSpec, Scalar

LORA, PRETRAIN = "HF_finetune_lora", "HF_pretrain"  # MAD's names of its own runs


def requested_values(draft: RunSpec, request: Request) -> dict[str, Scalar]:
    """Return a draft's settings with what card, tag and command put over them, as they were spelled."""
    given = request.card.recipe
    card: Mapping[str, Scalar] = given if isinstance(given, dict) else {}
    return {**draft.settings, **card, **request.settings}


def mode_of(mode: str, values: Mapping[str, Scalar]) -> str:
    """Return the mode of what is trained; the recipe's `mode` where that is one of MAD's and still true.

    All weights of a model that comes with some are fine-tuned; all random ones are pretrained.
    """
    method, made = str(values["method"]), not values["model_id"]
    if (mode, method) == (LORA, "lora") or ((mode, method) == (PRETRAIN, "full") and made):
        return mode
    full = "pretrain" if made else "finetune_fw"
    return {"lora": "finetune_lora", "qlora": "finetune_qlora", "full": full}.get(method, mode)
