"""Follow a long answer of the engine (a build, a pull), and explain what can go wrong in both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from madlite.errors import RuntimeProblem
from madlite.images.client import Client
from madlite.model import Cause

_FULL = re.compile(r"no space left on device|disk quota exceeded|not enough inodes", re.IGNORECASE)
_DENIED = re.compile(r"pull access denied|unauthorized|authentication required|\bdenied\b", re.IGNORECASE)
_ABSENT = re.compile(r"manifest unknown|not found|does not exist", re.IGNORECASE)
_LIMITED = re.compile(r"toomanyrequests|rate limit", re.IGNORECASE)
_PLATFORM = re.compile(r"no matching manifest for", re.IGNORECASE)
_OFFLINE = re.compile(
    r"no such host|connection refused|i/o timeout|network is unreachable|no route to host|Client\.Timeout|"
    r"TLS handshake|temporary failure|server misbehaving|context deadline exceeded|connection reset|\bEOF\b",
    re.IGNORECASE,
)


@contextmanager
def closing_answers(client: Client) -> Iterator[None]:
    """Close every answer that was begun inside, also when an interrupt cuts in: the engine then ends its work.

    No limit bounds the wait for them: the docker library sets none for a pull or a build, and forgets it for a push.
    """
    begun: list[Any] = []
    limit_s, client.timeout = client.timeout, None

    def remember(response: Any, *_args: Any, **_kwargs: Any) -> None:
        begun.append(response)

    client.hooks["response"].append(remember)
    try:
        yield
    finally:
        client.timeout = limit_s
        client.hooks["response"].remove(remember)
        for response in begun:
            response.close()


def pull_problem(ref: str, words: str) -> RuntimeProblem | None:
    """Return why an image cannot be had, in one sentence; None where the engine's words do not tell."""
    login = f"docker login, then docker pull {ref}"
    if _FULL.search(words):
        return RuntimeProblem(
            f"the disk is full while getting image {ref}: {words}",
            "docker system df, docker image prune",
            cause=Cause.DISK,
        )
    for pattern, reason, hint in (
        (_LIMITED, "the registry's pull limit is reached", login),
        (_PLATFORM, "the registry has it for other processors only", f"docker manifest inspect {ref}"),
        (_OFFLINE, f"the registry cannot be reached ({words})", f"check network and proxy: docker pull {ref}"),
        (_DENIED, "there is no such repository, or it needs a login", login),
        (_ABSENT, "the registry has no such tag", "check the name: the card's image, --image, or the FROM line"),
    ):
        if pattern.search(words):
            return RuntimeProblem(f"image {ref} cannot be pulled: {reason}", hint, cause=Cause.IMAGE)
    return None
