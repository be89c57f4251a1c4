"""Build an image by the engine's own builder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from madlite.errors import RuntimeProblem
from madlite.images.client import Client, closing_answers, error_text, pull_problem
from madlite.images.context import Packed, packed_context
from madlite.model import Cause, Image, Say
from madlite.secrets import reveal

# docker's `Step 1/2 : FROM x`; podman's `STEP 1/2: FROM x`, with `[1/2] ` before it where there are stages
_STEP = re.compile(r"^(?:\[\d+/\d+\] )?step \d+/\d+ ?: (?P<instruction>.+)$", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the builder prints a step's stderr in red
_BUILDERS_OWN = ("--->", "Removing intermediate container")
_FROM = re.compile(r"FROM\b", re.IGNORECASE)


def build(client: Client, image: Image, say: Say) -> str:
    """Build the image with a fresh base, or with the local one where the base cannot be pulled; return a note if so.

    Raises:
        RuntimeProblem: the context cannot be packed, or a step failed; the message holds the step and its last line.
    """
    with packed_context(client, image, say) as context:
        attempt = _Attempt(client, image, context, say)
        problem = attempt.build(pull=True)
        if problem is not None and attempt.failed_at_base:
            stale = _first_line(problem.message)
            say(f"{stale}; trying the one that is here")
            again = _Attempt(client, image, context, say)
            if (problem_again := again.build(pull=False)) is None:
                return f"the base image was not refreshed: {stale}"
            problem = problem if again.failed_at_base else problem_again
    if problem is not None:
        raise problem
    return ""


class _Attempt:
    """One build, and how far it came."""

    def __init__(self, client: Client, image: Image, context: Packed, say: Say) -> None:
        self._client = client
        self._image = image
        self._context = context
        self._say = say
        self._step = ""
        self._last_line = ""
        self._begun = ""  # the start of a line that the builder has not finished

    @property
    def failed_at_base(self) -> bool:
        return bool(_FROM.match(self._step))

    @property
    def failed_base(self) -> str:
        """What the FROM of the last step names; "" where that is an argument, or it is none."""
        words = [word for word in self._step.split()[1:] if not word.startswith("--")]
        return words[0] if self.failed_at_base and words and "$" not in words[0] else ""

    def build(self, *, pull: bool) -> RuntimeProblem | None:
        """Return None when the image is built, else why not."""
        import docker.errors

        arguments = _arguments(self._image, self._context)
        try:
            with closing_answers(self._client):
                for item in self._client.build(**arguments, pull=pull, decode=True):
                    if "error" in item:
                        return self._problem(str(item["error"]).strip())
                    self._take(str(item.get("stream", "")))
                self._take("\n")
        except docker.errors.APIError as error:
            return self._problem(error_text(error))
        except (OSError, TypeError) as error:
            return self._problem(str(error))
        return None

    def _take(self, text: str) -> None:
        """Pass the output on in whole lines: half a line may hold half a secret, which nobody would know."""
        text = _COLOUR.sub("", text)
        if _STEP.match(text) or text.lstrip().startswith(_BUILDERS_OWN):
            self._begun += "\n"
        lines = (self._begun + text).splitlines(keepends=True)
        self._begun = "" if text.endswith(("\n", "\r")) or not lines else lines.pop()
        for line in filter(None, map(str.strip, lines)):
            if found := _STEP.match(line):
                self._step, self._last_line = found["instruction"], ""
            elif not line.startswith(_BUILDERS_OWN):
                self._last_line = line
            self._say(line)

    def _problem(self, message: str) -> RuntimeProblem:
        self._take("\n")
        where = f"{self._image.dockerfile} does not build"
        if self.failed_at_base:
            problem = pull_problem(self.failed_base or self._image.base or self._step.split()[-1], message)
            if problem is not None:
                return problem
        step = f" at step '{self._step}'" if self._step else ""
        last = f" (last line: {self._last_line})" if self._last_line else ""
        cause = Cause.DISK if "no space left on device" in message else Cause.BUILD
        return RuntimeProblem(f"{where}{step}: {message}{last}", by_hand(self._image), cause=cause)


def _arguments(image: Image, context: Packed) -> dict[str, object]:
    context.file.seek(0)
    return {
        "fileobj": context.file,
        "custom_context": True,
        "dockerfile": context.dockerfile,
        "tag": image.ref,
        "buildargs": reveal(image.build_args),
        "nocache": image.no_cache,
        "network_mode": "host",
        "rm": True,
        "forcerm": True,
    }


def by_hand(image: Image) -> str:
    """Return the command that builds an image without madlite, less its arguments."""
    dockerfile = Path(image.dockerfile or "Dockerfile")
    contexts = [f"--build-context={name}={path}" for name, path in image.contexts.items()]
    return shlex.join(["docker", "build", *contexts, "-f", str(dockerfile), str(image.context or dockerfile.parent)])


def _first_line(text: str) -> str:
    return text.splitlines()[0]
