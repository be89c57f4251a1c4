"""A registry for tests: serves small images to a real engine, over plain HTTP on the loopback address.

Format: https://distribution.github.io/distribution/spec/api and the image manifest, version 2.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Registry:
    """Serves `tiny:1`, `slow:1` whose layer never ends, and refuses `private`."""

    def __init__(self) -> None:
        self.begun = threading.Event()  # somebody downloads the layer that never ends
        self.given_up = threading.Event()  # and went away
        self.blobs: dict[str, bytes] = {}
        self.manifests = {"tiny": self._image(b"x" * 100_000), "slow": self._image(b"y" * 50_000)}
        self._slow_layer = json.loads(self.manifests["slow"])["layers"][0]["digest"]
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.name = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def digest(self, repository: str) -> str:
        return _digest(self.manifests[repository])

    def _image(self, content: bytes) -> bytes:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            entry = tarfile.TarInfo("content")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        packed = gzip.compress(layer.getvalue(), mtime=0)
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        roots = {"type": "layers", "diff_ids": [_digest(layer.getvalue())]}
        config = json.dumps({"architecture": architecture, "os": "linux", "config": {}, "rootfs": roots}).encode()
        self.blobs |= {_digest(config): config, _digest(packed): packed}
        kind = "application/vnd.docker"
        return json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _entry(f"{kind}.container.image.v1+json", config),
                "layers": [_entry(f"{kind}.image.rootfs.diff.tar.gzip", packed)],
            }
        ).encode()

    def _handler(registry) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = self.path.strip("/").split("/")
                if parts == ["v2"]:
                    self._answer(b"{}", "application/json")
                elif parts[1] == "private":
                    self._refuse(403, "DENIED", "requested access to the resource is denied")
                elif parts[2] == "manifests":
                    self._manifest(parts[1], parts[3])
                elif parts[3] == registry._slow_layer:
                    self._never_end(registry.blobs[parts[3]])
                else:
                    self._answer(registry.blobs[parts[3]], "application/octet-stream")

            do_HEAD = do_GET

            def _manifest(self, repository: str, wanted: str) -> None:
                manifest = registry.manifests.get(repository)
                if manifest is None or wanted not in ("1", "latest", _digest(manifest)):
                    self._refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")
                else:
                    self._answer(manifest, MANIFEST, {"Docker-Content-Digest": _digest(manifest)})

            def _answer(self, body: bytes, kind: str, more: dict[str, str] | None = None, status: int = 200) -> None:
                self.send_response(status)
                for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def _refuse(self, status: int, code: str, message: str) -> None:
                body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
                self._answer(body, "application/json", status=status)

            def _never_end(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(10**12))
                self.end_headers()
                registry.begun.set()
                try:
                    while True:
                        self.wfile.write(body)
                        self.wfile.flush()
                        registry.given_up.wait(0.02)
                except OSError:
                    registry.given_up.set()

            def log_message(self, *args: object) -> None:
                return

        return Handler


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _entry(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}
