"""A stand-in cluster for each test, and plans that run on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from madlite.model import Action, Image, Place, RunPlan
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.runtime import KubernetesRuntime
from tests.factories import make_plan

if TYPE_CHECKING:
    from tests.pods.stand_in import Cluster

# An environment that was made before these packages joined `dev` runs the other tests; CI's has to have them.
if not os.environ.get("CI") and not (find_spec("kubernetes_validate") and find_spec("kubernetes")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    from tests.pods.stand_in import Cluster

    home = tmp_path / "cluster"
    home.mkdir()
    made = Cluster(home)
    yield made
    made.close()


@pytest.fixture
def runtime(cluster: Cluster) -> KubernetesRuntime:
    return KubernetesRuntime(KubernetesSettings(kubeconfig=str(cluster.kubeconfig())))


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., RunPlan]:
    """Return what makes a plan of scripts, one action each, on so many nodes."""

    def make(*scripts: str, nodes: int = 1, **changes: object) -> RunPlan:
        place = Place(where="kubernetes", nodes=nodes)
        made = make_plan(tmp_path / "mad", place=place, traits=KubernetesRuntime.traits, **changes)
        (made.folder / "work").mkdir(exist_ok=True)
        (made.folder / "work/run.sh").write_text("echo from run.sh\n")
        actions = tuple(Action(kind="run", argv=("sh", "-c", script), cwd="{folder}") for script in scripts)
        from msgspec.structs import replace

        return replace(made, actions=actions, runtime="kubernetes", image=Image(ref="rocm/primus:v25.10"))

    return make
