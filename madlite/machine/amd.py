"""Detect AMD GPUs: KFD for count, architecture and render nodes, the tools for names, versions and their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from madlite.machine.host import Host, list_folder, read_file, read_in_turn, rocm_roots, run_tool
from madlite.machine.products import complete, is_instinct
from madlite.machine.sources.amd_smi import read_amd_smi
from madlite.machine.sources.base import DetectedGpus, GpuFacts, SourceReport
from madlite.machine.sources.kfd import Topology
from madlite.machine.sources.rocm_smi import read_rocm_smi

FACTS = tuple(name for name in GpuFacts.__struct_fields__ if name != "index")
KEYS = ("node_id", "bus", "unique_id")  # what names a GPU, surest first; partitions share a unique id
FILLED_IN = {"arch": "table of products", "product": "table of products", "render_minor": "/sys/bus/pci/devices"}

# `.info/version` below a ROCm root holds one line, X.Y.Z-BUILD, and so do its siblings `.info/version-*`
VERSION = re.compile(r"^\d+(?:\.\d+)+")
ROCM = re.compile(r"ROCm version:\s*(\d+(?:\.\d+)+)", re.IGNORECASE)
HIP = re.compile(r"^(\d+\.\d+)", re.MULTILINE)
DRIVER = "sys/module/amdgpu/version"  # of a driver that was installed apart from the kernel
RENDER = re.compile(r"renderD(\d{1,6})")


def detect_amd(host: Host, topology: Topology) -> DetectedGpus:
    """Return what KFD and the tools say together; without GPUs where none of them lists one."""
    tools = read_in_turn(host, read_amd_smi, read_rocm_smi, lambda report: any(gpu.product for gpu in report.gpus))
    kfd = SourceReport(name="KFD", gpus=topology.gpus, problem=_problem(topology), absent=not topology.closed)
    merged, origins = _merge(kfd, tools)
    known = tuple(_with_render_minor(host.root, complete(gpu)) for gpu in merged)
    gpus = _without_displays(known)
    origins |= {
        fact: origin
        for fact, origin in FILLED_IN.items()
        if any(getattr(one, fact) != getattr(other, fact) for one, other in zip(merged, known, strict=True))
    }
    drivers = [(read_file(host.root / DRIVER), f"/{DRIVER}"), *((tool.driver_version, tool.name) for tool in tools)]
    driver, origins["driver_version"] = next((both for both in drivers if both[0]), ("", ""))
    rocm, origins["rocm_version"] = _rocm_version(host, amd_smi=bool(tools[0].gpus))
    left_out = [f"{gpu.index} ({gpu.product or gpu.arch})" for gpu in known if gpu not in gpus]
    note = SourceReport(name="gpus", problem=f"left out as no Instinct: GPU {', '.join(left_out)}" if left_out else "")
    return DetectedGpus(
        vendor="AMD",
        gpus=gpus,
        driver_version=driver,
        rocm_version=rocm,
        origins=origins,
        reports=(kfd, *tools, note),
    )


def render_node_warnings(root: Path, gpus: Sequence[GpuFacts]) -> list[SourceReport]:
    """Return a warning of render nodes without a file, which no container can be given."""
    there = {path.name for path in list_folder(root / "dev/dri")}
    nodes = [f"renderD{gpu.render_minor}" for gpu in gpus if gpu.render_minor is not None]
    missing = [node for node in nodes if node not in there]
    return [SourceReport(name="/dev/dri", problem=f"has no {', '.join(missing)}")] if missing else []


def _problem(topology: Topology) -> str:
    if topology.gpus:
        return ""
    if topology.closed:
        return f"{topology.closed} nodes may not be read by this user"
    return "lists no GPU" if topology.found else "no topology below /sys"


def _with_render_minor(root: Path, gpu: GpuFacts) -> GpuFacts:
    """Return a GPU with the render node that sysfs lists below its PCI address, where KFD does not say it."""
    if gpu.render_minor is not None or not gpu.bus:
        return gpu
    entries = list_folder(root / "sys/bus/pci/devices" / gpu.bus / "drm")
    minor = next((int(found[1]) for path in entries if (found := RENDER.fullmatch(path.name))), None)
    return msgspec.structs.replace(gpu, render_minor=minor)


def _without_displays(gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
    """Return the GPUs less those known to be no Instinct, where there is one: nobody benchmarks both together."""
    kept = tuple(gpu for gpu in gpus if is_instinct(gpu) or not gpu.arch)
    return kept if any(map(is_instinct, kept)) else gpus


def _merge(kfd: SourceReport, tools: Sequence[SourceReport]) -> tuple[list[GpuFacts], dict[str, str]]:
    """Return the GPUs of the first source that lists any, completed from the others; and each fact's source.

    KFD is asked first as the driver itself. GPUs are numbered as the first tool numbers them that can be matched to
    it one by one, which is how GPU ids are given on a command line.
    """
    listing = [source for source in (kfd, *tools) if source.gpus]
    if not listing:
        return [], {}
    base = _in_tool_order(kfd.gpus, tools) if kfd.gpus else listing[0].gpus
    views = {source.name: _views(base, source.gpus) for source in listing}
    origins = {"gpus": listing[0].name}
    gpus = []
    for place, gpu in enumerate(base):
        facts: dict[str, object] = {}
        for name, (source, view) in ((name, both) for name in FACTS for both in views.items()):
            value = getattr(view[place], name)
            if name not in facts and value not in (None, ""):
                facts[name] = value
                origins.setdefault(name, source)
        gpus.append(msgspec.structs.replace(GpuFacts(index=gpu.index), **facts))
    return gpus, origins


def _pair(gpus: Sequence[GpuFacts], others: Sequence[GpuFacts]) -> list[GpuFacts] | None:
    """Return for each GPU the other source's view of it, by the first key that names all of them; None without."""
    for key in KEYS:
        table = {getattr(other, key): other for other in others if getattr(other, key) not in (None, "")}
        if len(table) == len(others) and all(getattr(gpu, key) in table for gpu in gpus):
            return [table[getattr(gpu, key)] for gpu in gpus]
    return None


