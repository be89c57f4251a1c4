"""The objects of a run: valid by the schemas of Kubernetes, without secrets, with names and labels as they must be."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from msgspec.structs import replace

from madlite.errors import RuntimeProblem, UsageProblem
from madlite.model import Action, Gpu, Image, Machine, Place, Secret
from madlite.plan.cluster import KubernetesSettings
from madlite.platforms.kubernetes.files import ship
from madlite.platforms.kubernetes.manifests import job_name, label_value, make_objects, own_container, patched, yaml_of
from madlite.platforms.kubernetes.runtime import KubernetesRuntime
from madlite.platforms.kubernetes.settings import read_settings
from tests.factories import make_plan
from tests.pods.schemas import validate
from tests.rows import each_row

EVERYTHING = {
    "namespace": "bench",
    "rdma": {"rdma/hca": 8},
    "cpu": "16",
    "memory": "64Gi",
    "memory_limit": "128Gi",
    "shm_size": "64Gi",
    "host_network": True,
    "host_ipc": True,
    "interface": "eth0",
    "capabilities": ["SYS_PTRACE"],
    "privileged": True,
    "node_selector": {"pool": "mi300x"},
    "tolerations": [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priority_class": "high",
    "queue": "train",
    "service_account": "runner",
    "image_pull_secrets": ["registry"],
    "image_pull_policy": "IfNotPresent",
    "runtime_secret": "tokens",
    "volumes": [
        {"mount": "/data", "claim": "data", "read_only": True},
        {"mount": "/scratch", "host_path": "/mnt/nvme"},
        {"mount": "/home", "nfs": "server:/export/home", "sub_path": "me"},
    ],
    "labels": {"team": "perf"},
    "annotations": {"note": "a benchmark", "kueue.x-k8s.io/podset-required-topology": "cloud.provider.com/rack"},
    "pod_patch": {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"}},
        "spec": {
            "runtimeClassName": "amd",
            "schedulerName": "topo-aware",
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "rack",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"team": "perf"}},
                }
            ],
            "initContainers": [{"name": "exporter", "image": "exporter:1", "restartPolicy": "Always"}],
            "containers": [{"name": "run", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}],
        },
    },
}
VERSIONS = [f"1.{minor}" for minor in range(28, 38)]


def plan_of(tmp_path, vendor: str = "AMD", nodes: int = 2, **changes: object):
    machine = Machine(vendor=vendor, device="MI300X", gpus=tuple(Gpu(index=n) for n in range(8)))
    made = make_plan(tmp_path, machine=machine, traits=KubernetesRuntime.traits, runtime="kubernetes")
    action = Action(kind="run", argv=("bash", "run.sh"), cwd="{folder}")
    fields = {
        "place": Place(where="kubernetes", nodes=nodes, gpus_per_node=8),
        "actions": (action,),
        "image": Image(ref="rocm/primus:v25.10"),
        "env": {"NCCL_DEBUG": "WARN", "ODD": "a $(HOME) 'b' c$$d\n"},
        "timeout_s": 3600.0,
    }
    return replace(made, **{**fields, **changes})


def settings_of(**table: object) -> KubernetesSettings:
    return read_settings(table, "a test")[0]


def valid(documents: list[dict], versions: list[str] = VERSIONS[-1:]) -> None:
    for version in versions:
        for one in documents:
            if one["apiVersion"] in ("v1", "batch/v1"):
                validate(one, version)


@each_row("table", [{}, EVERYTHING])
@each_row("vendor", ["AMD", "NVIDIA"])
def test_the_objects_are_valid(tmp_path, table, vendor):
    objects = make_objects(plan_of(tmp_path, vendor), {"madlite_runs/x/run.sh": b"true\n"}, settings_of(**table))
    valid(list(objects.all()), VERSIONS)
    job = objects.job["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"], job["backoffLimit"]) == (2, 2, "Indexed", 0)
    container = job["template"]["spec"]["containers"][0]
    resource = {"AMD": "amd.com/gpu", "NVIDIA": "nvidia.com/gpu"}[vendor]
    assert container["resources"]["limits"][resource] == container["resources"]["requests"][resource] == "8"
    assert job["template"]["spec"]["restartPolicy"] == "Never" and "activeDeadlineSeconds" not in job
    assert job["template"]["spec"]["activeDeadlineSeconds"] >= 2 * 3600, "an image is pulled in it, no node waited for"
    failed = [(rule["action"], *sorted(set(rule) - {"action"})) for rule in job["podFailurePolicy"]["rules"]]
    assert failed == [("FailJob", "onPodConditions"), ("FailJob", "onExitCodes", "onPodConditions")], (
        "no pod measures a second time"
    )
    assert job["podReplacementPolicy"] == "Failed" and job["ttlSecondsAfterFinished"] > 3 * 86400
    assert objects.config["immutable"] is True


def test_what_the_settings_ask_for_is_in_the_pods(tmp_path):
    objects = make_objects(plan_of(tmp_path), {}, settings_of(**EVERYTHING))
    spec = objects.job["spec"]["template"]["spec"]
    assert spec["hostNetwork"] and spec["dnsPolicy"] == "ClusterFirstWithHostNet" and spec["hostIPC"]
    assert spec["nodeSelector"] == {"pool": "mi300x"} and spec["priorityClassName"] == "high"
    assert spec["tolerations"] == [{"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}] and spec["serviceAccountName"] == "runner"
    container = spec["containers"][0]
    assert container["resources"]["limits"] == {"memory": "128Gi", "rdma/hca": "8", "amd.com/gpu": "8"}
    assert container["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE", "IPC_LOCK"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in spec["volumes"]
    assert objects.job["spec"]["suspend"] and objects.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "train"
    assert "kueue.x-k8s.io/queue-name" not in objects.job["spec"]["template"]["metadata"]["labels"]


def pod_of(tmp_path, **table: object) -> dict:
    return make_objects(plan_of(tmp_path), {}, settings_of(**table)).job["spec"]["template"]


def test_a_patch_reaches_every_field_of_the_pods_and_the_run_s_container_by_its_name(tmp_path):
    pod = pod_of(tmp_path, **EVERYTHING)
    assert pod["metadata"]["annotations"] == {**EVERYTHING["annotations"], "k8s.v1.cni.cncf.io/networks": "rdma-net"}
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert (spec["runtimeClassName"], spec["schedulerName"]) == ("amd", "topo-aware")
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "rack" and spec["restartPolicy"] == "Never"
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert (env["NCCL_DEBUG"], env["NNODES"]) == ("INFO", "2"), "one variable of many"


ITEMS = [{"name": "a", "value": "1", "env": [{"name": "x", "value": "1"}]}, {"name": "b", "value": "2"}]


@each_row(
    ("patch", "expected"),
    [
        ({"k": 1}, {"k": 1, "old": {"x": 1, "y": 2}, "containers": ITEMS, "args": ["1"]}),
        ({"old": {"x": None, "z": 3}}, {"old": {"y": 2, "z": 3}, "containers": ITEMS, "args": ["1"]}),
        ({"old": {"$patch": "replace", "z": 3}, "args": ["2"]}, {"old": {"z": 3}, "containers": ITEMS, "args": ["2"]}),
        ({"old": {"$retainKeys": ["x"]}, "args": None}, {"old": {"x": 1}, "containers": ITEMS}),
        ({"old": None, "args": None, "containers": [{"name": "b", "$patch": "delete"}]}, {"containers": ITEMS[:1]}),
        (
            {"old": None, "args": None, "containers": [{"name": "c"}, {"name": "b", "value": "3"}]},
            {"containers": [ITEMS[0], {"name": "b", "value": "3"}, {"name": "c"}]},
        ),
        (
            {"old": None, "args": None, "containers": [{"name": "a", "env": [{"name": "y"}]}]},
            {"containers": [{**ITEMS[0], "env": [*ITEMS[0]["env"], {"name": "y"}]}, ITEMS[1]]},
        ),
        (
            {"old": None, "args": None, "containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
        ),
    ],
)
def test_a_patch_is_merged_as_kubectl_merges_one(patch, expected):
    assert patched({"old": {"x": 1, "y": 2}, "containers": ITEMS, "args": ["1"]}, patch) == expected


def test_pods_of_volcano_are_a_group_of_all_of_them_in_its_queue(tmp_path):
    patch = {"spec": {"schedulerName": "volcano"}}
    for jobset in (False, True):
        job = make_objects(plan_of(tmp_path), {}, settings_of(pod_patch=patch, queue="gpus", jobset=jobset)).job
        owner = job["spec"]["replicatedJobs"][0]["template"] if jobset else job
        assert owner["metadata"]["annotations"] == {"scheduling.volcano.sh/group-min-member": "2"}
        pod = owner["spec"]["template"]
        assert pod["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "gpus"}
        assert "suspend" not in job["spec"] and "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    valid([make_objects(plan_of(tmp_path), {}, settings_of(pod_patch=patch, queue="gpus")).job], VERSIONS)


def test_scripts_find_madengine_s_variables(tmp_path):
    (container,) = pod_of(tmp_path)["spec"]["containers"]
    env = {one["name"]: one.get("value") or one.get("valueFrom") for one in container["env"]}
    assert (env["MAD_K8S_JOB"], env["MAD_DEPLOYMENT_TYPE"], env["MAD_TOTAL_NODES"]) == ("true", "kubernetes", "2")
    assert env["NPROC_PER_NODE"] == env["GPUS_PER_NODE"] == "8"
    assert env["MAD_K8S_POD_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert env["MAD_K8S_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_secrets_stand_in_the_secret_alone(tmp_path):
    env = {"HF_TOKEN": Secret("hf-s3cr3t")}
    action = Action(kind="run", argv=("bash", "run.sh"), env={"KEY": Secret("own-s3cr3t"), "PLAIN": "a b"})
    plan = plan_of(tmp_path, env=env, actions=(action,))
    objects = make_objects(plan, {}, settings_of())
    assert objects.secret is not None
    valid(list(objects.all()))
    others = json.dumps([one for one in objects.all() if one is not objects.secret])
    assert "s3cr3t" not in others and "s3cr3t" not in yaml_of(objects)
    assert sorted(objects.secret["data"]) == ["HF_TOKEN", "MADLITE_ACTION_0_KEY"] and objects.secret["immutable"]
    assert "write what *** stands for (HF_TOKEN, MADLITE_ACTION_0_KEY)" in yaml_of(objects)
    assert 'env KEY="${MADLITE_ACTION_0_KEY}" PLAIN=' in objects.config["data"]["actions.sh"]


def test_a_dry_run_s_yaml_can_be_applied(tmp_path):
    plan = plan_of(tmp_path, env={"HF_TOKEN": Secret("s3cr3t")})
    text = KubernetesRuntime(settings_of()).manifest(plan, {"run.sh": b"echo a\n\techo b\n", "data.bin": b"\0\xff"})
    documents = list(yaml.safe_load_all(text))
    valid(documents)
    assert [one["kind"] for one in documents] == ["Secret", "ConfigMap", "Service", "Job"]
    (script,) = (value for key, value in documents[1]["data"].items() if key.endswith("run.sh"))
    assert script == "echo a\n\techo b\n" and list(documents[1]["binaryData"].values()) == ["AP8="]
    (files,) = (one for one in documents[3]["spec"]["template"]["spec"]["volumes"] if one["name"] == "files")
    paths = [item["path"] for item in files["configMap"]["items"]]
    home = plan.folder.relative_to(plan.workspace)
    assert sorted(paths) == [f"{home}/data.bin", f"{home}/run.sh"]


def test_a_value_with_a_reference_is_no_reference(tmp_path):
    spec = make_objects(plan_of(tmp_path), {}, settings_of()).job["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert env["ODD"] == "a $$(HOME) 'b' c$$$$d\n" and env["NNODES"] == "2"
    name = job_name(plan_of(tmp_path).id)
    assert env["MASTER_ADDR"] == f"{name}-0.{name}" and spec["subdomain"] == name


def test_a_jobset_has_the_same_pods_and_a_master_by_its_own_names(tmp_path):
    objects = make_objects(plan_of(tmp_path), {}, settings_of(jobset=True))
    valid([one for one in objects.all() if one is not objects.job])
    inner = objects.job["spec"]["replicatedJobs"][0]["template"]["spec"]
    validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": inner})
    env = {one["name"]: one.get("value") for one in inner["template"]["spec"]["containers"][0]["env"]}
    name = objects.name
    assert env["MASTER_ADDR"] == f"{name}-run-0-0.{name}" and objects.job["spec"]["network"]["subdomain"] == name


@each_row("run_id", ["20260101T000000-a-0000ff", "20260101T000000-" + "Llama_3.1/8B " * 20, "x" * 300])
def test_names_and_labels_are_what_kubernetes_takes(run_id):
    name, value = job_name(run_id), label_value(run_id)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 52
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
    assert job_name(run_id + "1") != name


def test_of_the_workspace_a_pod_gets_its_script_and_no_credentials(tmp_path):
    made = plan_of(tmp_path)
    for name in (
        "run.sh",
        "credential.json",
        ".env",
        "other.txt",
        "kit/run.sh",
        "kit/lib/a.py",
        "kit/.env.local",
        "kit/.git/x",
    ):
        path = made.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("hunter2")
    for scripts, expected in (("run.sh", {"run.sh"}), ("kit/run.sh", {"kit/run.sh", "kit/lib/a.py"})):
        plan = replace(made, card=replace(made.card, scripts=scripts), templates=())
        assert set(ship(plan, settings_of(), {}).files) == expected


def test_scripts_of_a_folder_may_start_each_other(tmp_path):
    spec = make_objects(plan_of(tmp_path), {"kit/setup.sh": b"#!/bin/sh\n"}, settings_of()).job["spec"]["template"][
        "spec"
    ]
    (files,) = (one for one in spec["volumes"] if one["name"] == "files")
    assert files["configMap"]["defaultMode"] & 0o111 == 0o111


def test_files_beyond_a_configmap_are_refused_with_the_largest_named(tmp_path):
    with pytest.raises(RuntimeProblem, match=r"2\.\d MiB, and a ConfigMap holds 1 MiB \(the largest is .*weights.bin"):
        make_objects(plan_of(tmp_path), {"a/weights.bin": b"x" * (2 << 20), "b": b"y"}, settings_of())


def test_madengine_s_keys_are_understood():
    table = {
        "gpu_resource_name": "amd.com/gpu",
        "gpu_count": 8,
        "gpu": "MI300X",
        "memory": "64Gi",
        "ttl_seconds_after_finished": 60,
        "backoff_limit": 3,
        "secrets": {"strategy": "existing", "image_pull_secret_names": ["r"], "runtime_secret_name": "t"},
        "data_pvc": "madengine-shared-data",
        "nfs_storage_class": "nfs-banff",
    }
    settings, notes = read_settings(table, "context: k8s")
    assert (settings.gpu_resource, settings.gpus_per_node, settings.ttl_s) == ("amd.com/gpu", 8, 60)
    assert settings.image_pull_secrets == ("r",) and settings.runtime_secret == "t"
    assert [(one.mount, one.claim) for one in settings.volumes] == [("/data", "madengine-shared-data")]
    assert len(notes) == 2 and "'backoff_limit' has no effect" in notes[0]


def test_madengine_s_keys_of_pods_are_parts_of_the_patch(tmp_path):
    table = {
        "gpu_vendor": "nvidia",
        "pod_annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-net"},
        "extra_resources": {"rdma/hca": 1},
        "security_context": {"capabilities": {"add": ["IPC_LOCK"]}},
        "pod_patch": {"spec": {"subdomain": None, "containers": [{"name": "run", "tty": True}]}},
        "volumes": [
            {"name": "w", "pvc": "model-weights", "mount_path": "/models", "read_only": True},
            {"name": "n", "nfs": {"server": "s", "path": "/export"}, "mount_path": "/n"},
            {"host_path": "/mnt", "host_path_type": "Directory"},
        ],
        "results_access_mode": "ReadWriteOnce",
        "include_script_dirs": ["scripts/common"],
    }
    settings, notes = read_settings(table, "context: k8s")
    said = " ".join(notes)
    assert len(notes) == 3 and "'name' of volumes has no effect" in said and "'host_path_type' of volumes has" in said
    assert settings.include_script_dirs == ("scripts/common",)
    assert [(one.mount, one.claim or one.nfs or one.host_path) for one in settings.volumes] == [
        ("/models", "model-weights"),
        ("/n", "s:/export"),
        ("/mnt", "/mnt"),
    ]
    objects = make_objects(plan_of(tmp_path), {}, settings)
    valid(list(objects.all()), VERSIONS)
    pod = objects.job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"] == table["pod_annotations"] and "subdomain" not in pod["spec"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert container["securityContext"] == table["security_context"] and container["tty"] is True


SECRET = "s3cr3tpassw0rd"


def in_run(fields: dict) -> dict:
    return {"pod_patch": {"spec": {"containers": [{"name": "run", **fields}]}}}


def with_resources(patch: dict) -> dict:
    return {"extra_resources": {"rdma/hca": 1}, "pod_patch": patch}


@each_row(
    ("table", "message", "hint"),
    [
        ({"namspace": "x"}, "key 'namspace' is unknown", "namespace"),
        ({"namespace": "No_Good"}, "namespace", "docs/kubernetes.md"),
        ({"tolerations": [{"kee": "x"}]}, "kee", ""),
        ({"memory": "lots"}, "memory", ""),
        ({"gpu_count": 8}, "'gpus_per_node' without 'gpu'", "MI300X"),
        ({"gpu": "MI300Y", "gpus_per_node": 8}, "gpu 'MI300Y' is unknown", "MI300X"),
        ({"volumes": [{"mount": "/x"}]}, "the volume at /x has 0 sources", "claim"),
        ({"volumes": [{"mount": "/x", "claim": "a", "nfs": "b:/c"}]}, "2 sources", ""),
        ({"volumes": [{"mount": "/x", "nfs": "b"}]}, "no HOST:/PATH", ""),
        ({"pod_patch": {"containers": []}}, "pod_patch has 'containers'", "metadata and spec"),
        ({"pod_patch": {"spec": "x"}}, "pod_patch has 'spec'", "metadata and spec"),
        ({"pod_patch": {"spec": {"volumes": [{"emptyDir": {}}]}}}, "an item of volumes has no name", "name says which"),
        (in_run({"name": []}), "pod_patch: an item of containers has no name", "name says which"),
        (in_run({"$retainKeys": 5}), "pod_patch: $retainKeys is no list", "fields that stay"),
        (with_resources({"spec": "x"}), "pod_patch has 'spec'", "metadata and spec"),
        (with_resources({"metadata": 5}), "pod_patch has 'metadata'", "metadata and spec"),
        (with_resources({"spec": {"containers": None}}), "leaves no container 'run'", '"name": "run"'),
        ({"pod_patch": {"spec": {"containers": None}}}, "leaves no container 'run'", '"name": "run"'),
        ({"pod_patch": {"spec": {"containers": 5}}}, "leaves no container 'run'", ""),
        ({"pod_patch": {"spec": {"containers": {"name": "run"}}}}, "leaves no container 'run'", ""),
        ({"pod_patch": {"spec": {"containers": [{"$patch": "replace"}]}}}, "leaves no container 'run'", ""),
        ({"pod_patch": {"spec": {"$patch": "replace"}}}, "leaves no container 'run'", ""),
        (in_run({"$patch": "delete"}), "leaves no container 'run'", ""),
        (in_run({"$patch": "replace", "tty": True}), "leaves no container 'run'", ""),
        (in_run({"env": [{"name": "MY_PASSWORD", "value": SECRET}]}), "a secret in clear, MY_PASSWORD", "secretKeyRef"),
        (in_run({"args": [f"--token=hf_{SECRET * 3}"]}), "pod_patch has a secret in clear", "docker_env_vars"),
        ({"pod_annotations": {"a": f"https://me:{SECRET}@host/"}}, "pod_patch has a secret in clear", ""),
        ({"gpu_vendor": ["AMD"]}, "gpu_vendor is ['AMD']", "one of AMD, NVIDIA"),
        ({"gpu_vendor": "INTEL"}, "gpu_vendor is 'INTEL'", "one of AMD, NVIDIA"),
        ({"pod_patch": []}, "pod_patch is no table", "docs/kubernetes.md"),
        ({"pod_annotations": "x"}, "pod_annotations is no table", "docs/kubernetes.md"),
        ({"volumes": "x"}, "volumes", ""),
        ({"volumes": [{"mount": "/d", "claim": "a", "here": "d"}]}, "here", ""),
        ({"secrets": {"strategie": "x"}}, "key 'secrets.strategie' is unknown", "strategy"),
    ],
)
def test_settings_are_strict(table, message, hint):
    with pytest.raises(UsageProblem) as problem:
        read_settings(table, "context: k8s")
    assert problem.value.message.startswith("context: k8s: ")
    assert message in problem.value.message and hint in problem.value.hint
    assert SECRET not in f"{problem.value.message} {problem.value.hint}"


@each_row("metadata", [{"$patch": "replace"}, {"labels": "x"}, {"labels": {"madlite.run": "x"}}])
def test_the_labels_by_which_pods_are_found_stay_whatever_a_patch_says(metadata, tmp_path):
    settings, _ = read_settings({"pod_patch": {"metadata": metadata}}, "context: k8s")
    template = make_objects(plan_of(tmp_path), {}, settings).job["spec"]["template"]
    plain = make_objects(plan_of(tmp_path), {}, KubernetesSettings()).job["spec"]["template"]
    assert template["metadata"]["labels"] == plain["metadata"]["labels"]


def test_a_patch_may_name_secrets_and_stand_before_the_run_s_container(tmp_path):
    key = {"secretKeyRef": {"name": "tokens", "key": "hf"}}
    patch = {
        "metadata": {"labels": {"env": "prod"}},
        "spec": {
            "subdomain": None,
            "nodeSelector": {"ports": "fast"},
            "volumes": [{"name": "s", "secret": {"secretName": "password"}}],
            "affinity": {"$patch": "delete"},
            "containers": [
                {
                    "name": "run",
                    "env": [{"name": "HF_TOKEN", "valueFrom": key}, {"name": "API_TOKEN", "value": "$(HF_TOKEN)"}],
                }
            ],
        },
    }
    settings, _ = read_settings({"jobset": True, "pod_patch": patch, "exclude": ["n7"]}, "context: k8s")
    (job,) = make_objects(plan_of(tmp_path), {}, settings).job["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    assert {"name": "HF_TOKEN", "valueFrom": key} in own_container(template)["env"]
    assert template["metadata"]["labels"]["env"] == "prod" and "subdomain" not in template["spec"]
    assert template["spec"]["affinity"] == {}, "kubectl patch empties a table of $patch delete"
    template["spec"]["containers"].insert(0, {"name": "mesh", "image": "proxy:1"})  # as a cluster's webhook does
    assert own_container(template)["image"] == "rocm/primus:v25.10" and own_container({}) == {}
