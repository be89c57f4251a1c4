"""A real PostgreSQL for tests, of Debian's package: a cluster of its own in a temporary folder, on loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine_fixture import give_up

USER, PASSWORD = "bench", "p4ss w@rd/:x"
_TRIES = 5


class Postgres:
    """A server: `port` on 127.0.0.1 asks for the password, the socket in `home` lets everybody in."""

    def __init__(self, home: Path, programs: Path, as_user: dict[str, object]) -> None:
        self.home, self._programs, self._as_user = home, programs, as_user
        self.port = 0

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def command(self, *words: str) -> str:
        """Run a program of PostgreSQL's; return what it complains of, "" where it succeeds."""
        argv = [self._programs / words[0], *words[1:]]
        env = {**os.environ, "PGCTLTIMEOUT": "240"}
        done = subprocess.run(argv, cwd=self.home, env=env, capture_output=True, text=True, **self._as_user)
        return f"{done.stdout}{done.stderr}" if done.returncode else ""

    def start(self) -> None:
        """Start it on a port that was free a moment before; where somebody else took that, on another one."""
        for _ in range(_TRIES):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            if not (problem := self._control("start")):
                return
        raise AssertionError(problem + (self.home / "log").read_text())

    def stop(self) -> None:
        self._control("stop")

    def _control(self, action: str) -> str:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.home} -c fsync=off"
        words = ("-D", f"{self.home}/data", "-w", "-l", f"{self.home}/log", "-o", options, "-m", "immediate")
        return self.command("pg_ctl", *words, action)

    def query(self, text: str) -> list[tuple]:
        import psycopg

        with psycopg.connect(host=str(self.home), port=self.port, user=USER, dbname="postgres") as base:
            cursor = base.execute(text)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Yield a server that runs, as a user who is not root; a missing one fails in CI and skips elsewhere."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) + [Path(shutil.which("initdb") or "/none")]
    if not found[0].exists():
        give_up("initdb is not installed (Debian: postgresql)")
    as_user: dict[str, object] = {}
    home = Path(tempfile.mkdtemp(prefix="madlite-pg-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            names = {one.pw_name for one in pwd.getpwall()}
            owner = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(home, owner.pw_uid, owner.pw_gid)
            as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        server = Postgres(home, found[0].resolve().parent, as_user)
        secret = home / "secret"
        secret.write_text(PASSWORD)
        auth = ("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}", "-U", USER, "-N")
        problem = server.command("initdb", "-D", f"{home}/data", "-E", "UTF8", "--locale=C.UTF-8", *auth)
        assert not problem, problem
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
