"""`madlite gpus`: the GPUs of this machine, and which run has each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from madlite.cli.options import Command, verbose_option
from madlite.cli.setup import print_problems
from madlite.cli.terminal import echo, echo_lines

if TYPE_CHECKING:
    from pathlib import Path

    from madlite.model import Gpu
    from madlite.store.gpu_leases import LeaseState


@click.command("gpus", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--clear",
    type=int,
    metavar="GPU",
    multiple=True,
    help="Free this GPU of a run that is over and whose processes cannot be seen from here, once it is known that they "
    "have ended.  Repeatable.",
)
@verbose_option
def command(as_json: bool, clear: tuple[int, ...]) -> int:
    """List the GPUs of this machine, and which run has each of them.

    A GPU on which a run that is over left its container or processes, as a killed one does, is held until they are
    gone: the line names them, and the command that ends them.  Where its processes cannot be seen from here, as from a
    container or with hidepid, it is held until a madlite sees that they are gone, or --clear says so.
    """
    from madlite.batch.gpu_pool import lease_states
    from madlite.machine.detect import detect_machine
    from madlite.machine.host import Host
    from madlite.store.gpu_leases import lease_folder

    environ = dict(os.environ)
    machine = detect_machine({}, host=Host(path=environ.get("PATH", ""), env=environ))
    print_problems(machine.problems)
    folder = lease_folder(environ)
    states = lease_states(folder, machine.gpus)
    if clear:
        _clear(folder, clear, states)
        states = lease_states(folder, machine.gpus)
    if as_json:
        import json

        echo_lines(json.dumps({"folder": str(folder), "gpus": [*_rows(machine.gpus, states)]}, indent=2))
        return 0
    for gpu in machine.gpus:
        echo(f"GPU {gpu.index:<3} {gpu.bus or gpu.unique_id:13} {_text(*states[gpu.index])}")
    echo(f"leases: {folder}" if machine.gpus else "no GPU here")
    return 0


def _clear(folder: Path, gpus: tuple[int, ...], states: dict[int, tuple[LeaseState, str]]) -> None:
    """Free GPUs of dead owners.

    Raises:
        UsageProblem: one is not there, is held, or what keeps it can be seen.
    """
    from contextlib import closing

    from madlite.batch.gpu_pool import UNSEEN
    from madlite.errors import UsageProblem
    from madlite.store.gpu_leases import LeaseFolder

    for gpu in gpus:
        if gpu not in states:
            raise UsageProblem(f"--clear {gpu}: there is no GPU {gpu} here", "madlite gpus lists those that are")
        state, left = states[gpu]
        if state.locked or state.problem or left not in ("", UNSEEN):
            raise UsageProblem(f"--clear {gpu}: it is {_text(state, left)}", "only what cannot be seen is cleared")
    names = [states[gpu][0].name for gpu in gpus if states[gpu][1]]
    if names:
        with closing(LeaseFolder(folder)) as leases:
            for name in names:
                leases.clear(name)


def _rows(gpus: tuple[Gpu, ...], states: dict[int, tuple[LeaseState, str]]) -> Iterator[dict[str, object]]:
    from msgspec import to_builtins

    for gpu in gpus:
        state, left = states[gpu.index]
        held = "problem" if state.problem else "held" if state.locked else "left" if left else "free"
        holder = to_builtins(state.holder) if state.holder is not None and held in ("held", "left") else None
        yield {"gpu": gpu.index, "bus": gpu.bus, "state": held, "holder": holder, "left": left}


def _text(state: LeaseState, left: str) -> str:
    from madlite.batch.gpu_pool import UNSEEN, holder_text

    if state.problem:
        return state.problem
    if state.locked:
        since = f", since {state.holder.since}" if state.holder is not None and state.holder.since else ""
        return f"held by {holder_text(state.holder)}{since}"
    if left and state.holder is not None:
        ends = "madlite clean --everywhere --yes ends it"
        if left == UNSEEN:
            ends = "the same command where it ran, or --clear GPU once they have ended"
        return f"held by {left}, left by {holder_text(state.holder)}; {ends}"
    return "free"
