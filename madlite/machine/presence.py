"""Is a GPU in this machine at all? Asked of files, so that a broken tool never turns a GPU machine into a CPU one.

PCI classes: 0x03 display (0x0300 VGA, 0x0302 3D, 0x0380 other), 0x12 processing accelerator.
"""

from __future__ import annotations

from pathlib import Path

from madlite.machine.facts import whole
from madlite.machine.host import list_folder, read_file
from madlite.machine.kfd import Topology
from madlite.machine.products import INSTINCT_IDS
from madlite.model import Value

AMD, NVIDIA = "0x1002", "0x10de"


class Presence(Value, frozen=True):
    """What shows that GPUs of a vendor are here, one phrase each; empty without any."""

    amd: tuple[str, ...] = ()
    nvidia: tuple[str, ...] = ()


def look_for_gpus(root: Path, topology: Topology) -> Presence:
    """Return the traces of GPUs under /sys, /dev and /proc."""
    display = [found for folder in list_folder(root / "sys/bus/pci/devices") if (found := _pci(folder))]
    amd = [str(device) for device in display if device.vendor == AMD and device.is_instinct]
    nvidia = [str(device) for device in display if device.vendor == NVIDIA and device.kind in ("0x0300", "0x0302")]
    return Presence(amd=(*_kfd(root, topology), *amd), nvidia=(*_nvidia_driver(root), *nvidia))


class PciDevice(Value, frozen=True):
    """A display device or accelerator on the PCI bus, as sysfs gives it."""

    bus: str
    vendor: str
    device: str
    kind: str  # class and subclass, e.g. 0x0302

    @property
    def is_instinct(self) -> bool:
        """Whether this is an AMD compute GPU: a plain display adapter is none, its driver need not compute."""
        return whole(self.device) in INSTINCT_IDS or self.kind.startswith("0x12")

    def __str__(self) -> str:
        return f"PCI device {self.bus} [{self.vendor[2:]}:{self.device[2:]}]"


def _pci(folder: Path) -> PciDevice | None:
    kind = read_file(folder / "class")[:6]
    if not kind.startswith(("0x03", "0x12")):
        return None
    vendor = read_file(folder / "vendor").lower()
    return PciDevice(bus=folder.name, vendor=vendor, device=read_file(folder / "device").lower(), kind=kind)


def _kfd(root: Path, topology: Topology) -> list[str]:
    """Return KFD's traces; amdgpu makes /dev/kfd without a GPU too, so it counts only where no node tells more."""
    traces = [f"{len(topology.gpus)} GPUs in the KFD topology"] if topology.gpus else []
    if topology.closed:
        traces.append(f"{topology.closed} KFD nodes that may not be read")
    if not topology.found and (root / "dev/kfd").exists():
        traces.append("/dev/kfd")
    return traces


def _nvidia_driver(root: Path) -> list[str]:
    files = [path for path in list_folder(root / "dev") if path.name[:6] == "nvidia" and path.name[6:].isdecimal()]
    boards = list_folder(root / "proc/driver/nvidia/gpus")
    return [f"/dev/{path.name}" for path in files] + [f"/proc/driver/nvidia/gpus/{path.name}" for path in boards]
