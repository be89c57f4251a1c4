"""What a run ran on and with, and what its GPUs did meanwhile; docs/provenance.md has the tables."""

from __future__ import annotations

from madlite.model.values import Value


class Provenance(Value, frozen=True):
    """What a run ran with: enough to tell two rows apart, and to run one again."""

    versions: dict[str, str] = {}  # of madlite and each plugin's distribution
    script: str = ""  # the script that ran, relative to the workspace
    script_sha256: str = ""  # of the rendered or copied script that ran
    labels: dict[str, str] = {}  # of the image
    repositories: dict[str, str] = {}  # folder where it ran → commit, with " (changed)" where tracked files differ
    packages: dict[str, str] = {}  # Python distributions where it ran; torch.hip, torch.cuda: what torch was built for
    inside: dict[str, str] = {}  # what else is where it ran: os, python, rocm or cuda
    host: dict[str, str] = {}  # kernel, cpu, memory, numa_balancing, …
    gpu: dict[str, str] = {}  # product, driver, rocm or cuda, firmware, …
    environment: dict[str, str] = {}  # what can change a training's speed, secrets masked
    notes: tuple[str, ...] = ()  # what could not be asked


class GpuUse(Value, frozen=True):
    """One GPU over the steady window; None is what it does not tell."""

    index: int
    power_w: float | None = None  # mean
    power_max_w: float | None = None
    clock_mhz: float | None = None  # of its compute units, mean
    memory_clock_mhz: float | None = None  # mean
    temperature_c: float | None = None  # the highest
    memory_used_gib: float | None = None  # the highest
    utilization_percent: float | None = None  # mean
    throttled: dict[str, float] = {}  # why → part of the window
    power_cap: float | None = None  # part of the window in which its power limit held the clocks, as at full load


class Telemetry(Value, frozen=True):
    """Samples of the GPUs, over the steady window where there is one, else over the whole run."""

    source: str = ""  # NVML, nvidia-smi, amd-smi, rocm-smi
    interval_s: float = 0.0
    samples: int = 0
    over: str = ""  # window or run
    gpus: tuple[GpuUse, ...] = ()
    power_w: float | None = None  # mean of one GPU
    tokens_per_joule: float | None = None  # tokens/s/GPU ÷ power_w
    throttled: float | None = None  # part of the window in which any GPU was slowed down
    throttled_by: dict[str, float] = {}  # why → part of the window, of the GPU that has most of it
    power_cap: float | None = None  # part of the window in which any GPU was at its power limit
    strangers: tuple[str, ...] = ()  # processes on these GPUs that are not of the run
    strangers_known: bool = False  # whether processes could be told apart at all
    cost: float | None = None  # of the sampling, as a part of one CPU core
    problem: str = ""
