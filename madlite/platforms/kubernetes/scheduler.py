"""Kubernetes as a scheduler: each run is a Job whose pods run it by themselves, whatever becomes of who submitted it.

Nothing of a Job writes to the working folder.  Who waits for a run follows its Job from the beginning of its log, and
brings the log and the files here; the Job is deleted after the run's row is written.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from madlite.errors import RuntimeProblem, UsageProblem
from madlite.files import read_text
from madlite.model import Cause, RunPlan, Runtime
from madlite.plan.actions import bind_model_dir
from madlite.plan.cluster import DNS_NAME, Cluster, KubernetesSettings
from madlite.plan.context import Options
from madlite.plan.inputs import expand_hosts
from madlite.plan.plan_file import read_plan_file
from madlite.plan.schedulers import TIMED_OUT, JobEnd, JobState, Refused, Unreachable, cancelled_end
from madlite.plan.submission import PLANS, JobScript, ScriptInputs, submitted_secrets
from madlite.platforms.kubernetes import faults
from madlite.platforms.kubernetes.api import Api, Refusal, may_pass
from madlite.platforms.kubernetes.files import Shipment, ship
from madlite.platforms.kubernetes.manifests import (
    GPU_RESOURCES,
    MANAGED,
    Objects,
    is_queued,
    job_kind,
    make_objects,
    own_container,
    renamed,
    yaml_of,
)
from madlite.platforms.kubernetes.runtime import KubernetesRuntime, Questions, create, why_not_started
from madlite.platforms.kubernetes.settings import may_have, settings_of
from madlite.store.folder import RUN_LABEL

if TYPE_CHECKING:
    from madlite.platforms.kubernetes.node_check import Examined

_LOG = logging.getLogger(__name__)
JOB_LABEL = "madlite.job"
_HOSTNAME = "kubernetes.io/hostname"  # of a node, its name where a cloud does not decide otherwise
_DELETED = JobEnd(Cause.JOB, "the job is gone, and its log was not read before", "who deleted it? kubectl get events")
_OVER = ("Complete", "Completed", "Failed")


@contextmanager
def _reached() -> Iterator[None]:
    """Say of a cluster that does not answer, or refuses a question, that it is not reached.

    Raises:
        Unreachable: it does one of these.
    """
    try:
        yield
    except RuntimeProblem as problem:
        raise Unreachable(problem.message, problem.hint) from None


class Kubernetes:
    """One namespace of a Kubernetes cluster; jobs are named by their Jobs."""

    name = "kubernetes"
    job_ids = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
    ending = "yaml"
    queues_again = False
    retries_inside = False
    reads_credentials = False

    def __init__(self, cluster: Cluster, environ: Mapping[str, str]) -> None:
        self._cluster, self._environ = cluster, dict(environ)
        self._settings = settings_of(cluster)
        self._kind = job_kind(self._settings)
        self._cancelled: set[str] = set()
        self._uids: dict[str, str] = {}
        self._ready: set[str] = set()  # jobs that have begun, are over, or can never start
        self._over: set[str] = set()

    # Plans and manifests.

    def adjust(self, options: Options) -> Options:
        """Return the options of plans for pods.

        Raises:
            UsageProblem: another runtime is asked for.
        """
        if options.runtime and options.runtime != self.name:
            what = f"--runtime {options.runtime} beside --cluster {self._cluster.name}: its runs are pods"
            raise UsageProblem(what, "leave --runtime out")
        return replace(options, runtime=self.name)

    def exclude(self, nodes: Sequence[str]) -> None:
        """Leave nodes out of what is submitted from now on.

        Raises:
            UsageProblem: one of them has no name of a node.
        """
        names = expand_hosts(",".join(nodes))
        if wrong := next((name for name in names if not re.match(DNS_NAME, name)), ""):
            raise UsageProblem(f"--exclude: '{wrong}' is no name of a node", "kubectl get nodes lists them")
        self._change(exclude=(*self._settings.exclude, *names))

    def _change(self, **changes: Any) -> None:
        """Change settings, also of the cluster that later commands go by."""
        self._settings = replace(self._settings, **changes)
        self._cluster = replace(self._cluster, kubernetes=replace(self._cluster.kubernetes, **changes))

    def start(self, options: Mapping[str, str]) -> None:
        """Refuse whatever decides when jobs start.

        Raises:
            UsageProblem: there is such an option.
        """
        for name in options:
            what = f"--{name} beside --cluster {self._cluster.name}: Kubernetes starts a Job as soon as there is room"
            raise UsageProblem(what, f"leave --{name} out")

    def script(self, inputs: ScriptInputs) -> str:
        """Return the objects of a run as YAML, secrets masked.

        Raises:
            UsageProblem: the run cannot be in pods: its image is to be built, or its files are too large.
        """
        (planned_run,) = inputs.planned
        plan = planned_run.plan
        try:
            KubernetesRuntime(self._settings).prepare(plan, lambda text: None)
            objects, _ = self._objects(inputs.script, plan, {file.path: file.data for file in planned_run.files})
        except RuntimeProblem as problem:
            raise UsageProblem(f"{plan.card.name}: {problem.message}", problem.hint) from None
        return f"# run {plan.id} of {plan.card.name}, for cluster '{self._cluster.name}'\n{yaml_of(objects)}"

    # Jobs.

    def check_here(self) -> Cluster:
        """Refuse a machine without the client or a kubeconfig; return the cluster by the context that is current now.

        Later commands mean it, and what follows runs, whatever the kubeconfig's current context is by then.

        Raises:
            UsageProblem: one of them is missing.
        """
        try:
            access = self._api.access
        except RuntimeProblem as problem:
            raise UsageProblem(f"cluster '{self._cluster.name}': {problem.message}", problem.hint) from None
        self._change(**asdict(access))
        return self._cluster

    @_reached()
    def examine(self, nodes: int) -> tuple[Examined, ...]:
        """Return what the API server says of runs on so many nodes: rights, nodes, and what the settings name."""
        from madlite.platforms.kubernetes.node_check import examine

        return tuple(examine(self._api, self._settings, nodes))

    def array_limit(self) -> int:
        """Return that each run has a Job of its own."""
        return 1

    @_reached()
    def nodes(self) -> dict[str, str]:
        """Return the nodes that have GPUs, or of a cluster without any all of them."""
        found, settings = self._api.nodes(), self._settings
        if settings.gpu:
            resources = [settings.gpu_resource] if settings.gpu_resource else GPU_RESOURCES.values()
            found = [node for node in found if any(faults.allocatable(node, name) for name in resources)]
        closed = {node["metadata"]["name"] for node in found if node.get("spec", {}).get("unschedulable")}
        names = {str(node["metadata"]["name"]): may_have(settings, node) for node in found}
        return {name: "cordoned" if name in closed else "" if may else "excluded" for name, may in names.items()}

    def submit(self, folder: Path, script: JobScript, attempt: str = "", exclude: Sequence[str] = ()) -> str:
        """Make the objects of a run, those that are there already staying as they are; return the Job's name."""
        with _refused():
            secrets = {**self._environ, **submitted_secrets(folder)}
            saved = read_plan_file(folder / PLANS / f"{script.first}.json", secrets)
            objects, shipment = self._objects(script, saved.plan, {file.path: file.content() for file in saved.files})
            if yaml_of(objects) not in read_text(folder / script.file):
                _LOG.warning("%s is not what %s has: files of its card have changed", saved.plan.id, script.file)
            shipment.deliver()
            objects = renamed(objects, saved.plan.id, attempt) if attempt else objects
            self._uids[objects.name] = create(self._api, objects)
        return objects.name

    def _objects(self, script: JobScript, plan: RunPlan, files: Mapping[str, bytes]) -> tuple[Objects, Shipment]:
        """Return the objects of a run with these rendered files, and what goes along with them."""
        node = {_HOSTNAME: script.node} if script.node else {}
        settings = replace(
            self._settings,
            labels={**self._settings.labels, JOB_LABEL: script.name},
            node_selector={**self._settings.node_selector, **node},
        )
        plan = bind_model_dir(plan, plan.model_dir)
        shipment = ship(plan, settings, files)
        return make_objects(plan, shipment.files, settings, shipment.inside), shipment

    @_reached()
    def find(self, names: Sequence[str]) -> dict[str, str]:
        """Return the Jobs by the names of their scripts, those whose submission was not finished left out."""
        found: dict[str, str] = {}
        for job in self._jobs().values():
            name = (job["metadata"].get("labels") or {}).get(JOB_LABEL, "")
            if name in names and self._is_whole(job):
                found[name] = str(job["metadata"]["name"])
        return found

    def _is_whole(self, job: Mapping[str, Any]) -> bool:
        """Return whether all of a run was made: its Service comes last, then the Job is let go, if not by a queue."""
        if not is_queued(self._settings):
            return not job["spec"].get("suspend")
        run = job["metadata"]["labels"].get(RUN_LABEL, "")
        return bool(self._api.objects("Service", {RUN_LABEL: run}))

    @_reached()
    def queue(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of Jobs that are there; one that is over counts until its run is brought here."""
        there = self._jobs()
        pods = self._pods_by_run() if there else {}
        asked = Questions(cache(self._api.nodes), cache(self._api.failed_creations))  # once for all of them
        found: dict[str, JobState] = {}
        for name in jobs:
            job = there.get(name)
            if job is None:
                continue
            self._uids[name] = str(job["metadata"]["uid"])
            own = pods.get(job["metadata"]["labels"].get(RUN_LABEL, ""), [])
            found[name] = self._state(name, job, own, asked)
        return found

    def _state(self, name: str, job: Mapping[str, Any], pods: Sequence[dict[str, Any]], cluster: Questions) -> JobState:
        nodes = ",".join(sorted({str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}))
        if _condition(job) or job["metadata"].get("deletionTimestamp"):
            self._ready.add(name)
            self._over.add(name)
            return JobState(state="COMPLETING", stage="running", reason="attach or collect reads its log", nodes=nodes)
        wanted = _spec(job).get("completions", 1)
        if len(pods) >= wanted and all(map(faults.has_started, pods)):
            self._ready.add(name)
            return JobState(state="RUNNING", stage="running", nodes=nodes)
        if job["spec"].get("suspend"):
            return JobState(state="PENDING", stage="pending", reason="Suspended")
        gpus = _gpus(job, self._settings)
        fault = why_not_started(pods, name, wanted, gpus, cluster)
        if fault is not None and fault.lasting:  # who follows it says so, and that ends the run
            self._ready.add(name)
        reason = fault.state if fault is not None else ""
        return JobState(state="PENDING", stage="pending", reason=reason, nodes=nodes)

    @_reached()
    def ended(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return how Jobs ended that nobody could follow, or that were cancelled."""
        there = self._jobs()
        found: dict[str, JobState] = {}
        for name in jobs:
            if name in self._cancelled:
                found[name] = JobState(state="CANCELLED", ended_by=cancelled_end())
            else:
                found[name] = _end(there[name]) if name in there else JobState(state="DELETED", ended_by=_DELETED)
        return found

    @_reached()
    def cancel(self, jobs: Sequence[str]) -> None:
        """Delete Jobs; their pods are told why first, for who follows them."""
        there = self._jobs()
        for name in jobs:
            if name in there:
                self._cancelled.add(name)
                run = there[name]["metadata"]["labels"].get(RUN_LABEL, "")
                self._api.annotate_pods(run, {faults.CANCELLED: "true"})
                self._api.delete(self._kind, name)

    @_reached()
    def release(self, jobs: Sequence[str]) -> None:
        """Delete the Jobs of runs that have their rows, with all that they own."""
        for name in jobs:
            self._api.delete(self._kind, name)

    def end_in(self, error: str, nodes: str) -> None:
        """Return nothing: a Job does not wait again."""

    def runtime_of(self, job: str, *, ended: bool) -> Runtime | None:
        """Return what follows a Job that has begun, or with `ended` is over, and that nobody cancelled here."""
        uid, ready = self._uids.get(job, ""), self._over if ended else self._ready
        is_to_be_followed = uid and job in ready and job not in self._cancelled
        return KubernetesRuntime(self._settings, uid) if is_to_be_followed else None

    def _jobs(self) -> dict[str, dict[str, Any]]:
        return {str(job["metadata"]["name"]): job for job in self._api.objects(self._kind, MANAGED)}

    def _pods_by_run(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for pod in self._api.objects("Pod", MANAGED):
            found.setdefault(str(pod["metadata"]["labels"].get(RUN_LABEL, "")), []).append(pod)
        return found

    @cached_property
    def _api(self) -> Api:
        return Api(self._settings)


@contextmanager
def _refused() -> Iterator[None]:
    """Tell a cluster that does not take a run from one that does not answer.

    Raises:
        Refused, Unreachable: it does one of these.
    """
    try:
        yield
    except Refusal as problem:
        kind = Unreachable if may_pass(problem, patient=True) else Refused  # runs wait for a login, too
        raise kind(problem.message, problem.hint) from None
    except (RuntimeProblem, UsageProblem) as problem:
        raise Refused(problem.message, problem.hint) from None


def _spec(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the specification of the Job, of a JobSet that of its one Job."""
    spec: Mapping[str, Any] = job["spec"]
    many = spec.get("replicatedJobs")
    found: Mapping[str, Any] = many[0]["template"]["spec"] if many else spec
    return found


def _gpus(job: Mapping[str, Any], settings: KubernetesSettings) -> tuple[str, int]:
    """Return the GPU resource of a Job's pods, and how many each has."""
    limits = own_container(_spec(job)["template"]).get("resources", {}).get("limits", {})
    for name in (settings.gpu_resource, *GPU_RESOURCES.values()):
        if name in limits:
            return name, int(limits[name])
    return "", 0


def _condition(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition by which a Job is over; an empty one where it goes on."""
    conditions = job.get("status", {}).get("conditions") or []
    return next(
        (condition for condition in conditions if condition.get("type") in _OVER and condition.get("status") == "True"),
        {},
    )


def _end(job: Mapping[str, Any]) -> JobState:
    """Return the end of a Job whose log nobody could read."""
    found = _condition(job)
    if not found:
        return JobState(state="RUNNING", stage="running")
    reason = str(found.get("reason", ""))
    if found["type"] != "Failed":
        return JobState(state="COMPLETED", succeeded=True)
    if reason == "DeadlineExceeded":
        return JobState(state="TIMEOUT", reason=reason, ended_by=TIMED_OUT)
    return JobState(state="FAILED", reason=reason)
