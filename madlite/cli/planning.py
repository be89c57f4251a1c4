"""From a command line to plans: what `run` and `explain` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from madlite.backends.loader import Plugins
from madlite.catalog.datasets import DataSets, read_data_sets
from madlite.cli import setup
from madlite.cli.manifest import find_manifest
from madlite.errors import UsageProblem
from madlite.plan.actions import TOOLS
from madlite.plan.context import Context
from madlite.plan.context_keys import ELSEWHERE
from madlite.plan.manifest_context import context_over
from madlite.plan.options import Options
from madlite.plan.plan_file import read_plan_file
from madlite.plan.plan_secrets import known_secrets
from madlite.plan.scripts import list_tools, make_toolset
from madlite.resources import template_root
from madlite.run.from_manifest import gather_manifest
from madlite.run.from_plan import bind_plan, claimed_id, differences, planned_environ
from madlite.run.gather import Surroundings, gather
from madlite.run.reach import why_unreachable
from madlite.run.screen import Planned
from madlite.workspace.folder import new_run_id


def refuse_elsewhere(context: Context) -> None:
    """Refuse to run here, under the same name, what the context sends to other machines.

    Raises:
        UsageProblem: it asks for Slurm, Kubernetes or several nodes.
    """
    known = context.known
    sent = [key for key in ELSEWHERE if getattr(known, key)]
    target = known.deployment_config.get("target", "local")
    if target not in ("local", "docker"):
        sent.append("deployment_config")
    if str(known.distributed.get("nnodes", 1)) not in ("1", "None"):
        sent.append("distributed.nnodes")
    if sent:
        raise UsageProblem(
            f"{context.origins.get(sent[0].partition('.')[0], 'context')}: key '{sent[0]}' asks for other machines, "
            "which madlite cannot give yet",
            "leave it out to run on this machine alone",
        )


def _data_sets(options: Options, context: Context, given: dict[str, Any]) -> DataSets | None:
    named, origin = given.get("data_config") is not None, context.origins.get("data", "context")
    return read_data_sets(options.data_file, context.known.data, origin, options.mirror, given=named)


def known_secrets_here(options: Options) -> dict[str, str]:
    """Return what the secrets of plan files are read from: the environment and credential.json, by name."""
    credentials, services = setup.read_credentials(options.workspace), setup.read_services(options.workspace)
    return known_secrets(options.environ, credentials, services)


@contextmanager
def plan_of_file(
    file: Path, plugins: Plugins, options: Options, touch: bool
) -> Iterator[tuple[Planned, Options, tuple[str, ...]]]:
    """Yield the plan of a file as it runs here, the options that its run has, and what is otherwise here, in words.

    Without `touch` it is not to be run, and has its own id.

    Raises:
        MadliteError: it is no plan file, or cannot run here; nothing has been touched but its claim on an id.
    """
    saved = read_plan_file(file, known_secrets_here(options))
    environ = planned_environ(saved, options.environ)
    options = msgspec.structs.replace(options, environ=environ, command=saved.command or options.command)
    machine = setup.find_machine(Context(values=saved.context), "")
    setup.tell_problems(machine.problems)
    with claimed_id(saved, options.workspace) if touch else nullcontext(saved.plan.id) as run_id:
        one = bind_plan(saved, run_id, options, machine, plugins, setup.make_runtimes(plugins))
        told = differences(saved, one.plan, options, plugins, lambda name: setup.find_card(name, options.workspace))
        yield one, options, tuple(told)


def plan_all(
    plugins: Plugins, options: Options, given: dict[str, Any], touch: bool = False, probe: bool = False
) -> list[Planned]:
    """Return the plans of a command's tags or manifest on this machine, or the one that `--machine` describes.

    `touch` where the plans are to be run, `probe` where they are to be run later: endpoints of data are asked then.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    root = template_root(setup.home())
    manifest = find_manifest(given, options)
    context = setup.make_context(given)
    refuse_elsewhere(context)
    if manifest is not None:
        context = context_over(manifest, context, options.environ)
    machine = setup.find_machine(context, given["machine"])
    if touch:
        setup.bring_model_dir(plugins, None if manifest is not None else given["tags"], given["cards_from"])
    tags, trees = given["tags"], given["cards_from"]
    requests = () if manifest is not None else setup.select_requests(plugins, tags, options.workspace, trees)
    credentials = setup.read_credentials(options.workspace)
    around = Surroundings(
        options=options,
        context=context,
        machine=machine,
        plugins=plugins,
        runtimes=setup.make_runtimes(plugins),
        template_root=root,
        new_run_id=new_run_id,
        credentials=credentials,
        services=setup.read_services(options.workspace),
        data_sets=_data_sets(options, context, given),
        tools=make_toolset(context, options, root / TOOLS),
        tool_files=list_tools(root / TOOLS),
        reach=why_unreachable if touch or probe else lambda endpoint: "",
    )
    setup.tell_problems(around.machine.problems)
    return gather_manifest(manifest, around) if manifest is not None else gather(requests, around)
