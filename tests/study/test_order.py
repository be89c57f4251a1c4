"""Which runs a repeat is made of, in which order, and with which caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.model import Blocked, Cause, Image, RunPlan, Secret, Status
from madlite.plan.plan_file import Rendered
from madlite.plan.submission import PlannedRun
from madlite.store.batches import StudyFolder
from madlite.study.engine import making_folder
from madlite.study.grid import Grid, plan_grid
from tests.factories import HOST, make_plan

ID = "20261124T021500-3fa91c"


def run_id(name: str) -> str:
    return f"20260101T000000-{name}-0000ff"


def planned(tmp_path: Path, *names: str, **fields: object) -> list[PlannedRun]:
    made = []
    for name in names:
        plan = make_plan(tmp_path, id=run_id(name), **fields)
        text = f"cd {plan.folder}\n".encode()
        files = (Rendered(path="run.sh", data=text, template=Path("run.sh.j2")),)
        made.append(PlannedRun(plan=plan, backends=(), files=files, runtime=None))  # type: ignore[arg-type]
    return made


def order(grid: Grid) -> list[tuple[int | None, int | None]]:
    return [(plan.study.series, plan.study.index) for plan in plans(grid) if plan.study]


def plans(grid: Grid) -> list[RunPlan]:
    return [one.plan for one in grid.planned]


def test_runs_come_in_turns_after_one_warm_up_of_each(tmp_path):
    grid = plan_grid(planned(tmp_path, "a", "b"), ID, 3)
    assert order(grid) == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]
    assert [one.plan.study.series for one in grid.warm_ups if one.plan.study] == [1, 2]
    assert not any(one.plan.writes_row for one in grid.warm_ups) and all(plan.writes_row for plan in plans(grid))
    assert all("-warm-up-tiny-" in one.plan.id for one in grid.warm_ups)
    every = [*grid.warm_ups, *grid.planned]
    assert len({one.plan.id for one in every}) == 8 and grid.firsts == grid.planned[:2]


def test_each_run_has_its_own_folder_also_in_its_files_and_else_the_same_plan(tmp_path):
    env = {"A_TOKEN": Secret("s3cr3t"), "WHERE": f"madlite_runs/{run_id('a')}"}
    grid = plan_grid(planned(tmp_path, "a", env=env), ID, 2)
    first, second = plans(grid)
    assert second.folder == tmp_path / "madlite_runs" / second.id
    assert grid.planned[1].files[0].data == f"cd {second.folder}\n".encode()
    assert second.env["WHERE"] == f"madlite_runs/{second.id}" and second.env["A_TOKEN"] == Secret("s3cr3t")
    assert (second.card, second.image, second.mounts) == (first.card, first.image, first.mounts)


def test_warm_caches_are_a_series_own_and_cold_ones_a_run_s(tmp_path):
    def places(grid: Grid) -> list[str]:
        return [str(plan.env["TRITON_CACHE_DIR"]).rpartition("caches/")[2] for plan in plans(grid)]

    both = planned(tmp_path, "a", "b", traits=HOST)
    warm = plan_grid(both, ID, 2)
    assert places(warm) == ["series-1/triton", "series-2/triton"] * 2
    assert [one.plan.env["TRITON_CACHE_DIR"] for one in warm.warm_ups] == [
        plan.env["TRITON_CACHE_DIR"] for plan in plans(warm)[:2]
    ]
    cold = plan_grid(both, ID, 2, cold=True)
    assert not cold.warm_ups and len(set(places(cold))) == 4
    assert {plan.study.caches for plan in plans(cold) if plan.study} == {"cold"}


def test_what_must_not_start_has_its_row_once_and_no_warm_up(tmp_path):
    blocked = Blocked(status=Status.SKIPPED, cause=Cause.DEPRECATED, reason="old")
    grid = plan_grid([*planned(tmp_path, "a"), *planned(tmp_path, "b", blocked=blocked)], ID, 3)
    assert order(grid) == [(1, 1), (2, 1), (1, 2), (1, 3)] and len(grid.warm_ups) == 1
    assert (plans(grid)[1].id, plans(grid)[1].study.count) == (run_id("b"), 1)  # type: ignore[union-attr]


def test_an_image_is_built_without_a_cache_once(tmp_path):
    image = Image(ref="x", dockerfile=tmp_path / "Dockerfile", no_cache=True)

    def fresh(grid: Grid) -> list[bool]:
        every = [*grid.warm_ups, *grid.planned]
        return [one.plan.image.no_cache for one in every if one.plan.image]

    assert fresh(plan_grid(planned(tmp_path, "a", image=image), ID, 2)) == [True, False, False]
    assert fresh(plan_grid(planned(tmp_path, "a", image=image), ID, 2, cold=True)) == [True, False]


def test_a_study_that_another_madlite_has_open_is_refused_with_what_shows_it(tmp_path):
    study_id = "20260101T000000-abcdef"
    opened = StudyFolder.create(tmp_path, study_id, "repeat", {})
    with (
        pytest.raises(UsageProblem, match="is going on in another madlite") as refused,
        making_folder(study_id, tmp_path),
    ):
        StudyFolder.reopen(tmp_path, study_id)
    assert refused.value.hint.startswith("madlite runs --watch") and not opened.close()
