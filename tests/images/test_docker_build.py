"""What a build of the engine's own builder comes to, by what the engine says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from madlite.errors import RuntimeProblem
from madlite.images.build import build
from madlite.model import Cause, Image, Secret

BASE = "rocm/primus:v25.9"
FROM = {"stream": f"Step 1/2 : FROM {BASE}\n"}
AWAY = {"error": "Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host"}
GONE = {"error": f"pull access denied for {BASE}, repository does not exist or may require 'docker login'"}
RUN = {"stream": "Step 2/2 : RUN make\n"}
BUILT = [FROM, {"stream": " ---> 0123456789ab\n"}, RUN, {"stream": "gcc main.c\n"}]


class Builder:
    """An engine that answers its builds one after another."""

    timeout = 60

    def __init__(self, *answers: list[dict[str, str]]) -> None:
        self.hooks: dict[str, list[Any]] = {"response": []}
        self.left, self.asked = list(answers), []

    def build(self, **arguments: Any) -> list[dict[str, str]]:
        assert arguments["fileobj"].tell() == 0, "each build gets the whole context"
        arguments["fileobj"].read()
        self.asked.append(arguments)
        return self.left.pop(0)

    @property
    def pulls(self) -> list[bool]:
        return [one["pull"] for one in self.asked]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN make\n")
    return Image(ref="ci-x", dockerfile=tmp_path / "Dockerfile", build_args={"TOKEN": Secret("12345678")})


def test_a_build_pulls_its_base_or_takes_the_one_that_is_here(image):
    # a build pulls its base and says its lines
    engine, said = Builder(BUILT), []
    assert build(engine, image, said.append) == "" and engine.pulls == [True]
    assert said[1:] == [f"Step 1/2 : FROM {BASE}", "---> 0123456789ab", "Step 2/2 : RUN make", "gcc main.c"]
    assert engine.asked[0]["buildargs"] == {"TOKEN": "12345678"} and engine.asked[0]["tag"] == "ci-x"
    # a base whose registry is away is the one that is here
    engine, said = Builder([FROM, AWAY], BUILT), []
    note = build(engine, image, said.append)
    assert engine.pulls == [True, False] and "trying the one that is here" in "".join(said)
    assert note.startswith(f"the base image was not refreshed: image {BASE} cannot be pulled: the registry cannot be")


def test_a_base_that_is_nowhere_is_told_as_the_registry_has_it(image):
    engine = Builder([FROM, GONE], [FROM, GONE])
    with pytest.raises(RuntimeProblem, match=f"image {BASE} cannot be pulled: there is no such repository") as problem:
        build(engine, image, lambda line: None)
    assert problem.value.cause is Cause.IMAGE and engine.pulls == [True, False]
    # a base of a stage is told by its name
    engine = Builder([{"stream": "Step 1/3 : FROM --platform=linux/amd64 local/only AS tools\n"}, AWAY], BUILT)
    assert "image local/only cannot be pulled" in build(engine, image, lambda line: None)


def test_a_step_that_fails_is_told_with_its_last_line(image):
    engine = Builder([*BUILT, {"stream": "no rule"}, {"error": "returned a non-zero code: 2"}])
    with pytest.raises(RuntimeProblem) as problem:
        build(engine, image, lambda line: None)
    told = "Dockerfile does not build at step 'RUN make': returned a non-zero code: 2 (last line: no rule)"
    assert told in problem.value.message and problem.value.cause is Cause.BUILD
    assert problem.value.hint == f"docker build -f {image.dockerfile} {image.dockerfile.parent}"
    assert engine.pulls == [True], "it is no failure of the base"


def test_a_disk_that_is_full_is_its_own_cause(image):
    with pytest.raises(RuntimeProblem) as problem:
        build(Builder([*BUILT, {"error": "write /x: no space left on device"}]), image, lambda line: None)
    assert problem.value.cause is Cause.DISK
