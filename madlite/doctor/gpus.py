"""Checks of the GPUs: of AMD's by the driver's files, of NVIDIA's by nvidia-smi.

Formats: Linux, Documentation/gpu/amdgpu (thermal, ras, driver-misc), drivers/gpu/drm/amd/amdkfd/kfd_topology.c (of a
link `type` 11 is XGMI: kfd_crat.h); `nvidia-smi --help-query-gpu`, `nvidia-smi nvlink -s`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from madlite.doctor.check import UNREADABLE, Answer, Target, equals
from madlite.errors import CheckFailed
from madlite.machine.detect import detect_machine, pci_gpus
from madlite.machine.host import list_folder, read_file, run_tool
from madlite.machine.processes import OwnProcesses, describe_processes, find_foreign, sees_all_processes
from madlite.machine.products import complete, is_instinct, short_name
from madlite.machine.sources.amdgpu import NODES, AmdGpu, driver_facts, kfd_processes, monitor_folder, read_topology
from madlite.machine.sources.base import GIB, GpuFacts, clean, parse_int
from madlite.machine.sources.nvidia_smi import FORMAT
from madlite.model import Gpu, Vendor
from madlite.text import counted

_NVIDIA_GPUS = "proc/driver/nvidia/gpus"
_XGMI = "11"
_MONITORS = ("gpuagent", "rocm-smi-daemon", "amd-smi", "dcgm-exporter", "nv-hostengine")  # which do no work on a GPU
_HOT_C = 85.0
_IDLE_OR_NONE = 0x1  # the clocks' event reason of a GPU that does nothing


def find_gpus(root: Path) -> tuple[Vendor, str, tuple[GpuFacts, ...]]:
    """Return vendor, short name and GPUs as the drivers' files have them, NVIDIA's first; no tool is run."""
    nvidia = tuple(_nvidia(index, board) for index, board in enumerate(list_folder(root / _NVIDIA_GPUS)))
    if nvidia:
        return "NVIDIA", short_name(nvidia[0], "NVIDIA"), nvidia
    amd = tuple(gpu for gpu in map(complete, read_topology(root).gpus) if is_instinct(gpu))
    on_bus = [GpuFacts(index=0, device_id=board.device_id) for board in pci_gpus(root) if board.vendor == "AMD"]
    if amd or on_bus:
        return "AMD", short_name((amd or on_bus)[0], "AMD"), amd
    return ("NVIDIA", "", ()) if pci_gpus(root) else ("CPU", "", ())


def _nvidia(index: int, board: Path) -> GpuFacts:
    """Return a GPU as the driver describes it: lines `Model: 	 NVIDIA H200`, `GPU UUID: 	 GPU-…`."""
    lines = (line.partition(":") for line in read_file(board / "information").splitlines())
    fields = {name.strip(): text.strip() for name, _, text in lines}
    return GpuFacts(index=index, product=fields.get("Model", ""), unique_id=fields.get("GPU UUID", ""), bus=board.name)


def _all_alike(texts: Sequence[str], wanted: Iterable[str]) -> Answer:
    """Return whether a value is right on every GPU."""
    known = [text for text in texts if text]
    return Answer(", ".join(dict.fromkeys(known)), set(known) <= set(wanted)) if known else Answer(UNREADABLE)


def _by_gpu(target: Target, file: str) -> list[str]:
    return [read_file(target.pci(gpu) / file) for gpu in target.gpus]


def gpu_count(target: Target, right: str) -> Answer:
    """Check that the driver lists each GPU of the PCI bus."""
    boards = len(_boards(target.gpus))
    on_bus = sum(board.vendor == target.vendor for board in pci_gpus(target.root))
    text = f"{len(target.gpus)} x {target.device}" if target.device else f"{len(target.gpus)}"
    text += f" on {boards} boards" if boards != len(target.gpus) else ""
    return Answer(text, boards == on_bus if on_bus else None, f"{on_bus} on the PCI bus" if on_bus else "")


def _boards(gpus: Iterable[Gpu]) -> set[str]:
    """Return the PCI addresses of GPUs; partitions of one have one, but for the function."""
    return {gpu.bus.rpartition(".")[0] or str(gpu.index) for gpu in gpus}


def gpu_tools(target: Target, right: str) -> Answer:
    """Check that the vendor's tools or library list the GPUs that the driver lists."""
    try:
        machine = detect_machine({}, host=target.host)
    except CheckFailed as error:
        return Answer(error.message, False)
    listed = len(machine.gpus)
    problems = "".join(f"; {problem.where}: {problem.what}" for problem in machine.problems)
    versions = {"ROCm": machine.rocm_version, "CUDA": machine.cuda_version}
    version = "".join(f", {name} {text}" for name, text in versions.items() if text)
    return Answer(f"{listed} x {machine.device}{version}{problems}", listed == len(target.gpus), f"{len(target.gpus)}")


