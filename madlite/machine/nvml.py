"""Read GPUs from NVIDIA's management library, which answers faster than nvidia-smi and needs no tool."""

from __future__ import annotations

import threading
from typing import Any

from madlite.machine.facts import Seen, Source, bus_id
from madlite.machine.host import Host

NAME = "NVML"


def read_nvml(host: Host) -> Source:
    """Return the GPUs of this machine; a driver that hangs costs the host's limit."""
    answers: list[Source] = []
    # A call into the driver cannot be ended; a daemon thread at least does not keep the process.
    asking = threading.Thread(target=lambda: answers.append(_read()), daemon=True)
    asking.start()
    asking.join(host.limit_s)
    return answers[0] if answers else Source(name=NAME, problem=f"did not end within {host.limit_s:g} s")


def _read() -> Source:
    try:
        import pynvml
    except ImportError:
        return Source(name=NAME, problem="not installed (pip install nvidia-ml-py)", absent=True)
    return read_library(pynvml)


def read_library(nvml: Any) -> Source:
    """Return what the library says; `nvml` is the module pynvml, or one of the same functions."""
    try:
        nvml.nvmlInit()
        gpus = tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 is 12.8
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        nvml.nvmlShutdown()
    except (
        nvml.NVMLError,
        OSError,
        ValueError,
    ) as error:  # one lost GPU: the count would be wrong, so nvidia-smi is asked
        return Source(name=NAME, problem=str(error))
    return Source(
        name=NAME,
        gpus=gpus,
        driver_version=driver,
        runtime_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        problem="" if gpus else "answered without a GPU",
    )


def _gpu(nvml: Any, index: int) -> Seen:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(nvml.nvmlDeviceGetName(handle))
    return Seen(
        position=index,
        arch=name,
        product=name,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        unique_id=_text(nvml.nvmlDeviceGetUUID(handle)),
        bus=bus_id(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
