"""What a run can use."""

from __future__ import annotations

from typing import Literal, TypeAlias

from madlite.model.cards import Problem
from madlite.model.values import Value

Vendor: TypeAlias = Literal["AMD", "NVIDIA", "CPU"]


class Gpu(Value, frozen=True):
    """One GPU (or partition of one) as a workload sees it."""

    index: int
    arch: str = ""  # gfx942, or NVIDIA's product name
    product: str = ""  # AMD Instinct MI300X, NVIDIA H100 80GB HBM3
    memory_bytes: int | None = None
    render_minor: int | None = None  # /dev/dri/renderD<minor>, AMD only
    unique_id: str = ""
    bus: str = ""


class Machine(Value, frozen=True):
    """What a run can use here. A CPU machine has no GPU and architecture `cpu`."""

    vendor: Vendor = "CPU"
    gpus: tuple[Gpu, ...] = ()
    architecture: str = "cpu"  # perf.csv's gpu_architecture: gfx942, NVIDIA H100 80GB HBM3, cpu
    product: str = "cpu"
    device: str = "cpu"  # short name of result rows: MI300X, MI325X, MI350X, MI355X, H100, H200, cpu
    driver_version: str = ""
    rocm_version: str = ""
    cuda_version: str = ""
    hostname: str = ""
    host_os: str = ""
    sources: dict[str, str] = {}  # which tool or override each fact came from
    problems: tuple[Problem, ...] = ()  # tools that failed or hung while another one answered
    pretended: bool = False  # GPUs that are not here: to plan for, never to run on
