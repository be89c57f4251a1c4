"""One control plane for all tests, with two nodes of eight pretended GPUs; each test has a namespace of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.runtime import KubernetesRuntime
from tests.control_plane.control_plane import PROGRAMS, ControlPlane
from tests.control_plane.kubelet import Kubelet
from tests.pods.conftest import plan
from tests.waiting import wait_until

__all__ = ["plan"]

_NUMBERS = itertools.count(1)


class Place:
    """A namespace of the control plane."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name

    def runtime(self, user: str = "admin", **settings: object) -> KubernetesRuntime:
        """Return the runtime of a user there."""
        file = str(self.plane.kubeconfig(user, self.name))
        return KubernetesRuntime(KubernetesSettings(kubeconfig=file, namespace=self.name, **settings))

    def objects(self, plural: str) -> list[dict]:
        """Return the objects of a kind."""
        group = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
        return self.plane.call("GET", f"{group}/namespaces/{self.name}/{plural}")["items"]

    def own(self) -> list[str]:
        """Return the names of what madlite made."""
        kinds = ("jobs", "pods", "configmaps", "secrets", "services")
        found = (one["metadata"] for kind in kinds for one in self.objects(kind))
        return [one["name"] for one in found if "madlite.run" in one.get("labels", {})]

    def is_left_empty(self) -> None:
        """Wait until the garbage collector has removed all that was madlite's."""
        wait_until(lambda: not self.own(), "the removal of all objects")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if not (PROGRAMS / "kube-apiserver").exists():
        pytest.fail("there is no control plane: make kubernetes builds it")
    made = ControlPlane(tmp_path_factory.mktemp("plane"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def kubelet(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path_factory.mktemp("nodes"), plane, ("n1", "n2"))
    yield made
    made.close()


@pytest.fixture
def place(plane: ControlPlane, kubelet: Kubelet) -> Place:
    return Place(plane, plane.namespace(f"test-{next(_NUMBERS)}"))


@pytest.fixture
def gpu_plan(plan: Callable, tmp_path: Path) -> Callable:
    """Return what makes a plan of a script with so many GPUs of AMD on each node."""
    from msgspec.structs import replace

    def make(script: str, gpus: int = 8, **changes: object):
        made = plan(script, **changes)
        place = replace(made.place, gpus_per_node=gpus)
        return replace(made, place=place, machine=replace(made.machine, vendor="AMD"))

    return make
