"""The context of a build: what is in it, what it is told of, and what never gets there."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import socket
import tarfile
import tempfile
from pathlib import Path

import pytest
from docker.utils.build import tar

from madlite.errors import RuntimeProblem
from madlite.images.build import build_with_buildkit, needs_buildkit, packed_context
from madlite.model import Cause, Image


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch) -> Path:
    """The temporary folder of this test alone."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "mad/docker/sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("of the host")
    (tmp_path / "mad/docker/x.Dockerfile").write_text("FROM scratch\n")
    return tmp_path / "mad"


def image(checkout: Path, context: str = "docker", dockerfile: str = "docker/x.Dockerfile") -> Image:
    return Image(ref="ci-x", dockerfile=checkout / dockerfile, context=checkout / context, root=checkout)


class Member(tarfile.TarInfo):
    data = b""


def pack(image: Image, say=lambda line: None) -> dict[str, Member]:
    """Return what the engine is sent, by name, each with its content as `data`."""
    with (
        packed_context(image, say) as packed,
        tarfile.open(fileobj=io.BytesIO(packed.file.read()), tarinfo=Member) as found,
    ):
        members = {member.name: member for member in found.getmembers()}
        for member in members.values():
            member.data = found.extractfile(member).read() if member.isfile() else b""
        members["Dockerfile of it"] = members[packed.dockerfile]
        return members


def told_lines(image: Image) -> list[str]:
    told: list[str] = []
    pack(image, told.append)
    return told


def test_a_context_is_packed_as_dockers_own_library_packs_it(checkout):
    folder = checkout / "docker"
    (folder / "sub/a").write_bytes(b"a" * 1000)
    (folder / "sub/run.sh").write_text("#!/bin/sh\n")
    (folder / "sub/run.sh").chmod(0o755)
    (folder / "left").mkdir()
    (folder / "left/out").touch()
    (folder / "left/kept").write_text("kept")
    (folder / f"{'n' * 120}-\u00e4").write_text("long")
    (folder / "link").symlink_to("sub/a")
    (folder / "gone").symlink_to("/nowhere")
    os.link(folder / "sub/a", folder / "same")
    (folder / ".dockerignore").write_text("# of no use\n\nleft\n!left/kept\n")
    ours = pack(image(checkout))
    with tarfile.open(
        fileobj=tar(str(folder), exclude=["left", "!left/kept"], dockerfile=("x.Dockerfile", None))
    ) as made:
        theirs = {member.name: member for member in made.getmembers()}
    del ours["Dockerfile of it"]
    assert ours.keys() == theirs.keys() and "left/kept" in ours and "left/out" not in ours
    for name, member in ours.items():
        other = theirs[name]
        assert (member.type, member.mode, member.size, member.linkname) == (
            *(other.type, other.mode, other.size, other.linkname),
        )
    assert ours["sub/run.sh"].data == b"#!/bin/sh\n" and ours["link"].linkname == "sub/a"


def test_a_dockerfile_from_elsewhere_is_packed_under_a_name_of_its_own_that_no_copy_takes(checkout):
    (checkout / "data").mkdir()
    (checkout / "data/.dockerignore").write_text("left\n")
    (checkout / "data/left").touch()
    found = pack(image(checkout, context="data"))
    name = found["Dockerfile of it"].name
    assert found[name].data == b"FROM scratch\n" and "left" not in found
    assert found[".dockerignore"].data.decode().splitlines() == ["left", name]


def test_the_size_is_told_before_anything_is_packed(checkout):
    (checkout / "docker/weights").write_bytes(b"1" * (3 << 20))
    assert told_lines(image(checkout)) == ["build context: 3.0 MiB in 2 files"]


