"""The allocation that this process is in, as Slurm's and SPUR's variables have it; its nodes, and steps on them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property

from madlite import process
from madlite.errors import RuntimeProblem
from madlite.model import Cause
from madlite.plan.inputs import expand_hosts

_QUERY_S = 30.0  # a controller that is busy answers late
_TRIES = 4
_FIRST_PORT = 20000  # of ten thousand, below those that systems give to clients
_DOWN = re.compile(r"(?:down|fail|error|unknown)\b|.*\*$", re.IGNORECASE)  # sinfo(1): with * it does not respond
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+)", re.MULTILINE)
_BINDS_NOTHING = re.compile(r"^TaskPlugin *=[ \t]*(?:task/none|\(null.*\))?[ \t]*$", re.MULTILINE)
_KILL_WAIT_S = 30.0  # Slurm's own, where it is not told
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


class Allocation:
    """A job's nodes, in the order in which Slurm numbers them."""

    def __init__(self, job_id: str, node_list: str, count: int, environ: Mapping[str, str]) -> None:
        self.job_id, self.count = job_id, count
        self._node_list, self._environ = node_list, environ

    @cached_property
    def is_spur(self) -> bool:
        """Whether SPUR has it, whose commands take fewer options."""
        spur = shutil.which("spur", path=self._environ.get("PATH", ""))
        return spur is not None and process.capture([spur, "version"], limit_s=_QUERY_S, env=self._environ).ok

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes.

        Raises:
            RuntimeProblem: Slurm does not answer.
        """
        if peers := self._environ.get("SPUR_PEER_NODES"):
            return tuple(name.partition(":")[0] for name in peers.split(",") if name)
        return tuple(self._query("scontrol", "show", "hostnames", self._node_list).split())

    @cached_property
    def address(self) -> str:
        """The address at which the other nodes find the first one: that of its configuration, else its name."""
        first = self.nodes[0]
        try:
            found = _ADDRESS.search(self._query("scontrol", "show", "node", first))
        except RuntimeProblem:
            return first
        return found[1] if found is not None else first

    @cached_property
    def _configuration(self) -> str:
        """Slurm's configuration; "" where it does not answer."""
        done = process.capture(["scontrol", "show", "config"], limit_s=_QUERY_S, env=self._environ)
        return done.stdout if done.ok else ""

    @cached_property
    def kill_wait_s(self) -> float:
        """How long processes have between Slurm's TERM, at the end of a job, and its KILL."""
        found = _KILL_WAIT.search(self._configuration)
        return float(found[1]) if found is not None else _KILL_WAIT_S

    @property
    def port(self) -> str:
        """A port for its nodes to meet at, by its number: jobs that share a node have others."""
        digits = "".join(char for char in self.job_id if char.isdecimal())
        return str(_FIRST_PORT + int(digits[-4:] or 0))

    def step(self, names: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """Return the srun that starts a command once on each of some nodes, beside other steps."""
        count = str(len(names))
        own = [] if self.is_spur else ["--kill-on-bad-exit=0", "--quit-on-interrupt"]
        if own and not _BINDS_NOTHING.search(self._configuration):  # without a plugin for it each srun would say so
            own.append("--cpu-bind=none")
        return [
            *("srun", f"--jobid={self.job_id}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"),
            *(f"--nodelist={','.join(names)}", "--overlap", *own, *self._gpus(names), *options),
        ]

    def _gpus(self, names: Sequence[str]) -> list[str]:
        """Return what a step asks for where the job's GPUs were asked for in all, or for each of its tasks.

        Without it the step would inherit that: `--gpus=16` of two nodes cannot be met on one, and of
        `--gpus-per-task=1` a step of one task has one GPU.

        Raises:
            RuntimeProblem: Slurm does not answer.
        """
        if self.is_spur or not _IN_ALL & self._environ.keys():
            return []
        counts = [self.gpu_counts[name] for name in names if name in self.gpu_counts]
        if not counts:
            return []
        if min(counts) == 0:
            return ["--gres=none"]
        # of uneven nodes Slurm gives no step more per node than the least of them has, be it on another one
        return [f"--gpus={counts[0]}"] if len(names) == 1 else [f"--gpus-per-node={min(counts)}"]

    @cached_property
    def gpu_counts(self) -> dict[str, int]:
        """How many GPUs the job has on each of its nodes.

        Raises:
            RuntimeProblem: Slurm does not answer.
        """
        blocks = _NODE_GRES.findall(self._query("scontrol", "show", "job", "-d", self.job_id))
        return {name: sum(map(int, _GPU_COUNT.findall(gres))) for nodes, gres in blocks for name in expand_hosts(nodes)}

    def lost(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return which of some nodes are down or do not respond; none where Slurm does not answer."""
        done = process.capture(["sinfo", "-h", "-N", "-o", "%N|%T"], limit_s=_QUERY_S, env=self._environ)
        pairs = (line.strip().partition("|") for line in done.stdout.splitlines())
        down = {name for name, _, state in pairs if _DOWN.match(state)}
        return tuple(name for name in names if name in down)

    def environment(self) -> dict[str, str]:
        """Return what srun needs of this process's environment: it would hand the rest on to the nodes."""
        found = {name: text for name, text in self._environ.items() if _KEPT.fullmatch(name)}
        # the options of the job's own tasks are not those of a step on one node, nor its GPUs those of another node
        of_job = {
            name: value for name, value in self._environ.items() if name.startswith(("SLURM_", "SPUR_", "MUNGE_"))
        }
        kept = {name: text for name, text in of_job.items() if not (_OPTIONS.match(name) or _FORMS.fullmatch(name))}
        return found | kept

    def _query(self, *argv: str) -> str:
        problem = ""
        for _ in range(_TRIES):
            done = process.capture(argv, limit_s=_QUERY_S, env=self._environ)
            if done.ok:
                return done.stdout
            problem = "no answer in time" if done.timed_out else done.stderr.strip() or f"exit code {done.code}"
        what = f"{' '.join(argv[:3])}: {problem}"
        raise RuntimeProblem(what, "scontrol ping tells whether Slurm answers", cause=Cause.ENGINE)


# beside a shell's: how a node reaches registries, and where its engines have their files; no password or token
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|TMPDIR|TZ|LD_LIBRARY_PATH|XDG_RUNTIME_DIR|(?i:https?_proxy|no_proxy|all_proxy)"
    r"|DOCKER_HOST|DOCKER_CONFIG|REGISTRY_AUTH_FILE|(?!.*(?:PASSWORD|TOKEN))(?:ENROOT|APPTAINER)_\w+"
)
_OPTIONS = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|TASKS_PER_NODE|NTASKS_PER_NODE|DISTRIBUTION|EXACT|CPU_BIND|MEM_BIND|JOB_GPUS|STEP_GPUS)"
)

