from __future__ import annotations

import os
from contextlib import closing

import pytest

from madlite.model import Traits
from madlite.platforms.host.runtime import HostRuntime
from madlite.store.folder import RunFolder
from tests.factories import make_plan


@pytest.fixture
def plan(tmp_path):
    """Make a plan whose processes nobody else takes for their own run's, or for those of a dead one."""
    run_id = f"{tmp_path.name}-{os.getpid()}"
    plan = make_plan(tmp_path, id=run_id, traits=Traits(containerised=False), inside=str(tmp_path), stop_grace_s=0.5)
    plan.folder.rmdir()
    with closing(RunFolder.create(plan, [])):
        yield plan


@pytest.fixture
def runtime():
    return HostRuntime(dict(os.environ))
