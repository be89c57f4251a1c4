"""The plugin's failure rules can be used: patterns compile, and examples are matched by them."""

from __future__ import annotations

from collections.abc import Iterator

from madlite.failure_rules import flaw_of
from madlite.model import FailureRule
from madlite.testing.flaws import Flaw
from madlite.testing.subject import Subject

CHECK = "failures"


def check_failures(subject: Subject) -> Iterator[Flaw]:
    """Yield rules that explain nothing; the plugin is the one that brings the backend, where it is installed."""
    backends = subject.plugins.collect("madlite_backends")
    brought = {plugin.name for plugin, backend in backends if type(backend) is type(subject.backend)}
    for plugin, rule in subject.plugins.collect("madlite_failure_rules"):
        if plugin.name not in brought:
            continue
        what = flaw_of(rule) if isinstance(rule, FailureRule) else "it is no FailureRule"
        if what:
            mend = "docs/failures.md has the keys of a rule"
            yield Flaw(check=CHECK, where=f"rule {getattr(rule, 'pattern', rule)!r}", what=what, mend=mend)
