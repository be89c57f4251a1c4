"""What keeps a script from starting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from madlite import Finding, RunPlan, few_steps
from madlite_plugins.choices import checkpoint_findings
from madlite_plugins.torchrun.modules import module_findings
from madlite_plugins.torchrun.places import is_file
from madlite_plugins.torchrun.ranks import rank_findings
from madlite_plugins.torchrun.reads import read_words


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with the plan of a script."""
    yield from rank_findings(plan)
    yield from _script(plan)
    read = read_words(plan) if plan.settings["checkpoint"] else None
    knows = read is None or "checkpoint" in read
    yield from checkpoint_findings(plan, is_possible=knows, where="with a script that reads MADLITE_CHECKPOINT")
    variant = plan.variant
    if variant is not None and variant.steps is not None:
        steps, warmup = variant.steps, variant.warmup_steps
        yield from few_steps(f"{steps} steps", steps - warmup, warmup, f"--steps {warmup + 15}")


def _script(plan: RunPlan) -> Iterator[Finding]:
    script = str(plan.settings["script"])
    if script.startswith("-m "):
        yield from module_findings(plan, script[3:].strip())
    elif script.startswith("{folder}/") or (script.startswith("/") and plan.traits.containerised):
        return  # of the run folder, or of an image
    elif not is_file(file := plan.workspace / script):
        message = f"script {script} is not there: {file} is no file"
        yield Finding(message=message, hint=_hint(plan, script), fatal=True, keys=("script",))
    elif plan.traits.containerised and ".." in PurePosixPath(script).parts:
        hint = "name a file below the folder that madlite is started in"
        yield Finding(
            message=f"script {script} is outside of the folder that a container sees",
            hint=hint,
            fatal=True,
            keys=("script", "runtime"),
        )


def _hint(plan: RunPlan, script: str) -> str:
    """Return where the script may be: below `cwd`, which is not searched, or, of a container, in the image."""
    cwd = str(plan.settings["cwd"])
    if cwd and is_file(plan.workspace / cwd / script):
        return f"--set script={PurePosixPath(cwd) / script}"
    image = ", or one of the image by its absolute path" if plan.traits.containerised else ""
    return f"--set script=FILE names a file of the folder that madlite is started in{image}"
