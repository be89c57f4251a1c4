from __future__ import annotations

from pathlib import Path

from madlite.model import Gpu, Machine, Place, Secret, Traits
from madlite.run.instrumentation import used_gpus
from tests.factories import make_plan
from tests.rows import each_row

EIGHT = tuple(Gpu(index=n, unique_id=f"GPU-{n}a000000-1111") for n in range(8))


def used(tmp_path: Path, engine: str, granted: tuple[int, ...], vendor: str = "AMD", **env: object) -> list[int]:
    place, traits = Place(gpu_ids=granted, gpus_per_node=len(granted)), Traits(containerised=engine == "docker")
    machine = Machine(vendor=vendor, gpus=EIGHT)  # type: ignore[arg-type]
    return [gpu.index for gpu in used_gpus(make_plan(tmp_path, place=place, traits=traits, machine=machine, env=env))]


@each_row(
    ("engine", "granted", "env", "expected"),
    [
        ("docker", (2, 3, 4), {}, [2, 3, 4]),
        ("docker", (2, 3, 4), {"HIP_VISIBLE_DEVICES": "0,2"}, [2, 4]),  # a container counts its own
        ("none", (2, 3), {"HIP_VISIBLE_DEVICES": "2,3"}, [2, 3]),  # a host's process the machine's
        ("none", (0, 1, 2, 3), {"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1, 3"}, [5, 7]),
        ("none", (0, 1), {"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ("none", (0, 1), {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
        ("none", (0, 1), {"ROCR_VISIBLE_DEVICES": "GPU-3a000000-1111"}, [3]),
        ("docker", (0, 1), {"HIP_VISIBLE_DEVICES": "1,1,9,0"}, [1]),  # what follows a word that is none is hidden
        ("docker", (0, 1), {"HIP_VISIBLE_DEVICES": "-1"}, [0, 1]),
        ("docker", (0, 1), {"HIP_VISIBLE_DEVICES": ""}, [0, 1]),
        ("docker", (0, 1), {"HIP_VISIBLE_DEVICES": Secret("1")}, [0, 1]),
        ("docker", (), {"HIP_VISIBLE_DEVICES": "0"}, []),
    ],
)
def test_gpus_of_a_run(tmp_path: Path, engine, granted, env, expected) -> None:
    assert used(tmp_path, engine, granted, **env) == expected


def test_nvidia_knows_one_variable(tmp_path: Path) -> None:
    env = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "GPU-1a"}
    assert used(tmp_path, "docker", (0, 1), "NVIDIA", **env) == [1]
