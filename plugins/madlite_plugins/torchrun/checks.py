"""What keeps a script from starting, or its ranks from being those of the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from madlite import Finding, RunPlan, few_steps

_ELSEWHERE = "--no-lint starts it where the image has it"


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with the plan of a script."""
    yield from _ranks(plan)
    yield from _script(plan)
    variant = plan.variant
    if variant is not None and variant.steps is not None:
        steps, warmup = variant.steps, variant.warmup_steps
        yield from few_steps(f"{steps} steps", steps - warmup, warmup, f"--set steps={warmup + 15}")


def ranks_of(plan: RunPlan) -> int:
    """Return how many ranks the job has, over all its nodes."""
    here = int(plan.settings["nproc_per_node"]) or plan.place.gpus_per_node
    return max(1, here) * max(1, plan.place.nodes)


def _ranks(plan: RunPlan) -> Iterator[Finding]:
    asked, gpus = int(plan.settings["nproc_per_node"]), plan.place.gpus_per_node
    if asked < 0:
        yield Finding(message=f"nproc_per_node is {asked}", hint="0 is one rank for each GPU", fatal=True)
    elif gpus and asked not in (0, gpus):
        hint = f"--set n_gpus={asked}"
        yield Finding(message=f"{asked} ranks on {gpus} GPUs: a row counts one rank per GPU", hint=hint, fatal=True)


def _script(plan: RunPlan) -> Iterator[Finding]:
    script = str(plan.settings["script"])
    if script.startswith("-m "):
        yield from _module(plan, script[3:].strip())
    elif script.startswith("{folder}/") or (script.startswith("/") and plan.runtime == "docker"):
        return  # of the run folder, or of an image
    elif not is_file(file := plan.workspace / script):
        hint = f"{_hint(plan, script)}; {_ELSEWHERE}"
        yield Finding(message=f"script {script} is not there: {file} is no file", hint=hint, fatal=True)
    elif plan.runtime == "docker" and ".." in PurePosixPath(script).parts:
        hint = "name a file below the folder that madlite is started in"
        yield Finding(message=f"script {script} is outside of the folder that a container sees", hint=hint, fatal=True)


def _module(plan: RunPlan, name: str) -> Iterator[Finding]:
    """Yield that a module is not where Python looks first; one that is installed only the run's Python knows."""
    root = plan.workspace / str(plan.settings["cwd"])
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        yield Finding(message=f"'{name}' is no module's name", hint="write it like -m package.module", fatal=True)
        return
    path = root.joinpath(*parts)
    if is_file(path.with_suffix(".py")) or is_file(path / "__main__.py"):
        return
    if is_file(root / parts[0] / "__init__.py"):
        yield Finding(
            message=f"package {parts[0]} of {root} has no module {name} that can be run",
            hint=f"it would be {path.with_suffix('.py')}",
            fatal=True,
        )
    else:
        yield Finding(message=f"module {name} is not in {root}: it has to be installed where the run happens")


def _hint(plan: RunPlan, script: str) -> str:
    """Return where the script may be: below `cwd`, which it is not looked for in."""
    cwd = str(plan.settings["cwd"])
    if cwd and is_file(plan.workspace / cwd / script):
        return f"--set script={PurePosixPath(cwd) / script}"
    return "name a file of the folder that madlite is started in: --set script=FILE"


def is_file(path: Path) -> bool:
    """Say whether a file is there, for all that may be seen."""
    try:
        return path.is_file()
    except OSError:
        return False