def test_the_dockerignore_of_a_dockerfile_goes_before_its_contexts(checkout):
    (checkout / "docker/weights").write_bytes(b"1" * (3 << 20))
    (checkout / "docker/.dockerignore").write_text("none\n")
    (checkout / "docker/x.Dockerfile.dockerignore").write_text("weights\n")
    assert told_lines(image(checkout)) == ["build context: 26 B in 3 files"]  # the Dockerfile and both lists


OWN = ("madlite_runs/r/run.log", ".venv/bin/python", "perf.csv", "perf_super.json", "a.run.live.log", "perf_entry.csv")


@pytest.fixture
def used(checkout: Path) -> Path:
    """A checkout in which runs have left their files, and whose cards are built from all of it."""
    for name in (*OWN, "docker/madlite_runs/x", "scripts/perf.csv", "src/a"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x")
    return checkout


@pytest.mark.parametrize("context", [".", ".."])
def test_what_madlite_writes_into_a_working_folder_is_in_no_context_of_it(used, context):
    found = pack(image(used, context=context))
    names = {name.removeprefix("mad/") for name in found}
    assert names.isdisjoint((*OWN, "madlite_runs", ".venv"))
    assert {"src/a", "scripts/perf.csv", "docker/madlite_runs/x"} <= names, (
        "files of the same name elsewhere are not ours"
    )


def test_a_dockerignore_takes_it_in_and_a_folder_below_has_it_all(used):
    (used / ".dockerignore").write_text("# of ours\n!perf.csv\n!madlite_runs\nsrc\n")
    found = pack(image(used, context="."))
    assert {"perf.csv", "madlite_runs/r/run.log"} <= set(found) and {"src/a", "a.run.live.log"}.isdisjoint(found)
    assert "madlite_runs/x" in pack(image(used)), "its context is docker/, which no run writes to"


def test_buildkit_reads_a_dockerignore_that_leaves_it_out_too(used, tmp_path):
    (tmp_path / "docker").write_text(
        '#!/bin/sh\nfor word; do case $word in *.Dockerfile) echo "$word"; '
        f'cp "$word" "$word.dockerignore" {tmp_path};; esac; last=$word; done\necho "context $last"\n'
    )
    (tmp_path / "docker").chmod(0o755)
    (used / ".dockerignore").write_text("src\n!perf.csv\n")
    told: list[str] = []
    build_with_buildkit(image(used, context="."), {"PATH": f"{tmp_path}:/bin"}, told.append)
    assert (tmp_path / "x.Dockerfile").read_text() == "FROM scratch\n" and told[-1] == f"context {used}"
    ignored = (tmp_path / "x.Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[-2:] == ["src", "!perf.csv"] and {"madlite_runs", ".venv", "perf.csv", "*.live.log"} <= {*ignored}
    assert not Path(told[1]).exists() and told[0].startswith("build context: ")
    told.clear()
    (used / "docker/x.Dockerfile.dockerignore").write_text("own\n")
    build_with_buildkit(image(used, context="."), {"PATH": f"{tmp_path}:/bin"}, told.append)
    assert (tmp_path / "x.Dockerfile.dockerignore").read_text().endswith("\nown\n")


def test_buildkit_builds_from_a_context_larger_than_the_temporary_folder(used, tmp_path):
    with (used / "weights").open("wb") as file:
        file.truncate(shutil.disk_usage(tempfile.gettempdir()).free + (1 << 30))
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "docker").chmod(0o755)
    assert build_with_buildkit(image(used, context="."), {"PATH": f"{tmp_path}:/bin"}, lambda line: None) == ""


def test_buildkit_builds_from_a_context_that_cannot_be_read_as_a_whole(used, tmp_path, monkeypatch):
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "docker").chmod(0o755)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "lstat", refuse)
    told: list[str] = []
    assert build_with_buildkit(image(used, context="."), {"PATH": f"{tmp_path}:/bin"}, told.append) == "" and not told
    with pytest.raises(RuntimeProblem, match="cannot be read: Permission denied"):
        pack(image(used, context="."))


