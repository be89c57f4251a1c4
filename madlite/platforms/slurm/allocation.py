"""Commands of Slurm and SPUR, and the allocation that this process is in: its nodes, and steps on them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from madlite.model import Cause
from madlite.plan.inputs import expand_hosts
from madlite.plan.schedulers import Unreachable
from madlite.platforms.slurm.containers import ON_STEPS, VARIABLE
from madlite.process import Finished, capture

_QUERY_S = 30.0  # a controller that is busy answers late
_FIRST_PORT = 20000  # of ten thousand, below those that systems give to clients
_DOWN = re.compile(r"(?:down|fail|error|unknown)\b|.*\*$", re.IGNORECASE)  # sinfo(1): with * it does not respond
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d+)", re.MULTILINE)
_BINDS_NOTHING = re.compile(r"^TaskPlugin *=[ \t]*(?:task/none|\(null.*\))?[ \t]*$", re.MULTILINE)
_KILL_WAIT_S = 30.0  # Slurm's own, where it is not told
_PREEMPTED = re.compile(r"\bPreemptTime=(\d\S+)")
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


_NODES = ("sinfo", "-h", "-N", "-o", "%N|%T")  # each with its state
LIMIT_S = 20.0  # of one command
TRIES = 3
PAUSE_S = 1.0  # before the second try, then twice as long each
_TRANSIENT = re.compile(
    r"unable to contact|timed? ?out|temporarily|connection (?:refused|reset|failure)|communication|try again"
    r"|not respond|socket|unavailable|slurm_receive_msg|zero bytes|in standby|unexpected message",
    re.IGNORECASE,
)


class SlurmCommands:
    """Runs commands in an environment; SPUR comes first, for it may bring Slurm's names."""

    sleep: Callable[[float], None] = time.sleep

    def __init__(self, environ: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
        self._environ, self.limit_s = environ, limit_s

    @cached_property
    def is_spur(self) -> bool:
        """Whether the commands are SPUR's, which take fewer options."""
        spur = shutil.which("spur", path=self._environ.get("PATH", ""))
        return spur is not None and capture([spur, "version"], limit_s=self.limit_s, env=self._environ).ok

    @cached_property
    def configuration(self) -> str:
        """What `scontrol show config` prints; "" where it does not answer."""
        return self.read("scontrol", "show", "config")

    def read(self, *argv: str) -> str:
        """Return what a command prints; "" where it fails or is not here."""
        done = self.call(argv, tries=1)
        return done.stdout if done.ok else ""

    def call(self, argv: Sequence[str], tries: int = TRIES) -> Finished:
        """Run a command; one that does not answer is run again, later each time."""
        pause_s = PAUSE_S
        while True:
            done = capture(argv, limit_s=self.limit_s, env=self._environ)
            tries -= 1
            if done.ok or not is_transient(done) or tries <= 0:
                return done
            self.sleep(pause_s)
            pause_s *= 2

    def answer(self, *argv: str) -> str:
        """Return what a command prints.

        Raises:
            Unreachable: it fails, or does not answer.
        """
        done = self.call(argv)
        if not done.ok:
            what = f"{' '.join(argv[:3])}: {failure_text(done)}"
            raise Unreachable(what, "scontrol ping tells whether Slurm answers", cause=Cause.ENGINE)
        return done.stdout

    def node_states(self, partition: str = "") -> dict[str, str]:
        """Return the states of nodes by their names.

        Raises:
            Unreachable: Slurm does not answer.
        """
        return _node_states(self.answer(*_NODES, *(["-p", partition] if partition else [])))

    def down(self, nodes: Iterable[str]) -> list[str]:
        """Return which of some nodes are down, or do not respond; none where Slurm does not answer."""
        states = _node_states(self.read(*_NODES))
        return [name for name in nodes if _DOWN.match(states.get(name, ""))]


def _node_states(listed: str) -> dict[str, str]:
    pairs = (line.strip().partition("|") for line in listed.splitlines())
    return {name: state for name, _, state in pairs if name}


# environment of the commands: a job gets it, so that nothing secret may be in it
_OF_JOBS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TMPDIR", "KRB5CCNAME")
_OF_JOBS_BEGINNINGS = ("SLURM_CONF", "SPUR_", "MODULE", "LMOD_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|JWT|CREDENTIAL", re.IGNORECASE)


def job_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that commands of the cluster get, and jobs with them: nothing secret is in it."""
    return {
        name: value
        for name, value in environ.items()
        if name in _OF_JOBS or (name.startswith(_OF_JOBS_BEGINNINGS) and not _SECRET.search(name))
    }


def is_transient(done: Finished) -> bool:
    """Return whether a command that failed may succeed later."""
    return done.timed_out or bool(_TRANSIENT.search(failure_text(done)))


def failure_text(done: Finished) -> str:
    """Return what a command printed about its failure, in one line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    text = "; ".join(dict.fromkeys(re.sub(r"^\w+: (?:error: )?", "", line) for line in lines[-3:]))
    return text or ("no answer in time" if done.timed_out else f"exit code {done.code}")


class Allocation(SlurmCommands):
    """A job's nodes, in the order in which Slurm numbers them."""

    runtime = "slurm"

    def __init__(self, job_id: str, node_list: str, count: int, environ: Mapping[str, str]) -> None:
        super().__init__(environ, limit_s=_QUERY_S)
        self.job_id, self.count, self._node_list = job_id, count, node_list

    @property
    def starts_one(self) -> bool:
        """Whether also a run on its only node is a step of srun: no engine serves its container."""
        return self._environ.get(VARIABLE) in (*ON_STEPS, "none")

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes.

        Raises:
            RuntimeProblem: Slurm does not answer.
        """
        if peers := self._environ.get("SPUR_PEER_NODES"):
            return tuple(name.partition(":")[0] for name in peers.split(",") if name)
        return tuple(self.answer("scontrol", "show", "hostnames", self._node_list).split())

    @cached_property
    def address(self) -> str:
        """The address at which the other nodes find the first one: that of its configuration, else its name."""
        first = self.nodes[0]
        found = _ADDRESS.search(self.call(["scontrol", "show", "node", first]).stdout)
        return found[1] if found is not None else first

    @cached_property
    def kill_wait_s(self) -> float:
        """How long processes have between Slurm's TERM, at the end of a job, and its KILL."""
        found = _KILL_WAIT.search(self.configuration)
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
        if own and not _BINDS_NOTHING.search(self.configuration):  # without a plugin for it each srun would say so
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
        blocks = _NODE_GRES.findall(self.answer("scontrol", "show", "job", "-d", self.job_id))
        return {name: _gpu_count(gres) for nodes, gres in blocks for name in expand_hosts(nodes)}

    def preemption(self) -> str:
        """Return that another job preempts this one, as text; "" where none does, or Slurm does not answer."""
        found = _PREEMPTED.search(self.read("scontrol", "show", "job", self.job_id))
        return f"job {self.job_id} was preempted at {found[1]}" if found else ""

    def environment(self) -> dict[str, str]:
        """Return what srun needs of this process's environment: it would hand the rest on to the nodes."""
        return {
            name: text
            for name, text in self._environ.items()
            # the options of the job's own tasks are not those of a step on one node, nor its GPUs those of another node
            if _KEPT.fullmatch(name) and not (_OPTIONS.match(name) or _FORMS.fullmatch(name))
        }


# beside a shell's: how a node reaches registries, and where its engines have their files; no password or token
_KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|TMPDIR|TZ|LD_LIBRARY_PATH|XDG_RUNTIME_DIR|(?i:https?_proxy|no_proxy|all_proxy)"
    r"|DOCKER_HOST|DOCKER_CONFIG|REGISTRY_AUTH_FILE|(?!.*(?:PASSWORD|TOKEN))(?:ENROOT|APPTAINER)_\w+"
    r"|(?:SLURM|SPUR|MUNGE)_.*"
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
GPU_GRES = re.compile(r"\bgpu:(?:(?P<type>[^:,()]+):)?(?P<count>[0-9]+)")
"""GPUs of a node, a partition or a job: `gpu:8`, `gpu:mi300x:8(S:0-1)`."""


def _gpu_count(gres: str) -> int:
    return sum(int(found["count"]) for found in GPU_GRES.finditer(gres))


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
