"""build_manifest.json, read and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.errors import CatalogError, UsageProblem
from madlite.model import Card, Request
from madlite.plan.context import Context, read_context, unused_keys
from madlite.plan.manifest import BuiltImage, FailedBuild, Manifest, context_over, manifest_text, read_manifest
from tests.rows import each_row

MADENGINES = Path(__file__).parents[1] / "data/manifests/madengine-2.json"


def image(tmp_path: Path, overrides=(), docker_file="docker/x.Dockerfile", **changes) -> BuiltImage:
    """Return an image; fields of a card are its card's."""
    fields = {name: changes.pop(name) for name in list(changes) if name in Card.__struct_fields__}
    card = Card(**{"name": "dir/m", "root": tmp_path, "source": "models.json", "args": "--base 1", **fields})
    values = {"docker_image": "ci-dir_m_x", "dockerfile": docker_file, "build_duration_s": 0.1}
    return BuiltImage(request=Request(card=card, tag="m", overrides=overrides), **{**values, **changes})


def text_of(*images: BuiltImage, context: Context | None = None, secrets=(), failed=()) -> str:
    return manifest_text(images, failed, context or Context(), secrets, gpu_vendor="AMD", took_s=1.5)


def written(*images: BuiltImage, **more) -> dict:
    return json.loads(text_of(*images, **more))


def read(tmp_path: Path, text: str) -> Manifest:
    file = tmp_path / "build_manifest.json"
    file.write_text(text)
    return read_manifest(file, tmp_path)


def test_what_madengine_wrote_is_read(tmp_path):
    manifest = read_manifest(MADENGINES, tmp_path)
    first = manifest.images[0]
    assert [each.docker_image for each in manifest.images][:2] == [
        "ci-mini_single_mini.ubuntu.nvidia",
        "ci-mini_cred_mini.ubuntu.nvidia",
    ]
    assert first.request.card.name == "mini_single" and first.request.card.args == "--value 123.45"
    assert first.request.card.root == tmp_path and first.request.card.tags == ("mini", "mini_ok", "pretrain")
    assert (first.base_docker, first.docker_sha) == ("madlite-test/base:latest", "digest")
    assert (first.gpu_vendor, first.gpu_architecture) == ("NVIDIA", "nvidia h100 80gb hbm3")
    assert first.build_duration_s == 0.07617068290710449 and first.dockerfile == "docker/mini.ubuntu.nvidia.Dockerfile"
    assert not first.local_image and first.registry_image == ""
    multiple = next(each.request.card for each in manifest.images if each.request.card.name == "mini_multi")
    assert multiple.multiple_results == "perf_mini.csv"
    assert manifest.required == () and manifest.context["guest_os"] == "UBUNTU"


def test_what_is_written_has_the_keys_that_madengine_writes(tmp_path):
    theirs = json.loads(MADENGINES.read_text())
    ours = written(
        image(tmp_path, gpu_vendor="NVIDIA", gpu_architecture="h100"), failed=[FailedBuild(model="b", error="e")]
    )
    assert set(ours) - {"secrets_required"} == set(theirs)
    assert set(ours["context"]) == set(theirs["context"])
    assert set(ours["summary"]) == set(theirs["summary"])
    assert set(ours["deployment_config"]) == set(theirs["deployment_config"])
    theirs_image = theirs["built_images"]["ci-mini_single_mini.ubuntu.nvidia"]
    assert list(ours["built_images"]["ci-dir_m_x"]) == list(theirs_image)
    assert list(ours["built_models"]["ci-dir_m_x"]) == list(theirs["built_models"]["ci-mini_single_mini.ubuntu.nvidia"])
    assert ours["summary"]["failed_builds"] == [{"model": "b", "error": "e"}]


