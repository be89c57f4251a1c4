"""How much of its tests a tier runs, and in which order; CONTRIBUTING.md says what the tiers are.

`make test` runs what has no marker `full`, with a quarter of the examples; MADLITE_TEST_TIER=all is `make test-all`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

ALL = os.environ.get("MADLITE_TEST_TIER") == "all"
# what takes longest, by its time with a quarter of a minute or more; what is missing here only begins later
_LONG = (
    "jobs/test_real_slurm.py",
    "golden/test_scenarios.py",
    "pods/test_cluster.py",
    "platforms/test_contract.py",
    "engine/test_slurm_runtime.py",
    "crash/test_crash.py",
    "engine/test_resume.py",
    "engine/test_run.py",
    "engine/test_tune.py",
    "engine/test_bisect.py",
    "engine/test_hang.py",
    "documents/test_documents.py",
    "plugins/test_flux_script.py",
    "cli/test_collect.py",
    "kit/test_built_in_backends.py",
    "engine/test_mad_steps.py",
    "engine/test_ending.py",
    "engine/test_record.py",
    "hostile/test_planted.py",
    "jobs/test_attach.py",
    "documents/test_tutorial.py",
    "engine/test_build_and_run.py",
    "engine/test_build_on_compute.py",
    "hostile/test_any_log.py",
    "engine/test_killed.py",
    "plugins/test_trackers.py",
    "engine/test_runs_of_two_nodes.py",
    "engine/test_telemetry.py",
    "hostile/test_container.py",
    "kit/test_runtimes.py",
    "golden/test_minimad.py",
    "engine/test_secrets_everywhere.py",
    "install/test_third_party.py",
    "engine/test_plan_and_collect.py",
    "engine/test_log_limit.py",
    "engine/test_fetched_data.py",
    "engine/test_redaction.py",
    "engine/test_podman.py",
    "golden/test_catalogue.py",
)


def examples(of_all: int) -> int:
    """Return how many examples Hypothesis makes, or seeds a loop has, of so many that `make test-all` wants."""
    return of_all if ALL else max(min(of_all, 5), of_all // 4)


def first_of(values: Iterable[Any], count: int) -> list[Any]:
    """Return values to parametrize a test with, of which `make test` takes the first ones alone.

    For several names they are made by `pytest.param`.
    """
    return [value if at < count else _in_full(value) for at, value in enumerate(values)]


def every(values: Iterable[Any], step: int) -> list[Any]:
    """Return values to parametrize a test with, of which `make test` takes the first of every so many alone."""
    return [value if at % step == 0 else _in_full(value) for at, value in enumerate(values)]


def _in_full(value: Any) -> Any:
    values = value.values if isinstance(value, type(pytest.param())) else (value,)
    return pytest.param(*values, marks=pytest.mark.full)


def order(items: list[pytest.Item]) -> None:
    """Put the files that take long before others, so that no worker ends late."""
    items.sort(key=lambda item: _LONG.index(_file_of(item)) if _file_of(item) in _LONG else len(_LONG))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")
