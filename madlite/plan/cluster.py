"""What is known of a cluster, as values: a table `[clusters.NAME]` of cluster.toml, and what pods ask for.

docs/cluster.md and docs/kubernetes.md have the keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from madlite.errors import UsageProblem, did_you_mean
from madlite.machine.products import PRODUCTS, find_product, is_vendor
from madlite.model import Value

# Of Kubernetes.

DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$|^$"
"""What a name of Kubernetes matches, or none."""
_QUANTITY = r"^([0-9]+(\.[0-9]+)?)([KMGTPE]i?|[mkunp])?$|^$"
_Name = Annotated[
    str, Meta(pattern=DNS_NAME, description="a name of Kubernetes: lower-case letters, digits, '-' and '.'")
]
_Quantity = Annotated[str, Meta(pattern=_QUANTITY, description="a quantity of Kubernetes", examples=["64Gi"])]
_Path = Annotated[str, Meta(pattern=r"^/", description="an absolute path", examples=["/data"])]


class Toleration(Value, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A taint that pods may be placed in spite of, as Kubernetes has it."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class Volume(Value, frozen=True, forbid_unknown_fields=True):
    """What a pod sees at `mount`: a claim, a folder of the node, or a folder of an NFS server (`HOST:/PATH`).

    `here` is where this machine sees the same folder.
    """

    mount: _Path
    claim: _Name = ""
    host_path: str = ""
    nfs: str = ""
    sub_path: str = ""
    read_only: bool = False
    here: Annotated[str, Meta(pattern=r"^/|^$")] = ""


class KubernetesSettings(Value, frozen=True, forbid_unknown_fields=True):
    """How the pods of a run are made; what is empty Kubernetes or the kubeconfig decides.

    `gpu` and `gpus_per_node` describe the nodes that plans are made for, as `--machine` has it.  `rdma` are resources
    of network cards and how many of each a pod gets.  `pending_limit_s` is how long pods may wait to be placed, 0
    without an end.  `ttl_s` is how long Kubernetes keeps an ended Job that nobody removed.  `pod_patch` is a strategic
    merge patch of the pods' template.  `include_script_dirs` go along with a card's own folder.
    """

    kubeconfig: str = ""
    context: str = ""
    namespace: _Name = ""
    gpu: str = ""
    gpus_per_node: Annotated[int, Meta(ge=0)] = 0
    nodes: Annotated[int, Meta(ge=1)] = 1
    gpu_resource: str = ""
    rdma: dict[str, Annotated[int, Meta(ge=1)]] = {}
    cpu: _Quantity = ""
    cpu_limit: _Quantity = ""
    memory: _Quantity = ""
    memory_limit: _Quantity = ""
    shm_size: _Quantity = ""
    host_network: bool = False
    host_ipc: bool = False
    interface: str = ""
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    node_selector: dict[str, str] = {}
    exclude: tuple[_Name, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    priority_class: _Name = ""
    queue: _Name = ""
    jobset: bool = False
    service_account: _Name = ""
    image_pull_secrets: tuple[_Name, ...] = ()
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    runtime_secret: _Name = ""
    volumes: tuple[Volume, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    pod_patch: dict[str, Any] = {}
    include_script_dirs: tuple[str, ...] = ()
    port: Annotated[int, Meta(ge=1, le=65535)] = 29500
    ttl_s: Annotated[int, Meta(ge=0)] = 7 * 86400  # a detached run's log is there after a weekend
    pending_limit_s: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def machine(self) -> str:
        """The machine that plans are made for, as `--machine` has it; "" for nodes without GPUs."""
        return f"{self.gpus_per_node}x{self.gpu}" if self.gpu and self.gpus_per_node else ""


# Of Slurm, and of all clusters.

TIME = r"^([0-9]+-)?[0-9]+(:[0-9]{1,2}){0,2}\Z|^\Z"  # of a job, as Slurm has it
SIGNAL = r"^[A-Z][A-Z0-9]*@[0-9]+\Z|^\Z"  # and how many seconds before the end of the job's time
LINE = r"^[^\n\r\x00]*\Z"  # what stands on a line of a script

_Line = Annotated[str, Meta(pattern=LINE)]
_Time = Annotated[str, Meta(pattern=TIME)]
Flavour = Literal["", "docker", "podman", "pyxis", "apptainer", "none"]


SBATCH_NAMES = ("partition", "account", "qos", "reservation", "constraint", "time", "mem", "signal")
"""Settings that sbatch and madengine's contexts have under the same names."""


