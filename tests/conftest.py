"""Fixtures of all tests, and in which order and with how many examples they run (see CONTRIBUTING.md, Test tiers)."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from madlite.store.gpu_leases import VARIABLE as LEASES
from tests import compiled_templates
from tests.commands import find_plugins_once
from tests.engine_fixture import OF_THE_RUN, base_image, begin_run, docker_environ, end_run, engine, small_image
from tests.slurm_fixture import allocation, end_shared_cluster, own_slurm, preempting_slurm, slurm
from tests.small_disk import small_disk
from tests.tiers import ALL, examples, order

__all__ = [
    "allocation",
    "base_image",
    "docker_environ",
    "engine",
    "own_slurm",
    "preempting_slurm",
    "slurm",
    "small_disk",
    "small_image",
]

# speed is measured in benchmarks/; a change is not refused for an example that only chance brought
settings.register_profile("any machine", deadline=None, max_examples=examples(100), derandomize=not ALL)
settings.load_profile("any machine")

FIRST_START_LIMIT_S = 900  # the first engine test of a machine makes a base image


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.timeout(FIRST_START_LIMIT_S))
    order(items)


def pytest_configure(config: pytest.Config) -> None:
    """Undo what a background job or nohup leaves ignored: every process that a test starts would inherit it."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    _find_python_at_once()
    find_plugins_once()
    if hasattr(config, "workerinput"):
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # a worker is counted, what its tests start is not
    else:
        begin_run()
    # pretended GPUs are the same ones in every test: another worker's are not to be waited for
    os.environ[LEASES] = f"{os.environ[OF_THE_RUN]}/leases-{os.getpid()}"
    compiled_templates.keep_in(Path(os.environ[OF_THE_RUN], "templates"))


def _find_python_at_once() -> None:
    """Put the interpreter before a script of its name, such as pyenv's, which starts thirty processes to find it.

    Every run asks `python3` what a workload would find.
    """
    found = shutil.which("python3")
    if found and Path(found).read_bytes()[:2] == b"#!":
        os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        end_shared_cluster()
        end_run()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave bytes to the system's own time: only a loss of power tells the difference, and it costs seconds in all."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        yield
