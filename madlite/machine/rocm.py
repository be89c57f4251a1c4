"""Which ROCm is installed on the host, from its files.

`.info/version` below a ROCm root holds one line, X.Y.Z-BUILD. The root is the one given, else /opt/rocm, else the
newest /opt/rocm-X.Y.Z.
"""

from __future__ import annotations

import re
from pathlib import Path

from madlite.machine.host import Host, list_folder, read_file

VERSION = re.compile(r"^\d+(?:\.\d+)+")


def read_rocm_version(host: Host) -> tuple[str, str]:
    """Return the version (6.4.1) and the file it came from, both empty where no ROCm is found."""
    for root in _roots(host):
        file = root / ".info" / "version"
        if found := VERSION.match(read_file(file)):
            return found[0], str(file)
    return "", ""


def _roots(host: Host) -> list[Path]:
    given = [Path(host.rocm_root)] if host.rocm_root else []
    dated = [path for path in list_folder(host.root / "opt") if path.name.startswith("rocm-")]
    newest_first = sorted(dated, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True)
    return [*given, host.root / "opt/rocm", *newest_first]


def read_driver_version(root: Path) -> str:
    """Return the version of an amdgpu driver that was installed apart from the kernel; the in-kernel one has none."""
    return read_file(root / "sys/module/amdgpu/version")
