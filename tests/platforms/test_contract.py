"""One contract (tests/kit/runtimes.py) for each runtime that comes with madlite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec

import pytest
from msgspec.structs import replace

from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.docker.runtime import DockerRuntime
from madlite.platforms.host.runtime import HostRuntime
from madlite.platforms.kubernetes.runtime import KubernetesRuntime
from madlite.platforms.slurm.runtime import SlurmRuntime
from tests.engine.podman_fixture import podman
from tests.factories import BASE_IMAGE
from tests.kit.runtimes import RUNTIME_CHECKS, check_runtime

__all__ = ["podman"]


def conforms(make, check: str, **given) -> None:
    given |= {"limit_s": 150.0}  # a busy machine is late
    assert [str(flaw) for flaw in check_runtime(make(), only=[check], again=make, **given)] == []


@pytest.mark.host
@pytest.mark.parametrize("check", RUNTIME_CHECKS)
def test_host(check):
    conforms(lambda: HostRuntime(dict(os.environ)), check)


@pytest.mark.engine
@pytest.mark.parametrize("check", RUNTIME_CHECKS)
def test_docker(docker_environ, base_image, check):
    conforms(lambda: DockerRuntime(docker_environ), check, image=BASE_IMAGE)


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("check", RUNTIME_CHECKS)
def test_podman(podman, check):
    conforms(lambda: DockerRuntime({**os.environ, "DOCKER_HOST": podman}), check, image=BASE_IMAGE)


# What of the contract steps cannot have, and why; tests/engine/test_slurm_runtime.py has what holds of them there.
NOT_OF_SLURM = {
    "leaving": "the outcome is the job's, which goes on; so does what an action without a container left behind it",
    "handles": "the same of what is cancelled",
}


@pytest.mark.engine
@pytest.mark.parametrize("check", [check for check in RUNTIME_CHECKS if check not in NOT_OF_SLURM])
def test_slurm_on_two_nodes(allocation, check):
    conforms(lambda: SlurmRuntime(allocation), check, nodes=2)


# What of the contract pods cannot have, and why; tests/pods/test_session.py has what holds of them there.
NOT_OF_PODS = {
    "output": "a pod's log has both streams in one",
    "environment": "the contract's script prints to both",
    "files": "a pod brings the run's own folder and the card's results, not any file of the workspace",
    "handles": "a pod that is kept has ended with its actions",
    "two_at_once": "a log has whole lines, and the contract's script ends none",
}


class OneActionEach:
    """Kubernetes for the contract: a pod has its actions when it is made, so that each action has pods anew."""

    def __init__(self, real: KubernetesRuntime) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    @contextmanager
    def open(self, plan):
        with ExitStack() as stack:
            yield Actions(self._real, plan, stack)


class Actions:
    """The session of the action that was run last; before that of none."""

    shell = ""

    def __init__(self, runtime: KubernetesRuntime, plan, stack: ExitStack) -> None:
        self._runtime, self._plan, self._stack, self._count, self._stopped = runtime, plan, stack, 0, False
        self._session = self._opened(replace(plan, keep_alive=False))

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def run(self, action, out):
        if not self._stopped:
            self._stack.close()
            self._count += 1
            plan = replace(self._plan, id=f"{self._plan.id}-{self._count}", actions=(action,))
            self._session = self._opened(plan)
        return self._session.run(action, out)

    def stop(self, grace_s: float) -> None:
        self._stopped = True
        self._session.stop(grace_s)

    def _opened(self, plan):
        return self._stack.enter_context(self._runtime.open(plan))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[object]:
    if not os.environ.get("CI") and not (find_spec("kubernetes_validate") and find_spec("kubernetes")):
        pytest.skip("the client of Kubernetes is not installed")
    from tests.pods.stand_in import Cluster

    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


@pytest.mark.host
@pytest.mark.parametrize("check", [check for check in RUNTIME_CHECKS if check not in NOT_OF_PODS])
def test_kubernetes_on_two_nodes(cluster, check):
    settings = KubernetesSettings(kubeconfig=str(cluster.kubeconfig()))
    conforms(lambda: OneActionEach(KubernetesRuntime(settings)), check, image="rocm/a:1", nodes=2)
    assert cluster.invalid == [] and not cluster.objects
