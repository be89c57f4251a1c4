"""What the GPUs do while a run seems to hang, as the vendors' tools tell it."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

from madlite.machine.host import Host, find_tool
from madlite.process import capture

LIMIT_S = 10.0  # of one command
COMMANDS = (
    ("nvidia-smi",),
    ("nvidia-smi", "-q", "-d", "PERFORMANCE,ECC,PAGE_RETIREMENT"),
    ("amd-smi", "monitor"),
    ("amd-smi", "process"),
    ("rocm-smi",),
    ("rocm-smi", "--showpids"),
)


def gpu_state(environ: Mapping[str, str], left_s: float, cancelled: Event) -> str:
    """Return what the tools say that are here; rocm-smi is asked only where amd-smi says nothing.

    `left_s` bounds each command, and LIMIT_S.
    """
    host = Host(path=environ.get("PATH", ""), env=dict(environ))
    told: dict[str, list[str]] = {}
    silent: set[str] = set()  # tools that failed: another question to them costs as much again
    for name, *arguments in COMMANDS:
        tool = find_tool(host, name)
        if tool is None or cancelled.is_set() or name in silent or (name == "rocm-smi" and "amd-smi" in told):
            continue
        ended = capture([tool, *arguments], limit_s=min(LIMIT_S, left_s), env=environ, cancelled=cancelled)
        said = ended.stdout or ended.stderr or ("it did not end in time" if ended.timed_out else "")
        text = f"$ {' '.join([name, *arguments])}\n{said.rstrip()}\n"
        if ended.ok:
            told.setdefault(name, []).append(text)
        else:
            silent.add(name)
            told.setdefault(f"{name}, failed", []).append(text)
    return "\n".join(text for texts in told.values() for text in texts)
