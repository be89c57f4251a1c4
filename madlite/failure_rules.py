r"""Failure rules: patterns of log lines that explain a failure, as TOML data.

::

    backends = ["mine"]           # whose trainings these rules explain; without it any
    [[rule]]
    cause = "missing_file"        # a code of docs/failures.md, or one of the plugin's own
    tier = "error"                # root (where nothing is said), error, follower, or sign: it failed, not why
    ends = "process"              # or launcher: whose end it shows after the last step; without it nobody's
    pattern = "no weights at (?P<file>\\S+)"
    hint = "fetch {file} first"   # what to do, whoever ran the training
    here = "madlite prepare"      # what that is in a run of madlite's
    see = "https://…"             # the thread in which the maintainers say so
    example = "no weights at /x"  # a line that the pattern matches
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec

from madlite.errors import PluginError
from madlite.model import FailureRule

_FIELD = re.compile(r"\{(\w+)\}")
COMMON = Path(__file__).parent / "measure" / "failures.toml"


@cache
def read_failure_rules(path: Path) -> tuple[FailureRule, ...]:
    """Return the rules of a TOML file, in its order; a rule's source is the file, below its folder's name.

    A rule without `backends` of its own has those of the file.

    Raises:
        PluginError: it is no such file, or a rule of it cannot be used; the message names the file, the rule and the
            key.
    """
    import tomli

    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
        rules, backends = table.pop("rule", []), table.pop("backends", [])
        if table or not isinstance(rules, list):
            raise ValueError(f"key '{next(iter(table), 'rule')}': a file of rules has [[rule]] tables and `backends`")
        if not isinstance(backends, list) or not all(isinstance(name, str) for name in backends):
            raise ValueError("key 'backends': it is a list of backends' names")
    except (OSError, ValueError) as error:
        raise PluginError(f"failure rules {path}: {error}") from None
    return tuple(_rule(path, number, values, tuple(backends)) for number, values in enumerate(rules, 1))


def explained(text: str, groups: dict[str, str]) -> str:
    """Return a hint with the pattern's groups in place of their names in braces."""
    return _FIELD.sub(lambda field: groups.get(field[1], field[0]), text)


def _rule(path: Path, number: int, values: object, backends: tuple[str, ...]) -> FailureRule:
    where = f"failure rules {path}, rule {number}"
    try:
        if isinstance(values, dict) and (unknown := sorted(values.keys() - set(FailureRule.__struct_fields__))):
            raise ValueError(f"key '{unknown[0]}' is unknown")
        rule = msgspec.convert(values, FailureRule)
    except (msgspec.ValidationError, ValueError) as error:
        raise PluginError(f"{where}: {error}") from None
    if flaw := flaw_of(rule):
        raise PluginError(f"{where}: {flaw}")
    source = rule.source or f"{path.parent.name}/{path.name}"
    return msgspec.structs.replace(rule, source=source, backends=rule.backends or backends)


def flaw_of(rule: FailureRule) -> str:
    """Return what is wrong with a rule, the key first, or nothing."""
    try:
        pattern = re.compile(rule.pattern)
    except re.error as error:
        return f"key 'pattern': {rule.pattern!r} is no regular expression: {error}"
    if not rule.pattern or pattern.search(""):
        return f"key 'pattern': {rule.pattern!r} matches any line"
    if not rule.cause:
        return "key 'cause' is empty"
    for key, text in (("hint", rule.hint), ("here", rule.here)):
        unknown = [name for name in _FIELD.findall(text) if name not in pattern.groupindex]
        if unknown:
            return f"key '{key}': the pattern has no group '{unknown[0]}'"
    if rule.example and not pattern.search(rule.example):
        return f"key 'example': {rule.example!r} is not matched by the pattern"
    return ""
