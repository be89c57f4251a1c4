"""Secrets: which texts are some, and how they are kept out of everything that is written.

By name: a variable, a key or a flag says so (`names`).  By shape: a URL's password, a header, a token (`shapes`).
What is known of either is masked as it stands and in URLs, JSON, shells and base64 (`spellings`, `search`), wherever it
stands (`Redactor`).
"""

from madlite.secrets.redactor import (
    MASK,
    Redactor,
    assigned,
    collect,
    guard,
    is_secret,
    is_secret_name,
    mask_values,
    masked_json,
    masked_value,
    reveal,
    shaped,
    spelled_out,
)
from madlite.secrets.spellings import SHORTEST, Userinfo, split_userinfo

__all__ = [
    "MASK",
    "SHORTEST",
    "Redactor",
    "Userinfo",
    "assigned",
    "collect",
    "guard",
    "is_secret",
    "is_secret_name",
    "mask_values",
    "masked_json",
    "masked_value",
    "reveal",
    "shaped",
    "spelled_out",
    "split_userinfo",
]
