"""A repository that git clones over HTTP with a user's name and password, and not without."""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote


class Repository(NamedTuple):
    """Where it is served, the commit that it is at, and what it asks for."""

    url: str
    commit: str
    user: str
    password: str

    @property
    def url_with_password(self) -> str:
        return self.url.replace("://", f"://{quote(self.user, safe='')}:{quote(self.password, safe='')}@", 1)


class _Guarded(SimpleHTTPRequestHandler):
    """Serves a bare repository to whoever knows the password."""

    def __init__(self, *args: Any, expected: str, **options: Any) -> None:
        self.expected = expected
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == self.expected:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return


@contextmanager
def guarded_repository(folder: Path, password: str) -> Iterator[Repository]:
    """Serve a repository of ada's with a file `data.txt` of `13`, made in two folders below this one."""
    work, bare = folder / "work", folder / "served/toy.git"
    work.mkdir()
    (work / "data.txt").write_text("13\n")
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", *command], cwd=work, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=work, capture_output=True, text=True, check=True).stdout
    expected = "Basic " + base64.b64encode(f"ada:{password}".encode()).decode()
    handler = partial(_Guarded, directory=str(bare.parent), expected=expected)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/{bare.name}"
            yield Repository(url, commit.strip(), "ada", password)
        finally:
            server.shutdown()
            serving.join()
