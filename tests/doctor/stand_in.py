"""A made-up machine with eight MI300X on which everything is right; all values are invented."""

from __future__ import annotations

from madlite.doctor.check import Outcome, Purpose, Target
from madlite.doctor.examine import examine, make_target
from madlite.machine.host import Host
from tests.machine.stand_in import Bench

GPUS = 8
CPUINFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: Some CPU\nflags\t\t: fpu sse2\n"


def pci(number: int) -> str:
    """The folder of GPU `number`, counted from 1."""
    return f"sys/bus/pci/devices/0000:{number:02x}:00.0"


def lay_out(bench: Bench) -> None:
    """Write the files of the machine."""
    bench.mi300x(GPUS)
    bench.file("dev/kfd")
    bench.file("sys/module/amdgpu/version", "6.10.5\n")
    bench.file("sys/class/kfd/kfd/proc/keep")
    bench.file("dev/shm/keep")
    for number in range(1, GPUS + 1):
        bench.pci(f"0000:{number:02x}:00.0", "1002", "74a1", "120000")
        for name, text in GPU_FILES.items():
            bench.file(f"{pci(number)}/{name}", text)
        for link, other in enumerate(n for n in range(1, GPUS + 1) if n != number):
            place = f"sys/class/kfd/kfd/topology/nodes/{number}/io_links/{link}/properties"
            bench.file(place, f"type 11\nnode_from {number}\nnode_to {other}\nweight 15\n")
    for name, text in HOST_FILES.items():
        bench.file(name, text)
    (bench.root / "proc/self/ns").mkdir(parents=True)
    (bench.root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")


GPU_FILES = {
    "current_link_speed": "32.0 GT/s PCIe\n",
    "current_link_width": "16\n",
    "gpu_busy_percent": "0\n",
    "aer_dev_fatal": "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 0\n",
    "hwmon/hwmon3/power1_average": "140000000\n",
    "hwmon/hwmon3/temp1_label": "junction\n",
    "hwmon/hwmon3/temp1_input": "43000\n",
    "ras/umc_err_count": "ue: 0\nce: 4\n",
    "ras/gpu_vram_bad_pages": "",
    "current_compute_partition": "SPX\n",
    "current_memory_partition": "NPS1\n",
    "vbios_version": "113-M3000000-001\n",
    "fw_version/smc_fw_version": "0x05550000\n",
    "mem_info_vram_total": "206141652992\n",
    "hwmon/hwmon3/power1_cap": "750000000\n",
    "hwmon/hwmon3/power1_cap_default": "750000000\n",
    "power_dpm_force_performance_level": "auto\n",
}
HOST_FILES = {
    "proc/sys/kernel/numa_balancing": "0\n",
    "proc/sys/kernel/osrelease": "5.15.0-100-generic\n",
    "proc/cmdline": "root=/dev/x pci=realloc=off pci=bfsort iommu=pt\n",
    "proc/cpuinfo": CPUINFO,
    "proc/meminfo": "MemTotal:       2113000000 kB\n",
    "proc/1/stat": f"1 (init) S 0 1{' 0' * 17} 4096 0\n",
    "etc/os-release": 'PRETTY_NAME="Some Linux 12"\n',
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/cpuidle/state2/disable": "1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3": "RoCE v2\n",
    "sys/class/infiniband/mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    "sys/class/infiniband/mlx5_0/device/net/rdma0/keep": "",
    "sys/class/infiniband/mlx5_0/board_id": "X1\n",
    "sys/class/infiniband/mlx5_0/fw_ver": "28.1.1\n",
    "sys/class/net/rdma0/speed": "400000\n",
    "sys/class/net/eth0/operstate": "up\n",
}
ENVIRONMENT = {
    "HIP_FORCE_DEV_KERNARG": "1",
    "HSA_OVERRIDE_CPU_AFFINITY_DEBUG": "0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "HF_TOKEN": "hf_of_nobody",
}


def target(bench: Bench, **env: str) -> Target:
    """The machine as a command finds it."""
    machine = Host(root=bench.root, path=str(bench.bin), env={**ENVIRONMENT, "HOME": str(bench.folder), **env})
    return make_target(machine, bench.folder)


def outcomes(bench: Bench, purpose: Purpose = "publish", quick: bool = True, **env: str) -> dict[str, Outcome]:
    """What its checks come to, by name."""
    return {outcome.name: outcome for outcome in examine(target(bench, **env), purpose, quick=quick)}
