"""Runs plans on the nodes of the allocation that this process is in, of Slurm or SPUR."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from madlite import process
from madlite.errors import RuntimeProblem
from madlite.images.image import IMAGES_VARIABLE, archive_file, archived_id
from madlite.machine.processes import RUN_MARK
from madlite.model import Cause, EnvValue, ImageUsed, JobOutcome, Json, Mount, Place, Problem, RunPlan, Say, Traits
from madlite.plan.cluster import Cluster
from madlite.plan.place import starts_itself
from madlite.platforms.sessions import make_mounts
from madlite.platforms.slurm.allocation import Allocation, allocation_of
from madlite.platforms.slurm.containers import FLAVOURS, VARIABLE, Container, container_of
from madlite.platforms.slurm.session import AGENT, INSIDE, NODES, STATE, SlurmSession, call_nodes
from madlite.secrets import mask_values

_QUERY_S = 30.0
_ENDINGS = {"pyxis": ".sqsh", "apptainer": ".sif"}


class SlurmRuntime:
    """Starts a step on each node of a run, in the flavour of container that `MADLITE_CONTAINER` names."""

    name = "slurm"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._flavour = environ.get(VARIABLE, "") or "none"
        self._allocation = allocation_of(environ)
        self.traits = Traits(containerised=self._flavour != "none", local=False, names_gpus=True)

    def supports(self, place: Place) -> bool:
        """Return whether a plan is for the nodes of an allocation, and the allocation has as many."""
        return place.where == self.name and (self._allocation is None or place.nodes <= self._allocation.count)

    def available(self) -> Problem | None:
        """Return why this runtime cannot be used now, or None."""
        if self._flavour not in FLAVOURS:
            what = f"${VARIABLE} is {self._flavour!r}: no container of nodes ({', '.join(FLAVOURS)})"
            return Problem(where="runtime slurm", what=what)
        if self._allocation is None:
            what = "this is no allocation of Slurm: SLURM_JOB_ID and SLURM_JOB_NODELIST are not set"
            return Problem(where="runtime slurm", what=f"{what} (salloc -N2, or madlite run --cluster NAME)")
        if shutil.which("srun", path=self._environ.get("PATH", "")) is None:
            return Problem(where="runtime slurm", what="there is no srun in PATH")
        return None

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return the steps that would be started, and the variables that the nodes are given, secrets as `***`."""
        container = self._container(_with_nodes_mount(plan))
        allocation = self._allocation or Allocation("JOB", "NODES", plan.place.nodes, self._environ)
        names = [f"NODE{number}" for number in range(plan.place.nodes)]
        return {
            "container": self._flavour if plan.traits.containerised else "none",
            "nodes": plan.place.nodes,
            "start": [*container.start],
            "step": [*allocation.step(names[:1], container.step_options), *container.enter],
            "env": dict(mask_values(plan.env)),
        }

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Have the image on every node, and check that it is the same one.

        Raises:
            RuntimeProblem: a node cannot have it, has another one, or too few GPUs.
        """
        allocation, nodes = self._nodes(plan)
        _check_gpus(plan, allocation, nodes)
        if not plan.traits.containerised:
            self._load_own(plan, allocation, nodes, say)
            return ImageUsed()
        if plan.image is None:
            raise RuntimeProblem("the card names no image", "--image REF names one", cause=Cause.IMAGE)
        if self._flavour in _ENDINGS:
            return self._image_file(plan, allocation, nodes, say)
        say(f"image {plan.image.ref} on {len(nodes)} nodes")
        archive = plan.image.archive or self._archive(plan, plan.image.ref)
        wanted = archived_id(archive) if plan.image.archive else ""  # else one that is there is the one
        words = [self._flavour, plan.image.ref, str(archive), wanted]
        found = _agent_on(allocation, nodes, ["image", *words], f"no image {plan.image.ref}")
        ids = [line.partition(" ")[0] for line in found]
        for name, image_id in zip(nodes, ids, strict=True):
            if image_id != ids[0]:
                what = f"node {name} has another image {plan.image.ref} than {nodes[0]}: {image_id}, not {ids[0]}"
                hint = "pull it on both, or name it by its digest: --image REF@sha256:…"
                raise RuntimeProblem(what, hint, cause=Cause.IMAGE)
        return ImageUsed(ref=plan.image.ref, id=ids[0], digest=found[0].partition(" ")[2])

    def _load_own(self, plan: RunPlan, allocation: Allocation, nodes: tuple[str, ...], say: Say) -> None:
        """Have the image on the nodes whose containers the card's script starts, where there is an archive of it."""
        ref = str(plan.env.get("DOCKER_IMAGE_NAME", "")) if starts_itself(plan.launcher) else ""
        archive = self._archive(plan, ref)
        if ref and archive.is_file():
            say(f"image {ref} on {len(nodes)} nodes, from {archive}")
            _agent_on(
                allocation, nodes, ["image", "docker", ref, str(archive), archived_id(archive)], f"no image {ref}"
            )

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[SlurmSession]:
        """Hold a session open on the nodes; leaving it ends every process of the run there."""
        allocation, nodes = self._nodes(plan)
        plan = _with_nodes_mount(plan)
        if plan.traits.containerised:
            make_mounts(plan)
        env = {**self._base(plan), **_counts(plan), **plan.env, RUN_MARK: plan.id}
        session = SlurmSession(plan, allocation, nodes, self._container(plan), env)
        try:
            session.open()
            yield session
        finally:
            session.close()

    def cancel(self, handle: str) -> None:
        """End what a run left on its nodes; with its allocation everything of it has ended.

        Raises:
            RuntimeProblem: the nodes do not answer.
        """
        job, nodes, folder = _parsed(handle)
        allocation = self._allocation
        if allocation is None or allocation.job_id != job:
            outcome = self.outcome(handle)
            if outcome is not None and not outcome.ended:
                what = f"the run goes on in allocation {job}"
                raise RuntimeProblem(what, f"scancel {job} ends it with the allocation", cause=Cause.PREPARE)
            return
        command = ["bash", str(folder / NODES / AGENT), str(folder / NODES), "-", "signal", "KILL"]
        process.capture([*allocation.step(nodes), *command], limit_s=_QUERY_S, env=allocation.environment())

    def outcome(self, handle: str) -> JobOutcome | None:
        """Return the state of the job that a session was in; None where Slurm does not know it any more.

        Raises:
            RuntimeProblem: Slurm does not answer.
        """
        from madlite.platforms.slurm.scheduler import Slurm

        job, _, _ = _parsed(handle)
        found = Slurm(Cluster(), self._environ).ended([job]).get(job)
        if found is None or not found.state:
            return None
        is_over = found.stage == "over"
        return JobOutcome(state=found.state, ended=is_over, reason=found.reason if is_over else "")

    def _nodes(self, plan: RunPlan) -> tuple[Allocation, tuple[str, ...]]:
        if self._allocation is None:
            raise RuntimeProblem("this is no allocation of Slurm", cause=Cause.ENGINE)
        nodes = self._allocation.nodes
        if len(nodes) < plan.place.nodes:
            what = f"the run wants {plan.place.nodes} nodes, allocation {self._allocation.job_id} has {len(nodes)}"
            raise RuntimeProblem(what, f"--set nnodes={len(nodes)}", cause=Cause.GPUS)
        return self._allocation, nodes[: plan.place.nodes]

    def _container(self, plan: RunPlan) -> Container:
        flavour = self._flavour if plan.traits.containerised else "none"
        ending = _ENDINGS.get(flavour, "")
        return container_of(flavour, plan, self._environ, str(self._image_path(plan, ending)) if ending else "")

    def _base(self, plan: RunPlan) -> dict[str, EnvValue]:
        """Return this process's own environment, which commands of the nodes themselves start with."""
        if plan.traits.containerised:
            return {}
        return {
            name: value for name, value in self._environ.items() if not name.startswith(("SLURM_", "SPUR_", "BASH_"))
        }

    def _image_path(self, plan: RunPlan, ending: str) -> Path:
        """Return the file of an image in the shared folder of images; an image that is such a file itself is that.

        Files that madlite makes have a digest of the reference in their names: others may be spelled alike.
        """
        ref = plan.image.ref if plan.image is not None else ""
        if ref.endswith(ending) and Path(ref).is_file():
            return Path(ref)
        of = ref + (archived_id(plan.image.archive) if plan.image is not None and plan.image.archive else "")
        digest = hashlib.sha256(of.encode()).hexdigest()[:8]
        return (archive := self._archive(plan, ref)).with_name(f"{archive.stem}-{digest}{ending}")

    def _archive(self, plan: RunPlan, ref: str) -> Path:
        return archive_file(self._environ.get(IMAGES_VARIABLE) or plan.workspace / "madlite_images", ref)

    def _image_file(self, plan: RunPlan, allocation: Allocation, nodes: tuple[str, ...], say: Say) -> ImageUsed:
        ref = plan.image.ref if plan.image is not None else ""
        path = self._image_path(plan, _ENDINGS[self._flavour])
        made = f", made {datetime.fromtimestamp(path.stat().st_mtime):%Y-%m-%d %H:%M}" if path.is_file() else ""
        say(f"image {ref} as {path}{made}")
        archive = str(plan.image.archive or "") if plan.image is not None else ""
        words = ["image-file", self._flavour, ref, str(path), archive]
        (digest,) = _agent_on(allocation, nodes[:1], words, f"no image file of {ref}")
        return ImageUsed(ref=ref, id=digest)


