"""build_manifest.json: what was built, for which cards, in which context.

Format: madengine 2's, with keys of ours that it leaves alone: `secrets_required` names what was given to the build and
is not in the file, `card` of a failed build is its card, `image_archive` of an image its file, and a card's `madlite`
has what a tag added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path

import msgspec

from madlite.catalog.cards import args_of, make_card
from madlite.errors import UsageProblem
from madlite.files import read_json, texts
from madlite.model import Json, Request, Secret, Value
from madlite.plan.context import GPU_COUNTS, MACHINE_KEYS, NOT_YET, Context, context_on, merge, read_context
from madlite.plan.place import own_table
from madlite.secrets import MASK, Redactor, guard, mask_json, masked_json, plaintext_secrets

# What was built → the text of build_manifest.json, without a secret in it.

# of the context, what madengine 2 keeps under `deployment_config`
_DEPLOYMENT = ("slurm", "k8s", "kubernetes", "distributed", "vllm")
_VARIABLES = ("docker_env_vars", "docker_build_arg")


def manifest_text(
    images: Sequence[BuiltImage],
    failed: Sequence[FailedBuild],
    context: Context,
    secrets: Iterable[str],
    *,
    gpu_vendor: str,
    took_s: float,
) -> str:
    """Return a manifest as JSON; `secrets` are masked wherever they stand, and secret variables are left out."""
    requested = [image.request for image in images] + [
        failed_build.request for failed_build in failed if failed_build.request is not None
    ]
    cards = [{**card_entry(request, args_of(request)), "overrides": dict(request.overrides)} for request in requested]
    secrets = (*secrets, *plaintext_secrets([*cards, context.values]))
    mask = Redactor(secrets).text
    keyed = _keyed(images)
    public, required = _without_secrets(context, secrets, mask)
    deployment, of_deployment = _deployment(images, context, secrets, mask)
    manifest = {
        "built_images": {key: image_entry(image) for key, image in keyed.items()},
        "built_models": {key: _card(image.request, mask) for key, image in keyed.items()},
        "context": {
            "docker_env_vars": {},
            "docker_mounts": {},
            "docker_build_arg": {},
            "docker_gpus": "",
            **public,
            "gpu_vendor": gpu_vendor,
            "guest_os": (context.typed.guest_os or "UBUNTU").upper(),
        },
        "credentials_required": sorted({image.request.card.cred for image in images} - {""}),
        "secrets_required": list(dict.fromkeys([*required, *of_deployment])),
        "summary": _with_cards(summary(list(keyed.values()), failed, took_s), failed, mask),
        "deployment_config": deployment,
    }
    return masked_json(manifest, secrets)


_IF_KNOWN = ("gpu_architecture", "registry", "registry_image", "image_archive", "push_error", "local_image")


def image_entry(image: BuiltImage) -> dict[str, Json]:
    """Return one image as madengine 2 writes it."""
    names = zip(image.__struct_fields__, image.__struct_encode_fields__, strict=True)
    entry = {
        "model": image.request.card.name,
        **{key: getattr(image, name) for name, key in names if name != "request"},
    }
    entry["build_duration"] = image.build_duration_s or 0
    return {key: value for key, value in entry.items() if value or key not in _IF_KNOWN}


def summary(images: Sequence[BuiltImage], failed: Sequence[FailedBuild], took_s: float) -> dict[str, Json]:
    """Return the summary of a build, in madengine 2's format."""
    made = [image for image in images if image.build_duration_s is not None]
    return {
        "successful_builds": [image_entry(image) for image in made],
        "failed_builds": [
            {
                "model": failed_build.model,
                "error": failed_build.error,
                **({"architecture": failed_build.architecture} if failed_build.architecture else {}),
            }
            for failed_build in failed
        ],
        "total_build_time": took_s,
        "successful_pushes": [
            {"model": image.request.card.name, "registry_image": image.registry_image}
            for image in made
            if image.registry_image
        ],
        "failed_pushes": [
            {"model": image.request.card.name, "error": image.push_error} for image in made if image.push_error
        ],
    }


def _keyed(images: Sequence[BuiltImage]) -> dict[str, BuiltImage]:
    """Return the images by the key madengine 2 gives them; the same card with other args gets one of its own."""
    keyed: dict[str, BuiltImage] = {}
    for image in images:
        wanted = _key(image)
        keys = chain([wanted], (f"{wanted} #{n}" for n in count(2)))
        key = next(key for key in keys if key not in keyed or _made_of(keyed[key]) == _made_of(image))
        keyed[key] = image
    return keyed


def _key(image: BuiltImage) -> str:
    if not image.local_image:
        return image.docker_image
    return f"local-{image.request.card.name}" if image.dockerfile else image.request.card.name


