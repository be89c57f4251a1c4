"""A small MAD checkout for runs of the whole command, and what is asked about them afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from tests import commands
from tests.csv_rows import perf_rows

# for tests of what containers make harder: in these, with `make test-all` on the host too
IN_CONTAINERS = pytest.mark.parametrize(
    "checkout",
    [
        pytest.param("docker", marks=pytest.mark.engine),
        pytest.param("host", marks=[pytest.mark.host, pytest.mark.full]),
    ],
    indirect=True,
)
NO_ENGINE = "unix:///nonexistent/docker.sock"
UNPROBED = ("--set", "probe=false")  # to ask what is there is a third of a short run's time, or more
DOCKERFILE = "# CONTEXT {'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=madlite-test/base:latest\nFROM $BASE_DOCKER\n"


class Checkout:
    """A folder with cards and scripts, run by one runtime.

    before: a command that runs madlite's.
    first: a function of the tests to call in the process of each command, and its arguments.
    words: options of every run; a test of what is found by asking has none.
    """

    def __init__(self, folder: Path, runtime: str, docker_host: str) -> None:
        self.folder, self.runtime = folder, runtime
        self.env = {**os.environ, "DOCKER_HOST": docker_host, "PYTHONUNBUFFERED": "1"}
        self.env.pop("BUILD_NUMBER", None)
        self.before: tuple[str, ...] = ()
        self.first: tuple[str, ...] = ()
        self.words: tuple[str, ...] = UNPROBED
        self.cards: list[dict[str, object]] = []
        self.dockerfile = "docker/base"
        (folder / "docker").mkdir(parents=True)
        (folder / "docker/base.Dockerfile").write_text(DOCKERFILE)

    def name_dockerfile(self, name: str) -> None:
        """Have images of these names: of the usual ones another suite at the same engine may take the name away."""
        (self.folder / f"{self.dockerfile}.Dockerfile").rename(self.folder / f"docker/{name}.Dockerfile")
        self.dockerfile = f"docker/{name}"

    def card(self, name: str, script: str, **fields: object) -> None:
        """Add a card with its script."""
        path = self.folder / "scripts" / name / "run.sh"
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/bash\n" + script)
        card = {"name": name, "dockerfile": self.dockerfile, "scripts": f"scripts/{name}/run.sh", "n_gpus": "-1"}
        self.cards.append({**card, "tags": ["t"], "args": "", **fields})
        (self.folder / "models.json").write_text(json.dumps(self.cards))

    def command(self, *args: str) -> list[str]:
        return [*self.before, sys.executable, "-m", "madlite", *args]

    def run(
        self, *args: str, env: Mapping[str, str] | None = None, limit_s: float = 240, first: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run `madlite run` to its end."""
        return self.madlite("run", "--runtime", self.runtime, *self.words, *args, env=env, limit_s=limit_s, first=first)

    def start(
        self, *args: str, constants: Mapping[str, float] | None = None, **streams: commands.Stream
    ) -> commands.Started:
        """Start `madlite run` in a process group of its own; constants: as of `commands.start`."""
        words = ("run", "--runtime", self.runtime, *self.words, *args)
        return commands.start(
            words, self.folder, self.env, self.before, first=self.first, constants=constants, **streams
        )

    def madlite(
        self, *args: str, env: Mapping[str, str] | None = None, limit_s: float = 240, first: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; first: a function of the tests to call in its process, and its arguments."""
        environ = {**self.env, **(env or {})}
        return commands.run(args, self.folder, environ, self.before, limit_s, first or self.first)

    def wait_for(self, text: str, limit_s: float = 240) -> Path:
        """Wait until a run's log holds the text, and return the log."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for log in self.folder.glob("madlite_runs/*/run.log"):
                if text in log.read_text(errors="replace"):
                    return log
            time.sleep(0.02)
        raise AssertionError(f"no log said {text!r}")

    @property
    def rows(self) -> list[dict[str, str]]:
        return perf_rows(self.folder)

    def records(self) -> list[dict[str, object]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("madlite_runs/*/record.json"))]

    def left_processes(self) -> list[psutil.Process]:
        """Processes that still carry the mark of a run of this checkout, in containers too."""
        ids = {path.name for path in self.folder.glob("madlite_runs/*")}
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MADLITE_RUN_ID") in ids and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return left

    def left_containers(self) -> list[str]:
        """Containers of any state that carry the label of a run of this checkout."""
        if self.runtime != "docker":
            return []
        import docker

        client = docker.DockerClient(self.env["DOCKER_HOST"])
        ids = {path.name for path in self.folder.glob("madlite_runs/*")}
        found = client.containers.list(all=True, filters={"label": "madlite.run"}, ignore_removed=True)
        return [one.name for one in found if one.labels["madlite.run"] in ids]

    def assert_nothing_left(self) -> None:
        assert self.left_processes() == [] and self.left_containers() == []


def end(started: commands.Started, number: int, limit_s: float = 240) -> tuple[int, str]:
    """Send a signal to madlite alone and return its exit code and output."""
    os.kill(started.pid, number)
    out, _ = started.communicate(timeout=limit_s)
    return started.returncode, out


__all__ = ["IN_CONTAINERS", "NO_ENGINE", "UNPROBED", "Checkout", "end", "signal"]
