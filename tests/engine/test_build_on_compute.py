"""`madlite build --build-on-compute`: a real engine builds in a job of a real Slurm, and pushes to a real registry."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from threading import Thread

import docker
import docker.errors
import psutil
import pytest

from tests import commands
from tests.engine.real_registry import PASSWORD, USER, real_registry
from tests.factories import SMALL_IMAGE
from tests.slurm_fixture import SlurmCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.engine
SECRET = "hf_thisIsNoRealTokenButLooksLikeOne9012"
CLUSTERS = """
[clusters.lab]
prologue = ["export WHERE='the prologue'"]
slurm = {exclusive = false, partition = "gpu"}
[clusters.held.slurm]
directives = ["--hold"]
[clusters.nowhere.slurm]
partition = "nowhere"
"""
JOB = json.dumps({"gpu_vendor": "AMD", "slurm": {"partition": "gpu", "exclusive": False, "time": "5"}})


class Site:
    """A checkout on the login node of a cluster, whose nodes reach an engine by the caller's DOCKER_HOST."""

    def __init__(self, folder: Path, slurm: SlurmCluster, registry: str, engine: str) -> None:
        self.folder, self.slurm, self.registry = folder, slurm, registry
        (folder / "docker").mkdir()
        self.write("RUN echo built in job $MAD_SECRETS_JOB")
        (folder / "run.sh").write_text("echo performance: 12.5 tok\n")
        card = {"name": folder.name.lower(), "dockerfile": "docker/x", "scripts": "run.sh", "args": "", "n_gpus": "0"}
        (folder / "models.json").write_text(json.dumps([{**card, "tags": ["t"]}]))
        (folder / "credential.json").write_text(json.dumps({registry: {"username": USER, "password": PASSWORD}}))
        (folder / "cluster.toml").write_text(CLUSTERS)
        self.environ = {
            **slurm.environ,
            **{"USER": "root", "DOCKER_HOST": engine, "XDG_CONFIG_HOME": str(folder), "MAD_SECRETS_JOB": SECRET},
        }
        self.name, self.card = card["name"], card

    def write(self, line: str) -> None:
        text = f"# CONTEXT {{}}\nFROM {SMALL_IMAGE}\nARG MAD_SECRETS_JOB\nRUN echo {self.folder}\n{line}\n"
        (self.folder / "docker/x.Dockerfile").write_text(text)

    def start(self, *words: str, **environ: str) -> commands.Started:
        line = ("build", "--tags", "t", "--build-on-compute", *words)
        return commands.start(line, self.folder, {**self.environ, **environ})

    def call(self, *words: str, **environ: str) -> tuple[int, str]:
        started = self.start("--registry", self.registry, *words, **environ)
        out, _ = started.communicate(timeout=280)
        return started.returncode, out

    def call_without_registry(self, **environ: str) -> tuple[int, str]:
        started = self.start("-c", JOB, **environ)
        out, _ = started.communicate(timeout=280)
        return started.returncode, out

    def manifest(self) -> dict:
        return json.loads((self.folder / "build_manifest.json").read_text())

    def jobs(self) -> list[str]:
        return self.slurm.checked("squeue", "-h", "--name", "madlite-build", "-o", "%i %T").splitlines()


@pytest.fixture
def site(tmp_path, slurm, engine, small_image):
    place = tmp_path / "registry"
    place.mkdir()
    with real_registry(place) as name:
        site = Site(tmp_path, slurm, name, engine)
        yield site
    with docker.APIClient(engine) as client:
        for ref in (f"ci-{site.name}_x", f"{name}/ci-{site.name}_x"):
            try:
                client.remove_image(ref, force=True)
            except docker.errors.APIError:
                continue


def test_a_context_s_job_builds_pushes_and_leaves_a_local_build_s_manifest(site):
    code, out = site.call("-c", JOB, "--summary-output", "s.json", "--live-output")
    assert code == 0, out
    assert (
        f"BUILT ci-{site.name}_x as {site.registry}/ci-{site.name}_x" in out and "manifest: build_manifest.json" in out
    )
    assert SECRET not in out, "the step has the caller's variables, and masks them"
    assert "built in job ***" in out
    here = site.manifest()
    assert [one["registry_image"] for one in here["built_images"].values()] == [f"{site.registry}/ci-{site.name}_x"]
    assert here["deployment_config"]["slurm"]["partition"] == "gpu"
    assert json.loads((site.folder / "s.json").read_text())["successful_builds"]
    done = commands.run(
        ("build", "--tags", "t", "-c", JOB, "--registry", site.registry, "-m", "local.json"), site.folder, site.environ
    )
    assert done.returncode == 0, done.stderr
    local = json.loads((site.folder / "local.json").read_text())
    changing = re.compile(r'"(?:build_duration|total_build_time)": [0-9.e-]+')
    assert changing.sub("", json.dumps(here)) == changing.sub("", json.dumps(local))
    wait_until(lambda: site.jobs() == [], "the job is over")  # which completes a moment after its step


def piped(file: Path, text: str) -> str:
    """Make a pipe that has the text once, as a shell's `<(…)` does, and return its name."""
    os.mkfifo(file)
    Thread(target=file.write_text, args=(text,), daemon=True).start()
    return str(file)


