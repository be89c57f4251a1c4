"""The runtime `kubernetes`: each run is an Indexed Job of a cluster, with what belongs to it owned by the Job."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from madlite.cancellation import check, interruptible
from madlite.errors import MadliteError, RuntimeProblem
from madlite.model import Cause, ImageUsed, JobOutcome, Json, Place, Problem, RunPlan, Say, Traits
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.api import CONFLICT, Api, Refusal
from madlite.platforms.kubernetes.faults import (
    Fault,
    capacity_fault,
    creation_fault,
    ended_fault,
    exit_code,
    has_started,
    pending_fault,
    phase_of,
    pod_name,
)
from madlite.platforms.kubernetes.files import ship
from madlite.platforms.kubernetes.manifests import (
    Objects,
    gpu_resource,
    job_kind,
    job_name,
    label_value,
    make_objects,
    shown,
    yaml_of,
)
from madlite.platforms.kubernetes.session import Handle, KubernetesSession, ordered
from madlite.platforms.kubernetes.settings import RUNTIME
from madlite.platforms.kubernetes.watch import POLL_S, PodWatch
from madlite.store.folder import RUN_LABEL

_LOG = logging.getLogger(__name__)
_CERTAIN_S = 30.0  # for which a fault that lasts must stand: a registry may fail for a moment
_OWNED = ("Service", "ConfigMap", "Secret")


class KubernetesRuntime:
    """Runs plans in pods; `settings` say where and how.

    `followed` is the uid of a Job that is there already: a plan's run is it, which is neither made nor removed.
    """

    name = RUNTIME
    traits = Traits(containerised=True, local=False, sees_processes=False, shares_files=False, manifests=True)

    def __init__(self, settings: KubernetesSettings | None = None, followed: str = "") -> None:
        self.settings, self._followed = settings or KubernetesSettings(), followed

    def supports(self, place: Place) -> bool:
        """Return whether plans for this place can run here."""
        return place.where == self.name

    def available(self) -> Problem | None:
        """Return why the cluster cannot be used, or None; for a Job that is there already it is waited for."""
        if self._followed:
            return None
        try:
            with closing(Api(self.settings)) as api:
                api.version()
        except RuntimeProblem as problem:
            return Problem(where="runtime kubernetes", what=problem.message)
        return None

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return the objects as one List, secrets as `***`, without the run's own files; touches nothing."""
        return {"apiVersion": "v1", "kind": "List", "items": shown(make_objects(plan, {}, self.settings))}

    def manifest(self, plan: RunPlan, files: Mapping[str, bytes]) -> str:
        """Return the objects as YAML, with the run's files; secrets as `***`.

        Raises:
            RuntimeProblem: a ConfigMap cannot hold the files.
        """
        shipment = ship(plan, self.settings, files)
        return yaml_of(make_objects(plan, shipment.files, self.settings, shipment.inside))

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Name the image, which the nodes pull.

        Raises:
            RuntimeProblem: the card names none, or one that is to be built.
        """
        if plan.image is None:
            raise RuntimeProblem(f"card '{plan.card.name}' names no image", "--image REF names one", cause=Cause.IMAGE)
        if plan.image.dockerfile is not None and not plan.image.prebuilt:
            what = f"image {plan.image.ref} is to be built, and the cluster's nodes only pull"
            raise RuntimeProblem(what, "madlite build --registry HOST; run --manifest-file", cause=Cause.IMAGE)
        say(f"image {plan.image.ref}, pulled by the nodes")
        return ImageUsed(ref=plan.image.registry or plan.image.ref)

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[KubernetesSession]:
        """Make the run's objects, wait until its pods have started, and hold them; leaving removes all of it.

        Raises:
            RuntimeProblem: the cluster refuses the run, or its pods cannot start.
            Interrupted: a stop came before they had.
        """
        run, name, kind = label_value(plan.id), job_name(plan.id), job_kind(self.settings)
        make = partial(Api, self.settings, patient=bool(self._followed))
        with closing(interruptible(make)) as api, ExitStack() as made:
            if not self._followed:
                made.callback(_remove_logged, api, kind, name, run)
            interruptible(lambda: self._create(api, plan, kind, name))
            api.patient = True  # from now on the pods need nobody
            with closing(PodWatch(api, run)) as pods:
                nodes = interruptible(lambda: _wait(api, pods, plan, name, self.settings))
                handle = Handle(api.access, kind, name, run, bool(self._followed))
                with closing(KubernetesSession(api, nodes, plan, pods, handle)) as session:
                    if plan.keep_alive:
                        made.pop_all()
                    yield session

    def _create(self, api: Api, plan: RunPlan, kind: str, name: str) -> None:
        """Make the run's objects, or find the Job that it is.

        Raises:
            RuntimeProblem: the cluster refuses them, or has the Job no more.
        """
        if not self._followed:
            shipment = ship(plan, self.settings)
            shipment.deliver()
            create(api, make_objects(plan, shipment.files, self.settings, shipment.inside))
            return
        found = api.get(kind, name)
        if found is None or found["metadata"].get("uid") != self._followed:
            text = f"{kind} {name} of namespace {api.namespace} is gone"
            raise RuntimeProblem(text, "kubectl get events", cause=Cause.PREEMPTED)

    def cancel(self, handle: str) -> None:
        """Remove a run's Job with all it owns; one that is gone is fine.

        Raises:
            RuntimeProblem: the cluster does not do it, or the handle is none.
        """
        job = Handle.read(handle)
        with closing(self._api_of(job)) as api:
            remove(api, job.kind, job.name, job.run)

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return what the cluster says of a run; None of one that is gone, or whose Job is not the run's own.

        Raises:
            RuntimeProblem: the cluster does not answer, or the handle is none.
        """
        try:
            job = Handle.read(handle)
        except RuntimeProblem:
            return None
        if job.followed and not self._followed:
            return None
        with closing(self._api_of(job)) as api:
            return _outcome(api.pods(job.run))

    def _api_of(self, job: Handle) -> Api:
        return Api(replace(self.settings, **asdict(job.access)))


