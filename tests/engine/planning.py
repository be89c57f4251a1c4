"""Plans of small scripts, made and run in the test's own process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from madlite.backends.loader import Plugins, load_plugins
from madlite.model import Card, Machine, Request, Runtime
from madlite.plan.context import Context, Options
from madlite.plan.submission import PlannedRun
from madlite.run.planning import BatchInputs, plan_runs


def plan_scripts(
    folder: Path, scripts: Mapping[str, str], runtime: Runtime, **fields: object
) -> tuple[Sequence[PlannedRun], Options, Plugins]:
    """Return a plan of each script by its name, for a runtime, with what they are run with."""
    environ = {"PATH": os.environ["PATH"]}
    options = Options(workspace=folder, output=folder / "perf.csv", runtime=runtime.name, environ=environ)
    plugins = load_plugins(only_built_in=True)
    around = BatchInputs(
        options=options,
        context=Context(),
        machine=Machine(),
        plugins=plugins,
        runtimes={runtime.name: runtime},
        template_root=Path(),
        new_run_id=lambda name: f"{folder.name}-{os.getpid()}-{name:_>7}",  # their ends tell model folders apart
    )
    for name, script in scripts.items():
        (folder / f"{name}.sh").write_text(script)
    cards = [
        Card(name=name, root=folder, source="models.json", scripts=f"{name}.sh", **fields)  # type: ignore[arg-type]
        for name in scripts
    ]
    return plan_runs([Request(card=card, tag=card.name) for card in cards], around), options, plugins