def test_every_field_of_a_card_survives(tmp_path):
    card = {
        "dockerfile": "docker/x",
        "scripts": "scripts/x/run.sh",
        "dockercontext": ".",
        "n_gpus": "-1",
        "tags": ("a", "b"),
        "timeout_s": 0,
        "multiple_results": "r.csv",
        "data": ("one", "two"),
        "cred": "MINI",
        "url": "https://host/x.git",
        "owner": "o",
        "training_precision": "fp8",
        "skip_gpu_arch": ("gfx90a", "A100"),
        "additional_docker_run_options": "--shm-size=2g",
        "is_deprecated": True,
        "backend": "script",
        "recipe": {"steps": 3},
        "image": "rocm/x",
        "runtimes": ("docker", "host"),
        "extra": {"distributed": {"launcher": "torchrun"}},
    }
    made = image(tmp_path, **card, registry_image="host/x", local_image=False)
    (back,) = read(tmp_path, text_of(made)).images
    source = str(tmp_path / "build_manifest.json")
    assert back.request.card == Card(name="dir/m", scope="dir", root=tmp_path, source=source, args="--base 1", **card)
    assert back.registry_image == "host/x" and back.build_duration_s == 0.1


def test_one_card_with_two_tags_is_there_twice_under_madengines_key_and_one_more(tmp_path):
    three = (("steps", "3"), ("flag", None))
    text = text_of(image(tmp_path), image(tmp_path, overrides=three), image(tmp_path))
    entries = json.loads(text)
    assert list(entries["built_images"]) == ["ci-dir_m_x", "ci-dir_m_x #2"]
    assert [card["args"] for card in entries["built_models"].values()] == ["--base 1", "--base 1 --steps 3 --flag"]
    first, second = read(tmp_path, text).images
    assert (first.request.card.args, first.request.overrides) == ("--base 1", ())
    assert (second.request.card.args, second.request.overrides) == ("--base 1", three)


@each_row(("docker_file", "key"), [("", "dir/m"), ("N/A (local image mode)", "local-dir/m")])
def test_images_that_were_not_built_have_madengines_keys(tmp_path, docker_file, key):
    made = image(tmp_path, docker_image="x:1", docker_file=docker_file, local_image=True, build_duration_s=None)
    text = text_of(made)
    assert list(json.loads(text)["built_images"]) == [key] == list(json.loads(text)["built_models"])
    (back,) = read(tmp_path, text).images
    assert back.local_image and back.docker_image == "x:1" and back.build_duration_s is None
    assert json.loads(text)["summary"]["successful_builds"] == []


def test_no_secret_is_written_and_what_a_run_needs_of_them_is_named(tmp_path):
    context = read_context(
        None,
        json.dumps(
            {
                "docker_env_vars": {"HF_TOKEN": "hush-hush-1", "PLAIN": "yes", "URL": "https://u:hush-hush-2@host"},
                "docker_build_arg": {"NGC_API_KEY": "hush-hush-3", "BASE_DOCKER": "x"},
                "model_args": "--token hush-hush-2",
            }
        ),
    )
    made = image(tmp_path, build_command="docker build --build-arg NGC_API_KEY", cred="MINI")
    text = text_of(made, context=context, secrets=["hush-hush-2", "hush-hush-3"])
    assert "hush-hush" not in text
    manifest = json.loads(text)
    assert manifest["secrets_required"] == ["docker_env_vars.HF_TOKEN", "docker_env_vars.URL", "model_args"]
    assert manifest["context"]["docker_env_vars"] == {"PLAIN": "yes"}
    assert manifest["context"]["docker_build_arg"] == {"BASE_DOCKER": "x"}
    assert manifest["credentials_required"] == ["MINI"]


SPELLED_OUT = {
    "model_args": {"model_args": "--hf_token=hush-hush-1 --x"},
    "model_args two words": {"model_args": "--hf-token hush-hush-1 --x"},
    "encapsulate_script": {"encapsulate_script": "env HF_TOKEN=hush-hush-1"},
    "pre_scripts": {"pre_scripts": [{"path": "a.sh", "args": "--api_key=hush-hush-1"}]},
    "post_scripts": {"post_scripts": [{"path": "a.sh", "args": "PASSWORD='hush-hush-1 b'"}]},
    "data": {"data": {"d": {"minio": {"path": "p", "args": "--access-key hush-hush-1"}}}},
    "tools": {"tools": [{"name": "t", "env_vars": {"WANDB_API_KEY": "hush-hush-1"}}]},
    "tools cmd": {"tools": [{"name": "t", "cmd": "WANDB_API_KEY=hush-hush-1 t"}]},
    "settings": {"settings": {"hf_token": "hush-hush-1"}},
    "env_vars": {"env_vars": {"HF_TOKEN": "hush-hush-1"}},
    "deployment_config": {"deployment_config": {"x": {"HF_TOKEN": "hush-hush-1"}}},
}


