"""Runs of several nodes: what each node knows of the others, and what would keep them from meeting.

A backend takes NODE_SETTINGS into the settings of its RunSpecs (TorchrunBackend does) and includes
templates/_nodes.sh.j2; the context's `multi_node_args` and --set fill them, and the environment what they leave open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from madlite import Finding, Machine, RecipeBackend, Request, RunPlan, RunSpec, Scalar

NODE_SETTINGS: dict[str, Scalar] = {
    "nnodes": 0,  # 0: the context's, else 1
    "node_rank": "",
    "master_addr": "",
    "master_port": "",
    "nccl_socket_ifname": "",
    "gloo_socket_ifname": "",
}
_LOCAL_ADDRESSES = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104
_NUMBER = re.compile("[0-9]{1,5}")


class TorchrunBackend(RecipeBackend):
    """A backend of recipes whose run torchrun starts, on one node or on each of several."""

    launcher = "torchrun"

    def expand(self, request: Request, machine: Machine) -> Sequence[RunSpec]:
        """Return a RunSpec per run, each with the settings of its nodes.

        Raises:
            UsageProblem: no recipe fits.
        """
        return [replace(spec, settings=_with_nodes(spec)) for spec in super().expand(request, machine)]

    def check(self, plan: RunPlan) -> Iterable[Finding]:
        """Find what keeps the nodes from meeting."""
        return (*super().check(plan), *node_findings(plan, self.result_node(plan)))

    def result_node(self, plan: RunPlan) -> int | None:
        """Return the one node that prints the result; None where each node prints its own ranks'."""
        return None


def node_findings(
    plan: RunPlan, result_node: int | None = None, otherwise: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Finding]:
    """Yield what keeps the nodes of a plan from meeting, and which has the result; nothing of one node.

    `otherwise` are variables that the run is given where neither its settings nor its environment have them.
    """
    nodes = plan.place.nodes
    if int(plan.settings.get("nnodes", 0)) < 0:
        yield Finding(
            message=f"nnodes is {plan.settings['nnodes']}", hint="--set nnodes=N", fatal=True, keys=("nnodes",)
        )
    if nodes < 2:
        return
    yield from _check_given(plan) if plan.place.whole else _own(plan, result_node)
    port = node_value(plan, "master_port")
    if port and not (_NUMBER.fullmatch(port) and 0 < int(port) < 65536):
        hint = "--set master_port=29500, the same on every node"
        yield Finding(message=f"'{port}' is no port", hint=hint, fatal=True, keys=("master_port", "nnodes"))
    interfaces = ("nccl_socket_ifname", "gloo_socket_ifname")
    if any((node_value(plan, key) or otherwise.get(key.upper())) == "lo" for key in interfaces):
        hint = "--set nccl_socket_ifname= and gloo_socket_ifname= to an interface that `ip a` shows"
        yield Finding(message="interface lo reaches no other node", hint=hint, fatal=True, keys=(*interfaces, "nnodes"))


def node_value(plan: RunPlan, key: str) -> str:
    """Return a setting of NODE_SETTINGS, where it is empty the run's variable of that name."""
    return str(plan.settings.get(key) or plan.env.get(key.upper(), ""))


def loss_node(plan: RunPlan) -> int | None:
    """Return the node of the first rank of the last pipeline stage, which alone knows the loss; None without stages."""
    stages, gpus = int(plan.settings["pp"]), max(1, plan.place.gpus_per_node)
    return gpus * plan.place.nodes // stages * (stages - 1) // gpus if stages > 1 else None


def _check_given(plan: RunPlan) -> Iterator[Finding]:
    """Yield what is set of a run that has all of its nodes: its runtime tells each of them."""
    for key in ("node_rank", "master_addr"):
        if plan.settings.get(key):
            message = f"{key} is '{plan.settings[key]}' for all nodes: runtime '{plan.runtime}' sets it on each node"
            yield Finding(message=message, hint=f"leave out --set {key}", fatal=True, keys=(key,))


def _own(plan: RunPlan, result_node: int | None) -> Iterator[Finding]:
    """Yield what is missing of a run that is one node's part."""
    nodes, address = plan.place.nodes, node_value(plan, "master_addr")
    yield from _rank(node_value(plan, "node_rank"), nodes, result_node)
    if address in _LOCAL_ADDRESSES:
        hint = "--set master_addr= to the first node's name or address"
        yield Finding(
            message=f"{nodes} nodes cannot meet at '{address or 'localhost'}'",
            hint=hint,
            fatal=True,
            keys=("master_addr", "nnodes"),
        )


def _rank(rank: str, nodes: int, result_node: int | None) -> Iterator[Finding]:
    if not _NUMBER.fullmatch(rank) or int(rank) >= nodes:
        hint = f"--set node_rank=0 on the first node, up to {nodes - 1} on the last"
        yield Finding(
            message=f"of {nodes} nodes none is number '{rank}'", hint=hint, fatal=True, keys=("node_rank", "nnodes")
        )
        return
    hint = """-c '{"skip_perf_collection": true}' writes no row here"""
    if result_node is not None and int(rank) != result_node:
        message = f"the result is printed on node {result_node}: on node {int(rank)} there will be no result"
        yield Finding(message=message, hint=hint)
    elif result_node is None and int(rank):
        yield Finding(message=f"node {int(rank)} writes a row of its own, as each of the {nodes} nodes does", hint=hint)


def _with_nodes(spec: RunSpec) -> dict[str, Scalar]:
    return {**spec.settings, **{key: value for key, value in NODE_SETTINGS.items() if key not in spec.settings}}