def _check_gpus(plan: RunPlan, allocation: Allocation, nodes: tuple[str, ...]) -> None:
    """Refuse nodes of which one has fewer GPUs than the run uses on each, before anything is started there.

    SPUR is not asked, nor does a Slurm know that does not manage GPUs.

    Raises:
        RuntimeProblem: there is one, or Slurm does not answer.
    """
    wanted = plan.place.gpus_per_node
    if wanted == 0 or allocation.is_spur or starts_itself(plan.launcher) or not any(allocation.gpu_counts.values()):
        return
    counts = [allocation.gpu_counts.get(name, wanted) for name in nodes]
    if (least := min(counts)) >= wanted:
        return
    first = next(at for at, count in enumerate(counts) if count < wanted)
    what = (
        f"the run uses {wanted} GPU{'s' if wanted > 1 else ''} of each node, and node {nodes[first]} has "
        f"{counts[first] or 'none'} in allocation {allocation.job_id}"
    )
    hints = (f"--nodes {first}" if first else "", f"--set n_gpus={least}" if least else "")
    raise RuntimeProblem(what, " or ".join(filter(None, hints)), cause=Cause.GPUS)


def _agent_on(allocation: Allocation, nodes: tuple[str, ...], words: list[str], problem: str) -> list[str]:
    """Run the agent on nodes before the run has a folder of theirs: its text goes as a command of bash."""
    text = Path(__file__).with_name(AGENT).read_text(encoding="utf-8")
    command = ["bash", "-c", text, AGENT, "/nonexistent", "-", *words]
    return call_nodes(allocation, nodes, command, problem, cause=Cause.IMAGE)


def _with_nodes_mount(plan: RunPlan) -> RunPlan:
    """Return a plan whose container sees what the nodes read, and can write their state alone."""
    from msgspec.structs import replace

    home = plan.folder / NODES
    added = (
        Mount(source=str(home), target=INSIDE, read_only=True, create=True),
        Mount(source=str(home / STATE), target=f"{INSIDE}/{STATE}", create=True),
    )
    return replace(plan, mounts=(*plan.mounts, *added))


def _counts(plan: RunPlan) -> dict[str, EnvValue]:
    count = str(plan.place.gpus_per_node)
    return {"GPUS_PER_NODE": count, "NPROC_PER_NODE": count} if plan.place.gpus_per_node else {}


def _parsed(handle: str) -> tuple[str, list[str], Path]:
    """Return job, nodes and folder of a session's handle.

    Raises:
        RuntimeProblem: it is none.
    """
    try:
        found = json.loads(handle)
        nodes = [str(name) for name in found["nodes"]]
        return str(found["job"]), nodes, Path(os.fspath(found["folder"]))
    except (ValueError, KeyError, TypeError):
        raise RuntimeProblem(f"'{handle[:100]}' names no session of Slurm", cause=Cause.PREPARE) from None