@each_row("context", SPELLED_OUT.values(), ids=SPELLED_OUT)
def test_a_key_of_the_context_that_spells_out_a_secret_is_left_out_and_named(tmp_path, context):
    text = text_of(image(tmp_path), context=read_context(None, json.dumps(context)))
    (key,) = context
    assert "hush-hush" not in text
    assert key not in json.loads(text)["context"] and key in json.loads(text)["secrets_required"]


@each_row(
    ("context", "name"),
    [
        ({"k8s": {"env": {"HF_TOKEN": "hush-hush-1", "PLAIN": "yes"}}}, "k8s.env.HF_TOKEN"),
        ({"k8s": {"env": [{"args": "--hf_token=hush-hush-1"}]}}, "k8s.env.args"),
        ({"vllm": {"api_key": "hush-hush-1"}}, "vllm.api_key"),
        ({"vllm": {"password": 1234}}, "vllm.password"),
        ({"slurm": {"secret": "abc"}}, "slurm.secret"),
        ({"env_vars": {"HF_TOKEN": "hush-hush-1"}}, "env_vars.HF_TOKEN"),
    ],
)
def test_a_secret_of_a_deployment_is_masked_and_named_and_keeps_no_run_from_starting(tmp_path, context, name):
    text = text_of(image(tmp_path), context=read_context(None, json.dumps(context)))
    assert "hush-hush" not in text and "1234" not in text and '"abc"' not in text
    assert name in json.loads(text)["secrets_required"]
    manifest = read(tmp_path, text)
    assert name in manifest.required
    assert context_over(manifest, Context(), {}).typed.docker_env_vars == {}


@each_row(
    ("context", "target"),
    [
        ({}, "local"),
        ({"slurm": {"nodes": 1}}, "slurm"),
        ({"deploy": "slurm"}, "slurm"),
        ({"k8s": {"_c": 1, "gpu_count": 1}}, "k8s"),
        ({"deploy": "k8s", "slurm": {"nodes": 1}}, "k8s"),
    ],
)
def test_a_manifest_names_where_its_runs_go(tmp_path, context, target):
    context = read_context(None, json.dumps({**context, "env_vars": {"_comment": "c", "A": "1"}}))
    told = written(image(tmp_path), context=context)["deployment_config"]
    assert (told["target"], told["env_vars"]) == (target, {"A": "1"}) and "_c" not in told.get("k8s", {})
    assert [text for text in unused_keys(context) if "env_vars" in text] == (
        ["context key 'env_vars' has no effect yet"] if target == "local" else []
    )


def test_a_manifest_has_what_cards_that_start_their_steps_say_alike_of_their_job_below_the_context(tmp_path):
    def card(nodes: int, launcher: str = "slurm-multi") -> BuiltImage:
        extra = {"distributed": {"launcher": launcher, "nnodes": nodes}, "slurm": {"nodes": nodes, "time": "24:00:00"}}
        return image(tmp_path, name=f"{launcher}{nodes}", extra=extra, local_image=True)

    told = written(card(2))["deployment_config"]
    assert (told["target"], told["slurm"]) == ("slurm", {"nodes": 2, "time": "24:00:00"})
    assert told["distributed"] == {"launcher": "slurm-multi", "nnodes": 2}
    context = read_context(None, '{"slurm": {"partition": "gpu", "time": "5"}}')
    told = written(card(2), card(4), context=context)["deployment_config"]
    assert (told["target"], told["slurm"]) == ("slurm", {"partition": "gpu", "time": "5"}), "each has nodes of its own"
    assert told["distributed"] == {"launcher": "slurm-multi"}
    assert written(card(2), context=read_context(None, '{"deploy": "k8s"}'))["deployment_config"]["target"] == "k8s"
    for other in (card(2, "torchrun"), image(tmp_path, name="n", extra={"distributed": {"launcher": "slurm_multi"}})):
        assert "slurm" not in written(card(2), other)["deployment_config"], "the other card says nothing of it"
    told = written(card(2, "torchrun"))["deployment_config"]
    assert told == {"target": "local", "env_vars": {}, "debug": False}, "it runs on any machine"


