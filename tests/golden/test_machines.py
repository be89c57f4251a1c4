"""A stand-in machine hides the GPUs of the real one, which are pretended here in turn."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.golden.machines import ALONE, h100s, two_mi300x

pytestmark = pytest.mark.engine
REAL = """set -eu
cd "$1"
shift
mkdir -p dev/dri tools
touch dev/null dev/kfd dev/nvidia0 dev/dri/renderD200
for tool in nvidia-smi amd-smi rocm-smi rocminfo hipconfig; do
  echo '#!/bin/sh' > "tools/$tool"
  chmod +x "tools/$tool"
done
mount --bind /dev/null dev/null
mount --rbind dev /dev
mount -t tmpfs none /opt
mkdir -p /opt/rocm/bin
touch /opt/rocm/bin/rocminfo
mount -t tmpfs none /proc/driver
mkdir -p /proc/driver/nvidia/gpus/0000:01:00.0
exec "$@"
"""
LOOK = r"""ls -d /dev/kfd /dev/nvidia* /dev/dri/* /proc/driver/nvidia/gpus/* /opt/rocm*/* 2>/dev/null
IFS=:
for folder in $PATH; do
  for tool in nvidia-smi amd-smi rocm-smi rocminfo hipconfig; do
    [ ! -x "$folder/$tool" ] || echo "$folder/$tool"
  done
done
"""


def seen(home: Path, path: str, *command: str) -> set[str]:
    """Return what of GPUs the command sees on a machine that has all kinds."""
    real = home / "real"
    real.mkdir(exist_ok=True)
    done = subprocess.run(
        [*ALONE, "sh", "-c", REAL, "sh", str(real), *command],
        env={"PATH": f"{path}:{real}/tools:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_the_real_gpus_are_hidden(may_mount: None, tmp_path: Path) -> None:
    look = ("sh", "-c", LOOK)
    everything = seen(tmp_path, "/nonexistent", *look)
    files = {"/dev/kfd", "/dev/nvidia0", "/dev/dri/renderD200", "/proc/driver/nvidia/gpus/0000:01:00.0"}
    assert everything >= {*files, "/opt/rocm/bin", f"{tmp_path}/real/tools/nvidia-smi"}
    (tmp_path / "amd").mkdir()
    amd = two_mi300x(tmp_path / "amd")
    own = {"/dev/dri/renderD128", "/dev/dri/renderD136", f"{amd.bin}/amd-smi", f"{amd.bin}/rocm-smi"}
    assert seen(tmp_path, str(amd.bin), *amd.command(*look)) == own
    (tmp_path / "nvidia").mkdir()
    nvidia = h100s(tmp_path / "nvidia", 2)
    assert seen(tmp_path, str(nvidia.bin), *nvidia.command(*look)) == {f"{nvidia.bin}/nvidia-smi"}
