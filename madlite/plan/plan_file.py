"""A plan file: one frozen plan as JSON, with its rendered files, for `madlite run --plan`.

Format: docs/plan-files.md.  A secret is `{"secret": "NAME"}`, the name of the variable that is read at the run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from madlite.errors import UsageProblem, did_you_mean
from madlite.files import exists, read_bytes, read_json, read_text, texts, wrong_key
from madlite.model import (
    PROFILED_STEPS,
    EnvValue,
    FileTemplate,
    Json,
    Machine,
    PathBelow,
    RunPlan,
    Secret,
    Value,
    json_line,
)
from madlite.plan.inputs import RUNS
from madlite.secrets import Redactor, assigned, is_secret_name, mask_json, mask_values
from madlite.text import scalar_text

if TYPE_CHECKING:
    import jinja2


# Templates → the files of the run folder.
#
# Strict (an unknown variable is an error), sandboxed (a template sees values, not the interpreter), and searched in the
# working folder's `templates/` first, then beside the plugin, then in madlite's own.


# what an expression of a template can raise besides Jinja's own errors; more would hide a bug of ours
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class Rendered(Value, frozen=True):
    """One file of the run folder."""

    path: str
    data: bytes
    template: Path


def render(plan: RunPlan, search: Sequence[Path]) -> tuple[Rendered, ...]:
    """Return every file of the plan's templates.

    Raises:
        UsageProblem: a template is missing, has a mistake or an unknown variable; the message names file and line.
    """
    if not plan.templates:
        return ()
    trained = replace(plan, variant=replace(plan.variant, steps=plan.trained_steps)) if plan.variant else plan
    return tuple(_render_one(trained, file, tuple(search)) for file in plan.templates)


def _render_one(plan: RunPlan, file: FileTemplate, search: tuple[Path, ...]) -> Rendered:
    source = _find(file.template, search)
    if source is None:
        where = ", ".join(map(str, search)) or "no folder"
        raise UsageProblem(f"template '{file.template}' of backend '{plan.backend}' is in none of {where}", keys=())
    try:
        data = read_bytes(source, f"template {source}") if file.raw else _filled(file, source, plan, search)
    except UsageProblem as problem:
        if problem.keys is None and not isinstance(problem.__cause__, _MISTAKES):
            problem.keys = ()  # a file that cannot be read, or is no template, whatever values the command set
        raise
    return Rendered(path=file.path, data=data, template=source)


def _filled(file: FileTemplate, source: Path, plan: RunPlan, search: tuple[Path, ...]) -> bytes:
    from jinja2 import TemplateError

    try:
        text = _environment(search).get_template(file.template).render(_variables(plan))
    except (TemplateError, *_MISTAKES) as error:
        raise _problem(error, source, plan) from error
    return text.encode("utf-8", "surrogateescape")


def render_text(name: str, search: Sequence[Path], variables: Mapping[str, object]) -> str:
    """Return a template that is no plan's, rendered.

    Raises:
        UsageProblem: it is missing, or has a mistake or an unknown variable.
    """
    from jinja2 import TemplateError

    try:
        return _environment(tuple(search)).get_template(name).render(variables)
    except (TemplateError, *_MISTAKES) as error:
        raise UsageProblem(f"template '{name}': {type(error).__name__}: {error}") from error


def _find(name: str, search: tuple[Path, ...]) -> Path | None:
    return next((folder / name for folder in search if exists(folder / name)), None)


@lru_cache(maxsize=8)
def _environment(search: tuple[Path, ...]) -> jinja2.Environment:
    from jinja2 import FunctionLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FunctionLoader(lambda name: _load(name, search)),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {"sh": quote_shell, "toml": write_toml, "words": shlex.split}
    return environment


def _load(name: str, search: tuple[Path, ...]) -> tuple[str, str, Callable[[], bool]] | None:
    """Return a template's text, its path, and a function that checks that it is up to date; None without one.

    The working folder's may be anybody's: a name leads nowhere else, and a pipe is not waited for.
    """
    if ".." in Path(name).parts or Path(name).is_absolute():
        return None
    if (file := _find(name, search)) is None:
        return None
    before = file.stat().st_mtime_ns
    return read_text(file, f"template {file}"), str(file), lambda: exists(file) and file.stat().st_mtime_ns == before


def quote_shell(value: object) -> str:
    """Return a value as one shell word; booleans as `true` and `false`."""
    return shlex.quote(scalar_text(value))


def write_toml(value: object) -> str:
    """Return a value as TOML 1.0 writes it (https://toml.io/en/v1.0.0): text as a basic string, lists in brackets.

    The escapes of a basic string are those of JSON; DEL has to be escaped too.
    """
    if isinstance(value, (bool, int, float)):
        return scalar_text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _variables(plan: RunPlan) -> dict[str, object]:
    try:
        args = shlex.split(plan.run_args)
    except ValueError as error:
        what = f"args of card '{plan.card.name}' are no shell words ({error}): {plan.run_args}"
        raise UsageProblem(what, keys=("args",)) from None
    return {
        "plan": _without_secrets(plan),
        "profiled": PROFILED_STEPS,
        "card": plan.card,
        "variant": plan.variant,
        "settings": plan.settings,
        "machine": plan.machine,
        "n_gpus": plan.place.gpus_per_node,
        "nproc": max(1, plan.place.gpus_per_node),
        "folder": plan.folder_inside,
        "args": plan.run_args,
        "args_list": args,
    }


def _without_secrets(plan: RunPlan) -> RunPlan:
    """Return the plan for a template, which could call `reveal` and write the secret into a file."""
    image = plan.image and replace(plan.image, build_args=mask_values(plan.image.build_args))
    return replace(plan, env=mask_values(plan.env), image=image)


def _problem(error: Exception, source: Path, plan: RunPlan) -> UsageProblem:
    """Return the error for a template's mistake: its file, its line where known, and the backend."""
    line = getattr(error, "lineno", None) or _line_of(error, source)
    where = f"{getattr(error, 'filename', None) or source}" + (f" line {line}" if line else "")
    what = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
    return UsageProblem(f"template {where} of backend '{plan.backend}': {what}")


def _line_of(error: BaseException, source: Path) -> int | None:
    """Return the template's line in a traceback, which Jinja rewrites to point there."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(source)]
    return lines[-1] if lines else None


# Compare rendered plans: runs that differ in comments alone are the same.

_COMMENT = b"#"  # in every language that run folders have but JSON, where it cannot begin a line


def run_content(plan: RunPlan, files: Iterable[Rendered]) -> tuple[object, ...]:
    """Return what a plan with its files runs: the same of two plans of one run folder that would run the same."""
    contents = [(file.path, _without_comments(file.data)) for file in files]
    return contents, plan.actions, plan.env, plan.image, plan.engine_options, plan.place


def _without_comments(data: bytes) -> list[bytes]:
    return [line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(_COMMENT)]


# Secrets of a plan as a plan file has them: each by the name of the variable that is read at the run.
#
# A secret of the environment has its variable's name, one of credential.json the name `<TABLE>_<KEY>` that MAD's
# scripts know it by.  Any other, as one that the context spells out, is to be in the environment under the name that
# it has in the plan.

_OWN = "MADLITE_SECRET_"  # before a name under which the environment has something else
_ACCOUNT = ("_USERNAME", "_USER")  # which is a secret where a service's access key is its user's name
_LONG = 8  # characters of a secret that stands in another text for no other reason


class NamedSecret(Value, frozen=True):
    """A secret of a plan: the dotted place where it stands, and the name that it has there."""

    place: str
    name: str
    secret: Secret


def secret_sources(
    environ: Mapping[str, str],
    credentials: Mapping[str, Mapping[str, str]] | None,
    services: Mapping[str, Sequence[Mapping[str, str]]],
) -> dict[str, str]:
    """Return what a plan's secrets can be read from, by name; the environment comes before credential.json.

    `services` are the tables of data's providers, the first of NAS_NODES as `NAS_NODES_PASSWORD`, the next as
    `NAS_NODES_2_PASSWORD`.
    """
    found: dict[str, str] = {}
    for table, values in (credentials or {}).items():
        found |= {_variable(table, key): text for key, text in values.items()}
    for service, tables in services.items():
        for n, values in enumerate(tables, 1):
            table = service if n == 1 else f"{service}_{n}"
            found |= {_variable(table, key): text for key, text in values.items()}
    return {**found, **{name: text for name, text in environ.items() if text}}


def _variable(table: str, key: str) -> str:
    """Return the name of a key of a table as a variable."""
    return "".join(char if char.isalnum() and char.isascii() else "_" for char in f"{table}_{key.upper()}")


def secrets_in(plan: RunPlan) -> Iterator[NamedSecret]:
    """Yield the wrapped secrets of a plan, each with its place."""
    for where, values in _environments(plan):
        for name, value in values.items():
            if isinstance(value, Secret):
                yield NamedSecret(place=f"{where}.{name}", name=name, secret=value)
    if plan.image is not None and (login := plan.image.login) is not None:
        name = _variable(login.host, "password") if login.host else "MAD_DOCKERHUB_PASSWORD"
        yield NamedSecret(place="image.login.password", name=name, secret=login.password)


def _environments(plan: RunPlan) -> Iterator[tuple[str, Mapping[str, EnvValue]]]:
    """Yield the tables of a plan whose values may be secrets, with their places."""
    yield "env", plan.env
    if plan.image is not None:
        yield "image.build_args", plan.image.build_args
    yield from ((f"actions[{n}].env", action.env) for n, action in enumerate(plan.actions))


def name_secrets(plan: RunPlan, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each secret text of a plan; an empty one, which is none, has no name."""
    names = {"": ""}
    for item in secrets_in(plan):
        text = item.secret.reveal()
        if text not in names:
            names[text] = _name(item.name, text, sources, frozenset(names.values()))
    return names


def _name(own: str, text: str, sources: Mapping[str, str], taken: Iterable[str]) -> str:
    if sources.get(own) == text:
        return own
    for name, value in sources.items():
        if value == text and (is_secret_name(name) or name.endswith(_ACCOUNT)):
            return name
    free = own if own not in sources and own not in taken else f"{_OWN}{own}"
    others = (f"{free}_{n}" for n in count(2))
    return next(wanted for wanted in chain([free], others) if wanted not in taken and wanted not in sources)


def _refuse_missing(places: Mapping[str, Sequence[str]], sources: Mapping[str, str], where: str) -> None:
    """Refuse a plan file whose secrets, with their `places` by name, are not all among the `sources`.

    Raises:
        UsageProblem: one or more are not known here.
    """
    missing = [name for name in places if name not in sources]
    if missing:
        raise UsageProblem.of_all(
            (
                f"{where} needs the secret {name} ({', '.join(places[name])}), "
                "which is neither in the environment nor in credential.json",
                f"export {name}=…",
            )
            for name in missing
        )


def refuse_plaintext_secrets(plan: RunPlan, tree: Json, sources: Mapping[str, str]) -> None:
    """Refuse a plan with a secret in plain text: a plan file, whose content is `tree`, has names alone.

    Raises:
        UsageProblem: it does; the message shows none of it.
    """
    secrets = [item.secret.reveal() for item in secrets_in(plan)]
    secrets += [text for name, text in sources.items() if is_secret_name(name)]
    long = tuple(dict.fromkeys(text for text in secrets if len(text) >= _LONG))
    spelled = (
        place
        for place, text in texts(tree["plan"], "plan")
        for key in (place.rpartition(".")[2],)
        if key != _SECRET and not place.startswith("plan.origins")  # whose texts are masked
        for word in assigned((text, f"{key}={text}"))
        if not word.startswith("$")  # a shell's variable is none
    )
    holding = (place.lstrip(".") for place, text in texts(tree, "") if any(item in text for item in long))
    if (place := next(spelled, None) or next(holding, None)) is not None:
        raise UsageProblem(
            f"card '{plan.card.name}': {place} spells out a secret, and a plan file has names of secrets alone",
            "give it as a variable: docker_env_vars of the context, --set env.NAME=…, or credential.json",
        )


def mask_descriptions(plan: RunPlan, sources: Iterable[str]) -> RunPlan:
    """Return a plan with secrets masked in descriptions: origins, notes, and the card's unknown fields."""
    mask = Redactor(tuple(sources)).text

    def masked(values: Mapping[str, Any]) -> dict[str, Any]:
        shown = mask_json(values, mask)[0]
        return dict(shown) if isinstance(shown, Mapping) else {}

    return replace(
        plan,
        card=replace(plan.card, extra=masked(plan.card.extra)),
        origins={key: mask(text) for key, text in plan.origins.items()},
        notes=tuple(map(mask, plan.notes)),
    )


VERSION = 2
_SECRET = "secret"  # noqa: S105 - a key's name
_HINT = "madlite plan --tags NAME -o FILE writes one"


class PlannedFile(Value, frozen=True):
    """A file of the run folder as it was rendered or copied; `template` is where it came from, for people."""

    path: PathBelow
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
            ValueError: its encoding is base64 and its data is not.
        """
        return self.data.encode() if self.encoding == "utf-8" else base64.b64decode(self.data, validate=True)


class SavedPlan(Value, frozen=True, kw_only=True):
    """What a plan file holds.

    `secrets` are the places of each secret by its name; of a file that was read those that its plan has.  `inputs` are
    the files of the working folder that the run uses, relative to it, with their SHA-256; `image_digest` is that of the
    image that was here when it was planned.  `context` has no secret; `context_left_out` are the places of those that
    it had.
    """

    version: int  # what people look for comes first
    madlite: str = ""
    planned: str = ""  # when, UTC
    command: tuple[str, ...] = ()
    plan: RunPlan
    plugins: dict[str, str] = {}  # the version of each distribution
    pipeline: str = ""
    build_number: str = ""
    image_digest: str = ""
    secrets: dict[str, tuple[str, ...]] = {}
    inputs: dict[PathBelow, str] = {}
    context: dict[str, Json] = {}
    context_left_out: tuple[str, ...] = ()
    files: tuple[PlannedFile, ...] = ()


def plan_text(saved: SavedPlan, names: Mapping[str, str], sources: Mapping[str, str]) -> str:
    """Return a plan file's text; `names` are those of its secrets, by the secret text, `sources` their values.

    Raises:
        UsageProblem: the plan spells a secret out, or has a text, such as a path, that is no UTF-8.
    """

    def encode(value: object) -> object:
        if isinstance(value, Secret):
            return {_SECRET: names[value.reveal()]}
        return str(value)

    tree: dict[str, Any] = msgspec.to_builtins(saved, enc_hook=encode, str_keys=True)
    refuse_plaintext_secrets(saved.plan, tree, sources)
    try:
        return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode() + "\n"
    except UnicodeEncodeError:
        raise UsageProblem(f"the plan of card '{saved.plan.card.name}' has a text that is no UTF-8") from None


def read_plan_file(file: Path, sources: Mapping[str, str]) -> SavedPlan:
    """Return what a plan file holds, its secrets read from what is `sources` here, by name.

    Raises:
        UsageProblem: it cannot be read, is no plan file of this version, has a field of the wrong type or an unknown
            one, or needs a secret that is not known.
    """
    where = f"plan file {file}"
    tree = read_json(file, where, given=True)
    _check_version(tree, where)
    named: dict[str, list[str]] = {}
    plan = {
        key: value if key == "card" else _with_secrets(value, f"plan.{key}", sources, named)
        for key, value in tree["plan"].items()
    }
    _refuse_missing(named, sources, where)
    try:
        saved = msgspec.convert({**tree, "plan": plan}, SavedPlan, dec_hook=_decode)
        _check_environments(saved.plan)
        for item in saved.files:
            item.content()
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: {wrong_key(error, tree)[1]}", _HINT) from None
    except binascii.Error:
        raise UsageProblem(f"{where}: a file of 'files' is no base64", _HINT) from None
    _check_names(tree, saved, where)
    return replace(saved, secrets={name: tuple(places) for name, places in named.items()})


def is_plan_file(file: Path) -> bool:
    """Return whether a path is a plan file, of any version."""
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
        age = "a newer" if version > VERSION else "an older"
        what = f"{where} is of version {version}, of {age} madlite ({tree.get('madlite') or 'unknown'})"
        raise UsageProblem(f"{what}; this one reads version {VERSION}", _HINT)


def _with_secrets(value: Json, place: str, sources: Mapping[str, str], named: dict[str, list[str]]) -> Json:
    """Return a value of a plan with its secrets; the places of each join those that are `named`."""
    if isinstance(value, list):
        return [_with_secrets(item, f"{place}[{n}]", sources, named) for n, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    name = value.get(_SECRET) if len(value) == 1 else None
    if not isinstance(name, str):
        return {key: _with_secrets(item, f"{place}.{key}", sources, named) for key, item in value.items()}
    if name:
        named.setdefault(name, []).append(place)
    return Secret(sources.get(name, ""))


def _check_environments(plan: RunPlan) -> None:
    for place, values in _environments(plan):
        for name, value in values.items():
            if not isinstance(value, (str, Secret)):
                what = f'Expected `str` or `{{"secret": NAME}}`, got `{type(value).__name__}`'
                raise msgspec.ValidationError(f"{what} - at `$.plan.{place}.{name}`")


def _decode(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, kind):  # a secret that was found
        return value
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")  # msgspec adds the place


def _check_names(tree: dict[str, Any], saved: SavedPlan, where: str) -> None:
    """Refuse unknown and missing keys, and a folder that is no run's."""
    written = msgspec.to_builtins(saved, enc_hook=str, str_keys=True)
    for place, key, others in _only_in(tree, written, ""):
        near = did_you_mean(key, list(others), most=1)
        raise UsageProblem(f"{where}: key '{place}' is unknown", near or _HINT)
    for place, _, _ in _only_in(written, tree, ""):  # nothing is left to a default
        raise UsageProblem(f"{where}: key '{place}' is missing", _HINT)
    plan = saved.plan
    if plan.folder != plan.workspace / RUNS / plan.id:
        what = f"{plan.folder} is not {plan.workspace / RUNS / plan.id}"
        raise UsageProblem(f"{where}: key 'plan.folder' is wrong: {what}", _HINT)


def _only_in(json: Json, other: Json, place: str) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Yield the keys that one JSON value has and the other has not: their place, themselves, and those of the other."""
    if isinstance(json, dict) and isinstance(other, dict):
        for key, value in json.items():
            below = f"{place}.{key}" if place else key
            if key in other:
                yield from _only_in(value, other[key], below)
            else:
                yield below, key, other
    elif isinstance(json, (list, tuple)) and isinstance(other, (list, tuple)):
        for n, (mine, theirs) in enumerate(zip(json, other, strict=False)):
            yield from _only_in(mine, theirs, f"{place}[{n}]")


def plan_digest(plan: RunPlan) -> str:
    """Return what is equal of two plans that run the same: a SHA-256 without id, folder, batch and the machine's facts.

    Of a run of a study its place in it counts, and not which study it is.
    """
    bare = replace(plan, batch="", notes=(), origins={}, machine=Machine())
    text = json_line(bare).decode().replace(plan.id, "RUN")
    if plan.study is not None:
        text = text.replace(plan.study.id, "STUDY")
    return hashlib.sha256(text.encode()).hexdigest()
