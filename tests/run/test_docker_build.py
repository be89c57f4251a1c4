"""What a build of the engine's own builder comes to, by what the engine says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from madlite.errors import RuntimeProblem
from madlite.images import build as module
from madlite.images.build import StaleBases, build
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


def test_a_build_pulls_its_base_and_says_its_lines(image):
    engine, said = Builder(BUILT), []
    assert build(engine, image, said.append) == "" and engine.pulls == [True]
    assert said[1:] == [f"Step 1/2 : FROM {BASE}", "---> 0123456789ab", "Step 2/2 : RUN make", "gcc main.c"]
    assert engine.asked[0]["buildargs"] == {"TOKEN": "12345678"} and engine.asked[0]["tag"] == "ci-x"


def test_a_base_whose_registry_is_away_is_the_one_that_is_here_and_is_not_asked_for_again(image, monkeypatch):
    engine, stale, said = Builder([FROM, AWAY], BUILT, BUILT, [FROM, AWAY], BUILT), StaleBases(), []
    note = build(engine, image, said.append, BASE, stale)
    assert engine.pulls == [True, False] and "trying the one that is here" in "".join(said)
    assert note.startswith(f"the base image was not refreshed: image {BASE} cannot be pulled: the registry cannot be")
    assert build(engine, image, said.append, BASE, stale) == note and engine.pulls[2:] == [False]
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 601)
    assert build(engine, image, said.append, BASE, stale) == note and engine.pulls[3:] == [True, False], "later it is"
    assert stale.reason("another") == ""


def test_a_base_that_is_gone_since_is_pulled_for(image):
    stale = StaleBases()
    stale.note(BASE, "the registry was away")
    engine = Builder([FROM, GONE], [FROM, GONE], [FROM, GONE])
    with pytest.raises(RuntimeProblem, match=f"image {BASE} cannot be pulled: there is no such repository") as problem:
        build(engine, image, lambda line: None, BASE, stale)
    assert problem.value.cause is Cause.IMAGE and engine.pulls == [False, True, False]


@pytest.mark.parametrize("known", [True, False])
def test_a_step_that_fails_is_told_with_its_last_line_whatever_is_known_of_the_base(image, known):
    stale = StaleBases()
    if known:
        stale.note(BASE, "the registry was away")
    engine = Builder([*BUILT, {"stream": "no rule"}, {"error": "returned a non-zero code: 2"}])
    with pytest.raises(RuntimeProblem) as problem:
        build(engine, image, lambda line: None, BASE, stale)
    told = "Dockerfile does not build at step 'RUN make': returned a non-zero code: 2 (last line: no rule)"
    assert told in problem.value.message and problem.value.cause is Cause.BUILD
    assert problem.value.hint == f"docker build -f {image.dockerfile} {image.dockerfile.parent}"
    assert engine.pulls == [not known], "it is no failure of the base"


def test_a_disk_that_is_full_is_its_own_cause(image):
    with pytest.raises(RuntimeProblem) as problem:
        build(Builder([*BUILT, {"error": "write /x: no space left on device"}]), image, lambda line: None)
    assert problem.value.cause is Cause.DISK


def test_what_is_known_of_one_base_is_nothing_of_another(image):
    engine, stale = Builder([{"stream": "Step 1/3 : FROM local/only AS tools\n"}, AWAY], BUILT, BUILT), StaleBases()
    assert "image local/only cannot be pulled" in build(engine, image, lambda line: None, BASE, stale)
    assert stale.reason(BASE) == "" and build(engine, image, lambda line: None, BASE, stale) == ""
    assert engine.pulls == [True, False, True]
