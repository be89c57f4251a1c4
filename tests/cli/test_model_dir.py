"""$MODEL_DIR: a checkout elsewhere."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.cli import setup
from madlite.cli.main import call
from madlite.cli.setup import find_model_dir, find_workspace
from madlite.errors import CatalogError, UsageProblem
from madlite.files import Folder
from madlite.run import model_dir
from madlite.run.model_dir import copy_model_dir
from tests.rows import each_row


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "mad"
    (folder / "scripts/toy/configs").mkdir(parents=True)
    (folder / "scripts/toy/run.sh").write_text("echo new\n")
    (folder / "scripts/toy/run.sh").chmod(0o755)
    (folder / "scripts/toy/configs/a.csv").write_text("a\n1\n")
    (folder / "models.json").write_text(json.dumps([{"name": "toy"}]))
    (folder / "dataset").mkdir()
    (folder / "dataset/huge.bin").touch()
    return folder


def test_cards_scripts_and_settings_are_brought(elsewhere: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (elsewhere / "scripts/toy/__pycache__").mkdir()
    (elsewhere / "scripts/toy/__pycache__/x.pyc").touch()
    assert copy_model_dir(elsewhere, here, "runs") == 3
    assert (here / "scripts/toy/run.sh").stat().st_mode & 0o111
    assert (here / "scripts/toy/configs/a.csv").read_text() == "a\n1\n"
    assert not (here / "dataset").exists() and not list(here.rglob("*.pyc"))
    assert copy_model_dir(elsewhere, here, "runs") == 0, "the second time nothing is left to do"


def test_which_folder_is_meant(elsewhere: Path, tmp_path: Path) -> None:
    assert find_model_dir({"MODEL_DIR": "mad"}, tmp_path) == elsewhere
    assert find_model_dir({"MODEL_DIR": str(elsewhere)}, elsewhere) is None
    assert find_model_dir({"MODEL_DIR": "./"}, tmp_path) is None
    assert find_model_dir({}, tmp_path) is None
    with pytest.raises(UsageProblem, match="MODEL_DIR=nowhere"):
        find_model_dir({"MODEL_DIR": "nowhere"}, tmp_path)


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def kept(here: Path, name: str) -> list[str]:
    return sorted(path.read_text() for path in here.glob(f"runs/replaced-*/{name}"))


def test_what_was_there_is_kept_each_time(tmp_path: Path) -> None:
    """Two folders brought within one second: the first one's file is kept beside the user's, not over it."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "data.json").write_text("mine")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.json").write_text(name)
        copy_model_dir(tmp_path / name, here, "runs")
    assert (here / "data.json").read_text() == "c"
    assert kept(here, "data.json") == ["a", "b", "mine"]


@pytest.mark.host
def test_several_at_once_lose_nothing_and_bring_all(tmp_path: Path) -> None:
    here, source = tmp_path / "here", tmp_path / "mad"
    for n in range(100):
        for folder, text in ((here, f"mine {n}"), (source, f"theirs {n}")):
            file = folder / f"scripts/toy/{n}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    code = (
        "import sys; from pathlib import Path; from madlite.run.model_dir import copy_model_dir\n"
        "print('ready', flush=True); sys.stdin.read(); copy_model_dir(Path(sys.argv[1]), Path(sys.argv[2]), 'runs')"
    )
    start = [sys.executable, "-c", code, str(source), str(here)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(start, text=True, **pipes) for _ in range(4)]
    assert [one.stdout.readline() for one in running] == ["ready\n"] * 4
    for one in running:  # all begin now
        one.stdin.close()
        one.stdin = None
    said = "".join(one.communicate()[1] for one in running)
    assert "not copied" not in said and said.count("is replaced") >= 100
    assert tree(here / "scripts") == tree(source / "scripts")
    assert {*kept(here, "scripts/toy/*.txt")} >= {f"mine {n}" for n in range(100)}


def test_a_file_is_there_at_every_moment(elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "models.json").write_text("mine")
    seen = []
    rename = Folder.rename

    def watched(self: Folder, name: str, to: str) -> None:
        if to == "models.json":
            seen.append(((self.path / to).read_text(), kept(here, "models.json")))
        rename(self, name, to)

    monkeypatch.setattr(Folder, "rename", watched)
    copy_model_dir(elsewhere, here, "runs")
    assert seen == [("mine", ["mine"])], "the moment before it is replaced it is there, and kept"


