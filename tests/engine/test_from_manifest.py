"""From a manifest to plans, without a build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.backends.loader import load_plugins
from madlite.errors import UsageProblem
from madlite.model import Card, Cause, Gpu, ImageUsed, Machine, Request, Result, Status, Traits
from madlite.perfcsv.rows import docker_file
from madlite.plan.context import Context, Options, read_context
from madlite.plan.manifest import BuiltImage, FailedBuild, Manifest, read_manifest
from madlite.plan.submission import PlannedRun
from madlite.run.from_manifest import manifest_of_runs, misfit, plan_manifest
from madlite.run.planning import BatchInputs
from tests.rows import each_row

MADENGINES = Path(__file__).parents[1] / "data/manifests/madengine-2.json"
H100 = Machine(
    vendor="NVIDIA",
    gpus=tuple(Gpu(index=n, arch="NVIDIA H100 80GB HBM3", product="NVIDIA H100 80GB HBM3") for n in range(4)),
    architecture="NVIDIA H100 80GB HBM3",
)
MI300X = Machine(
    vendor="AMD", gpus=tuple(Gpu(index=n, arch="gfx942", render_minor=128 + n) for n in range(8)), architecture="gfx942"
)


class Docker:
    name = "docker"
    traits = Traits()

    def supports(self, place):
        return True

    def available(self):
        return None

    def request(self, plan):
        return {}


@pytest.fixture
def around(tmp_path):
    def make(machine: Machine | None = None, context: str = "", credentials=None, **options) -> BatchInputs:
        return BatchInputs(
            options=Options(workspace=tmp_path, output=tmp_path / "perf.csv", **options),
            context=read_context(None, context),
            machine=machine or Machine(),
            plugins=load_plugins("", only_built_in=True),
            runtimes={"docker": Docker()},
            template_root=tmp_path,
            new_run_id=lambda name: f"id-{name}",
            credentials=credentials,
        )

    return make


@pytest.fixture
def scripts(tmp_path):
    for name in ("scripts/mini/run.sh", "scripts/m/run.sh"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("true\n")


def built(tmp_path: Path, ref: str = "ci-m_x.ubuntu.amd", **changes) -> BuiltImage:
    card = Card(
        name="m", root=tmp_path, source="m.json", scripts="scripts/m/run.sh", dockerfile="docker/x", n_gpus="-1"
    )
    values = {
        "dockerfile": "docker/x.ubuntu.amd.Dockerfile",
        "base_docker": "base",
        "docker_sha": "sha256:1",
        **changes,
    }
    return BuiltImage(request=Request(card=card, tag="m"), docker_image=ref, **values)


def manifest(*images: BuiltImage, failed=()) -> Manifest:
    return Manifest(file=Path("/w/build_manifest.json"), images=images, failed=tuple(failed))


def test_what_madengine_built_runs_where_it_fits(tmp_path, scripts, around):
    theirs = read_manifest(MADENGINES, tmp_path)
    planned = plan_manifest(theirs, around(H100))
    assert [one.plan.blocked for one in planned] == [None] * 5
    plan = planned[0].plan
    assert plan.image.ref == "ci-mini_single_mini.ubuntu.nvidia" and plan.image.prebuilt
    assert (plan.image.base, plan.image.base_digest) == ("madlite-test/base:latest", "digest")
    assert plan.image.build_duration_s == 0.07617068290710449
    assert plan.name == "container_ci-mini_single_mini.ubuntu.nvidia"
    assert plan.log_name == "mini_single_mini.ubuntu.nvidia" and plan.args == "--value 123.45"
    assert [one.plan.image.ref for one in planned if one.plan.card.name == "mini_twoimages"] == [
        "ci-mini_twoimages_twice.one.ubuntu.nvidia",
        "ci-mini_twoimages_twice.two.ubuntu.nvidia",
    ]
    assert plan.origins["image"] == "madengine-2.json"
    for one in plan_manifest(theirs, around(MI300X)):
        assert one.plan.blocked.status is Status.FAILURE and one.plan.blocked.cause is Cause.IMAGE
        assert "it is for NVIDIA, here is AMD" in one.plan.blocked.reason


@each_row(
    ("vendor", "architecture", "machine", "fits"),
    [
        ("amd", "GFX942", MI300X, True),
        ("AMD", "gfx942:sramecc+:xnack-", MI300X, True),
        ("AMD", "gfx90a", MI300X, False),
        ("", "", MI300X, True),
        ("NVIDIA", "", MI300X, False),
        ("NVIDIA", "nvidia h100 80gb hbm3 ", H100, True),
        ("NVIDIA", "nvidia h200", H100, False),
        ("AMD", "gfx942", Machine(), True),
    ],
)
def test_which_images_are_for_a_machine(vendor, architecture, machine, fits):
    assert (misfit(vendor, architecture, machine) == "") is fits


def test_siblings_for_other_gpus_are_left_out_with_a_note(tmp_path, scripts, around):
    pair = [built(tmp_path, f"ci-m_x_{arch}", gpu_architecture=arch) for arch in ("gfx90a", "gfx942")]
    (one,) = plan_manifest(manifest(*pair), around(MI300X))
    assert one.plan.image.ref == "ci-m_x_gfx942" and one.plan.blocked is None
    assert any("ci-m_x_gfx90a" in note and "here is gfx942" in note for note in one.plan.notes)
    (one,) = plan_manifest(manifest(pair[0]), around(MI300X))
    assert one.plan.image is None and "no image of card 'm' in build_manifest.json fits" in one.plan.blocked.reason


def test_a_registrys_image_is_pulled_with_the_login_of_its_host(tmp_path, scripts, around):
    credentials = {"host:5000": {"username": "u", "password": "hush"}}
    image = built(tmp_path, registry_image="host:5000/ci-m")
    (one,) = plan_manifest(manifest(image), around(credentials=credentials))
    assert one.plan.image.registry == "host:5000/ci-m" and one.plan.image.login.host == "host:5000"
    assert one.plan.image.dockerfile == tmp_path / "docker/x.ubuntu.amd.Dockerfile"
    (one,) = plan_manifest(manifest(image), around())
    assert one.plan.image.login is None


def test_images_that_were_not_built_keep_their_card_and_the_caller_can_name_another(tmp_path, scripts, around):
    image = built(tmp_path, "rocm/x:1", dockerfile="N/A (local image mode)", local_image=True)
    card = replace(image.request.card, multiple_results="r.csv", url="https://host/x.git")
    image = replace(image, request=replace(image.request, card=card))
    (one,) = plan_manifest(manifest(image), around())
    assert one.plan.image.ref == "rocm/x:1" and one.plan.image.dockerfile is None and not one.plan.image.prebuilt
    assert one.plan.origins["image"] == "build_manifest.json" and docker_file(one.plan) == "N/A (local image mode)"
    (other,) = plan_manifest(manifest(replace(image, dockerfile="")), around())
    assert docker_file(other.plan) == ""
    assert one.plan.result_rule.file == "r.csv" and one.plan.model_dir == "x"
    (one,) = plan_manifest(manifest(image), around(image="mine:1"))
    assert one.plan.image.ref == "mine:1" and one.plan.origins["image"] == "--image"


def test_a_batch_of_runs_leaves_a_manifest_that_runs_again(tmp_path, scripts, around):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/x.ubuntu.amd.Dockerfile").write_text("# CONTEXT {'gpu_vendor': 'AMD'}\nFROM base\n")
    from madlite.run.planning import plan_runs

    asked = replace(built(tmp_path).request, overrides=(("steps", "3"),))
    planned = plan_runs([asked, asked, asked], around(MI300X, environ={"MAD_SECRETS_A": "hush-hush"}))
    planned = [replace(one, plan=replace(one.plan, id=str(n))) for n, one in enumerate(planned, 1)]
    used = ImageUsed(ref="ci-m_x.ubuntu.amd", digest="sha256:own", base_digest="sha256:base", build_duration_s=2.5)
    results = [
        Result(plan_id="1", status=Status.SUCCESS, image=used),
        Result(plan_id="2", status=Status.FAILURE, cause=Cause.BUILD, reason="does not build: hush-hush"),
    ]
    text = manifest_of_runs(planned, results, Context(), ["hush-hush"])
    assert "hush" not in text
    (tmp_path / "build_manifest.json").write_text(text)
    (failed,) = json.loads(text)["summary"]["failed_builds"]
    assert (failed["model"], failed["error"], failed["card"]["args"]) == ("m", "does not build: ***", " --steps 3")
    again = read_manifest(tmp_path / "build_manifest.json", tmp_path)
    (image,) = again.images
    assert (image.docker_sha, image.build_duration_s, image.gpu_architecture) == ("sha256:base", 2.5, "gfx942")
    one, broken = plan_manifest(again, around(MI300X))
    assert broken.plan.blocked.cause is Cause.BUILD
    assert isinstance(one, PlannedRun) and one.plan.args == " --steps 3" == planned[0].plan.args
    assert one.plan.image.dockerfile == planned[0].plan.image.dockerfile


def test_of_two_images_of_one_name_the_manifest_has_the_one_that_is_there(tmp_path, scripts, around):
    from madlite.run.planning import plan_runs

    (tmp_path / "docker").mkdir()
    for name in ("x", "X"):
        (tmp_path / f"docker/{name}.ubuntu.amd.Dockerfile").write_text("# CONTEXT {'gpu_vendor': 'AMD'}\nFROM base\n")
    asked = built(tmp_path).request
    other = replace(asked, card=replace(asked.card, name="M", dockerfile="docker/X"))
    planned = plan_runs([asked, other, other], around(MI300X))
    planned = [replace(one, plan=replace(one.plan, id=str(n))) for n, one in enumerate(planned, 1)]
    used = ImageUsed(ref="ci-m_x.ubuntu.amd")
    results = [Result(plan_id=one.plan.id, status=Status.SUCCESS, image=used) for one in planned]
    found = json.loads(manifest_of_runs(planned, results, Context(), []))
    assert [image["docker_image"] for image in found["built_images"].values()] == ["ci-m_x.ubuntu.amd"]
    (failed,) = found["summary"]["failed_builds"]
    assert failed["model"] == "m" and "made anew for another card" in failed["error"]


def broken(tmp_path: Path, architecture: str = "", **changes) -> FailedBuild:
    request = built(tmp_path).request
    card = replace(request.card, **changes)
    asked = replace(request, card=card)
    return FailedBuild(model=card.name, error="step 2/3 failed", architecture=architecture, request=asked)


def test_builds_that_failed_become_failure_rows(tmp_path, scripts, around):
    found = manifest(built(tmp_path), failed=[broken(tmp_path), broken(tmp_path, name="other")])
    planned = plan_manifest(found, around())
    assert [one.plan.card.name for one in planned] == ["m", "m", "other"]
    assert planned[0].plan.blocked is None
    for one in planned[1:]:
        why = one.plan.blocked
        assert (why.status, why.cause, why.reason) == (Status.FAILURE, Cause.BUILD, "step 2/3 failed")
        assert f"madlite build --tags {one.plan.card.name}" in why.hint and one.plan.image is None


def test_a_card_that_is_skipped_here_is_skipped_and_one_with_an_image_of_its_own_still_failed(
    tmp_path, scripts, around
):
    skipped = broken(tmp_path, is_deprecated=True)
    with_image = broken(tmp_path, name="other", image="rocm/x:1")
    first, second = plan_manifest(manifest(failed=[skipped, with_image]), around())
    assert first.plan.blocked.status is Status.SKIPPED and first.plan.blocked.cause is Cause.DEPRECATED
    assert second.plan.blocked.cause is Cause.BUILD and second.plan.image is None


def test_a_failed_build_for_other_gpus_counts_only_where_nothing_else_is(tmp_path, scripts, around):
    here = built(tmp_path, "ci-m_x_gfx942", gpu_architecture="gfx942")
    elsewhere = broken(tmp_path, "gfx90a")
    (one,) = plan_manifest(manifest(here, failed=[elsewhere]), around(MI300X))
    assert one.plan.image.ref == "ci-m_x_gfx942" and one.plan.blocked is None
    (one,) = plan_manifest(manifest(failed=[elsewhere]), around(MI300X))
    assert one.plan.blocked.cause is Cause.IMAGE and "for gfx90a was not built: step 2/3" in one.plan.blocked.reason


def test_an_image_that_the_caller_names_makes_up_for_a_failed_build(tmp_path, scripts, around):
    found = manifest(built(tmp_path), failed=[broken(tmp_path)])
    (one,) = plan_manifest(found, around(image="mine:1"))
    assert one.plan.image.ref == "mine:1" and one.plan.blocked is None


def test_a_failed_build_of_an_unknown_card_is_told(tmp_path, scripts, around, caplog):
    unknown = FailedBuild(model="who", error="step 1/1 failed")
    (one,) = plan_manifest(manifest(built(tmp_path), failed=[unknown]), around())
    assert one.plan.card.name == "m"
    assert "build_manifest.json has no card of 'who', whose build failed: step 1/1 failed" in caplog.text
    with pytest.raises(UsageProblem, match="has no image: no build succeeded") as caught:
        plan_manifest(manifest(failed=[unknown]), around())
    assert caught.value.hint == "madlite build --tags who"


def test_a_card_of_a_manifest_without_an_image_is_a_failure_that_says_so(tmp_path, scripts, around):
    image = built(tmp_path, "", dockerfile="")
    image = replace(image, request=replace(image.request, card=replace(image.request.card, dockerfile="")))
    (one,) = plan_manifest(manifest(image), around())
    assert one.plan.image is None and one.plan.blocked.cause is Cause.IMAGE
    assert "names neither a Dockerfile nor an image" in one.plan.blocked.reason
