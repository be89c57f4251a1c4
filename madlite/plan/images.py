"""The image that a card's Dockerfile makes: its name, its arguments, its base.  Names and arguments: madengine's."""

from __future__ import annotations

import ast
import errno
import glob
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from madlite.errors import CardProblem, UsageProblem
from madlite.files import exists, is_folder, read_as_spelled, read_json, shown
from madlite.model import Card, EnvValue, Image, Login, Machine, Secret, Value
from madlite.plan.context import Context, Options
from madlite.secrets import collect, guard

# Registries: what an image is called there, and how to log in.
#
# Names and tables of credential.json: madengine 2's.  `dockerhub`, or a registry's host, has `repository`, `username`
# and `password`; MAD_DOCKERHUB_USER, _PASSWORD and _REPO come before the table `dockerhub`.

Credentials = Mapping[str, Mapping[str, str]]
HUB = "dockerhub"
_PUBLIC_KEYS = ("user", "username", "ssh_key_file")  # masked, it would eat ordinary words out of a log
_HUB_HOSTS = ("docker.io", "index.docker.io", "registry-1.docker.io", "hub.docker.com", HUB)
_FROM_ENVIRONMENT = {
    "username": "MAD_DOCKERHUB_USER",
    "password": "MAD_DOCKERHUB_PASSWORD",
    "repository": "MAD_DOCKERHUB_REPO",
}


def name_in_registry(image: str, registry: str, credentials: Credentials, environ: Mapping[str, str]) -> str:
    """Return what a local image is called in a registry.

    On Docker Hub `<repository>:<image>` where the credential names a repository, else `<image>`; elsewhere
    `<registry>/<repository>:<image>` or `<registry>/<image>`.
    """
    host = _host(registry)
    repository = _table(host, credentials, environ).get("repository", "")
    where = registry.strip("/")
    prefix = "" if where in _HUB_HOSTS else f"{where}/"
    return f"{prefix}{repository}:{image}" if repository else f"{prefix}{image}"


def login_to(registry: str, credentials: Credentials, environ: Mapping[str, str]) -> Login | None:
    """Return the login for a registry, None where none is known: docker's own logins are used then."""
    host = _host(registry)
    table = _table(host, credentials, environ)
    if not table.get("username") or not table.get("password"):
        return None
    return Login(host="" if host == HUB else host, username=table["username"], password=Secret(table["password"]))


def registry_of(ref: str) -> str:
    """Return the registry that an image's name leads to: what has no host is on Docker Hub, as docker has it."""
    first, slash, _ = ref.partition("/")
    return first if slash and (re.search(r"[.:]", first) or first == "localhost") else HUB


def _host(registry: str) -> str:
    host = registry.strip("/").partition("/")[0]
    return HUB if host in _HUB_HOSTS else host


def _table(host: str, credentials: Credentials, environ: Mapping[str, str]) -> dict[str, str]:
    table = dict(credentials.get(host) or {})
    if host == HUB:
        table |= {key: environ[name] for key, name in _FROM_ENVIRONMENT.items() if environ.get(name)}
    return table


def credential_env(card: Card, credentials: Mapping[str, Mapping[str, str]]) -> dict[str, EnvValue]:
    """Return `<CRED>_<KEY>` for every key of the card's credential; all but the user's name is secret."""
    return {
        f"{card.cred}_{key.upper()}": value if key.lower() in _PUBLIC_KEYS else Secret(value)
        for key, value in credentials.get(card.cred, {}).items()
    }


def secret_args(environ: Mapping[str, str]) -> dict[str, EnvValue]:
    """Return the MAD_SECRETS variables, which MAD hands to builds as well as to runs."""
    return {name: Secret(value) for name, value in environ.items() if "MAD_SECRETS" in name}


# Which Dockerfiles belong to a card here: lookup by prefix, and the `# CONTEXT` filter of their first lines.
#
# Rule (docs/differences.md): candidates are `<dockerfile>.*`; a file is left out when a key of its header exists in
# the context with another value.  One without a header is left out too, as MAD never meant it to be built.

_HEADER_LINES = 5
_CONTEXT = re.compile(r"#\s*CONTEXT\s+(\{.*\})")
_BASE = re.compile(r"^ARG\s+BASE_DOCKER=(?:\"([^\"]*)\"|'([^']*)'|(\S+))", re.MULTILINE)

_STAGE = re.compile(r"^[ \t]*FROM[ \t].*[ \t]AS[ \t]+(\S+)", re.MULTILINE | re.IGNORECASE)


class Dockerfile(Value, frozen=True):
    """A Dockerfile of a card: where it is, its build context, its base image and its stages' names in lower case."""

    path: Path
    context: Path
    base: str
    stages: frozenset[str] = frozenset()


class FoundDockerfiles(Value, frozen=True):
    """The Dockerfiles that fit, and why others do not."""

    fitting: tuple[Dockerfile, ...] = ()
    refused: tuple[str, ...] = ()


def find_dockerfiles(card: Card, context: Mapping[str, str]) -> FoundDockerfiles:
    """Return the card's Dockerfiles that fit the context, in the order of their names.

    Raises:
        UsageProblem: one of them cannot be read.
    """
    if not card.dockerfile:
        return FoundDockerfiles()
    fitting, refused = [], []
    for path in _candidates(card.root / card.dockerfile):
        if is_folder(path) or not exists(path):
            continue
        text = read_dockerfile(path, card.root)
        reason = _mismatch(text, context)
        if reason:
            refused.append(f"{path.name}: {reason}")
        else:
            stages = frozenset(name.lower() for name in _STAGE.findall(text))
            fitting.append(Dockerfile(path=path, context=_build_context(card), base=base_of(text), stages=stages))
    return FoundDockerfiles(fitting=tuple(fitting), refused=tuple(refused))


