"""What must not be seen of a log: its secrets are not in our environment, but it may spell them out."""

from __future__ import annotations

import os
import sys

from madlite.run.foreign import Reading
from madlite.secrets import assigned, collect


def secrets_in(reading: Reading) -> tuple[str, ...]:
    """Return the secrets of this process's environment and command line, and those that the log assigns to a name."""
    found = reading.diagnosis
    told = (found.line, found.hint, found.where) if found else ()
    verdict = reading.verdict
    texts = (verdict.evidence, verdict.reason, *verdict.suspect, *verdict.findings, *told)
    pairs = {**reading.config, **reading.summary}
    named = (f"{name}={value}" for name, value in pairs.items())
    return (*collect(os.environ), *assigned((*sys.argv, *texts, *named)), *collect(pairs))
