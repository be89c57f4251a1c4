"""Which ROCm is installed on the host: from its files, else from its tools.

`.info/version` below a ROCm root holds one line, X.Y.Z-BUILD, and so do its siblings `.info/version-*`.
"""

from __future__ import annotations

import re
from pathlib import Path

from madlite.machine.host import Host, ask, list_folder, read_file, rocm_roots

VERSION = re.compile(r"^\d+(?:\.\d+)+")
SAID = re.compile(r"ROCm version:\s*(\d+(?:\.\d+)+)", re.IGNORECASE)
HIP = re.compile(r"^(\d+\.\d+)", re.MULTILINE)


def find_rocm_version(host: Host, *, amd_smi: bool) -> tuple[str, str]:
    """Return the version (6.4.1) and what it came from, both empty where nothing tells it.

    `amd_smi` allows to ask amd-smi: one that hung before would hang again. HIP's version shares ROCm's first two
    numbers only.
    """
    from_file = _from_files(host)
    if from_file[0]:
        return from_file
    tools = [(HIP, ("hipconfig", "--version"))]
    for pattern, command in [(SAID, ("amd-smi", "version")), *tools] if amd_smi else tools:
        if found := pattern.search(ask(host, *command).text):
            return found[1], " ".join(command)
    return "", ""


def _from_files(host: Host) -> tuple[str, str]:
    for folder in (root / ".info" for root in rocm_roots(host)):
        siblings = [path for path in list_folder(folder) if path.name.startswith("version-")]
        for file in (folder / "version", *siblings):
            if found := VERSION.match(read_file(file)):
                return found[0], str(file)
    return "", ""


def read_driver_version(root: Path) -> str:
    """Return the version of an amdgpu driver that was installed apart from the kernel; the in-kernel one has none."""
    return read_file(root / "sys/module/amdgpu/version")
