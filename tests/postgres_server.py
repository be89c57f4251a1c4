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


class Postgres:
    """A server: `port` on 127.0.0.1 asks for the password, the socket in `home` lets everybody in."""

    def __init__(self, home: Path, programs: Path, as_user: dict[str, object]) -> None:
        self.home, self._programs, self._as_user = home, programs, as_user
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def command(self, *words: str) -> None:
        done = subprocess.run(
            [self._programs / words[0], *words[1:]], cwd=self.home, capture_output=True, text=True, **self._as_user
        )
        assert done.returncode == 0, done.stderr

    def control(self, action: str) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.home} -c fsync=off"
        words = ("-D", f"{self.home}/data", "-w", "-l", f"{self.home}/log", "-o", options, "-m", "immediate")
        self.command("pg_ctl", *words, action)

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
        server.command("initdb", "-D", f"{home}/data", "-E", "UTF8", "--locale=C.UTF-8", *auth)
        server.control("start")
        try:
            yield server
        finally:
            server.control("stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