# what srun reads as the form of its output, or as a request for GPUs
_FORMS = re.compile(
    r"SLURM_(LABELIO|UNBUFFEREDIO|STD(IN|OUT|ERR)MODE|EXPORT_ENV|HINT|THREADS_PER_CORE"
    r"|GPUS|GPUS_PER_(TASK|SOCKET)|TRES_PER_TASK|TRES_BIND|GPU_BIND|(CPUS|MEM)_PER_GPU)"
)
_IN_ALL = frozenset(
    f"SLURM_{name}" for name in ("GPUS", "GPUS_PER_TASK", "GPUS_PER_SOCKET", "NTASKS_PER_GPU", "TRES_PER_TASK")
)
_NODE_GRES = re.compile(r"^\s*Nodes=(\S+) .*\bGRES=(\S*)", re.MULTILINE)
_GPU_COUNT = re.compile(r"\bgpu:(?:[^:,()]+:)?([0-9]+)")


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process is in; None outside of one."""
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SPUR_JOB_ID", "")
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or environ.get("SPUR_PEER_NODES", "")
    if not job_id or not nodes:
        return None
    count = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES", "")
    number = int(count) if count.isdecimal() else max(1, len(environ.get("SPUR_PEER_NODES", "").split(",")))
    return Allocation(job_id, nodes, number, environ)


def ids_of_note(note: str, planned: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the run's GPUs by the node's own numbers; None where they do not follow from a note of agent.sh.

    Where a step may open no others, Slurm counts those of its variables from 0.

    Raises:
        ValueError: it is not whole.
    """
    own, given, chosen = (
        tuple(int(word) for word in words.split(",")) if words != "-" else () for words in note.split()
    )
    if not own and not given:
        found = chosen or planned
    elif len(own) == len(given) == len(planned):
        found = own
    elif own == given:
        found = chosen or own
    else:
        return None
    return found[: len(planned)] if len(found) >= len(planned) else None
