"""The tests of this folder leave no image on an engine that was given to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.checkout import DOCKERFILE, Checkout
from tests.engine_fixture import remove_built

pytestmark = pytest.mark.engine


def test_names_and_nameless_layers_of_builds_are_removed(client, engine: str, base_image: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    checkout.card("built", 'echo "performance: 5 x"\n')
    base = client.inspect_image(base_image)["Id"]
    made = set()
    for step, code in (("true", 0), ("exit 9", 2)):
        dockerfile = f"{DOCKERFILE}RUN echo {tmp_path} > /own\nRUN {step}\n"
        (checkout.folder / "docker/base.Dockerfile").write_text(dockerfile)
        assert checkout.run("--tags", "built").returncode == code
        made |= {image["Id"] for image in client.images(all=True) if _is_of(client, image["Id"], str(tmp_path))}
    assert len(made) > 1 and client.images("ci-built_base")
    remove_built(engine, tmp_path)
    assert client.images("ci-built_base") == [] and client.inspect_image(base_image)["Id"] == base
    assert made & {image["Id"] for image in client.images(all=True)} == set()


def _is_of(client, image: str, mark: str) -> bool:
    return any(mark in layer["CreatedBy"] for layer in client.history(image))
