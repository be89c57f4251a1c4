"""build_manifest.json: what was built, for which cards, in which context.

Format: madengine 2's, with keys of ours that it leaves alone: `secrets_required` names what was given to the build and
is not in the file, `card` of a failed build is its card, and a card's `madlite` has what a tag added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from madlite.catalog.cards import make_card
from madlite.errors import UsageProblem
from madlite.files import read_given
from madlite.model import Card, Json, Request, Value
from madlite.secrets import MASK, SHORTEST, assigned, is_secret

NO_DOCKERFILE = "N/A (local image mode)"  # madengine 2's text for the context's MAD_CONTAINER_IMAGE
_ADDED = "madlite"


class BuiltImage(Value, frozen=True):
    """An image of a manifest and its request: a card with a tag's additions.

    `dockerfile` is the text of perf.csv's docker_file; `registry_image` the image's name in a registry.  A
    `local_image` was not built: it is found or pulled under its own name.
    """

    request: Request
    docker_image: str
    dockerfile: str = ""
    base_docker: str = ""
    docker_sha: str = ""
    build_duration_s: float | None = None
    build_command: str = ""
    log_file: str = ""
    gpu_vendor: str = ""  # AMD, NVIDIA, or any
    gpu_architecture: str = ""
    registry: str = ""
    registry_image: str = ""
    push_error: str = ""
    local_image: bool = False


class FailedBuild(Value, frozen=True):
    """An image that could not be built; a manifest of madengine's names no card, so `request` may be unknown."""

    model: str
    error: str
    architecture: str = ""
    request: Request | None = None


class Manifest(Value, frozen=True):
    """A manifest that was read; `required` are keys of the context whose values it does not hold.

    `deployment` is where madengine would run it.
    """

    file: Path
    images: tuple[BuiltImage, ...]
    failed: tuple[FailedBuild, ...] = ()
    context: dict[str, Json] = {}
    required: tuple[str, ...] = ()
    deployment: dict[str, Json] = {}


class _Image(msgspec.Struct):
    docker_image: str | None = None
    dockerfile: str | None = None
    base_docker: str | None = None
    docker_sha: str | None = None
    build_duration: float | None = None
    build_command: str | None = None
    log_file: str | None = None
    gpu_vendor: str | None = None
    gpu_architecture: str | None = None
    registry: str | None = None
    registry_image: str | None = None
    push_error: str | None = None
    local_image: bool | str | None = None


_TEXTS = (
    *("dockerfile", "base_docker", "docker_sha", "build_command", "log_file", "gpu_vendor", "gpu_architecture"),
    *("registry", "registry_image", "push_error"),
)


class _Failed(msgspec.Struct):
    model: str
    error: str = ""
    architecture: str | None = None
    card: dict[str, Json] | None = None


class _Summary(msgspec.Struct):
    failed_builds: list[_Failed] = []


class _ManifestFile(msgspec.Struct):
    built_images: dict[str, _Image]
    built_models: dict[str, dict[str, Json]]
    summary: _Summary = msgspec.field(default_factory=_Summary)
    context: dict[str, Json] = {}
    secrets_required: list[str] = []
    deployment_config: dict[str, Json] = {}


class _Added(msgspec.Struct):
    args: str
    overrides: list[tuple[str, str | None]] = []


