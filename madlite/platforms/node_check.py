"""What a node of a cluster is checked for: one task on each writes what it found; the login node compares.

The files are in a folder of the shared file system: that they are read there and written here is part of the check.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from madlite.errors import UsageProblem
from madlite.files import Folder, read_plain
from madlite.measure.steps import slow_of
from madlite.model import Value, to_json
from madlite.plan.cluster import Cluster
from madlite.process import capture
from madlite.store.folder import CHECK_REQUEST
from madlite.store.locks import acquire

CLOCK_S = 2.0  # by which a node's clock may differ from that of the shared folder
_LIMIT_S = 60.0  # of one command
_LIMIT_BYTES = 1 << 20
_NET, _RDMA = Path("/sys/class/net"), Path("/sys/class/infiniband")


class CheckRequest(Value, frozen=True):
    """What the tasks are to look for."""

    cluster: Cluster
    image: str = ""
    doctor: bool = False  # also what `madlite doctor` checks
    health: bool = False  # also the speed of the GPUs


class Examination(Value, frozen=True):
    """What was examined on a node: problems as sentences.

    `values` are what has to be alike on all nodes, `figures` the speeds of its GPUs, each by the name of its check.
    """

    problems: tuple[str, ...] = ()
    values: dict[str, str] = {}
    figures: dict[str, float] = {}


class NodeReport(Examination, frozen=True, kw_only=True):
    """All that a node found, with the image's digest, "" where it is not there."""

    node: str
    digest: str = ""
    run: int = 0  # the number of the run that is to begin there; 0 for none


def write_request(folder: Path, cluster: Cluster, image: str, *, doctor: bool = False, health: bool = False) -> None:
    """Write what the nodes are to look for into a new folder.

    Raises:
        UsageProblem: the folder of runs cannot be made or written to.
    """
    request = CheckRequest(cluster=replace(cluster, env={}), image=image, doctor=doctor, health=health)
    try:
        with Folder.open(folder.parent.parent) as here:
            here.below(folder.parent.name, make=True, private=True).close()
        folder.mkdir(mode=0o700)
        (folder / CHECK_REQUEST).write_text(to_json(request))
    except OSError as error:
        what = f"{folder.parent} cannot be written to: {error.strerror or error}"
        raise UsageProblem(what, f"ls -ld {folder.parent}") from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others from taking the folder of a check for one that was left, during the block."""
    lock = os.open(folder / CHECK_REQUEST, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        acquire(lock)
        yield
    finally:
        os.close(lock)


def check_node(
    folder: Path, environ: Mapping[str, str], examine: Callable[[bool], Examination], run: int = 0
) -> NodeReport:
    """Check this node, and write its report into the folder; `examine` finds what `madlite doctor` knows of it.

    Each `run` of a submission has a report of its own: what one finds says nothing of what refused another.

    Raises:
        OSError, msgspec.MsgspecError: the request cannot be read, or the report not written.
    """
    data = read_plain(folder / CHECK_REQUEST, links=False, limit_bytes=_LIMIT_BYTES)
    request = msgspec.json.decode(data, type=CheckRequest)
    cluster = request.cluster
    node = environ.get("SLURMD_NODENAME") or socket.gethostname()
    digest, problems = _image(cluster, request.image, environ)
    found = examine(request.health) if request.doctor or request.health else Examination()
    checks = (*_clock(folder, node), *_network(cluster), *_gpus(cluster, environ), *problems, *found.problems)
    examined = asdict(replace(found, problems=checks))
    report = NodeReport(node=node, digest=digest, run=run, **examined)
    beside = folder / f".{node}.{os.getpid()}"
    beside.write_text(to_json(report))
    beside.rename(folder / f"node-{node}{f'-{run}' if run else ''}.json")
    return report


def read_reports(folder: Path) -> dict[str, NodeReport]:
    """Return the reports of a check's nodes that can be read, by node."""
    return {report.node: report for report in _reports(folder)}


