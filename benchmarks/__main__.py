"""Every figure of benchmarks/README.md: python -m benchmarks [startup|overhead|…|comparing|reporting ...]"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

ALL = (
    *("startup", "overhead", "append", "mini", "parallel", "planning", "reading", "masking", "telemetry", "comparing"),
    *("until", "reporting", "dashboard", "cluster", "slurm_load"),
)


def main() -> None:
    print(f"{platform.machine()}, {_cpu()}, Python {platform.python_version()}, Linux {platform.release()}\n")
    for name in sys.argv[1:] or ALL:
        print(f"## {name}\n")
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))], check=True)
        print()


def _cpu() -> str:
    import os

    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").open() if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else 'unknown'}"


if __name__ == "__main__":
    main()