def read_manifest(file: Path, root: Path) -> Manifest:
    """Return a manifest; its cards' paths are relative to `root`.

    Raises:
        UsageProblem: it cannot be read, is no manifest, or names nothing at all.
        CatalogError: one of its cards is none.
    """
    try:
        found = msgspec.json.decode(read_given(file), type=_ManifestFile)
    except OSError as error:
        raise UsageProblem(f"build manifest {file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        words = str(error) if isinstance(error, msgspec.MsgspecError) else "it is no JSON text"
        raise UsageProblem(f"{file} is no build manifest: {words}", "madlite build --tags NAME writes one") from None
    images = tuple(_image(key, image, found, file, root) for key, image in found.built_images.items())
    failed = tuple(_failed(one, images, file, root) for one in found.summary.failed_builds)
    if not images and not failed:
        raise UsageProblem(f"build manifest {file} names no image", "madlite build --tags NAME writes one")
    required = tuple(found.secrets_required)
    return Manifest(
        file=file,
        images=images,
        failed=failed,
        context=found.context,
        required=required,
        deployment=found.deployment_config,
    )


def _image(key: str, image: _Image, found: _ManifestFile, file: Path, root: Path) -> BuiltImage:
    if key not in found.built_models:
        raise UsageProblem(f"{file} is no build manifest: built_images has '{key}' and built_models does not")
    entry = found.built_models[key]
    _refuse_masked(entry, file)
    # madengine 2 writes how long nothing took as 0
    return BuiltImage(
        request=_request(entry, f"$.built_models[{key!r}]", file, root),
        docker_image=key if image.docker_image is None else image.docker_image,
        build_duration_s=image.build_duration or None,
        local_image=bool(image.local_image),
        **{name: getattr(image, name) or "" for name in _TEXTS},
    )


def _failed(one: _Failed, images: Iterable[BuiltImage], file: Path, root: Path) -> FailedBuild:
    """Return a build that failed; where the manifest has not its card, that of another image of the model."""
    if one.card is not None:
        request: Request | None = _request(one.card, "$.summary.failed_builds", file, root)
    else:
        request = next((image.request for image in images if image.request.card.name == one.model), None)
    return FailedBuild(model=one.model, error=one.error, architecture=one.architecture or "", request=request)


def _request(entry: dict[str, Json], at: str, file: Path, root: Path) -> Request:
    card = make_card({field: value for field, value in entry.items() if field != _ADDED}, str(file), at, root)
    if _ADDED not in entry:
        added = _Added(args=card.args)
    else:
        try:
            added = msgspec.convert(entry[_ADDED], _Added)
        except msgspec.ValidationError as error:
            raise UsageProblem(f"{file} is no build manifest: {at}.{_ADDED}: {error}") from None
    request_card = msgspec.structs.replace(card, args=added.args)
    return Request(card=request_card, tag=card.name, overrides=tuple(added.overrides))


def _refuse_masked(entry: dict[str, Json], file: Path) -> None:
    """Refuse to run a card with `***` for a secret."""
    for _, text in json_texts(entry):
        if MASK.decode() in text:
            raise UsageProblem(
                f"{file}: card '{entry.get('name')}' spelled out a secret, which the manifest does not hold: {text}",
                "put it into docker_env_vars or the environment, and run it from tags: --tags",
            )


def json_texts(tree: Json, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text value of a JSON tree with its dotted place."""
    if isinstance(tree, str):
        yield place or "it", tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from json_texts(value, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, (list, tuple)):
        for n, value in enumerate(tree):
            yield from json_texts(value, f"{place}[{n}]")


def card_entry(request: Request, args: str) -> dict[str, Json]:
    """Return a card as an entry of models.json, with the args of the run and the rest as it was written."""
    card = request.card
    entry: dict[str, Json] = {
        "name": card.name,
        "dockerfile": card.dockerfile,
        "scripts": card.scripts,
        "n_gpus": card.n_gpus,
        "owner": card.owner,
        "training_precision": card.training_precision,
        "tags": list(card.tags),
        "args": args,
    }
    entry |= {field: value for field, value in _optional(card).items() if value}
    if card.timeout_s is not None:
        entry["timeout"] = card.timeout_s
    if request.overrides:
        entry[_ADDED] = {"args": card.args, "overrides": [list(override) for override in request.overrides]}
    return {**entry, **card.extra}


def _optional(card: Card) -> dict[str, Json]:
    return {
        "dockercontext": card.dockercontext,
        "url": card.url,
        "cred": card.cred,
        "data": ",".join(card.data),
        "multiple_results": card.multiple_results,
        "skip_gpu_arch": ",".join(card.skip_gpu_arch),
        "additional_docker_run_options": card.additional_docker_run_options,
        "is_deprecated": card.is_deprecated,
        "backend": card.backend,
        "recipe": card.recipe,
        "image": card.image,
        "runtimes": list(card.runtimes),
    }


# Secrets in plain text of cards and a context: under a key of a secret's name, or assigned within a text.


def plaintext_secrets(value: Json, name: str = "") -> Iterator[str]:
    """Yield the secret texts of the value of key `name` that are long enough to be masked anywhere."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from plaintext_secrets(item, str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from plaintext_secrets(item, name)
    elif _is_secret(name, value):
        yield from [str(value)] if len(str(value)) >= SHORTEST else []
    elif isinstance(value, str):
        yield from assigned([value])


def mask_json(value: Json, mask: Callable[[str], str], path: str = "") -> tuple[Json, tuple[str, ...]]:
    """Return a value with `***` for every secret in it, and the dotted paths of the changes; `mask` masks texts."""
    if isinstance(value, Mapping):
        parts = {key: mask_json(item, mask, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        return {key: item for key, (item, _) in parts.items()}, _joined(parts.values())
    if isinstance(value, (list, tuple)):
        items = [mask_json(item, mask, path) for item in value]
        return [item for item, _ in items], _joined(items)
    is_text = isinstance(value, str)
    shown = MASK.decode() if _is_secret(path.rpartition(".")[2], value) else mask(value) if is_text else value
    return shown, (path,) if shown != value else ()


def _is_secret(name: str, value: Json) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and is_secret(name, str(value))


def _joined(parts: Iterable[tuple[Json, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, names in parts for name in names))
