"""Settings that reach no framework: what somebody requested, and the run would do without."""

from __future__ import annotations

from collections.abc import Iterator

from madlite import Finding, RunPlan
from madlite_plugins.primus.precision import is_shell_words
from madlite_plugins.primus.release_checks import Config
from madlite_plugins.primus.rules import FRAMEWORKS
from madlite_plugins.primus.tree import TREE

_SIZES = ("seq_len", "micro_batch", "global_batch", "steps")
_OF_ALL = {"log_freq", "lr_warmup_steps", "tokenizer", "tp", "pp", "cp", "ep"}
PASSED = {
    "torchtitan": _OF_ALL | {"mock_data", "compile", "activation_checkpoint", "old_options", "dp_replicate", "reshard"},
    "megatron": _OF_ALL
    | {"mock_data", "recompute_layers", "turbo_attention", "overlap"}
    | {"distributed_optimizer", "stderr_sink_level"},
    "megatron_bridge": _OF_ALL | {"recompute_layers"},
}
"""Of each framework the settings that templates/primus/options.sh.j2 hands on where somebody changed them."""
OPTIONS = {
    **dict.fromkeys(("training.steps", "train_iters"), "steps"),
    **dict.fromkeys(("training.seq_len", "seq_length"), "seq_len"),
    **dict.fromkeys(("training.local_batch_size", "training.batch_size", "micro_batch_size"), "micro_batch"),
    **dict.fromkeys(("training.global_batch_size", "global_batch_size"), "global_batch"),
    **dict.fromkeys(("training.mixed_precision_param", "bf16", "fp16", "fp4", "fp8_format"), "precision"),
    **dict.fromkeys(("parallelism.tensor_parallel_degree", "tensor_model_parallel_size"), "tp"),
    **dict.fromkeys(("parallelism.pipeline_parallel_degree", "pipeline_model_parallel_size"), "pp"),
    **dict.fromkeys(("parallelism.context_parallel_degree", "context_parallel_size"), "cp"),
    **dict.fromkeys(("parallelism.expert_parallel_degree", "expert_model_parallel_size"), "ep"),
    "parallelism.data_parallel_replicate_degree": "dp_replicate",
    "config": "config",
}
"""Options of the frameworks of PASSED that args may not set; `--fp8` may stand there, and decides the precision."""
_ALL = frozenset[str]().union(*PASSED.values())


def passed_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield what was set and is not passed on."""
    framework = str(plan.settings["framework"])
    lost = [key for key in sorted(_ALL - PASSED.get(framework, set())) if _is_lost(plan, key)]
    if framework not in PASSED:
        lost += [key for key in _SIZES if is_changed(plan, f"variant.{key}")]
    for key in lost:
        yield Finding(
            message=f"{key} does not reach framework '{framework}': the run would be without it",
            hint="leave it out, or give the framework's own option as args or flags",
            fatal=True,
            keys=(key, "framework"),
        )
    yield from _framework(plan, framework)
    for key in ("flags", "exports"):
        if not is_shell_words(str(plan.settings[key])):
            yield Finding(message=f"{key} has a quote that does not end: {plan.settings[key]}", fatal=True, keys=(key,))


def is_changed(plan: RunPlan, key: str) -> bool:
    """Return whether somebody set a value, rather than a recipe or the file that a tree's card is made of."""
    origin = plan.origins.get(key, "recipe")
    return not origin.startswith("recipe") and not (origin == "card" and plan.settings["recipe"] == TREE)


def _is_lost(plan: RunPlan, key: str) -> bool:
    off = key == "mock_data" and str(plan.settings[key]).lower() != "true"  # there is none to leave out
    return is_changed(plan, f"settings.{key}") and not off


def _framework(plan: RunPlan, framework: str) -> Iterator[Finding]:
    """Check that the config file is one of the framework whose options it gets."""
    config = Config(str(plan.settings["config"]))
    changed = is_changed(plan, "settings.framework") or is_changed(plan, "settings.config")
    if changed and config.launcher in FRAMEWORKS and config.launcher != framework:
        yield Finding(
            message=f"{config.path} is a file of {config.launcher}, whose options are not those of '{framework}'",
            hint=f"--set framework={config.launcher}",
            fatal=True,
            keys=("config", "framework"),
        )
