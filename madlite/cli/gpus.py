"""`madlite gpus`: the GPUs of this machine, and which run has each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from madlite.cli.options import Command, verbose_option
from madlite.cli.setup import print_problems
from madlite.cli.terminal import echo

if TYPE_CHECKING:
    from madlite.model import Gpu
    from madlite.workspace.gpu_leases import LeaseState


@click.command("gpus", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@verbose_option
def command(as_json: bool) -> int:
    """List the GPUs of this machine, and which run has each of them.

    A GPU on which a run that is over left its container or processes, as a killed one does, is held until they are
    gone: the line names them, and the command that ends them.
    """
    from madlite.machine.detect import detect_machine
    from madlite.machine.host import Host
    from madlite.run.recovery.dead_leases import lease_states
    from madlite.workspace.gpu_leases import lease_folder

    environ = dict(os.environ)
    machine = detect_machine({}, host=Host(path=environ.get("PATH", ""), env=environ))
    print_problems(machine.problems)
    folder = lease_folder(environ)
    states = lease_states(folder, machine.gpus)
    if as_json:
        import json

        echo(json.dumps({"folder": str(folder), "gpus": [*_rows(machine.gpus, states)]}, indent=2))
        return 0
    for gpu in machine.gpus:
        echo(f"GPU {gpu.index:<3} {gpu.bus or gpu.unique_id:13} {_text(*states[gpu.index])}")
    echo(f"leases: {folder}" if machine.gpus else "no GPU here")
    return 0


def _rows(gpus: tuple[Gpu, ...], states: dict[int, tuple[LeaseState, str]]) -> Iterator[dict[str, object]]:
    from msgspec import to_builtins

    for gpu in gpus:
        state, left = states[gpu.index]
        held = "problem" if state.problem else "held" if state.locked else "left" if left else "free"
        holder = to_builtins(state.holder) if state.holder is not None and held in ("held", "left") else None
        yield {"gpu": gpu.index, "bus": gpu.bus, "state": held, "holder": holder, "left": left}


def _text(state: LeaseState, left: str) -> str:
    from madlite.run.gpu_pool import holder_text

    if state.problem:
        return state.problem
    if state.locked:
        since = f", since {state.holder.since}" if state.holder is not None and state.holder.since else ""
        return f"held by {holder_text(state.holder)}{since}"
    if left and state.holder is not None:
        ends = "madlite clean --everywhere --yes ends it"
        return f"held by {left}, left by {holder_text(state.holder)}; {ends}"
    return "free"
