"""The cluster's API as the runtime uses it, through the official client: access, retries, refusals as sentences."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from madlite.cancellation import check
from madlite.errors import RuntimeProblem
from madlite.model import Cause, Value
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.faults import quota_fault
from madlite.platforms.kubernetes.manifests import CONTAINER
from madlite.store.folder import RUN_LABEL

# Which cluster, and as whom: a kubeconfig, or the account of the pod that madlite is in → a client of its API.

_HINT = "pip install 'madlite[kubernetes]'"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Access(Value, frozen=True):
    """What a client is of: kubeconfig and context, both "" in a pod, and the namespace.

    The context is by its name, also where the kubeconfig's current one was meant: that may be another one later.
    `kubeconfig` is "" too where $KUBECONFIG names several files.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: str = "default"


def connect(settings: KubernetesSettings) -> tuple[Any, Access]:
    """Return a dynamic client of the cluster that the settings or the kubeconfig name, and which that is.

    It takes and gives objects as JSON has them, and never asks the cluster which kinds it has.

    Raises:
        RuntimeProblem: there is no client, or no such kubeconfig.
    """
    try:
        from kubernetes import client, config, dynamic
    except ImportError:
        raise RuntimeProblem("the client of Kubernetes is not installed", _HINT, cause=Cause.ENGINE) from None
    from urllib3 import Retry, disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

    disable_warnings(InsecureRequestWarning)  # of each call, where the kubeconfig says that it is wanted
    made = partial(dynamic.DynamicClient, discoverer=lambda client, cache_file: None)
    own = client.Configuration()
    own.retries = Retry(total=0)  # who calls decides how long a server is waited for
    file, context = settings.kubeconfig or None, settings.context or None
    try:
        config.load_kube_config(config_file=file, context=context, client_configuration=own, persist_config=False)
        contexts, active = config.list_kube_config_contexts(config_file=file)
    except config.ConfigException as error:
        if file or context:
            what = f"the kubeconfig cannot be used: {error}"
            raise RuntimeProblem(what, "kubectl config get-contexts", cause=Cause.ENGINE) from None
        access = _inside(config, own, settings, error)
        return made(client.ApiClient(own)), access
    chosen = next((item for item in contexts if item["name"] == context), active)
    namespace = settings.namespace or chosen["context"].get("namespace") or "default"
    access = Access(kubeconfig=settings.kubeconfig or _default_file(), context=chosen["name"], namespace=namespace)
    return made(client.ApiClient(own)), access


def _default_file() -> str:
    """Return the file that the client takes where none is named; "" where these are several."""
    from kubernetes.config import KUBE_CONFIG_DEFAULT_LOCATION

    if os.pathsep in KUBE_CONFIG_DEFAULT_LOCATION:
        return ""
    return str(Path(KUBE_CONFIG_DEFAULT_LOCATION).expanduser().absolute())


def _inside(config: Any, own: Any, settings: KubernetesSettings, error: Exception) -> Access:
    """Set up the client of a process that runs in a pod itself."""
    try:
        config.load_incluster_config(client_configuration=own)
    except config.ConfigException:
        what = f"no cluster is known: {error}"
        hint = "KUBECONFIG or k8s.kubeconfig names the file of one"
        raise RuntimeProblem(what, hint, cause=Cause.ENGINE) from None
    here = _ACCOUNT.read_text(encoding="utf-8").strip() if _ACCOUNT.is_file() else ""
    return Access(namespace=settings.namespace or here or "default")


_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 4.0  # between tries of a call that a server was too busy for; each is twice as long
_LONGEST_S = 30.0  # between two tries of a call that is waited for
_ANSWER_S = (10.0, 30.0)  # to connect, and for an answer
_QUIET_S = 60.0  # a log that is silent for so long is asked for again: its connection may be dead
AGAIN = (429, 500, 502, 503, 504)
"""Answers of a server that is too busy: it is asked again."""
DAY_S = 86400.0
"""How long a server is waited for by who follows pods, which go on without it; somebody may have to log in again."""
UNKNOWN, NOT_FOUND, CONFLICT = 401, 404, 409
"""The answers to nobody it knows, to what is not there, and to what is there already."""
_WATCH_S = 60  # how long the server leaves a watch open
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
    """What the server answered other than well.

    `status` is its HTTP code, 0 where it did not answer; `wait_s` is how long it asks to wait.
    """

    def __init__(
        self, message: str, hint: str = "", *, cause: str = Cause.PREPARE, status: int = 0, wait_s: float = 0.0
    ) -> None:
        super().__init__(message, hint, cause=cause)
        self.status, self.wait_s = status, wait_s


