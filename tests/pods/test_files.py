"""What of a card goes along with its run: everything that its scripts start, in a ConfigMap or by a volume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml

from madlite.cli.main import call
from madlite.errors import RuntimeProblem
from madlite.platforms.kubernetes import files
from madlite.platforms.kubernetes.scheduler import Kubernetes
from tests.csv_rows import perf_rows
from tests.pods.stand_in import Cluster
from tests.rows import each_row
from tests.waiting import wait_until

pytestmark = pytest.mark.host
TRAIN = """
import os, sys
from lib.step import speed
assert open(sys.argv[1], "rb").read() == bytes(range(256)) * 40, "the data"
print(f"performance: {speed()} tok", flush=True)
"""
CARD = {"name": "ddp", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
LARGE = "data/large.bin"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = tmp_path / "mad"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("MODEL_DIR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return made


def write(folder: Path, files: dict[str, str | bytes], scripts: str) -> None:
    """Write a working folder anew; a file is a link where its content says so."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    (folder / "models.json").write_text(json.dumps([{**CARD, "scripts": scripts}]))


def run(cluster: Cluster, *args: str, **keys: object) -> int:
    table = {"kubeconfig": str(cluster.kubeconfig()), **keys}
    return call(
        ["run", "--tags", "ddp", "--image", "rocm/a:1", "-c", json.dumps({"deploy": "k8s", "k8s": table}), *args]
    )


def paths(said: str) -> set[str]:
    """Return the paths of the files that a dry run's pods have in their workspace."""
    (job,) = [one for one in yaml.safe_load_all(said) if one and one["kind"] == "Job"]
    (files,) = [one for one in job["spec"]["template"]["spec"]["volumes"] if one["name"] == "files"]
    return {item["path"] for item in files.get("configMap", {}).get("items", ())}


DATA = bytes(range(256)) * 40
LIB = {"lib/__init__.py": "", "lib/step.py": "def speed():\n    return 12.5\n"}