def test_what_pipes_hold_reaches_the_node_and_the_image_is_saved_where_the_context_says(site, engine):
    """The run has the image from that file, also in place of another one of its name."""
    slurm = {"partition": "gpu", "exclusive": False, "time": "5", "image_folder": str(site.folder / "shared")}
    asked = {"gpu_vendor": "AMD", "slurm": slurm, "docker_build_arg": {"MAD_SECRETS_JOB": SECRET}}
    context = piped(site.folder / "context", json.dumps(asked))
    batch = piped(site.folder / "batch", json.dumps([{"model_name": site.name, "build_new": True}]))
    line = ("build", "--batch-manifest", batch, "-f", context, "--build-on-compute", "--live-output", "-v")
    started = commands.start(line, site.folder, site.environ)
    out, _ = started.communicate(timeout=280)
    file = site.folder / f"shared/ci-{site.name}_x.tar"
    assert started.returncode == 0 and f"BUILT ci-{site.name}_x as {file}" in out and SECRET not in out, out
    (entry,) = site.manifest()["built_images"].values()
    assert entry["image_archive"] == str(file) and "registry_image" not in entry
    assert [*file.parent.iterdir()] == [file]

    run = ("run", "--manifest-file", "build_manifest.json", "-c", '{"deploy": "local", "gpu_vendor": "CPU"}')
    with docker.APIClient(engine) as client:
        ref, (made,) = entry["docker_image"], client.images(entry["docker_image"])
        for place in ("none", "another"):
            client.remove_image(ref, force=True)
            if place == "another":
                client.tag(SMALL_IMAGE, ref)
            done = commands.run(run, site.folder, site.environ)
            assert done.returncode == 0, done.stdout + done.stderr
            assert client.inspect_image(ref)["Id"] == made["Id"], place
    logs = [log.read_text() for log in site.folder.glob("madlite_runs/*/run.log")]
    assert len(logs) == 2 and all(f"loading {ref} from {file}" in log for log in logs), logs
    file.write_text("no image")
    done = commands.run(run, site.folder, site.environ)
    assert done.returncode == 0 and "is no image, the one of that name that was here ran" in done.stdout + done.stderr


def test_a_folder_that_takes_no_image_is_a_build_that_failed(site):
    (site.folder / "full").write_text("no folder")
    code, out = site.call_without_registry(MADLITE_IMAGE_FOLDER=str(site.folder / "full"))
    assert code == 2 and "FAILURE of the push: the image was not saved" in out, out
    assert "image_archive" not in str(site.manifest())


def test_a_build_that_fails_ends_with_its_code_and_its_words(site):
    site.write("RUN echo lost on purpose; exit 7")
    of_card = {"partition": "gpu", "exclusive": False, "partiton": "x"}
    (site.folder / "models.json").write_text(json.dumps([{**site.card, "tags": ["t"], "slurm": of_card}]))
    code, out = site.call("--live-output")
    assert "warning: context key 'slurm.partiton' has no effect; did you mean slurm.partition" in out
    assert code == 2 and "lost on purpose" in out and f"FAILURE {site.name}" in out, out
    assert site.manifest()["summary"]["failed_builds"]


def test_an_interrupt_cancels_the_job(site):
    site.write("RUN sleep 600")
    started = site.start("--registry", site.registry, "--cluster", "lab", "-v")
    wait_until(lambda: [*site.folder.glob("*.build.live.log")], "the build has begun")
    shown = site.slurm.checked("scontrol", "show", "job", "-dd", site.jobs()[0].split()[0])
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    mine = [line for line in lines if "--build-on-compute" not in line and f"--registry {site.registry}" in line]
    assert mine and all("--verbose" in line for line in mine)
    assert SECRET not in "".join((shown, *lines)) and not [*site.folder.glob("madlite_runs/*")]
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=240)
    assert started.returncode == 130 and "cancelling the job" in out, out
    wait_until(lambda: site.jobs() == [], "the job is over")
    assert not (site.folder / "build_manifest.json").exists()


def test_a_job_that_waits_is_cancelled_too(site):
    started = site.start("--registry", site.registry, "--cluster", "held")
    wait_until(lambda: any("PENDING" in job for job in site.jobs()), "the job waits")
    started.send_signal(signal.SIGTERM)
    out, _ = started.communicate(timeout=240)
    assert started.returncode == 143, out
    wait_until(lambda: site.jobs() == [], "the job is gone")


def test_in_an_allocation_the_build_is_a_step_of_it(site):
    words = ("salloc", "--quiet", "-N2")
    line = ("build", "--tags", "t", "--build-on-compute", "--registry", site.registry)
    started = commands.start(line, site.folder, site.environ, words)
    out, _ = started.communicate(timeout=280)
    assert started.returncode == 0 and f"BUILT ci-{site.name}_x as" in out, out


def test_a_job_that_slurm_refuses_is_a_build_that_failed(site):
    code, out = site.call("--cluster", "nowhere")
    assert code == 2 and "invalid partition" in out and "srun ended with exit code 1" in out, out
    assert not (site.folder / "build_manifest.json").exists()


def test_a_job_that_slurm_ends_is_no_build(site):
    site.write("RUN sleep 600")
    started = site.start("--registry", site.registry, "--cluster", "lab")
    wait_until(lambda: [*site.folder.glob("*.build.live.log")], "the build has begun")
    site.slurm.checked("scancel", site.jobs()[0].split()[0])
    out, _ = started.communicate(timeout=240)
    assert started.returncode == 143 and "CANCELLED" in out, out
    assert not (site.folder / "build_manifest.json").exists()