class SlurmSettings(Value, frozen=True):
    """What a job asks Slurm or SPUR for; `gpus` is how GPUs are asked for, `gres` what stands after `--gres=`."""

    partition: _Line = ""
    account: _Line = ""
    qos: _Line = ""
    reservation: _Line = ""
    constraint: _Line = ""
    time: _Time = ""
    gpus: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    gres: _Line = ""
    cpus_per_task: Annotated[int, Meta(ge=0)] = 0
    mem: _Line = ""
    signal: Annotated[str, Meta(pattern=SIGNAL)] = ""  # what the workload gets before the time limit: USR1@120
    exclusive: bool = True
    exclude: tuple[_Line, ...] = ()
    nodelist: tuple[_Line, ...] = ()
    good_nodes: str = ""  # a file with a node on each line; jobs get no others
    directives: tuple[_Line, ...] = ()  # further options of sbatch, without `#SBATCH`
    max_array_size: Annotated[int, Meta(ge=0)] = 0  # 0: the cluster is asked


class Cluster(Value, frozen=True):
    """One cluster as its file describes it; `gpu` is "" for nodes without GPUs.

    `shared` are the folders that every node sees under the same name.  `madlite` is the command on the nodes, "" for
    this very interpreter.  With `health` a job's nodes are measured before its run, which begins elsewhere where one
    fails.  Each scheduler has a table of its own.
    """

    name: str = ""
    source: str = ""
    scheduler: str = "slurm"
    gpu: str = ""
    gpus_per_node: Annotated[int, Meta(ge=0)] = 0
    container: Flavour = ""
    container_options: tuple[_Line, ...] = ()
    image_folder: str = ""  # of image archives, .sqsh and .sif, made once
    shared: tuple[str, ...] = ()
    madlite: _Line = ""
    interface: _Line = ""
    rdma: tuple[_Line, ...] = ()
    gid_index: Annotated[int, Meta(ge=0)] | None = None
    env: dict[str, str | int | float | bool] = {}
    mounts: tuple[_Line, ...] = ()  # SOURCE:TARGET
    prologue: tuple[_Line, ...] = ()
    health: bool = False
    slurm: SlurmSettings = SlurmSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()

    @property
    def machine(self) -> str:
        """The machine that plans are made for, as `--machine` has it; "" for nodes without GPUs."""
        return f"{self.gpus_per_node}x{self.gpu}" if self.gpu and self.gpus_per_node else ""


def check_gpu(gpu: str, gpus_per_node: int, where: str) -> None:
    """Refuse the GPUs of nodes that are described by half, or of an unknown product.

    Raises:
        UsageProblem: they are.
    """
    if bool(gpu) != bool(gpus_per_node):
        given, missing = ("gpu", "gpus_per_node") if gpu else ("gpus_per_node", "gpu")
        hint = "both of them, such as MI300X and 8, or neither for nodes without GPUs"
        raise UsageProblem(f"{where}: '{given}' without '{missing}'", hint)
    if gpu and find_product(gpu) is None and not is_vendor(gpu):
        known = [product.device for product in PRODUCTS]
        near = did_you_mean(gpu, known, most=1)
        raise UsageProblem(f"{where}: gpu '{gpu}' is unknown", near or f"known: {', '.join(known)}")
