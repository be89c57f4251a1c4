"""Settings that are words: what none of them can be is refused when the run is planned, before a file has it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from madlite import UsageProblem

_COMPILE = r"[A-Za-z][\w-]{0,40}"
_FORMS = {  # of each setting: its form, and that as text
    "tree": ("AMDiffusionBenchmark|FluxBenchmark", "AMDiffusionBenchmark or FluxBenchmark"),
    "start": ("launcher|accelerate", "launcher or accelerate"),
    "sharding_strategy": (
        "|FULL_SHARD|HYBRID_SHARD|NO_SHARD|SHARD_GRAD_OP",
        "FULL_SHARD, HYBRID_SHARD, NO_SHARD or SHARD_GRAD_OP",
    ),
    "backward_prefetch": ("|BACKWARD_POST|BACKWARD_PRE|NO_PREFETCH", "BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH"),
    "flash_attention": ("|true|false", "true or false"),
    "environment": ("2025|2026", "2025 or 2026"),
    "resolution": (r"|[1-9][0-9]{0,4}(?:,[1-9][0-9]{0,4})?", "512, or width,height such as 960,544"),
    "gradient_checkpointing": (r"|0|1|1\.0|0?\.[0-9]{1,9}", "a part of the blocks from 0 to 1, such as 0.5"),
    "compile": (_COMPILE, "no, inductor or another backend of torch.compile"),
    "train_args": (r"\w[\w.-]*", "a file's name below config/train_args"),
    "config_name": (r"|\w[\w.-]*", "a file's name below config"),
    "dataset_revision": (r"|\w[\w./-]*", "a commit, branch or tag"),
}
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
# arguments of train.py that are settings here
_OWN = {
    "train_batch_size": "micro_batch",
    "num_iterations": "steps",
    "model": "train_args",
    "train_data_path": "dataset",
    "substitute_sdpa_with_flash_attn": "flash_attention",
    "mixed_precision": "precision",
}
_SAME = frozenset(
    [
        "model_path",
        "resolution",
        "num_frames",
        "max_train_samples",
        "seed",
        "use_cache",
        "gradient_checkpointing",
        "use_lora",
        "lora_rank",
    ]
)
PLANNED = {
    **_OWN,
    **{name: name for name in _SAME},
    **{f"train_args.{name}": _OWN.get(name, name) for name in (*_OWN, *_SAME)},
    "accelerate_config.mixed_precision": "precision",
}
"""Arguments of train.py, and of hydra, that are settings here."""
_FOLDERS = ("logging_dir", "profiling_logging_dir")


def check_settings(requested: Mapping[str, str]) -> None:
    """Look at what was requested.

    Raises:
        UsageProblem: a value is none that the benchmark takes.
    """
    for key, (form, words) in _FORMS.items():
        if key in requested and not re.fullmatch(form, requested[key], re.ASCII):
            raise UsageProblem(f"{key} cannot be '{requested[key]}'", f"--set {key}= takes {words}", keys=(key,))
    for key in ("model_path", "dataset"):
        name = requested.get(key, "")
        if name and not name.startswith("/") and not is_repository(name):
            hint = f"--set {key}=OWNER/NAME, or the whole path of a folder that the run sees"
            raise UsageProblem(f"{key} '{name}' is no repository of the hub and no whole path", hint, keys=(key,))
    try:
        _refuse_extra(shlex.split(requested.get("extra", "")))
    except ValueError as error:
        raise UsageProblem(
            f"extra is no shell words ({error}): {requested['extra']}", "--set extra='name=value'", keys=("extra",)
        ) from None


def is_repository(name: str) -> bool:
    """Return whether a name is a repository's of the hub, not a folder's."""
    return bool(_REPOSITORY.fullmatch(name))


def _refuse_extra(words: Iterable[str]) -> None:
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            what = f"extra takes arguments as name=value, without dashes or a plus, and '{word}' is not of that form"
            raise UsageProblem(what, "--set extra='learning_rate=1e-6 lr_scheduler=cosine'", keys=("extra",))
        if name in _OWN or name in _SAME:
            raise UsageProblem(f"extra sets {name}", f"--set {_OWN.get(name, name)}={value}", keys=("extra",))
        if name in _FOLDERS:
            raise UsageProblem(f"extra sets {name}, which is the run's own folder", "leave it out", keys=("extra",))
        if value.startswith("["):
            hint = "one value alone; of batch sizes --set batch_sizes=1,10 makes a run each"
            raise UsageProblem(
                f"extra has '{word}', a list, which the launcher would make a sweep of", hint, keys=("extra",)
            )
        if "${" in value:
            what = f"extra has '{word}', in which the launcher would look for a key of its configuration"
            raise UsageProblem(what, "write the value itself, without ${…}", keys=("extra",))
