"""`madlite cluster`: make a cluster file by asking the cluster, and check its nodes by one short job."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from madlite.cli import setup
from madlite.cli.arguments import whole_number
from madlite.cli.main import Group
from madlite.cli.options import Command, verbose_option
from madlite.cli.terminal import echo, echo_lines
from madlite.errors import ExitCode, UsageProblem

if TYPE_CHECKING:
    from madlite.jobs.file import Cluster
    from madlite.jobs.node_check import CheckRequest
    from madlite.jobs.schedulers import Examined
    from madlite.jobs.slurm import Slurm

_POLL_S = 2.0
_FILES_S = 5.0  # after the end of the job, for what nodes wrote to be seen here


@click.group("cluster", cls=Group)
def command() -> None:
    """Make and check cluster.toml, the description of a cluster.

    \b
    madlite cluster init
    madlite cluster check mi300 --nodes 16 --good-nodes good-nodes.txt
    """


@command.command("init", cls=Command)
@click.argument("name", required=False, default="")
@click.option("--partition", default="", metavar="NAME", help="Of several, this one.")
@click.option("--gpu", default="", metavar="GPU", help="Its GPU, where sinfo does not name the type: MI300X.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=None, metavar="FILE", help="[default: cluster.toml]"
)
@verbose_option
def init(name: str, partition: str, gpu: str, output: Path | None) -> int:
    """Write a cluster file by asking Slurm: partition, GPUs of a node, limits, container tools.

    NAME is what --cluster will call it, by default the cluster's own name.  What the cluster cannot tell is a comment.
    """
    from madlite.files import exists, write_named
    from madlite.jobs.ask import choose, cluster_name, file_lines, partitions
    from madlite.jobs.file import NAME, Cluster, read_clusters
    from madlite.jobs.schedulers import SCHEDULERS
    from madlite.jobs.slurm import Slurm
    from madlite.machine.products import PRODUCTS, find_product

    file = output or Path(NAME)
    if exists(file):
        raise UsageProblem(f"{file} is there already", f"madlite cluster init -o other.toml   or edit {file}")
    if name and not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageProblem(f"cluster name '{name}' is not letters, digits, _ and -", "madlite cluster init my_cluster")
    if gpu and find_product(gpu) is None:
        raise UsageProblem(f"--gpu {gpu} is unknown", f"known: {', '.join(one.device for one in PRODUCTS)}")
    slurm = Slurm(Cluster(), dict(os.environ))
    chosen = choose(partitions(slurm), partition)
    name = name or cluster_name(slurm) or "cluster"
    text = "\n".join([*file_lines(name, chosen, gpu, slurm.array_limit(), dict(os.environ), Path.cwd()), ""])
    write_named(file, text, lambda path: False)
    read_clusters(file, SCHEDULERS)
    echo(f"{file}: cluster '{name}', partition {chosen.name}, {chosen.nodes} nodes")
    echo_lines(text)
    if chosen.gpus_per_node and "\ngpu = " not in text:
        setup.warn(f"sinfo does not name the type of the {chosen.gpus_per_node} GPUs: set gpu in {file}, or --gpu")
    return int(ExitCode.OK)


@command.command("check", cls=Command)
@click.argument("name", required=False, default="")
@click.option("--nodes", type=whole_number(1), metavar="N", help="How many nodes.  [default: those that are idle]")
@click.option("--image", default="", metavar="REF", help="Compare this image's digest on the nodes.")
@click.option(
    "--good-nodes", type=click.Path(path_type=Path), metavar="FILE", help="Write the nodes that passed to FILE."
)
@click.option("--exclude", multiple=True, metavar="NODE,…", help="Leave these nodes out.")
@click.option("--timeout", type=whole_number(1), default=600, metavar="SECONDS", help="[default: 600]")
@verbose_option
def check(
    name: str, nodes: int | None, image: str, good_nodes: Path | None, exclude: tuple[str, ...], timeout: int
) -> int:
    """Check nodes by one short job: shared folder, clock, interface, RDMA devices, GPUs, container, image.

    Names the nodes that fail, and then ends with exit code 6 and leaves the folder with what they wrote.  Of
    Kubernetes no job is made: the API server is asked about rights, nodes with GPUs, and the secrets, claims and
    classes that the cluster file names.
    """
    from madlite.cli.submit import open_cluster
    from madlite.jobs.file import VARIABLE, check_shared
    from madlite.jobs.node_check import held, write_request
    from madlite.jobs.slurm import Slurm
    from madlite.jobs.submission import new_submission_id
    from madlite.plan.inputs import RUNS, split_hosts
    from madlite.store.folder import CHECK_PREFIX

    named = name or os.environ.get(VARIABLE, "").strip()
    if not named:
        raise UsageProblem("which cluster?", f"madlite cluster check NAME, or set {VARIABLE}")
    cluster, here, left_out = open_cluster(named), Path.cwd(), split_hosts(",".join(exclude))
    examined = _examine(cluster, nodes or 1, left_out)
    if examined is not None:
        for option, value in (("--image", image), ("--good-nodes", good_nodes)):
            if value:
                what = f"{option} with scheduler '{cluster.scheduler}': no job is made on its nodes"
                raise UsageProblem(what, f"leave {option} out")
        return _print_examined(examined)
    check_shared(cluster, here)
    slurm = Slurm(cluster, dict(os.environ))
    count = nodes or len(slurm.idle_nodes(left_out))
    if not count:
        other = f" other than {', '.join(left_out)} (--exclude)" if left_out else ""
        raise UsageProblem(f"no node{other} is idle", "--nodes N waits for N nodes")
    folder = here / RUNS / f"{CHECK_PREFIX}{new_submission_id()}"
    request = write_request(folder, cluster, image)
    with held(folder):
        try:
            asked = _run_check(slurm, _write_script(cluster, folder, count, left_out), count, timeout)
            code = _report(folder, request, asked, count, good_nodes)
        except BaseException:
            setup.warn(f"the check's files stay: {folder} (madlite clean removes them)")
            raise
        if code == int(ExitCode.OK):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            echo(f"{folder} has the job's script, its output and the nodes' reports; madlite clean removes it")
    return code


def _run_check(slurm: Slurm, script: Path, count: int, timeout: int) -> tuple[str, ...]:
    """Give the check to the cluster and wait for its end; return its nodes."""
    from madlite.jobs.schedulers import Unreachable

    job = slurm.submit_file(script)
    echo(f"job {job}: {count} node{'s' if count > 1 else ''}")
    try:
        return _wait(slurm, job, timeout)
    except BaseException:  # Ctrl-C, a cluster that does not answer: nobody would read what the job finds
        with suppress(Unreachable):
            slurm.cancel([job])
        raise


def _examine(cluster: Cluster, nodes: int, left_out: Sequence[str]) -> Sequence[Examined] | None:
    """Return what the cluster says by itself; None where a job has to check its nodes.

    Raises:
        UsageProblem: the cluster's scheduler cannot be asked from here.
        Unreachable: it does not answer.
    """
    from madlite.jobs.schedulers import scheduler_of

    scheduler = scheduler_of(cluster, dict(os.environ))
    scheduler.check_here()
    scheduler.exclude(left_out)
    return scheduler.examine(nodes)


_WORDS = {True: "ok", False: "fail", None: "unknown"}


def _print_examined(found: Sequence[Examined]) -> int:
    for one in found:
        echo(f"{_WORDS[one.passed]:8} {one.text}")
        if one.hint:
            echo(f"         try: {one.hint}")
    return int(ExitCode.DOCTOR if any(one.passed is False for one in found) else ExitCode.OK)


def _write_script(cluster: Cluster, folder: Path, count: int, left_out: Sequence[str]) -> Path:
    from madlite.bundled import template_root
    from madlite.jobs.script import check_script

    file = folder / "check.sh"
    file.write_text(check_script(cluster, folder, count, left_out, [template_root(setup.home())]))
    return file


def _wait(slurm: Slurm, job: str, limit_s: float) -> tuple[str, ...]:
    """Wait for the end of a job, and return its nodes; one that does not begin or end in time is cancelled."""
    from madlite.jobs.outcomes import why_never
    from madlite.plan.inputs import expand_hosts

    deadline, nodes, reason = time.monotonic() + limit_s, "", ""
    while (state := slurm.queue([job]).get(job)) is not None:
        nodes, reason = state.nodes or nodes, state.reason
        never = why_never(state)
        if never is not None or time.monotonic() > deadline:
            slurm.cancel([job])
            what = (
                never.reason if never is not None else f"job {job} did not end in {limit_s:g} s ({reason or 'running'})"
            )
            raise UsageProblem(what, never.hint if never is not None else "--nodes fewer, or a longer --timeout")
        time.sleep(_POLL_S)
    ended = slurm.ended([job]).get(job)
    return expand_hosts(nodes or (ended.nodes if ended is not None else ""))


def _report(folder: Path, request: CheckRequest, asked: Sequence[str], count: int, good_nodes: Path | None) -> int:
    from madlite.files import write_named
    from madlite.jobs.node_check import failures, read_reports

    reports, until_s = read_reports(folder, request), time.monotonic() + _FILES_S
    while len(reports) < count and time.monotonic() < until_s:
        time.sleep(0.5)
        reports = read_reports(folder, request)
    failed = failures(reports, asked)
    for node in dict.fromkeys((*asked, *reports)):
        digest = f", image {reports[node].digest}" if node in reports and reports[node].digest else ""
        echo(f"{node}: {'failed' if node in failed else f'passed{digest}'}")
        for problem in failed.get(node, ()):
            echo(f"  {problem}")
    good = [node for node in reports if node not in failed]
    if good_nodes is not None and good:
        write_named(good_nodes, "".join(f"{node}\n" for node in good), lambda path: True)
        echo(f'{good_nodes}: {len(good)} nodes; good_nodes = "{good_nodes}" in the cluster file gives jobs no others')
    missing = max(0, count - len(dict.fromkeys((*asked, *reports))))
    if missing or not reports:
        setup.warn(f"no report of {missing or count} nodes")
    return int(ExitCode.DOCTOR if failed or missing or not reports else ExitCode.OK)


@command.command("probe", cls=Command, hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
def probe(folder: Path) -> int:
    """Check this node, for `madlite cluster check`."""
    from madlite.jobs.node_check import check_node

    check_node(folder, dict(os.environ))
    return int(ExitCode.OK)
