from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from madlite.model import Card, FileTemplate, Gpu, Machine, Request, RunSpec, Variant
from madlite.plan.context import Context, Options
from madlite.plan.inputs import RunInputs
from madlite.plan.place import RuntimeChoice


def eight_mi300x() -> Machine:
    gpus = tuple(Gpu(index=n, arch="gfx942", product="AMD Instinct MI300X", render_minor=128 + n) for n in range(8))
    return Machine(
        vendor="AMD",
        gpus=gpus,
        architecture="gfx942",
        product="AMD Instinct MI300X",
        device="MI300X",
        rocm_version="7.0.2",
        hostname="node1",
    )


def rendered_draft(**changes: Any) -> RunSpec:
    base = RunSpec(
        variant=Variant(model="tiny", precision="BF16", seq_len=128, micro_batch=2, steps=50),
        templates=(FileTemplate(path="run.sh", template="tiny/run.sh.j2"),),
        settings={"lr": 0.001, "compile": False, "flavor": "debug"},
        env={"FROM_RECIPE": "1"},
        origin="recipe tiny",
    )
    import msgspec

    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def given(tmp_path: Path):
    def make(**changes: Any) -> RunInputs:
        card = changes.pop("card", Card(name="tiny", root=tmp_path, source="models.json", n_gpus="-1"))
        values: dict[str, Any] = {
            "run_id": "20260101T000000-tiny-abc123",
            "request": Request(card=card, tag="tiny", overrides=changes.pop("overrides", ())),
            "backend": "tiny",
            "spec": rendered_draft(),
            "machine": eight_mi300x(),
            "options": Options(workspace=tmp_path, output=tmp_path / "perf.csv"),
            "context": Context(),
            "runtime": RuntimeChoice(runtime="docker", origin="default"),
            "args": card.args,
        }
        return RunInputs(**{**values, **changes})

    return make
