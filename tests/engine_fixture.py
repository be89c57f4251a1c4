"""A real Docker Engine for tests: the one that is given, or one of our own, started from Debian's packages.

All processes of a test run share one: the first that needs it starts it, in the folder that `begin_run` named before
there were several, and `end_run` ends it in the process that leads them: none outlives a worker that was killed.

MADLITE_TEST_DOCKER_HOST names an engine to use.  MADLITE_TEST_ROOTFS names the tree of a Debian system to make the base
image from; without it debootstrap makes one, once per machine.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.factories import BASE_IMAGE, SMALL_IMAGE

START_LIMIT_S = 180.0
PACKAGES = "git,python3,ca-certificates"  # what the tests' scripts call, beyond Debian's minimum
SUITE = "bookworm"
# what no test looks at: two thirds of the image, which some tests push, save, and have a second engine take in
_LEFT_OUT = (
    *("var/cache/apt", "var/lib/apt/lists", "usr/share/locale", "usr/share/doc", "usr/share/man", "usr/share/info"),
    *("usr/share/perl", "usr/lib/*/perl", "usr/lib/*/gconv", "usr/share/i18n", "usr/share/zoneinfo"),
)
_OF_THE_SMALL = re.compile(
    r"\./(bin|lib|lib64|root|sbin|tmp|usr/bin/(?!git|perl|python)[^/]+|etc/(passwd|group|os-release)|usr/lib/os-release"
    r"|usr/lib(64)?/([^/]+-linux-gnu/)?(ld-linux.*|lib(acl|attr|c|crypto|gmp|m|pcre2-8|selinux|tinfo)\.so.*))"
)
OF_THE_RUN = "MADLITE_TEST_RUN_FOLDER"


@pytest.fixture(scope="session")
def engine() -> str:
    """Return the address of an engine that answers; a missing one fails in CI and skips elsewhere."""
    given = os.environ.get("MADLITE_TEST_DOCKER_HOST", "")
    if given and answers(given):
        return given
    reason = _why_no_engine()
    if reason:
        give_up(reason)
    home = Path(os.environ[OF_THE_RUN], "engine")
    address = f"unix://{home}/sock"
    with _alone():
        if not (home / "ready").exists():  # one that runs may be too busy to answer at once
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            wait_until_it_answers(address, start_engine(home), home / "log")
            (home / "ready").touch()
    return address


def begin_run() -> None:
    """Name the folder of what the processes of a test run share; those that a leader starts have its name for it."""
    os.environ[OF_THE_RUN] = tempfile.mkdtemp(prefix="madlite-tests-")
    Path(os.environ[OF_THE_RUN], "leader").write_text(str(os.getpid()))


def end_run() -> None:
    """End the shared engine, if one was started, and with it its containers and its containerd; remove its folder."""
    import psutil

    folder = Path(os.environ.pop(OF_THE_RUN))
    with suppress(OSError, ValueError, psutil.NoSuchProcess, psutil.TimeoutExpired):
        daemon = psutil.Process(int((folder / "engine/pid").read_text()))
        daemon.terminate()
        daemon.wait(START_LIMIT_S)
    remove_home(folder)


@pytest.fixture(scope="session")
def docker_environ(engine: str) -> dict[str, str]:
    """Return the environment of a caller that uses the test's engine."""
    return {"DOCKER_HOST": engine, "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}


@pytest.fixture(scope="session")
def base_image(engine: str) -> str:
    """Return the name of an image on the engine that has bash, git and python3."""
    with _alone():
        load_base_image(engine)
    return BASE_IMAGE


@pytest.fixture(scope="session")
def small_image(base_image: str, engine: str) -> str:
    """Return the name of an image on the engine that has bash and the usual small programs of the base image alone."""
    with _alone():
        _load_image(engine, SMALL_IMAGE, _small_archive)
    return SMALL_IMAGE


@contextmanager
def _alone() -> Iterator[None]:
    """Do what one process of a test run does for all."""
    with Path(os.environ[OF_THE_RUN], "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load_base_image(address: str) -> None:
    """Have the base image on an engine."""
    _load_image(address, BASE_IMAGE, base_archive)


def _load_image(address: str, name: str, archive: Callable[[], Path]) -> None:
    import docker
    import docker.errors

    with docker.APIClient(address, timeout=300) as client:
        try:
            client.inspect_image(name)
        except docker.errors.ImageNotFound:
            repository, tag = name.split(":")
            client.import_image_from_file(str(archive()), repository=repository, tag=tag)


def _small_archive() -> Path:
    """Return the small image's files as a tar in the folder of the run, some 20 MB."""
    archive = Path(os.environ[OF_THE_RUN], "small.tar")
    with tarfile.open(base_archive()) as base, tarfile.open(archive, "w") as small:
        for member in base:
            if _OF_THE_SMALL.fullmatch(member.name):
                small.addfile(member, base.extractfile(member) if member.isreg() else None)
    return archive


def spare_given(address: str, folder: Path) -> None:
    """Remove what a test built from an engine that was given.

    Ours goes with all that it has: another worker may be about to run an image of that name, or has built the same one.
    """
    if address == os.environ.get("MADLITE_TEST_DOCKER_HOST"):
        remove_built(address, folder)


def remove_built(address: str, folder: Path) -> None:
    """Remove from an engine what the builds that are logged below a folder left: names, then images without a name.

    Nothing is forced: an image stays that a container uses, or that has another name.
    """
    import docker
    import docker.errors

    words = "\n".join(log.read_text(errors="replace") for log in folder.rglob("*.log"))
    names = re.findall(r"^Successfully tagged (\S+)", words, re.MULTILINE)
    layers = re.findall(r"^(?: ?---> |Successfully built )([0-9a-f]{12})\s*$", words, re.MULTILINE)
    with docker.APIClient(address) as client:
        for name in {*names} - {BASE_IMAGE, SMALL_IMAGE}:
            with suppress(docker.errors.APIError):
                client.remove_image(name)
        for layer in reversed(dict.fromkeys(layers)):
            with suppress(docker.errors.APIError):
                if not client.inspect_image(layer)["RepoTags"]:
                    client.remove_image(layer)


def remove_home(home: Path) -> None:
    """Remove an engine's folder, with what it left mounted there."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in reversed([place for place in places if place.startswith(f"{home}/")]):
        subprocess.run(["umount", place], check=False)
    shutil.rmtree(home, ignore_errors=True)


def give_up(reason: str) -> NoReturn:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def _why_no_engine() -> str:
    if os.geteuid() != 0:
        return "a Docker Engine can be started by root only; MADLITE_TEST_DOCKER_HOST names one that runs"
    return "" if _daemon() else "dockerd is not installed (Debian: docker.io)"


def _daemon() -> str | None:
    return shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start_engine(home: Path) -> subprocess.Popen[bytes]:
    """Start an engine that needs no firewall and takes requests for NVIDIA GPUs, which nothing then fulfils.

    It takes them where it finds the hook of NVIDIA's container toolkit; ours does nothing.
    """
    tools = home / "bin"
    tools.mkdir(exist_ok=True)
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    options = ["--bridge=none", "--iptables=false", "--config-file", f"{home}/daemon.json"]
    places = [
        "--data-root",
        f"{home}/data",
        "--exec-root",
        f"{home}/exec",
        "-p",
        f"{home}/pid",
        "-H",
        f"unix://{home}/sock",
    ]
    (home / "daemon.json").write_text("{}")
    search = f"{tools}:{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [str(_daemon()), *options, *places], stdout=log, stderr=log, env={**os.environ, "PATH": search}
        )


def wait_until_it_answers(address: str, daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not answers(address):
        if daemon.poll() is not None or time.monotonic() > deadline:
            words = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            give_up(f"{daemon.args[0]} does not come up here:\n{words}")
        time.sleep(0.2)


def answers(address: str) -> bool:
    import docker
    import docker.errors

    try:
        with docker.APIClient(address, timeout=5) as client:
            return bool(client.ping())
    except docker.errors.DockerException:
        return False


def base_archive() -> Path:
    """Return the base image's files as a tar, made once and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "madlite-tests"
    archive = cache / f"{SUITE}-{PACKAGES.replace(',', '-')}-lean.tar"
    tree = os.environ.get("MADLITE_TEST_ROOTFS", "")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=cache) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests want it at once
        if archive.exists() and not tree:
            return archive
        if not tree:
            if not shutil.which("debootstrap"):
                give_up("the base image needs debootstrap, or MADLITE_TEST_ROOTFS")
            tree = f"{folder}/tree"
            command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, tree]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made = Path(folder, "made.tar")
        left_out = [f"--exclude=./{place}/*" for place in _LEFT_OUT]
        subprocess.run(["tar", "-C", tree, *left_out, "-cf", str(made), "."], check=True)
        made.replace(archive)
    return archive


if __name__ == "__main__":  # what set-up makes, so that no test waits for it; without debootstrap no test has an engine
    if os.geteuid() == 0 and shutil.which("debootstrap"):
        base_archive()
