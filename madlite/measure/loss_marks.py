"""Looks for what lines say of the loss, whoever reads their steps: that it is NaN, and of how many tokens it chooses.

A reader whose pattern takes digits alone sees no step where the loss is NaN, and a script's log may have no reader.
"""

from __future__ import annotations

import re

from madlite.measure.lines import Block, lines_with
from madlite.measure.loss_words import is_nan_loss
from madlite.measure.rules import plain

_VOCABULARY = re.compile(r"\b(?:padded_)?vocab_size\b[\"']?\s{0,4}(?:[:=]|\.{2,80})\s{0,4}(\d{2,9})\b")
_LONGEST = 300  # characters of such a line that are kept


class LossMarks:
    """Keeps the first line with a loss of NaN, and the size of the vocabulary; of several models the largest."""

    def __init__(self) -> None:
        self.nan = ""
        self.vocabulary = 0

    def feed(self, block: Block) -> None:
        """Take lines in."""
        if not self.nan:
            small = block.text.lower() if "nan" in block.text or "NaN" in block.text or "NAN" in block.text else ""
            if "loss" in small:
                self.nan = next((plain(line)[:_LONGEST] for line in block.lines if _is_nan(line)), "")
        if "vocab_size" in block.text:
            found = (_VOCABULARY.search(line) for _, line in lines_with(block.text, "vocab_size"))
            self.vocabulary = max([self.vocabulary, *(int(one[1]) for one in found if one)])


def _is_nan(line: str) -> bool:
    small = line.lower()
    return "nan" in small and "loss" in small and is_nan_loss(plain(line))