def _outcome(pods: Sequence[dict[str, Any]]) -> JobOutcome | None:
    """Return what the cluster says of a run by its pods; None where it has none."""
    if not pods:
        return None
    fault = next(filter(None, map(ended_fault, pods)), None)
    phases = list(map(phase_of, pods))
    going = not {"Pending", "Running", "Unknown"}.isdisjoint(phases)
    codes = list(filter(None, map(exit_code, pods)))
    return JobOutcome(
        state=fault.state if fault else "Failed" if "Failed" in phases else phases[0],
        ended=not going,
        code=codes[0] if codes else (0 if not going else None),
        out_of_memory=bool(fault and fault.out_of_memory),
        reason=fault.text if fault else "",
    )


def create(api: Api, objects: Objects) -> str:
    """Make a run's Job, suspended, then what it owns, and let it start: no pod comes before its files.  Return its uid.

    Where a queue admits it the queue starts it.  What is there already, of this very run, stays as it is.

    Raises:
        RuntimeProblem: the cluster refuses one of them.
    """
    job = objects.job
    queued = bool(job["spec"].get("suspend"))
    made = _made(api, {**job, "spec": {**job["spec"], "suspend": True}})
    uid = str(made["metadata"]["uid"])
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": objects.name,
        "uid": uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
    for item in objects.all():
        check()
        if item is not job:
            _made(api, {**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}})
    if not queued and made["spec"].get("suspend"):
        api.resume(job["kind"], objects.name)
    return uid