def _reports(folder: Path) -> Iterator[NodeReport]:
    for file in sorted(folder.glob("node-*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            yield msgspec.json.decode(read_plain(file, links=False, limit_bytes=_LIMIT_BYTES), type=NodeReport)


def unhealthy(folder: Path) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the nodes that failed the check of a folder, and for which run, with why; none without such a check."""
    return {(report.node, report.run): report.problems for report in _reports(folder) if report.problems}


def failures(reports: Mapping[str, NodeReport], nodes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the nodes that failed, each with why; among them one without a report, and one that is not as the others.

    Not as the others is another image, a value that more than half of the nodes have otherwise, and a speed of GPUs
    that is slow among theirs (`measure/steps.py`).
    """
    digests = [report.digest for report in reports.values() if report.digest]
    usual = max(set(digests), key=digests.count) if digests else ""
    odd = _odd(reports)
    found: dict[str, tuple[str, ...]] = {}
    for node in dict.fromkeys((*nodes, *reports)):
        report = reports.get(node)
        if report is None:
            found[node] = ("it gave no report: it does not see the shared folder, or did not run the check",)
            continue
        other = [f"its image is {report.digest}, the others' {usual}"] if report.digest not in ("", usual) else []
        if problems := (*report.problems, *other, *odd.get(node, ())):
            found[node] = problems
    return found


def _odd(reports: Mapping[str, NodeReport]) -> dict[str, list[str]]:
    """Return the nodes with values or speeds that are not the others', each with what they are."""
    odd: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for report in reports.values() for name in report.values):
        having = {node: report.values[name] for node, report in reports.items() if name in report.values}
        usual, count = Counter(having.values()).most_common(1)[0]
        for node, value in having.items() if 2 * count > len(having) else ():
            if value != usual:
                odd.setdefault(node, []).append(f"{name} is {value}, the other nodes' {usual}")
    for name in dict.fromkeys(name for report in reports.values() for name in report.figures):
        numbers = {node: (report.figures[name], 0.0) for node, report in reports.items() if name in report.figures}
        for node, text in slow_of(numbers, "", lower_is_better=False).items():
            odd.setdefault(node, []).append(f"{name} is slow: {text}")
    return odd


def _clock(folder: Path, node: str) -> Iterator[str]:
    """Yield how far the clock is from that of the shared folder, which gives a new file its time."""
    probe = folder / f".clock-{node}.{os.getpid()}"
    probe.write_text("")
    apart_s = time.time() - probe.stat().st_mtime
    probe.unlink()
    if abs(apart_s) > CLOCK_S:
        yield f"its clock is {apart_s:+.1f} s from that of the shared folder"


def _network(cluster: Cluster) -> Iterator[str]:
    for name in filter(None, cluster.interface.lstrip("=^").split(",")):
        if not any(_NET.glob(f"{name}*")):
            here = ", ".join(sorted(path.name for path in _NET.glob("*") if path.name != "lo"))
            yield f"interface {name} is not there (there are {here})"
    for name in cluster.rdma:
        if not (_RDMA / name.lstrip("=^").partition(":")[0]).exists():
            here = ", ".join(sorted(path.name for path in _RDMA.glob("*"))) or "none"
            yield f"RDMA device {name} is not there (there are {here})"


def _gpus(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[str]:
    if not cluster.gpu:
        return
    from madlite.machine.detect import detect_machine
    from madlite.machine.host import Host

    machine = detect_machine({}, host=Host(path=environ.get("PATH", ""), env=dict(environ)))
    if len(machine.gpus) != cluster.gpus_per_node:
        yield f"it has {len(machine.gpus)} GPUs, the cluster file says {cluster.gpus_per_node}"
    elif cluster.gpu not in (machine.device, machine.vendor):
        yield f"its GPUs are {machine.device}, the cluster file says {cluster.gpu}"
    yield from (f"{problem.where}: {problem.what}" for problem in machine.problems)


_VERSION = {
    "docker": (("docker", "info", "--format", "{{.ServerVersion}}"),),
    "podman": (("podman", "info", "--format", "{{.Version.Version}}"),),
    "pyxis": (("enroot", "version"), ("srun", "--help")),
    "apptainer": (("apptainer", "--version"),),
}
_ID = ("image", "inspect", "--format", "{{.Id}}")  # as before a run: one that was loaded has no digest of a registry
_TRY = ("run", "--rm", "--pull=never", "--network=none", "--entrypoint=bash")  # which runs on nodes need
_ENGINES = ("docker", "podman")


def _image(cluster: Cluster, image: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the digest of an image on this node, and what keeps containers from starting."""
    flavour = cluster.container
    problems: list[str] = []
    for argv in _VERSION.get(flavour, ()):
        if shutil.which(argv[0], path=environ.get("PATH")) is None:
            return "", [f"container '{flavour}': {argv[0]} is not installed"]
        done = capture(argv, limit_s=_LIMIT_S, env=environ)
        if not done.ok:
            return "", [f"container '{flavour}': {argv[0]} does not answer: {_last(done.stderr)}"]
        if argv[0] == "srun" and "--container-image" not in done.stdout:
            problems.append("container 'pyxis': srun knows no --container-image")
    if not image or flavour not in _ENGINES:
        return "", problems
    done = capture([flavour, *_ID, image], limit_s=_LIMIT_S, env=environ)
    if not done.ok:
        return "", [f"image {image} is not here: {_last(done.stderr)}"]
    tried = capture([flavour, *_TRY, image, "-c", "true"], limit_s=_LIMIT_S, env=environ)
    if not tried.ok:
        problems.append(f"container '{flavour}': bash does not run in image {image}: {_last(tried.stderr)}")
    return done.stdout.strip(), problems


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
