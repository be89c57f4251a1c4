"""Names of the images of one command: MAD's, which can be the same for two cards, told apart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from msgspec.structs import replace

from madlite.model import Image
from madlite.run.build_jobs import BuildJob, build_words


def tell_apart(jobs: Iterable[BuildJob], workspace: Path) -> list[BuildJob]:
    """Return the jobs, each image under a name of its own.

    Cards `A` and `a`, or `a/b` and `a_b`, have the same name in MAD: the image of the later one ends with `-2`, unless
    what is built is the same.
    """
    made: dict[str, BuildJob] = {}
    named = []
    for job in jobs:
        wanted = job.entry.docker_image
        is_ours = wanted and not job.entry.local_image
        names = chain([wanted], (f"{wanted}-{n}" for n in count(2))) if is_ours else [wanted]
        name = next(name for name in names if not is_ours or _same(made.setdefault(name, job), job))
        named.append(_renamed(job, name, workspace))
    return named


def same_content(one: Image, other: Image) -> bool:
    """Say whether two images are made of the same, wherever they are pushed."""
    return replace(one, registry="", login=None) == replace(other, registry="", login=None)


def _same(one: BuildJob, other: BuildJob) -> bool:
    if one.image is None or other.image is None:  # built before
        return one.image is other.image and one.entry.registry_image == other.entry.registry_image
    return same_content(one.image, other.image)


def _renamed(job: BuildJob, name: str, workspace: Path) -> BuildJob:
    before = job.entry.docker_image
    if name == before:
        return job
    entry = replace(job.entry, docker_image=name)
    if job.image is None:
        return replace(job, entry=entry)
    registry = job.image.registry and job.image.registry.removesuffix(before) + name
    image = replace(job.image, ref=name, registry=registry)
    return replace(job, image=image, entry=replace(entry, build_command=build_words(image, workspace)))