def _made_of(image: BuiltImage) -> tuple[object, ...]:
    return (image.request.card, image.request.overrides, image.dockerfile, image.docker_image)


def _card(request: Request, mask: Callable[[str], str]) -> Json:
    return mask_json(card_entry(request, args_of(request)), mask)[0]


def _with_cards(
    description: dict[str, Json], failed: Sequence[FailedBuild], mask: Callable[[str], str]
) -> dict[str, Json]:
    """Return the summary with the cards of failed builds, from which a run makes rows."""
    builds = [
        {**entry, "card": _card(failed_build.request, mask)} if failed_build.request is not None else entry
        for entry, failed_build in zip(description["failed_builds"], failed, strict=True)
    ]
    return {**description, "failed_builds": builds}


def _without_secrets(
    context: Context, secrets: tuple[str, ...], mask: Callable[[str], str]
) -> tuple[dict[str, Json], list[str]]:
    """Return what of the context is no secret, and by name what a run needs beyond it."""
    public: dict[str, Json] = {}
    required: list[str] = []
    for key, value in context.values.items():
        if key in _DEPLOYMENT:
            continue
        if key in _VARIABLES and isinstance(value, dict):
            open_values, names = _split_secrets(value, secrets)
            public[key] = open_values
            required += [f"{key}.{name}" for name in names if key == "docker_env_vars"]  # the rest is for builds alone
        elif mask_json(value, mask, key)[1]:
            required.append(key)
        else:
            public[key] = value
    return public, required


def _split_secrets(variables: Mapping[str, Json], secrets: tuple[str, ...]) -> tuple[dict[str, Json], list[str]]:
    guarded = guard({name: str(value) for name, value in variables.items()}, secrets)
    names = [name for name, value in guarded.items() if isinstance(value, Secret)]
    return {name: value for name, value in variables.items() if name not in names}, names


def _of_cards(images: Iterable[BuiltImage], key: str) -> dict[str, Json]:
    """Return what all cards, whose scripts start their steps themselves, say alike of their job."""
    first, *others = [own_table(image.request.card, key) for image in images] or [{}]
    return {name: value for name, value in first.items() if all(table.get(name) == value for table in others)}


def _deployment(
    images: Iterable[BuiltImage], context: Context, secrets: tuple[str, ...], mask: Callable[[str], str]
) -> tuple[dict[str, Json], list[str]]:
    """Return the deployment configuration, and the dotted names of what is masked in it."""
    requested = {key: context.values[key] for key in _DEPLOYMENT if context.values.get(key)}
    of_cards = {key: table for key in ("slurm", "distributed") if (table := _of_cards(images, key))}
    given, masked = mask_json(merge(of_cards, requested), mask)
    target = "k8s" if context.target == "kubernetes" else "slurm" if "slurm" in (context.target, *given) else "local"
    variables = context.values.get("env_vars")
    open_values, names = _split_secrets(variables, secrets) if isinstance(variables, dict) else ({}, [])
    description = {"target": target, **given, "env_vars": open_values, "debug": bool(context.values.get("debug"))}
    return description, [*masked, *(f"env_vars.{name}" for name in names)]


# The context of a build overlaid by the context of a run.

# keys of the build and its machine alone
_OF_THE_BUILD = (
    "gpu_vendor",
    "host_os",
    "ctx_test",
    "gpu_renderDs",
    "docker_build_arg",
    "MAD_CONTAINER_IMAGE",
    *MACHINE_KEYS,
    *NOT_YET,
)


def context_over(manifest: Manifest, context: Context, environ: Mapping[str, str]) -> Context:
    """Return the run's context over the build's; a secret that the build had comes from the run's or the environment.

    Raises:
        UsageProblem: the manifest's context cannot be used, or a secret that it had is nowhere.
    """
    under = _build_context(manifest, context)
    variables = _required(manifest, context, environ)
    if variables:
        under = merge(under, {"docker_env_vars": variables})
    return context_on(under, f"context of {manifest.file.name}", context)


def _build_context(manifest: Manifest, context: Context) -> dict[str, Json]:
    left_out = {*_OF_THE_BUILD, *(GPU_COUNTS if context.n_gpus is not None else ())}
    taken = {
        key: value for key, value in manifest.context.items() if key not in left_out and value not in (None, "", {}, [])
    }
    try:
        return read_context(None, msgspec.json.encode(taken).decode()).values if taken else {}
    except UsageProblem as problem:
        raise UsageProblem(f"the context in {manifest.file} cannot be used: {problem.message}") from None


