"""Contexts with the keys of madengine 2's own examples for Slurm and Kubernetes plan as they are, and what has no
effect of them is named.
"""

from __future__ import annotations

import json
import re
import stat

import pytest

from madlite.cli.main import call
from tests.rows import each_row

NOTES = {"_comment": "c", "_description": "d", "_use_case": ["u"], "_architecture": {"proxy": "first node"}}
AMD = {"gpu_vendor": "AMD", "guest_os": "UBUNTU"}
NVIDIA = {**AMD, "gpu_vendor": "NVIDIA"}
JOB = {"partition": "gpu", "gpus_per_node": 8, "time": "01:00:00"}
WHOLE_JOB = {
    **JOB,
    **{"nodes": 2, "nodelist": "n1,n2", "account": "a", "qos": "q", "exclusive": True, "network_interface": "ib0"},
    **{"output_dir": "./out", "results_dir": "/r", "shared_workspace": "/w", "modules": ["rocm", "gcc"]},
    **{"_comment_check": "c", "enable_node_check": True, "auto_cleanup_nodes": False, "verbose_node_check": False},
}
POD = {"gpu_count": 2}
WHOLE_POD = {
    **{"kubeconfig": "~/.kube/config", "namespace": "bench", "gpu_count": 2, "gpu_resource_name": "amd.com/gpu"},
    **{"memory": "64Gi", "memory_limit": "128Gi", "cpu": "16", "cpu_limit": "32", "image_pull_policy": "Always"},
    **{"backoff_limit": 3, "host_ipc": True, "results_pvc": "r", "data_pvc": "d", "output_dir": "./manifests"},
    **{"_pvc_auto": "a", "tolerations": [{"key": "gpu", "operator": "Equal", "value": "amd", "effect": "NoSchedule"}]},
}
ENV = {"_comment_nccl": "c", "NCCL_DEBUG": "WARN", "MIOPEN_FIND_MODE": "1"}
TOOLS = [{"name": name} for name in ("gpu_info_power_profiler", "gpu_info_vram_profiler", "rocprof", "rpd")]


def launched(launcher: str, nodes: int, each: int, **more: object) -> dict[str, object]:
    return {"distributed": {"launcher": launcher, "nnodes": nodes, "nproc_per_node": each, **more}}


