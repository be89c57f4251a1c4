"""Write train.yaml: a configuration of torchtune, or madlite's base.yaml, with this run's changes and paths.

The file that it starts from is never changed.  What speaks of several ranks goes where there is one tensor-parallel
rank, and FP8 where the run has none: an image's file may have been edited by another run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

PARALLEL = ("tensor_parallel_dim", "tensor_parallel_plan", "data_parallel_shard_dim", "data_parallel_replicate_dim")
FP8 = ("enable_fp8_training", "fp8_recipe_name")
ROWS, TOKENS = 50_000, 4_000_000  # of one copy of an Alpaca data set, at least
READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}


def merge(base: DictConfig, changes: DictConfig) -> DictConfig:
    """Return the base with the changes over it."""
    for key in (*FP8, "metric_logger"):
        base.pop(key, None)
    merged = OmegaConf.merge(base, changes)
    assert isinstance(merged, DictConfig)  # noqa: S101 - what merging two of them gives
    if merged.tensor_parallel_dim == 1:
        for key in PARALLEL:
            merged.pop(key, None)
    return merged


def set_weights(config: DictConfig, weights: Path) -> None:
    """Name the weights and the tokenizer by where they lie: beside each other, or below `original`."""
    checkpointer, tokenizer = config.checkpointer, config.tokenizer
    names = list_files(checkpointer.checkpoint_files, weights)
    folder = next(
        (one for one in (weights, weights / "original") if all((one / name).is_file() for name in names)), None
    )
    if folder is None or not names:
        missing = next((name for name in names if not (weights / name).is_file()), "weights")
        sys.exit(f"madlite: {weights} has no {missing}, which the configuration wants: --set weights_files=")
    checkpointer.checkpoint_dir = str(folder)
    if not isinstance(OmegaConf.to_container(checkpointer)["checkpoint_files"], dict):
        checkpointer.checkpoint_files = names
    tokenizer.path = find_file(tokenizer.path, weights)
    if tokenizer.get("merges_file"):
        tokenizer.merges_file = find_file(tokenizer.merges_file, weights)


def list_files(asked: Any, weights: Path) -> list[str]:
    """Return the names of the checkpoint's files: a list, a pattern, or a number of them."""
    plain = OmegaConf.to_container(asked)
    if isinstance(plain, dict):
        last = str(plain["max_filename"])
        numbers = (str(n).zfill(len(last)) for n in range(1, int(last) + 1))
        return [str(plain["filename_format"]).format(number, last) for number in numbers]
    return sorted(path.name for name in plain for path in weights.glob(name)) if "*" in str(plain) else list(plain)


def find_file(asked: str, weights: Path) -> str:
    """Return where a file lies whose path in the configuration is another machine's: by as much of it as is there."""
    parts = Path(asked).parts
    for at in range(len(parts)):
        if parts[at] != "/" and (found := weights.joinpath(*parts[at:])).is_file():
            return str(found)
    sys.exit(f"madlite: {weights} has no {parts[-1]}, the tokenizer's file: --set weights_files=")


def set_data(config: DictConfig, data: Path, pattern: str, copies: int) -> None:
    """Name the data by its files, over and over where the steps need more than there is."""
    files = sorted(data.glob(pattern)) if pattern else [data]
    if not files or not all(path.is_file() for path in files):
        sys.exit(f"madlite: there is no data file {data / pattern}")
    config.dataset.source = READERS.get(files[0].suffix, "json")
    config.dataset.data_files = [str(path) for path in files] * copies
    config.dataset.split = "train"


def tell_count(recipe: Path) -> None:
    """Say how often this recipe counts the tokens that a tensor-parallel group shares; the reader of the log asks."""
    source = recipe.read_text(encoding="utf-8", errors="replace")
    shared = "tensor_parallel_dim" in source and "non_data_parallel_size" not in source
    often = "by every rank of a tensor-parallel group" if shared else "once"
    print(f"madlite: this torchtune counts each token {often}", flush=True)  # noqa: T201 - for the log


def main() -> None:
    """Write the file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--base", type=Path, required=True)
    options.add_argument("--changes", type=Path, required=True)
    options.add_argument("--recipe", type=Path, help="the distributed recipe that will read it")
    options.add_argument("--weights", type=Path, required=True)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--files", default="", help="pattern of the data's files, where --data is a folder")
    options.add_argument("--copies", type=int, default=0, help="how often they are read; 0: as the samples need it")
    options.add_argument("--samples", type=int, default=0, help="sequences that all steps read")
    options.add_argument("--length", type=int, default=0, help="tokens of each, where samples are joined")
    asked = options.parse_args()
    config = merge(DictConfig(OmegaConf.load(asked.base)), DictConfig(OmegaConf.load(asked.changes)))
    set_weights(config, asked.weights)
    needed = -(-asked.samples * asked.length // TOKENS) if asked.length else -(-asked.samples // ROWS)
    set_data(config, asked.data, asked.files, asked.copies or max(1, needed))
    OmegaConf.save(config, "train.yaml")
    if asked.recipe:
        tell_count(asked.recipe)


if __name__ == "__main__":
    main()
