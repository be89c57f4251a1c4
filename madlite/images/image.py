"""Have a plan's image on the engine: built from its Dockerfile, found, or pulled."""

from __future__ import annotations

import os
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from madlite.cancellation import check
from madlite.errors import RuntimeProblem
from madlite.files import replacing_file
from madlite.images.build import build, build_with_buildkit, dockerfile_text, needs_buildkit
from madlite.images.client import (
    Client,
    closing_answers,
    connected,
    error_text,
    explained,
    podman_version,
    pull_problem,
    refused,
    unless_refused,
)
from madlite.model import Cause, Image, ImageUsed, Login, Say
from madlite.text import size_text

# Pull an image, with progress in lines, once there is room for it.

FREE_BYTES = 5 << 30  # less cannot hold any training image; how much an image needs is known only once it is there
FREE_INODES = 100_000
REPORT_EVERY_S = 10.0


def pull(client: Client, ref: str, say: Say) -> None:
    """Pull an image.

    Raises:
        RuntimeProblem: the disk is nearly full, or the image cannot be had; the message states which.
    """
    check_disk_space(Path(client.info()["DockerRootDir"]), ref)
    say(f"pulling {ref}")
    what, hint = f"image {ref} cannot be pulled", f"docker pull {ref}"
    with refused(lambda text: pull_problem(ref, text) or RuntimeProblem(f"{what}: {text}", hint, cause=Cause.IMAGE)):
        _transfer(client, client.pull, ref, PullProgress(ref, say))


def _transfer(
    client: Client, call: Callable[..., Iterable[Mapping[str, Any]]], ref: str, progress: PullProgress
) -> None:
    """Pull or push to the end; raises docker.errors.APIError also where the engine reports an error on the way."""
    import docker.errors

    with closing_answers(client):
        for item in call(*name_and_tag(ref), stream=True, decode=True):
            if "error" in item:
                raise docker.errors.APIError(str(item["error"]))
            progress.add(item)


def check_disk_space(root: Path, ref: str) -> None:
    """Refuse where the engine's folder, if it is on this machine, has too little room for any image.

    Raises:
        RuntimeProblem: fewer free bytes than FREE_BYTES or inodes than FREE_INODES.
    """
    try:
        disk = os.statvfs(root)
    except OSError:  # the engine runs elsewhere, or keeps its folder to itself
        return
    free_bytes, free_inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    lacks = size_text(free_bytes) if free_bytes < FREE_BYTES else ""
    if disk.f_files and free_inodes < FREE_INODES:  # some file systems count no inodes
        lacks = f"{free_inodes} inodes"
    if lacks:
        raise RuntimeProblem(
            f"no room to pull {ref}: {root} has {lacks} left, and {size_text(FREE_BYTES)} and {FREE_INODES} inodes "
            "are the least",
            f"docker system df, docker image prune; a smaller image: docker pull {ref}",
            cause=Cause.DISK,
        )


class PullProgress:
    """Adds up the layers of a pull or push and words the sum now and then."""

    def __init__(self, ref: str, say: Say, doing: str = "pulling") -> None:
        self._ref = ref
        self._doing = doing
        self._say = say
        self._layers: dict[str, tuple[int, int]] = {}  # layer → bytes so far, bytes in all
        self._reported_at_s = time.monotonic()

    def add(self, item: Mapping[str, Any]) -> None:
        """Take one message of the engine."""
        layer, status = str(item.get("id", "")), item.get("status", "")
        detail = item.get("progressDetail") or {}
        if status in ("Downloading", "Pushing") and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif status in ("Download complete", "Pull complete", "Pushed") and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        self._report()

    def _report(self) -> None:
        total = sum(whole for _, whole in self._layers.values())
        got = sum(part for part, _ in self._layers.values())
        now_s = time.monotonic()
        if not total or now_s < self._reported_at_s + REPORT_EVERY_S:
            return
        self._reported_at_s = now_s
        last = "unpacking" if self._doing == "pulling" else "closing"
        rest = last if got >= total else f"{size_text(got)} of {size_text(total)}"
        self._say(f"{self._doing} {self._ref}: {rest}")


def name_and_tag(ref: str) -> tuple[str, str]:
    """Return repository and tag or digest; without one, `latest` (the engine would pull or push every tag)."""
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(ref)
    return str(repository), str(tag or "latest")


# Give an image its name in a registry and push it there, with progress in lines.


def push(client: Client, ref: str, target: str, say: Say) -> None:
    """Push the local image `ref` as `target`; log in first where the registry wants it.

    Raises:
        RuntimeProblem: it cannot be named so, or the registry does not take it.
    """
    say(f"pushing {target}")
    what, hint = f"{target} cannot be pushed", f"docker push {target}"
    with refused(lambda text: RuntimeProblem(f"{what}: {text}", hint, cause=Cause.IMAGE)):
        client.tag(ref, *name_and_tag(target), force=True)
        _transfer(client, client.push, target, PullProgress(target, say, "pushing"))


