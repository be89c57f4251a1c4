"""Images built, pushed to a real registry, pulled and run, by a real engine."""

from __future__ import annotations

import json
import subprocess

import pytest
from msgspec.structs import replace

from madlite.errors import RuntimeProblem
from madlite.images.image import opened_builder
from madlite.model import Image, Login, Secret
from tests.engine.checkout import Checkout
from tests.engine.real_registry import PASSWORD, USER, real_registry
from tests.factories import BASE_IMAGE, make_plan

pytestmark = pytest.mark.engine

PRINTS = 'echo "arch $ARCH"; echo "performance: 5 tok"; env | grep -E "^(GIVEN|RUN_TIME|MAD_SECRETS)" || true'
DOCKERFILE = """# CONTEXT {{'guest_os': 'UBUNTU'}}
ARG BASE_DOCKER={base}
FROM $BASE_DOCKER
ARG MAD_SYSTEM_GPU_ARCHITECTURE=none
ENV ARCH=$MAD_SYSTEM_GPU_ARCHITECTURE
"""


@pytest.fixture
def mad(engine, base_image, tmp_path, client):
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    (checkout.folder / "docker/base.Dockerfile").write_text(DOCKERFILE.format(base=BASE_IMAGE))
    yield checkout
    for image in checkout_images(checkout):
        client.remove_image(image, force=True)


def checkout_images(checkout: Checkout) -> set[str]:
    made = checkout.folder / "build_manifest.json"
    entries = json.loads(made.read_text())["built_images"].values() if made.exists() else []
    refs = {entry["docker_image"] for entry in entries if not entry.get("local_image")}
    return refs | {entry["registry_image"] for entry in entries if "registry_image" in entry}


@pytest.fixture
def registry(tmp_path, mad, small_image):
    (mad.folder / "docker/base.Dockerfile").write_text(DOCKERFILE.format(base=small_image))  # is pushed soon
    folder = tmp_path / "registry"
    folder.mkdir()
    with real_registry(folder) as name:
        yield name


