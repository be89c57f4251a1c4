"""Full sequences of tokens: made up, or out of the file that pack.py wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pack import PACKED

TOKENS = 61  # how many of the vocabulary made-up data uses
FEWEST = 1 << 16


class MadeUp(torch.utils.data.Dataset):
    """Sequences that walk through a few tokens in steps of one width: each token decides the next."""

    def __init__(self, length: int, seq_len: int, vocab_size: int, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.length = length
        self.seq_len = seq_len
        self.tokens = torch.randperm(vocab_size, generator=chance)[:TOKENS]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, width = index % TOKENS, 1 + index % 7
        ids = self.tokens[(start + width * torch.arange(self.seq_len)) % len(self.tokens)]
        return {"input_ids": ids, "labels": ids.clone()}


class Packed(torch.utils.data.Dataset):
    """The sequences of a file, again from its beginning once all were given."""

    def __init__(self, length: int, seq_len: int, path: Path) -> None:
        self.length = length
        count = path.stat().st_size // 4 // seq_len
        self.rows = torch.from_file(str(path), size=count * seq_len, dtype=torch.int32).view(count, seq_len)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.rows[index % len(self.rows)].long()
        return {"input_ids": ids, "labels": ids.clone()}


def sequences(values: dict[str, Any], per_step: int, steps: int) -> torch.utils.data.Dataset:
    """Return as many sequences as whole steps need: no epoch ends within a run, with a smaller batch."""
    length = per_step * max(steps, -(-FEWEST // per_step))
    if values["dataset"]:
        return Packed(length, values["seq_len"], Path(PACKED))
    return MadeUp(length, values["seq_len"], values["vocab_size"], values["seed"])
