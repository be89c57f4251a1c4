"""From cards to build jobs, and a batch of builds with what can go wrong in it."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cancellation import check
from madlite.errors import ExitCode, RuntimeProblem, UsageProblem
from madlite.model import Card, Cause, ImageUsed, Machine, Request
from madlite.plan.context import Options, read_context
from madlite.plan.images import BatchEntry, find_target
from madlite.run.build import BuildInputs, Names, NoEngine, build_all, plan_builds, vendor_of
from tests.rows import each_row
from tests.waiting import wait_until


@pytest.fixture
def around(tmp_path):
    (tmp_path / "docker").mkdir()
    for name in ("x.ubuntu.amd", "x.ubuntu.nvidia", "x.cpu"):
        vendor = "NVIDIA" if "nvidia" in name else "AMD"
        header = "{'ctx_test': 'None'}" if "cpu" in name else f"{{'gpu_vendor': '{vendor}'}}"
        (tmp_path / f"docker/{name}.Dockerfile").write_text(
            f"# CONTEXT {header}\nARG BASE_DOCKER=base:1\nFROM $BASE_DOCKER\n"
        )

    def make(context: str = '{"gpu_vendor": "AMD"}', archs=(), environ=None, registry="", **more) -> BuildInputs:
        options = Options(workspace=tmp_path, output=tmp_path / "perf.csv", environ=environ or {}, registry=registry)
        target = find_target(read_context(None, context), Machine(), archs)
        return BuildInputs(options=options, target=target, machine=Machine(), **more)

    return make


def request(tmp_path: Path, overrides=(), **fields) -> Request:
    values = {"name": "dir/M", "root": tmp_path, "source": "models.json", "dockerfile": "docker/x", **fields}
    return Request(card=Card(**values), tag="m", overrides=overrides)


def refs(jobs) -> list[str]:
    return [job.entry.docker_image for job in jobs]


def test_every_fitting_dockerfile_is_built_for_every_architecture(tmp_path, around):
    jobs = plan_builds(request(tmp_path), around())
    assert refs(jobs) == ["ci-dir_m_x.cpu", "ci-dir_m_x.ubuntu.amd"]
    assert [job.entry.gpu_vendor for job in jobs] == ["", "AMD"]
    entry = jobs[1].entry
    assert entry.dockerfile == "docker/x.ubuntu.amd.Dockerfile" and entry.base_docker == "base:1"
    assert entry.log_file == "dir_M_x.ubuntu.amd.build.live.log" and entry.gpu_architecture == ""
    assert "MAD_SYSTEM_GPU_ARCHITECTURE" not in jobs[1].image.build_args
    jobs = plan_builds(request(tmp_path), around(archs=("gfx942,gfx90a",)))
    assert refs(jobs)[2:] == ["ci-dir_m_x.ubuntu.amd_gfx942", "ci-dir_m_x.ubuntu.amd_gfx90a"]
    assert jobs[2].image.build_args["MAD_SYSTEM_GPU_ARCHITECTURE"] == "gfx942" == jobs[2].entry.gpu_architecture
    assert "-t ci-dir_m_x.ubuntu.amd_gfx942" in jobs[2].entry.build_command
    assert jobs[2].entry.build_command.endswith("=gfx942 docker")
    assert len(plan_builds(request(tmp_path), around('{"gpu_vendor": "cpu"}'))) == 3


def test_the_arguments_and_the_base_that_the_context_gives(tmp_path, around):
    context = (
        '{"gpu_vendor": "AMD", "docker_build_arg": {"BASE_DOCKER": "mine", "MAD_SYSTEM_GPU_ARCHITECTURE": "gfx1"}}'
    )
    made = around(context, archs=("gfx942",), environ={"MAD_SECRETS_A": "hush-hush"}, credentials={"C": {"token": "t"}})
    (job, _) = plan_builds(request(tmp_path, cred="C"), made)
    assert job.entry.docker_image == "ci-dir_m_x.cpu" and job.entry.base_docker == "mine"
    assert job.entry.gpu_architecture == "gfx1"
    assert list(job.image.build_args) == ["MAD_SECRETS_A", "BASE_DOCKER", "MAD_SYSTEM_GPU_ARCHITECTURE", "C_TOKEN"]
    assert "hush" not in job.entry.build_command and "--build-arg=C_TOKEN " in job.entry.build_command


def test_the_folder_of_common_tools_is_a_build_context(tmp_path, around):
    assert plan_builds(request(tmp_path), around())[0].image.contexts == {}
    (tmp_path / "docker/common").mkdir()
    (job, _) = plan_builds(request(tmp_path), around())
    assert job.image.contexts == {"tools": tmp_path / "docker/common"}
    assert "--build-context=tools=docker/common" in job.entry.build_command


def test_the_folder_tools_is_that_context_where_the_other_is_not(tmp_path, around):
    (tmp_path / "tools").mkdir()
    (job, _) = plan_builds(request(tmp_path), around())
    assert job.image.contexts == {"tools": tmp_path / "tools"}
    assert "--build-context=tools=tools" in job.entry.build_command
    (tmp_path / "docker/common").mkdir()
    assert plan_builds(request(tmp_path), around())[0].image.contexts == {"tools": tmp_path / "docker/common"}


def test_a_stage_of_that_name_is_no_folder(tmp_path, around):
    (tmp_path / "tools").mkdir()
    (job, _) = plan_builds(request(tmp_path), around())
    job.image.dockerfile.write_text("# CONTEXT {}\nfrom x As Tools\nFROM y\nCOPY --from=tools a b\n")
    assert plan_builds(request(tmp_path), around())[0].image.contexts == {}


def test_no_dockerfile_that_fits_is_a_failed_build_with_the_reason(tmp_path, around):
    (job,) = plan_builds(request(tmp_path, dockerfile="docker/none"), around())
    assert job.image is None and "no Dockerfile docker/none.*" in job.problem


def test_a_card_that_starts_its_containers_itself_is_built_without_a_registry(tmp_path, around):
    own = request(tmp_path, extra={"distributed": {"launcher": "slurm_multi"}, "slurm": {"nodes": 2}})
    assert refs(plan_builds(own, around())) == refs(plan_builds(request(tmp_path), around()))
    assert all(job.image is not None and not job.image.registry for job in plan_builds(own, around()))


def test_an_image_instead_of_a_build(tmp_path, around):
    (job,) = plan_builds(request(tmp_path), around(use_image="foo/bar:1"))
    assert job.image is None and job.entry.docker_image == "foo/bar:1" and job.entry.local_image
    assert job.entry.dockerfile == ""
    named = request(tmp_path, extra={"env_vars": {"DOCKER_IMAGE_NAME": "of/card"}})
    assert refs(plan_builds(named, around(use_image="auto"))) == ["of/card"]
    with pytest.raises(UsageProblem, match="DOCKER_IMAGE_NAME"):
        plan_builds(request(tmp_path), around(use_image="auto"))
    (job,) = plan_builds(request(tmp_path), around('{"MAD_CONTAINER_IMAGE": "local:1"}'))
    assert job.entry.docker_image == "local:1" and job.entry.dockerfile == "N/A (local image mode)"
    (job,) = plan_builds(request(tmp_path, dockerfile="", image="rocm/x"), around())
    assert job.entry.docker_image == "rocm/x" and job.entry.local_image and job.entry.dockerfile == ""


def test_a_batch_builds_what_is_new_and_names_where_the_rest_is(tmp_path, around):
    old = BatchEntry(model_name="m", registry_image="host/m:1", registry="host")
    (job,) = plan_builds(request(tmp_path), around(), old)
    assert job.image is None and job.entry.docker_image == "ci-dir_m_x.cpu" and not job.entry.local_image
    assert (job.entry.registry_image, job.entry.build_duration_s) == ("host/m:1", None)
    (job,) = plan_builds(request(tmp_path, dockerfile="docker/gone"), around(), old)
    assert job.entry.docker_image == "ci-dir_m_gone" and job.problem == ""
    new = BatchEntry(model_name="m", build_new=True, registry="host:5000")
    jobs = plan_builds(request(tmp_path), around(registry="other"), new)
    assert [job.image.registry for job in jobs] == ["host:5000/ci-dir_m_x.cpu", "host:5000/ci-dir_m_x.ubuntu.amd"]


@each_row(
    ("name", "text", "vendor"),
    [
        ("x.ubuntu.amd.Dockerfile", "FROM nvidia/cuda", "AMD"),
        ("x.nvidia.Dockerfile", "", "NVIDIA"),
        ("x.Dockerfile", "FROM rocm/pytorch", "AMD"),
        ("x.Dockerfile", "# CONTEXT {'gpu_vendor': 'NVIDIA'}", "NVIDIA"),
        ("x.Dockerfile", "FROM rocm/x\nRUN pip install cuda", ""),
        ("x.Dockerfile", "FROM --platform=linux/amd64 debian", ""),
    ],
)
def test_whose_gpus_a_dockerfile_is_for(tmp_path, name, text, vendor):
    (tmp_path / name).write_text(text)
    assert vendor_of(tmp_path / name) == vendor


class Builder:
    """Builds nothing, and fails where it is told to."""

    def __init__(self, **failing: str) -> None:
        self.failing, self.built, self.logins = failing, [], ()

    @contextmanager
    def __call__(self, environ, logins):
        self.logins = logins
        if "engine" in self.failing:
            raise RuntimeProblem(self.failing["engine"], "start it", cause=Cause.ENGINE)
        yield self.build

    def build(self, image, say):
        say("Step 1/1 : FROM base with hush-hush")
        self.built.append(image.ref)
        if "interrupt" in self.failing:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(check)  # as a build that goes on: it ends when the signal has come
        if image.ref.endswith(self.failing.get("build", "nothing")):
            raise RuntimeProblem("it does not build: hush-hush", "try again", cause=Cause.BUILD)
        used = ImageUsed(ref=image.ref, digest="sha256:own", base_digest="sha256:base", build_duration_s=0.25)
        if "push" in self.failing:
            return replace(used, notes=("the base is old", "the image was not pushed: hush-hush"))
        return replace(used, registry=image.registry, notes=("the base is old",))


class Screen:
    def __init__(self) -> None:
        self.said, self.done = [], []

    def begin(self, lines):
        self.said += lines

    def phase(self, text):
        self.said.append(text)

    def end(self, lines):
        self.done += lines


def run(jobs, tmp_path, builder, screen=None, environ=None):
    environ = environ if environ is not None else {"MAD_SECRETS_A": "hush-hush"}
    return build_all(jobs, tmp_path, environ, screen or Screen(), builder)


def test_a_build_that_fails_does_not_stop_the_others(tmp_path, around):
    screen, builder = Screen(), Builder(build="x.cpu")
    jobs = [*plan_builds(request(tmp_path), around()), *plan_builds(request(tmp_path, dockerfile="no"), around())]
    built = run(jobs, tmp_path, builder, screen)
    assert [image.docker_image for image in built.images] == ["ci-dir_m_x.ubuntu.amd"]
    assert built.images[0].docker_sha == "sha256:base" and built.images[0].build_duration_s == 0.25
    assert [(one.model, one.error) for one in built.failed] == [
        ("dir/M", "it does not build: ***"),
        ("dir/M", "no Dockerfile no.* for card 'dir/M'"),
    ]
    assert built.exit_code is ExitCode.BUILD_FAILED
    assert screen.said[0] == "[1/3] dir/M · docker/x.cpu.Dockerfile"
    assert screen.said[1:3] == ["      log: dir_M_x.cpu.build.live.log", "Step 1/1 : FROM base with ***"]
    assert screen.done[:2] == ["      FAILURE dir/M it does not build: ***", "        hint: try again"]
    command, *log = (tmp_path / "dir_M_x.cpu.build.live.log").read_text().splitlines()
    assert command.startswith("> docker build --network=host -t ci-dir_m_x.cpu --pull -f docker/x.cpu.Dockerfile ")
    assert log == ["Step 1/1 : FROM base with ***", "it does not build: ***"]


def test_one_image_of_two_entries_is_built_once_and_its_log_is_new(tmp_path, around):
    (tmp_path / "dir_M_x.cpu.build.live.log").write_text("of yesterday")
    one = plan_builds(request(tmp_path), around())[0]
    other = plan_builds(request(tmp_path, overrides=(("steps", "3"),)), around())[0]
    builder = Builder()
    built = run([one, other], tmp_path, builder)
    assert builder.built == ["ci-dir_m_x.cpu"] and built.exit_code is ExitCode.OK
    assert [image.request.overrides for image in built.images] == [(), (("steps", "3"),)]
    assert "yesterday" not in (tmp_path / "dir_M_x.cpu.build.live.log").read_text()


def test_images_are_pushed_and_a_push_that_fails_is_noted(tmp_path, around):
    credentials = {"host:5000": {"username": "u", "password": "hush-hush"}}
    jobs = plan_builds(request(tmp_path), around(registry="host:5000", credentials=credentials))[:1]
    builder, screen = Builder(), Screen()
    built = run(jobs, tmp_path, builder, screen, environ={})
    assert [(login.host, login.password.reveal()) for login in builder.logins] == [("host:5000", "hush-hush")]
    assert built.images[0].registry_image == "host:5000/ci-dir_m_x.cpu" and built.exit_code is ExitCode.OK
    built = run(jobs, tmp_path, Builder(push="x"), screen, environ={})
    assert built.exit_code is ExitCode.BUILD_FAILED and built.failed == ()
    assert built.images[0].registry_image == ""
    assert built.images[0].push_error == "the image was not pushed: ***"
    assert [line for line in screen.done if "note:" in line] == ["        note: the base is old"] * 2


def test_without_an_engine_nothing_is_built_and_without_builds_none_is_needed(tmp_path, around):
    jobs = plan_builds(request(tmp_path), around())
    with pytest.raises(NoEngine, match="no engine") as caught:
        run(jobs, tmp_path, Builder(engine="no engine"))
    assert caught.value.exit_code is ExitCode.BUILD_FAILED and caught.value.hint == "start it"
    foreign = plan_builds(request(tmp_path), around(use_image="x:1"))
    built = run(foreign, tmp_path, Builder(engine="no engine"))
    assert built.exit_code is ExitCode.OK and built.images == (foreign[0].entry,)


def test_a_signal_ends_the_batch(tmp_path, around):
    jobs = plan_builds(request(tmp_path), around())
    builder = Builder(interrupt="yes")
    built = run(jobs, tmp_path, builder)
    assert built.interrupted and built.exit_code is ExitCode.TERMINATED and len(builder.built) == 1


def test_cards_that_share_a_failed_image_fail_together(tmp_path, around):
    job = plan_builds(request(tmp_path), around())[0]
    other = replace(job, entry=replace(job.entry, request=request(tmp_path, overrides=(("a", None),))))
    builder = Builder(build="x.cpu")
    assert len(run([job, other], tmp_path, builder).failed) == 2 and len(builder.built) == 1


def dockerfiles(tmp_path: Path, *folders: str) -> None:
    for folder in folders:
        (tmp_path / f"docker/{folder}").mkdir()
        (tmp_path / f"docker/{folder}/d.Dockerfile").write_text(f"# CONTEXT {{'ctx_test': 'None'}}\nFROM {folder}:1\n")


def test_cards_of_one_name_in_mad_have_images_of_their_own(tmp_path, around):
    dockerfiles(tmp_path, "a", "b")
    made = around(registry="host:5000")
    asked = [("Foo", "docker/a/d"), ("foo", "docker/b/d"), ("FOO", "docker/b/d")]
    names: Names = {}
    jobs = [
        job
        for name, file in asked
        for job in plan_builds(request(tmp_path, name=name, dockerfile=file), made, None, names)
    ]
    builder = Builder()
    built = run(jobs, tmp_path, builder)
    assert builder.built == ["ci-foo_d", "ci-foo_d-2"], "FOO's is made of the same as foo's"
    assert [(image.request.card.name, image.docker_image, image.dockerfile) for image in built.images] == [
        ("Foo", "ci-foo_d", "docker/a/d.Dockerfile"),
        ("foo", "ci-foo_d-2", "docker/b/d.Dockerfile"),
        ("FOO", "ci-foo_d-2", "docker/b/d.Dockerfile"),
    ]
    second = built.images[1]
    assert second.registry_image == "host:5000/ci-foo_d-2" and "-t ci-foo_d-2 " in second.build_command


def test_a_card_whose_credential_differs_has_an_image_of_its_own(tmp_path, around):
    made = around(credentials={"C": {"token": "tokc"}, "D": {"token": "tokd"}})
    names: Names = {}
    jobs = [
        plan_builds(request(tmp_path, name=name, cred=cred), made, None, names)[0]
        for name, cred in (("a/b", "C"), ("a_b", "D"))
    ]
    builder = Builder()
    run(jobs, tmp_path, builder)
    assert builder.built == ["ci-a_b_x.cpu", "ci-a_b_x.cpu-2"]


def test_an_image_that_was_built_before_is_not_mistaken_for_one_that_is_built_now(tmp_path, around):
    old = BatchEntry(model_name="m", registry_image="host/m:1")
    new = BatchEntry(model_name="m", build_new=True)
    names: Names = {}
    jobs = [plan_builds(request(tmp_path), around(), entry, names)[0] for entry in (new, old, old)]
    assert refs(jobs) == ["ci-dir_m_x.cpu", "ci-dir_m_x.cpu-2", "ci-dir_m_x.cpu-2"]
    foreign = plan_builds(request(tmp_path), around(use_image="x:1"), None, names)
    other = plan_builds(request(tmp_path, name="n"), around(use_image="x:1"), None, names)
    assert refs([*foreign, *other]) == ["x:1", "x:1"]


def test_one_image_for_two_registries_keeps_its_name_and_is_pushed_to_both(tmp_path, around):
    entries = [BatchEntry(model_name="m", build_new=True, registry=host) for host in ("one:1", "two:2")]
    jobs = [plan_builds(request(tmp_path), around(), entry)[0] for entry in entries]
    built = run(jobs, tmp_path, Builder())
    assert [image.registry_image for image in built.images] == ["one:1/ci-dir_m_x.cpu", "two:2/ci-dir_m_x.cpu"]


def test_a_log_that_cannot_be_opened_is_told_and_costs_no_build(tmp_path, around, caplog):
    (tmp_path / "dir_M_x.cpu.build.live.log").mkdir()
    long = "n" * 240
    jobs = [plan_builds(request(tmp_path, **changes), around())[0] for changes in ({}, {"name": long})]
    built = run(jobs, tmp_path, Builder())
    assert built.exit_code is ExitCode.OK and [image.log_file for image in built.images] == ["", ""]
    assert "no dir_M_x.cpu.build.live.log: Is a directory" in caplog.text
    assert f"no {long}_x.cpu.build.live.log: File name too long" in caplog.text


def test_a_failed_build_keeps_its_card(tmp_path, around):
    asked = request(tmp_path, overrides=(("steps", "3"),))
    (failed,) = run(plan_builds(asked, around())[:1], tmp_path, Builder(build="x.cpu")).failed
    assert failed.request == asked
