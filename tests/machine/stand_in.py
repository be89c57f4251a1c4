"""A made-up machine: a tree of files below `root` and executable tools in `bin`. All values are invented."""

from __future__ import annotations

import json
from pathlib import Path

from madlite.machine.detect import detect_machine
from madlite.machine.host import Host
from madlite.model import Machine

GIB = 1 << 30


class Bench:
    """Builds the machine piece by piece, then has it detected."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.bin = folder, folder / "root", folder / "bin"
        self.root.mkdir(parents=True)
        self.bin.mkdir()
        self.limit_s = 20.0
        self.env: dict[str, str] = {}

    def for_row(self, number: int) -> Bench:
        """Return an empty one, for a row of a table."""
        return Bench(self.folder / f"row{number}")

    def detect(self, **overrides: object) -> Machine:
        env = {"PATH": "/usr/bin:/bin", **self.env}
        return detect_machine(overrides, host=Host(root=self.root, path=str(self.bin), limit_s=self.limit_s, env=env))

    def file(self, path: str, text: str = "") -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def tool(self, name: str, *answers: tuple[str, str], code: int = 0) -> None:
        """A tool that prints the text of the first pattern (as in `case`) its arguments match, else fails."""
        cases = []
        for n, (pattern, text) in enumerate(answers):
            said = self.folder / f"{name}.{n}"
            said.write_bytes(text.encode("utf-8", "surrogateescape"))
            cases.append(f'{pattern or chr(39) * 2}) cat "{said}"; exit {code} ;;')
        self.script(name, 'case "$*" in\n' + "\n".join(cases) + '\nesac\necho "unknown: $*" >&2\nexit 64')

    def script(self, name: str, body: str) -> None:
        place = self.bin / name
        place.write_text(f"#!/bin/sh\n{body}\n")
        place.chmod(0o755)

    def node(self, number: int, *, banks: tuple[tuple[int, int], ...] = (), **numbers: int) -> None:
        """One node of the KFD topology; without simd_count it is a CPU."""
        place = f"sys/class/kfd/kfd/topology/nodes/{number}"
        lines = {"cpu_cores_count": 0 if numbers else 48, "simd_count": 0, "simd_per_cu": 4, **numbers}
        self.file(f"{place}/gpu_id", "5711\n" if numbers else "0\n")
        if numbers.get("drm_render_minor"):
            self.file(f"dev/dri/renderD{numbers['drm_render_minor']}")
        self.file(f"{place}/properties", "".join(f"{name} {value}\n" for name, value in lines.items()))
        for bank, (heap, size) in enumerate(banks):
            self.file(f"{place}/mem_banks/{bank}/properties", f"heap_type {heap}\nsize_in_bytes {size}\nflags 0\n")

    def mi300x(self, count: int, *, first: int = 1, **other: int) -> None:
        """KFD nodes of whole MI300X; node n has bus n and render node 127 + n."""
        for node in range(first, first + count):
            numbers = {
                "simd_count": 1216,
                "gfx_target_version": 90402,
                "device_id": 0x74A1,
                "unique_id": 0xA100 + node,
                "location_id": node << 8,
                "domain": 0,
                "drm_render_minor": 127 + node,
                **other,
            }
            self.node(node, banks=((1, 192 * GIB - (16 << 20)),), **numbers)

    def pci(self, bus: str, vendor: str, device: str, kind: str) -> None:
        for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
            self.file(f"sys/bus/pci/devices/{bus}/{name}", f"0x{text}\n")


def amd_static(numbers: list[int], *, wrapped: bool = True, **facts: object) -> str:
    """Output of `amd-smi static --json`, of GPUs with these ids."""
    said = {"name": "AMD Instinct MI300X", "arch": "gfx942", "mb": 196592, "id": "0x74a1", "driver": "6.12.12"} | facts
    entries = [
        {
            "gpu": number,
            "asic": {
                "market_name": said["name"],
                "vendor_id": "0x1002",
                "device_id": said["id"],
                "asic_serial": "N/A",
                "num_compute_units": said.get("units", 304),
                "target_graphics_version": said["arch"],
            },
            "bus": {"bdf": f"0000:{number + 16:02X}:00.0", "slot_type": "OAM"},
            "driver": {"name": "amdgpu", "version": said["driver"]},
            "board": {"product_name": "N/A"},
            "vram": {"type": "HBM3", "size": {"value": said["mb"], "unit": "MB"} if said["mb"] else "N/A"},
        }
        for number in numbers
    ]
    return json.dumps({"gpu_data": entries} if wrapped else entries, indent=4)


def amd_list(nodes: list[int | str]) -> str:
    """Output of `amd-smi list --json`: GPU 0, 1, … on these KFD nodes."""
    return json.dumps(
        [
            {
                "gpu": n,
                "bdf": f"0000:{n + 16:02x}:00.0",
                "uuid": f"{n:02x}ff0000-0000-1000-8000-00000000000{n}",
                "node_id": node,
            }
            for n, node in enumerate(nodes)
        ]
    )


def rocm_cards(count: int, *, series_key: str, **facts: str) -> str:
    """Output of `rocm-smi … --json`."""
    said = {"name": "AMD Instinct MI325X", "bytes": str(255 * GIB + 900 * (1 << 20)), "gfx": "gfx942"} | facts
    cards = {
        f"card{n}": {
            "Unique ID": f"0xb20{n}",
            "VRAM Total Memory (B)": said["bytes"],
            "VRAM Total Used Memory (B)": "12582912",
            "PCI Bus": f"0000:{n + 64:02X}:00.0",
            series_key: said["name"],
            "Card Model": "0x74a5",
            "GFX Version": said["gfx"],
        }
        for n in range(count)
    }
    return json.dumps(cards | {"system": {"Driver version": "6.8.5"}})
