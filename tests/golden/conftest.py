from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engine_fixture import give_up
from tests.golden.machines import h100s, two_mi300x
from tests.golden.runs import Bed, fulfils_gpu_requests


@pytest.fixture(scope="session")
def may_mount() -> None:
    if os.geteuid() != 0:
        give_up("only root can give a process the /sys and /dev of another machine")


@pytest.fixture(scope="session")
def bed(may_mount: None, engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """An engine, and three machines that are not here."""
    home = tmp_path_factory.mktemp("machines")
    for name in ("amd", "nvidia", "h100"):
        (home / name).mkdir()
    machines = {
        "amd": two_mi300x(home / "amd"),
        "nvidia": h100s(home / "nvidia", 2),
        "8 x H100": h100s(home / "h100", 8),
    }
    yield Bed(engine, machines, gives_gpus=fulfils_gpu_requests(engine, base_image, 8))
