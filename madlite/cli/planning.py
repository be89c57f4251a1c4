"""From a command line to plans: what `run` and `explain` share."""

from __future__ import annotations

from typing import Any

from madlite.cli import setup
from madlite.engine.gather import Surroundings, gather
from madlite.engine.screen import Planned
from madlite.plan.options import Options
from madlite.plugins import Plugins
from madlite.resources import template_root
from madlite.run.folder import new_run_id


def plan_all(plugins: Plugins, options: Options, given: dict[str, Any]) -> list[Planned]:
    """Return the plans of a command's tags on this machine, or the one that `--machine` describes.

    Raises:
        MadliteError: something cannot be used; nothing has been touched.
    """
    requests = setup.select_requests(plugins, given["tags"], options.workspace)
    context = setup.make_context(given)
    around = Surroundings(
        options=options,
        context=context,
        machine=setup.find_machine(context, given["machine"]),
        plugins=plugins,
        runtimes=setup.make_runtimes(plugins),
        template_root=template_root(setup.home()),
        new_run_id=new_run_id,
        credentials=setup.read_credentials(options.workspace),
    )
    setup.tell_problems(around.machine.problems)
    return gather(requests, around)
