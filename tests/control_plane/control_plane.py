"""A real control plane of Kubernetes on this machine: etcd, API server, controllers and scheduler of one folder.

`make kubernetes` builds the programs (scripts/kubernetes.sh); ports, keys and data are the control plane's own.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.waiting import wait_until

PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "madlite-tests/kubernetes"
_TOKENS = {"admin": "t0ken", "user": "t0ken-of-a-user"}
_GATES = "--feature-gates=TTLAfterFinished=true"
_NOBODY = ssl._create_unverified_context()  # noqa: S323 - of this machine, with a certificate of its own


class ControlPlane:
    """It runs from `start` to `stop`; `admin` may do everything, `user` what a test allows."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self._etcd, self._peer = _free_ports(3)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._keys()
        self._run(
            "etcd",
            f"--data-dir={self.home}/data",
            f"--listen-client-urls=http://127.0.0.1:{self._etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self._peer}",
            f"--initial-cluster=default=http://127.0.0.1:{self._peer}",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--insecure-port=0",
            f"--cert-dir={self.home}/certificates",
            f"--token-auth-file={self.home}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.home}/key",
            f"--service-account-key-file={self.home}/key",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--watch-cache=false",  # so that what etcd has forgotten is forgotten at once
            "--etcd-compaction-interval=3s",
            _GATES,
        )
        wait_until(lambda: self.answers("/readyz"), "the API server")
        config = self.kubeconfig("admin", "default")
        common = (f"--kubeconfig={config}", "--leader-elect=false", "--port=0", "--secure-port=0")
        self._run(
            "kube-controller-manager",
            *common,
            f"--service-account-private-key-file={self.home}/key",
            "--node-monitor-grace-period=3600s",  # pretended nodes send no heartbeat
            _GATES,
        )
        self._run("kube-scheduler", *common)

    def stop(self) -> None:
        """End it, etcd last."""
        for process in reversed(self._processes):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> dict:
        """Return the answer to the administrator.

        Raises:
            urllib.error.HTTPError: the server refuses.
        """
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method)
        request.add_header("Authorization", f"Bearer {_TOKENS['admin']}")
        request.add_header("Content-Type", kind)
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(request, data, timeout=30, context=_NOBODY) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else {}

    def patch(self, path: str, body: object) -> dict:
        """Return an object after its change."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def answers(self, path: str) -> bool:
        """Return whether the server answers well."""
        with suppress(OSError):
            self.call("GET", path)
            return True
        return False

    def kubeconfig(self, user: str, namespace: str) -> Path:
        """Return a file with which a user is in a namespace."""
        file = self.home / f"{user}-{namespace}.kubeconfig"
        server = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": user, "user": {"token": _TOKENS[user]}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": user, "namespace": namespace}}],
        }
        file.write_text(json.dumps(text))
        return file

    def namespace(self, name: str) -> str:
        """Make a namespace in which pods can be, and return its name."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        wait_until(lambda: self.answers(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its service account")
        return name

    def allow(self, namespace: str, rules: list[dict]) -> None:
        """Let the user do this, and nothing else, in a namespace."""
        group, name = "rbac.authorization.k8s.io", {"metadata": {"name": "user"}}
        path = f"/apis/{group}/v1/namespaces/{namespace}"
        self.call("POST", f"{path}/roles", {**name, "rules": rules})
        subject = {"kind": "User", "name": "user", "apiGroup": group}
        role = {"kind": "Role", "name": "user", "apiGroup": group}
        self.call("POST", f"{path}/rolebindings", {**name, "subjects": [subject], "roleRef": role})

    def _keys(self) -> None:
        subprocess.run(["openssl", "genrsa", "-out", self.home / "key", "2048"], check=True, capture_output=True)
        rows = (("admin", "admin", '"system:masters"'), ("user", "user", ""))
        (self.home / "tokens.csv").write_text("".join(f"{_TOKENS[name]},{name},{uid},{of}\n" for name, uid, of in rows))

    def _run(self, program: str, *options: str) -> None:
        with (self.home / f"{program}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [PROGRAMS / program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home
                )
            )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
