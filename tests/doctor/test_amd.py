"""A machine with eight MI300X, by its files alone: all right, then one thing wrong at a time."""

from __future__ import annotations

import resource

import pytest

from madlite.doctor import host
from madlite.doctor.check import applicable
from tests.machine.stand_in import Bench
from tests.rows import each_row

from .stand_in import GPUS, lay_out, outcomes, pci, target

NODE = "sys/class/kfd/kfd/topology/nodes"


@pytest.fixture(autouse=True)
def large_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    room = type(
        "Room", (), {"f_blocks": 1 << 28, "f_frsize": 4096, "f_bavail": 1 << 28, "f_files": 9, "f_favail": 1 << 20}
    )
    monkeypatch.setattr(host.os, "statvfs", lambda path: room)


def test_nothing_differs_and_only_what_has_no_right_value_is_unknown(bench: Bench) -> None:
    found = outcomes(bench)
    assert {name: (item.value, item.right) for name, item in found.items() if item.state == "differs"} == {}
    assert {name for name, item in found.items() if item.state == "unknown"} == {"system", "open_files"}
    assert found["gpu_count"].value == "8 x MI300X"
    assert set(found) == {entry.name for entry in applicable(target(bench)) if not (entry.tools or entry.health)}


CHANGES = [
    ("numa_balancing", {"proc/sys/kernel/numa_balancing": "1\n"}, "1"),
    ("pci_realloc", {"proc/cmdline": "pci=bfsort iommu=pt"}, "pci=bfsort"),
    ("pci_bfsort", {"proc/cmdline": "pci=realloc=off iommu=pt"}, "pci=realloc=off"),
    ("iommu", {"proc/cmdline": "quiet"}, "no iommu="),
    ("iommu", {"proc/cpuinfo": "vendor_id : GenuineIntel\nflags : fpu\n"}, "iommu=pt, no intel_iommu="),
    ("cpu_governor", {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave"}, "performance, powersave"),
    ("cpu_deep_sleep", {"sys/devices/system/cpu/cpu0/cpuidle/state2/disable": "0"}, "C2 on 1 of 1 CPUs"),
    ("transparent_hugepages", {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"}, "madvise"),
    ("memory", {"proc/meminfo": "MemTotal: 527000000 kB\n"}, "0.54 TB"),
    ("virtualised", {"proc/cpuinfo": "flags : fpu hypervisor\n"}, "a virtual machine"),
    ("pcie_link", {f"{pci(3)}/current_link_width": "8"}, "32.0 GT/s x16, 32.0 GT/s x8"),
    ("pcie_errors", {f"{pci(3)}/aer_dev_fatal": "DLP 2\nTOTAL_ERR_FATAL 2\n"}, "2"),
    ("temperature", {f"{pci(6)}/hwmon/hwmon3/temp1_input": "91000"}, "91 °C"),
    ("idle", {f"{pci(2)}/gpu_busy_percent": "97"}, "97 %"),
    ("uncorrected_errors", {f"{pci(2)}/ras/umc_err_count": "ue: 2\nce: 0\n"}, "GPU 1 umc: 2"),
    ("retired_memory", {f"{pci(8)}/ras/gpu_vram_bad_pages": "0x1 : 0x1000 : R\n"}, "GPU 7: 1"),
    ("xgmi", {f"{NODE}/1/io_links/0/properties": "type 2\nnode_to 2\n"}, "27 of 28 pairs"),
    ("partitions", {f"{pci(1)}/current_compute_partition": "CPX"}, "CPX, SPX, NPS1"),
    ("firmware", {f"{pci(4)}/fw_version/smc_fw_version": "0x1"}, "mixed: smc"),
    ("power_limit", {f"{pci(1)}/hwmon/hwmon3/power1_cap": "500000000"}, "500 W, 750 W"),
    ("performance_level", {f"{pci(1)}/power_dpm_force_performance_level": "low"}, "low, auto"),
    ("gpu_memory", {f"{pci(1)}/mem_info_vram_total": "103070826496"}, "96.0 GiB, 192.0 GiB"),
    ("rdma_ports", {"sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN"}, "0 of 1 up; down: mlx5_0:1"),
    ("rdma_addresses", {"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3": "IB/RoCE v1"}, "none of mlx5_0:1"),
    ("link_speed", {"sys/class/net/rdma0/speed": "100000"}, "rdma0 100000"),
    ("socket_interface", {"sys/class/net/eth0/operstate": "down"}, "not up: NCCL_SOCKET_IFNAME=eth0"),
]


@each_row(("name", "files", "found"), CHANGES)
def test_one_thing_is_wrong(bench: Bench, name: str, files: dict[str, str], found: str) -> None:
    lay_out(bench)  # a row's own machine is empty
    for path, text in files.items():
        bench.file(path, text)
    outcome = outcomes(bench)[name]
    assert outcome.state == "differs" and outcome.right and outcome.source
    assert outcome.value == found


def test_a_gpu_that_the_driver_does_not_list(bench: Bench) -> None:
    bench.pci("0000:77:00.0", "1002", "74a1", "120000")
    found = outcomes(bench)["gpu_count"]
    assert (found.state, found.value, found.right) == ("differs", "8 x MI300X", "9 on the PCI bus")
    assert found.fails


def test_partitions_of_gpus_are_no_more_boards(bench: Bench) -> None:
    for number in range(1, GPUS + 1):
        node = {"simd_count": 152, "gfx_target_version": 90402, "device_id": 0x74A1, "unique_id": 0xA100 + number}
        bench.node(100 + number, **node, location_id=(number << 8) + 1, drm_render_minor=200 + number)
        bench.file(f"{pci(number)}/current_compute_partition", "DPX\n")
    found = outcomes(bench)
    assert (found["gpu_count"].state, found["gpu_count"].value) == ("ok", "16 x MI300X on 8 boards")
    assert "xgmi" not in found and found["partitions"].state == "differs"


def test_gpus_without_their_driver(bare: Bench) -> None:
    bare.pci("0000:11:00.0", "1002", "74a1", "120000")
    found = outcomes(bare)
    assert [found[name].state for name in ("gpu_count", "driver")] == ["differs", "differs"]
    assert found["gpu_count"].value == "0 x MI300X" and found["driver"].fix == "sudo modprobe amdgpu"


def test_a_process_on_a_gpu_is_named_and_a_monitor_is_not(bench: Bench) -> None:
    for pid, command in ((4711, "python\0train.py"), (4712, "rocm-smi-daemon")):
        bench.file(f"sys/class/kfd/kfd/proc/{pid}/vram_5711", f"{3 << 30}\n")
        bench.file(f"proc/{pid}/stat", f"{pid} (x) S 1{' 0' * 18} 4096 0\n")
        bench.file(f"proc/{pid}/cmdline", command)
    found = outcomes(bench)["other_processes"]
    assert found.state == "differs" and "pid 4711 python train.py" in found.value and "4712" not in found.value


def test_devices_that_this_user_may_not_open(bench: Bench) -> None:
    (bench.root / "dev/kfd").unlink()
    found = outcomes(bench, "develop")["device_nodes"]
    assert found.value == "closed: /dev/kfd" and found.fails and "render" in found.fix


def test_limits_of_this_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65536, 65536))
    found = outcomes(bench)
    assert (found["memlock"].value, found["memlock"].state) == ("64.0 KiB", "differs")
    assert found["open_files"].value == "65,536 files, 65,536 processes"


def test_a_disk_without_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    room = type("Room", (), {"f_blocks": 9, "f_frsize": 4096, "f_bavail": 9, "f_files": 9, "f_favail": 9})
    monkeypatch.setattr(host.os, "statvfs", lambda path: room)
    found = outcomes(bench, "develop")
    assert found["disk"].fails and found["shared_memory"].fails


def test_only_the_devices_that_a_variable_names_count(bench: Bench) -> None:
    bench.file("sys/class/infiniband/mlx5_9/ports/1/state", "1: DOWN")
    assert outcomes(bench)["rdma_ports"].state == "differs"
    for text in ("=mlx5_0", "mlx5_0:1", "^mlx5_9"):
        assert outcomes(bench, NCCL_IB_HCA=text)["rdma_ports"].value == "1 of 1 up"


def test_variables_and_a_token_that_are_not_set(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("madlite.doctor.software.stored_token", lambda: None)
    found = outcomes(bench, HIP_FORCE_DEV_KERNARG="0", HF_TOKEN="")
    assert found["variables"].value == "HIP_FORCE_DEV_KERNARG=0" and not found["variables"].fails
    assert found["token"].state == "differs" and not found["token"].fails


def test_an_empty_machine_has_nothing_that_fails(bare: Bench) -> None:
    found = outcomes(bare, NCCL_SOCKET_IFNAME="")
    assert not [name for name, item in found.items() if item.fails and name != "disk"]
    assert "numa_balancing" not in found and "leases" not in found and len(found) < 15


def test_a_thing_that_cannot_be_read_is_unknown(bench: Bench) -> None:
    for number in range(1, GPUS + 1):
        (bench.root / pci(number) / "gpu_busy_percent").unlink()
    (bench.root / "proc/cmdline").unlink()
    found = outcomes(bench)
    assert [found[name].state for name in ("idle", "pci_bfsort", "iommu")] == ["unknown"] * 3


def test_a_gpu_without_right_values_of_its_own_is_not_judged_by_another_s(bench: Bench) -> None:
    for number in range(1, GPUS + 1):
        bench.pci(f"0000:{number:02x}:00.0", "1002", "740f", "038000")
    bench.mi300x(GPUS, simd_count=416, gfx_target_version=90010, device_id=0x740F)
    found = outcomes(bench)
    assert found["gpu_count"].value == "8 x MI210"
    for name in ("memory", "link_speed", "pcie_link"):
        assert (found[name].state, found[name].right) == ("unknown", ""), name
    assert "xgmi" not in found and found["numa_balancing"].state == "ok"
