"""Make what torchtune reads before it trains: a tokenizer, text and weights, made up, the same for the same seed.

So a benchmark needs neither a download nor an account.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

# The special tokens of Llama 3 that torchtune asks its tokenizer for; here they follow the 256 of the bytes.
SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
SPARE = 64  # samples, so that what does not fill a batch of every rank is not missed


def write_tokenizer(folder: Path) -> None:
    """Write a tiktoken file of one token per byte, and the special tokens as torchtune reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (folder / "tokenizer.model").write_text("".join(lines), encoding="ascii")
    special = [{"content": text, "id": 256 + place} for place, text in enumerate(SPECIAL)]
    (folder / "special_tokens.json").write_text(json.dumps({"added_tokens": special}), encoding="utf-8")


def write_text(file: Path, samples: int, length: int, seed: int) -> None:
    """Write tasks of invented words, enough for so many samples, or sequences of `length` tokens where it is not 0.

    A byte is a token at most, and the prompt around a task is not counted: torchtune fills more sequences, not fewer.
    """
    rows, full, filled = [], 0, 0
    for row in invent(seed):
        rows.append(row)
        size = min(sum(map(len, row.values())), length)
        full, filled = (full, filled + size) if filled and filled + size <= length else (full + 1, size)
        if full > samples + SPARE:
            break
    save(file, rows)


def invent(seed: int) -> Iterator[dict[str, str]]:
    """Yield tasks in the columns of Alpaca, and of MAD's WikiText: short sentences, common words more often."""
    chance = random.Random(seed)  # noqa: S311
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    while True:
        task, answer = (" ".join(chance.choices(words, weights, k=k)).capitalize() + "." for k in (8, 60))
        yield {"instruction": task, "input": task, "output": answer}


def write_wikitext(folder: Path, pattern: str, file: Path, samples: int) -> None:
    """Write the first rows of WikiText as they are: headings and empty rows too, as AMD's data set class has them."""
    from datasets import load_dataset

    files = [str(path) for path in sorted(folder.glob(pattern))]
    rows = load_dataset("parquet", data_files=files, split="train")
    save(file, [{"input": row["text"]} for row in islice(rows, samples + SPARE)])


def save(file: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as one JSON list."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows), encoding="utf-8")


def write_weights(file: Path, config: Path, dtype: str, seed: int) -> None:
    """Write random weights of the configuration's model, without its adapter, as torchtune saves them."""
    import torch
    from omegaconf import OmegaConf
    from torchtune.config import instantiate

    adapter = ("lora_", "apply_lora", "quantize_base")
    model = {key: value for key, value in OmegaConf.load(config).model.items() if not key.startswith(adapter)}
    model["_component_"] = model["_component_"].replace(".lora_", ".")
    torch.manual_seed(seed)
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        weights = instantiate(OmegaConf.create(model)).state_dict()
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({name: tensor.cpu() for name, tensor in weights.items()}, file)


def main() -> None:
    """Write what the options ask for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokenizer", type=Path, help="folder for tokenizer.model")
    options.add_argument("--text", type=Path, help="JSON file of tasks")
    options.add_argument("--wikitext", type=Path, help="folder of WikiText, which the tasks are taken from")
    options.add_argument("--files", default="**/*.parquet", help="pattern of that folder's files")
    options.add_argument("--samples", type=int, default=0, help="how many are read")
    options.add_argument("--length", type=int, default=0, help="tokens of each, where samples are joined")
    options.add_argument("--weights", type=Path, help="file for random weights")
    options.add_argument("--config", type=Path, help="configuration that names the model")
    options.add_argument("--dtype", default="float32", help="of the weights")
    options.add_argument("--seed", type=int, default=42)
    asked = options.parse_args()
    if asked.tokenizer:
        write_tokenizer(asked.tokenizer)
    if asked.text and asked.wikitext:
        write_wikitext(asked.wikitext, asked.files, asked.text, asked.samples)
    elif asked.text:
        write_text(asked.text, asked.samples, asked.length, asked.seed)
    if asked.weights:
        write_weights(asked.weights, asked.config, asked.dtype, asked.seed)


if __name__ == "__main__":
    main()
