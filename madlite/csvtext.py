"""CSV as programs write it, with fields longer than the csv module reads by itself."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unlimited_fields() -> Iterator[None]:
    """Let csv read fields of any size: its limit of 131072 characters must cost a user neither a row nor a result."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
