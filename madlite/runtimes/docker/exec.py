"""One process the engine started inside a container."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any

from madlite.images.client import Client
from madlite.runtimes.docker.stream import ExecOutput

_POLL_S = 0.1


class Exec:
    """An exec'd process; what the engine no longer knows, because its container is gone, has ended."""

    def __init__(
        self,
        client: Client,
        container: str,
        argv: Sequence[str],
        workdir: str,
        env: Mapping[str, str],
        user: str = "",
    ) -> None:
        self._client = client
        self._host_pid = 0
        made = client.exec_create(container, list(argv), workdir=workdir, environment=dict(env), user=user)
        self._id = made["Id"]

    def start(self) -> ExecOutput:
        """Start the process and return its output."""
        return ExecOutput(self._client.exec_start(self._id, socket=True))

    def is_running(self) -> bool:
        """Say whether the process itself is there; children of it may outlive it."""
        return bool(self._inspect().get("Running"))

    def has_surely_ended(self) -> bool:
        """Say whether the engine tells that the process ended; one that is too busy to answer tells nothing."""
        import requests

        try:
            return not self.is_running()
        except requests.RequestException:
            return False

    def wait_ended(self, limit_s: float, hurried: Event | None = None) -> bool:
        """Wait for the end of the process; False when it is still there after `limit_s`, or once `hurried` is set."""
        deadline = time.monotonic() + limit_s
        while self.is_running():
            if time.monotonic() > deadline or (hurried is not None and hurried.is_set()):
                return False
            time.sleep(_POLL_S)
        return True

    def exit_code(self, limit_s: float) -> int | None:
        """Return the exit code, 128 + n after signal n; None where it is not known within `limit_s`."""
        if not self.wait_ended(limit_s):
            return None
        code = self._inspect().get("ExitCode")
        return None if code is None else int(code)

    def host_pid(self) -> int:
        """Return the process id on the engine's machine, also once the process ended; 0 if it never was known."""
        self._inspect()
        return self._host_pid

    def _inspect(self) -> dict[str, Any]:
        import docker.errors

        try:
            found = dict(self._client.exec_inspect(self._id))
        except docker.errors.NotFound:
            return {}
        self._host_pid = int(found.get("Pid") or 0) or self._host_pid  # the engine forgets it when the process ends
        return found
