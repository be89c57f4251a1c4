"""Which source can be read on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from madlite.machine.host import Host
from madlite.machine.kfd_processes import driver_ids, kfd_users
from madlite.machine.strangers import sees_all_processes
from madlite.machine.telemetry import amd_smi, nvidia_smi, rocm_smi
from madlite.machine.telemetry.amd_files import AmdFiles
from madlite.machine.telemetry.amd_smi import AmdSmi, AmdSmiUsers
from madlite.machine.telemetry.nvidia_smi import NvidiaSmi
from madlite.machine.telemetry.nvml import Nvml
from madlite.machine.telemetry.reading import Answer, Source
from madlite.machine.telemetry.rocm_smi import RocmSmi
from madlite.model import Gpu, Vendor


def open_sources(
    vendor: Vendor, gpus: Sequence[Gpu], host: Host, over: Event
) -> tuple[list[tuple[Source, Answer]], str]:
    """Return the sources that read these GPUs, each with its first answer; and why others do not.

    One source is enough, but that the files of AMD's driver, which cost nothing, tell of throttling only with newer
    drivers, and nothing of processes: then a tool is asked too, now and then.  May block for as long as a driver does.
    """
    indexes = tuple(gpu.index for gpu in gpus)
    found: list[tuple[Source, Answer]] = []
    if vendor == "AMD":
        files = AmdFiles(host.root, gpus)
        found = [(files, answer)] if (answer := files.read()).readings else []
        if found and files.counts:
            return [*found, *_lister(gpus, host, over)], ""
    problems: list[str] = []
    for name in ("NVML", nvidia_smi.NAME) if vendor == "NVIDIA" else (amd_smi.NAME, rocm_smi.NAME):
        if over.is_set():
            break
        source, problem = _opened(name, indexes, host, over)
        answer = source.read() if source else Answer(problem=problem)
        if source and answer.readings:
            return [*found, (source, answer)], ""
        if source:
            source.close()
        problems.append(f"{name}: {answer.problem or 'it says nothing'}")
    return found, "; ".join(problems)


def _lister(gpus: Sequence[Gpu], host: Host, over: Event) -> list[tuple[Source, Answer]]:
    """Return the tool for the users of GPUs, where the driver does not list them to us and the tool does."""
    listed = kfd_users(host.root, driver_ids(host.root, gpus)) is not None
    if listed or over.is_set() or not sees_all_processes(host.root / "proc"):
        return []
    tool = AmdSmiUsers(host, [gpu.index for gpu in gpus], over)
    return [(tool, Answer())] if tool.users() is not None else []


def _opened(name: str, indexes: Sequence[int], host: Host, over: Event) -> tuple[Source | None, str]:
    if name == "NVML":
        return _library(indexes)
    tools: dict[str, type[NvidiaSmi | AmdSmi | RocmSmi]] = {
        nvidia_smi.NAME: NvidiaSmi,
        amd_smi.NAME: AmdSmi,
        rocm_smi.NAME: RocmSmi,
    }
    return tools[name](host, indexes, over), ""


def _library(indexes: Sequence[int]) -> tuple[Source | None, str]:
    try:
        import pynvml
    except ImportError:
        return None, "not installed (pip install nvidia-ml-py)"
    try:
        return Nvml(pynvml, indexes), ""
    except (pynvml.NVMLError, OSError) as error:
        return None, str(error)