def test_pipes_sockets_and_devices_are_left_out_unopened_and_named(checkout):
    os.mkfifo(checkout / "docker/pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(checkout / "docker/s"))
        told: list[str] = []
        found = pack(image(checkout), told.append)
    assert {"pipe", "s"}.isdisjoint(found)
    assert told[1] == "left out of the build context: pipe, a pipe; s, a device or socket"


def test_a_sparse_giant_is_refused_by_what_it_would_take_and_leaves_nothing(checkout, scratch):
    with (checkout / "docker/sparse").open("wb") as file:
        file.truncate(1 << 40)
    told: list[str] = []
    with pytest.raises(RuntimeProblem, match=r"no space left in .*/scratch") as refused:
        pack(image(checkout), told.append)
    assert refused.value.cause is Cause.DISK and ".dockerignore" in refused.value.hint
    assert told == ["build context: 1.0 TiB in 2 files"] and list(scratch.iterdir()) == []
    (checkout / "docker/.dockerignore").write_text("sparse\n")
    assert "sparse" not in pack(image(checkout))


def test_what_is_packed_has_no_name_that_a_kill_could_leave(checkout, scratch):
    with packed_context(image(checkout), lambda line: None) as packed:
        assert os.fstat(packed.file.fileno()).st_size and list(scratch.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_told_as_that(checkout, scratch):
    (checkout / "docker/weights").write_bytes(b"1" * (3 << 20))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RuntimeProblem, match="no space left in .*/scratch") as full:
            pack(image(checkout), lambda line: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1])))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert full.value.cause is Cause.DISK and list(scratch.iterdir()) == []


@pytest.mark.parametrize("way", ["up", "absolute", "link"])
def test_a_context_elsewhere_is_named_in_the_log(checkout, tmp_path, way):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (checkout / "linked").symlink_to(elsewhere)
    context = {"up": "../elsewhere", "absolute": str(elsewhere), "link": "linked"}[way]
    (line,) = told_lines(image(checkout, context=context))
    assert line == f"build context: 0 B in 0 files of {elsewhere}, outside of {checkout}"


def test_a_file_that_becomes_a_link_while_it_is_packed_is_not_followed(checkout, tmp_path):
    (checkout / "docker/sub/outside").write_text("own")

    def exchange(line: str) -> None:
        (checkout / "docker/sub/outside").unlink()
        (checkout / "docker/sub/outside").symlink_to(tmp_path / "outside")

    found = pack(image(checkout), exchange)["sub/outside"]
    assert found.issym() and found.data == b""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_dockerfile_that_is_a_link_out_of_its_checkout_is_not_built(checkout, tmp_path, kind):
    if kind == "file":
        (checkout / "docker/y.Dockerfile").symlink_to(tmp_path / "outside")
        one = image(checkout, dockerfile="docker/y.Dockerfile")
    else:
        (checkout / "far").symlink_to(tmp_path)
        one = image(checkout, dockerfile="far/outside")
    with pytest.raises(RuntimeProblem, match=rf"link.* to {tmp_path}/outside, outside of {checkout}"):
        needs_buildkit(one)


def test_a_dockerfile_that_the_card_spells_elsewhere_is_built(checkout, tmp_path):
    (tmp_path / "other.Dockerfile").write_text("FROM scratch\n")
    one = image(checkout, dockerfile="../other.Dockerfile")
    assert needs_buildkit(one) == "" and pack(one)["Dockerfile of it"].data == b"FROM scratch\n"


def test_what_cannot_be_read_is_named(checkout):
    with pytest.raises(RuntimeProblem, match="the build context .*/docker/gone cannot be read: No such file"):
        pack(image(checkout, context="docker/gone"))
    os.mkfifo(checkout / "docker/.dockerignore")
    with pytest.raises(RuntimeProblem, match=r"\.dockerignore cannot be read: it is a pipe"):
        pack(image(checkout))