def driver(target: Target, right: str) -> Answer:
    """Check that the driver is loaded."""
    if target.vendor == "AMD":
        folder = target.root / "sys/module/amdgpu"
        own = read_file(folder / "version") or "the kernel's own"
        return Answer(f"amdgpu {own}" if folder.is_dir() else "amdgpu is not loaded", folder.is_dir())
    version = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", read_file(target.root / "proc/driver/nvidia/version"))
    return Answer(f"nvidia {version[1]}" if version else "nvidia is not loaded", bool(version))


def device_nodes(target: Target, right: str) -> Answer:
    """Check that this user may open the GPUs."""
    dev = target.root / "dev"
    if target.vendor == "AMD":
        nodes = [dev / "kfd", *(dev / f"dri/renderD{gpu.render_minor}" for gpu in target.gpus if gpu.render_minor)]
    else:
        nodes = [dev / "nvidiactl", *(path for path in list_folder(dev) if re.fullmatch(r"nvidia\d+", path.name))]
    closed = [f"/dev/{node.relative_to(dev)}" for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    return Answer(f"closed: {', '.join(closed)}" if closed else f"{len(nodes)} open", not closed)


def pcie_link(target: Target, right: str) -> Answer:
    """Check speed and width of the links to the GPUs."""
    speeds, widths = (_by_gpu(target, f"current_link_{what}") for what in ("speed", "width"))
    links = [f"{speed.removesuffix(' PCIe')} x{width}" for speed, width in zip(speeds, widths, strict=True)]
    known = [link if link[0].isdigit() else "" for link in links]  # `Unknown` of a virtual function
    return _all_alike(known, [right])


def pcie_errors(target: Target, right: str) -> Answer:
    """Check that no link to a GPU counts fatal errors."""
    texts = [re.search(r"^TOTAL_ERR_FATAL (\d+)", text, re.MULTILINE) for text in _by_gpu(target, "aer_dev_fatal")]
    counts = [int(text[1]) for text in texts if text]
    return Answer(f"{sum(counts)}", not any(counts)) if counts else Answer(UNREADABLE)


def acs(target: Target, right: str) -> Answer:
    """Check that no PCI device sends traffic between GPUs through the root."""
    output = run_tool(target.host, "lspci", "-vvv")
    controls = re.findall(r"ACSCtl:\s*SrcValid([+-])", output.text)
    if not controls:  # none has it, or only root may read it
        return Answer(output.problem or UNREADABLE)
    on = controls.count("+")
    return Answer(f"on at {on} of {counted(len(controls), 'device')}", not on)


def idle(target: Target, right: str) -> Answer:
    """Check that nothing uses the GPUs."""
    if target.vendor == "AMD":
        busy = [text for text in _by_gpu(target, "gpu_busy_percent") if text]
    else:
        busy = [row[0] for row in _query(target, "utilization.gpu")]
    busiest = max((number for text in busy if (number := parse_int(text)) is not None), default=None)
    return Answer(UNREADABLE) if busiest is None else Answer(f"{busiest} %", busiest == 0)


def temperature(target: Target, right: str) -> Answer:
    """Check that the GPUs are cool, as they are where nothing uses them."""
    readings = AmdGpu(target.root, target.gpus).read().readings
    degrees = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    return Answer(f"{max(degrees):.0f} °C", max(degrees) < _HOT_C) if degrees else Answer(UNREADABLE)


def other_processes(target: Target, right: str) -> Answer:
    """Check that no process holds memory of a GPU or works on it."""
    if target.vendor == "NVIDIA":
        output = run_tool(target.host, "nvidia-smi", "--query-compute-apps=pid,process_name", FORMAT)
        names = [line.strip() for line in output.text.splitlines() if line.strip()]
        return _processes(names) if not output.problem else Answer(output.problem)
    listed = kfd_processes(target.root, target.gpus)
    if listed is None or not sees_all_processes(target.root / "proc"):
        return Answer(UNREADABLE)
    return _processes(describe_processes(find_foreign(listed, OwnProcesses(), target.root / "proc")))


def _processes(texts: Sequence[str]) -> Answer:
    foreign = [text for text in texts if not any(name in text for name in _MONITORS)]
    return Answer("; ".join(foreign) or "none", not foreign)


def uncorrected_errors(target: Target, right: str) -> Answer:
    """Check that no GPU counts errors of its memory or units that could not be corrected."""
    if target.vendor == "NVIDIA":
        counts = {f"GPU {n}": row[0] for n, row in enumerate(_query(target, "ecc.errors.uncorrected.volatile.total"))}
    else:
        counts = {
            f"GPU {gpu.index} {file.name.removesuffix('_err_count')}": count[1]
            for gpu in target.gpus
            for file in list_folder(target.pci(gpu) / "ras")
            if (count := re.search(r"^ue:\s*(\d+)", read_file(file), re.MULTILINE))
        }
    known = {name: int(text) for name, text in counts.items() if text.isdecimal()}
    bad = [f"{name}: {count}" for name, count in known.items() if count]
    return Answer(", ".join(bad) or "0", not bad) if known else Answer(UNREADABLE)


def retired_memory(target: Target, right: str) -> Answer:
    """Check that no GPU has bad pages, or rows that wait for a reset or could not be replaced."""
    if target.vendor == "NVIDIA":
        rows = _query(target, "remapped_rows.pending,remapped_rows.failure")
        return _all_alike(["/".join(map(clean, row)) if clean(row[0]) else "" for row in rows], ["No/No", "0/0"])
    files = [target.pci(gpu) / "ras/gpu_vram_bad_pages" for gpu in target.gpus]
    if not any(file in list_folder(file.parent) for file in files):
        return Answer(UNREADABLE)
    counts = {gpu.index: len(read_file(file).splitlines()) for gpu, file in zip(target.gpus, files, strict=True)}
    bad = [f"GPU {index}: {count}" for index, count in counts.items() if count]
    return Answer(", ".join(bad) or "none", not bad)


def xgmi(target: Target, right: str) -> Answer | None:
    """Check that XGMI connects all pairs of GPUs."""
    gpus = read_topology(target.root).gpus
    nodes = [gpu.node_id for gpu in gpus] if len(_boards(gpus)) == len(gpus) else []  # none of partitions
    linked = {(node, other) for node in nodes for other in _linked(target.root / NODES / f"{node}/io_links")}
    pairs = list(combinations(nodes, 2))
    up = sum(pair in linked and pair[::-1] in linked for pair in pairs)
    return Answer(f"{up} of {counted(len(pairs), 'pair')}", up == len(pairs)) if pairs else None


def _linked(folder: Path) -> set[int]:
    links = [
        dict(re.findall(r"^(\w+) (\d+)$", read_file(link / "properties"), re.MULTILINE)) for link in list_folder(folder)
    ]
    return {int(link["node_to"]) for link in links if link.get("type") == _XGMI and "node_to" in link}


def partitions(target: Target, right: str) -> Answer:
    """Check that the GPUs are whole."""
    facts = driver_facts(target.root, target.gpus)
    texts = [facts.get(name, "") for name in ("compute_partition", "memory_partition")]
    return equals(", ".join(filter(None, texts)), right)


def firmware(target: Target, right: str) -> Answer:
    """Check that all GPUs have the same firmware."""
    versions: dict[str, set[str]] = {}
    for gpu in target.gpus:
        folder = target.pci(gpu)
        for file in (folder / "vbios_version", *list_folder(folder / "fw_version")):
            versions.setdefault(file.name.removesuffix("_fw_version"), set()).add(read_file(file))
    known = {name: texts for name, texts in versions.items() if texts != {""}}
    if not known:
        return Answer(UNREADABLE)
    mixed = [name for name, texts in known.items() if len(texts) > 1]
    return Answer(f"mixed: {', '.join(mixed)}" if mixed else f"{len(known)} alike", not mixed)


def power_limit(target: Target, right: str) -> Answer:
    """Check that the power limit of each GPU is its default."""
    is_nvidia = target.vendor == "NVIDIA"
    if is_nvidia:
        pairs = _query(target, "power.limit,power.default_limit")
    else:
        monitors = [monitor_folder(target.pci(gpu)) for gpu in target.gpus]
        pairs = [[read_file(folder / name) for name in ("power1_cap", "power1_cap_default")] for folder in monitors]
    known = [pair for pair in pairs if all(map(_is_number, pair))]
    if not known:
        return Answer(UNREADABLE)
    watts = [[float(text) / (1 if is_nvidia else 1e6) for text in pair] for pair in known]
    limits, defaults = (
        ", ".join(dict.fromkeys(f"{value:g} W" for value in column)) for column in zip(*watts, strict=True)
    )
    fix = f"sudo nvidia-smi -pl {watts[0][1]:g}" if is_nvidia else ""
    return Answer(limits, all(limit == default for limit, default in watts), defaults, fix)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(?:\.\d+)?", text) is not None


def performance_level(target: Target, right: str) -> Answer:
    """Check that nobody holds the clocks of a GPU."""
    return _all_alike(_by_gpu(target, "power_dpm_force_performance_level"), ["auto", "high"])


def gpu_memory(target: Target, right: str) -> Answer:
    """Check that all GPUs have the same memory."""
    sizes = [text for text in _by_gpu(target, "mem_info_vram_total") if text.isdecimal()]
    texts = ", ".join(dict.fromkeys(f"{int(size) / GIB:.1f} GiB" for size in sizes))
    return Answer(texts, len(set(sizes)) == 1) if sizes else Answer(UNREADABLE)


def rocm_smi(target: Target, right: str) -> Answer | None:
    """Check that rocm-smi answers: it hangs with a driver that does."""
    output = run_tool(target.host, "rocm-smi", "--version")
    return None if output.absent else Answer(output.problem or "answers", not output.hung)


def variables(target: Target, right: str) -> Answer:
    """Check the variables of this shell that AMD's guide has."""
    pairs = dict(part.split("=") for part in right.split())
    wrong = [
        f"{name}={target.host.env.get(name, '')}" for name, text in pairs.items() if target.host.env.get(name) != text
    ]
    return Answer(" ".join(wrong) or right, not wrong)


# By nvidia-smi, of which a query of several fields fails where a driver lacks one: each check has its own.


def _query(target: Target, fields: str) -> list[list[str]]:
    """Return the fields of each GPU; none where nvidia-smi does not answer."""
    output = run_tool(target.host, "nvidia-smi", f"--query-gpu={fields}", FORMAT)
    rows = [[cell.strip() for cell in line.split(",")] for line in output.text.splitlines()]
    return [row for row in rows if len(row) == fields.count(",") + 1 and not output.problem]


def persistence(target: Target, right: str) -> Answer:
    """Check that the driver stays loaded while nobody uses a GPU."""
    return _all_alike([clean(row[0]) for row in _query(target, "persistence_mode")], [right])


def held_clocks(target: Target, right: str) -> Answer:
    """Check that nothing but idleness holds the clocks down."""
    masks = [parse_int(row[0]) for row in _query(target, "clocks_event_reasons.active")]
    known = [mask for mask in masks if mask is not None]
    held = [f"0x{mask:x}" for mask in known if mask & ~_IDLE_OR_NONE]
    return Answer(", ".join(dict.fromkeys(held)) or "idle or none", not held) if known else Answer(UNREADABLE)


def nvlink(target: Target, right: str) -> Answer | None:
    """Check that all links between GPUs are up."""
    output = run_tool(target.host, "nvidia-smi", "nvlink", "-s")
    links = re.findall(r"Link \d+: (\S+)", output.text)
    if not links:
        return Answer(output.problem) if output.hung else None
    down = links.count("<inactive>")
    return Answer(f"{len(links) - down} of {len(links)} up", not down)


def dcgm(target: Target, right: str) -> Answer | None:
    """Run the software tests of DCGM."""
    output = run_tool(target.host, "dcgmi", "diag", "-r", "1", "-j")
    states = re.findall(r'"status"\s*:\s*"(\w+)"', output.text, re.IGNORECASE)
    if output.absent:
        return None
    failed = [state for state in states if state.lower() == "fail"]
    return (
        Answer(f"{len(states) - len(failed)} of {len(states)} pass", not failed) if states else Answer(output.problem)
    )
