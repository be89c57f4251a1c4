"""What Primus would refuse, or train on with a number that means something else than its row says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.choices import unknown_checkpointing, unknown_choice
from madlite_plugins.primus.config_checks import config_findings
from madlite_plugins.primus.passed import passed_findings
from madlite_plugins.primus.precision import split_words
from madlite_plugins.primus.ranks import parallel_findings
from madlite_plugins.primus.rules import FRAMEWORKS
from madlite_plugins.schedule import schedule_findings

STARTERS = ("run_pretrain.sh", "primus-cli")
SUITES = ("pretrain", "posttrain")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.ASCII)
_DATA = ("", "true", "false")


def findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with a plan of this backend."""
    if plan.variant is None:
        return
    yield from _machine(plan)
    yield from _settings(plan)
    yield from passed_findings(plan)
    yield from config_findings(plan, plan.variant)
    yield from schedule_findings(plan, plan.variant)
    if plan.settings["framework"] in FRAMEWORKS:
        yield from parallel_findings(plan, plan.variant)


def _machine(plan: RunPlan) -> Iterator[Finding]:
    if plan.machine.vendor == "AMD":
        return
    yield Finding(
        message=f"Primus and its images are for AMD GPUs, this machine has {plan.machine.product}",
        hint="madlite explain TAG --machine 8xMI300X shows the plan of another machine",
        fatal=plan.traits.containerised,
        keys=(),
    )


def _settings(plan: RunPlan) -> Iterator[Finding]:
    settings = plan.settings
    known = {"suite": SUITES, "starter": ("", *STARTERS)}
    for name, words in known.items():
        yield from unknown_choice(name, settings[name], words)
    if settings["activation_checkpoint"] != "":
        yield from unknown_checkpointing(str(settings["activation_checkpoint"]))
    if settings["suite"] == "posttrain" and settings["starter"] == STARTERS[0]:
        yield Finding(
            message=f"{STARTERS[0]} supports pretraining alone",
            hint="--set starter=primus-cli",
            fatal=True,
            keys=("starter", "mode"),
        )
    if str(settings["mock_data"]).lower() not in _DATA:  # a text in a tree's card
        yield Finding(
            message=f"mock_data is '{settings['mock_data']}'", hint="--mock-data", fatal=True, keys=("mock_data",)
        )
    for word in split_words(str(settings["exports"])):
        if not _VARIABLE.fullmatch(word):
            yield Finding(message=f"exports has '{word}', which is no NAME=VALUE", fatal=True, keys=("exports",))
    if settings["framework"] not in FRAMEWORKS:
        yield Finding(
            message=f"no option of framework '{settings['framework']}' is known: sizes are those of the config file",
            hint="give others as args",
        )
