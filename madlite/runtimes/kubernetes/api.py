"""The cluster's API as the runtime uses it, through the official client: access, retries, refusals as sentences."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from madlite.cancellation import check
from madlite.errors import RuntimeProblem
from madlite.model import Cause
from madlite.runtimes.kubernetes.faults import quota_fault
from madlite.runtimes.kubernetes.manifests import CONTAINER
from madlite.runtimes.kubernetes.settings import KubernetesSettings
from madlite.workspace.folder import RUN_LABEL

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_WAITS_S = (0.5, 1.0, 2.0, 4.0)  # between tries of a call that the server was too busy for
_ANSWER_S = (10.0, 30.0)  # to connect, and for an answer
_QUIET_S = 60.0  # a log that is silent for so long is asked for again: its connection may be dead
AGAIN = (429, 500, 502, 503, 504)
"""Answers of a server that is too busy: it is asked again."""
NOT_FOUND, CONFLICT, GONE = 404, 409, 410
"""The answers to what is not there, to what is there already, and to a watch from a version that is forgotten."""
_WATCH_S = 60  # how long the server leaves a watch open
_HINT = "pip install 'madlite[kubernetes]'"
_KINDS = {
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Refusal(RuntimeProblem):
    """What the server answered other than well; `status` is its HTTP code."""

    def __init__(self, message: str, hint: str = "", *, cause: str = Cause.PREPARE, status: int = 0) -> None:
        super().__init__(message, hint, cause=cause)
        self.status = status


class Api:
    """One namespace of a cluster, as the settings or the kubeconfig name it.

    Raises:
        RuntimeProblem: there is no client, or no such kubeconfig.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        self._client, self.namespace = _client(settings)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, and return it as the server has it."""
        return self._call("POST", _KINDS[body["kind"]], body=body)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, None where there is none."""
        try:
            return self._call("GET", f"{_KINDS[kind]}/{name}")
        except Refusal as refusal:
            if refusal.status == NOT_FOUND:
                return None
            raise

    def resume(self, kind: str, name: str) -> None:
        """Let a suspended Job start."""
        patch = {"spec": {"suspend": False}}
        self._call("PATCH", f"{_KINDS[kind]}/{name}", body=patch, content="application/merge-patch+json")

    def annotate_pods(self, run: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to the pods of a run; one that is gone meanwhile is fine."""
        patch = {"metadata": {"annotations": dict(annotations)}}
        for pod in self.pods(run):
            try:
                path = f"{_KINDS['Pod']}/{pod['metadata']['name']}"
                self._call("PATCH", path, body=patch, content="application/merge-patch+json")
            except Refusal as refusal:
                if refusal.status != NOT_FOUND:
                    raise

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> bool:
        """Remove an object and what it owns; return False where it is gone already."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._call("DELETE", f"{_KINDS[kind]}/{name}", body=options)
        except Refusal as refusal:
            if refusal.status in (NOT_FOUND, CONFLICT):
                return False
            raise
        return True

    def pods(self, run: str) -> list[dict[str, Any]]:
        """Return the pods of a run."""
        return self.list_pods(run)[0]

    def list_pods(self, run: str) -> tuple[list[dict[str, Any]], str]:
        """Return the pods of a run, and the version from which a watch tells what changes."""
        found = self._call("GET", _KINDS["Pod"], query=[_of_run(run)])
        return list(found.get("items") or []), str((found.get("metadata") or {}).get("resourceVersion", ""))

    def watch_pods(self, run: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what happens to the pods of a run after a version: ADDED, MODIFIED, DELETED or BOOKMARK, and the pod.

        It ends when the server ends it.

        Raises:
            Refusal: the version is forgotten (410), watching is not allowed, or the connection broke.
        """
        query = [_of_run(run), ("watch", "true"), ("allowWatchBookmarks", "true")]
        query += [("resourceVersion", version), ("timeoutSeconds", str(_WATCH_S))]
        answer = self._once("GET", _KINDS["Pod"], query=query, stream=True, quiet_s=1.5 * _WATCH_S)
        try:
            with _explained("GET pods", self.namespace):
                for line in _lines(answer):
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        code = int(status.get("code") or 0)
                        raise Refusal(f"the watch ended: {status.get('message', '')}", status=code)
                    yield str(event.get("type", "")), event.get("object") or {}
        except ValueError as error:
            raise Refusal(f"the watch broke off: {error}") from None
        finally:
            answer.close()

    def objects(self, kind: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the objects of a kind that have all of some labels."""
        return self._items(kind, [("labelSelector", ",".join(f"{key}={value}" for key, value in query.items()))])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what happened to an object; nothing where one may not see it."""
        return self._events(f"involvedObject.name={name}")

    def failed_creations(self) -> list[dict[str, Any]]:
        """Return the events of all objects whose pods could not be made; nothing where one may not see them."""
        return self._events("reason=FailedCreate")

    def _events(self, selector: str) -> list[dict[str, Any]]:
        try:
            return self._items("Event", [("fieldSelector", selector)])
        except Refusal as refusal:
            _LOG.debug("no events: %s", refusal.message)
            return []

    def nodes(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes; nothing where one may not see them."""
        try:
            found = self._call("GET", "/api/v1/nodes")
        except Refusal as refusal:
            _LOG.debug("no nodes: %s", refusal.message)
            return []
        return list(found.get("items") or [])

    def log(self, pod: str, since: str) -> Any:
        """Return the open log of a pod, with a time before each line, of the lines from a time on; "" for all."""
        query = [("container", CONTAINER), ("follow", "true"), ("timestamps", "true")]
        query += [("sinceTime", since)] if since else []
        path = f"{_KINDS['Pod']}/{pod}/log"
        return self._once("GET", path, query=query, stream=True)

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether the caller may do something in the namespace; `resource` as `pods` or `pods/log`."""
        name, _, below = resource.partition("/")
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": name, "subresource": below}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        answer = self._call("POST", _REVIEWS, body={**body, "spec": {"resourceAttributes": asked}})
        return bool((answer.get("status") or {}).get("allowed"))

    def version(self) -> str:
        """Return the version of the server."""
        return str(self._call("GET", "/version").get("gitVersion", ""))

    def _items(self, kind: str, query: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        return list(self._call("GET", _KINDS[kind], query=query).get("items") or [])

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Return the answer of a call, tried again while the server is too busy, or does not answer."""
        answer = _patiently(lambda: self._once(method, path, **more))
        found = json.loads(answer or b"{}")
        return found if isinstance(found, dict) else {}

    def _once(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Sequence[tuple[str, str]] = (),
        content: str = "application/json",
        stream: bool = False,
        quiet_s: float = _QUIET_S,
    ) -> Any:
        with _explained(f"{method} {path.rpartition('/')[2] if stream else path.rsplit('/', 1)[-1]}", self.namespace):
            answer = self._client.call_api(
                path.format(namespace=self.namespace),
                method,
                query_params=list(query),
                header_params={"Accept": "*/*", "Content-Type": content},
                body=dict(body) if body is not None else None,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=(_ANSWER_S[0], quiet_s) if stream else _ANSWER_S,
            )
            return answer if stream else answer.data


def _of_run(run: str) -> tuple[str, str]:
    return "labelSelector", f"{RUN_LABEL}={run}"


def _lines(answer: Any) -> Iterator[bytes]:
    """Yield the lines of an answer as they come; of what a broken connection cut off none."""
    rest = b""
    for piece in answer.stream(1 << 16, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from filter(None, whole)


def _client(settings: KubernetesSettings) -> tuple[Any, str]:
    try:
        from kubernetes import client, config
    except ImportError:
        raise RuntimeProblem("the client of Kubernetes is not installed", _HINT, cause=Cause.ENGINE) from None
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    disable_warnings(InsecureRequestWarning)  # of each call, where the kubeconfig says that it is wanted
    file, context = settings.kubeconfig or None, settings.context or None
    try:
        made = config.new_client_from_config(config_file=file, context=context, persist_config=False)
        contexts, active = config.list_kube_config_contexts(config_file=file)
        chosen = next((one for one in contexts if one["name"] == context), active)
        namespace = chosen["context"].get("namespace", "")
    except config.ConfigException as error:
        if file or context:
            what = f"the kubeconfig cannot be used: {error}"
            raise RuntimeProblem(what, "kubectl config get-contexts", cause=Cause.ENGINE) from None
        made, namespace = _inside(client, config, error)
    return made, settings.namespace or namespace or "default"


def _inside(client: Any, config: Any, error: Exception) -> tuple[Any, str]:
    """Return the client of a process that runs in a pod itself."""
    from pathlib import Path

    own = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=own)
    except config.ConfigException:
        what = f"no cluster is known: {error}"
        hint = "KUBECONFIG or k8s.kubeconfig names the file of one"
        raise RuntimeProblem(what, hint, cause=Cause.ENGINE) from None
    file = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    return client.ApiClient(own), file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _patiently(work: Callable[[], _T]) -> _T:
    for wait_s in _WAITS_S:
        check()
        try:
            return work()
        except Refusal as refusal:
            if refusal.status and refusal.status not in AGAIN:
                raise
            _LOG.debug("again in %s s: %s", wait_s, refusal.message)
            time.sleep(wait_s)
    return work()


@contextmanager
def _explained(what: str, namespace: str) -> Iterator[None]:
    """Turn what the client raises into one sentence.

    Raises:
        Refusal: the server refuses, or does not answer.
    """
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise _refusal(error, what, namespace) from None
    except (HTTPError, OSError) as error:
        text = f"the cluster does not answer ({what}): {type(error).__name__}: {error}"
        raise Refusal(text, "kubectl cluster-info", cause=Cause.ENGINE) from None


def _refusal(error: Any, what: str, namespace: str) -> Refusal:
    status = int(error.status or 0)
    message = " ".join(_message(error).split())
    if status == 401:
        hint = "kubectl auth whoami; log in to the cluster again"
        return Refusal("the cluster does not know who this is (401)", hint, cause=Cause.ENGINE, status=status)
    if status == 403 and "exceeded quota" in message:
        fault = quota_fault(message)
        return Refusal(fault.text, fault.hint, cause=fault.cause, status=status)
    if status == 403:
        hint = f"kubectl auth can-i --list --namespace {namespace}"
        return Refusal(f"the cluster does not allow {what} in namespace {namespace}: {message}", hint, status=status)
    if status == NOT_FOUND and "namespaces" in message:
        return Refusal(f"there is no namespace {namespace}", "k8s.namespace names another one", status=status)
    if status == NOT_FOUND and "jobsets" in what:
        return Refusal("the cluster has no JobSet", "install JobSet, or leave k8s.jobset out", status=status)
    if status == CONFLICT:
        return Refusal(f"it is there already: {message}", "madlite clean", status=status)
    return Refusal(f"the cluster refuses {what} ({status}): {message}", status=status)


def _message(error: Any) -> str:
    """Return the server's own words: a Status object, or plain text."""
    body = error.body
    if body is None and getattr(error, "reason", None):
        return str(error.reason)
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    try:
        return str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        return text[:400]
