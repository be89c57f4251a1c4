"""Pull an image, with progress in lines, once there is room for it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.images.client import Client, closing_answers, pull_problem, said
from madlite.model import Cause, Say

MIB, GIB = 1 << 20, 1 << 30
FREE_BYTES = 5 * GIB  # less cannot hold any training image; how much an image needs is known only once it is there
FREE_INODES = 100_000
SAY_EVERY_S = 10.0
SAY_EVERY_SHARE = 0.1


def pull(client: Client, ref: str, say: Say) -> None:
    """Pull an image.

    Raises:
        RuntimeProblem: the disk is nearly full, or the image cannot be had; the message says which.
    """
    import docker.errors

    check_room(Path(client.info()["DockerRootDir"]), ref)
    say(f"pulling {ref}")
    progress = PullProgress(ref, say)
    try:
        with closing_answers(client):
            for item in client.pull(*name_and_tag(ref), stream=True, decode=True):
                if "error" in item:
                    raise _problem(ref, str(item["error"]))
                progress.take(item)
    except docker.errors.APIError as error:
        raise _problem(ref, said(error)) from error


def check_room(root: Path, ref: str) -> None:
    """Refuse where the engine's folder, if it is on this machine, has too little room for any image.

    Raises:
        RuntimeProblem: fewer free bytes than FREE_BYTES or inodes than FREE_INODES.
    """
    try:
        disk = os.statvfs(root)
    except OSError:  # the engine runs elsewhere, or keeps its folder to itself
        return
    free_bytes, free_inodes = disk.f_bavail * disk.f_frsize, disk.f_favail
    lacks = f"{free_bytes / GIB:.1f} GiB" if free_bytes < FREE_BYTES else ""
    if disk.f_files and free_inodes < FREE_INODES:  # some file systems count no inodes
        lacks = f"{free_inodes} inodes"
    if lacks:
        raise RuntimeProblem(
            f"no room to pull {ref}: {root} has {lacks} left, and {FREE_BYTES // GIB} GiB and {FREE_INODES} inodes "
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
        self._said_at_s = time.monotonic()
        self._said_share = 0.0

    def take(self, item: Mapping[str, Any]) -> None:
        """Take one message of the engine."""
        layer, status = str(item.get("id", "")), item.get("status", "")
        detail = item.get("progressDetail") or {}
        if status in ("Downloading", "Pushing") and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif status in ("Download complete", "Pull complete", "Pushed") and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        self._speak()

    def _speak(self) -> None:
        total = sum(whole for _, whole in self._layers.values())
        got = sum(part for part, _ in self._layers.values())
        if not total:
            return
        now_s, share = time.monotonic(), got / total
        step = min(self._said_share + SAY_EVERY_SHARE, 1.0)
        if (share < step or self._said_share == 1.0) and now_s < self._said_at_s + SAY_EVERY_S:
            return
        self._said_at_s, self._said_share = now_s, share
        unit, name = (GIB, "GiB") if total >= GIB else (MIB, "MiB")
        last = "unpacking" if self._doing == "pulling" else "closing"
        rest = last if got >= total else f"{got / unit:.1f} of {total / unit:.1f} {name}"
        self._say(f"{self._doing} {self._ref}: {rest}")


def name_and_tag(ref: str) -> tuple[str, str]:
    """Return repository and tag or digest; without one, `latest` (the engine would pull or push every tag)."""
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(ref)
    return str(repository), str(tag or "latest")


def _problem(ref: str, words: str) -> RuntimeProblem:
    known = pull_problem(ref, words)
    return known or RuntimeProblem(f"image {ref} cannot be pulled: {words}", f"docker pull {ref}", cause=Cause.IMAGE)


# Give an image its name in a registry and push it there, with progress in lines.


def push(client: Client, ref: str, target: str, say: Say) -> None:
    """Push the local image `ref` as `target`; log in first where the registry wants it.

    Raises:
        RuntimeProblem: it cannot be named so, or the registry does not take it.
    """
    import docker.errors

    say(f"pushing {target}")
    progress = PullProgress(target, say, "pushing")
    try:
        client.tag(ref, *name_and_tag(target), force=True)
        with closing_answers(client):
            for item in client.push(*name_and_tag(target), stream=True, decode=True):
                if "error" in item:
                    raise _problem_push(target, str(item["error"]))
                progress.take(item)
    except docker.errors.APIError as error:
        raise _problem_push(target, said(error)) from error


def _problem_push(target: str, words: str) -> RuntimeProblem:
    return RuntimeProblem(f"{target} cannot be pushed: {words}", f"docker push {target}", cause=Cause.IMAGE)
