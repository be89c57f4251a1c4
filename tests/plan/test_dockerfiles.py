"""Which Dockerfiles fit: the prefix, and the header of the first five lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.model import Card
from madlite.plan.images import base_of, find_dockerfiles
from tests.rows import each_row

AMD = "# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU'}\nARG BASE_DOCKER=rocm/pytorch\nFROM $BASE_DOCKER\n"


@pytest.fixture
def card(tmp_path):
    (tmp_path / "docker").mkdir()
    return Card(name="x", root=tmp_path, source="models.json", dockerfile="docker/x")


def test_all_that_fit_are_found_in_order(card, tmp_path):
    for name, text in {"x.b.amd": AMD, "x.a.amd": AMD, "xy.amd": AMD, "x.nv": AMD.replace("AMD", "NVIDIA")}.items():
        (tmp_path / f"docker/{name}.Dockerfile").write_text(text)
    found = find_dockerfiles(card, {"gpu_vendor": "AMD", "guest_os": "UBUNTU"})
    assert [file.path.name for file in found.fitting] == ["x.a.amd.Dockerfile", "x.b.amd.Dockerfile"]
    assert found.fitting[0].base == "rocm/pytorch"
    assert "wants gpu_vendor NVIDIA, here it is AMD" in found.refused[0]


def test_keys_that_only_one_side_has_do_not_matter(card, tmp_path):
    (tmp_path / "docker/x.Dockerfile").write_text(AMD)
    assert len(find_dockerfiles(card, {"gpu_vendor": "AMD", "ctx_test": "2"}).fitting) == 1
    assert len(find_dockerfiles(card, {}).fitting) == 1


@each_row("text", ["FROM x\n", "\n" * 5 + AMD, "# CONTEXT {oops\n", "# CONTEXT [1]\n", "# CONTEXT {[]: 1}\n"])
def test_without_a_readable_header_a_file_is_refused_and_says_so(card, text):
    (card.root / "docker/x.Dockerfile").write_text(text)
    found = find_dockerfiles(card, {})
    assert not found.fitting and found.refused


def test_the_base_image():
    assert base_of('ARG BASE_DOCKER="a:1"\n') == "a:1"
    assert base_of("RUN echo ARG BASE_DOCKER=no\n") == ""


def test_the_build_context(tmp_path):
    (tmp_path / "docker").mkdir()
    for name in ("primus_x", "y"):
        (tmp_path / f"docker/{name}.Dockerfile").write_text("# CONTEXT {}\n")
    card = Card(name="p", root=tmp_path, source="s", dockerfile="docker/primus_x")
    assert find_dockerfiles(card, {}).fitting[0].context == tmp_path
    card = Card(name="p", root=tmp_path, source="s", dockerfile="docker/y")
    assert find_dockerfiles(card, {}).fitting[0].context == tmp_path / "docker"
    card = Card(name="p", root=tmp_path, source="s", dockerfile="docker/y", dockercontext="./ctx")
    assert find_dockerfiles(card, {}).fitting[0].context == tmp_path / "ctx"


def test_a_dockerfile_that_cannot_be_read_is_one_sentence(card, tmp_path, monkeypatch):
    (tmp_path / "docker/x.Dockerfile").write_text(AMD)

    def shut(path: Path, root: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("madlite.plan.images.read_as_spelled", shut)
    with pytest.raises(UsageProblem, match=r"x\.Dockerfile cannot be read: Permission denied"):
        find_dockerfiles(card, {})


def test_a_dockerfile_that_the_system_refuses_to_look_at_is_one_sentence(card, tmp_path):
    (tmp_path / "docker/x.loop").symlink_to("x.loop")
    with pytest.raises(UsageProblem, match="symbolic links"):
        find_dockerfiles(card, {})
    with pytest.raises(UsageProblem, match="too long"):
        find_dockerfiles(Card(name="x", root=tmp_path, source="s", dockerfile="x" * 300 + "/x"), {})


def test_a_header_nested_too_deeply_is_refused(card, tmp_path):
    (tmp_path / "docker/x.Dockerfile").write_text(f"# CONTEXT {{'a': {'-' * 90000}1}}\n")
    assert "cannot be read" in find_dockerfiles(card, {}).refused[0]
