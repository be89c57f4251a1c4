"""Plans of the backend primus, as the engine makes them of a tag, a machine and options."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from madlite.model import Card, Finding, Gpu, Machine, Request, RunPlan, Traits
from madlite.plan.context import Options, read_context
from madlite.plan.fields import requested_values
from madlite.plan.inputs import RunInputs, layers
from madlite.plan.make import make_plan
from madlite.plan.place import RuntimeChoice
from madlite_plugins.primus.backend import Primus
from tests.plugins.rendered import run_sh

ARCHITECTURES = {"MI300X": "gfx942", "MI325X": "gfx942", "MI350X": "gfx950", "MI355X": "gfx950"}
SPACE = Path("/space")


def machine(device: str = "MI300X", count: int = 8) -> Machine:
    product, arch = f"AMD Instinct {device}", ARCHITECTURES[device]
    gpus = tuple(Gpu(index=n, arch=arch, product=product, render_minor=128 + n) for n in range(count))
    return Machine(vendor="AMD", gpus=gpus, architecture=arch, product=product, device=device)


def mad_card(name: str, **changes: object) -> Card:
    """Return a card as MAD has it: with a script that is not here."""
    fields = {"scripts": "scripts/primus/run.sh", "args": f"--model_repo {name}", "n_gpus": "-1", **changes}
    return Card(name=name, root=Path(), source="a test", **fields)  # type: ignore[arg-type]


def tree_card(root: Path = SPACE, **values: object) -> Card:
    """Return a card as one of a Primus tree is: its config file's values, not those of Primus's presets."""
    config = "examples/megatron/configs/MI300X/deepseek_v2_lite-BF16-pretrain.yaml"
    recipe = {"name": "tree", "config": config, "framework": "megatron", "suite": "pretrain", **values}
    return Card(
        name="primus_train/megatron_MI300X_deepseek_v2_lite-BF16-pretrain",
        root=root,
        source="a test",
        scope="primus_train",
        scripts="scripts/primus_train/run.sh",
        args=f"--config_path {config}",
        n_gpus="8",
        backend="primus",
        recipe=recipe,
    )


def plans(
    card: Card | str,
    on: Machine | None = None,
    *,
    runtime: str = "docker",
    workspace: Path = SPACE,
    context: str = "",
    environ: dict[str, str] | None = None,
    **asked,
):
    """Return the plans of a card; `asked` is what --set asks for, `context` the text of --additional-context."""
    card = mad_card(card) if isinstance(card, str) else card
    on, known = on or machine(), read_context(None, context)
    sets = tuple((name, str(value)) for name, value in asked.items())
    options = Options(workspace=workspace, output=workspace / "perf.csv", sets=sets, environ=environ or {})
    request = Request(card=card, tag=card.name)
    request = replace(request, settings=requested_values(layers(request, known, options)))
    return [
        make_plan(
            RunInputs(
                run_id="r1",
                request=request,
                backend="primus",
                spec=draft,
                machine=on,
                options=options,
                context=known,
                runtime=RuntimeChoice(runtime=runtime, origin="a test", traits=Traits(containerised=runtime != "host")),
                args=card.args,
            )
        )
        for draft in Primus().expand(request, on)
    ]


def plan(card: Card | str, on: Machine | None = None, **asked) -> RunPlan:
    (one,) = plans(card, on, **asked)
    return one


def options(made: RunPlan) -> list[str]:
    """Return the words that the rendered script passes on to Primus, a line each."""
    text = run_sh(made)
    return [line.strip() for line in text[text.index("options=(") :].splitlines()[1:] if line.startswith("  --")]


def findings(made: RunPlan, fatal: bool | None = None) -> list[Finding]:
    return [found for found in Primus().check(made) if fatal is None or found.fatal is fatal]
