"""The script of a job for sbatch: short, commented, of options that Slurm and SPUR share.

What SPUR lacks is not used (`--signal`, `--requeue` in its negative form, hetjobs); an unknown `#SBATCH` line is an
error there.  The cluster file's `directives` are added as they are.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.images.image import IMAGES_VARIABLE
from madlite.plan.cluster import SBATCH_NAMES, Cluster
from madlite.plan.inputs import expand_hosts
from madlite.plan.plan_file import render_text
from madlite.plan.submission import ENVIRONMENT, HEALTH, OUTPUT, PLANS, JobScript, ScriptInputs, folder_of
from madlite.platforms.slurm.containers import OPTIONS_VARIABLE, VARIABLE

TEMPLATE, _CHECK = "cluster/slurm.sh.j2", "cluster/check.sh.j2"
_CHECK_TIME = "10"  # minutes
_GPU_COUNT = re.compile(r"\b(gpu(?::[^:,]+)?):\d+")  # in a resource: gpu:8, gpu:mi300x:8


# directives that a step does not have, or that take its output from who waits for it (sbatch(1), srun(1))
_OF_SBATCH = re.compile(
    r"--(output|error|input|(no-)?requeue|array|wait|wrap|test-only|export-file|get-user-env)\b|-[oeiaW]"
)


def slurm_script(cluster: Cluster, inputs: ScriptInputs, exclude: Sequence[str] = ()) -> str:
    """Return the script of a job, which gets none of the nodes `exclude`.

    Raises:
        UsageProblem: a path cannot stand in a directive, or the template has a mistake.
    """
    submission, script = inputs.submission, inputs.script
    folder, retry = folder_of(inputs.workspace, submission.id), submission.retry
    output = folder / OUTPUT / (f"{script.number}-%a.out" if script.count > 1 else f"{script.number}.out")
    options = [*_options(cluster, script, output, exclude, submission.at_most)]
    cards = list(dict.fromkeys(run.card for run in script.of(submission.runs)))
    more = f" and {len(cards) - 3} more cards" if len(cards) > 3 else ""
    runs = f"{script.count} runs" if script.count > 1 else "1 run"
    return render_text(
        TEMPLATE,
        inputs.search,
        {
            "title": f"{runs} of {', '.join(cards[:3])}{more}",
            "cluster": cluster,
            "submission": submission.id,
            "options": options,
            "workspace": str(inputs.workspace),
            "environment": str(folder / ENVIRONMENT) if inputs.secrets else "",
            "exports": [(name, value) for name, value in _exports(cluster) if value],
            "plans": str(folder / PLANS),
            "first": script.first,
            "count": script.count,
            "madlite": madlite_on(cluster),
            "nodes": script.nodes,
            "health": str(folder / HEALTH) if cluster.health else "",
            "columns": submission.columns,
            "own": submission.options,
            "retries": {"count": retry.retries, "wait_s": retry.wait_s, "oom_fallback": retry.oom_fallback},
        },
    )


def check_script(cluster: Cluster, folder: Path, nodes: int, search: Sequence[Path]) -> str:
    """Return the script of the job that checks nodes; its reports go to `folder`."""
    short = replace(cluster, slurm=replace(cluster.slurm, time=_CHECK_TIME))
    job = JobScript(number=1, name="madlite-check", first=1, count=1, nodes=nodes, gpus=cluster.gpus_per_node)
    return render_text(
        _CHECK,
        search,
        {
            "cluster": cluster,
            "options": [*_options(short, job, folder / "output", ())],
            "folder": str(folder),
            "nodes": nodes,
            "madlite": madlite_on(cluster),
        },
    )


def step_of_a_job(cluster: Cluster, exclude: Sequence[str]) -> list[str]:
    """Return the srun that starts a command on one node of a job of its own, which asks for no GPUs.

    Raises:
        UsageProblem: a directive is not what a shell takes for words.
    """
    job = JobScript(number=1, name="madlite-build", first=1, count=1, nodes=1, gpus=0)
    options = _options(replace(cluster, gpus_per_node=0), job, None, exclude)
    try:
        return ["srun", *(word for option in options if not _OF_SBATCH.match(option) for word in shlex.split(option))]
    except ValueError as error:
        raise UsageProblem(f"{cluster.source}: slurm.directives: {error}", "a quote needs another one") from None


def madlite_on(cluster: Cluster) -> str:
    """Return the command of madlite on the nodes, as words of a shell."""
    return cluster.madlite or shlex.join((sys.executable, "-m", "madlite"))


def _options(
    cluster: Cluster, script: JobScript, file: Path | None, exclude: Sequence[str], at_most: int = 0
) -> Iterator[str]:
    asked = cluster.slurm
    yield f"--job-name={script.name}"
    if script.count > 1:
        yield f"--array=1-{script.count}{f'%{at_most}' if at_most else ''}"
    yield from (f"--{name}={value}" for name in SBATCH_NAMES if (value := getattr(asked, name)))
    yield f"--nodes={script.nodes}"
    yield "--ntasks-per-node=1"
    if asked.cpus_per_task:
        yield f"--cpus-per-task={asked.cpus_per_task}"
    yield from _gpus(cluster, script)
    if asked.exclusive:
        yield "--exclusive"
    left_out = [*dict.fromkeys((*asked.exclude, *exclude))]
    if nodes := script.node or _nodelist(asked.nodelist, left_out, script.nodes):
        yield f"--nodelist={nodes}"
    if left_out:
        yield f"--exclude={','.join(left_out)}"
    if file is not None:
        yield f"--output={_output(file)}"
    yield from (text.removeprefix("#SBATCH").strip() for text in asked.directives)


def _nodelist(nodelist: Sequence[str], left_out: Sequence[str], count: int) -> str:
    """Return the nodes that a job gets in any case: sbatch takes neither more than the job has nor excluded ones."""
    excluded = {*expand_hosts(",".join(left_out))}
    names = expand_hosts(",".join(nodelist))
    wanted = [name for name in names if name not in excluded][:count]
    return ",".join(nodelist if len(wanted) == len(names) else wanted)


def _output(file: Path) -> str:
    """Return the file of a job's output as a directive has it; only the name may have `%a`, the element of an array.

    Raises:
        UsageProblem: sbatch cannot have it.
    """
    folder = str(file.parent)
    if any(char in folder for char in '\\"\n'):
        raise UsageProblem(f"{folder}: sbatch writes no output to a folder of such a name", "cd to another folder")
    text = f"{folder.replace('%', '%%')}/{file.name}"
    return f'"{text}"' if re.search(r"[\s'#]", text) else text


def _gpus(cluster: Cluster, script: JobScript) -> Iterator[str]:
    """Yield how GPUs are asked for: a whole node's where the job has the node to itself."""
    asked = cluster.slurm
    count = cluster.gpus_per_node if asked.exclusive else script.gpus
    if asked.gpus == "gres" or asked.gres:
        named = asked.gres if asked.exclusive else _GPU_COUNT.sub(rf"\1:{count}", asked.gres)
        yield f"--gres={named or f'gpu:{count}'}"
    elif asked.gpus == "gpus-per-node" and count:
        yield f"--gpus-per-node={count}"


def _exports(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield what the job's madlite is told of the cluster; a run's own variables are in its plan."""
    yield VARIABLE, cluster.container
    yield OPTIONS_VARIABLE, shlex.join(cluster.container_options)
    yield IMAGES_VARIABLE, cluster.image_folder