def test_what_is_no_secret_of_a_deployment_stays(tmp_path):
    context = {"k8s": {"env": {"HF_TOKEN": "hush-hush-1", "PLAIN": "yes", "N": 3}}, "vllm": {"max_tokens": 4096}}
    told = written(image(tmp_path), context=read_context(None, json.dumps(context)))["deployment_config"]
    assert told["k8s"] == {"env": {"HF_TOKEN": "***", "PLAIN": "yes", "N": 3}} and told["vllm"] == context["vllm"]


@each_row(
    "fields",
    [
        {"args": "--hf_token=hush-hush-1"},
        {"args": "--api-key hush-hush-1"},
        {"overrides": (("hf_token", "hush-hush-1"),)},
        {"extra": {"env_vars": {"WANDB_API_KEY": "hush-hush-1"}}},
        {"extra": {"env_vars": {"HF_TOKEN": 123456}}},
        {"recipe": {"launch": "HF_TOKEN=hush-hush-1 x"}},
    ],
)
def test_no_secret_of_a_card_is_written_and_it_is_not_run_without(tmp_path, fields):
    text = text_of(image(tmp_path, **fields))
    assert "hush-hush" not in text and "123456" not in text
    with pytest.raises(UsageProblem, match="spelled out a secret"):
        read(tmp_path, text)


def test_a_build_that_failed_keeps_its_card_and_no_secret_of_it(tmp_path):
    asked = image(tmp_path, args="--hf_token=hush-hush-1", overrides=(("steps", "3"),)).request
    failed = [
        FailedBuild(model="dir/m", error="got hush-hush-1", architecture="gfx942", request=asked),
        FailedBuild(model="who", error="e"),
    ]
    text = text_of(failed=failed)
    assert "hush-hush" not in text
    back = read(tmp_path, text).failed
    assert [(one.model, one.error, one.architecture) for one in back] == [
        ("dir/m", "got ***", "gfx942"),
        ("who", "e", ""),
    ]
    assert back[0].request.overrides == asked.overrides and back[0].request.card.args == "--hf_token=***"
    assert back[1].request is None
    # a card that spells out a secret cannot be run from a manifest
    text = text_of(image(tmp_path, additional_docker_run_options="-e HF_TOKEN=hf_hush_hush"))
    assert "hf_hush" not in text
    with pytest.raises(UsageProblem, match="card 'dir/m' spelled out a secret"):
        read(tmp_path, text)


def test_the_card_of_a_failed_build_that_madengine_wrote_is_that_of_its_other_images(tmp_path):
    theirs = json.loads(MADENGINES.read_text())
    theirs["summary"]["failed_builds"] = [{"model": "mini_multi", "error": "e"}]
    manifest = read(tmp_path, json.dumps(theirs))
    (failed,) = manifest.failed
    assert failed.request.card.multiple_results == "perf_mini.csv"
    assert failed.request in [image.request for image in manifest.images]


@each_row(
    ("text", "told"),
    [
        ("", "build manifest"),
        ("[]", "Expected `object`, got `array`"),
        ('{"built_models": {}}', "built_images"),
        ('{"built_images": {}, "built_models": {}}', "names no image"),
        ('{"built_images": {}, "built_models": {}, "summary": {"failed_builds": ["a"]}}', "failed_builds"),
        ('{"built_images": {"a": {}}, "built_models": {}}', "built_images has 'a' and built_models does not"),
        (
            '{"built_images": {"a": {"docker_image": 3}}, "built_models": {"a": {"name": "a"}}}',
            "docker_image|built_images",
        ),
        ("\udcff", "build manifest"),
    ],
)
def test_what_is_no_manifest_is_one_sentence(tmp_path, text, told):
    file = tmp_path / "m.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageProblem, match=told) as caught:
        read_manifest(file, tmp_path)
    assert str(file) in caught.value.message


