"""Plan for a machine that is not here: its GPUs from the overrides and the table of products.

What the overrides leave open is as on most such machines, so that a dry run shows every variable and device.
"""

from __future__ import annotations

import msgspec

from madlite.errors import UsageProblem
from madlite.machine.facts import Seen
from madlite.machine.found import Found
from madlite.machine.kfd import Topology
from madlite.machine.overrides import Asked
from madlite.machine.products import find_product, short_name
from madlite.model import Vendor

ROCM, CUDA = "7.0.0", "12.8"  # the first that know every product of the table
OF_VENDOR = {"AMD": ("render_minor", "rocm_version"), "NVIDIA": ("cuda_version",)}
FIRST_RENDER = 128  # Linux, drivers/gpu/drm/drm_drv.c
RESERVED = {"gfx942": 8, "gfx950": 8}  # render nodes a GPU takes: one for each partition it can be divided into
WHAT = ("device", "product", "arch")  # the fields that say which GPU, the surest first


def is_here(asked: Asked, topology: Topology) -> bool:
    """Say whether the AMD machine described is this one; then its own render nodes and order of GPUs matter."""
    wanted = describe(asked)
    device = short_name(wanted, "AMD")
    here = [short_name(gpu, "AMD") for gpu in topology.gpus if gpu.arch == wanted.arch]
    alike = [name for name in here if wanted.arch in (name, device) or name == device]
    return asked.vendor == "AMD" and len(alike) >= (asked.n_gpus or 1)


def pretend(asked: Asked) -> Found:
    """Return the GPUs that the overrides describe.

    Raises:
        UsageProblem: no architecture is known for the product asked for.
    """
    one = describe(asked)
    if asked.vendor is None or not one.arch:
        raise UsageProblem(
            f"no architecture is known for {asked.device or asked.product}",
            'name it: --additional-context \'{"gpu_arch": "gfx942"}\'',
        )
    by = {field: asked.origin(field) for field in WHAT if field in asked.keys}
    named = next(iter(by.values()))
    usual = f"usual for {asked.device or asked.product or asked.arch}"
    told = {**dict.fromkeys(("memory_bytes", "arch", "product"), named), **by, "gpus": asked.origin("n_gpus")}
    return Found(
        vendor=asked.vendor,
        gpus=tuple(_numbered(one, asked.vendor, n) for n in range(asked.n_gpus or 0)),
        rocm_version=ROCM if asked.vendor == "AMD" else "",
        cuda_version=CUDA if asked.vendor == "NVIDIA" else "",
        origins={**dict.fromkeys(OF_VENDOR[asked.vendor], usual), **told},
        pretended=True,
    )


def _numbered(one: Seen, vendor: Vendor, number: int) -> Seen:
    render = FIRST_RENDER + number * RESERVED.get(one.arch, 1) if vendor == "AMD" else None
    return msgspec.structs.replace(one, position=number, render_minor=render)


def describe(asked: Asked) -> Seen:
    """Return one GPU as asked for; NVIDIA's architecture is its product name."""
    known = next(filter(None, (find_product(getattr(asked, field)) for field in WHAT)), None)
    name = asked.product or (known.name if known else "")
    if asked.vendor == "NVIDIA":
        name = name or asked.arch or asked.device
    arch = asked.arch or (known.arch if known else "")
    return Seen(
        position=0,
        arch=name if asked.vendor == "NVIDIA" else arch,
        product=name,
        memory_bytes=known.memory_mib << 20 if known else None,
    )
