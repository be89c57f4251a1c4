"""What a plan is made from, and the sources of its values in their order."""

from __future__ import annotations

from collections.abc import Callable

from madlite.catalog.datasets import DataSets
from madlite.machine.fabric import Fabric
from madlite.model import Image, Machine, Request, RunSpec, Scalar, Value
from madlite.plan.context import Context, Options
from madlite.plan.images import Dockerfile
from madlite.plan.node_values import NodeValues, find_node_values
from madlite.plan.place import RuntimeChoice
from madlite.plan.tools import Toolset
from madlite.plan.values import Layer

# What a plan is made from, and the sources of its values in their order.

WORKSPACE_INSIDE = "/myworkspace"
CACHES_INSIDE = "/madlite_caches"  # in a container of a study: its series' caches of compiled kernels
RUNS = "madlite_runs"
_OF_NODES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class PlanInputs(Value, frozen=True):
    """What all plans of a command share: options, context, machine, credentials, data sets, tools."""

    options: Options
    context: Context
    machine: Machine
    credentials: dict[str, dict[str, str]] | None = None  # None without a credential.json
    services: dict[str, tuple[dict[str, str], ...]] = {}  # MAD_MINIO and the like
    data_sets: DataSets | None = None  # None without a data.json
    tools: Toolset = Toolset()
    tool_files: tuple[str, ...] = ()  # what madlite brings of tools, below its templates' folder `tools`
    fabric: Fabric | None = None  # of this machine, where it is one of those that run
    check_endpoint: Callable[[str], str] = lambda endpoint: ""  # why an endpoint cannot be reached, or nothing


class RunInputs(PlanInputs, frozen=True, kw_only=True):
    """Everything one plan is made from; `dockerfile` is one of the card's, `missing_image` why it has none."""

    run_id: str
    request: Request
    backend: str
    spec: RunSpec
    runtime: RuntimeChoice
    args: str
    arg_keys: frozenset[str] = frozenset()  # of the tag's additions those that are arguments, and no keys of the plan
    dockerfile: Dockerfile | None = None
    missing_image: str = ""
    foreign_settings: frozenset[str] = frozenset()  # settings that other runs of the card have, and this one has not
    built: Image | None = None  # made before, as a manifest has it

    @property
    def inside(self) -> str:
        """Return the workspace as the actions see it."""
        return WORKSPACE_INSIDE if self.runtime.traits.containerised else str(self.options.workspace)

    @property
    def nodes(self) -> NodeValues:
        """Return which node of several this machine is; nothing where the runtime has all of them.

        Raises:
            UsageProblem: each rank has a madlite of its own.
        """
        return find_node_values(self.options.environ) if self.runtime.traits.local else NodeValues()

    @property
    def folder_inside(self) -> str:
        """Return the run folder as the actions see it."""
        return f"{self.inside}/{RUNS}/{self.run_id}"


def layers(
    request: Request, context: Context, options: Options, rendered: bool = True, nodes: NodeValues | None = None
) -> list[Layer]:
    """Return the sources of values over a spec's own, in order: later wins.

    What follows a tag's colon is for the card's own script where nothing is `rendered`.
    """
    card_values = request.card.recipe if isinstance(request.card.recipe, dict) else {}
    tag_values: dict[str, Scalar] = {key: "true" if value is None else value for key, value in request.overrides}
    return [
        Layer(origin="card", values={key: value for key, value in card_values.items() if key != "name"}),
        *_nodes_here(nodes),
        _nodes(context),
        Layer(origin=f"context file {context.file}", values=context.file_settings),
        Layer(origin="--additional-context", values=context.option_settings),
        *(Layer(origin=option, values={key: value}) for option, key, value in options.named),
        Layer(origin="tag", values=tag_values if rendered else {}),
        *(Layer(origin="--set", values={key: value}) for key, value in options.sets),
        *(Layer(origin="--oom-fallback", values={key: value}) for key, value in options.fallback),
    ]


def _nodes_here(nodes: NodeValues | None) -> list[Layer]:
    """Return what the environment has of this node, a layer for each value, as each has an origin."""
    values = {} if nodes is None else nodes.variables
    return [
        Layer(origin=nodes.origins[name], values={name.lower(): text}, strict=False)
        for name, text in values.items()
        if nodes is not None
    ]


def _nodes(context: Context) -> Layer:
    """Return the context's rendezvous settings, for backends whose settings have these keys."""
    given = context.typed.multi_node_args or {}
    values: dict[str, Scalar] = {name.lower(): given[name] for name in _OF_NODES if given.get(name, "") != ""}
    return Layer(origin=context.origins.get("multi_node_args", "context"), values=values, strict=False)