def read_dockerfile(path: Path, root: Path) -> str:
    """Return a Dockerfile's text; one of the checkout `root` is no link out of it.

    Raises:
        UsageProblem: it cannot be read, or is a pipe or the like, or such a link.
    """
    try:
        data = read_as_spelled(path, root)
    except OSError as error:
        hint = "copy it there, or name it in the card by its whole path" if error.errno == errno.EXDEV else ""
        raise CardProblem(f"{shown(path)} cannot be read: {error.strerror}", hint) from None
    return data.decode(errors="replace")


def _candidates(prefix: Path) -> list[Path]:
    if not prefix.name or not is_folder(prefix.parent):
        return []
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*"))


def base_of(text: str) -> str:
    """Return the image named by `ARG BASE_DOCKER=`, or nothing."""
    found = _BASE.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


def _build_context(card: Card) -> Path:
    """Return where COPY reads from: `./docker`, or the folder itself for Primus images (as madengine 2)."""
    if card.dockercontext:
        return card.root / card.dockercontext
    return card.root if "primus" in card.dockerfile else card.root / "docker"


def _mismatch(text: str, context: Mapping[str, str]) -> str:
    header = _header(text)
    if isinstance(header, str):
        return header
    for key, wanted in header.items():
        here = context.get(str(key))
        if here is not None and str(here) != str(wanted):
            return f"its header wants {key} {wanted}, here it is {here}"
    return ""


def _header(text: str) -> dict[object, object] | str:
    for line in text.splitlines()[:_HEADER_LINES]:
        found = _CONTEXT.search(line)
        if found:
            try:
                value = ast.literal_eval(found[1])
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return f"its header cannot be read: {line.strip()}"
            return value if isinstance(value, dict) else f"its header is no table: {line.strip()}"
    return "no `# CONTEXT {...}` line in its first five"


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
        base=str(context.typed.docker_build_arg.get("BASE_DOCKER", "")) or dockerfile.base,
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
    values = {key: str(value) for key, value in context.typed.docker_build_arg.items()}
    credential = credential_env(card, credentials)
    secrets = collect(environ, credential.values())
    ours = {ARCHITECTURE: architecture} if architecture and ARCHITECTURE not in values else {}
    return {**secret_args(environ), **guard(values, secrets), **ours, **credential}


# For which GPUs and which system images are built, where the machine that builds need not have them.

VENDORS = ("AMD", "NVIDIA", "CPU")
_SYSTEMS = ("UBUNTU", "CENTOS")


class BuildTarget(Value, frozen=True):
    """What images are for: the context with vendor and system in it, and architectures, none for any."""

    context: Context
    gpu_vendor: str
    architectures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_target(context: Context, machine: Machine, architectures: Iterable[str]) -> BuildTarget:
    """Return the target: the context's vendor, else this machine's, else AMD.

    Raises:
        UsageProblem: the context names a vendor or a system that is not supported.
    """
    notes = []
    vendor = context.typed.gpu_vendor or (machine.vendor if machine.gpus else "")
    if not vendor:
        vendor = VENDORS[0]
        notes.append("no GPU here: builds for AMD; --gpu-vendor NVIDIA or CPU for others")
    vendor = _one_of(VENDORS, "gpu_vendor", vendor)
    system = _one_of(_SYSTEMS, "guest_os", context.typed.guest_os or _SYSTEMS[0])
    wanted = tuple(dict.fromkeys(part.strip() for text in architectures for part in text.split(",") if part.strip()))
    given = context.typed.docker_build_arg.get(ARCHITECTURE)
    if wanted and given:
        notes.append(f"--target-archs has no effect: the context's docker_build_arg has {ARCHITECTURE}={given}")
        wanted = ()
    named = {"gpu_vendor": vendor, "guest_os": system}
    values = {**context.values, **named}
    keys = replace(context.typed, **named)
    return BuildTarget(
        context=replace(context, typed=keys, values=values), gpu_vendor=vendor, architectures=wanted, notes=tuple(notes)
    )


def _one_of(allowed: tuple[str, ...], key: str, value: str) -> str:
    if value.upper() not in allowed:
        raise UsageProblem(f"{key} '{value}' is none of {', '.join(allowed)}", f"{key} is a key of the context")
    return value.upper()


# The list that `madlite build --batch-manifest` takes: which models are built anew, and where the others are.
#
# Format: madengine 2's, a JSON list of `model_name`, `build_new`, `registry_image` and `registry`.


class BatchEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the list."""

    model_name: str
    build_new: bool = False
    registry_image: str = ""
    registry: str = ""


def read_batch(file: Path) -> tuple[BatchEntry, ...]:
    """Return the entries.

    Raises:
        UsageProblem: the file cannot be read, is no such list or an empty one.
    """
    where, hint = f"batch manifest {file}", '[{"model_name": "NAME", "build_new": true}]'
    try:
        entries = msgspec.convert(read_json(file, where, given=True), tuple[BatchEntry, ...])
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where} cannot be used: {error}", hint) from None
    if not entries:
        raise UsageProblem(f"{where} names no model", hint)
    return entries
