"""A record → the command that reproduces its run: pinned values, and notes on what cannot be pinned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from madlite import __version__
from madlite.files import digest_of
from madlite.model import Scalar, Value
from madlite.plan.fields import PLAN_KEYS, canonical_key
from madlite.plan.inputs import RUNS
from madlite.secrets import MASK
from madlite.store.folder import CONTEXT
from madlite.store.record import Record
from madlite.text import scalar_text

_BUILT = "ci-"  # what the names of images begin with that are built from a card's Dockerfile
_MASK = MASK.decode()
_LONGEST = 500  # characters of a variable that a record keeps
# variables of a run as its context names them, and its command where their value is masked
_VARIABLE = re.compile(r"docker_env_vars\.(?P<name>\w+)")
_SET = re.compile(r"env\.(?P<name>\w+)=" + re.escape(_MASK))
_CHOSEN_BY = ("variant.mode", "variant.precision", "variant.seq_len", "variant.release")


class Reproduction(Value, frozen=True):
    """The arguments of the command without the program's name, and notes on it.

    No record has secrets.  `available` are those variables of the run that the environment has under the same name,
    `missing` the places of all others.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class CommandOptions(Value, frozen=True):
    """The options of the run's own command line that are repeated: arguments, and the pairs of its --set."""

    words: tuple[str, ...] = ()
    sets: tuple[tuple[str, str], ...] = ()


def reproduce(record: Record, options: CommandOptions, environ: Mapping[str, str], folder: Path) -> Reproduction:
    """Return the pinned command of a run, to be called in its working folder; `folder` is the run's."""
    pins = dict(_pins(record))
    sets = {**pins, **{key: value for key, value in _own_sets(record, options) if key not in pins}}
    words = [
        *("--tags", _tag(record)),
        *_option("--backend", record.backend),
        *_option("--runtime", record.runtime),
        *_option("--image", record.image.pinned or record.image.id),
        *_timeout(record),
        *(word for key, value in sets.items() for word in ("--set", f"{key}={value}")),
        *_context(record, folder),
        *options.words,
    ]
    secret = _secrets(record, words)
    notes = (
        *_image_notes(record),
        *_source_notes(record),
        *_script_notes(record, folder.parent.parent),
        *_secret_notes(record, words),
    )
    return Reproduction(
        words=("run", *words),
        notes=(*notes, *_environment_notes(record, environ)),
        available=tuple(dict.fromkeys(name for _, name in secret if name in environ)),
        missing=tuple(place for place, name in secret if name not in environ),
    )


def _tag(record: Record) -> str:
    """Return the card by its name; the args of its own script with what the tag added to them."""
    if record.rendered:
        return record.card
    parts = (name if value is None else f"{name}={value}" for name, value in record.overrides)
    return ":".join((record.card, *parts))


def dotted_values(record: Record) -> dict[str, Scalar | None]:
    """Return the values of a run's variant and settings by their dotted names."""
    variant = record.variant
    values = {f"variant.{name}": getattr(variant, name) for name in variant.__struct_fields__} if variant else {}
    return {**values, **{f"settings.{name}": value for name, value in record.settings.items()}}