def _made(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object that is made now, or was by an earlier attempt, whose answer never came.

    Raises:
        Refusal: the cluster refuses it, or it is another run's.
    """
    try:
        return api.create(body)
    except Refusal as refusal:
        if refusal.status != CONFLICT:
            raise
        found = api.get(body["kind"], body["metadata"]["name"])
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        if found is None or labels.get(RUN_LABEL) != body["metadata"]["labels"][RUN_LABEL]:
            raise
        return found


def _wait(api: Api, watch: PodWatch, plan: RunPlan, name: str, settings: KubernetesSettings) -> list[str]:
    """Return the names of the run's pods, once each has started; why they have not is told as it changes.

    Raises:
        RuntimeProblem: they cannot start, or not within the limit.
    """
    began, told = time.monotonic(), ""
    stands: dict[str, float] = {}
    gpus, cluster = (gpu_resource(plan, settings), plan.place.gpus_per_node), Questions(api.nodes, api.failed_creations)
    seen, looked_s = watch.wait(0, POLL_S), -math.inf
    while True:
        check()
        pods, now = watch.now(), time.monotonic()
        if len(pods) >= plan.place.nodes and all(map(has_started, pods)):
            return ordered(pods, plan.place.nodes)
        if (changes := watch.wait(seen, 0.0)) != seen or now - looked_s >= POLL_S:
            seen, looked_s = changes, now
            _check_job(api, job_kind(settings), name)
            fault = why_not_started(pods, name, plan.place.nodes, gpus, cluster)
            if fault is not None:
                since = stands.setdefault(fault.state + fault.text, now)
                if fault.lasting and now - since >= (0.0 if fault.cause is Cause.GPUS else _CERTAIN_S):
                    raise RuntimeProblem(fault.text, fault.hint, cause=fault.cause)
                if fault.text != told:
                    told = fault.text
                    _LOG.warning("run %s waits: %s", plan.id, fault.text)
        if settings.pending_limit_s and now - began > settings.pending_limit_s:
            text = f"the pods did not start within {settings.pending_limit_s:g} s" + (f": {told}" if told else "")
            raise RuntimeProblem(text, "k8s.pending_limit_s is how long they may wait", cause=Cause.GPUS)
        watch.wait(seen, POLL_S / 4)


def _check_job(api: Api, kind: str, name: str) -> None:
    """Refuse to wait for pods that nobody makes any more.

    Raises:
        RuntimeProblem: their Job is gone.
    """
    if api.get(kind, name) is None:
        what = f"{kind} {name} was removed before its pods had started"
        raise RuntimeProblem(what, "kubectl get events", cause=Cause.PREEMPTED)


class Questions(NamedTuple):
    """What a cluster is asked only where it matters."""

    nodes: Callable[[], Sequence[dict[str, Any]]]
    failed_creations: Callable[[], Sequence[dict[str, Any]]]


def why_not_started(
    pods: Sequence[dict[str, Any]], name: str, wanted: int, gpus: tuple[str, int], cluster: Questions
) -> Fault | None:
    """Return the gravest reason why so many pods of a Job have not started; each has a number of a GPU resource."""
    found = [pending_fault(pod) for pod in pods if not has_started(pod)]
    if gpus[0] and any(fault is not None and fault.state == "Unschedulable" for fault in found):
        found.append(capacity_fault(cluster.nodes(), *gpus, wanted))
    if len(pods) < wanted:
        found.append(creation_fault(cluster.failed_creations(), name))
    return max(filter(None, found), key=lambda fault: fault.lasting, default=None)


def remove(api: Api, kind: str, name: str, run: str) -> None:
    """Remove a run's Job, with it what it owns, and what was made without an owner; what is gone is fine."""
    api.delete(kind, name)
    for other in _OWNED:
        for item in api.objects(other, {RUN_LABEL: run}):
            api.delete(other, pod_name(item))


def _remove_logged(api: Api, kind: str, name: str, run: str) -> None:
    """Remove a run; a problem is logged, for it must not hide why the session ended."""
    try:
        remove(api, kind, name, run)
    except MadliteError as problem:
        _LOG.warning("Job %s may be left (madlite clean removes it): %s", name, problem.message)
