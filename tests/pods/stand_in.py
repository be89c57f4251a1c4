"""A stand-in cluster: an API server that keeps objects, and nodes that run the pods' scripts as processes.

What it takes it validates with the schemas of Kubernetes (kubernetes-validate, strict).  What it does not have: real
scheduling, networks and images.  A pod's ConfigMap is laid out in a folder, and the paths of its script moved
there.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import psutil

from tests.pods.schemas import validate

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/(?P<version>[^/]+))/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>log))?"
)
_INDEX = "batch.kubernetes.io/job-completion-index"


class Pod:
    """One pod: its object, and its process once it runs."""

    def __init__(self, body: dict, log: Path) -> None:
        self.body, self.log = body, log
        self.process: subprocess.Popen[bytes] | None = None
        self.over = threading.Event()
        log.touch()


class Cluster:
    """The objects by kind and name; `pod_status` lets a test say what becomes of a pod instead of running it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.objects: dict[tuple[str, str], dict] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes = [self._node(n) for n in range(4)]
        self.events: list[dict] = []
        self.requests: list[tuple[str, str]] = []
        self.strict: list[str] = []  # the plurals of what was to be refused where it has an unknown field
        self.invalid: list[str] = []
        self.made: list[tuple[str, dict]] = []  # by their plural, in their order
        self.answers: list[tuple[str, int, str]] = []  # (path part, status, message) to refuse with, each once
        self.pod_status: Callable[[dict], dict | None] = lambda pod: None
        self.cut_logs_after = 0  # bytes of a log that one connection gives; 0 all
        self.denied: list[str] = []  # such as `create jobs`, of what a user may do
        self.watches: list[str] = []  # the version from which each began
        self.cut_watches_after = 0  # events that one connection gives; 0 all
        self.may_watch = True
        self.token = "t0ken"  # of who may do everything
        self.away = 0  # so many requests from now on get no answer
        self.oldest = 0  # the least version that a watch may begin from
        self._version = 100
        self._history: list[tuple[int, str, dict]] = []
        self._seen: dict[str, str] = {}
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def _node(number: int) -> dict:
        return {"metadata": {"name": f"n{number}"}, "status": {"allocatable": {"amd.com/gpu": "8", "cpu": "96"}}}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def kubeconfig(self, user: dict | None = None) -> Path:
        """Return a file that names this cluster; `user` is how one logs in, if not by the token."""
        file = self.home / "kubeconfig"
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": user or {"token": self.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "bench"}}],
        }
        replace_text(file, json.dumps(text))
        return file

    def close(self) -> None:
        self.closed.set()
        for pod in list(self.pods.values()):
            self.kill(pod, 0)
        self.server.shutdown()
        self.server.server_close()

    # Objects.

    def create(self, plural: str, body: dict) -> tuple[int, dict]:
        name = body["metadata"]["name"]
        if body["apiVersion"] in ("v1", "batch/v1"):
            try:
                validate(body)
            except Exception as error:  # noqa: BLE001 - told to the client, as a server does
                self.invalid.append(str(error))
                return 422, _status(422, f"{body['kind']} is invalid: {error}")
        with self.lock:
            if (plural, name) in self.objects:
                return 409, _status(409, f'{plural} "{name}" already exists')
            made = {**body, "metadata": {**body["metadata"], "uid": str(uuid.uuid4()), "resourceVersion": "1"}}
            self.objects[plural, name] = made
            self.made.append((plural, made))
        return 201, made

    def patch(self, plural: str, name: str, body: dict) -> tuple[int, dict]:
        if plural == "pods":
            if name not in self.pods:
                return 404, _status(404, f'pods "{name}" not found')
            found = self.pods[name].body
            found["metadata"]["annotations"] = body["metadata"]["annotations"]
            return 200, found
        found = self.objects[plural, name]
        found["spec"] = {**found["spec"], **body.get("spec", {})}
        if plural in ("jobs", "jobsets") and not found["spec"].get("suspend"):
            self.start(found)
        return 200, found

    def delete(self, plural: str, name: str, grace_s: int | None) -> tuple[int, dict]:
        with self.lock:
            found = self.objects.pop((plural, name), None)
            if plural == "pods" and name in self.pods:
                self._end(self.pods[name], grace_s)
                return 200, _status(200, "")
            if found is None:
                return 404, _status(404, f'{plural} "{name}" not found')
            uid = found["metadata"]["uid"]
            for key, one in list(self.objects.items()):  # the garbage collector
                if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", ())):
                    del self.objects[key]
        if plural in ("jobs", "jobsets"):
            for pod in list(self.pods.values()):
                if pod.body["metadata"]["ownerReferences"][0]["uid"] == uid:
                    self._end(pod, grace_s)
        return 200, _status(200, "")

    def observe(self) -> int:
        """Note what has changed of the pods, and return the version that they have now."""
        with self.lock:
            now = {name: json.dumps(pod.body) for name, pod in list(self.pods.items())}
            for name in [*now, *(name for name in self._seen if name not in now)]:
                if now.get(name) == self._seen.get(name):
                    continue
                kind = "DELETED" if name not in now else "MODIFIED" if name in self._seen else "ADDED"
                self._version += 1
                body = json.loads(now.get(name) or self._seen[name])
                body["metadata"]["resourceVersion"] = str(self._version)
                self._history.append((self._version, kind, body))
            self._seen = now
            return self._version

    def events_after(self, version: int, query: dict[str, str]) -> list[tuple[str, dict]]:
        """Return what happened to selected pods after a version."""
        self.observe()
        with self.lock:
            return [(kind, body) for at, kind, body in self._history if at > version and _selected(query, body)]

    # The Job's controller and the kubelets.

    def start(self, job: dict) -> None:
        spec = job["spec"] if job["kind"] == "Job" else job["spec"]["replicatedJobs"][0]["template"]["spec"]
        for index in range(spec["completions"]):
            name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
            template = spec["template"]
            labels = {**template["metadata"]["labels"], _INDEX: str(index)}
            owner = {"uid": job["metadata"]["uid"], "name": job["metadata"]["name"]}
            metadata = {"name": name, "labels": labels, "ownerReferences": [owner], "uid": str(uuid.uuid4())}
            body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
            pod = self.pods[name] = Pod(body, self.home / f"{name}.log")
            status = self.pod_status(body)
            if status is not None:
                body["status"] = status
                if status["phase"] in ("Succeeded", "Failed"):
                    pod.over.set()
            else:
                threading.Thread(target=self._run, args=(pod, index), daemon=True).start()

    def _run(self, pod: Pod, index: int) -> None:
        """Run the script of a pod as the kubelet would: its files laid out, its variables set."""
        root = self.home / pod.body["metadata"]["name"]
        spec = pod.body["spec"]
        config = self.objects.get(
            ("configmaps", next(v["configMap"]["name"] for v in spec["volumes"] if "configMap" in v))
        )
        if config is None:
            return
        for volume in spec["volumes"]:
            folder = root / "madlite" / volume["name"]
            folder.mkdir(parents=True)
            for item in volume.get("configMap", {}).get("items", ()):
                data = config.get("data", {}).get(item["key"])
                text = data.encode() if data is not None else base64.b64decode(config["binaryData"][item["key"]])
                path = folder / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._moved(text, root) if volume["name"] == "script" else text)
                path.chmod(volume["configMap"].get("defaultMode", 0o644))
        env = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index), "HOME": str(root)}
        for one in spec["containers"][0]["env"]:
            env[one["name"]] = self._value(one, pod.body)
        env["MADLITE_WORKSPACE"] = str(root / "myworkspace")
        pod.process = subprocess.Popen(
            ["/bin/sh", str(root / "madlite/script/actions.sh")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        pod.body["status"] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        with pod.log.open("ab", buffering=0) as log:
            for line in pod.process.stdout:
                now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
                log.write(now.encode() + b" " + line)
        code = pod.process.wait()
        self._end_container(env["MADLITE_WORKSPACE"])
        self._ended(pod, code)

    @staticmethod
    def _end_container(workspace: str) -> None:
        """End what a pod's script has left, as a container's end does."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("MADLITE_WORKSPACE") == workspace:
                    process.kill()

    @staticmethod
    def _moved(text: bytes, root: Path) -> bytes:
        for inside in (b"/madlite/", b"/myworkspace"):
            text = re.sub(rb"(?<![\w}])" + inside, bytes(root) + inside, text)
        return text

    def _value(self, one: dict, pod: dict) -> str:
        if "valueFrom" not in one:  # a server leaves an empty value out
            return one.get("value", "").replace("$$", "$")
        if field := one["valueFrom"].get("fieldRef"):
            return pod["metadata"].get(field["fieldPath"].removeprefix("metadata."), "bench")
        reference = one["valueFrom"]["secretKeyRef"]
        return base64.b64decode(self.objects["secrets", reference["name"]]["data"][reference["key"]]).decode()

    def _ended(self, pod: Pod, code: int) -> None:
        code = 128 - code if code < 0 else code
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"state": state}]}
        pod.body["status"] = {**status, **pod.body["status"].pop("after", {})}
        pod.over.set()
        self._end_job(pod.body["metadata"]["ownerReferences"][0])

    def _end_job(self, owner: dict) -> None:
        """Note at a Job that it is over, as its controller does."""
        with self.lock:
            job = self.objects.get(("jobs", owner["name"])) or self.objects.get(("jobsets", owner["name"]))
            own = [one.body for one in list(self.pods.values()) if one.body["metadata"]["ownerReferences"] == [owner]]
            phases = {one["status"]["phase"] for one in own}
            if job is None or not phases <= {"Succeeded", "Failed"}:
                return
            kind = "Failed" if "Failed" in phases else "Complete" if job["kind"] == "Job" else "Completed"
            job["status"] = {"conditions": [{"type": kind, "status": "True"}]}

    def _end(self, pod: Pod, grace_s: int | None) -> None:
        grace = pod.body["spec"]["terminationGracePeriodSeconds"] if grace_s is None else grace_s
        threading.Thread(target=self._remove, args=(pod, grace), daemon=True).start()

    def _remove(self, pod: Pod, grace_s: float) -> None:
        self.kill(pod, grace_s)
        self.pods.pop(pod.body["metadata"]["name"], None)

    def kill(self, pod: Pod, grace_s: float) -> None:
        """TERM to the pod's first process, then KILL to all of it."""
        process = pod.process
        if process is None:
            pod.over.set()
            return
        if process.poll() is None and grace_s > 0:
            process.terminate()
            pod.over.wait(grace_s)
        for other in psutil.process_iter():  # all of its session, as the end of a container ends all of it
            with suppress(OSError):
                if os.getsid(other.pid) == process.pid:
                    os.kill(other.pid, signal.SIGKILL)
        pod.over.wait(10)

    def lose(self, name: str, status: dict) -> None:
        """End a pod from outside, as a node that dies does: its status says why."""
        pod = self.pods[name]
        pod.body["status"]["after"] = status
        self.kill(pod, 0)


def replace_text(file: Path, text: str) -> None:
    """Write a file that a command may be reading: it finds the old text or the new one, and no part of either."""
    beside = file.with_name(f".{file.name}")
    beside.write_text(text)
    beside.rename(file)


def _status(code: int, message: str) -> dict:
    return {"apiVersion": "v1", "kind": "Status", "code": code, "message": message}


def _selected(query: dict[str, str], body: dict) -> bool:
    selector = query.get("labelSelector", "")
    labels = body["metadata"].get("labels", {})
    return all(
        labels.get(key) == value for key, _, value in (part.partition("=") for part in selector.split(",") if part)
    )


def make_handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    """Return what answers for a cluster, and for the logs of its kubelets."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def answer(self, code: int, body: dict) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if code == 429:
                self.send_header("Retry-After", "3")
            self.end_headers()
            self.wfile.write(data)

        def serve(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}") if size else {}
            cluster.requests.append((self.command, url.path))
            if cluster.away > 0:
                cluster.away -= 1
                self.close_connection = True
                return None
            for planned in cluster.answers:
                if planned[0] in f"{self.command} {url.path}":
                    cluster.answers.remove(planned)
                    return self.answer(planned[1], _status(planned[1], planned[2]))
            if url.path.startswith("/containerLogs/"):  # as an API server asks a kubelet
                return self.log(url.path.split("/")[3], query)
            if self.headers.get("Authorization") != f"Bearer {cluster.token}":
                return self.answer(401, _status(401, "Unauthorized"))
            if url.path == "/version":
                return self.answer(200, {"gitVersion": "v1.37.0"})
            if url.path.endswith("/selfsubjectaccessreviews"):
                asked = body["spec"]["resourceAttributes"]
                return self.answer(
                    201, {"status": {"allowed": f"{asked['verb']} {asked['resource']}" not in cluster.denied}}
                )
            if url.path == "/api/v1/nodes":
                return self.answer(200, {"items": cluster.nodes})
            return self.namespaced(_PATH.fullmatch(url.path), query, body)

        def namespaced(self, found: re.Match | None, query: dict, body: dict) -> None:
            if found is None or found["namespace"] != "bench":
                return self.answer(404, _status(404, 'namespaces "x" not found'))
            plural, name = found["plural"], found["name"]
            if found["sub"] == "log":
                return self.log(name, query)
            if self.command == "POST":
                cluster.strict += [plural] if query.get("fieldValidation") == "Strict" else []
                return self.answer(*cluster.create(plural, body))
            if self.command == "DELETE":
                return self.answer(*cluster.delete(plural, name, body.get("gracePeriodSeconds")))
            if self.command == "PATCH":
                return self.answer(*cluster.patch(plural, name, body))
            if name:
                one = cluster.pods[name].body if plural == "pods" and name in cluster.pods else None
                one = one or cluster.objects.get((plural, name))
                return self.answer(200, one) if one else self.answer(404, _status(404, f'{plural} "{name}" not found'))
            version = cluster.observe()
            if plural == "pods" and query.get("watch"):
                return self.watch(query)
            if plural == "pods":
                items = [pod.body for pod in list(cluster.pods.values()) if _selected(query, pod.body)]
            elif plural == "events":
                items = cluster.events
            else:
                items = [
                    one for (kind, _), one in list(cluster.objects.items()) if kind == plural and _selected(query, one)
                ]
            return self.answer(200, {"metadata": {"resourceVersion": str(version)}, "items": items})

        def is_left(self) -> bool:
            """Return whether the client has closed the connection."""
            is_readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(is_readable) and not self.connection.recv(1, socket.MSG_PEEK)

        def begin_stream(self) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True

        def watch(self, query: dict) -> None:
            if not cluster.may_watch:
                return self.answer(403, _status(403, 'cannot watch resource "pods"'))
            version, sent = int(query["resourceVersion"]), 0
            cluster.watches.append(query["resourceVersion"])
            self.begin_stream()
            if version < cluster.oldest:
                status = _status(410, "too old resource version")
                self.chunk(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                return self.chunk(b"")
            until = time.monotonic() + float(query["timeoutSeconds"])
            while time.monotonic() < until and not cluster.closed.is_set() and not self.is_left():
                for kind, body in cluster.events_after(version, query):
                    version = int(body["metadata"]["resourceVersion"])
                    self.chunk(json.dumps({"type": kind, "object": body}).encode() + b"\n")
                    sent += 1
                    if sent == cluster.cut_watches_after:  # without the last chunk: the connection broke
                        return None
                time.sleep(0.02)
            return self.chunk(b"")

        def log(self, name: str, query: dict) -> None:
            pod = cluster.pods.get(name)
            if pod is None:
                return self.answer(404, _status(404, f'pods "{name}" not found'))
            self.begin_stream()
            since, left = query.get("sinceTime", "")[:19], cluster.cut_logs_after or None
            cluster.cut_logs_after *= 2
            with pod.log.open("rb") as file:
                while True:
                    over = pod.over.is_set()
                    line = file.readline()
                    if not line:
                        if over:
                            return self.chunk(b"")
                        time.sleep(0.02)
                        continue
                    while not line.endswith(b"\n") and not pod.over.is_set():
                        line += file.readline()
                    if line[:19].decode() < since:
                        continue
                    if left is not None:
                        self.chunk(line[:left])
                        left -= len(line)
                        if left <= 0:  # without the last chunk: the connection broke
                            return None
                    else:
                        self.chunk(line)

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    for method in ("GET", "POST", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.serve)
    return Handler
