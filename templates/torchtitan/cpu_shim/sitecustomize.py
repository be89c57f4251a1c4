"""A shim that lets torchtitan 0.2 train on a machine without a GPU. It is a test bench, not a product.

torchtitan knows accelerators only.  Python imports a `sitecustomize` at start; run.sh puts this one on PYTHONPATH when
the run has no GPU.  Nothing happens until a process imports torchtitan; then torch is told that its accelerator is the
CPU, and torch.cpu gets the few functions that torchtitan calls on its device module.  What the trainer then prints is
real time of real training, except memory: that is the peak size of the process, as a CPU has no pool of its own.

Where a GPU is present the shim stops the process: a number from a CPU must never pass for a GPU's.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GPU_DEVICES = ("/dev/kfd", "/dev/nvidia0")


class BeforeTorchtitan:
    """An import hook that changes torch when torchtitan is first asked for, and finds nothing itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Do the changes once; the other finders then go on to find torchtitan."""
        if name == "torchtitan":
            sys.meta_path.remove(self)
            refuse_gpus()
            change_torch()


def refuse_gpus() -> None:
    """End the process where a GPU could be used."""
    seen = [device for device in GPU_DEVICES if Path(device).exists()] or gpus_of_torch()
    if seen:
        raise SystemExit(f"madlite: the CPU shim for torchtitan was loaded on a machine with a GPU ({seen[0]})")


def gpus_of_torch() -> list[str]:
    """Return the names of the GPUs that torch can use, AMD's included."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def change_torch() -> None:
    """Give torch what torchtitan takes for granted."""
    import torch
    import torch.distributed

    # torchtitan.tools.utils asks torch for the accelerator, and falls back to cuda.
    torch._utils._get_available_device_type = lambda: "cpu"
    add_device_functions(torch.cpu)
    # torchtitan.distributed.utils names the device of a barrier, which gloo refuses.
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group, async_op)
    # torchtitan.models.moe.kernels imports triton for any model; a CPU build of torch comes without it.
    if importlib.util.find_spec("triton") is None:
        kernels: Any = type(sys)("torchtitan.models.moe.kernels")
        kernels.generate_permute_indices = None
        sys.modules[kernels.__name__] = kernels


def add_device_functions(device_module: Any) -> None:
    """Add what torchtitan.components.metrics reads of a device: name, size, and memory in bytes."""
    import resource
    from collections import namedtuple

    properties = namedtuple("properties", "name total_memory")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def memory_stats(device: object = None) -> dict[str, int]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak}

    device_module.get_device_name = lambda device=None: "cpu"
    device_module.get_device_properties = lambda device=None: properties("cpu", total)
    device_module.memory_stats = memory_stats
    device_module.reset_peak_memory_stats = lambda device=None: None
    device_module.empty_cache = lambda: None


def run_hidden_sitecustomize() -> None:
    """Run the `sitecustomize` that Python would have imported, had this one not come first: the next on the path."""
    folders = [Path(folder).resolve() for folder in sys.path]
    elsewhere = sys.path[folders.index(HERE) + 1 :] if HERE in folders else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, BeforeTorchtitan())  # type: ignore[arg-type]
run_hidden_sitecustomize()
