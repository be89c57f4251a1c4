"""The CPUs and the memory that are near GPUs, by sysfs."""

from __future__ import annotations

import os

import pytest

from madlite.machine.host import visible_gpus
from madlite.machine.host_facts import NumaPlace, cpu_numbers, numa_place
from madlite.model import Gpu
from tests.rows import each_row

GPUS = [Gpu(index=n, bus=f"0000:{n + 1:02x}:00.0", unique_id=f"GPU-{n}abc") for n in range(4)]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1, 64)))
    for node, cpus in ((0, "0-15,32-47"), (1, "16-31,48-63")):
        place = tmp_path / f"sys/devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{cpus}\n")
    for gpu, node in zip(GPUS, (0, 0, 1, -1), strict=True):
        place = tmp_path / "sys/bus/pci/devices" / gpu.bus
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{node}\n")
    return tmp_path


def test_a_run_s_nodes_and_those_of_their_cpus_that_it_may_use(root):
    assert numa_place(GPUS[:2], root) == NumaPlace(nodes="0", cpus="1-15,32-47")
    assert numa_place(GPUS[1:3], root) == NumaPlace(nodes="0-1", cpus="1-63")


def test_a_node_or_cpu_that_is_not_told_is_no_place(root, monkeypatch):
    assert numa_place(GPUS[2:], root) is None, "-1: the firmware does not say"
    assert numa_place([Gpu(index=0)], root) is None and numa_place([], root) is None
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {100})
    assert numa_place(GPUS[:1], root) is None


def test_lists_of_cpus():
    assert cpu_numbers("0-2,8") == {0, 1, 2, 8} and cpu_numbers("") == set()


@each_row(
    ("vendor", "env", "indexes"),
    [
        ("AMD", {}, None),
        ("AMD", {"HIP_VISIBLE_DEVICES": ""}, []),
        ("AMD", {"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ("AMD", {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ("AMD", {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
        ("NVIDIA", {"CUDA_VISIBLE_DEVICES": "GPU-2abc,GPU-0"}, [2, 0]),
        ("NVIDIA", {"CUDA_VISIBLE_DEVICES": "1,nonsense,2"}, [1]),
        ("NVIDIA", {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ("NVIDIA", {"HIP_VISIBLE_DEVICES": "1"}, None),
        ("CPU", {"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_what_a_process_sees_is_what_the_variables_leave(vendor, env, indexes):
    found = visible_gpus(vendor, GPUS, env, empty=True)
    assert (found if found is None else [gpu.index for gpu in found]) == indexes
