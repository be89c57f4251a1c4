"""Make what torchtitan reads before it trains: a tokenizer and text, both made up, the same for the same seed.

So a benchmark needs neither a download nor an account.  With --c4 it makes a data set of c4's files that are here.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
from pathlib import Path

BOS, EOS = "<|begin|>", "<|end|>"
LINES = 4000
WORDS_PER_LINE = 80
C4 = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: "*.json.gz"
---
"""


def byte_letters() -> list[str]:
    """Return the 256 letters that stand for bytes 0 to 255 in a byte-level tokenizer.

    Its definition: a printable byte of Latin-1 stands for itself, the others take the letters from U+0100 on in turn.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of one token per byte and two special ones: 258 tokens, which any model's vocabulary holds."""
    special = [
        {"id": 256 + i, "content": text, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for i, text in enumerate((BOS, EOS))
    ]
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary | {BOS: 256, EOS: 257}, "merges": []},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}), encoding="utf-8")


def write_tiktoken(folder: Path, words: int) -> None:
    """Write a tiktoken file of one token per byte, padded so that torchtitan counts `words` tokens.

    Before 0.2 a model's vocabulary is as large as its tokenizer's: the file's tokens, and 256 special ones that
    torchtitan adds.  No two tokens join to a padding one, so text never has any.
    """
    padding = (b"\xff\xff" + n.to_bytes(4, "big") for n in range(words - 2 * 256))
    tokens = [bytes([byte]) for byte in range(256)] + list(padding)
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / "tokenizer.model").write_text("".join(lines), encoding="ascii")


def link_c4(source: Path, folder: Path) -> None:
    """Make a data set with the one configuration `en`, as c4 has it, of the files of c4 that are here.

    c4's own description names files that are not, and so nothing could read it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(C4, encoding="utf-8")
    for file in sorted((source / "en").glob("c4-train.*.json.gz")):
        (folder / file.name).unlink(missing_ok=True)
        (folder / file.name).symlink_to(file.resolve())


def write_text(folder: Path, seed: int) -> None:
    """Write JSON lines with key `text`: sentences of invented words, common ones more often, about 2 MB."""
    chance = random.Random(seed)  # noqa: S311
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(1500)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data.json").open("w", encoding="utf-8") as file:
        for _ in range(LINES):
            text = " ".join(chance.choices(words, weights, k=WORDS_PER_LINE)).capitalize()
            file.write(json.dumps({"text": f"{text}."}) + "\n")


def main() -> None:
    """Write what the options ask for."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokenizer", type=Path, help="folder for tokenizer.json")
    options.add_argument("--tiktoken", type=int, metavar="WORDS", help="write tokenizer.model, of so many tokens")
    options.add_argument("--c4", nargs=2, type=Path, metavar=("SOURCE", "FOLDER"), help="make a data set of c4's files")
    options.add_argument("--text", type=Path, help="folder for data.json")
    options.add_argument("--seed", type=int, default=42)
    asked = options.parse_args()
    if asked.c4:
        link_c4(*asked.c4)
    if asked.tokenizer and asked.tiktoken:
        write_tiktoken(asked.tokenizer, asked.tiktoken)
    elif asked.tokenizer:
        write_tokenizer(asked.tokenizer)
    if asked.text:
        write_text(asked.text, asked.seed)


if __name__ == "__main__":
    main()
