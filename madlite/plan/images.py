"""The image that a card's Dockerfile makes: its name, its arguments, its base.  Names and arguments: madengine's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from madlite.model import Card, EnvValue, Image
from madlite.plan.context import Context
from madlite.plan.dockerfiles import Dockerfile
from madlite.plan.environment import credential_env, secret_args
from madlite.plan.options import Options
from madlite.plan.registries import login_to, name_in_registry
from madlite.secrets import collect, guard

ARCHITECTURE = "MAD_SYSTEM_GPU_ARCHITECTURE"  # the build argument
_TOOLS = ("docker/common", "tools")  # the build context `tools`: the first that a checkout has; 2.1.0 had the second


def built_image(
    card: Card,
    dockerfile: Dockerfile,
    options: Options,
    context: Context,
    credentials: Mapping[str, Mapping[str, str]],
    *,
    architecture: str = "",
    suffix: str = "",
) -> Image:
    """Return the image to build for a GPU architecture, or for any; `suffix` ends its name."""
    ref = image_name(card.name, dockerfile.path.name, suffix)
    registry, environ = options.registry, options.environ
    return Image(
        ref=ref,
        dockerfile=dockerfile.path,
        context=dockerfile.context,
        root=card.root,
        build_args=_build_args(card, environ, context, credentials, architecture),
        base=str(context.known.docker_build_arg.get("BASE_DOCKER", "")) or dockerfile.base,
        no_cache=options.clean_docker_cache,
        contexts=_contexts(card, dockerfile),
        registry=name_in_registry(ref, registry, credentials, environ) if registry else "",
        login=login_to(registry, credentials, environ) if registry else None,
    )


def _contexts(card: Card, dockerfile: Dockerfile) -> dict[str, Path]:
    """Return the named build contexts; a stage of the Dockerfile by that name goes before, which it would replace."""
    found = [folder for name in _TOOLS if (folder := card.root / name).is_dir()]
    return {"tools": found[0]} if found and "tools" not in dockerfile.stages else {}


def image_name(card_name: str, dockerfile: str, suffix: str = "") -> str:
    """Return MAD's name for a card's image, `ci-<card>_<Dockerfile>`; what a registry refuses becomes `_`.

    Grammar: a repository name of the OCI distribution specification.
    """
    name = f"ci-{flat(card_name).lower()}_{dockerfile.removesuffix('.Dockerfile')}{suffix}"
    if re.fullmatch(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*", name):
        return name
    return re.sub(r"[._-]{2,}", "_", re.sub(r"[^a-z0-9._-]", "_", name.lower())).strip("._-")


def flat(name: str) -> str:
    """Return a name as MAD writes it into other names."""
    return re.sub(r"[/:]", "_", name)


def _build_args(
    card: Card,
    environ: Mapping[str, str],
    context: Context,
    credentials: Mapping[str, Mapping[str, str]],
    architecture: str,
) -> dict[str, EnvValue]:
    """Return the arguments in madengine 2's order; an architecture that the context gives is the one."""
    asked = {key: str(value) for key, value in context.known.docker_build_arg.items()}
    credential = credential_env(card, credentials)
    known = collect(environ, credential.values())
    ours = {ARCHITECTURE: architecture} if architecture and ARCHITECTURE not in asked else {}
    return {**secret_args(environ), **guard(asked, known), **ours, **credential}
