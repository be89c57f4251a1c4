"""The configuration that a recipe prints before it trains, as YAML: which of it is worth keeping."""

from __future__ import annotations

import re

_BEGIN = re.compile(r"Running \w+ with resolved config:")
_KEY = re.compile(r"( {0,8})([A-Za-z_]\w*):(?: (.*))?$")
_NAMES = {
    "batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_steps_per_epoch": "steps",
    "epochs": "epochs",
    "log_every_n_steps": "log_freq",
    "dtype": "dtype",
    "tokenizer.max_seq_len": "seq_len",
    "dataset.packed": "packed",
    "lr_scheduler.num_warmup_steps": "warmup_steps",
    "tensor_parallel_dim": "tp",
    "context_parallel_dim": "cp",
    "data_parallel_shard_dim": "dp_shard",
    "data_parallel_replicate_dim": "dp_replicate",
}


def begins_config(text: str) -> bool:
    """Return whether a recipe begins to print its configuration with this line."""
    return _BEGIN.search(text) is not None


def _precision(depth: int, key: str, value: str) -> dict[str, str]:
    """Return what linear layers compute in: FP8 where that is switched on, a key that comes after `dtype`."""
    if depth or key not in ("dtype", "enable_fp8_training"):
        return {}
    if key == "dtype":
        return {"precision": value.upper()}
    return {"precision": "FP8"} if value.lower() == "true" else {}


class ConfigLines:
    """Follows the lines; `open` while they are a configuration's."""

    def __init__(self) -> None:
        self.open = False
        self._section = ""

    def begin(self) -> None:
        """Take the next lines as a configuration's, as long as they look like it."""
        self.open, self._section = True, ""

    def read(self, text: str) -> dict[str, str]:
        """Return what a line says under madlite's names; nothing where it is not kept, or the first that is no YAML."""
        found = _KEY.match(text)
        if found is None:
            # a blank line of a rank has its label all the same
            self.open = (not text or text.isspace() or text.lstrip().startswith(("- ", "["))) and self.open
            return {}
        # some labels of ranks end with a space, so that one of the line's own may be taken for it
        depth, key, value = (len(found[1]) + 1) // 2 * 2, found[2], (found[3] or "").strip()
        if depth == 0:
            self._section = "" if value else key
        name = _NAMES.get(key if depth == 0 else f"{self._section}.{key}") if depth in (0, 2) else None
        config = {name: value} if name and value not in ("", "null") else {}
        return {**config, **_precision(depth, key, value)}
