"""What speaks against a card's own arguments: options of another era."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.torchtitan.eras import ERAS, unknown_options

PLANNED = {
    "job.config_file": "recipe",
    "training.steps": "steps",
    "training.seq_len": "seq_len",
    "training.batch_size": "micro_batch",
    "training.local_batch_size": "micro_batch",
    "training.global_batch_size": "global_batch",
    "training.mixed_precision_param": "precision",
    "training.dtype": "dtype",
    "model.converters": "converters",
    "model.name": "family",
    "model.flavor": "flavor",
    "parallelism.data_parallel_replicate_degree": "dp_replicate",
    "parallelism.data_parallel_shard_degree": "dp_shard",
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
}
"""Options that the plan's values are rendered as, or of another era the same; args may set none of them."""


def arg_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is wrong with the options that follow torchtitan's command line."""
    era = str(plan.settings["era"])
    if era not in ERAS:
        return
    for option in unknown_options(_names(plan.run_args), era):
        yield Finding(
            message=f"torchtitan {ERAS[era]} has no option --{option.name}",
            hint=f"--set {option.instead} is right in every era",
            fatal=True,
            keys=("args", "era"),
        )


def _names(args: str) -> tuple[str, ...]:
    """Return the options' names, each once; `-` and `_` are the same to torchtitan."""
    try:
        words = shlex.split(args)
    except ValueError:
        return ()
    names = (word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    return tuple(dict.fromkeys(names))
