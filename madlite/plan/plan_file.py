"""A plan file: one frozen plan as JSON, with what it was rendered to, for `madlite run --plan`.

Format: docs/plan-files.md.  A secret is `{"secret": "NAME"}`, the name of the variable that is read at the run.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import read_json, wrong_key
from madlite.model import Json, RunPlan, Secret, Value
from madlite.plan.make import RUNS
from madlite.plan.plan_secrets import refuse_spelled_out, resolver

VERSION = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SECRET = "secret"  # noqa: S105 - a key's name
_HINT = "madlite plan --tags NAME -o FILE writes one"


class PlannedFile(Value, frozen=True):
    """A file of the run folder as it was rendered or copied; `template` is where it came from, for people."""

    path: str
    template: str
    data: str
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @classmethod
    def of(cls, path: str, template: Path, data: bytes) -> PlannedFile:
        """Return a file; one that is no text is kept as base64."""
        try:
            return cls(path=path, template=str(template), data=data.decode())
        except UnicodeDecodeError:
            return cls(path=path, template=str(template), data=base64.b64encode(data).decode(), encoding="base64")

    def content(self) -> bytes:
        """Return what the file holds.

        Raises:
            ValueError: it is said to be base64, and is not.
        """
        return self.data.encode() if self.encoding == "utf-8" else base64.b64decode(self.data, validate=True)


class SavedPlan(Value, frozen=True):
    """What a plan file holds.

    `secrets` are the places of each secret by its name.  `inputs` are the files of the working folder that the run
    uses, relative to it, with their SHA-256; `image_digest` is that of the image that was here when it was planned.
    `context` has no secret; `context_left_out` are the places of those that it had.
    """

    version: int
    plan: RunPlan
    madlite: str = ""
    planned: str = ""  # when, UTC
    command: tuple[str, ...] = ()
    plugins: dict[str, str] = {}  # the version of each distribution
    pipeline: str = ""
    build_number: str = ""
    image_digest: str = ""
    secrets: dict[str, tuple[str, ...]] = {}
    inputs: dict[str, str] = {}
    context: dict[str, Json] = {}
    context_left_out: tuple[str, ...] = ()
    files: tuple[PlannedFile, ...] = ()


_HEAD = ("version", "madlite", "planned", "command")  # what people look for first


def plan_text(saved: SavedPlan, names: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Return a plan file's text; `names` are those of its secrets, by the secret text, `known` what they are read from.

    Raises:
        UsageProblem: the plan spells a secret out, or has a text, such as a path, that is no UTF-8.
    """

    def encode(value: object) -> object:
        if isinstance(value, Secret):
            return {_SECRET: names[value.reveal()]}
        return str(value)

    tree: dict[str, Any] = msgspec.to_builtins(saved, enc_hook=encode, str_keys=True)
    refuse_spelled_out(saved.plan, tree, known)
    ordered = {name: tree[name] for name in (*_HEAD, *(name for name in tree if name not in _HEAD))}
    try:
        return msgspec.json.format(msgspec.json.encode(ordered), indent=2).decode() + "\n"
    except UnicodeEncodeError:
        raise UsageProblem(f"the plan of card '{saved.plan.card.name}' has a text that is no UTF-8") from None


def read_plan_file(file: Path, known: Mapping[str, str]) -> SavedPlan:
    """Return what a plan file holds, its secrets read from what is `known` here, by name.

    Raises:
        UsageProblem: it cannot be read, is no plan file of this version, has a field of the wrong type or an unknown
            one, or needs a secret that is not known.
    """
    where = f"plan file {file}"
    tree = read_json(file, where, given=True)
    _check_version(tree, where)
    secret = resolver(known, _names(tree), where)
    try:
        for place, values in _environments(tree):
            _wrap(place, values, secret)
        saved = msgspec.convert(tree, SavedPlan, dec_hook=_decode)
        for one in saved.files:
            one.content()
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error)[1]}", _HINT) from None
    except binascii.Error:
        raise UsageProblem(f"{where}: a file of 'files' is no base64", _HINT) from None
    _check_names(tree, saved, where)
    return saved


