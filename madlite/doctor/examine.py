"""Examine a machine: checks of files one after another, those with tools in parallel, each within 5 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from functools import partial
from inspect import isfunction, signature
from pathlib import Path

from msgspec.structs import replace

from madlite.cancellation import in_thread
from madlite.doctor import gpus, host, software
from madlite.doctor.check import Answer, Check, Outcome, Purpose, Target, applicable, judge, right_value
from madlite.machine.host import Host
from madlite.machine.host_facts import host_facts
from madlite.text import counted

LIMIT_S = 5.0  # for a check that uses tools
_LASTING = ("GPUs", "kernel", "CPUs", "memory")  # groups of what a record has; not of the moment, nor of this shell
_PASSING = ("idle", "temperature", "other_processes", "variables", "memlock", "open_files", "shared_memory")
_MARGIN_S = 0.5  # for the tool to be ended within
FUNCTIONS: Mapping[str, Callable[[Target, str], Answer | None]] = {
    name: function  # a check is what takes the right value
    for module in (host, gpus, software)
    for name, function in vars(module).items()
    if isfunction(function) and {"target", "right"} == set(signature(function).parameters)
}


def make_target(machine: Host, workspace: Path) -> Target:
    """Return a machine with its GPUs by the drivers' files and the facts of its host; no tool is run."""
    vendor, device, listed = gpus.find_gpus(machine.root)
    return Target(
        host=replace(machine, limit_s=LIMIT_S - _MARGIN_S),
        vendor=vendor,
        device=device,
        gpus=listed,
        facts=host_facts(machine.root),
        workspace=workspace,
    )


def examine(target: Target, purpose: Purpose, *, quick: bool = False, health: bool = False) -> list[Outcome]:
    """Return the outcome of each check that applies, in the order of the table.

    `quick` leaves those with tools out; with `health` the GPUs are measured, once all others are done.
    """
    checks = [check for check in applicable(target) if health or not check.health]
    return _outcomes([check for check in checks if not (quick and check.tools)], target, purpose)


def lasting(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that are of the machine: not of the moment, nor of who runs the command."""
    return [outcome for outcome in outcomes if _lasts(outcome)]


def _lasts(item: Check | Outcome) -> bool:
    return item.group in _LASTING and item.name not in _PASSING


def recorded_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the facts of this host for a run's record; where it has GPUs, with what of it differs, as `doctor`."""
    try:
        target = make_target(Host(root=root), Path())
        if target.vendor == "CPU":
            return target.facts
        checks = [check for check in applicable(target) if _lasts(check) and not check.tools]
        outcomes = _outcomes(checks, target, "publish")
    except Exception as error:  # noqa: BLE001 - files that no driver wrote so far must not cost a run its record
        return {**host_facts(root), "doctor": f"unknown: {error}"}
    differing = [f"{outcome.name}={outcome.value}" for outcome in outcomes if outcome.state == "differs"]
    text = f"{len(differing)} of {counted(len(outcomes), 'check')} differ"
    return {**target.facts, "doctor": f"{text}: {', '.join(differing)}" if differing else text}


def _outcomes(checks: Sequence[Check], target: Target, purpose: Purpose) -> list[Outcome]:
    running = {
        check.name: in_thread(partial(_call, check, target), f"madlite-{check.name}") for check in checks if check.tools
    }
    until_s = time.monotonic() + LIMIT_S
    answers = (
        (check, _result(running[check.name], until_s) if check.tools else _call(check, target)) for check in checks
    )
    return [judge(check, target, answer, purpose) for check, answer in answers if answer is not None]


def _call(check: Check, target: Target) -> Answer | None:
    try:
        return FUNCTIONS[check.name](target, right_value(check, target))
    except (OSError, ValueError) as error:  # a file or a variable that is not what it should be
        return Answer(f"cannot be read: {error}")


def _result(running: Future[Answer | None], until_s: float) -> Answer | None:
    try:
        return running.result(max(0.0, until_s - time.monotonic()))
    except TimeoutError:
        return Answer(f"did not end within {LIMIT_S:g} s")


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return what a machine's checks came to, as text: `3 of 41 checks differ, 1 fail, 5 unknown`."""
    differing = [outcome for outcome in outcomes if outcome.state == "differs"]
    failed = sum(outcome.fails for outcome in differing)
    unknown = sum(outcome.state == "unknown" for outcome in outcomes)
    return f"{len(differing)} of {counted(len(outcomes), 'check')} differ, {failed} fail, {unknown} unknown"
