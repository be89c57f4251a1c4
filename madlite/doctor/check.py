"""What a check is, what it is given, and what it comes to.

A right value counts only with a source: without one, or where the value cannot be read, the outcome is unknown.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from madlite.machine.host import Host
from madlite.model import Gpu, Value, Vendor

Purpose = Literal["develop", "compare", "publish"]
PURPOSES: tuple[Purpose, ...] = ("develop", "compare", "publish")  # each needs what those before it need
State = Literal["ok", "differs", "unknown"]
UNREADABLE = "cannot be read"
_TABLE = Path(__file__).with_name("checks.toml")


class Check(Value, frozen=True):
    """An entry of checks.toml.

    `right` is the right value as text, `right_on` that of a GPU by its name; `needed_for` the purpose from which on a
    difference is a failure, "" of advice; `where` the path or command; `fix` the command that mends a difference.
    It applies to the GPUs of `vendors` and `devices`, to every machine where those are empty.  One that uses `tools`
    starts a program, imports torch, or needs the network; one of `health` measures the GPUs.
    """

    name: str
    group: str
    where: str
    right: str = ""
    right_on: dict[str, str] = {}
    source: tuple[str, ...] = ()
    needed_for: Purpose | Literal[""] = ""
    fix: str = ""
    vendors: tuple[Vendor, ...] = ()
    devices: tuple[str, ...] = ()
    tools: bool = False
    health: bool = False


class Target(Value, frozen=True):
    """The machine to examine, by its files: `host.root` other than `/` is a copy of a machine's.

    `facts` as of `host_facts`.  Of the command: what plugins and leases of GPUs it found, problems as text.
    """

    host: Host = Host()
    vendor: Vendor = "CPU"
    device: str = ""
    gpus: tuple[Gpu, ...] = ()
    facts: dict[str, str] = {}
    workspace: Path = Path()
    plugins: int = 0
    plugin_problems: tuple[str, ...] = ()
    leases_held: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        """The root of the machine's files."""
        return self.host.root

    def pci(self, gpu: Gpu) -> Path:
        """Return the folder of a GPU's driver files."""
        return self.root / "sys/bus/pci/devices" / gpu.bus


class Answer(Value, frozen=True):
    """The value that a check reads; `ok` is None where that is not known, `right` and `fix` replace the table's."""

    value: str
    ok: bool | None = None
    right: str = ""
    fix: str = ""


def equals(text: str, right: str) -> Answer:
    """Return whether a value is the right one; nothing is known of one that cannot be read."""
    return Answer(text, text == right) if text else Answer(UNREADABLE)


class Outcome(Value, frozen=True):
    """What a check came to; `fails`: it differs, and the purpose needs it."""

    name: str
    group: str
    state: State
    value: str
    right: str
    fails: bool
    needed_for: str
    where: str
    source: str
    fix: str


class _Table(Value, frozen=True):
    sources: dict[str, str]
    check: tuple[Check, ...]


@cache
def table() -> _Table:
    """Return the checks, and the full names of their sources."""
    import tomli

    return msgspec.convert(tomli.loads(_TABLE.read_text(encoding="utf-8")), _Table)


def applicable(target: Target) -> list[Check]:
    """Return the checks that apply to a machine's GPUs, of entries of one name the first."""
    checks = [
        check
        for check in table().check
        if (not check.vendors or target.vendor in check.vendors)
        and (not check.devices or target.device in check.devices)
    ]
    return list({check.name: check for check in reversed(checks)}.values())[::-1]


def right_value(check: Check, target: Target) -> str:
    """Return the right value on a machine's GPU, "" where none is known."""
    return check.right_on.get(target.device, "") if check.right_on else check.right


def judge(check: Check, target: Target, answer: Answer, purpose: Purpose) -> Outcome:
    """Return the outcome of a check for a purpose."""
    right = answer.right or right_value(check, target)
    ok = answer.ok if right and check.source else None
    needed = check.needed_for != "" and PURPOSES.index(check.needed_for) <= PURPOSES.index(purpose)
    return Outcome(
        name=check.name,
        group=check.group,
        state="unknown" if ok is None else "ok" if ok else "differs",
        value=answer.value,
        right=right,
        fails=ok is False and needed,
        needed_for=check.needed_for,
        where=check.where,
        source=", ".join(table().sources[name] for name in check.source),
        fix=(answer.fix or check.fix) if ok is False else "",
    )
