"""Give an image its name in a registry and push it there, with progress in lines."""

from __future__ import annotations

from madlite.errors import RuntimeProblem
from madlite.images.answers import closing_answers
from madlite.images.client import Client, said
from madlite.images.pull import Progress, name_and_tag
from madlite.model import Cause, Say


def push(client: Client, ref: str, target: str, say: Say) -> None:
    """Push the local image `ref` as `target`; log in first where the registry wants it.

    Raises:
        RuntimeProblem: it cannot be named so, or the registry does not take it.
    """
    import docker.errors

    say(f"pushing {target}")
    progress = Progress(target, say, "pushing")
    try:
        client.tag(ref, *name_and_tag(target), force=True)
        with closing_answers(client):
            for item in client.push(*name_and_tag(target), stream=True, decode=True):
                if "error" in item:
                    raise _problem(target, str(item["error"]))
                progress.take(item)
    except docker.errors.APIError as error:
        raise _problem(target, said(error)) from error


def _problem(target: str, words: str) -> RuntimeProblem:
    return RuntimeProblem(f"{target} cannot be pushed: {words}", f"docker push {target}", cause=Cause.IMAGE)
