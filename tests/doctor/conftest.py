from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.machine.stand_in import Bench

from .stand_in import lay_out


@pytest.fixture
def bare(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def bench(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    lay_out(bare)
    return bare
