"""Side files that madengine 2 wrote for cards of its test fixture, and the runs that they tell of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from madlite.measure.performance import read_results
from madlite.model import Card, Cause, Image, ImageUsed, Machine, Metric, Place, Result, ResultRule, RunPlan, Status
from tests.factories import write_side_files

from .reading import DATA

GOLDEN = DATA / "madengine-2-side-files"
SIDE_FILES = (
    *("perf_entry.json", "perf_entry.csv", "perf_entry_super.json", "perf_entry_super.csv"),
    *("perf_super.json", "perf_super.csv"),
)
BLANK = "model, performance, metric, extra\na,10.5,tok/s,e1\nb,,tok/s,e2\n"
OVERRIDE = "model,performance,metric,n_gpus,gpu_architecture,status,test_duration\na,3,u,4,gfx999,FAILURE,77\n"


def make_run(workspace: Path, name: str = "x", csv: str = "", **changes: Any) -> tuple[RunPlan, Result]:
    """Return a run of the fixture as madengine 2 ran it; `csv` is what its script left as results file."""
    file = changes.pop("multiple_results", "results.csv" if csv else "")
    result: dict[str, Any] = {"status": Status.SUCCESS, "durations_s": {"run": changes.pop("ran_s", 1.5)}}
    result["image"] = ImageUsed(
        digest="rocm/pytorch@sha256:1111aaaa2222bbbb", build_duration_s=changes.pop("built_s", 2.5)
    )
    result |= {key: changes.pop(key) for key in ("status", "cause", "metrics", "durations_s") if key in changes}
    if csv:
        (workspace / file).write_text(csv)
        result["metrics"] = read_results(workspace / file).metrics
    card = Card(
        name=name,
        root=workspace,
        source="models.json",
        scripts="scripts/dummy/run.sh",
        tags=tuple(changes.pop("tags", ("x",))),
        training_precision=changes.pop("training_precision", ""),
        multiple_results=file,
    )
    values = {
        "id": f"run-of-{name}",
        "card": card,
        "backend": "script",
        "place": Place(gpus_per_node=1),
        "machine": Machine(vendor="AMD", architecture="gfx942", hostname="vm"),
        "workspace": workspace,
        "inside": "/myworkspace",
        "folder": workspace / "madlite_runs" / name,
        "image": Image(
            ref=f"ci-{name}_dummy.ubuntu.amd",
            dockerfile=workspace / "docker/dummy.ubuntu.amd.Dockerfile",
            base="rocm/pytorch",
        ),
        "result_rule": ResultRule(kind="multiple_results" if file else "performance_line", file=file),
    }
    plan = RunPlan(**{**values, **changes})
    return plan, Result(plan_id=plan.id, **result)


def number(text: str, metric: str = "tok/s", **changes: Any) -> Metric:
    return Metric(metric=metric, text=text, status=Status.SUCCESS, value=float(text), **changes)


def failed(cause: Cause) -> dict[str, Any]:
    return {"status": Status.FAILURE, "cause": cause, "metrics": ()}


def written(plan: RunPlan, result: Result, **options: Any) -> None:
    """Write the side files, and find no fault."""
    assert write_side_files(plan, result, pipeline="", build_number="0", **options) == ()


def strict_json(path: Path) -> Any:
    """Read JSON that every reader takes: no NaN."""

    def refuse(name: str) -> None:
        raise ValueError(f"{path}: {name} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def spelled(value: Any) -> str:
    """Return JSON as text that shows the order of the keys, and 3 apart from 3.0 and "3"."""
    return json.dumps(value, indent=1)
