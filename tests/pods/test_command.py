"""`madlite run` on a stand-in cluster: from a context to rows, and the YAML of a dry run."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from madlite.cli.main import call
from tests.pods.schemas import validate
from tests.pods.stand_in import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.host
SCRIPT = 'echo "node $NODE_RANK of $NNODES"\n[ "$NODE_RANK" != 0 ] || echo "performance: 12.5 samples_per_second"\n'


@pytest.fixture
def checkout(tmp_path, monkeypatch, cluster: Cluster):
    folder = tmp_path / "mad"
    (folder / "scripts/a").mkdir(parents=True)
    (folder / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "image": "rocm/a:1", "n_gpus": "-1", "args": "", "tags": []}
    (folder / "models.json").write_text(json.dumps([card]))
    monkeypatch.chdir(folder)
    for name in ("MODEL_DIR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


def run(cluster: Cluster, *args: str, **keys: object) -> int:
    table = {"kubeconfig": str(cluster.kubeconfig()), **keys}
    return call(["run", "--tags", "a", "--image", "rocm/a:1", "-c", json.dumps({"k8s": table}), *args])


def rows(checkout) -> list[dict[str, str]]:
    with (checkout / "perf.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_card_on_two_nodes_has_one_row_and_nothing_is_left(checkout, cluster, capfd):
    assert run(cluster, nodes=2, gpu="MI300X", gpus_per_node=8) == 0, capfd.readouterr()
    ((row,),) = (rows(checkout),)
    assert (row["performance"], row["status"], row["nnodes"]) == ("12.5", "SUCCESS", "2")
    assert (row["deployment_type"], row["n_gpus"]) == ("kubernetes", "16")
    (log,) = checkout.glob("madlite_runs/*/run.log")
    assert "[node0]: node 0 of 2" in log.read_text() and "[node1]: node 1 of 2" in log.read_text()
    wait_until(lambda: not cluster.pods and not cluster.objects)
    assert cluster.invalid == []


def test_a_failing_script_is_a_failure_with_its_line(checkout, cluster, capfd):
    (checkout / "scripts/a/run.sh").write_text("echo 'RuntimeError: HIP out of memory' >&2\nexit 1\n")
    assert run(cluster) == 3
    assert [row["status"] for row in rows(checkout)] == ["FAILURE"]
    assert "HIP out of memory" in capfd.readouterr().out


def test_a_dry_run_prints_yaml_and_touches_nothing(checkout, cluster, capfd, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz0123456789")
    assert run(cluster, "--dry-run", nodes=2, gpu="MI300X", gpus_per_node=8) == 0
    said = capfd.readouterr().out
    documents = [one for one in yaml.safe_load_all(said) if one]
    assert [one["kind"] for one in documents] == ["Secret", "ConfigMap", "Service", "Job"]
    for one in documents:
        validate(one)
    assert "hf_abc" not in said and not (checkout / "madlite_runs").exists() and cluster.requests == []


def test_the_gpu_is_the_one_that_the_labels_of_the_nodes_name(checkout, cluster, capfd):
    for node, (pool, product) in zip(
        cluster.nodes, [("a", "MI300X_OAM"), ("a", "MI300X_OAM"), ("b", "MI325X")], strict=False
    ):
        node["metadata"]["labels"] = {"pool": pool, "amd.com/gpu.product-name": f"AMD_Instinct_{product}"}
    assert run(cluster, "--dry-run", gpu_count=8, node_selector={"pool": "a"}) == 0
    said = capfd.readouterr()
    assert "planned for MI300X, which a label of the nodes names" in said.err and "amd.com/gpu: '8'" in said.out
    assert run(cluster, "--dry-run", gpu_count=8) == 0
    assert "planned for AMD GPUs of unknown type" in (err := capfd.readouterr().err) and "has MI300X and MI325X" in err
    assert run(cluster, gpu_count=8) == 0, "and it runs"
    assert [(row["status"], row["n_gpus"], row["performance"]) for row in rows(checkout)] == [("SUCCESS", "8", "12.5")]


def test_a_wrong_key_is_refused_before_anything(checkout, cluster, capfd):
    assert run(cluster, namspace="x") == 4
    assert "k8s: key 'namspace' is unknown" in capfd.readouterr().err and not (checkout / "perf.csv").exists()


def test_a_secret_in_a_patch_is_refused_before_anything(checkout, cluster, capfd):
    patch = {"spec": {"containers": [{"name": "run", "env": [{"name": "MY_PASSWORD", "value": "s3cr3tpassw0rd"}]}]}}
    for more in (["--dry-run"], []):
        assert run(cluster, *more, pod_patch=patch) == 4
        said = capfd.readouterr()
        assert "pod_patch has a secret in clear, MY_PASSWORD" in said.err and "s3cr3t" not in said.out + said.err
    assert not (checkout / "madlite_runs").exists() and cluster.made == []


def test_the_server_is_to_refuse_a_field_of_a_patch_that_it_does_not_know(checkout, cluster, capfd):
    assert run(cluster, nodes=2) == 0 and cluster.strict == []
    patch = {"spec": {"runtimeClassName": "amd", "containers": [{"name": "run", "tty": True}]}}
    assert run(cluster, pod_patch=patch) == 0 and set(cluster.strict) == {"jobs", "configmaps", "services"}
    assert run(cluster, pod_patch={"spec": {"schedulrName": "volcano"}}) == 3
    assert "schedulrName" in capfd.readouterr().out and rows(checkout)[-1]["status"] == "FAILURE"


def test_a_cluster_that_does_not_answer_is_a_row_with_the_reason(checkout, cluster, capfd):
    cluster.close()
    assert run(cluster) in (2, 3)
    assert [row["status"] for row in rows(checkout)] == ["FAILURE"]
    assert "does not answer" in capfd.readouterr().out


def test_a_plan_file_runs_on_the_cluster_and_for_the_gpus_that_its_context_names(checkout, cluster, capfd):
    table = {"kubeconfig": str(cluster.kubeconfig()), "nodes": 2, "gpu": "MI300X", "gpus_per_node": 8}
    more = {"node_selector": {"pool": "mi300"}, "image_pull_secrets": ["registry"]}
    context = json.dumps({"k8s": {**table, **more}})
    assert call(["plan", "--tags", "a", "--image", "rocm/a:1", "-c", context, "-o", "plan.json"]) == 0
    assert cluster.requests == []
    pods: list[dict] = []
    cluster.pod_status = pods.append  # and nothing of it is decided
    assert call(["run", "--plan", "plan.json"]) == 0, capfd.readouterr()
    ((row,),) = (rows(checkout),)
    assert (row["performance"], row["n_gpus"], row["nnodes"]) == ("12.5", "16", "2")
    assert {pod["spec"]["nodeSelector"]["pool"] for pod in pods} == {"mi300"}
    assert pods[0]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert cluster.invalid == []


def test_what_is_evicted_is_tried_again_and_has_one_row(checkout, cluster, capfd):
    lost: list[str] = []

    def lose(pod: dict) -> dict | None:
        lost.append(pod["metadata"]["name"])
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        return evicted if len(lost) == 1 else None

    cluster.pod_status = lose
    assert run(cluster, "--retry", "1", "--retry-wait", "0") == 0, capfd.readouterr()
    assert [(row["performance"], row["status"]) for row in rows(checkout)] == [("12.5", "SUCCESS")]
    assert len(lost) == 2 and "[preempted]" in capfd.readouterr().out
    wait_until(lambda: not cluster.pods and not cluster.objects)
