"""Which files of a training are hashed: its script, what that starts, and what those import below its folder."""

from __future__ import annotations

from pathlib import Path

from madlite.run.instrumentation import python_files


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_sh", ".sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_script_is_followed_to_what_it_starts_and_imports(tmp_path):
    put(
        tmp_path,
        scripts__mlp__run_sh='cd "$(dirname "$0")"\npython3 "$(dirname "$0")/train.py" "$@"\ntorchrun -m tools.check\n',
        scripts__mlp__train_py="import os, torch\nfrom net import blocks\nfrom net.deep import layer as one\n",
        scripts__mlp__net__blocks_py="from . import sizes\nfrom .deep.layer import two\n",
        scripts__mlp__net__sizes_py="N = 1\n",
        scripts__mlp__net__deep__layer_py="import train\n",
        scripts__mlp__tools__check_py="",
        scripts__mlp__unused_py="",
        scripts__other__net_py="",
    )
    found = python_files(tmp_path, ["scripts/mlp/run.sh"])
    names = {"run.sh", "train.py", "net/blocks.py", "net/sizes.py", "net/deep/layer.py", "tools/check.py"}
    assert {*found} == {f"scripts/mlp/{name}" for name in names}
    (tmp_path / "scripts/mlp/net/sizes.py").write_text("N = 2\n")
    again = python_files(tmp_path, ["scripts/mlp/run.sh"])
    assert {name for name in found if found[name] != again[name]} == {"scripts/mlp/net/sizes.py"}


def test_what_is_no_python_or_not_there_or_elsewhere_is_no_error(tmp_path):
    put(tmp_path, work__a_py="def (:\n", work__b_py="import a, gone\nfrom .. import out\n", out_py="")
    assert {*python_files(tmp_path / "work", ["b.py", "missing.py"])} == {"a.py", "b.py"}
    assert python_files(tmp_path / "work", []) == {}