def _pins(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what a rendered run was made with: what its recipe was chosen by, and what was given beside it.

    Other values of the recipe are the same in the same madlite, and backends pass only requested values to a trainer;
    of another version's recipe all are given.
    """
    if not record.rendered:
        return
    for key, value in dotted_values(record).items():
        name = key.partition(".")[2]
        given = not record.origins.get(key, "").startswith(("recipe", "backend"))
        old = value not in (None, "") and record.madlite != __version__ and name != "model"
        chosen = value not in (None, "") and key in _CHOSEN_BY
        if value is not None and name != "recipe" and (given or old or chosen):
            yield name, scalar_text(value)


def _own_sets(record: Record, options: CommandOptions) -> Iterator[tuple[str, str]]:
    """Yield further values that the command or the tag set: environment, and plan keys that have no option."""
    tagged = ((name, "true" if value is None else value) for name, value in record.overrides if record.rendered)
    varied = record.study.varied.items() if record.study is not None else ()
    for given, value in (*tagged, *options.sets, *((key, scalar_text(value)) for key, value in varied)):
        key = canonical_key(given)
        if key.startswith("env.") or (key in PLAN_KEYS and key not in ("image", "timeout_s", "args")):
            yield key, value


def _option(name: str, value: str) -> tuple[str, ...]:
    return (name, value) if value else ()


def _timeout(record: Record) -> tuple[str, ...]:
    limit_s = record.timeout_s or 0
    return ("--timeout", f"{limit_s:.0f}") if limit_s == int(limit_s) else ("--set", f"timeout_s={limit_s!r}")


def _context(record: Record, folder: Path) -> Iterator[str]:
    """Yield the context that the run's folder keeps, and the args that its script was called with, or rendered with."""
    if (folder / CONTEXT).is_file():
        yield from ("--additional-context-file", f"{RUNS}/{folder.name}/{CONTEXT}")
    origin = record.origins.get("args", "")
    if record.rendered and (origin == "--set" or (record.args and origin == "card, tag")):  # and so the row has them
        yield from ("--set", f"args={record.args}")
    elif record.args:
        yield from ("--additional-context", json.dumps({"model_args": record.args}))


def _image_notes(record: Record) -> Iterator[str]:
    image = record.image
    if not record.containerised:
        yield "it ran on the host: nothing pins its packages; madlite show lists those that were known"
    elif not image.id:
        yield f"no image is pinned: {'the run came to none' if not image.ref else image.ref + ' has no known digest'}"
    elif not image.pinned:
        yield f"image {image.ref} is in no registry: its id {image.id} is known to {record.hostname}'s engine alone"
        if image.ref.startswith(_BUILT):
            base = f"on base {image.base_digest}" if image.base_digest else "on a base of unknown digest"
            yield f"elsewhere leave --image out: it is built from its Dockerfile again, {base}"


def _source_notes(record: Record) -> Iterator[str]:
    if record.url:
        yield f"{record.url} was at commit {record.git_commit or 'that is not known'}; a run takes its newest"
    if record.madlite and record.madlite != __version__:
        yield f"it ran with madlite {record.madlite}, this is {__version__}"


def _script_notes(record: Record, workspace: Path) -> Iterator[str]:
    """Yield a note where a card's own script has changed, or one that a rendered script starts."""
    for name, before in record.provenance.files.items():
        yield from _changed(name, before, workspace)
    script, then = record.provenance.script, record.provenance.script_sha256
    if not script or record.rendered or record.url:
        return
    yield from _changed(script, then, workspace)


def _changed(script: str, then: str, workspace: Path) -> Iterator[str]:
    now = digest_of(workspace / script)
    if now != then:
        yield f"{script} {'has changed since' if now else 'is not there any more'}: another script would run"


def _secrets(record: Record, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the places of secrets, each with the variable of the run that it is, "" where it is none."""
    left_out = [(place, _VARIABLE.fullmatch(place)) for place in record.context_left_out]
    masked = [(word, _SET.fullmatch(word)) for word in words if _MASK in word]
    return [(place, found["name"] if found else "") for place, found in (*left_out, *masked)]


def _secret_notes(record: Record, words: Sequence[str]) -> Iterator[str]:
    for place in record.context_left_out:
        yield f"left out of the context, for it is secret: {place}"
    for word in words:
        if _MASK in word:
            yield f"a secret stands where {_MASK} is: {word}"


def _environment_notes(record: Record, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables of the caller's environment that can change the speed and differ now."""
    for name, value in sorted(record.provenance.environment.items()):
        now = environ.get(name)
        # on the host all came from the caller that the plan does not set
        origin = record.origins.get(f"env.{name}", "" if record.containerised else "environment")
        if _MASK not in value and origin == "environment" and (now is None or now[:_LONGEST] != value):
            yield f"environment: {name} was {value!r}, and is {'not set' if now is None else repr(now)} now"
