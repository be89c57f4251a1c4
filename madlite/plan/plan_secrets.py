"""Secrets of a plan as a plan file has them: each by the name of the variable that is read at the run.

A secret of the environment has its variable's name, one of credential.json the name `<TABLE>_<KEY>` that MAD's scripts
know it by.  Any other, as one that the context spells out, is to be in the environment under the name that it has in
the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import EnvValue, Json, RunPlan, Secret, Value
from madlite.plan.manifest_secrets import hidden
from madlite.secrets import Redactor, assigned, is_secret_name

_OWN = "MADLITE_SECRET_"  # before a name under which the environment has something else
_ACCOUNT = ("_USERNAME", "_USER")  # which is a secret where a service's access key is its user's name
_LONG = 8  # characters of a secret that stands in another text for no other reason


class NamedSecret(Value, frozen=True):
    """A secret of a plan: the dotted place where it stands, and the name that it has there."""

    place: str
    name: str
    secret: Secret


def known_secrets(
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
    image = plan.image
    parts: list[tuple[str, Mapping[str, EnvValue]]] = [("env", plan.env)]
    parts += [("image.build_args", image.build_args)] if image is not None else []
    parts += [(f"actions[{n}].env", action.env) for n, action in enumerate(plan.actions)]
    for where, values in parts:
        for name, value in values.items():
            if isinstance(value, Secret):
                yield NamedSecret(place=f"{where}.{name}", name=name, secret=value)
    if image is not None and image.login is not None:
        name = _variable(image.login.host, "password") if image.login.host else "MAD_DOCKERHUB_PASSWORD"
        yield NamedSecret(place="image.login.password", name=name, secret=image.login.password)


def name_secrets(plan: RunPlan, known: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each secret text of a plan; an empty one, which is none, has no name."""
    names = {"": ""}
    for one in secrets_in(plan):
        text = one.secret.reveal()
        if text not in names:
            names[text] = _name(one.name, text, known, frozenset(names.values()))
    return names


def _name(own: str, text: str, known: Mapping[str, str], taken: Iterable[str]) -> str:
    if known.get(own) == text:
        return own
    for name, value in known.items():
        if value == text and (is_secret_name(name) or name.endswith(_ACCOUNT)):
            return name
    free = own if own not in known and own not in taken else f"{_OWN}{own}"
    n = 1
    wanted = free
    while wanted in taken or wanted in known:
        n += 1
        wanted = f"{free}_{n}"
    return wanted


def resolver(known: Mapping[str, str], places: Mapping[str, Sequence[str]], where: str) -> Callable[[str], Secret]:
    """Return what finds a secret by its name, after all `places` of a plan file were found.

    Raises:
        UsageProblem: one or more are not known here.
    """
    missing = [name for name in places if name not in known]
    if missing:
        raise UsageProblem.of_all(
            (
                f"{where} needs the secret {name} ({', '.join(places[name])}), "
                "which is neither in the environment nor in credential.json",
                f"export {name}=…",
            )
            for name in missing
        )
    return lambda name: Secret(known[name] if name else "")


def refuse_spelled_out(plan: RunPlan, tree: Json, known: Mapping[str, str]) -> None:
    """Refuse a plan that spells a secret out: a plan file, whose content `tree` is, has names alone.

    Raises:
        UsageProblem: it does; the message shows none of it.
    """
    texts = [one.secret.reveal() for one in secrets_in(plan)]
    texts += [text for name, text in known.items() if is_secret_name(name)]
    long = tuple(dict.fromkeys(text for text in texts if len(text) >= _LONG))
    spelling = (place for place, text in _typed(plan) if any(map(_is_value, assigned((text,)))))
    holding = (place for place, text in _texts(tree, "") if any(one in text for one in long))
    if (place := next(spelling, None) or next(holding, None)) is not None:
        raise UsageProblem(
            f"card '{plan.card.name}': {place} spells out a secret, and a plan file has names of secrets alone",
            "give it as a variable: docker_env_vars of the context, --set env.NAME=…, or credential.json",
        )


def _is_value(spelled: str) -> bool:
    """Say whether a spelled out secret is one, and not what a shell puts in its place."""
    return not spelled.startswith("$")


def _texts(tree: Json, place: str) -> Iterator[tuple[str, str]]:
    """Yield every text of a plan file with its dotted place."""
    if isinstance(tree, str):
        yield place or "it", tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _texts(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, (list, tuple)):
        for n, value in enumerate(tree):
            yield from _texts(value, f"{place}[{n}]")


def _typed(plan: RunPlan) -> Iterator[tuple[str, str]]:
    """Yield what of a plan somebody typed and goes on as it is."""
    card = plan.card
    yield from (("args", plan.args), ("args", plan.model_args or ""), ("args", card.args), ("url", card.url))
    yield "additional_docker_run_options", f"{plan.engine_options.extra} {card.additional_docker_run_options}"
    yield from ((f"'{key}' of the tag", f"{key}={value}") for key, value in plan.overrides)
    yield from ((f"settings.{key}", f"{key}={value}") for key, value in plan.settings.items())
    if isinstance(card.recipe, dict):
        yield from ((f"recipe.{key}", f"{key}={value}") for key, value in card.recipe.items())
    yield from ((f"env.{name}", value) for name, value in plan.env.items() if isinstance(value, str))
    yield from ((f"actions[{n}].argv", word) for n, action in enumerate(plan.actions) for word in action.argv)
    if plan.image is not None:
        yield "image", f"https://{plan.image.ref}"  # what has an account before its host has it as a URL


def without_told_secrets(plan: RunPlan, known: Iterable[str]) -> RunPlan:
    """Return a plan without secrets in what only tells of it: origins, notes, and the card's fields without meaning."""
    mask = Redactor(tuple(known)).text

    def masked(values: Mapping[str, Any]) -> dict[str, Any]:
        shown = hidden(values, mask)[0]
        return dict(shown) if isinstance(shown, Mapping) else {}

    return replace(
        plan,
        card=replace(plan.card, extra=masked(plan.card.extra)),
        origins={key: mask(text) for key, text in plan.origins.items()},
        notes=tuple(map(mask, plan.notes)),
    )
