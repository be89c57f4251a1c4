"""Pretended nodes of a real control plane: pods that it binds to them run as processes, whose logs it gets."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
import urllib.error
from contextlib import suppress
from datetime import datetime, timezone
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.control_plane.control_plane import ControlPlane
from tests.pods.stand_in import Cluster, Pod, make_handler

_PAUSE_S = 0.1


class Kubelet:
    """The kubelets of some nodes, each with `gpus` of AMD."""

    def __init__(self, home: Path, plane: ControlPlane, names: tuple[str, ...], gpus: int = 8) -> None:
        self.names, self._plane = names, plane
        self.engine = Cluster(home)  # runs pods; its API server is not used
        self._pushed: dict[str, dict] = {}
        self._closed = threading.Event()
        self._logs = _log_server(home, self.engine)
        for name in names:
            self._register(name, gpus)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End what runs."""
        self._closed.set()
        self._thread.join(30)
        self._logs.shutdown()
        self._logs.server_close()
        self.engine.close()

    def _register(self, name: str, gpus: int) -> None:
        self._plane.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"pool": name}}})
        room = {"cpu": "96", "memory": "1Ti", "pods": "110", "amd.com/gpu": str(gpus)}
        status = {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": _now(), "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.server_address[1]}},
        }
        self._plane.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _work(self) -> None:
        while not self._closed.wait(_PAUSE_S):
            with suppress(OSError):
                pods = self._plane.call("GET", "/api/v1/pods")["items"]
                for pod in pods:
                    if pod["spec"].get("nodeName") in self.names:
                        self._look_after(pod)

    def _look_after(self, pod: dict) -> None:
        name = pod["metadata"]["name"]
        mine = self.engine.pods.get(name)
        if mine is None:
            mine = self.engine.pods[name] = Pod(
                {**pod, "status": {"phase": "Pending"}}, self.engine.home / f"{name}.log"
            )
            threading.Thread(target=self._run, args=(pod, mine), daemon=True).start()
        self._push(pod, mine)
        if pod["metadata"].get("deletionTimestamp") and name not in self._pushed.get("removed", {}):
            self._pushed.setdefault("removed", {})[name] = True
            threading.Thread(target=self._remove, args=(pod, mine), daemon=True).start()

    def _run(self, pod: dict, mine: Pod) -> None:
        """Run a pod once the ConfigMap and the Secret that it names are there."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
        spec = pod["spec"]
        names = {("configmaps", one["configMap"]["name"]) for one in spec["volumes"] if "configMap" in one}
        references = [one.get("valueFrom", {}).get("secretKeyRef") for one in spec["containers"][0]["env"]]
        names |= {("secrets", one["name"]) for one in references if one}
        while names and not self._closed.is_set():
            for kind, name in list(names):
                with suppress(OSError):
                    self.engine.objects[kind, name] = self._plane.call("GET", f"{path}/{kind}/{name}")
                    names.discard((kind, name))
            time.sleep(_PAUSE_S)
        self.engine._run(mine, 0)

    def _push(self, pod: dict, mine: Pod) -> None:
        """Tell the API server how far a pod is."""
        status, key = mine.body["status"], pod["metadata"]["uid"]
        if status == self._pushed.get(key) or status["phase"] == "Pending":
            return
        state = {name: dict(value) for name, value in status["containerStatuses"][0]["state"].items()}
        if "running" in state:
            state["running"]["startedAt"] = _now()
        else:
            state["terminated"] |= {"startedAt": _now(), "finishedAt": _now()}
        image = pod["spec"]["containers"][0]["image"]
        whole = {"name": "run", "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": state}
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        with suppress(urllib.error.HTTPError):  # it is gone
            self._plane.patch(path, {"status": {**status, "containerStatuses": [whole]}})
        self._pushed[key] = status

    def _remove(self, pod: dict, mine: Pod) -> None:
        """End a pod that was deleted, within its grace, and let the API server forget it."""
        self.engine.kill(mine, float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
        self._push(pod, mine)
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        with suppress(urllib.error.HTTPError):
            self._plane.call("DELETE", path, {"gracePeriodSeconds": 0})


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _log_server(home: Path, engine: Cluster) -> ThreadingHTTPServer:
    """Return what the API server asks for logs, by HTTPS as a kubelet."""
    files = ("-keyout", home / "kubelet.key", "-out", home / "kubelet.pem", "-subj", "/CN=kubelet")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files], check=True, capture_output=True
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(engine))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "kubelet.pem", home / "kubelet.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
