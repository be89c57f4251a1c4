"""What the kit finds: one sentence each, with the place and how to mend it."""

from __future__ import annotations

from madlite.model import Value


class Flaw(Value, frozen=True):
    """One thing that is wrong: what and where, and what to do about it."""

    check: str
    where: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}" + (f" ({self.mend})" if self.mend else "")
