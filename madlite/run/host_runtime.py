"""The runtime `host`: a plan runs as processes of this machine, without a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from madlite.run.host_session import HostSession
from madlite.run.marks import FOLDER_MARK, KEPT_MARK, RUN_MARK
from madlite.secrets import MASK, reveal
from madlite.types import EnvValue, ImageUsed, Json, Place, Problem, RunPlan, Say, Secret, Traits


class HostRuntime:
    """Runs plans as process groups; `environ` is the environment they start from."""

    name = "host"
    traits = Traits(containerised=False)

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def supports(self, place: Place) -> bool:
        """Say whether plans for this place can run here."""
        return place.where == "local"

    def available(self) -> Problem | None:
        """Return None: this machine is always there."""
        return None

    def request(self, plan: RunPlan) -> Mapping[str, Json]:
        """Return what would be started: the variables that are added, secrets as `***`, and each command's folder."""
        actions = [
            {"argv": list(action.argv), "cwd": str(plan.workspace / action.cwd.replace("{folder}", str(plan.folder)))}
            for action in plan.actions
        ]
        env = {name: MASK.decode() if isinstance(value, Secret) else value for name, value in _added(plan).items()}
        return {"env": env, "actions": actions}

    def prepare(self, plan: RunPlan, say: Say) -> ImageUsed:
        """Return that no image is used."""
        return ImageUsed()

    @contextmanager
    def open(self, plan: RunPlan) -> Iterator[HostSession]:
        """Hold a session open; leaving it ends every process of the run, unless the plan keeps it alive."""
        env = {**self._environ, **reveal(_added(plan))}
        session = HostSession(plan.id, plan.workspace, plan.folder, env, plan.stop_grace_s, self._environ)
        session.make_ready()
        try:
            yield session
        finally:
            if not plan.keep_alive:
                session.close()

    def attach(self, handle: str) -> HostSession:
        """Return the session of the run whose folder `handle` is, for ending what is left of it."""
        folder = Path(handle)
        return HostSession(folder.name, Path(), folder, self._environ, grace_s=10.0)


def _added(plan: RunPlan) -> dict[str, EnvValue]:
    kept = {KEPT_MARK: "1"} if plan.keep_alive else {}
    return {**plan.env, RUN_MARK: plan.id, FOLDER_MARK: str(plan.folder), **kept}
