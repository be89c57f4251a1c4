"""The backend: which runs a card stands for, what they need, and where their numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from madlite import (
    Asset,
    Finding,
    Machine,
    MadMetric,
    Quantity,
    Reader,
    RecipeBackend,
    Request,
    ResultRule,
    RunPlan,
    RunSpec,
)
from madlite_plugins.megatron_lm.book import BOOK
from madlite_plugins.megatron_lm.checks import findings
from madlite_plugins.megatron_lm.data import needed
from madlite_plugins.megatron_lm.inputs import input_findings
from madlite_plugins.megatron_lm.reader import END_MARK, MegatronReader, detect
from madlite_plugins.megatron_lm.scripts import parse_variables, planned_variables, read_scripts, variables_of

# settings that are no variable of a script
_OF_ALL = (
    "recipe",
    "recipe_device",
    "script",
    "most_layers",
    "tokenizer_repo",
    "tokenizer_file",
    "megatron_root",
    "extra",
    "env_set",
    "checkpoint",
    "checkpoint_interval",
)


class MegatronLM(RecipeBackend):
    """Runs the training scripts of ROCm's fork of Megatron-LM, each as its document does."""

    name = "megatron_lm"
    book = BOOK
    template = "megatron_lm/run.sh.j2"
    files = {"fetch.py": "fetch.py"}
    launcher = "torchrun"
    planned_options = planned_variables()

    def result_rule(self) -> ResultRule:
        """Return the steady window of the iterations, and the means that MAD takes from the script's last lines."""
        return ResultRule(
            kind="steps",
            headline=Quantity.TOKENS_PER_S_PER_GPU,
            headline_metric="tokens_per_s_per_gpu",
            mad=(
                MadMetric(metric="tok_per_s_per_gpu", rule="summary", key="tokens/GPU/s"),
                MadMetric(metric="TFLOPS_per_gpu", rule="summary", key="throughput per GPU"),
            ),
            end_mark=END_MARK,
            printed_on="last",
        )

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, each with the variables of its script.

        Raises:
            UsageProblem: no recipe is named or known for what was asked.
        """
        return [_with_variables(spec, request) for spec in super().expand(request, machine)]

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what a script would refuse, ignore, or train on with a number that means nothing."""
        return (*super().check(plan), *findings(plan), *input_findings(plan))

    def assets(self, plan: RunPlan) -> Iterable[Asset]:
        """Name the tokenizer, which made-up data needs too, and data that is fetched."""
        return needed(plan)

    def detect(self, head: Sequence[str]) -> float:
        """Recognise an iteration, or what Megatron says of its ranks."""
        return detect(head)

    def reader(self, plan: RunPlan | None) -> Reader:
        """Return a fresh reader."""
        return MegatronReader(plan)


def _with_variables(spec: RunSpec, request: Request) -> RunSpec:
    """Return the RunSpec with what its script takes, and without settings that would not reach it.

    A script that is not known keeps all of them, for the user to state which it takes.
    """
    known = read_scripts().get(request.settings.get("script") or str(spec.settings["script"]))
    if known is None:
        return msgspec.structs.replace(spec, settings={**spec.settings, "variables": "", "prepare": "", "also": ""})
    variables = variables_of(known)
    read_keys = {
        *_OF_ALL,
        *(variable.key for variable in parse_variables(variables)),
        *(("dataset",) if known.prepare else ()),
    }
    settings = {key: value for key, value in spec.settings.items() if key in read_keys}
    own = {"variables": variables, "prepare": known.prepare, "also": " ".join(known.also)}
    return msgspec.structs.replace(spec, settings={**settings, **own})
