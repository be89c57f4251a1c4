"""A stand-in for the Hugging Face hub, and for any server of files: real HTTP on the loopback.

It answers what huggingface_hub asks to download: a repository's listing and tree, and files, by HEAD and by GET with
ranges.  Large files it sends on to another host name, as the hub does.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 1 << 16  # bytes: from there on a file is kept apart, as with Git LFS
_REPO = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+))?(?:/.*)?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Repo:
    """A repository: its files at a commit, which `main` means; `gated` wants a token that may read it."""

    def __init__(
        self, files: dict[str, bytes], commit: str = "a" * 40, gated: bool = False, private: bool = False
    ) -> None:
        self.files, self.commit, self.gated, self.private = files, commit, gated, private
        self.said = ""  # the commit that its files name, where it is another


class Hub:
    """What the server has and what it was asked; `hold` stops answers after so many bytes until it is set."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.repos: dict[str, Repo] = {}  # "models/org/name" → …
        self.files: dict[str, bytes] = {}  # of the plain file server, path → content
        self.tokens = {"good": True, "stranger": False}  # token → whether it may read what is gated
        self.asked: list[tuple[str, str, str, str]] = []  # method, path, range, authorization
        self.cut_after: int | None = None  # bytes of an answer, then the connection is closed
        self.after_cut: dict[str, int] = {}  # what fails from then on
        self.hold_after: int | None = None
        self.hold = threading.Event()
        self.held = threading.Event()
        self.fail: dict[str, int] = {}  # part of a path → status
        self.fail_gets: dict[str, int] = {}  # the same of GETs alone
        self.fail_first: list[int] = []  # what the next answers of repositories fail with
        self.retry_after = ""  # what a failing answer asks for
        self.renamed: dict[str, str] = {}  # a repository's old name → its new one
        self.redirects: dict[str, str] = {}  # a path → where its answer sends to
        self.spoiled: set[str] = set()  # parts of paths whose bytes come wrong, as many as announced
        self.ranges = True
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def elsewhere(self) -> str:
        return f"http://localhost:{self.port}"

    def gets(self, part: str = "") -> list[tuple[str, str]]:
        """Return path and range of what was fetched."""
        return [(path, span) for method, path, span, _ in self.asked if method == "GET" and part in path]


@contextmanager
def hub_server(tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("", 0), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # whoever asked is gone
    server.hub = Hub(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.hub
    finally:
        server.hub.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def log_message(self, *args) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self._body = body
        self._form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(
            (self.command, path, self.headers.get("Range", ""), self.headers.get("Authorization", ""))
        )
        failing = {**self.hub.fail, **(self.hub.fail_gets if self.command == "GET" else {})}
        for part, status in failing.items():
            if part in path:
                return self._fail(status)
        if self.hub.fail_first and "lab/" in path:
            return self._fail(self.hub.fail_first.pop(0))
        if path in self.hub.redirects:
            return self._say(302, b"", {"Location": self.hub.redirects[path]})
        for old, new in self.hub.renamed.items():
            if f"/{old}" in path:
                return self._say(307, b"", {"Location": self.path.replace(old, new)})
        if path.startswith("/cdn/"):
            return self._send(next(data for data in self._contents() if _sha256(data) == path[5:]), {})
        if found := _REPO.fullmatch(path):
            return self._listing(*found.groups())
        if found := _FILE.fullmatch(path):
            return self._file(*found.groups())
        if path in self.hub.files:
            return self._send(self.hub.files[path], {"ETag": f'"{_sha256(self.hub.files[path])[:12]}"'})
        return self._say(404, b"")

    def _fail(self, status: int) -> None:
        self._say(status, b"{}", {"Retry-After": self.hub.retry_after} if self.hub.retry_after else {})

    def _contents(self):
        return (data for repo in self.hub.repos.values() for data in repo.files.values())

    def _repo(self, kind: str, name: str, revision: str | None) -> Repo | None:
        """Return a repository, or answer why it cannot be had."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return None
        repo = self.hub.repos.get(f"{kind}/{name}")
        if repo is None or (repo.private and not self.hub.tokens.get(token)):
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        if revision not in (None, "main", repo.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repo

    def _listing(self, kind: str, name: str, what: str | None, revision: str | None) -> None:
        repo = self._repo(kind, name, revision)
        if repo is None:
            return
        if what in ("tree", "paths-info"):
            asked = self._form["paths"] if what == "paths-info" else list(repo.files)
            entries = [
                {"type": "file", "oid": _oid(data), "size": len(data), "path": path, **_lfs(data)}
                for path, data in repo.files.items()
                if path in asked
            ]
            self._say(200, json.dumps(entries).encode())
            return
        sizes = "blobs" in parse_qs(urlsplit(self.path).query)
        siblings = [
            {"rfilename": path, **({"size": len(data), "blobId": _oid(data), **_lfs(data)} if sizes else {})}
            for path, data in repo.files.items()
        ]
        info = {
            "id": name,
            "modelId": name,
            "sha": repo.commit,
            "siblings": siblings,
            "gated": repo.gated,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        self._say(200, json.dumps(info).encode())

    def _file(self, datasets: str | None, name: str, revision: str, path: str) -> None:
        repo = self._repo("datasets" if datasets else "models", name, revision)
        if repo is None:
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo.gated and not self.hub.tokens.get(token):
            words = (
                "Access to model is restricted and you are not in the authorized list." if token else "Please log in."
            )
            self._refuse(403 if token else 401, "GatedRepo", words)
            return
        if path not in repo.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        data = repo.files[path]
        headers = {"X-Repo-Commit": repo.said or repo.commit, "ETag": f'"{_oid(data)}"'}
        if len(data) < LARGE:
            self._send(data, headers)
            return
        headers |= {"X-Linked-Etag": f'"{_sha256(data)}"', "X-Linked-Size": str(len(data))}
        self._say(302, b"", {**headers, "Location": f"{self.hub.elsewhere}/cdn/{_sha256(data)}"})

    def _refuse(self, status: int, code: str, words: str) -> None:
        headers = {"X-Error-Message": words, **({"X-Error-Code": code} if code else {})}
        self._say(status, json.dumps({"error": words}).encode(), headers)

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        span = _RANGE.fullmatch(self.headers.get("Range", ""))
        changed = self.headers.get("If-Range") not in (None, headers.get("ETag"))
        if not span or not self.hub.ranges or changed:
            return self._say(200, data, headers)
        start = int(span[1])
        if start >= len(data):
            return self._say(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        place = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._say(206, data[start:], {**headers, "Content-Range": place})

    def _say(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self._body:
            self._write(data)

    def _write(self, data: bytes) -> None:
        hub = self.hub
        if any(part in self.path for part in hub.spoiled):
            data = bytes(len(data))
        held_at = hub.hold_after
        if held_at is not None and len(data) > held_at:
            self._put(data[:held_at])
            hub.held.set()
            hub.hold.wait(240)
            data = data[held_at:]
        elif hub.cut_after is not None and len(data) > hub.cut_after:
            self._put(data[: hub.cut_after])
            self.close_connection = True
            hub.fail |= hub.after_cut
            return
        self._put(data)

    def _put(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
            self.hub.sent += len(data)
        except OSError:  # whoever asked is gone
            self.close_connection = True


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _lfs(data: bytes) -> dict[str, object]:
    if len(data) < LARGE:
        return {}
    return {"lfs": {"oid": _sha256(data), "sha256": _sha256(data), "size": len(data), "pointerSize": 134}}
