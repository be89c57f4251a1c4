"""Which runs a scaling study is made of, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.model import Blocked, Cause, Gpu, Machine, Place, Status, Variant
from madlite.plan.submission import PlannedRun
from madlite.study.grid import plan_grid
from madlite.study.scaling import Axis, check_nodes, plan_points
from tests.factories import HOST, SLURM, make_plan
from tests.rows import each_row

EIGHT = Machine(vendor="AMD", device="MI300X", gpus=tuple(Gpu(index=n) for n in range(8)))


class Planner:
    """Plans one card as the command does, and notes with what."""

    def __init__(self, folder: Path, variant: Variant | None = None, gpus: int = 8, **fields: object) -> None:
        self.folder, self.variant, self.gpus, self.fields = folder, variant, gpus, fields
        self.nodes = int(str(fields.pop("nodes", 1)))
        self.asked: list[Mapping[str, object]] = []

    def __call__(self, values: Mapping[str, object]) -> list[PlannedRun]:
        self.asked.append(values)
        fields = {"machine": EIGHT, "traits": HOST, "variant": self.variant, **self.fields}
        nodes = int(str(values.get("nnodes", self.nodes)))
        place = Place(gpus_per_node=int(str(values.get("n_gpus", self.gpus))), nodes=nodes)
        plan = make_plan(self.folder, id=f"20260101T000000-a-{len(self.asked):06x}", place=place, **fields)
        return [PlannedRun(plan=plan, backends=(), files=(), runtime=None)]  # type: ignore[arg-type]


def values(
    folder: Path, counts: list[int], *, strong: bool = False, over: Axis = "n_gpus", **fields: object
) -> list[dict[str, object]]:
    points = plan_points(counts, Planner(folder, **fields), strong=strong, over=over)  # type: ignore[arg-type]
    return [dict(one.plan.study.varied) for one in points if one.plan.study]


def over_nodes(folder: Path, counts: list[int], **fields: object) -> list[dict[str, object]]:
    return values(folder, counts, over="nnodes", **{"traits": SLURM, "nodes": 4, **fields})  # type: ignore[arg-type]


def test_weak_scaling_keeps_the_work_of_each_gpu(tmp_path):
    assert values(tmp_path, [1, 4]) == [{"n_gpus": 1}, {"n_gpus": 4}]
    named = Variant(model="m", micro_batch=2, global_batch=128)
    assert values(tmp_path, [1, 8], variant=named) == [
        {"n_gpus": 1, "global_batch": 16},
        {"n_gpus": 8, "global_batch": 128},
    ]


def test_strong_scaling_keeps_the_global_batch(tmp_path):
    derived = Variant(model="m", micro_batch=2)
    assert values(tmp_path, [1, 2, 8], strong=True, variant=derived) == [
        {"n_gpus": count, "global_batch": 16} for count in (1, 2, 8)
    ]
    named = Variant(model="m", micro_batch=2, global_batch=48)
    assert {one["global_batch"] for one in values(tmp_path, [1, 8], strong=True, variant=named)} == {48}


def test_over_nodes_each_node_keeps_its_work_or_all_share_the_global_batch(tmp_path):
    assert over_nodes(tmp_path, [1, 4]) == [{"nnodes": 1}, {"nnodes": 4}]
    named = Variant(model="m", micro_batch=2, global_batch=128)
    assert over_nodes(tmp_path, [1, 2], variant=named) == [
        {"nnodes": 1, "global_batch": 32},
        {"nnodes": 2, "global_batch": 64},
    ]
    assert {one["global_batch"] for one in over_nodes(tmp_path, [1, 2], variant=named, strong=True)} == {128}
    derived = Variant(model="m", micro_batch=2)
    assert {one["global_batch"] for one in over_nodes(tmp_path, [1, 4], variant=derived, strong=True)} == {64}


def test_nodes_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(UsageProblem, match="global batch 64 is no multiple of micro batch 16 × 3 nodes"):
        over_nodes(tmp_path, [3, 4], variant=Variant(model="m", micro_batch=2), strong=True)
    with pytest.raises(UsageProblem, match="--nodes 2: tiny runs on this machine alone"):
        over_nodes(tmp_path, [2], traits=HOST)
    with pytest.raises(UsageProblem, match="--nodes 8: allocation 12 has 4 nodes") as problem:
        check_nodes([2, 8], 4, "allocation 12")
    assert problem.value.hint == "--nodes 2"


@each_row(
    ("counts", "fields", "message", "hint"),
    [
        ([1], {"machine": Machine()}, "--gpus 1: this machine has none", "--dry-run --machine 1xMI300X"),
        (
            [1, 3],
            {"variant": Variant(model="m", global_batch=12)},
            "global batch 12 of 8 GPUs",
            "--set global_batch=16",
        ),
        (
            [1, 3],
            {"strong": True, "variant": Variant(model="m", micro_batch=2, global_batch=16)},
            "global batch 16 is no multiple of micro batch 2 × 3 GPUs",
            "--set global_batch=12",
        ),
        ([1, 2], {"strong": True}, "tiny has no micro batch that madlite sets", "leave --strong out"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(tmp_path, counts, fields, message, hint):
    with pytest.raises(UsageProblem) as problem:
        values(tmp_path, counts, **fields)
    assert message in problem.value.message and hint in problem.value.hint


def test_gpus_that_the_context_leaves_out_are_refused_too(tmp_path):
    blocked = Blocked(status=Status.FAILURE, cause=Cause.GPUS, reason="docker_gpus leaves 2")
    with pytest.raises(UsageProblem, match="--gpus 4: docker_gpus leaves 2"):
        values(tmp_path, [4], blocked=blocked)


def test_runs_come_in_turns_and_each_is_one_of_its_series(tmp_path):
    runs = plan_grid(plan_points([1, 2], Planner(tmp_path), strong=False), "s", 2).planned
    studies = [one.plan.study for one in runs]
    assert [(one.series, one.index, one.count, one.varied) for one in studies if one] == [
        (1, 1, 2, {"n_gpus": 1}), (2, 1, 2, {"n_gpus": 2}), (1, 2, 2, {"n_gpus": 1}), (2, 2, 2, {"n_gpus": 2})
    ]  # fmt: skip
    assert {one.kind for one in studies if one} == {"scaling"} and len({one.plan.id for one in runs}) == 4
    assert [one.plan.place.gpus_per_node for one in runs] == [1, 2, 1, 2]