def _in_tool_order(gpus: Sequence[GpuFacts], tools: Sequence[SourceReport]) -> Sequence[GpuFacts]:
    for tool in tools:
        paired = _pair(gpus, tool.gpus)
        if paired and len({view.index for view in paired}) == len(gpus):
            numbered = zip(gpus, paired, strict=True)
            renamed = [msgspec.structs.replace(gpu, index=view.index) for gpu, view in numbered]
            return sorted(renamed, key=lambda gpu: gpu.index)
    return gpus


def _views(base: Sequence[GpuFacts], gpus: Sequence[GpuFacts]) -> Sequence[GpuFacts]:
    """Return one view per GPU; by position where nothing names them, empty where not even the counts agree."""
    paired = _pair(base, gpus)
    if paired is not None:
        return paired
    return gpus if len(gpus) == len(base) else [GpuFacts(index=gpu.index) for gpu in base]


def _rocm_version(host: Host, *, amd_smi: bool) -> tuple[str, str]:
    """Return the version (6.4.1) and what it came from, both empty where nothing tells it.

    `amd_smi` allows to run amd-smi: one that hung before would hang again. HIP's version shares ROCm's first two
    numbers only.
    """
    for folder in (root / ".info" for root in rocm_roots(host)):
        siblings = [path for path in list_folder(folder) if path.name.startswith("version-")]
        for file in (folder / "version", *siblings):
            if found := VERSION.match(read_file(file)):
                return found[0], str(file)
    tools = [(HIP, ("hipconfig", "--version"))]
    for pattern, command in [(ROCM, ("amd-smi", "version")), *tools] if amd_smi else tools:
        if found := pattern.search(run_tool(host, *command).text):
            return found[1], " ".join(command)
    return "", ""
