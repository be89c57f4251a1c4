"""Scenario by scenario: the rows, files and requests of madlite are madengine's, or a difference that is declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.golden.compare import Gap, compare_lists, compare_names, undeclared
from tests.golden.differences import DECLARED
from tests.golden.facts import Facts, in_its_words, plan_runs, read_rows
from tests.golden.runs import DATA, Bed, Done, copied
from tests.golden.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.engine
AT_ONCE = 2
# make test takes every fourth scenario
MARKS = {scenario.id: pytest.mark.full if at % 4 else () for at, scenario in enumerate(SCENARIOS)}
CASES = [
    pytest.param(scenario, version, id=f"{version}-{scenario.name}", marks=MARKS[scenario.id])
    for scenario in SCENARIOS
    for version in scenario.versions.split()
]
Runs = Callable[[Scenario], Done]


@cache
def expectations() -> dict[str, Any]:
    return dict(json.loads((DATA / "scenarios/expected.json").read_text()))


@cache
def standard_columns(version: str) -> list[str]:
    """Return the columns of a file that this version of madengine begins."""
    header, _ = read_rows(DATA / f"golden/{version}.perf.csv")
    assert header is not None
    return header[: header.index("additional_docker_run_options") + 1]


@pytest.fixture(scope="session")
def runs(bed: Bed, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Return the run of a scenario; those of the tests of this session go on in the background, two at a time."""
    started: dict[str, Future[Done]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for scenario in _asked(request.session.items):
            started[scenario.id] = pool.submit(_run, scenario, bed, tmp_path_factory.mktemp("s"))
        try:
            yield lambda scenario: started[scenario.id].result()
        finally:
            pool.shutdown(cancel_futures=True)
    bed.remove_images(run.result().folder for run in started.values() if not run.cancelled())


def _asked(items: list[pytest.Item]) -> list[Scenario]:
    """Return the scenarios that the session's tests need."""
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    asked = [given["scenario"] for given in params if isinstance(given.get("scenario"), Scenario)]
    if any(item.name.startswith(test_every_declared_difference_is_there.__name__) for item in items):
        asked += SCENARIOS
    return list({scenario.id: scenario for scenario in asked}.values())


def _run(scenario: Scenario, bed: Bed, home: Path) -> Done:
    folder = copied("scenarios/checkout", home)
    if scenario.prepare:
        scenario.prepare(folder)
    ended = []
    with bed.tapped(home) as tap:
        for n, words in enumerate(scenario.commands):
            if n and scenario.between:
                scenario.between(folder)
            ended.append(bed.start(folder, scenario.machine, tap.address, words, dict(scenario.env), probes="no"))
    return Done(
        folder=folder,
        exits=tuple(one.returncode for one in ended),
        printed="\n".join(one.stdout + one.stderr for one in ended),
        calls=tuple(tap.calls),
        left=bed.take_away(folder),
    )


@pytest.mark.parametrize(("scenario", "version"), CASES)
def test_what_madengine_did(scenario: Scenario, version: str, runs: Runs) -> None:
    done = runs(scenario)
    assert done.exits == scenario.exits, done.printed
    assert "Traceback" not in done.printed and "internal error" not in done.printed, done.printed
    if set(scenario.exits) & {1, 2, 3, 4}:
        assert "error:" in done.printed or "FAILURE" in done.printed
    gaps = find_gaps(scenario, version, done)
    unexplained = undeclared(gaps, DECLARED, version, scenario.name)
    assert not unexplained, "\n".join(["", *map(str, unexplained), "", done.printed])


@pytest.mark.full
def test_every_declared_difference_is_there(runs: Runs) -> None:
    """What madlite no longer does differently has no place in the table."""
    unseen = set(DECLARED)
    for scenario in SCENARIOS:
        for version in scenario.versions.split():
            gaps = find_gaps(scenario, version, runs(scenario))
            unseen -= {one for one in unseen if any(one.covers(version, scenario.name, gap) for gap in gaps)}
    assert not unseen, "\n".join(map(str, unseen))


LIMITS = {"t0": None, "tm": 360.0, "tm2": 7200.0, "tm3": 100.0}  # of a card that has 360, but for t0


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.name in LIMITS], ids=lambda one: one.id)
def test_the_time_limit_is_what_was_asked_for_or_the_cards(scenario: Scenario, runs: Runs) -> None:
    (plan,) = runs(scenario).folder.glob("madlite_runs/*/plan.json")
    assert json.loads(plan.read_text()).get("timeout_s") == LIMITS[scenario.name]


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.id == "v2-two"], ids=lambda one: one.id)
def test_summaries_have_madengines_shape(scenario: Scenario, runs: Runs) -> None:
    built, ran = (json.loads((runs(scenario).folder / name).read_text()) for name in ("bs.json", "rs.json"))
    assert [one["docker_image"] for one in built["successful_builds"]] == [
        "ci-dummy_dummy.ubuntu.amd", "ci-dummy_multi_dummy.ubuntu.amd",
    ]  # fmt: skip
    assert {"failed_builds", "total_build_time", "successful_pushes", "failed_pushes"} < set(built)
    first, second = ran["successful_runs"]
    assert {"model", "image", "status", "performance", "duration"} <= set(first)
    assert (first["status"], second["model"], second["performance"]) == ("SUCCESS", "dummy_multi", "perf_dummy.csv")
    assert (ran["failed_runs"], ran["total_runs"]) == ([], 2)
    assert (ran["session_start_row"], ran["session_row_count"]) == (0, 5)


def find_gaps(scenario: Scenario, version: str, done: Done) -> list[Gap]:
    """Return where a scenario's outcome is another than madengine's."""
    known = expectations()[version]
    theirs, common = known["scenarios"][scenario.name], known["common"]
    own = {path.name for path in (DATA / "scenarios/checkout").iterdir()}
    ours = plan_runs(done.folder, done.calls, scenario.output, done.left, {*own, "ctx_test", "upstream", "batch.json"})
    rows, builds, containers = (
        in_its_words(facts, done.folder, scenario.image) for facts in (ours.rows, ours.builds, ours.containers)
    )
    gaps = _compare_rows(version, theirs, common["row"], rows, ours) if "rows" in theirs else []
    gaps += compare_lists("builds", [_filled(common["build"], one) for one in theirs["builds"]], builds, "image")
    expected = [_filled(common["container"], one) for one in theirs["containers"]]
    expected = [{**one, "env": _filled(common["env"], one["env"])} for one in expected]
    for one in (*expected, *containers):
        one["mounts"] = sorted(one["mounts"])
    gaps += compare_lists("containers", expected, containers, "image")
    gaps += compare_names("files", theirs["files"], in_its_words(ours.files, done.folder, scenario.image))
    left = theirs.get("left", 0)
    return gaps + ([Gap("left", left, done.left)] if left != done.left else [])


def _compare_rows(version: str, theirs: dict[str, Any], common: dict[str, Any], rows: Any, ours: Facts) -> list[Gap]:
    if theirs["rows"] is None or rows is None:
        named = [None if one is None else " ".join(f"{row['model']}" for row in one) for one in (theirs["rows"], rows)]
        return [Gap("rows", *named)] if named[0] != named[1] else []
    extra = theirs.get("extra", [])
    names = {*standard_columns(version), *extra}
    seen = [{name: cell for name, cell in row.items() if name in names} for row in rows]
    gaps = compare_lists("rows", [_filled(common, one) for one in theirs["rows"]], seen, "model")
    return gaps + compare_names("columns", extra, ours.extra or [])


def _filled(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in {**common, **own}.items() if fact is not None}
