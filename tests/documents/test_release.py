"""scripts/release.sh: a release has a clean tree, a dated section of the changelog and the tag of its version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from madlite import __version__

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def in_git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def refused(folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["scripts/release.sh", str(BIN)], cwd=folder, capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == 1 and not (folder / "dist").exists()
    return done.stderr


@pytest.mark.host
def test_a_release_that_is_not_ready_builds_nothing(tmp_path):
    for name in ("scripts/release.sh", "madlite/__init__.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts" / "release.sh").chmod(0o755)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"# Changelog\n\n## {__version__} (unreleased)\n")
    in_git(tmp_path, "init", "-q")
    assert "not committed" in refused(tmp_path)
    in_git(tmp_path, "add", "-A")
    in_git(tmp_path, "commit", "-qm", "one")
    assert f"begins with '## {__version__} (unreleased)'" in refused(tmp_path)
    changelog.write_text(f"# Changelog\n\n## {__version__} (2026-11-30)\n")
    in_git(tmp_path, "commit", "-qam", "two")
    assert f"tag v9 is not version {__version__}" in refused(tmp_path, GITHUB_REF_NAME="v9")