def _required(manifest: Manifest, context: Context, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the secret variables that the environment has, where the run's context has them not."""
    found: dict[str, Json] = {}
    missing = []
    for required in manifest.required:
        key, _, name = required.partition(".")
        if key in _OF_THE_BUILD:  # named for those who deploy it; no run here uses it
            continue
        given = context.values.get(key)
        if given is not None and (not name or name in given):
            continue
        if name and environ.get(name):
            found[name] = environ[name]
        else:
            missing.append(name or key)
    if missing:
        raise UsageProblem(
            f"{manifest.file} holds no secrets, and the build was given {', '.join(missing)}",
            f"export {missing[0]}=…   or give it with --additional-context",
        )
    return found


NO_DOCKERFILE = "N/A (local image mode)"  # madengine 2's text for the context's MAD_CONTAINER_IMAGE
_ADDED = "madlite"


class BuiltImage(Value, frozen=True):
    """An image of a manifest and its request: a card with a tag's additions.

    `dockerfile` is the text of perf.csv's docker_file; `registry_image` the image's name in a registry, and
    `image_archive` the file that has it; `push_error` is why it is in neither.  A
    `local_image` was not built: it is found or pulled under its own name.
    """

    request: Request
    docker_image: str
    dockerfile: str = ""
    base_docker: str = ""
    docker_sha: str = ""
    build_duration_s: float | None = msgspec.field(default=None, name="build_duration")
    build_command: str = ""
    log_file: str = ""
    gpu_vendor: str = ""  # AMD, NVIDIA, or any
    gpu_architecture: str = ""
    registry: str = ""
    registry_image: str = ""
    image_archive: str = ""
    push_error: str = ""
    local_image: bool | str = False


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


class _Failed(msgspec.Struct):
    model: str
    error: str = ""
    architecture: str | None = None
    card: dict[str, Json] | None = None


class _Summary(msgspec.Struct):
    failed_builds: list[_Failed] = []


class _ManifestFile(msgspec.Struct):
    built_images: dict[str, dict[str, Json]]
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
        found = msgspec.convert(read_json(file, f"build manifest {file}", given=True), _ManifestFile)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{file} is no build manifest: {error}", "madlite build --tags NAME writes one") from None
    images = tuple(_image(key, image, found, file, root) for key, image in found.built_images.items())
    failed = tuple(_failed(build, images, file, root) for build in found.summary.failed_builds)
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


def _image(key: str, entry: dict[str, Json], found: _ManifestFile, file: Path, root: Path) -> BuiltImage:
    if key not in found.built_models:
        raise UsageProblem(f"{file} is no build manifest: built_images has '{key}' and built_models does not")
    card = found.built_models[key]
    _refuse_masked(card, file)
    known = {name: value for name, value in entry.items() if value is not None}
    request = _request(card, f"built_models[{key!r}]", file, root)
    try:
        image = msgspec.convert({"docker_image": key, **known, "request": request}, BuiltImage)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{file} is no build manifest: built_images has '{key}': {error}") from None
    # madengine 2 writes how long nothing took as 0
    return msgspec.structs.replace(image, build_duration_s=image.build_duration_s or None)


def _failed(build: _Failed, images: Iterable[BuiltImage], file: Path, root: Path) -> FailedBuild:
    """Return a build that failed; where the manifest has not its card, that of another image of the model."""
    if build.card is not None:
        request: Request | None = _request(build.card, "summary.failed_builds", file, root)
    else:
        request = next((image.request for image in images if image.request.card.name == build.model), None)
    return FailedBuild(model=build.model, error=build.error, architecture=build.architecture or "", request=request)


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
    for _, text in texts(entry, "card"):
        if MASK.decode() in text:
            raise UsageProblem(
                f"{file}: card '{entry.get('name')}' spelled out a secret, which the manifest does not hold: {text}",
                "put it into docker_env_vars or the environment, and run it from tags: --tags",
            )


_ALWAYS = ("name", "dockerfile", "scripts", "n_gpus", "owner", "training_precision")
_OPTIONAL = (
    *("dockercontext", "url", "cred", "data", "multiple_results", "skip_gpu_arch", "additional_docker_run_options"),
    *("is_deprecated", "backend", "recipe", "image", "runtimes"),
)


def card_entry(request: Request, args: str) -> dict[str, Json]:
    """Return a card as an entry of models.json, with the args of the run and the rest as it was written."""
    card = request.card
    entry: dict[str, Json] = {name: getattr(card, name) for name in _ALWAYS}
    entry |= {"tags": list(card.tags), "args": args}
    entry |= {name: value for name in _OPTIONAL if (value := _written(getattr(card, name), name))}
    if card.timeout_s is not None:
        entry["timeout"] = card.timeout_s
    if request.overrides:
        entry[_ADDED] = {"args": card.args, "overrides": [list(override) for override in request.overrides]}
    return {**entry, **card.extra}


def _written(value: Json, name: str) -> Json:
    """Return a card's value as models.json has it."""
    if not isinstance(value, tuple):
        return value
    return ",".join(value) if name in ("data", "skip_gpu_arch") else list(value)
