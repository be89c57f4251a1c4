"""What a look at a hanging run finds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from madlite.model import Value


class Found(Value, frozen=True):
    """`notes` tell what is wrong with its processes, `kept` where the rest is, `evidence` where its ranks are.

    `odd` are the ranks that stand apart: the others may be waiting for them.
    """

    notes: tuple[str, ...] = ()
    kept: str = ""
    evidence: str = ""
    odd: str = ""


Inquire: TypeAlias = Callable[[threading.Event], Found]
"""Looks at a run; it comes to its end soon after the event is set, and within a minute by itself."""
