"""A Primus config file → the values of a recipe: what the file itself says of a run.

Format (Primus v25.9 to v26.6): `modules.pre_trainer` or `modules.post_trainer` with `framework`, `model` and
`overrides`; `${VAR:default}` stands for a variable of the environment.  `config` and `model` name presets below
`primus/configs/modules/<framework>` and `primus/configs/models/<framework>`, which the overrides go over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from madlite_plugins.primus.config_files import read_config

_SUITES = {"pre_trainer": "pretrain", "post_trainer": "posttrain"}
_VARIABLE = re.compile(r"\$\{[^:{}]+:([^}]*)\}")
_LOWEST_FIRST = ("mxfp4", "mxfp8", "fp8", "bf16", "fp16")

# key of the recipe → where each framework has it in its overrides
_MEGATRON = {
    "micro_batch": ("micro_batch_size",),
    "global_batch": ("global_batch_size",),
    "seq_len": ("seq_length",),
    "steps": ("train_iters",),
    "tp": ("tensor_model_parallel_size",),
    "pp": ("pipeline_model_parallel_size",),
    "ep": ("expert_model_parallel_size",),
    "cp": ("context_parallel_size",),
}
_TORCHTITAN = {
    "micro_batch": ("training.local_batch_size", "training.batch_size"),  # the latter in v25.9
    "global_batch": ("training.global_batch_size",),
    "seq_len": ("training.seq_len",),
    "steps": ("training.steps",),
    "tp": ("parallelism.tensor_parallel_degree",),
    "pp": ("parallelism.pipeline_parallel_degree",),
    "ep": ("parallelism.expert_parallel_degree",),
    "cp": ("parallelism.context_parallel_degree",),
}
_SIZES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "megatron": _MEGATRON,
    "megatron_bridge": _MEGATRON,
    "torchtitan": _TORCHTITAN,
}


# where the presets have them too, with the overrides above them
_MOCK_DATA = ("mock_data", "training.mock_data")
_TOKENIZERS = ("tokenizer_model", "hf_path", "model.hf_assets_path", "model.tokenizer_path")


class Presets:
    """The presets of one tree, each read once; of one that is not there or cannot be read nothing is known."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._read: dict[PurePosixPath, Mapping[str, Any]] = {}

    def find(self, kind: str, framework: str, name: str) -> Mapping[str, Any]:
        """Return a preset; `kind` is modules or models."""
        path = PurePosixPath("primus/configs", kind, framework, name)
        if not framework or not name or ".." in path.parts or path.is_absolute():
            return {}
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def _load(self, path: PurePosixPath) -> Mapping[str, Any]:
        try:
            return read_config(self.tree / path, self.tree)
        except ValueError:
            return {}


def read_values(file: Path, presets: Presets) -> dict[str, str | int]:
    """Return framework, suite, mode, model, precision and sizes, as far as the file says them.

    And mock_data (as text, true or false) and tokenizer, as far as the file or its presets do.

    Raises:
        ValueError: it cannot be read or is no YAML mapping; the text states which.
    """
    modules = _table(read_config(file, presets.tree).get("modules"))
    name, module = next(((name, _table(modules[name])) for name in _SUITES if modules.get(name)), ("", {}))
    overrides = _table(module.get("overrides"))
    framework = _text(module.get("framework"))
    texts = {
        "framework": framework,
        "suite": _SUITES.get(name, ""),
        "mode": _mode(name, overrides),
        "model": PurePosixPath(_text(module.get("model"))).name.removesuffix(".yaml"),
        "precision": _precision(overrides),
        **_inputs(framework, module, overrides, presets),
    }
    sizes = _sizes(_SIZES.get(framework, {}), overrides)
    return {**{key: text for key, text in texts.items() if text}, **dict(sizes)}


def _inputs(
    framework: str, module: Mapping[str, Any], overrides: Mapping[str, Any], presets: Presets
) -> dict[str, str]:
    """Return what data and which tokenizer a run takes, of the frameworks whose presets are known."""
    if framework not in _SIZES:
        return {}
    trainer = presets.find("modules", framework, _text(module.get("config")))
    model = presets.find("models", framework, _text(module.get("model")))
    mock = next((found for table in (overrides, trainer) for found in _found(table, _MOCK_DATA)), None)
    tokenizers = (_text(found) for table in (overrides, model) for found in _found(table, _TOKENIZERS))
    known = {"tokenizer": next(filter(None, tokenizers), "")}
    if isinstance(mock, bool) and framework != "megatron_bridge":  # which knows none
        known["mock_data"] = str(mock).lower()
    return known


def _found(table: Mapping[str, Any], paths: tuple[str, ...]) -> Iterator[Any]:
    return (found for path in paths if (found := _at(table, path)) is not None)


def _mode(module: str, overrides: Mapping[str, Any]) -> str:
    """Return the suite, and of a post-training also whether it trains LoRA or all weights."""
    suite = _SUITES.get(module, "")
    if suite != "posttrain":
        return suite
    return f"{suite}/{'lora' if _text(overrides.get('peft')).lower() == 'lora' else 'sft'}"


def _precision(overrides: Mapping[str, Any]) -> str:
    """Return the precision in lower case, nothing where it is left to the presets.

    Megatron-Bridge's names have both where the matrix products alone are in the lower one: bf16_with_fp8_….
    """
    names = f"{_text(overrides.get('precision_config')).lower()} {'fp8' if overrides.get('fp8') else ''}"
    return next((word for word in _LOWEST_FIRST if word in names), "")


def _sizes(places: Mapping[str, tuple[str, ...]], overrides: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, paths in places.items():
        found = (_as_int(_at(overrides, path)) for path in paths)
        if (size := next((number for number in found if number is not None), None)) is not None:
            yield key, size


def _at(table: Mapping[str, Any], path: str) -> Any:
    *tables, last = path.split(".")
    for key in tables:
        table = _table(table.get(key))
    return table.get(last)


def _as_int(value: Any) -> int | None:
    """Return a size; none is a placeholder without a default, or -1, by which frameworks mean that they choose."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,17}", text) else None


def _text(value: Any) -> str:
    """Return a text with each `${VAR:default}` replaced by its default; nothing where a variable has none."""
    text = _VARIABLE.sub(r"\1", value).strip() if isinstance(value, str) else ""
    return "" if "${" in text else text


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