# Keep an image in a file of `docker save`, in a folder that other machines see, and have it from there.

IMAGES_VARIABLE = "MADLITE_IMAGE_FOLDER"  # that folder


def archive_file(folder: str | Path, ref: str) -> Path:
    """Return the file of an image in a folder of images."""
    return Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]', '_', ref)}.tar"


def archived_id(file: Path) -> str:
    """Return the id that the image of an archive has once it is loaded; "" for a file that is none."""
    try:
        with tarfile.open(file) as archive, archive.extractfile("manifest.json") or BytesIO() as text:
            found = re.search(rb'"Config":\s*"[^"]*?([0-9a-f]{64})', text.read())
    except (OSError, tarfile.TarError, KeyError):
        return ""
    return f"sha256:{found[1].decode()}" if found else ""


def save(client: Client, ref: str, file: Path, say: Say) -> None:
    """Save an image as a file, which is there as a whole or as it was before.

    Raises:
        RuntimeProblem: it cannot be written.
    """
    say(f"saving {ref} as {file}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing_answers(client), replacing_file(file) as out:
            for chunk in client.get_image(ref):
                check()
                out.write(chunk)
    except OSError as error:  # the engine's refusals are such
        what = f"{file} cannot be written: {error.strerror or error_text(error)}"
        raise RuntimeProblem(what, f"docker save -o {file} {ref}", cause=Cause.IMAGE) from error


def load(client: Client, ref: str, file: Path, say: Say) -> None:
    """Load an image from its file.

    Raises:
        RuntimeProblem: the file, or what is in it, cannot be read.
    """
    import docker.errors

    say(f"loading {ref} from {file}")
    try:
        with closing_answers(client), file.open("rb") as data:
            for item in client.load_image(data):
                if "error" in item:
                    raise docker.errors.APIError(str(item["error"]))
    except OSError as error:
        what = f"image {ref} cannot be loaded from {file}: {error.strerror or error_text(error)}"
        raise RuntimeProblem(what, f"docker load -i {file}", cause=Cause.IMAGE) from error


# The image that a built one is based on, and its digest.

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(?P<ref>\S+)(?:\s+AS\s+(?P<stage>\S+))?\s*$", re.IGNORECASE | re.MULTILINE)


def base_digest(client: Client, image: Image) -> str:
    """Return the digest of the image that a built one is based on, as `digest` has it; empty where it is unknown.

    The engine is queried first: it has the base that was used, unless BuildKit kept it to itself; then its registry.
    """
    import requests

    base = base_of(image)
    if not base:
        return ""
    if found := unless_refused(lambda: client.inspect_image(base)):
        return digest(found, base)
    try:
        return str(client.inspect_distribution(base)["Descriptor"]["digest"])
    except (requests.RequestException, KeyError):  # the engine's refusals among them
        return ""


def base_of(image: Image) -> str:
    """Return the image that a Dockerfile's result is based on: its BASE_DOCKER, else what its last FROM spells out."""
    if image.base or image.dockerfile is None:
        return image.base
    try:
        found = list(_FROM.finditer(dockerfile_text(image)))
    except RuntimeProblem:
        return ""
    stages = {match["stage"]: match["ref"] for match in found if match["stage"]}
    ref = found[-1]["ref"] if found else ""
    for _ in stages:  # a stage may be based on another
        ref = stages.get(ref, ref)
    return "" if "$" in ref or ref == "scratch" else ref


def digest(found: Mapping[str, Any], ref: str = "") -> str:
    """Return an image's repository digest (`sha256:…`), of `ref`'s own repository where it has one there.

    An image that came from no repository has its id instead.
    """
    return pinned(found, ref).partition("@")[2] or str(found["Id"])


def pinned(found: Mapping[str, Any], ref: str = "") -> str:
    """Return an image's name by its digest, `repository@sha256:…`, of `ref`'s own repository where it has one there.

    Empty for one that came from no repository.
    """
    names = [name for name in found.get("RepoDigests") or [] if "@" in name]
    repository = re.sub(r":[^:/]+$", "", ref.split("@", 1)[0])
    own = [name for name in names if name.partition("@")[0] == repository]
    return str((own or names or [""])[0])


# Log in to a registry for the time of one connection to the engine: nothing of it is written to a file.

HUB = "https://index.docker.io/v1/"  # what the engine calls Docker Hub


def log_in(client: Client, login: Login) -> None:
    """Let what the client pulls, pushes and builds from now on use the login.

    Raises:
        RuntimeProblem: the registry does not take it, or cannot be queried.
    """
    what = f"{login.host or 'Docker Hub'} does not let user '{login.username}' in"
    hint = f"check the table '{login.host or 'dockerhub'}' of credential.json"
    with refused(lambda text: RuntimeProblem(f"{what}: {text}", hint, cause=Cause.IMAGE)):
        client.login(login.username, login.password.reveal(), registry=login.host or HUB, reauth=True)


def prepare_image(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> ImageUsed:
    """Return the image to use, present on the engine; `say` gets what it is doing, a line at a time.

    Raises:
        RuntimeProblem: it cannot be built, found or pulled, or the disk is too full.
    """
    if image.dockerfile is not None and not image.prebuilt:
        return _built(client, image, environ, say)
    note = _fetched(client, image, environ, say)
    registry = "" if note else image.registry
    return _image_used(client, image, image.base_digest, registry, image.build_duration_s, note)


def _image_used(
    client: Client, image: Image, base: str, registry: str, build_duration_s: float | None, *notes: str
) -> ImageUsed:
    found = inspect(client, image.ref)
    if found is None:
        raise RuntimeProblem(f"image {image.ref} is not there after it was made", cause=Cause.IMAGE)
    return ImageUsed(
        ref=image.ref,
        digest=digest(found, image.ref),
        pinned=pinned(found, image.ref),
        id=str(found["Id"]),
        labels={str(name): str(text) for name, text in ((found.get("Config") or {}).get("Labels") or {}).items()},
        base_digest=base,
        registry=registry,
        build_duration_s=build_duration_s,
        notes=tuple(filter(None, notes)),
    )


def is_local(image: Image, environ: Mapping[str, str]) -> bool:
    """Return whether the engine has an image; it asks no registry.

    Raises:
        RuntimeProblem: the engine does not answer.
    """
    with connected(environ) as client:
        return inspect(client, image.ref) is not None


def inspect(client: Client, ref: str) -> dict[str, Any] | None:
    """Return what the engine knows of a local image, or None."""
    return unless_refused(lambda: dict(client.inspect_image(ref)), 404)


def _built(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> ImageUsed:
    begun = time.monotonic()
    buildkit = needs_buildkit(image) and not podman_version(client)  # podman's builder knows most of it
    stale = build_with_buildkit(image, environ, say) if buildkit else build(client, image, say)
    took_s = time.monotonic() - begun
    unpushed = _handed_on(client, image, environ, say) if image.registry or image.archive else ""
    registry = "" if unpushed else image.registry or str(image.archive or "")
    return _image_used(client, image, base_digest(client, image), registry, took_s, stale, unpushed)


@contextmanager
def _logged_in(client: Client, image: Image, environ: Mapping[str, str]) -> Iterator[None]:
    with explained(environ):
        if image.login is not None:
            log_in(client, image.login)
        yield


def _handed_on(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> str:
    """Push or save the image; return what a reader of the result should know of it: the run needs the image alone."""
    try:
        with _logged_in(client, image, environ):
            if image.registry:
                push(client, image.ref, image.registry, say)
            elif image.archive is not None:
                save(client, image.ref, image.archive, say)
    except RuntimeProblem as problem:
        say(problem.message)
        return f"the image was not {'pushed' if image.registry else 'saved'}: {problem.message}"
    return ""


def _fetched(client: Client, image: Image, environ: Mapping[str, str], say: Say) -> str:
    """Pull or load the image, else use what is here; return what a reader of the result should know of it."""
    if image.archive is not None:
        found, wanted = inspect(client, image.ref), archived_id(image.archive)
        if found is not None and not wanted and image.build_duration_s:
            return f"{image.archive} is no image, the one of that name that was here ran"
        if found is None or str(found["Id"]) != wanted:
            load(client, image.ref, image.archive, say)
        return ""
    if not image.registry:
        if inspect(client, image.ref) is None:
            pull(client, image.ref, say)
        return ""
    try:
        with _logged_in(client, image, environ):
            pull(client, image.registry, say)
    except RuntimeProblem as problem:
        # what this manifest's build did not make may be any image of that name
        if inspect(client, image.ref) is None or not image.build_duration_s:
            raise
        say(f"{problem.message}; using {image.ref}, which is here")
        return f"the image was not pulled, the one that was here ran: {problem.message}"
    client.tag(image.registry, *name_and_tag(image.ref), force=True)
    return ""


# One connection to the engine for a batch of builds.


BuildImage = Callable[[Image, Say], ImageUsed]
"""Builds an image and pushes it to its registry; where it was not pushed the last note says why."""


@contextmanager
def opened_builder(environ: Mapping[str, str], logins: Iterable[Login] = ()) -> Iterator[BuildImage]:
    """Yield what builds images by an engine that is logged in: a wrong password is found out before the first build.

    Raises:
        RuntimeProblem: no engine answers, or a registry does not let us in; inside, the image cannot be built.
    """
    with connected(environ) as client:
        for login in logins:
            log_in(client, login)

        def build(image: Image, say: Say) -> ImageUsed:
            with explained(environ):
                return prepare_image(client, image, environ, say)

        yield build
