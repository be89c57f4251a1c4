"""The catalogue: cards and requests for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from madlite.model.values import Json, Scalar, Value


class Card(Value, frozen=True):
    """One model card in MAD's schema; `extra` keeps every field madlite has no meaning for.

    `timeout_s`: None stands for the default (7200 s), 0 for no limit.  `runtimes` is empty where the card names
    none.  `recipe` is a recipe's name or a table of values that overlay the backend's own.
    """

    name: str
    root: Path  # the folder that dockerfile, scripts and dockercontext are relative to
    source: str  # the file or plugin the card came from, for messages
    scope: str = ""  # the folder that the name begins with: the sub-folder of scripts/ that the card is from
    dockerfile: str = ""
    dockercontext: str = ""
    scripts: str = ""
    args: str = ""
    n_gpus: str = "1"
    tags: tuple[str, ...] = ()
    timeout_s: int | None = None
    multiple_results: str = ""
    data: tuple[str, ...] = ()
    cred: str = ""
    url: str = ""
    owner: str = ""
    training_precision: str = ""
    skip_gpu_arch: tuple[str, ...] = ()
    additional_docker_run_options: str = ""
    is_deprecated: bool = False
    backend: str = ""
    recipe: str | dict[str, Scalar] = ""
    image: str = ""
    runtimes: tuple[str, ...] = ()
    extra: dict[str, Json] = {}


class Request(Value, frozen=True):
    """One selected card, its tag, and the values after the tag's colon."""

    card: Card
    tag: str
    overrides: tuple[tuple[str, str | None], ...] = ()  # in the order given; None for a bare flag
    settings: dict[str, str] = {}  # requested values, by which the backend chooses a recipe
    origins: dict[str, str] = {}  # the origin of each, e.g. --precision or card


class Problem(Value, frozen=True):
    """Something broken that was left out so that the rest works."""

    where: str
    what: str


class TreeCards(Value, frozen=True):
    """What a plugin found in a folder of `--cards-from`: cards in MAD's schema, and what is broken in between.

    `tree` is the folder as it was given; paths in the cards are relative to it.
    """

    tree: Path
    found: tuple[Mapping[str, Json] | Problem, ...]


CardItem: TypeAlias = Mapping[str, Json] | Path | TreeCards | Problem
"""What a plugin gives for cards: one in MAD's schema, a models.json, those of a folder, or what was left out."""


# What a run can use.

Vendor: TypeAlias = Literal["AMD", "NVIDIA", "CPU"]


class Gpu(Value, frozen=True):
    """One GPU (or partition of one) as a workload sees it."""

    index: int
    arch: str = ""  # gfx942, or NVIDIA's product name
    product: str = ""  # AMD Instinct MI300X, NVIDIA H100 80GB HBM3
    memory_bytes: int | None = None
    render_minor: int | None = None  # /dev/dri/renderD<minor>, AMD only
    unique_id: str = ""
    bus: str = ""


class Machine(Value, frozen=True):
    """What a run can use here. A CPU machine has no GPU and architecture `cpu`."""

    vendor: Vendor = "CPU"
    gpus: tuple[Gpu, ...] = ()
    architecture: str = "cpu"  # perf.csv's gpu_architecture: gfx942, NVIDIA H100 80GB HBM3, cpu
    product: str = "cpu"
    device: str = "cpu"  # short name of result rows: MI300X, MI325X, MI350X, MI355X, H100, H200, cpu
    driver_version: str = ""
    rocm_version: str = ""
    cuda_version: str = ""
    hostname: str = ""
    host_os: str = ""
    sources: dict[str, str] = {}  # which tool or override each fact came from
    problems: tuple[Problem, ...] = ()  # tools that failed or hung while another one answered
    pretended: bool = False  # GPUs that are not here: to plan for, never to run on

    @property
    def words(self) -> str:
        """How messages name it: what is only planned for, for the nodes of a cluster say, is not this machine."""
        return "the planned machine" if self.pretended else "this machine"
