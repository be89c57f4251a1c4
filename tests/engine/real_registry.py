"""A registry as people run it: Debian's docker-registry on the loopback address, with a user and a password."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.engine_fixture import START_LIMIT_S, give_up

USER, PASSWORD = "builder", "a-pass-word"
_HTPASSWD = f"{USER}:$2b$04$CGfe7bM2uNjE4k35M.iu..saaPOfw0W6jl05iTckRFTuwdaQQooCK\n"  # bcrypt of PASSWORD
_CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "127.0.0.1:0"}}
auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}
"""


@contextmanager
def real_registry(folder: Path) -> Iterator[str]:
    """Yield the host and port of a registry that lets nobody in without the password."""
    program = shutil.which("docker-registry")
    if program is None:
        give_up("docker-registry is not installed (Debian: docker-registry)")
    (folder / "htpasswd").write_text(_HTPASSWD)
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder))
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen([program, "serve", f"{folder}/config.yml"], stdout=log, stderr=log)
    try:
        name = f"127.0.0.1:{_port_of(started)}"
        _wait(f"http://{name}/v2/", started)
        yield name
    finally:
        started.terminate()
        started.wait(timeout=240)


def _port_of(started: subprocess.Popen[bytes]) -> int:
    """Return the port that it has been given: one that was free before may be another's by now."""
    end = time.monotonic() + START_LIMIT_S
    while started.poll() is None and time.monotonic() < end:
        for one in psutil.Process(started.pid).net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                return int(one.laddr.port)
        time.sleep(0.05)
    return give_up("docker-registry does not come up here")


def _wait(url: str, started: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_LIMIT_S
    while started.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=5)
        except urllib.error.HTTPError as answer:  # it wants the password
            assert answer.code == 401
            return
        except OSError:
            time.sleep(0.05)
    give_up("docker-registry does not come up here")
