"""The context: what `--additional-context` and its file say, checked and merged.

Keys and types: madengine's (docs/context.md).  Unknown keys pass, as they do there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import UNUSABLE, NotJson, decode_json, read_text, texts, wrong_key
from madlite.model import Json, Scalar, Value
from madlite.plan.context_keys import ELSEWHERE, NOT_YET, OF_PLAN, Known
from madlite.plan.values import PLAN_KEYS, VARIABLE, VARIANT_KEYS

FROM_FILE = "context file"
FROM_OPTION = "--additional-context"
MACHINE_KEYS = ("gpu_arch", "gpu_product", "device", "rocm_version", "cuda_version", "MAD_ROCM_PATH", "numa_balancing")
_COUNTS = {"NNODES": 1, "MAD_RUNTIME_NGPUS": 1, "MASTER_PORT": 0}  # whole numbers of multi_node_args, each's least
_UPPER = ("gpu_vendor", "guest_os")  # as Dockerfiles spell them
GPU_COUNTS = ("gpus_per_node", "gpu_count", "n_gpus", "num_gpus", "ngpus")


class Context(Value, frozen=True):
    """The merged context; `origins` says for each top-level key whether file or option gave it."""

    known: Known = Known()
    values: dict[str, Json] = {}
    file: str = ""
    file_settings: dict[str, Scalar] = {}
    option_settings: dict[str, Scalar] = {}
    origins: dict[str, str] = {}

    @property
    def n_gpus(self) -> int | None:
        """The GPU count asked for, by the first alias present."""
        return next((n for name in GPU_COUNTS if (n := getattr(self.known, name)) is not None), None)


def read_context(file: Path | None, option: str, named: Mapping[str, tuple[str, Json]] | None = None) -> Context:
    """Return the context of a file overlaid, level by level, by the option's text.

    `named` are keys that have an option of their own, with the option's name; they come last.

    Raises:
        UsageProblem: one of them cannot be read, is no table, or has a key of the wrong type. The message shows none
            of its text, which may be secret.
    """
    try:
        return _read_context(file, option, named or {})
    except RecursionError:
        raise UsageProblem("the context is nested too deeply to be read") from None


def _read_context(file: Path | None, option: str, named: Mapping[str, tuple[str, Json]]) -> Context:
    from_file = _parse(read_text(file, f"{FROM_FILE} {file}", given=True), f"{FROM_FILE} {file}") if file else {}
    from_option = _parse(option, FROM_OPTION) if option.strip() else {}
    merged = {**merge(from_file, from_option), **{key: value for key, (_, value) in named.items()}}
    values = {key: _in_capitals(value) if key in _UPPER else value for key, value in merged.items()}
    origins = {
        **dict.fromkeys(from_file, f"{FROM_FILE} {file}"),
        **dict.fromkeys(from_option, FROM_OPTION),
        **{key: by for key, (by, _) in named.items()},
    }
    _check_texts(values, origins)
    known = _known(values, file)
    _check_names("docker_env_vars", known.docker_env_vars, origins)
    _check_names("docker_build_arg", known.docker_build_arg, origins)
    _check_counts(known, origins)
    return Context(
        known=known,
        values=values,
        file=str(file or ""),
        file_settings=_settings(_known(from_file, file)),
        option_settings=_settings(_known(from_option, None)),
        origins=origins,
    )


def without_effect(context: Context) -> list[str]:
    """Return a sentence for each key that nothing here acts on; a misspelt one gets a suggestion."""
    known = [*Known.__struct_fields__, *MACHINE_KEYS]
    told = []
    for key in context.values:
        if key in ELSEWHERE:
            continue
        if key in NOT_YET:
            told.append(f"context key '{key}' has no effect yet")
        elif key == "distributed" and set(context.known.distributed) - {"launcher", "nnodes"}:
            told.append("context key 'distributed' has no effect yet beyond its launcher")
        elif key not in known:
            setting = key in VARIANT_KEYS or key in PLAN_KEYS
            meant = f"did you mean settings.{key}?" if setting else did_you_mean(key, known, most=1)
            told.append(f"context key '{key}' has no effect" + (f"; {meant}" if meant else ""))
    return told


def merge(under: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """Return `under` overlaid by `over`; tables are merged level by level, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _parse(text: str, where: str) -> dict[str, Json]:
    """Read JSON, else a Python literal, as madengine does."""
    try:
        value = decode_json(text.encode(errors="surrogatepass"))
    except NotJson as not_json:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError):
            raise UsageProblem(
                f"{where} is neither JSON nor a Python literal ({not_json})",
                """write it like {"docker_env_vars": {"NAME": "value"}}""",
            ) from None
    if not isinstance(value, dict):
        raise UsageProblem(f"{where} must be a table, found {type(value).__name__}")
    if not all(isinstance(key, str) for key in value):
        raise UsageProblem(f"{where} must be a table with text keys")
    return value


def _known(values: Mapping[str, Json], file: Path | None) -> Known:
    try:
        return msgspec.convert(values, Known)
    except msgspec.ValidationError as error:
        key, words = wrong_key(error)
        where = f"{FROM_FILE} {file}" if file and key.split(".")[0].split("[")[0] in values else FROM_OPTION
        raise UsageProblem(f"{where}: {words}") from None


def _settings(known: Known) -> dict[str, Scalar]:
    """Return the values of a plan that one source gives, at its top or below `settings`, which is more exact."""
    top = {name: value for name in OF_PLAN if (value := getattr(known, name)) is not None}
    return {**top, **known.settings}


def _in_capitals(value: Json) -> Json:
    return value.strip().upper() if isinstance(value, str) else value


def _check_names(key: str, variables: Iterable[str], origins: Mapping[str, str]) -> None:
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise UsageProblem(f"{origins[key]}: {key} has {name!r}, which is no name of a variable")


def _check_texts(values: Mapping[str, Json], origins: Mapping[str, str]) -> None:
    """Refuse what neither a file nor a process can be given; Python literals can spell all of it."""
    for key, value in values.items():
        for place, text in (("a key", key), *texts(value, key)):
            if UNUSABLE.search(text):
                what = f"{ascii(place)[1:-1]} holds a NUL or half a character, which nothing can be given"
                raise UsageProblem(f"{origins[key]}: {what}")


def _check_counts(known: Known, origins: Mapping[str, str]) -> None:
    """Refuse a number that is none where a launcher needs one."""
    for name, least in _COUNTS.items():
        value = str((known.multi_node_args or {}).get(name, least))
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) < least:
            where = f"{origins['multi_node_args']}: multi_node_args.{name}"
            raise UsageProblem(f"{where} {value!r} is no whole number of at least {least}")
