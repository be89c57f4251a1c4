"""`madlite build` as it is typed, without an engine."""

from __future__ import annotations

import csv
import errno
import json
import os

import pytest

from madlite.cli.main import call
from madlite.files import Folder
from tests.engine.checkout import UNPROBED
from tests.rows import each_row


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    for name in ("MODEL_DIR", "MAD_SECRETS_X"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("docker", "scripts/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docker/x.Dockerfile").write_text("# CONTEXT {'guest_os': 'UBUNTU'}\nFROM base:1\n")
    (tmp_path / "scripts/a/run.sh").write_text("echo performance: 1 x\n")
    card = {"dockerfile": "docker/x", "scripts": "scripts/a/run.sh", "n_gpus": "1", "args": "", "tags": ["t"]}
    cards = [{"name": "a", **card}, {"name": "b", "env_vars": {"DOCKER_IMAGE_NAME": "of/b:1"}, **card}]
    (tmp_path / "models.json").write_text(json.dumps(cards))
    return tmp_path


def manifest(folder) -> dict:
    return json.loads((folder / "build_manifest.json").read_text())


@each_row(
    ("args", "told"),
    [
        ("--batch-manifest b.json --tags a", "--batch-manifest beside --tags"),
        ("--tags a -c {} -f c.json", "--additional-context beside --additional-context-file"),
        ("--tags a --use-image x --registry r", "--use-image beside --registry"),
        ("--tags a --use-image x --build-on-compute", "--use-image beside --build-on-compute"),
        (
            "--tags a --build-on-compute -c {'slurm':{'partition':'p'}}",
            "--build-on-compute without --registry: it would stay on the node",
        ),
        ("--tags a --build-on-compute -c {'slurm':{'image_folder':'images'}}", "'images', no absolute path"),
        ("--tags a -c {'slurm':{'image_folder':'images'}}", "'images', no absolute path"),
        ("--tags a --build-on-compute -r x", "nothing names a Slurm"),
        ("--tags a --build-on-compute -r x -c {'slurm':{'partition':'p'}}", "sbatch is not here"),
        ("--tags a --build-on-compute -r x -c {'k8s':{'gpu':'MI300X'}}", "nothing names a Slurm"),
        ("--tags nobody --build-on-compute -r x", "no model matches tag 'nobody'"),
        ("--tags a --cluster lab", "--cluster without --build-on-compute"),
        ("", "no model is named"),
        ("--tags nobody", "no model matches tag 'nobody'"),
        ("--tags a --gpu-vendor INTEL", "INTEL"),
        ("--tags a -c {'guest_os':'SLES'}", "SLES"),
        ("--tags a --use-image=auto", "DOCKER_IMAGE_NAME"),
        ("--tags a -m none/build.json", "cannot be written"),
        ("--tags a -s none/summary.json", "cannot be written"),
        ("--batch-manifest none.json", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_and_nothing_is_built(checkout, capsys, args, told):
    assert call(["build", *args.split()]) == 4
    assert told in capsys.readouterr().err
    assert not (checkout / "build_manifest.json").exists()


def test_the_nodes_of_another_scheduler_build_nothing(checkout, capsys):
    (checkout / "cluster.toml").write_text('[clusters.pods]\nscheduler = "kubernetes"\n')
    assert call(["build", "--tags", "a", "--build-on-compute", "-r", "x", "--cluster", "pods"]) == 4
    assert "cluster 'pods' is no Slurm" in capsys.readouterr().err


def test_without_an_engine_no_image_is_built(checkout, capfd):
    assert call(["build", "--tags", "a"]) == 2
    assert "no Docker Engine answers" in capfd.readouterr().err
    assert not (checkout / "build_manifest.json").exists()


def test_images_that_are_there_need_no_engine(checkout, capfd):
    assert call(["build", "--tags", "a", "b", "--use-image", "foo/bar:1", "-m", "mine.json", "-s", "s.json"]) == 0
    made = json.loads((checkout / "mine.json").read_text())
    assert {key: entry["docker_image"] for key, entry in made["built_images"].items()} == {
        "a": "foo/bar:1",
        "b": "foo/bar:1",
    }
    assert list(json.loads((checkout / "s.json").read_text())) == [
        *("successful_builds", "failed_builds", "total_build_time", "successful_pushes", "failed_pushes")
    ]
    assert "not built: foo/bar:1 is used" in capfd.readouterr().out
    assert call(["build", "--tags", "b", "--use-image"]) == 0
    assert manifest(checkout)["built_images"]["b"]["docker_image"] == "of/b:1"


def test_a_batch_manifest_names_where_images_are(checkout, capfd):
    (checkout / "b.json").write_text('[{"model_name": "a", "registry_image": "host/a:1"}]')
    assert call(["build", "--batch-manifest", "b.json"]) == 0
    entry = manifest(checkout)["built_images"]["ci-a_x"]
    assert entry["registry_image"] == "host/a:1" and entry["build_duration"] == 0
    assert entry["dockerfile"] == "docker/x.Dockerfile"


def test_a_manifest_that_is_not_there_is_no_reason_not_to_run_the_tags(checkout, capfd):
    assert call(["run", "-m", "none.json"]) == 4
    assert "there is no manifest none.json" in capfd.readouterr().err
    assert call(["run", "-m", "none.json", "--tags", "a", "--dry-run"]) == 0
    told = capfd.readouterr()
    assert "the tags are built and run" in told.err and "ci-a_x" in told.out


def test_a_manifest_is_run_without_its_dockerfile_and_without_tags(checkout, capfd):
    (checkout / "b.json").write_text('[{"model_name": "a", "registry_image": "host/a:1"}]')
    assert call(["build", "--batch-manifest", "b.json"]) == 0
    (checkout / "docker/x.Dockerfile").unlink()
    capfd.readouterr()
    assert call(["run", "--manifest-file", "build_manifest.json", "--tags", "b", "--dry-run"]) == 0
    told = capfd.readouterr()
    assert "--tags has no effect" in told.err
    assert '"Image": "ci-a_x"' in told.out and "# b " not in told.out
    (checkout / "build_manifest.json").write_text("{}")
    assert call(["run", "-m", "build_manifest.json"]) == 4
    assert "is no build manifest" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["-m", "-s"])
def test_a_pipe_stays_one_and_a_link_too(checkout, capfd, option):
    os.mkfifo(checkout / "pipe")
    with os.fdopen(os.open(checkout / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        assert call(["build", "--tags", "a", "--use-image", "x:1", option, "pipe"]) == 0
        json.loads(reader.read())
    (checkout / "link.json").symlink_to("real.json")
    assert call(["build", "--tags", "a", "--use-image", "x:1", option, "link.json"]) == 0
    json.loads((checkout / "real.json").read_text())
    assert (checkout / "pipe").is_fifo() and (checkout / "link.json").is_symlink()


def test_what_cannot_be_written_after_the_builds_is_a_sentence_and_the_rest_is_written(checkout, capfd, monkeypatch):
    real = Folder.rename

    def rename(folder, name, to):
        if to == "m.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(folder, name, to)

    monkeypatch.setattr(Folder, "rename", rename)
    assert call(["build", "--tags", "a", "--use-image", "x:1", "-m", "m.json", "-s", "s.json"]) == 2
    told = capfd.readouterr()
    assert "manifest m.json cannot be written: No space left on device" in told.out + told.err
    assert "internal error" not in told.err and (checkout / "s.json").exists()


def test_a_manifest_of_nothing_and_one_of_failed_builds(checkout, capfd, caplog):
    manifest = {"built_images": {}, "built_models": {}}
    (checkout / "m.json").write_text(json.dumps(manifest))
    assert call(["run", "-m", "m.json"]) == 4
    assert "m.json names no image" in capfd.readouterr().err
    card = {"name": "a", "dockerfile": "docker/x", "scripts": "scripts/a/run.sh", "n_gpus": "1", "args": ""}
    failed = [{"model": "a", "error": "RUN exit 7", "card": card}, {"model": "who", "error": "e"}]
    (checkout / "m.json").write_text(json.dumps({**manifest, "summary": {"failed_builds": failed}}))
    assert call(["run", "-m", "m.json", "--summary-output", "s.json"]) == 2
    assert "has no card of 'who'" in caplog.text and "RUN exit 7" in capfd.readouterr().out
    with (checkout / "perf.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["model"], row["status"], row["performance"]) == ("a", "FAILURE", "")
    (run,) = json.loads((checkout / "s.json").read_text())["failed_runs"]
    assert run == {"model": "a", "image": "", "status": "FAILURE", "error": "RUN exit 7"}


@pytest.mark.host
@each_row("how", ["--runtime host", "--runtime host --skip-model-run"])
def test_runs_without_an_image_leave_a_good_manifest_alone(checkout, capfd, how, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert call(["build", "--tags", "a", "b", "--use-image", "x:1"]) == 0
    before = (checkout / "build_manifest.json").read_bytes()
    run = ["run", "--tags", "a", *UNPROBED, *how.split()]
    assert call(run) == 0, capfd.readouterr()
    assert (checkout / "build_manifest.json").read_bytes() == before
    (checkout / "build_manifest.json").unlink()
    for _ in "ab":  # madengine leaves one whatever happened; one without images is worth nothing
        assert call(run) == 0, capfd.readouterr()
        assert manifest(checkout)["built_images"] == {}
        (checkout / "build_manifest.json").write_text('{"built_images": {}, "built_models": {}}')


def test_a_context_outside_of_the_folder_is_told_before_it_is_sent(checkout, capfd):
    (card, *others) = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**card, "dockercontext": ".."}, *others]))
    call(["build", "--tags", "a"])  # there is no engine
    assert f"card a: its build context {checkout.parent} is outside of this folder" in capfd.readouterr().err
