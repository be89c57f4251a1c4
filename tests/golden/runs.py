"""Run madlite in a copied checkout, on a stand-in machine and a real engine, and keep what it asked the engine for."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from madlite.store.gpu_leases import VARIABLE as LEASES
from tests import commands
from tests.engine_fixture import remove_built
from tests.golden.elsewhere import ENTER
from tests.golden.machines import StandIn
from tests.golden.tap import Call, Tap

DATA = Path(__file__).parents[1] / "data"
LIMIT_S = 800.0  # less than a test's own limit
RUN_LABEL = "madlite.run"


@dataclass(frozen=True)
class Done:
    """A run that ended: its exit codes, what it printed, what it asked for, and how many containers it left."""

    folder: Path
    exits: tuple[int, ...]
    printed: str
    calls: tuple[Call, ...]
    left: int


class Bed:
    """Where runs happen: an engine that answers, and the stand-in machines."""

    def __init__(self, engine: str, machines: Mapping[str, StandIn], *, gives_gpus: bool) -> None:
        self.engine, self.machines, self.gives_gpus = engine, machines, gives_gpus

    @contextmanager
    def tapped(self, home: Path) -> Iterator[Tap]:
        with Tap(home / "docker.sock", self.engine, gives_gpus=self.gives_gpus).opened() as tap:
            yield tap

    def start(
        self,
        folder: Path,
        machine: str,
        address: str,
        words: tuple[str, ...],
        env: Mapping[str, str],
        probes: str = "yes",
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; of the caller's environment it sees what finds Python's modules.

        probes: as in `tests.golden.elsewhere.enter`.
        """
        there = self.machines[machine]
        own = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
        path, home = f"{there.bin}:{os.environ['PATH']}", str(folder.parent)
        environ = {**own, "PATH": path, "HOME": home, LEASES: f"{home}/leases", "DOCKER_HOST": address, **env}
        return commands.run(words, folder, environ, limit_s=LIMIT_S, first=(ENTER, str(there.folder), probes))

    def take_away(self, folder: Path) -> int:
        """Remove the containers that the runs of a folder left, and return how many there were."""
        import docker

        with docker.APIClient(self.engine) as client:
            ids = {path.name for path in folder.glob("madlite_runs/*")}
            every = client.containers(all=True, filters={"label": RUN_LABEL})
            ours = [found for found in every if found["Labels"][RUN_LABEL] in ids and found["State"] != "removing"]
            for found in ours:
                client.remove_container(found["Id"], force=True)
        return len(ours)

    def remove_images(self, folders: Iterable[Path]) -> None:
        """Remove what runs in these folders built."""
        for folder in folders:
            remove_built(self.engine, folder)


def copied(name: str, home: Path) -> Path:
    """Return a copy of a checkout of tests/data, with its own place written into data.json."""
    folder = home / "mad"
    shutil.copytree(DATA / name, folder)
    data = folder / "data.json"
    data.write_text(data.read_text().replace("@FIXTURE@", str(folder)))
    return folder


def fulfils_gpu_requests(engine: str, image: str, count: int) -> bool:
    """Say whether containers that ask for so many NVIDIA GPUs start: their hook, or a stand-in for it, is installed."""
    import docker
    import docker.errors

    with docker.APIClient(engine) as client:
        gpus = [str(n) for n in range(count)]
        asked: list[dict[str, Any]] = [{"Driver": "", "DeviceIDs": gpus, "Capabilities": [["gpu"]]}]
        host = client.create_host_config(network_mode="none", device_requests=asked)
        container = client.create_container(image, ["true"], host_config=host)["Id"]
        try:
            client.start(container)
        except docker.errors.APIError:
            return False
        finally:
            client.remove_container(container, force=True)
    return True