def may_pass(refusal: Refusal, *, patient: bool) -> bool:
    """Return whether the same question may be answered later; who is `patient` waits until somebody logs in again."""
    return not refusal.status or refusal.status in AGAIN or (refusal.status == UNKNOWN and patient)


class Api:
    """One namespace of a cluster, as the settings or the kubeconfig name it; `access` is which one that is.

    A server that is too busy, or does not answer, is asked again for seconds, while it is `patient` for a day.

    Raises:
        RuntimeProblem: there is no client, or no such kubeconfig.
    """

    def __init__(self, settings: KubernetesSettings, *, patient: bool = False) -> None:
        self._client, self.access = connect(settings)
        self.namespace = self.access.namespace
        self._settings, self.patient = settings, patient
        self._renews = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        self._client.client.close()

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, and return it as the server has it."""
        # a field of the user's that Kubernetes does not know would be dropped
        query = [("fieldValidation", "Strict")] if self._settings.pod_patch else []
        return self._call("POST", _KINDS[body["kind"]], body=dict(body), query_params=query)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, None where there is none."""
        return _unless_refused(lambda: self._call("GET", f"{_KINDS[kind]}/{name}"), NOT_FOUND)

    def resume(self, kind: str, name: str) -> None:
        """Let a suspended Job start."""
        self._change(kind, name, {"spec": {"suspend": False}})

    def annotate_pods(self, run: str, annotations: Mapping[str, str]) -> None:
        """Add annotations to the pods of a run; one that is gone meanwhile is fine."""
        patch = {"metadata": {"annotations": dict(annotations)}}
        for pod in self.pods(run):
            change = partial(self._change, "Pod", pod["metadata"]["name"], patch)
            _unless_refused(change, NOT_FOUND)

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> bool:
        """Remove an object and what it owns; return False where it is gone already."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        call = partial(self._call, "DELETE", f"{_KINDS[kind]}/{name}", body=options, waits=False)
        return _unless_refused(call, NOT_FOUND, CONFLICT) is not None

    def pods(self, run: str) -> list[dict[str, Any]]:
        """Return the pods of a run."""
        return self.list_pods(run)[0]

    def list_pods(self, run: str) -> tuple[list[dict[str, Any]], str]:
        """Return the pods of a run, and the version from which a watch tells what changes."""
        found = self._call("GET", _KINDS["Pod"], query_params=[_of_run(run)], waits=False)
        return list(found.get("items") or []), str((found.get("metadata") or {}).get("resourceVersion", ""))

    def watch_pods(self, run: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what happens to the pods of a run after a version: ADDED, MODIFIED or DELETED, and the pod.

        It ends when the server ends it.

        Raises:
            Refusal: the version is forgotten (410), watching is not allowed, or the connection broke.
        """
        query = [_of_run(run), ("watch", "true"), ("resourceVersion", version), ("timeoutSeconds", str(_WATCH_S))]
        answer = self._once("GET", _KINDS["Pod"], query_params=query, stream=True, quiet_s=1.5 * _WATCH_S)
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
        labels = ",".join(f"{key}={value}" for key, value in query.items())
        return self._items(_KINDS[kind], [("labelSelector", labels)])

    def failed_creations(self) -> list[dict[str, Any]]:
        """Return the events of all objects whose pods could not be made; nothing where one may not see them."""
        return self._visible(_KINDS["Event"], "reason=FailedCreate")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes; nothing where one may not see them."""
        return self._visible("/api/v1/nodes")

    def log(self, pod: str, since: str) -> Any:
        """Return the open log of a pod, with a time before each line, of the lines from a time on; "" for all."""
        query = [("container", CONTAINER), ("follow", "true"), ("timestamps", "true")]
        query += [("sinceTime", since)] if since else []
        path = f"{_KINDS['Pod']}/{pod}/log"
        return self._once("GET", path, query_params=query, stream=True)

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

    def _change(self, kind: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        content = "application/merge-patch+json"
        return self._call("PATCH", f"{_KINDS[kind]}/{name}", body=dict(patch), content_type=content)

    def _visible(self, path: str, fields: str = "") -> list[dict[str, Any]]:
        """Return what a list has; nothing where one may not see it."""
        try:
            return self._items(path, [("fieldSelector", fields)] if fields else [])
        except Refusal as refusal:
            _LOG.debug("not listed: %s", refusal.message)
            return []

    def _items(self, path: str, query: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        return list(self._call("GET", path, query_params=list(query)).get("items") or [])

    def _call(self, method: str, path: str, *, waits: bool = True, **more: Any) -> dict[str, Any]:
        """Return the answer of a call, tried again while the server is too busy, or does not answer.

        Without `waits` for seconds alone: a stop does not wait for a server that is away, who watches does so itself.
        """
        answer = _retry(lambda: self._once(method, path, **more), patient=self.patient and waits)
        found = json.loads(answer or b"{}")
        return found if isinstance(found, dict) else {}

    def _once(self, method: str, path: str, **more: Any) -> Any:
        """Return the answer of a call; who is not known any more, as a token's time is over, logs in again once."""
        client = self._client
        try:
            return self._sent(client, method, path, **more)
        except Refusal as refusal:
            if refusal.status != UNKNOWN:
                raise
            return self._sent(self._renewed(client), method, path, **more)

    def _renewed(self, client: Any) -> Any:
        """Return a client of this very cluster by the kubeconfig as it is now, in the place of one that was refused."""
        with self._renews:
            if self._client is client:
                self._client, _ = connect(replace(self._settings, **asdict(self.access)))
            return self._client

    def _sent(
        self, client: Any, method: str, path: str, *, stream: bool = False, quiet_s: float = _QUIET_S, **more: Any
    ) -> Any:
        with _explained(f"{method} {path.rpartition('/')[2] if stream else path.rsplit('/', 1)[-1]}", self.namespace):
            answer = client.request(
                method,
                path.format(namespace=self.namespace),
                header_params={"Accept": "*/*"},
                serialize=False,
                _request_timeout=(_ANSWER_S[0], quiet_s) if stream else _ANSWER_S,
                **{"content_type": "application/json", **more},
            )
            return answer if stream else answer.data


