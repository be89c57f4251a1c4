"""The context: what `--additional-context` and its file say, checked and merged.

Keys and types: madengine's (docs/context.md).  Unknown keys pass, as they do there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from madlite.errors import UsageProblem
from madlite.types import Json, Scalar, Value

FROM_FILE = "context file"
FROM_OPTION = "--additional-context"
_GPU_COUNTS = ("gpus_per_node", "gpu_count", "n_gpus", "num_gpus", "ngpus")


class Script(Value, frozen=True):
    """A script to run before or after the model."""

    path: str
    args: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The context keys madlite acts on, with their types."""

    gpu_vendor: str | None = None
    guest_os: str | None = None
    host_os: str | None = None
    ctx_test: str | None = None
    docker_env_vars: dict[str, str | int | float | bool | None] = {}
    docker_mounts: dict[str, str] = {}
    docker_build_arg: dict[str, str | int | float | bool] = {}
    docker_gpus: str | None = None
    docker_cpus: str | None = None
    gpu_renderDs: list[int] | None = None
    model_args: str | None = None
    encapsulate_script: str | None = None
    MAD_CONTAINER_IMAGE: str | None = None
    settings: dict[str, str | int | float | bool] = {}
    gpus_per_node: int | None = None
    gpu_count: int | None = None
    n_gpus: int | None = None
    num_gpus: int | None = None
    ngpus: int | None = None


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
        return next((n for name in _GPU_COUNTS if (n := getattr(self.known, name)) is not None), None)


def read_context(file: Path | None, option: str, named: Mapping[str, tuple[str, Json]] | None = None) -> Context:
    """Return the context of a file overlaid, level by level, by the option's text.

    `named` are keys that have an option of their own, with the option's name; they come last.

    Raises:
        UsageProblem: one of them cannot be read, is no table, or has a key of the wrong type.
    """
    from_file = _parse(_read(file), f"context file {file}") if file else {}
    from_option = _parse(option, FROM_OPTION) if option.strip() else {}
    own = {key: value for key, (_, value) in (named or {}).items()}
    values = {**merge(from_file, from_option), **own}
    return Context(
        known=_known(values, file),
        values=values,
        file=str(file or ""),
        file_settings=dict(_known(from_file, file).settings),
        option_settings=dict(_known(from_option, None).settings),
        origins={
            **dict.fromkeys(from_file, f"{FROM_FILE} {file}"),
            **dict.fromkeys(from_option, FROM_OPTION),
            **{key: by for key, (by, _) in (named or {}).items()},
        },
    )


def merge(under: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """Return `under` overlaid by `over`; tables are merged level by level, everything else is replaced."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageProblem(f"context file {file} cannot be read: {reason}") from error


def _parse(text: str, where: str) -> dict[str, Json]:
    """Read JSON, else a Python literal, as madengine does."""
    try:
        value: Any = msgspec.json.decode(text.encode())
    except msgspec.DecodeError as not_json:
        try:
            value = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise UsageProblem(
                f"{where} is neither JSON nor a Python literal ({not_json}): {_short(text)}",
                """write it like {"docker_env_vars": {"NAME": "value"}}""",
            ) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageProblem(f"{where} must be a table with text keys, found {_short(text)}")
    return value


def _known(values: Mapping[str, Json], file: Path | None) -> Known:
    try:
        return msgspec.convert(values, Known)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`") or "?"
        where = f"{FROM_FILE} {file}" if file and key.split(".")[0].split("[")[0] in values else FROM_OPTION
        raise UsageProblem(f"{where}: key '{key}' is wrong: {what[:1].lower()}{what[1:]}") from None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."