def is_plan_file(file: Path) -> bool:
    """Say whether a path leads to a plan file, of whatever version."""
    try:
        _check_version(read_json(file), "")
    except UsageProblem as problem:
        return "newer" in problem.message
    return True


def _check_version(tree: Json, where: str) -> None:
    version = tree.get("version") if isinstance(tree, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or not isinstance(tree.get("plan"), dict):
        raise UsageProblem(f"{where} is no plan of madlite: it has no 'version' with a 'plan'", _HINT)
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        what = f"{where} is of version {version}, of {_article(age)} madlite ({tree.get('madlite') or 'unknown'})"
        raise UsageProblem(f"{what}; this one reads version {VERSION}", _HINT)


def _article(age: str) -> str:
    return f"an {age}" if age[0] in "aeiou" else f"a {age}"


def _names(tree: dict[str, Any]) -> dict[str, list[str]]:
    """Return the places of each secret that the plan names, which are true whatever `secrets` says."""
    found: dict[str, list[str]] = {}
    for place, values in _environments(tree):
        for name, value in values.items():
            if (secret := _secret_name(value)) is not None and secret:
                found.setdefault(secret, []).append(f"{place}.{name}")
    return found


def _environments(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tables of a plan whose values may be secrets, with their places; msgspec refuses what is no table."""
    plan = tree["plan"]
    image = plan.get("image") if isinstance(plan.get("image"), dict) else {}
    actions = plan.get("actions") if isinstance(plan.get("actions"), list) else []
    login = image.get("login") if isinstance(image.get("login"), dict) else {}
    tables = [("plan.env", plan.get("env")), ("plan.image.build_args", image.get("build_args"))]
    tables += [(f"plan.actions[{n}].env", one.get("env")) for n, one in enumerate(actions) if isinstance(one, dict)]
    tables += [("plan.image.login", login)] if login else []
    yield from ((place, values) for place, values in tables if isinstance(values, dict))


def _secret_name(value: Json) -> str | None:
    """Return the name of a secret's variable; None for what is none."""
    named = value.get(_SECRET) if isinstance(value, dict) and len(value) == 1 else None
    return named if isinstance(named, str) else None


def _wrap(place: str, values: dict[str, Any], secret: Callable[[str], Secret]) -> None:
    for name, value in values.items():
        named = _secret_name(value)
        if named is not None:
            values[name] = secret(named)
        elif not isinstance(value, str):
            raise msgspec.ValidationError(
                f'Expected `str` or `{{"secret": NAME}}`, got `{type(value).__name__}` - at `$.{place}.{name}`'
            )


def _decode(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):  # a secret that was found
        return value
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")  # msgspec adds the place


def _check_names(tree: dict[str, Any], saved: SavedPlan, where: str) -> None:
    """Refuse what no field has, as a misspelt one, a field that is left out, and names that lead elsewhere."""
    written = msgspec.to_builtins(saved, enc_hook=str, str_keys=True)
    for place, key, known in _only_in(tree, written, ""):
        near = did_you_mean(key, list(known), most=1)
        raise UsageProblem(f"{where}: key '{place}' is unknown", near or _HINT)
    for place, _, _ in _only_in(written, tree, ""):  # nothing is left to a default
        raise UsageProblem(f"{where}: key '{place}' is missing", _HINT)
    plan = saved.plan
    if not _ID.fullmatch(plan.id):
        raise UsageProblem(f"{where}: key 'plan.id' is wrong: {plan.id!r} is no name of a run", _HINT)
    if plan.folder != plan.workspace / RUNS / plan.id:
        what = f"{plan.folder} is not {plan.workspace / RUNS / plan.id}"
        raise UsageProblem(f"{where}: key 'plan.folder' is wrong: {what}", _HINT)


def _only_in(one: Json, other: Json, place: str) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Yield the keys that one JSON value has and the other has not: their place, themselves, and those of the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key, value in one.items():
            below = f"{place}.{key}" if place else key
            if key in other:
                yield from _only_in(value, other[key], below)
            else:
                yield below, key, other
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        for n, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from _only_in(mine, theirs, f"{place}[{n}]")
