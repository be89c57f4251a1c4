"""What was built → the text of build_manifest.json, without a secret in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from madlite.catalog.select import args_of
from madlite.errors import UsageProblem
from madlite.model import Json, Request, Secret
from madlite.plan.context import GPU_COUNTS, MACHINE_KEYS, NOT_YET, Context, ContextKeys, merge, read_context
from madlite.plan.manifest import BuiltImage, FailedBuild, Manifest, card_entry, mask_json, plaintext_secrets
from madlite.secrets import Redactor, guard, masked_json

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
    requested = [image.request for image in images] + [one.request for one in failed if one.request is not None]
    secrets = (*secrets, *_plaintext_secrets(requested, context))
    mask = Redactor(secrets).text
    keyed = _keyed(images)
    public, required = _without_secrets(context, secrets, mask)
    deployment, of_deployment = _deployment(context, secrets, mask)
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


def image_entry(image: BuiltImage) -> dict[str, Json]:
    """Return one image as madengine 2 writes it."""
    entry: dict[str, Json] = {
        "model": image.request.card.name,
        "docker_image": image.docker_image,
        "dockerfile": image.dockerfile,
        "base_docker": image.base_docker,
        "docker_sha": image.docker_sha,
        "build_duration": image.build_duration_s or 0,
        "build_command": image.build_command,
        "log_file": image.log_file,
        "gpu_vendor": image.gpu_vendor,
    }
    more = ("gpu_architecture", "registry", "registry_image", "push_error", "local_image")
    return entry | {name: getattr(image, name) for name in more if getattr(image, name)}


def summary(images: Sequence[BuiltImage], failed: Sequence[FailedBuild], took_s: float) -> dict[str, Json]:
    """Return the summary of a build, in madengine 2's format."""
    made = [image for image in images if image.build_duration_s is not None]
    return {
        "successful_builds": [image_entry(image) for image in made],
        "failed_builds": [
            {"model": one.model, "error": one.error, **({"architecture": one.architecture} if one.architecture else {})}
            for one in failed
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
        key = wanted = _key(image)
        n = 1
        while key in keyed and not _same(keyed[key], image):
            n += 1
            key = f"{wanted} #{n}"
        keyed[key] = image
    return keyed


def _key(image: BuiltImage) -> str:
    if not image.local_image:
        return image.docker_image
    return f"local-{image.request.card.name}" if image.dockerfile else image.request.card.name


def _same(one: BuiltImage, other: BuiltImage) -> bool:
    what = [(each.request.card, each.request.overrides, each.dockerfile, each.docker_image) for each in (one, other)]
    return what[0] == what[1]


def _card(request: Request, mask: Callable[[str], str]) -> Json:
    return mask_json(card_entry(request, args_of(request)), mask)[0]


def _with_cards(
    description: dict[str, Json], failed: Sequence[FailedBuild], mask: Callable[[str], str]
) -> dict[str, Json]:
    """Return the summary with the cards of failed builds, from which a run makes rows."""
    builds = [
        {**entry, "card": _card(one.request, mask)} if one.request is not None else entry
        for entry, one in zip(description["failed_builds"], failed, strict=True)
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


def _plaintext_secrets(requests: Iterable[Request], context: Context) -> tuple[str, ...]:
    """Return the secrets in plain text of cards and context."""
    cards = [{**card_entry(request, args_of(request)), "overrides": dict(request.overrides)} for request in requests]
    return tuple(plaintext_secrets([*cards, context.values]))


def _split_secrets(variables: Mapping[str, Json], secrets: tuple[str, ...]) -> tuple[dict[str, Json], list[str]]:
    guarded = guard({name: str(value) for name, value in variables.items()}, secrets)
    names = [name for name, value in guarded.items() if isinstance(value, Secret)]
    return {name: value for name, value in variables.items() if name not in names}, names


def _deployment(
    context: Context, secrets: tuple[str, ...], mask: Callable[[str], str]
) -> tuple[dict[str, Json], list[str]]:
    """Return the deployment configuration, and the dotted names of what is masked in it."""
    requested = {key: context.values[key] for key in _DEPLOYMENT if context.values.get(key)}
    given, masked = mask_json(requested, mask)
    target = "slurm" if "slurm" in given else "k8s" if {"k8s", "kubernetes"} & set(given) else "local"
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
    origin = f"context of {manifest.file.name}"
    settings = under.get("settings", {})
    values = merge(under, context.values)
    return msgspec.structs.replace(
        context,
        typed=msgspec.convert(values, ContextKeys),
        values=values,
        file_settings={**settings, **context.file_settings},
        origins={**dict.fromkeys(under, origin), **context.origins},
    )


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