def below(place: str, files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {f"{place}/{name}": content for name, content in files.items()}


# (files, the card's script): each starts a training in another place, and runs as it does in a container of docker
CARDS = {
    "beside the script": (
        below("scripts/ddp", {"run.sh": "python3 train.py data/d.bin", "train.py": TRAIN, "data/d.bin": DATA, **LIB}),
        "scripts/ddp/run.sh",
    ),
    "a folder with a run.sh, programs and links": (
        below(
            "scripts/ddp",
            {
                "run.sh": "./go.sh data/d.bin",
                "go.sh": "#!/bin/sh\nexec python3 train.py $1",
                "train.py": "-> ../common/train.py",
                "lib": "-> ../common/lib",
                "data": "-> ../../kept",
            },
        )
        | below("scripts/common", {"train.py": TRAIN, **LIB})
        | {"kept/d.bin": DATA},
        "scripts/ddp",
    ),
    "out of the folder, by the working folder": (
        {
            "scripts/ddp/run.sh": ". ../scripts/common/env.sh\npython3 $(dirname $0)/../train.py $DATA",
            "scripts/common/env.sh": "DATA=/myworkspace/kept/d.bin; [ -e $DATA ] || DATA=../kept/d.bin",
            "train.py": TRAIN,
            "kept/d.bin": DATA,
            **LIB,
        },
        "scripts/ddp/run.sh",
    ),
    "a checkout behind a link, and its common folder": (
        below("../checkout/scripts/ddp", {"run.sh": "python3 train.py data/d.bin", "data/d.bin": DATA, **LIB})
        | {"../checkout/scripts/common/train.py": TRAIN, "../checkout/scripts/ddp/train.py": "-> ../common/train.py"}
        | {"scripts": "-> ../checkout/scripts"},
        "scripts/ddp/run.sh",
    ),
    "a script in the working folder": (
        {
            "run.sh": "cd .. && python3 train.py kept/d.bin\n",
            "train.py": TRAIN,
            "kept/d.bin": DATA,
            "perf_old.csv": "a result of another run, which no run.sh starts",
            **LIB,
        },
        "run.sh",
    ),
}


@each_row("card", list(CARDS))
def test_what_a_card_starts_goes_along(folder, cluster, capfd, card):
    files, scripts = CARDS[card]
    write(folder, files, scripts)
    for name in folder.glob("**/go.sh"):
        name.chmod(0o755)
    assert run(cluster, nodes=2) == 0, capfd.readouterr()
    assert [(row["performance"], row["status"]) for row in perf_rows(folder)] == [("12.5", "SUCCESS")]
    assert cluster.invalid == []
    wait_until(lambda: not cluster.pods and not cluster.objects)


def test_of_the_working_folder_pods_have_what_a_script_names_and_nothing_private(folder, cluster, capfd, caplog):
    write(
        folder,
        {
            "scripts/ddp/run.sh": ". ../common/env.sh ../credential.json ../.env ../madlite_runs ../scripts/..\n"
            "cat ..//etc/hostname ../out/hostname ../big ../perf.csv other.txt https://example.org/../x\n"
            + "A/b+"
            * 5000,
            "scripts/ddp/me": "-> ../ddp",
            "out": "-> /etc",
            "common/env.sh": "from helper import x",
            "common/helper.py": "import more",
            "common/more.py": "",
            "common/unnamed.py": "",
            "big": b"x" * (1 << 20),
            **dict.fromkeys(("credential.json", ".env", "other.txt", "perf.csv", "madlite_runs/x/run.log"), "{}"),
        },
        "scripts/ddp/run.sh",
    )
    assert run(cluster, "--dry-run") == 0
    said = capfd.readouterr()
    card = {"scripts/ddp/run.sh", "common/env.sh", "common/helper.py", "common/more.py"}
    assert paths(said.out) == card
    assert "pods do not have big, which a script names: big is too large to go along (k8s.volumes)" in caplog.text
    assert run(cluster, "--dry-run", include_script_dirs=["common"]) == 0
    assert paths(capfd.readouterr().out) == {*card, "common/unnamed.py"}


def test_keys_and_results_stay_here_and_what_is_named_alike_goes_along(folder, cluster, capfd):
    private = ("cluster.toml", ".netrc", "ca.pem", "tls.key", "id_rsa", "id_ed25519", ".ssh/config", ".kube/config")
    private += ("kubeconfig", "lab.kubeconfig", "kubeconfig.yaml", "perf.csv", "perf_super.json", "common_info.json")
    alike = {f"scripts/ddp/{name}" for name in ("run.sh", "id_rsa.pub", "id_map.py", "perf_limits.csv", "keys.json")}
    names = {*alike, *(f"scripts/ddp/{name}" for name in private), *(f"common/{name}" for name in private)}
    write(folder, dict.fromkeys(sorted(names), "x\n"), "scripts/ddp/run.sh")
    assert run(cluster, "--dry-run", include_script_dirs=["common"]) == 0
    assert paths(capfd.readouterr().out) == alike


@each_row(
    ("files", "keys", "message"),
    [
        ({LARGE: bytes(2 << 20)}, {}, "files of ddp are 2.0 MiB, and a ConfigMap holds 1 MiB (the largest is scripts/"),
        ({"a": "-> /etc/hostname"}, {}, "scripts/ddp/a is a link out of the working folder, or to nothing"),
        ({"a": "-> b", "b": "-> a"}, {}, "scripts/ddp/a is a link out of the working folder, or to nothing"),
        ({"a": "-> gone"}, {}, "scripts/ddp/a is a link out of the working folder, or to nothing"),
        ({}, {"include_script_dirs": ["../other"]}, "../other: it is not there, or not in the working folder"),
        ({}, {"include_script_dirs": ["/etc"]}, "pods cannot have /etc: it is not there, or not in the working folder"),
    ],
)  # fmt: skip
def test_what_cannot_go_along_is_refused_before_anything_is_made(folder, cluster, capfd, files, keys, message):
    write(folder, below("scripts/ddp", {"run.sh": "true", **files}), "scripts/ddp/run.sh")
    assert run(cluster, **keys) != 0
    assert message in capfd.readouterr().out and cluster.made == []
    toml = (
        f'[clusters.k8s]\nscheduler = "kubernetes"\n[clusters.k8s.kubernetes]\nkubeconfig = "{cluster.kubeconfig()}"\n'
    )
    (folder / "cluster.toml").write_text(
        toml + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    )
    assert call(["run", "--tags", "ddp", "--cluster", "k8s"]) == 4
    assert message in capfd.readouterr().err and cluster.made == []


def test_an_archive_is_not_held_in_memory_and_a_broken_one_is_not_left(tmp_path):
    names = [f"part{n}" for n in range(12)]
    for name in names:
        (tmp_path / name).write_bytes(os.urandom(1 << 20))
    card = {name: tmp_path / name for name in names}
    shared = tmp_path / "shared"
    shared.mkdir()
    tracemalloc.start()
    files.Shipment({}, card, "", shared / "madlite-1.tar").deliver()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20 and (shared / "madlite-1.tar").stat().st_size > 12 << 20
    (tmp_path / "part3").unlink()
    with pytest.raises(RuntimeProblem, match="cannot be written to"):
        files.Shipment({}, card, "", shared / "madlite-2.tar").deliver()
    assert [path.name for path in shared.iterdir()] == ["madlite-1.tar"]


def test_more_than_a_configmap_holds_goes_by_an_archive_on_a_volume(folder, cluster, capfd, tmp_path, monkeypatch):
    packed, pack = [], files._pack
    monkeypatch.setattr(files, "_pack", lambda card, file: (packed.append(file.parent), pack(card, file))[1])
    content, shared = (
        {"run.sh": f"[ -x go ] && ls -l {LARGE} && ./go", "go": "#!/bin/sh\necho performance: 2 tok"},
        tmp_path / "shared",
    )
    shared.mkdir()
    write(folder, below("scripts/ddp", {**content, LARGE: os.urandom(3 << 20)}), "scripts/ddp/run.sh")
    (folder / "scripts/ddp/go").chmod(0o755)
    volumes = [{"mount": str(shared), "nfs": "server:/export", "here": str(shared)}]
    assert run(cluster, "--dry-run", volumes=volumes) == 0
    assert not paths(capfd.readouterr().out) and not list(shared.iterdir()), "a dry run writes nothing"
    assert run(cluster, "--repeat", "2", volumes=volumes) == 0, capfd.readouterr()
    assert [row["performance"] for row in perf_rows(folder)] == ["2", "2"]
    assert packed == [shared], "it is written once, whatever number of runs has it"
    (archive,) = shared.glob("madlite-*.tar")
    listed = subprocess.run(["tar", "-tvf", archive], check=True, capture_output=True, text=True).stdout
    assert "scripts/ddp/data/large.bin" in listed and "-rwxr-xr-x" in listed
    archive.unlink()
    toml = f"""[clusters.k8s]
scheduler = "kubernetes"
[clusters.k8s.kubernetes]
kubeconfig = "{cluster.kubeconfig()}"
volumes = [{{mount = "{shared}", nfs = "server:/export", here = "{shared}"}}]
"""
    (folder / "cluster.toml").write_text(toml)
    assert call(["run", "--tags", "ddp", "--cluster", "k8s"]) == 0, capfd.readouterr()
    assert [row["performance"] for row in perf_rows(folder)] == ["2", "2", "2"] and archive.exists()


def test_an_archive_that_cannot_be_brought_is_a_row_and_nothing_is_made(folder, cluster, capfd, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    write(folder, below("scripts/ddp", {"run.sh": "true", LARGE: os.urandom(3 << 20)}), "scripts/ddp/run.sh")
    (folder / "cluster.toml").write_text(f"""[clusters.k8s]
scheduler = "kubernetes"
[clusters.k8s.kubernetes]
kubeconfig = "{cluster.kubeconfig()}"
volumes = [{{mount = "{shared}", nfs = "server:/export", here = "{shared}"}}]
""")
    submit = Kubernetes.submit

    def submit_late(self: Kubernetes, *args: Any) -> str:
        shared.rmdir()
        return submit(self, *args)

    monkeypatch.setattr(Kubernetes, "submit", submit_late)
    assert call(["run", "--tags", "ddp", "--cluster", "k8s"]) == 3
    assert "cannot be written to" in capfd.readouterr().out and cluster.made == []
    assert [(row["status"]) for row in perf_rows(folder)] == ["FAILURE"]


def test_a_card_whose_files_change_before_its_job_runs_with_the_new_ones_and_a_warning(
    folder, cluster, caplog, monkeypatch
):
    write(folder, {"scripts/ddp/run.sh": "echo performance: 1 tok"}, "scripts/ddp/run.sh")
    (folder / "cluster.toml").write_text(f"""[clusters.k8s]
scheduler = "kubernetes"
[clusters.k8s.kubernetes]
kubeconfig = "{cluster.kubeconfig()}"
""")
    assert call(["run", "--tags", "ddp", "--cluster", "k8s"]) == 0
    assert "have changed" not in caplog.text
    submit = Kubernetes.submit

    def submit_late(self: Kubernetes, *args: Any) -> str:
        (folder / "scripts/ddp/run.sh").write_text("echo performance: 2 tok")
        return submit(self, *args)

    monkeypatch.setattr(Kubernetes, "submit", submit_late)
    assert call(["run", "--tags", "ddp", "--cluster", "k8s"]) == 0
    assert "is not what scripts/1.yaml has: files of its card have changed" in caplog.text
    assert [row["performance"] for row in perf_rows(folder)] == ["1", "2"]