def test_a_manifest_or_context_that_cannot_be_used_is_one_sentence(tmp_path):
    # a card that is none and a missing file are one sentence
    with pytest.raises(CatalogError, match="built_models"):
        read(tmp_path, '{"built_images": {"a": {}}, "built_models": {"a": {"name": "a", "timeout": "long"}}}')
    with pytest.raises(UsageProblem, match="cannot be read"):
        read_manifest(tmp_path, tmp_path)
    # a context that cannot be used is the manifests fault
    with pytest.raises(UsageProblem, match=r"context in /w/m\.json cannot be used.*docker_mounts"):
        over({}, {"docker_mounts": ["a"]})


def over(context: dict, build: dict, environ=None, required=(), tmp_path=Path("/w")) -> Context:
    manifest = Manifest(file=tmp_path / "m.json", images=(), context=build, required=required)
    return context_over(manifest, read_context(None, json.dumps(context) if context else ""), environ or {})


def test_the_runs_context_wins_over_the_builds_value_by_value():
    build = {
        "docker_env_vars": {"A": "build", "B": "build"},
        "docker_mounts": {"/a": "/build", "/b": "/build"},
        "docker_gpus": "0-3",
        "model_args": "--build",
        "pre_scripts": [{"path": "build.sh"}],
        "tools": [{"name": "rocprof"}],
        "encapsulate_script": "env",
        "settings": {"steps": 3, "seq_len": 8},
    }
    run = {
        "docker_env_vars": {"B": "run"},
        "docker_mounts": {"/b": "/run"},
        "docker_gpus": "0",
        "pre_scripts": [{"path": "run.sh"}],
        "settings": {"steps": 5},
    }
    context = over(run, build)
    keys = context.typed
    assert keys.docker_env_vars == {"A": "build", "B": "run"}
    assert keys.docker_mounts == {"/a": "/build", "/b": "/run"}
    assert (keys.docker_gpus, keys.model_args, keys.encapsulate_script) == ("0", "--build", "env")
    assert [script.path for script in keys.pre_scripts] == ["run.sh"] and keys.tools[0].name == "rocprof"
    assert context.plan_values == [("context of m.json", "seq_len", 8), ("--additional-context", "steps", 5)]
    assert context.origins["model_args"] == "context of m.json"
    assert context.origins["docker_gpus"] == "--additional-context"


def test_what_tells_of_the_machine_that_built_is_left_there():
    build = {
        "gpu_vendor": "NVIDIA",
        "docker_build_arg": {"A": "1"},
        "MAD_CONTAINER_IMAGE": "x",
        "docker_gpus": "",
        "slurm": {"partition": "p"},
        "gpus_per_node": 8,
    }
    context = over({"n_gpus": 2}, build)
    assert context.values == {"n_gpus": 2} and context.n_gpus == 2
    assert over({}, build).n_gpus == 8


def test_a_secret_comes_from_the_runs_context_or_environment_or_nothing_runs():
    required = ("docker_env_vars.HF_TOKEN", "model_args")
    given = {"model_args": "--x"}
    context = over(given, {}, {"HF_TOKEN": "from-env"}, required)
    assert context.typed.docker_env_vars == {"HF_TOKEN": "from-env"}
    context = over({**given, "docker_env_vars": {"HF_TOKEN": "mine"}}, {}, {"HF_TOKEN": "from-env"}, required)
    assert context.typed.docker_env_vars == {"HF_TOKEN": "mine"}
    with pytest.raises(UsageProblem, match="HF_TOKEN, model_args") as caught:
        over({}, {}, {}, required)
    assert "export HF_TOKEN" in caught.value.hint
