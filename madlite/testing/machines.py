"""The machines that plans are made for: AMD and NVIDIA nodes, one GPU, and none."""

from __future__ import annotations

from madlite.model import Gpu, Machine, Vendor

_GIB = 1 << 30


def _gpus(vendor: Vendor, device: str, arch: str, product: str, count: int, memory_gib: int) -> Machine:
    gpus = tuple(
        Gpu(
            index=n,
            arch=arch,
            product=product,
            memory_bytes=memory_gib * _GIB,
            render_minor=128 + n if vendor == "AMD" else None,
        )
        for n in range(count)
    )
    return Machine(
        vendor=vendor,
        gpus=gpus,
        architecture=arch,
        product=product,
        device=device,
        rocm_version="7.0.0" if vendor == "AMD" else "",
        cuda_version="12.8" if vendor == "NVIDIA" else "",
        pretended=True,
    )


MACHINES: tuple[Machine, ...] = (
    _gpus("AMD", "MI300X", "gfx942", "AMD Instinct MI300X", 8, 192),
    _gpus("AMD", "MI355X", "gfx950", "AMD Instinct MI355X", 8, 288),
    _gpus("NVIDIA", "H100", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", 8, 80),
    _gpus("NVIDIA", "H100", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", 1, 80),
    Machine(pretended=True),
)
"""What every recipe is rendered for, unless a kit's user names machines."""


def name_of(machine: Machine) -> str:
    """Return a machine as --machine writes it: 8xMI300X, or cpu."""
    return f"{len(machine.gpus)}x{machine.device}" if machine.gpus else "cpu"