def test_what_is_replaced_is_kept_where_the_folder_of_runs_is_on_another_disk(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rename = os.rename

    def on_one_disk(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if not os.path.samestat(os.fstat(src_dir_fd), os.fstat(dst_dir_fd)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    here = tmp_path / "here"
    here.mkdir()
    (here / "models.json").write_text("mine")
    (here / "data.json").symlink_to("nowhere")
    (elsewhere / "data.json").write_text("theirs")
    monkeypatch.setattr(os, "rename", on_one_disk)
    copy_model_dir(elsewhere, here, "runs")
    assert kept(here, "models.json") == ["mine"] and "toy" in (here / "models.json").read_text()
    (folder,) = here.glob("runs/replaced-*")
    assert (folder / "data.json").readlink() == Path("nowhere")
    assert (here / "data.json").read_text() == "theirs" and "not copied" not in caplog.text


def test_what_cannot_be_kept_is_not_replaced(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy_in = Folder.copy_in

    def full(self: Folder, fd: int, path: Path, name: str, limit_bytes: int) -> None:
        if "replaced-" in str(self.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy_in(self, fd, path, name, limit_bytes)

    here = tmp_path / "here"
    here.mkdir()
    (here / "models.json").write_text("mine")
    monkeypatch.setattr(Folder, "copy_in", full)
    copy_model_dir(elsewhere, here, "runs")
    assert (here / "models.json").read_text() == "mine"
    assert "models.json is not copied from MODEL_DIR: No space left on device" in caplog.text


def test_a_folder_in_a_files_place_is_kept(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "here/models.json").mkdir(parents=True)
    (tmp_path / "here/models.json/x").write_text("mine")
    copy_model_dir(elsewhere, tmp_path / "here", "runs")
    assert kept(tmp_path / "here", "models.json/x") == ["mine"]
    assert (tmp_path / "here/models.json").is_file()


def test_linked_folders_are_brought_and_circles_are_left(
    elsewhere: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (elsewhere / "real_common").mkdir()
    (elsewhere / "real_common/help.sh").write_text("echo help\n")
    (elsewhere / "scripts/common").symlink_to("../real_common")
    (elsewhere / "scripts/toy/common").symlink_to("../../real_common")
    (elsewhere / "scripts/toy/again").symlink_to("..")
    (elsewhere / "scripts/all").symlink_to(elsewhere)
    here = elsewhere / "work"  # a working folder inside what is brought
    here.mkdir()
    (elsewhere / "scripts/work").symlink_to("../work")
    copy_model_dir(elsewhere, here, "runs")
    assert set(tree(here / "scripts")) == {"common/help.sh", "toy/common/help.sh", "toy/run.sh", "toy/configs/a.csv"}
    assert caplog.text.count("leads back") == 3


def test_what_cannot_be_brought_is_told_and_the_rest_is(
    elsewhere: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (elsewhere / "scripts/toy/dangling").symlink_to("nowhere")
    here = tmp_path / "here"
    here.mkdir()
    assert copy_model_dir(elsewhere, here, "runs") == 3
    assert "dangling is not copied from MODEL_DIR: No such file" in caplog.text
    assert not list(here.rglob(".*.[0-9]*"))


def test_a_working_folder_that_is_not_ours_is_one_sentence(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(UsageProblem, match="nothing can be copied"):
        copy_model_dir(elsewhere, tmp_path, "runs")


@each_row("named", ["x" * 300, "loop"])
def test_a_name_that_leads_nowhere_is_one_sentence(tmp_path: Path, named: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageProblem, match="cannot be inspected"):
        find_model_dir({"MODEL_DIR": named}, tmp_path)


def make_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_dir: Path) -> Path:
    """Make a working folder with a card of its own, and set MODEL_DIR."""
    folder = tmp_path / "here"
    (folder / "scripts/own").mkdir(parents=True)
    (folder / "scripts/own/models.json").write_text(json.dumps([{"name": "mine"}]))
    (folder / "models.json").write_text("[]")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MODEL_DIR", os.path.relpath(model_dir, folder))
    return folder


@pytest.fixture
def here(elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_here(tmp_path, monkeypatch, elsewhere)


@each_row(("tags", "error"), [(["nonsense"], CatalogError), (["toy,nonsense"], CatalogError), ([], UsageProblem)])
def test_a_wrong_tag_is_found_out_before_anything_is_brought(here: Path, tags: list[str], error: type) -> None:
    before = tree(here)
    with pytest.raises(error):
        setup.copy_model_dir(setup.load(True), tags)
    assert tree(here) == before


@each_row("tags", [["toy"], ["toy", "own/mine"], ["mine"], ["demo"], None])
def test_cards_of_both_folders_can_be_asked_for(elsewhere: Path, tmp_path: Path, monkeypatch, tags) -> None:
    here = make_here(tmp_path, monkeypatch, elsewhere)
    setup.copy_model_dir(setup.load(True), tags)
    assert "toy" in (here / "models.json").read_text()
    assert kept(here, "models.json") == [] and len(list(here.glob("madlite_runs/replaced-*"))) == 1


def test_a_broken_catalogue_is_not_brought(here: Path, elsewhere: Path) -> None:
    (elsewhere / "models.json").write_text("[{")
    with pytest.raises(CatalogError):
        setup.copy_model_dir(setup.load(True), ["toy"])
    assert (here / "models.json").read_text() == "[]"


def test_discover_looks_there_and_touches_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(here)
    assert call(["discover", "--tags", "toy"]) == 0
    assert "toy" in capsys.readouterr().out and tree(here) == before


def test_options_do_not_bring(here: Path, elsewhere: Path) -> None:
    assert find_workspace(touch=True) == here and find_workspace(touch=False) == elsewhere
    assert (here / "models.json").read_text() == "[]"


def test_a_file_that_an_option_names_may_be_one_that_is_brought(here: Path, elsewhere: Path) -> None:
    (elsewhere / "data.json").write_text("{}")
    (elsewhere / "others.json").write_text("{}")
    assert model_dir.is_copied(elsewhere, Path("data.json"))
    for path in ("others.json", "scripts", "scripts/../data.json", str(elsewhere / "data.json"), "."):
        assert not model_dir.is_copied(elsewhere, Path(path))
    shutil.copy(elsewhere / "data.json", here / "own.json")
    assert setup._named_file("--data-config", Path("data.json"), elsewhere) == elsewhere / "data.json"
    assert setup._named_file("--data-config", Path("data.json"), here) == here / "data.json"
    assert setup._named_file("--data-config", Path("own.json"), elsewhere) == here / "own.json"
    with pytest.raises(UsageProblem, match=r"--data-config others\.json"):
        setup._named_file("--data-config", Path("others.json"), elsewhere)


@each_row("words", ["build --tags nonsense", "run --tags nonsense", "run --tags toy -c {", "run"])
def test_a_refused_command_line_brings_nothing(here: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    before = tree(here)
    assert call(words.split()) == 4 and capsys.readouterr().err
    assert tree(here) == before


@each_row("service", ["", '{"MINIO_ENDPOINT": "http://store"}'])
def test_a_service_makes_no_credential_file(
    here: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], service: str
) -> None:
    card = {"name": "toy", "scripts": "scripts/toy/run.sh", "cred": "MINI"}
    (elsewhere / "models.json").write_text(json.dumps([card]))
    monkeypatch.setenv("MAD_MINIO", service)
    assert call(["explain", "toy", "--runtime", "host"]) == 0
    assert "would not start" not in capsys.readouterr().out


def test_a_full_disk_leaves_what_was_there_and_no_half_of_a_file(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    (here / "scripts/toy").mkdir(parents=True)
    (here / "scripts/toy/run.sh").write_text("echo mine\n")

    def full(new: int, data: bytes) -> None:
        os.write(new, data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("madlite.files.write_all", full)
    assert copy_model_dir(elsewhere, here, "runs") == 0
    assert "run.sh is not copied from MODEL_DIR: No space left on device" in caplog.text
    assert tree(here / "scripts") == {"toy/run.sh": "echo mine\n"}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("own")
    return tmp_path / "victim"


@each_row("place", ["runs", "scripts", "scripts/toy", "scripts/toy/configs"])
def test_nothing_is_brought_through_a_folder_that_became_a_link(
    elsewhere: Path, tmp_path: Path, victim: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    (here / place).parent.mkdir(parents=True)
    (here / place).symlink_to(victim)
    if place == "runs":
        with pytest.raises(UsageProblem, match="a link is in the place of runs"):
            copy_model_dir(elsewhere, here, "runs")
    else:
        copy_model_dir(elsewhere, here, "runs")
        assert f"is not copied from MODEL_DIR: a link is in the place of {Path(place).name}" in caplog.text
        assert "toy" in (here / "models.json").read_text()
    assert tree(victim) == {"file": "own"} and len(list(victim.iterdir())) == 1


def test_a_link_that_is_replaced_is_reported_once(
    elsewhere: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "mine.json").write_text("mine")
    (here / "data.json").symlink_to(tmp_path / "mine.json")
    (elsewhere / "data.json").write_text("theirs")
    copy_model_dir(elsewhere, here, "runs")
    (line,) = [record.getMessage() for record in caplog.records if "data.json" in record.getMessage()]
    assert "data.json is replaced by MODEL_DIR's; what was there is now " in line
    assert (tmp_path / "mine.json").read_text() == "mine" and (here / "data.json").read_text() == "theirs"


@each_row("kind", ["link", "dangling link", "pipe"])
@each_row("place", ["models.json", "beside"])
def test_nothing_is_written_through_what_lies_in_a_file_s_place(
    elsewhere: Path, tmp_path: Path, victim: Path, place: str, kind: str
) -> None:
    path = tmp_path / "here" / (f".models.json.{os.getpid()}" if place == "beside" else place)
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim / ("file" if kind == "link" else "new"))
    copy_model_dir(elsewhere, tmp_path / "here", "runs")
    assert "toy" in (tmp_path / "here/models.json").read_text()
    assert tree(victim) == {"file": "own"} and len(list(victim.iterdir())) == 1


@each_row("kind", ["pipe", "device", "sparse"])
def test_what_is_no_file_to_copy_is_told_and_the_rest_comes(
    elsewhere: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd, here = elsewhere / "scripts/toy/odd", tmp_path / "here"
    caplog.clear()
    here.mkdir()
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    else:
        with odd.open("wb") as file:
            file.truncate(1 << 43)
    assert copy_model_dir(elsewhere, here, "runs") == 3
    assert "odd is not copied from MODEL_DIR: it is " in caplog.text
    assert sorted(path.name for path in (here / "scripts/toy").iterdir()) == ["configs", "run.sh"]
    odd.unlink()
