"""What sampling the GPUs costs: CPU time of one sample, and the part of one core at the interval that follows from it.

NVML is this machine's where there is one, else a library of the same functions that answers at once, so that only our
own part is measured.  A tool is a stand-in of Python's that prints what amd-smi does of eight GPUs: a process, and
the reading of what it says; the real one asks the driver too.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

from madlite.files import Folder
from madlite.machine.host import Host
from madlite.machine.processes import OwnProcesses
from madlite.machine.sources.amd_smi import AmdSmi
from madlite.machine.sources.nvml import Nvml
from madlite.machine.telemetry import SHARE, Sampler, SamplingTarget
from madlite.model import Gpu

TURNS = 50


def main() -> None:
    print("| source | CPU of a sample, ms | time of a sample, ms | interval, s | part of one core |")
    print("|---|--:|--:|--:|--:|")
    library, count, name = nvml()
    row(f"{name}, {count} GPUs", Nvml(library, range(count)).read, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        host = Host(path=tool(Path(folder)), env=dict(os.environ))
        row("amd-smi, stand-in, 8 GPUs", AmdSmi(host, range(8), Event()).read, 2.0)
        if name == "NVML":
            whole(Path(folder), count)


def row(title: str, read: Callable[[], object], least_s: float) -> None:
    read()
    cpu, wall = [], []
    for _ in range(TURNS if least_s < 2 else 10):
        begun, spent = time.perf_counter(), cpu_s()
        read()
        cpu.append(cpu_s() - spent)
        wall.append(time.perf_counter() - begun)
    one = statistics.mean(cpu)
    interval = max(least_s, one / SHARE)
    print(f"| {title} | {one * 1e3:.2f} | {statistics.mean(wall) * 1e3:.2f} | {interval:.1f} | {one / interval:.3%} |")


def cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def nvml() -> tuple[object, int, str]:
    """Return the library, the number of GPUs and its name."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetCount(), "NVML"
    except pynvml.NVMLError:  # there is no driver here
        return pretended(), 8, "our part of NVML"


def pretended() -> object:
    answers = {
        "PowerUsage": 600_000,
        "TotalEnergyConsumption": 1,
        "ClockInfo": 1700,
        "Temperature": 60,
        "MemoryInfo": SimpleNamespace(used=1),
        "UtilizationRates": SimpleNamespace(gpu=1),
        "CurrentClocksEventReasons": 4,
    }
    functions = {f"nvmlDeviceGet{name}": lambda *_, told=told: told for name, told in answers.items()}
    functions |= {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: index}
    return SimpleNamespace(NVMLError=OSError, **functions)


def tool(folder: Path) -> str:
    value = {"value": 600, "unit": "W"}
    dies = {f"gfx_{n}": {"clk": {"value": 1700, "unit": "MHz"}} for n in range(8)}
    entry = {"power": {"socket_power": value}, "clock": dies, "temperature": {"hotspot": {"value": 80, "unit": "C"}}}
    entry["throttle"] = {"accumulation_counter": 1, **{f"{name}_accumulated": 1 for name in ("ppt", "socket_thermal")}}
    (folder / "said").write_text(json.dumps([{"gpu": n, **entry} for n in range(8)], indent=4))
    path = folder / "amd-smi"
    path.write_text(f"#!{sys.executable}\nimport json\nprint(open({str(folder / 'said')!r}).read())\n")
    path.chmod(0o755)
    return str(folder)


def whole(folder: Path, count: int) -> None:
    """Sample for a while as a run does."""
    gpus = tuple(Gpu(index=n) for n in range(count))
    own = OwnProcesses(mark="MADLITE_RUN_ID=bench")
    target = SamplingTarget(vendor="NVIDIA", gpus=gpus, interval_s=1.0, own=own)
    sampler = Sampler(target, Folder.open(folder), "telemetry.jsonl", time.monotonic)
    sampler.start()
    time.sleep(20)
    sampler.stop()
    share = sampler.core_share or 0.0
    print(
        f"\nA run of 20 s, NVML opened and processes told apart: {len(sampler.samples)} samples, {share:.3%} of a core"
    )


if __name__ == "__main__":
    main()