def _unless_refused(call: Callable[[], _T], *codes: int) -> _T | None:
    """Return what a call returns; None where the server refuses it with one of the codes."""
    try:
        return call()
    except Refusal as refusal:
        if refusal.status not in codes:
            raise
        return None


def _of_run(run: str) -> tuple[str, str]:
    return "labelSelector", f"{RUN_LABEL}={run}"


def _lines(answer: Any) -> Iterator[bytes]:
    """Yield the lines of an answer as they come; of what a broken connection cut off none."""
    rest = b""
    for piece in answer.stream(1 << 16, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        yield from filter(None, whole)


def _retry(work: Callable[[], _T], *, patient: bool) -> _T:
    """Return what a call answers, tried again a few times, and if `patient` for a day."""
    until_s, wait_s = time.monotonic() + (DAY_S if patient else 0.0), _FIRST_WAIT_S
    while True:
        check()
        try:
            return work()
        except Refusal as refusal:
            is_over = wait_s > _LAST_WAIT_S and time.monotonic() >= until_s
            if is_over or not may_pass(refusal, patient=patient):
                raise
            _LOG.debug("again in %s s: %s", wait_s, refusal.message)
            _pause(min(max(wait_s, refusal.wait_s), _LONGEST_S))
            wait_s = min(2 * wait_s, _LONGEST_S)


def _pause(wait_s: float) -> None:
    """Wait, in a call that is left no longer than that."""
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0:
        check()
        time.sleep(min(left_s, 0.5))


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
    asked = str((error.headers or {}).get("Retry-After", ""))
    wait_s = float(asked[:9]) if asked.isascii() and asked.isdigit() else 0.0
    return Refusal(f"the cluster refuses {what} ({status}): {message}", status=status, wait_s=wait_s)


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
