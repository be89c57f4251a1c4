"""Where to look and how to run tools: the roots of the file system, the tools' search path and their time limit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

from madlite.model import Gpu, Value, Vendor
from madlite.process import Finished, capture

# A shell that hides GPUs from a workload must not hide them from the count of what is here.
HIDING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")
TOOL_FOLDERS = ("usr/bin", "usr/local/bin", "usr/lib/wsl/lib")


class ToolOutput(Value, frozen=True):
    """What a tool printed, and what was wrong: `absent` it is not installed, `hung` it had to be ended."""

    text: str = ""
    problem: str = ""
    absent: bool = False
    hung: bool = False


class Host(Value, frozen=True):
    """The machine to inspect; `root` other than `/` is a copy of a machine's files.

    `path` is searched for tools before the usual folders below `root`; `limit_s` bounds each call of a tool;
    `env` is the tools' environment, the caller's own where empty; `rocm_path` is the ROCm root a context names.  Of a
    machine elsewhere `call` runs a tool with its arguments within a limit in seconds; its files are not seen.
    """

    root: Path = Path("/")
    path: str = ""
    limit_s: float = 10.0
    env: dict[str, str] = {}
    rocm_path: str = ""
    call: Callable[[Sequence[str], float], ToolOutput] | None = None


def find_tool(host: Host, name: str) -> str | None:
    """Return the path of an executable: of the ROCm root a context names, the search path, the usual folders."""
    named_roots = [f"{host.rocm_path}/bin"] if host.rocm_path else []
    searched = [entry for entry in host.path.split(os.pathsep) if entry]
    rocm = [str(root / "bin") for root in rocm_roots(host)]
    usual = [str(host.root / folder) for folder in TOOL_FOLDERS]
    return shutil.which(name, path=os.pathsep.join([*named_roots, *searched, *rocm, *usual]))


def rocm_roots(host: Host) -> list[Path]:
    """Return where ROCm can be installed, in MAD's order: MAD_ROCM_PATH, what is found, ROCM_PATH, /opt/rocm.

    MAD_AUTO_ROCM_PATH=0 turns the finding off. Found are /opt/rocm, then /opt/rocm-X.Y.Z from the newest.
    """
    usual = host.root / "opt/rocm"
    named = [Path(text) if text else None for text in (host.rocm_path, host.env.get("ROCM_PATH", "").strip())]
    found = [] if host.env.get("MAD_AUTO_ROCM_PATH", "").strip() == "0" else [usual, *_dated(host.root / "opt")]
    return list(dict.fromkeys(root for root in (named[0], *found, named[1], usual) if root))


def _dated(folder: Path) -> list[Path]:
    dated = [path for path in list_folder(folder) if path.name.startswith("rocm-")]
    return sorted(dated, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True)


def run_tool(host: Host, *command: str, cancelled: Event | None = None) -> ToolOutput:
    """Run a tool with its arguments; whatever it does is an output, never an exception.

    It is ended soon after `cancelled` is set by another thread.
    """
    if host.call is not None:
        return host.call(command, host.limit_s)
    tool = find_tool(host, command[0])
    if tool is None:
        return ToolOutput(problem="not installed", absent=True)
    env = {name: text for name, text in host.env.items() if name not in HIDING}
    ended = capture([tool, *command[1:]], limit_s=host.limit_s, env=env or None, cancelled=cancelled)
    if ended.timed_out:  # half an answer could be a wrong count
        return ToolOutput(problem=f"did not end within {host.limit_s:g} s", hung=True)
    return ToolOutput(text=ended.stdout, problem="" if ended.ok else _failure(ended))


def run_tools(host: Host, commands: Sequence[Sequence[str]]) -> list[ToolOutput]:
    """Run several commands at once, so that hanging ones cost one limit together."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda command: run_tool(host, *command), commands))


