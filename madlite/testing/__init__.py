"""The conformance kit for authors of backends (docs/plugins.md) and runtimes (docs/runtimes.md).

Classes of tests, and of backends a function that returns every flaw: `check_backend`.

Nothing of a run imports it; it needs shellcheck (`pip install 'madlite[testing]'`).
"""

from __future__ import annotations

from madlite.testing.checks import CHECKS, BackendConformance, check_backend, run_check
from madlite.testing.flaws import Flaw
from madlite.testing.runtimes import RuntimeConformance
from madlite.testing.subject import MACHINES, Subject

__all__ = ["CHECKS", "MACHINES", "BackendConformance", "Flaw", "RuntimeConformance", "Subject"]
__all__ += ["check_backend", "run_check"]
