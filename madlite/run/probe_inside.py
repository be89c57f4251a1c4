"""Report what is where a workload runs: repositories, Python distributions, libraries, environment.

This file is no part of the engine: its text is run there, by whatever Python is there (3.8 and later), before the
workload.  It imports the standard library alone, writes nothing but one line, and ends by itself.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place not in ("", ".")]  # a workspace may hold a json.py

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "madlite-probe "
LIMIT_S = 7  # then the process is killed by its own alarm
SEARCH_S = 4.0  # for repositories and whether they are changed
MOST_FOLDERS, MOST_REPOSITORIES, LONGEST = 2000, 40, 500
GIT_S = 2.0
# of the git that runs here, and of nothing else: read, fetch nothing, run nothing of the repository's
GIT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.fsmonitor",
    "GIT_CONFIG_VALUE_1": "false",
}
DIRTY = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
LIBRARIES = {
    "rccl": "opt/rocm/lib/librccl.so",
    "hipblaslt": "opt/rocm/lib/libhipblaslt.so",
    "nccl": "usr/lib/*/libnccl.so.2",
}


def main(request: dict[str, list[str]]) -> None:
    """Write what is found; what cannot be found is a note."""
    signal.alarm(LIMIT_S)
    found: dict[str, Any] = {"notes": []}
    parts: dict[str, Any] = {
        "inside": system,
        "packages": lambda: packages(request["packages"]),
        "environment": lambda: environment(request["prefixes"], request["names"]),
        "repositories": lambda: repositories(request["up"], request["below"], found["notes"]),
    }
    for name, collect in parts.items():
        try:
            found[name] = collect()
        except Exception as error:  # noqa: BLE001 - whatever is odd there, the workload is to run
            found["notes"].append(f"{name}: {type(error).__name__}: {error}")
    text = f"\n{MARK}{json.dumps(found, ensure_ascii=False)}\n"
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # the environment can hold bytes that are no text


def system() -> dict[str, str]:
    """Return operating system, Python, and what of ROCm and CUDA is installed."""
    values = {
        "os": first(r'^PRETTY_NAME="?([^"\n]*)', read("/etc/os-release")),
        "python": f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})",
        "rocm": read("/opt/rocm/.info/version").strip(),
        "cuda": first(r'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([^"]+)"', read("/usr/local/cuda/version.json")),
    }
    for name, pattern in LIBRARIES.items():
        real = [str(path.resolve()) for path in sorted(Path("/").glob(pattern))]
        values[name] = first(r"\.so\.(.+)$", real[0]) if real else ""
    return {name: text[:LONGEST] for name, text in values.items() if text}


def packages(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of distributions, with the commit of those that were installed from a repository."""
    from importlib.metadata import PackageNotFoundError, distribution

    values: dict[str, str] = {}
    for name in names:
        try:
            found = distribution(name)
            version = found.version
        except (PackageNotFoundError, KeyError, TypeError):  # the latter of one that was uninstalled in part
            continue
        commit = first(r'"commit_id"\s*:\s*"(\w+)"', found.read_text("direct_url.json") or "")
        if version:
            values[name] = f"{version} (commit {commit})" if commit else version
    return {**values, **torch()}


def torch() -> dict[str, str]:
    """Return what torch was built for, out of its version.py: importing it takes seconds and asks for the GPU."""
    places = (read(Path(place) / "torch/version.py") for place in sys.path)
    text = next(filter(None, places), "")
    found = re.findall(r"^(cuda|hip|git_version)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return {f"torch.{name.replace('_version', '')}": value for name, value in found}


def environment(prefixes: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the variables of these names or beginnings."""
    chosen = {name for name in os.environ if name in names or name.startswith(tuple(prefixes))}
    return {name: shortened(os.environ[name]) for name in sorted(chosen)}


def shortened(text: str) -> str:
    """Return a text, a long one up to the end of a word, if any ends: half a secret would not be known as one."""
    return text if len(text) <= LONGEST else re.sub(r"[^\s:;,=&?/]*$", "", text[:LONGEST]) or "***"


def repositories(up: Iterable[str], below: Iterable[str], notes: list[str] | None = None) -> dict[str, str]:
    """Return the commits of repositories: around the folders `up`, and two levels below those of `below`."""
    deadline = time.monotonic() + SEARCH_S
    commits: dict[str, str] = {}
    git = shutil.which("git")
    for folder in candidates(up, below, deadline):
        if commit := commit_of(folder, deadline):
            changed = run_git(folder, deadline, *DIRTY) if git else None
            commits[str(folder)] = f"{commit} (changed)" if changed else commit
            if changed is None and notes is not None:
                notes.append(f"{folder}: whether it is changed is not known, {'git failed' if git else 'without git'}")
        if len(commits) >= MOST_REPOSITORIES:
            break
    return commits


def commit_of(folder: Path, deadline: float) -> str:
    """Return the commit that a repository has checked out, "" where neither its files nor git report one."""
    commit = head(folder) or (run_git(folder, deadline, "rev-parse", "HEAD") if shutil.which("git") else None) or ""
    return commit if re.match(r"[0-9a-f]{40,64}$", commit) else ""


def candidates(up: Iterable[str], below: Iterable[str], deadline: float) -> Iterator[Path]:
    """Yield folders with a `.git`, each once by its real name."""
    seen: set[tuple[Path, int]] = set()
    left = MOST_FOLDERS
    enclosing = [(parent, 0) for folder in up for parent in parents(Path(folder))]
    places = [*enclosing, *((Path(folder).expanduser(), 2) for folder in below)]
    while places and left > 0 and time.monotonic() < deadline:
        folder, depth = places.pop(0)
        real = folder.resolve()
        if (real, depth) in seen:
            continue
        seen.add((real, depth))
        left -= 1
        if (real / ".git").exists():
            if (real, -1) not in seen:
                seen.add((real, -1))
                yield real
        elif depth:
            places += [(path, depth - 1) for path in subfolders(real)]


def parents(folder: Path) -> list[Path]:
    """Return a folder and those around it, but the root."""
    real = folder.resolve()
    return [real, *real.parents][:-1]


def subfolders(folder: Path) -> list[Path]:
    """Return a folder's folders, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.name[0] != "." and entry.is_dir())
    except OSError:
        return []


def head(folder: Path) -> str:
    """Return the commit that is checked out, by git's files (gitrepository-layout); "" where they do not say."""
    place = folder / ".git"
    if place.is_file():  # a submodule's or a worktree's
        place = folder / first(r"^gitdir: (.+)$", read(place))
    common = place / (read(place / "commondir").strip() or ".")
    text = read(place / "HEAD").strip()
    if not text.startswith("ref: "):
        return text
    name = text[5:]
    loose = [read(where / name).strip() for where in (place, common)]
    packed = first("^([0-9a-f]{40,64}) " + re.escape(name) + "$", read(common / "packed-refs", 1 << 24))
    return next(filter(None, [*loose, packed]), "")


def run_git(folder: Path, deadline: float, *words: str) -> str | None:
    """Return the output of git, None where it fails or has no time left."""
    left_s = min(GIT_S, deadline - time.monotonic())
    if left_s <= 0:
        return None
    try:
        argv, env = ["git", "-C", str(folder), *words], {**os.environ, **GIT}
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=left_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def read(path: str | Path, most: int = 1 << 20) -> str:
    """Return a file's text, "" where there is none; a pipe in its place is not waited for."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - no path
            return file.read(most).decode("utf-8", "replace") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""


def first(pattern: str, text: str) -> str:
    """Return the group of the first match, "" without one."""
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1) if found else ""


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
