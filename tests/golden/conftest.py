from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.machines import REAL_GPUS, h100s, two_mi300x
from tests.golden.runs import Bed, fulfils_gpu_requests


@pytest.fixture(scope="session")
def bed(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """An engine, and three machines that are not here."""
    if real := [path for path in REAL_GPUS if Path(path).exists()]:
        pytest.skip(f"this machine has GPUs of its own ({real[0]}), which would be found beside the pretended ones")
    home = tmp_path_factory.mktemp("machines")
    for name in ("amd", "nvidia", "h100"):
        (home / name).mkdir()
    machines = {
        "amd": two_mi300x(home / "amd"),
        "nvidia": h100s(home / "nvidia", 2),
        "8 x H100": h100s(home / "h100", 8),
    }
    yield Bed(engine, machines, gives_gpus=fulfils_gpu_requests(engine, base_image))
