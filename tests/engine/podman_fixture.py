"""A real podman for tests: its service behind docker's API, with folders of its own."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engine_fixture import START_LIMIT_S, answers, give_up, load_base_image, remove_home, wait_until_it_answers

# podman raises limits above what a restricted machine allows; docker's rule for registries of this machine
CONFIG = """[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""
REGISTRIES = '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n'


@pytest.fixture(scope="session")
def podman() -> Iterator[str]:
    """Yield the address of a podman that has the base image; a missing one fails in CI and skips elsewhere."""
    for program in ("podman", "catatonit"):
        if not shutil.which(program):
            give_up(f"{program} is not installed (Debian: {program})")
    if os.geteuid() != 0:
        give_up("podman is tested as root only")
    home = Path(tempfile.mkdtemp(prefix="madlite-podman-"))
    address = f"unix://{home}/sock"
    service = _start(home, address)
    try:
        load_base_image(address)
        yield address
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=START_LIMIT_S)
        _end_monitors(home)
        remove_home(home)


def command_line(address: str) -> str:
    """Return the beginning of a shell's command for the podman behind an address: program, folders and settings."""
    return (Path(address.removeprefix("unix://")).parent / "command").read_text()


def _end_monitors(home: Path) -> None:
    """End what podman leaves behind each exec for five minutes, and which would then make its folders again."""
    for process in psutil.process_iter():
        try:
            ours = process.name() == "conmon" and any(str(home) in word for word in process.cmdline())
            if ours:
                process.kill()
        except psutil.NoSuchProcess:
            continue


def _start(home: Path, address: str) -> subprocess.Popen[bytes]:
    """Start the service; layers are copied where the file system knows no overlay, which takes ten times as long."""
    service = _serve(home, address, "overlay")
    deadline = time.monotonic() + START_LIMIT_S
    while service.poll() is None and time.monotonic() < deadline:  # one that cannot use the driver ends
        if answers(address):
            return service
        time.sleep(0.1)
    service.kill()
    service.wait()
    service = _serve(home, address, "vfs")
    wait_until_it_answers(address, service, home / "log")
    return service


def _serve(home: Path, address: str, driver: str) -> subprocess.Popen[bytes]:
    limits = [resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    files, processes = (32768 if limit < 0 else min(limit, 32768) for limit in limits)
    (home / "containers.conf").write_text(CONFIG.format(files=files, processes=processes))
    (home / "registries.conf").write_text(REGISTRIES)
    store = home / driver
    store.mkdir()
    places = [f"--root={store}/root", f"--runroot={store}/run", f"--tmpdir={store}/tmp", f"--storage-driver={driver}"]
    options = ["--cgroup-manager=cgroupfs", "--events-backend=file", f"--runtime={shutil.which('crun') or 'runc'}"]
    settings = {
        "CONTAINERS_CONF": f"{home}/containers.conf",
        "CONTAINERS_REGISTRIES_CONF": f"{home}/registries.conf",
        "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
    }
    program = [shutil.which("podman") or "podman", *places, *options]
    own = [f"{name}={value}" for name, value in settings.items()]
    (home / "command").write_text(shlex.join(["env", *own, *program]))
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [*program, "system", "service", "--time=0", address], stdout=log, stderr=log, env={**os.environ, **settings}
        )