SLURM = {
    "one GPU": {
        **NOTES,
        **AMD,
        "slurm": {**JOB, "gpus_per_node": 1, "exclusive": False},
        "env_vars": ENV,
        "debug": False,
    },
    "eight GPUs": {**NOTES, **AMD, "slurm": JOB, **launched("torchrun", 1, 8, backend="nccl", port=29500)},
    "without a vendor": {**NOTES, "slurm": {**JOB, "nodes": 2}},
    "all keys": {
        **{**NOTES, **AMD, "slurm": WHOLE_JOB, **launched("torchrun", 2, 8, backend="nccl", port=29500)},
        **{"env_vars": ENV, "shared_data": "/d", "debug": False},
    },
    "no launcher": {**AMD, "slurm": WHOLE_JOB, "distributed": {"backend": "nccl", "port": 29500}, "env_vars": ENV},
    "with memory": {
        **{**AMD, "slurm": {**JOB, "nodes": 4, "mem": "256G", "constraint": "MI300X"}},
        **launched("megatron", 4, 8, master_port=29500),
    },
    "vllm": {**AMD, "slurm": {**WHOLE_JOB, "gpus_per_node": 4}, **launched("vllm", 2, 4, _note="n"), "pre_scripts": []},
    "sglang": {**AMD, "slurm": JOB, **launched("sglang", 1, 4), "env_vars": ENV},
    "disaggregated": {
        **{**AMD, "slurm": {**JOB, "nodes": 3}},
        **launched("sglang-disagg", 3, 8, sglang_disagg={"prefill_nodes": 1, "decode_nodes": 1}),
    },
    "deploy": {**NOTES, **AMD, "deploy": "slurm", "slurm": {**JOB, "nodes": 3}, **launched("slurm_multi", 3, 8)},
    "deepspeed": {**AMD, "slurm": JOB, **launched("deepspeed", 1, 8)},
    "torchtitan": {**AMD, "slurm": {**JOB, "mem": "512G"}, **launched("torchtitan", 1, 8)},
    "primus": {
        **{**AMD, "slurm": JOB, "env_vars": ENV},
        **launched("primus", 1, 2, primus={"config_path": "examples/x.yaml", "cli_extra": ""}),
    },
    "tools": {
        **{**AMD, "slurm": {**JOB, "nodes": 2}, **launched("torchrun", 2, 4)},
        "tools": [{"name": "gpu_info_power_profiler", "env_vars": {"POWER_DEVICE": "all"}}],
    },
    "checks of nodes": {
        **{"slurm": {**JOB, "gpus_per_node": 1}, **launched("torchrun", 1, 1)},
        "cluster": {"rdma": {"enabled": True}, "gcm": {"enabled": True, "health_checks": ["check-hca"]}},
    },
}
KUBERNETES = {
    "one GPU": {**NOTES, **AMD, "k8s": {"gpu_count": 1, "namespace": "bench", "memory": "32Gi"}},
    "two GPUs": {**AMD, "k8s": {**POD, "recreate_shared_data_pvc": True}, **launched("torchrun", 1, 2, enabled=True)},
    "tools": {
        **AMD,
        "tools": TOOLS,
        "k8s": WHOLE_POD,
        **launched("torchrun", 2, 2, master_port=29500),
        "env_vars": ENV,
    },
    "all keys": {
        **{**NOTES, **AMD, "k8s": {**WHOLE_POD, "node_selector": {"workload-type": "ml"}}, "env_vars": ENV},
        **launched("torchrun", 4, 2, enabled=True, backend="nccl", port=29500, _comment_nodes="c"),
        **{"_env_var_notes": {"NCCL_DEBUG": "n"}, "_quick_start": {"step_1": "s"}, "debug": False},
    },
    "NVIDIA": {
        **{**NVIDIA, "k8s": {**POD, "gpu_resource_name": "nvidia.com/gpu"}, **launched("torchrun", 1, 2)},
        "env_vars": ENV,
    },
    "without a vendor": {
        "k8s": {"gpu_count": 1, "namespace": "bench"},
        **launched("torchrun", 1, 1),
        "cluster": {"a": 1},
    },
    "deploy": {**AMD, "deploy": "k8s", "k8s": POD, "distributed": {"enabled": True, "nnodes": 1}},
    "a context inside": {
        **{**AMD, "k8s": POD, **launched("vllm", 2, 4, port=29500)},
        "context": {"env_vars": {"A": "1"}, "pre_scripts": ["scripts/common/a.sh"]},
    },
    "disaggregated": {
        **{**AMD, "k8s": POD},
        **launched("sglang-disagg", 3, 2, sglang_disagg={"prefill_nodes": 1, "decode_nodes": 1}),
    },
    "deepspeed": {**AMD, "k8s": POD, **launched("deepspeed", 1, 2), "env_vars": ENV},
    "megatron": {**AMD, "k8s": POD, **launched("megatron-lm", 1, 2), "launcher": {"master_port": 29500}},
    "primus": {
        **{**AMD, "docker_env_vars": {"A": "1"}, "k8s": {"gpu_count": 8}},
        **launched("primus", 2, 8, master_port=1234, primus={"config_path": "examples/x.yaml", "cli_extra": ""}),
    },
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A working folder with a card, beside a Slurm without a word on GPUs and without a kubeconfig."""
    (tmp_path / "scripts/a").mkdir(parents=True)
    (tmp_path / "scripts/a/run.sh").write_text("echo performance: 12.5 tok\n")
    card = {"name": "a", "scripts": "scripts/a/run.sh", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    for name in ("MODEL_DIR", "KUBECONFIG", "MADLITE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    slurm_says(tmp_path, monkeypatch, "gpu*|(null)")
    return tmp_path


def slurm_says(folder, monkeypatch, line: str) -> None:
    """Put a `sinfo` before all others."""
    file = folder / "bin/sinfo"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{line}'\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{file.parent}:/usr/bin:/bin")


def explained(capfd, context: dict[str, object], *words: str) -> tuple[int, dict[str, str], str]:
    code = call(["explain", "a", "--all", "-c", json.dumps(context), *words])
    out, err = capfd.readouterr()
    return code, dict(re.findall(r"^ {2}(\S+) {2,}(.*?)(?: +<- .*)?$", out, re.MULTILINE)), err


@each_row(("name", "scheduler"), [(n, "slurm") for n in SLURM] + [(n, "kubernetes") for n in KUBERNETES])
def test_a_context_of_madengine_plans_unchanged(site, capfd, name, scheduler):
    context = (SLURM if scheduler == "slurm" else KUBERNETES)[name]
    code, rows, err = explained(capfd, context)
    assert code == 0, err
    where = context.get("slurm") or context["k8s"]
    count = where.get("gpus_per_node") or where.get("gpu_count")
    vendor = "AMD Instinct MI300X" if where.get("constraint") else context.get("gpu_vendor", "AMD")
    assert rows["machine"] == f"{count} x {vendor}"
    assert "'_" not in err and "error" not in err, "comments are no keys"
    for variable, value in context.get("env_vars", {}).items():
        assert variable.startswith("_") or rows[f"env.{variable}"] == value
    assert "env._comment_nccl" not in rows
    for key in ("shared_data", "cluster", "context", "launcher"):
        assert (f"context key '{key}' has no effect" in err) == (key in context)
    assert ("of unknown type" in err) == (not where.get("constraint"))
    assert call(["run", "--tags", "a", "--dry-run", "-c", json.dumps(context)]) == 0
    out, err = capfd.readouterr()
    assert "would not start" not in err, err
    if scheduler == "slurm":
        assert ("MADLITE_CONTAINER=docker" in out) == (int(where.get("nodes", 1)) > 1), out


@each_row("place", [{"slurm": JOB}, {"k8s": POD}])
def test_without_a_vendor_it_is_amd_which_is_said(site, capfd, place):
    code, rows, err = explained(capfd, place)
    assert code == 0 and "planned for AMD GPUs of unknown type: neither the context nor" in err
    assert rows["machine"].endswith("x AMD")


@each_row(
    ("line", "machine", "said"),
    [
        ("gpu*|gpu:mi325x:8(S:0-1)", "8 x AMD Instinct MI325X", "planned for MI325X, which the partition's GRES names"),
        ("gpu|gpu:nvidia_h100_80gb_hbm3:8", "8 x NVIDIA H100 80GB HBM3", "planned for H100"),
        ("gpu|gpu:mi300x:8,gpu:mi325x:8", "8 x AMD", "(which has MI300X and MI325X)"),
    ],
)
def test_the_gpu_is_the_one_that_slurm_names(site, capfd, monkeypatch, line, machine, said):
    slurm_says(site, monkeypatch, line)
    code, rows, err = explained(capfd, {"slurm": JOB, **AMD})
    assert (code, rows["machine"]) == (0, machine) and said in err
    code, rows, err = explained(capfd, {"slurm": JOB, "device": "MI355X"})
    assert (code, rows["machine"], err) == (0, "8 x AMD Instinct MI355X", ""), "the context's own comes first"


@each_row(
    ("label", "value", "machine"),
    [
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "2 x AMD Instinct MI300X"),
        ("feature.node.kubernetes.io/amd-gpu-mi325x", "true", "2 x AMD Instinct MI325X"),
        ("accelerator", "nvidia-tesla-a100", "2 x NVIDIA A100-SXM4-80GB"),
        ("node.kubernetes.io/instance-type", "mi300x", "2 x AMD Instinct MI300X"),
        ("topology.kubernetes.io/zone", "a100", "2 x AMD"),
    ],
)
def test_the_gpu_is_the_one_that_a_label_of_the_selector_names(site, capfd, label, value, machine):
    code, rows, _ = explained(capfd, {"k8s": {**POD, "node_selector": {label: value}}, **AMD})
    assert (code, rows["machine"]) == (0, machine)


@each_row("place", [{"slurm": JOB}, {"k8s": POD}])
def test_a_key_of_distributed_that_nothing_asks_for_is_named_once(site, capfd, place):
    code, _, err = explained(capfd, {**place, **launched("torchrun", 2, 4, nnode=2), **AMD})
    assert code == 0 and err.count("distributed") == 2, err
    assert "context key 'distributed.nnode' has no effect; did you mean distributed.nnodes?" in err


SPLIT = {
    **{"dockerfile": "../../docker/x", "scripts": "run.slurm", "n_gpus": "-1", "args": "-N 2 -n 2", "url": ""},
    **{"timeout": -1, "owner": "", "training_precision": ""},
}


@pytest.fixture
def split(site):
    """Seventeen cards of serving with split roles, as MAD's: of one node, or with the number of theirs."""
    (site / "scripts/serve").mkdir()
    (site / "scripts/serve/run.slurm").write_text("echo performance: 12.5 tok\n")
    (site / "docker").mkdir()
    (site / "docker/x.ubuntu.amd.Dockerfile").write_text("# CONTEXT {'gpu_vendor': 'AMD'}\nFROM base:1\n")
    sizes = ({}, {"distributed": {"nnodes": 2}}, {"slurm": {"nodes": 3, "gpus_per_node": 8, "time": "24:00:00"}})
    cards = [
        {
            **{**SPLIT, **sizes[number % 3], "name": f"serve{number}", "tags": ["split"]},
            "distributed": {"launcher": "slurm_multi", **sizes[number % 3].get("distributed", {})},
            "env_vars": {"DOCKER_IMAGE_NAME": "<yours>", "MODEL_NAME": f"m{number}", "xP": "1", "yD": "1"},
        }
        for number in range(17)
    ]
    (site / "scripts/serve/models.json").write_text(json.dumps(cards))
    return site


def planned(capfd, *words: str) -> tuple[list[str], list[str], str]:
    """Return images and numbers of nodes that a dry run names, and what it warns of."""
    assert call(["run", *words, "--dry-run"]) == 0
    out, err = capfd.readouterr()
    return re.findall(r'"DOCKER_IMAGE_NAME": "(.*)"', out), re.findall(r"#SBATCH --nodes=(\d+)", out), err


@pytest.mark.parametrize("more", [{"slurm": JOB}, {"slurm": {**JOB, "nodes": 2}}, {"deploy": "slurm"}])
def test_cards_of_split_roles_plan_with_a_context_of_slurm(split, capfd, more):
    context = {**AMD, "env_vars": {"DOCKER_IMAGE_NAME": "rocm/serve:1"}, **more}
    images, nodes, err = planned(capfd, "--tags", "split", "-c", json.dumps(context))
    assert images == ["rocm/serve:1"] * 17 and "would not start" not in err
    wins = bool(more.get("slurm", {}).get("nodes"))
    assert nodes == (["2"] if wins else ["1", "2", "3"])
    assert err.count("the card is for 3 nodes, and the run has 2") == (5 if wins else 0)


def test_roles_of_nodes_are_in_the_variables_that_the_scripts_read(split, capfd):
    """The card's below the context's, whose other launchers know nothing of them."""
    file = split / "scripts/serve/models.json"
    cards = json.loads(file.read_text())
    cards[2]["distributed"]["sglang_disagg"] = {"prefill_nodes": 2, "decode_nodes": 3}
    file.write_text(json.dumps(cards))
    asked = {"distributed": {"sglang_disagg": {"prefill_nodes": 4}}}
    for more, roles in (({}, ("2", "3")), (asked, ("4", "3"))):
        words = ("explain", "serve/serve2", "--all", "-c", json.dumps({**AMD, "slurm": JOB, **more}))
        assert call(words) == 0
        out, err = capfd.readouterr()
        rows = dict(re.findall(r"^ {2}(\S+) {2,}(.*?)(?: +<- .*)?$", out, re.MULTILINE))
        assert (rows["env.xP"], rows["env.yD"]) == roles
        assert ("'distributed.sglang_disagg' has no effect beyond xP and yD, for slurm_multi" in err) == bool(more)


def test_a_manifest_of_an_image_that_is_there_runs_its_cards_with_it_on_slurm(split, capfd):
    tags = ("--tags", "serve2", "serve5")
    assert call(["build", *tags, "--use-image", "rocm/serve:2", "-c", json.dumps(AMD)]) == 0
    images, nodes, err = planned(capfd, "--manifest-file", "build_manifest.json")
    assert (images, nodes) == (["rocm/serve:2"] * 2, ["3"]) and "would not start" not in err
    again = {**AMD, "slurm": {"partition": "other"}, "env_vars": {"DOCKER_IMAGE_NAME": "rocm/serve:3"}}
    assert planned(capfd, "--manifest-file", "build_manifest.json", "-c", json.dumps(again))[0] == ["rocm/serve:3"] * 2
    listed = [{"model_name": "serve2", "registry_image": "host/serve:4", "registry": "host"}]
    (split / "batch.json").write_text(json.dumps(listed))
    assert call(["build", "--batch-manifest", "batch.json", "-c", json.dumps(AMD)]) == 0
    assert planned(capfd, "--manifest-file", "build_manifest.json")[:2] == (["host/serve:4"], ["3"])


def test_a_manifest_that_madengine_wrote_of_such_an_image_runs(split, capfd):
    own = {"slurm": {"nodes": 3, "partition": "gpu"}, "distributed": {"launcher": "slurm_multi"}}
    card = {**SPLIT, **own, "name": "serve/x", "scripts": "scripts/serve/run.slurm", "tags": [], "prebuilt": True}
    entry = {"image_name": "a:1", "docker_image": "a:1", "dockerfile": "", "build_time": 0, "prebuilt": True}
    manifest = {
        "built_images": {"a:1": entry},
        "built_models": {"a:1": {**card, "image": "a:1", "docker_image": "a:1", "env_vars": {"xP": "1"}}},
        "context": {"docker_env_vars": {}, "gpu_vendor": "AMD", "guest_os": "UBUNTU"},
        "credentials_required": [],
        "summary": {"successful_builds": ["serve/x"], "failed_builds": [], "total_build_time": 0},
        "deployment_config": {"target": "slurm", **own, "env_vars": {}, "debug": False},
    }
    (split / "build_manifest.json").write_text(json.dumps(manifest))
    images, nodes, err = planned(capfd, "--manifest-file", "build_manifest.json")
    assert (images, nodes) == (["a:1"], ["3"]) and "would not start" not in err


def test_a_recipe_that_depends_on_the_gpu_is_refused_with_the_way(site, capfd):
    context = json.dumps({"slurm": JOB, **AMD})
    assert call(["explain", "primus_pyt_train_llama-3.1-8b", "-c", context, "--check"]) in (3, 4)
    said = "".join(capfd.readouterr())
    assert "on AMD GPUs of which nothing says which they are (gpu in a cluster file, device in a context" in said


def test_deploy_names_the_target_alone(site, capfd):
    code, rows, _ = explained(capfd, {"deploy": "k8s"})
    assert (code, rows["runtime"]) == (0, "kubernetes")
    code, rows, _ = explained(capfd, {"deploy": "slurm", "distributed": {"nnodes": 2}})
    assert (code, rows["runtime"], rows["machine"]) == (0, "slurm", "8 x AMD")
    code, _, err = explained(capfd, {"deploy": "nowhere"})
    assert code == 4 and "key 'deploy' asks for other machines" in err
    code, rows, _ = explained(capfd, {"deploy": "local", **{"gpu_vendor": "CPU"}})
    assert (code, rows["runtime"]) == (0, "docker")


def test_the_deployment_of_a_manifest_sends_its_runs_to_pods(site, capfd):
    """madengine 2 builds with a context and runs the manifest alone."""
    image = {"docker_image": "rocm/a:1", "local_image": True, "gpu_vendor": "AMD"}
    card = json.loads((site / "models.json").read_text())[0]
    deployment = {
        "target": "k8s",
        "k8s": {**POD, "_c": 1},
        "distributed": {"nnodes": 2, "port": 29501},
        "env_vars": ENV,
    }
    manifest = {"built_images": {"a": image}, "built_models": {"a": card}, "deployment_config": deployment}
    (site / "build_manifest.json").write_text(json.dumps(manifest))
    assert call(["run", "--manifest-file", "build_manifest.json", "--dry-run"]) == 0
    out = capfd.readouterr().out
    assert "completions: 2" in out and "port: 29501" in out and "- name: NCCL_DEBUG\n          value: WARN" in out


def test_what_is_meant_for_slurm_is_not_run_where_there_is_none(site, capfd, monkeypatch):
    monkeypatch.setenv("PATH", str(site / "bin"))
    assert call(["run", "--tags", "a", "-c", '{"slurm": {"nodes": 2}}']) == 4
    said = capfd.readouterr().err
    assert "sbatch is not here, so this is no login node of it" in said and "warning" not in said
    assert not (site / "perf.csv").exists() and not (site / "madlite_runs").exists()


CLUSTERS = """
[clusters.lab]
gpu = "MI300X"
gpus_per_node = 8
container = "{container}"

[clusters.lab.slurm]
partition = "gpu"

[clusters.pods]
scheduler = "kubernetes"
gpu = "MI300X"
gpus_per_node = 8
env = {{A = "of the file"}}
"""
BESIDE = {
    **{"env_vars": {"A": "1", "B": "2"}, "docker_env_vars": {"B": "3"}},
    **launched("torchrun", 2, 4, port=29777, backend="gloo"),
}


@each_row("cluster", ["lab", "pods"])
def test_a_context_beside_a_cluster_is_over_it(site, capfd, cluster):
    (site / "cluster.toml").write_text(CLUSTERS.format(container="docker"))
    code, rows, err = explained(capfd, BESIDE, "--cluster", cluster)
    assert (code, err) == (0, ""), err
    assert (rows["env.A"], rows["env.B"], rows["env.DISTRIBUTED_BACKEND"]) == ("1", "3", "gloo")
    assert rows["machine"] == "4 x AMD Instinct MI300X", "as many of its GPUs as the context asks for"
    assert call(["run", "--tags", "a", "--cluster", cluster, "--dry-run", "-c", json.dumps(BESIDE)]) == 0
    out = capfd.readouterr().out
    port = '"MASTER_PORT": "29777"' if cluster == "lab" else "port: 29777"
    assert port in out and ("#SBATCH --nodes=2" in out or "completions: 2" in out)


def test_the_number_of_gpus_is_the_contexts_none_too(site, capfd):
    (site / "cluster.toml").write_text(CLUSTERS.format(container="docker"))
    for cluster in ((), ("--cluster", "lab")):
        code, rows, err = explained(capfd, {"slurm": {"gpus_per_node": 0}}, *cluster)
        assert (code, rows["machine"], err) == (0, "0 x cpu", "")
    each = {"nproc_per_node": 4}
    for k8s, machine in (({"gpus_per_node": 0}, "0 x cpu"), ({"gpu": "MI300X"}, "4 x AMD Instinct MI300X")):
        code, rows, err = explained(capfd, {"k8s": k8s, "distributed": each})
        assert (code, rows["machine"], err) == (0, machine, "")


def test_more_gpus_than_the_cluster_file_has_are_told(site, capfd):
    (site / "cluster.toml").write_text(CLUSTERS.format(container="docker"))
    code, rows, err = explained(capfd, {"slurm": {"gpus_per_node": 16}}, "--cluster", "lab")
    assert (code, rows["machine"]) == (0, "8 x AMD Instinct MI300X")
    assert "the context asks for 16 GPUs of each node: cluster 'lab' has 8" in err


DOCKER = {"docker_mounts": {"/a": "/"}, "docker_cpus": "0-3", "additional_docker_run_options": "--privileged"}


@each_row(
    ("cluster", "container", "more", "said"),
    [
        ("lab", "docker", DOCKER, []),
        ("lab", "pyxis", DOCKER, ["'docker_cpus'", "'additional_docker_run_options'"]),
        ("lab", "none", {**DOCKER, "SHM_SIZE": "8G"}, [*map(repr, DOCKER), "'SHM_SIZE'"]),
        ("lab", "docker", {"k8s": {"memory": "1Gi"}}, ["'k8s'"]),
        ("pods", "docker", {**DOCKER, "docker_gpus": "0-7", "SHM_SIZE": "8G"}, [*map(repr, DOCKER), "'docker_gpus'"]),
        ("lab", "docker", {"deploy": "k8s"}, ["'deploy'"]),
        ("pods", "docker", {"slurm": JOB}, ["'slurm'"]),
        *((one, "docker", {**AMD, "device": "mi300x", "gpu_arch": "gfx942"}, []) for one in ("lab", "pods")),
        *((one, "docker", {**NVIDIA, "device": "H100"}, ["'device'", "'gpu_vendor'"]) for one in ("lab", "pods")),
        *((one, "docker", {"rocm_version": "9.9"}, ["'rocm_version'"]) for one in ("lab", "pods")),
    ],
)
def test_what_the_nodes_do_not_know_of_a_context_is_named(site, capfd, cluster, container, more, said):
    (site / "cluster.toml").write_text(CLUSTERS.format(container=container))
    code, rows, err = explained(capfd, more, "--cluster", cluster)
    assert code == 0 and sorted(
        re.findall(r"^warning: context key ('\w+') has no effect", err, re.MULTILINE)
    ) == sorted(said)
    assert rows["runtime"] == {"lab": "docker" if container == "docker" else "slurm", "pods": "kubernetes"}[cluster]


def test_the_shared_memory_of_a_context_is_that_of_the_pods(site, capfd):
    (site / "cluster.toml").write_text(CLUSTERS.format(container="docker"))
    for words in (["--cluster", "pods"], ["--runtime", "kubernetes"]):
        context = {"SHM_SIZE": "8G", **({"k8s": POD} if words[0] == "--runtime" else {})}
        assert call(["run", "--tags", "a", "--dry-run", "-c", json.dumps(context), *words]) == 0
        assert "sizeLimit: 8Gi" in capfd.readouterr().out
