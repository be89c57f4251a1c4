"""Which files of a training are hashed: its script, and the Python and shell files below its folder."""

from __future__ import annotations

from pathlib import Path

from madlite.run.instrumentation import script_files


def put(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_script_and_the_code_below_its_folder_are_hashed(tmp_path):
    names = {"run.sh", "train.py", "net/blocks.py", "net/deep/layer.py", "tools/check.sh"}
    put(tmp_path / "scripts/mlp", *names, "data.bin", ".git/hook.py", "madlite_runs/x/run.sh")
    put(tmp_path / "scripts/other", "net.py")
    found = script_files(tmp_path, ["scripts/mlp/run.sh"])
    assert {*found} == {f"scripts/mlp/{name}" for name in names}
    (tmp_path / "scripts/mlp/net/blocks.py").write_text("N = 2\n")
    again = script_files(tmp_path, ["scripts/mlp/run.sh"])
    assert {name for name in found if found[name] != again[name]} == {"scripts/mlp/net/blocks.py"}


def test_of_many_files_the_nearest_are_hashed(tmp_path):
    put(tmp_path, "z.py", "train", *(f"deep/{n:03}.py" for n in range(300)))
    found = [*script_files(tmp_path, ["train"])]
    assert found[:3] == ["train", "z.py", "deep/000.py"] and len(found) == 200


def test_a_circle_of_links_or_no_script_is_no_error(tmp_path):
    put(tmp_path, "a/train.py")
    (tmp_path / "a/again").symlink_to("..")
    assert [*script_files(tmp_path, ["a/train.py"])] == ["a/train.py"]
    assert script_files(tmp_path, ["gone/missing.py"]) == script_files(tmp_path, []) == {}
