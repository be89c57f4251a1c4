"""What a tokenizer is made of, in a repository of the Hugging Face hub."""

from __future__ import annotations

import re

REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
TOKENIZER_FILES = (
    "tokenizer*",
    "*.model",  # of sentencepiece or tiktoken, some below original/
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "config.json",  # which class it is
    "*.py",  # where that class comes with the model
)
GATED = ("meta-llama/", "mistralai/Mixtral-")
"""What the names of gated repositories begin with."""
