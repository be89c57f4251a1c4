"""What runs that were cut off left behind, and how to remove it; never what belongs to a madlite that is alive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from madlite.errors import RuntimeProblem
from madlite.run.docker_client import Client, connected
from madlite.run.docker_runtime import DockerRuntime
from madlite.run.folder import CLEANED, is_alive, unfinished
from madlite.run.host_processes import mark_of, marked_processes
from madlite.run.host_runtime import HostRuntime
from madlite.run.marks import FOLDER_MARK, KEPT_LABEL, FOLDER_LABEL, RUN_LABEL, RUN_MARK
from madlite.types import Value


class Leftover(Value, frozen=True):
    """Something a run left: `handle` is the container's id, the run's id of processes, or the run folder.

    `kept` marks a container that was asked to stay.
    """

    kind: Literal["container", "process", "run"]
    run_id: str
    text: str
    handle: str
    kept: bool = False


class Found(Value, frozen=True):
    """Leftovers, and what could not be looked at."""

    leftovers: tuple[Leftover, ...]
    notes: tuple[str, ...] = ()