def read_file(path: Path) -> str:
    """Return a small file's text, empty where it is missing or must not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def list_folder(path: Path) -> list[Path]:
    """Return a folder's entries by name, none where it is missing or must not be read."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def is_balancing(numa_balancing: str) -> bool:
    """Return whether the kernel moves pages between NUMA nodes, which AMD's guides want off.

    `numa_balancing`: as in /proc/sys/kernel (admin-guide/sysctl/kernel), bits, 1 the balancing, 2 memory tiers.
    """
    return numa_balancing.isdecimal() and bool(int(numa_balancing) & 1)


def no_gpu_problem(text: str) -> str:
    """Return what is wrong with an output that names no GPU, with the line that it begins with."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    quoted = f": {_plain(first)}" if first and first[0] not in "[{" else ""
    return f"answered without a GPU{quoted}"


def _failure(ended: Finished) -> str:
    """Return what a failed tool reported: the last line of a traceback on stderr, all of anything else."""
    lines = [line for line in (ended.stderr.strip() or ended.stdout.strip()).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        lines = lines[-1:]
    return f"exit code {ended.code}: {_plain('; '.join(lines)) or 'no output'}"


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text).strip()[:200]


# The variables that hide GPUs from a process: which GPUs they leave.
#
# Sources: ROCm, "GPU isolation techniques" (ROCR_VISIBLE_DEVICES counts the machine's GPUs, HIP_VISIBLE_DEVICES those
# that it leaves, and CUDA_VISIBLE_DEVICES is the same where that is not set); CUDA C++ Programming Guide, "CUDA
# Environment Variables" (numbers or GPU-… ids; what follows a word that names none is hidden; numbers count from the
# fastest GPU on unless CUDA_DEVICE_ORDER is PCI_BUS_ID, in which NVIDIA's tools count, and only CUDA knows what is
# fast).


# what hides GPUs, in the order in which one counts what the one before it left; of several in a group the first counts
_HIDING: dict[Vendor, tuple[tuple[str, ...], ...]] = {
    "AMD": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "NVIDIA": (("CUDA_VISIBLE_DEVICES",),),
    "CPU": (),
}


CUDA_ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def is_uncertain(vendor: Vendor, gpus: Sequence[Gpu], env: Mapping[str, str]) -> bool:
    """Return whether numbers of an environment leave some of GPUs that are not all alike, and nobody knows which."""
    words = [word.strip() for word in env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    counts = vendor == "NVIDIA" and env.get(CUDA_ORDER, "").strip() != BY_BUS and any(map(str.isdecimal, words))
    left = visible_gpus(vendor, gpus, env) or ()
    return counts and len(left) < len(gpus) and len({gpu.product for gpu in gpus}) > 1


def hiding_variables(vendor: Vendor) -> tuple[str, ...]:
    """Return the names of the variables that hide a vendor's GPUs."""
    return tuple(name for names in _HIDING[vendor] for name in names)


def visible_gpus(
    vendor: Vendor, gpus: Sequence[Gpu], env: Mapping[str, object], *, empty: bool = False
) -> list[Gpu] | None:
    """Return the GPUs that an environment leaves of these; None where no variable of it hides any.

    With `empty` a variable that is set to nothing leaves none, as it does for a process; else it is as if not set.
    """
    left, is_restricted = list(gpus), False
    for names in _HIDING[vendor]:
        texts = [value for name in names if isinstance(value := env.get(name), str) and (empty or value.strip())]
        if texts:
            is_restricted, left = True, _listed(left, texts[0])
    return left if is_restricted else None


def _listed(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    """Return the GPUs that a list names, by place or by id; what follows a word that is neither is hidden."""
    found: list[Gpu] = []
    for word in text.split(","):
        named = _named(gpus, word.strip())
        if named is None:
            break
        found += [named] if named not in found else []
    return found


def _named(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    if word.isdecimal():
        return gpus[int(word)] if int(word) < len(gpus) else None
    wanted = word.lower().removeprefix("gpu-")
    same = [gpu for gpu in gpus if wanted and gpu.unique_id.lower().removeprefix("gpu-").startswith(wanted)]
    return same[0] if len(same) == 1 else None
