"""Packages of a page, as their author types them off and somebody installs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def type_off(page: Path, root: Path) -> list[str]:
    """Write the blocks of a page that begin with a file's name, and return the names in their order."""
    blocks = re.findall(r"```\w+\n(?:# |\{# )([\w./-]+)(?: #\})?\n(.*?)```", page.read_text(), re.DOTALL)
    for name, text in blocks:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [name for name, _ in blocks]


def install(source: Path, target: Path) -> Path:
    """Install a package into a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(target), str(source)], check=True, capture_output=True)
    return target