def build(checkout: Checkout, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return checkout.madlite("build", *args, env=env)


def manifest(checkout: Checkout) -> dict:
    return json.loads((checkout.folder / "build_manifest.json").read_text())


def run_manifest(checkout: Checkout, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return checkout.run("--manifest-file", "build_manifest.json", *args, env=env)


def test_an_image_that_copies_the_working_folder_gets_nothing_of_earlier_runs(mad):
    copies = "COPY . /copied\nRUN rm -rf /copied/engine\n"
    (mad.folder / "docker/all.Dockerfile").write_text(DOCKERFILE.format(base=BASE_IMAGE) + copies)
    (mad.folder / ".venv").mkdir()
    mad.card(
        "looker", "echo performance: 5 tok; ls -A /copied /copied/scripts", dockerfile="docker/all", dockercontext="."
    )
    for _ in range(2):  # the second build finds what the first run left
        done = mad.run("--tags", "looker")
        assert done.returncode == 0, done.stdout + done.stderr
    assert {"madlite_runs", "perf.csv"} <= {one.name for one in mad.folder.iterdir()}
    (log,) = sorted(mad.folder.glob("madlite_runs/*/run.log"))[1:]
    copied = log.read_text().split()
    assert {"models.json", "scripts", "docker"} <= set(copied)
    assert not [
        name
        for name in copied
        if name.startswith(("madlite_runs", ".venv", "perf", "build_man")) and name != "performance:"
    ]
    assert not [name for name in copied if name.endswith(".live.log")]


def test_setuid_files_and_devices_that_a_container_leaves_are_named_after_its_run(mad):
    mad.card("rooter", "cd ..; cp /bin/sh su; chmod 4755 su; mknod disk b 8 0; ln -s / up; echo performance: 5 tok")
    mad.card("honest", "touch ../file; echo performance: 5 tok")
    (mad.folder / "own").touch()
    (mad.folder / "own").chmod(0o4755)
    done = mad.run("--tags", "honest")
    assert done.returncode == 0 and "special rights" not in done.stdout + done.stderr, "what was there is not the run's"
    done = mad.run("--tags", "rooter")
    said = "the container left files with special rights in the working folder: "
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    record = json.loads(next(mad.folder.glob("madlite_runs/*rooter*/record.json")).read_text())
    (finding,) = [text for text in record["findings"] if text.startswith(said)]
    assert {"su (setuid)", "disk (device)"} == set(finding.removeprefix(said).partition("; ")[0].split(", "))
    listed = mad.madlite("clean")
    assert {"setuid    su", "device    disk", "setuid    own"} <= {
        line.partition("  (")[0] for line in listed.stdout.split("\n")
    }


def test_what_is_built_is_run_from_its_manifest_with_the_args_of_each_tag(mad, client):
    mad.card("printer", PRINTS + '; echo "args $*"', args="--base 1")
    (mad.folder / "docker/broken.Dockerfile").write_text(f"# CONTEXT {{}}\nFROM {BASE_IMAGE}\nRUN exit 7\n")
    mad.card("broken", "true", dockerfile="docker/broken")
    done = build(mad, "--tags", "broken", "printer", "printer:steps=3", "-s", "summary.json")
    assert done.returncode == 2, done.stdout + done.stderr
    written = manifest(mad)
    assert [entry["docker_image"] for entry in written["built_images"].values()] == ["ci-printer_base"] * 2
    (failed,) = written["summary"]["failed_builds"]
    assert failed["model"] == "broken" and "RUN exit 7" in failed["error"]
    assert failed.pop("card")["name"] == "broken"
    assert json.loads((mad.folder / "summary.json").read_text()) == written["summary"]
    assert "Successfully built" in (mad.folder / "printer_base.build.live.log").read_text()

    (mad.folder / "docker/base.Dockerfile").unlink()
    done = run_manifest(mad, "--tags", "nobody")
    assert done.returncode == 2 and "--tags has no effect" in done.stderr, done.stdout + done.stderr
    assert [row["args"] for row in mad.rows] == ["--base 1", "--base 1 --steps 3", ""]
    assert (mad.rows[2]["model"], mad.rows[2]["status"]) == ("broken", "FAILURE")
    entry = written["built_images"]["ci-printer_base"]
    base = client.inspect_image(BASE_IMAGE)["Id"]
    for row in mad.rows[:2]:
        assert row["status"] == "SUCCESS" and row["performance"] == "5"
        assert row["docker_file"] == "docker/base.Dockerfile" and row["base_docker"] == BASE_IMAGE
        assert row["docker_sha"] == entry["docker_sha"] == base
        assert row["build_duration"] == repr(entry["build_duration"])
    used = next(record["image"] for record in mad.records() if record["card"] == "printer")
    assert used["digest"] == client.inspect_image("ci-printer_base")["Id"] != used["base_digest"] == base
    assert "Successfully built" in (mad.folder / "printer_base.build.live.log").read_text(), "a run leaves it alone"


def test_cards_that_mad_gives_one_image_name_run_in_their_own(mad):
    for folder in ("a", "b"):
        (mad.folder / f"docker/{folder}").mkdir()
        text = f"# CONTEXT {{}}\nFROM {BASE_IMAGE}\nENV WHICH={folder}\n"
        (mad.folder / f"docker/{folder}/d.Dockerfile").write_text(text)
    for name, folder in (("Foo", "a"), ("foo", "b")):
        script = f'test "$WHICH" = {folder} && echo "performance: 5 tok"'
        mad.card(name, script, dockerfile=f"docker/{folder}/d")
    done = build(mad, "--tags", "Foo", "foo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [entry["docker_image"] for entry in manifest(mad)["built_images"].values()] == ["ci-foo_d", "ci-foo_d-2"]
    done = run_manifest(mad)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["docker_image"] for row in mad.rows] == ["ci-foo_d", "ci-foo_d-2"]


@pytest.mark.parametrize("left", ["failed", "skipped"])
def test_a_batch_that_built_nothing_leaves_a_good_manifest(mad, left):
    mad.card("printer", PRINTS)
    assert build(mad, "--tags", "printer").returncode == 0
    before = manifest(mad)
    if left == "failed":
        with (mad.folder / "docker/base.Dockerfile").open("a") as file:
            file.write("RUN exit 7\n")
    done = mad.run("--tags", "printer", *(["--skip-model-run"] if left == "skipped" else []))
    assert done.returncode == (2 if left == "failed" else 0), done.stdout + done.stderr
    assert list(manifest(mad)["built_images"]) == list(before["built_images"]) == ["ci-printer_base"]
    assert left == "skipped" or manifest(mad) == before
    if left == "failed":  # in the log of a build that fails, too
        for end in (".live.log", ".build.live.log"):
            log = (mad.folder / f"printer_base{end}").read_text()
            assert "RUN exit 7" in log and log.count("\n> docker build --network=host -t ci-printer_base ") == 1


def test_what_the_build_was_given_is_there_at_the_run_and_the_run_has_the_last_word(mad, tmp_path):
    for name in ("built", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text(f"mounted by the {name}\n")
    mad.card("printer", PRINTS + '; cat /data/note /more/note; echo "args $*"')
    context = {
        "docker_env_vars": {"GIVEN_A": "build", "GIVEN_B": "build", "GIVEN_TOKEN": "hush-hush-1"},
        "docker_mounts": {"/data": str(tmp_path / "built"), "/more": str(tmp_path / "built")},
        "model_args": "--from-build",
        "encapsulate_script": "env GIVEN_C=build",
    }
    secret = {"MAD_SECRETS_X": "hush-hush-2"}
    done = build(mad, "--tags", "printer", "-c", json.dumps(context), **secret)
    assert done.returncode == 0, done.stdout + done.stderr
    assert manifest(mad)["secrets_required"] == ["docker_env_vars.GIVEN_TOKEN"]
    assert "hush-hush" not in (mad.folder / "build_manifest.json").read_text() + done.stdout + done.stderr

    done = run_manifest(mad)
    assert done.returncode == 4 and "GIVEN_TOKEN" in done.stderr and not (mad.folder / "perf.csv").exists()

    context = {"docker_env_vars": {"GIVEN_B": "run"}, "docker_mounts": {"/more": str(tmp_path / "run")}}
    done = run_manifest(mad, "-c", json.dumps(context), GIVEN_TOKEN="hush-hush-1")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = mad.folder.glob("madlite_runs/*/run.log")
    lines = log.read_text().splitlines()
    for expected in ("GIVEN_A=build", "GIVEN_B=run", "GIVEN_C=build", "GIVEN_TOKEN=***", "args --from-build"):
        assert expected in lines, expected
    assert [line for line in lines if line.startswith("mounted")] == ["mounted by the built", "mounted by the run"]


def test_one_image_per_architecture_goes_to_a_registry_and_comes_back(mad, client, registry):
    mad.card("printer", PRINTS)
    (mad.folder / "credential.json").write_text(json.dumps({registry: {"username": USER, "password": PASSWORD}}))
    done = build(mad, "--tags", "printer", "-a", "gfx942,gfx90a", "--registry", registry)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = manifest(mad)["built_images"]
    assert {name: entry["registry_image"] for name, entry in entries.items()} == {
        f"ci-printer_base_{arch}": f"{registry}/ci-printer_base_{arch}" for arch in ("gfx942", "gfx90a")
    }
    assert PASSWORD not in (mad.folder / "build_manifest.json").read_text() + done.stdout + done.stderr
    for name, entry in entries.items():
        client.remove_image(name, force=True)
        client.remove_image(entry["registry_image"], force=True)

    done = run_manifest(mad)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["docker_image"] for row in mad.rows] == list(entries)
    logs = sorted(path.read_text() for path in mad.folder.glob("madlite_runs/*/run.log"))
    assert [arch for arch in ("gfx942", "gfx90a") if any(f"arch {arch}\n" in log for log in logs)] == [
        "gfx942",
        "gfx90a",
    ]

    (mad.folder / "credential.json").unlink()
    done = run_manifest(mad)
    assert done.returncode == 0 and "the one that was here ran" in done.stdout


def test_an_image_that_is_neither_in_the_registry_nor_here_is_a_failure_row(mad, client, registry):
    mad.card("printer", PRINTS)
    assert build(mad, "--tags", "printer").returncode == 0
    file = mad.folder / "build_manifest.json"
    file.write_text(file.read_text().replace('"gpu_vendor": ""', f'"registry_image": "{registry}/gone"'))
    client.remove_image("ci-printer_base", force=True)
    done = run_manifest(mad)
    file.unlink()
    assert done.returncode == 3 and mad.rows[0]["status"] == "FAILURE"
    assert f"{registry}/gone" in done.stdout


def test_a_wrong_password_is_found_out_before_anything_is_built(mad, registry):
    mad.card("printer", PRINTS)
    (mad.folder / "credential.json").write_text(json.dumps({registry: {"username": USER, "password": "hush-hush"}}))
    done = build(mad, "--tags", "printer", "--registry", registry)
    assert done.returncode == 2 and f"{registry} does not let user '{USER}' in" in done.stderr
    assert "hush-hush" not in done.stdout + done.stderr
    assert not (mad.folder / "build_manifest.json").exists()


def test_a_push_that_is_refused_keeps_the_image_and_is_told(mad, client, registry):
    mad.card("printer", PRINTS)
    done = build(mad, "--tags", "printer", "--registry", registry)
    assert done.returncode == 2 and "FAILURE of the push" in done.stdout
    entry = manifest(mad)["built_images"]["ci-printer_base"]
    assert entry["push_error"] and "registry_image" not in entry
    client.remove_image(f"{registry}/ci-printer_base", force=True)
    assert run_manifest(mad).returncode == 0
    done = mad.run("--tags", "printer", "--registry", registry)
    client.remove_image(f"{registry}/ci-printer_base", force=True)
    assert done.returncode == 0 and "note: the image was not pushed" in done.stdout, done.stdout + done.stderr


def test_the_digest_of_a_base_from_a_registry_is_its_repository_digest(
    mad, client, registry, docker_environ, runtime, tmp_path
):
    login = Login(host=registry, username=USER, password=Secret(PASSWORD))
    folder, base = mad.folder / "docker", f"{registry}/base:1"
    (folder / "tiny.Dockerfile").write_text("FROM scratch\nCOPY tiny.Dockerfile /\n")
    (folder / "pulled.Dockerfile").write_text(f"FROM {base} AS first\nFROM first\nENV X=1\n")
    tiny, image = (
        Image(ref=f"madlite-test/{name}", dockerfile=folder / f"{name}.Dockerfile", context=folder)
        for name in ("tiny", "pulled")
    )
    with opened_builder(docker_environ, [login]) as builder:
        pushed = builder(replace(tiny, registry=base, login=login), lambda line: None)
        assert (pushed.base_digest, pushed.registry) == ("", base)
        for ref in (base, tiny.ref):
            client.remove_image(ref, force=True)
        used = builder(image, lambda line: None)
    known = client.inspect_image(base)["RepoDigests"]
    client.remove_image(image.ref, force=True)
    client.remove_image(base, force=True)
    assert f"{registry}/base@{used.base_digest}" in known and used.digest != used.base_digest
    foreign = Image(ref=base, registry=base, prebuilt=True, login=login)
    pulled = runtime.prepare(make_plan(tmp_path, image=foreign), lambda line: None)
    client.remove_image(base, force=True)
    assert pulled.digest == used.base_digest and pulled.base_digest == ""


def test_an_engine_that_is_not_there_stops_the_build_at_once(tmp_path):
    with (
        pytest.raises(RuntimeProblem, match="no Docker Engine answers"),
        opened_builder({"DOCKER_HOST": f"unix://{tmp_path}/none"}),
    ):
        raise AssertionError
