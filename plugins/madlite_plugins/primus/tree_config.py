"""A Primus config file → the values of a recipe: what the file itself says of a run.

Format (Primus v25.9 to v26.6): `modules.pre_trainer` or `modules.post_trainer` with `framework`, `model` and
`overrides`; `${VAR:default}` stands for a variable of the environment; `extends` names files that this one overlays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

_SUITES = {"pre_trainer": "pretrain", "post_trainer": "posttrain"}
_VARIABLE = re.compile(r"\$\{[^:{}]+:([^}]*)\}")
_LARGEST_BYTES = 1 << 20  # a config has a few thousand
_OPENERS = re.compile(r"[\[{]|[-?][ \t]")  # what a list or table can begin with, and so lie in another
_MOST_OPENERS = 4000  # a config has some tens
_LOWEST_FIRST = ("mxfp4", "mxfp8", "fp8", "bf16", "fp16")
_MOST_FILES = 16  # that extend one another

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


def read_values(file: Path) -> dict[str, str | int]:
    """Return framework, suite, mode, model, precision and sizes, as far as the file says them.

    Raises:
        ValueError: it cannot be read or is no YAML mapping; the text says which.
    """
    modules = _table(_read(file).get("modules"))
    name, module = next(((name, _table(modules[name])) for name in _SUITES if modules.get(name)), ("", {}))
    overrides = _table(module.get("overrides"))
    framework = _text(module.get("framework"))
    texts = {
        "framework": framework,
        "suite": _SUITES.get(name, ""),
        "mode": _mode(name, overrides),
        "model": PurePosixPath(_text(module.get("model"))).name.removesuffix(".yaml"),
        "precision": _precision(overrides),
    }
    sizes = _sizes(_SIZES.get(framework, {}), overrides)
    return {**{key: text for key, text in texts.items() if text}, **dict(sizes)}


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
    said = f"{_text(overrides.get('precision_config')).lower()} {'fp8' if overrides.get('fp8') else ''}"
    return next((word for word in _LOWEST_FIRST if word in said), "")


def _sizes(places: Mapping[str, tuple[str, ...]], overrides: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, paths in places.items():
        found = (_whole(_at(overrides, path)) for path in paths)
        if (size := next((one for one in found if one is not None), None)) is not None:
            yield key, size


def _at(table: Mapping[str, Any], path: str) -> Any:
    *tables, last = path.split(".")
    for key in tables:
        table = _table(table.get(key))
    return table.get(last)


def _whole(value: Any) -> int | None:
    """Return a size; none is a placeholder without a default, or -1, by which frameworks mean that they choose."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,17}", text) else None


def _text(value: Any) -> str:
    """Return a text with each `${VAR:default}` replaced by its default; nothing where a variable has none."""
    text = _VARIABLE.sub(r"\1", value).strip() if isinstance(value, str) else ""
    return "" if "${" in text else text


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read(file: Path) -> dict[str, Any]:
    try:
        return _whole_config(file, [])
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except RecursionError:  # an alias may stand for what it is part of
        raise ValueError("it is nested too deep") from None


def _whole_config(file: Path, read: list[Path]) -> dict[str, Any]:
    """Return a file over those it extends, as far as they are there; `read` holds what was read for the first one."""
    if len(read) == _MOST_FILES:
        raise ValueError(f"it extends more than {_MOST_FILES} files, or files in a circle")
    read.append(file)
    content = _load(file)
    bases = content.pop("extends", None)
    whole: dict[str, Any] = {}
    for base in bases if isinstance(bases, list) else ():
        if isinstance(base, str) and (file.parent / base).is_file():
            whole = _over(whole, _whole_config(file.parent / base, read))
    return _over(whole, content)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    tables = (key for key in above if isinstance(below.get(key), dict) and isinstance(above[key], dict))
    return {**below, **above, **{key: _over(below[key], above[key]) for key in tables}}


def _load(file: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as quick, where libyaml is
    text = _text_of(file)
    try:
        content = yaml.load(text, loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError, TypeError) as error:  # a date that is none is a ValueError
        raise ValueError(f"it is no YAML that can be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"it must be a YAML mapping, found {type(content).__name__}")
    return content


def _text_of(file: Path) -> str:
    """Return a file's text, if it is of a config's kind: libyaml ends the process where brackets lie too deep."""
    if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
        raise ValueError("it is no plain file of the size that a config has")
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None
    if sum(1 for _ in _OPENERS.finditer(text)) > _MOST_OPENERS:
        raise ValueError("it has more lists and tables than a config")
    return text
