"""Slurm and SPUR by their commands: submit, queue, end; each with a limit, and asked again where none answers.

SPUR (github.com/ROCm/spur) has Slurm's command line with differences: no `--json`, no `--oneliner`, `sacct` does not
filter by job, `scancel` takes no element of an array, and `squeue` needs no `%e`.  What is used here exists in both.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.files import read_text
from madlite.plan.cluster import Cluster
from madlite.plan.context import Options
from madlite.plan.inputs import expand_hosts, nodes_in
from madlite.plan.schedulers import JobEnd, JobState, Refused, Unreachable
from madlite.plan.submission import JobScript, ScriptInputs
from madlite.platforms.slurm.allocation import SlurmCommands, failure_text, is_transient, job_environment
from madlite.platforms.slurm.containers import ON_STEPS, VARIABLE
from madlite.platforms.slurm.script import check_script, slurm_script
from madlite.platforms.slurm.states import REQUEUED, end_in, end_of_word, explained

_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
_OF_ENGINES = ("docker", "podman")  # containers that are no processes of a step
DEFAULT_ARRAY = 1001  # Slurm's MaxArraySize
_CLOSED = re.compile(r"down|drain|fail|error|unknown|maint|inval|.*\*$", re.IGNORECASE)  # sinfo(1): no job begins
_COLUMNS = "JobID,State,ExitCode,NodeList"  # of sacct
_FEW = 3  # jobs that are asked about one by one
_NO_INDEX = 0xFFFFFFF0  # of an element of an array that has none
_WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}  # squeue(1): else an array's list is cut after 64 characters
_GONE = re.compile(r"invalid job id|job .*not found|unknown job", re.IGNORECASE)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z:/_]+)=(.*?)(?=\s+[A-Za-z:/_]+=|$)")
_EXCLUDED = re.compile(r"^#SBATCH --exclude=(\S+)$", re.MULTILINE)
_START = re.compile(r"^#SBATCH --(begin|dependency)\b", re.MULTILINE)
_BEGUN = {"begin": "--begin=now", "dependency": "--dependency="}
_OWN_ID = re.compile(r"\b(?:Array)?JobId=([0-9]+)")
_ELEMENT = re.compile(r"(?P<job>[0-9]+)(?:_(?:\[(?P<many>[^\]]*)\]?|(?P<one>[0-9]+)))?")


class Slurm(SlurmCommands):
    """Slurm or SPUR as a scheduler."""

    name = "slurm"
    job_ids = re.compile(r"[0-9]+(_[0-9]+)?")
    ending = "sh"
    queues_again = True
    retries_inside = True
    reads_credentials = True

    def __init__(self, cluster: Cluster, environ: Mapping[str, str]) -> None:
        super().__init__({**job_environment(environ), **_WHOLE_LISTS})
        self._cluster = cluster

    def adjust(self, options: Options) -> Options:
        """Return options by which runs on several nodes, or in containers that srun starts, are steps of the job.

        So are all runs where these are to be signalled.

        Raises:
            UsageProblem: the runtime that is asked for knows one node alone, or gets no signal.
        """
        container, signal = self._cluster.container, self._cluster.slurm.signal
        if signal and (container in _OF_ENGINES or (options.runtime and options.runtime != self.name)):
            how = f"runtime {options.runtime}" if options.runtime else f"container {container}"
            what = f"{self._cluster.source}: slurm.signal '{signal}' with {how}: it reaches what srun starts alone"
            raise UsageProblem(what, 'container = "none", "pyxis" or "apptainer", or leave signal out')
        if options.nodes > 1 and options.runtime and options.runtime != self.name:
            what = f"--runtime {options.runtime} beside --nodes {options.nodes}: it would run on the first node alone"
            raise UsageProblem(what, "leave --runtime out; container of the cluster file says what nodes run it in")
        if container:
            options = replace(options, environ={**options.environ, VARIABLE: container})
        if not options.runtime and (options.nodes > 1 or container in (*ON_STEPS, "none") or signal):
            options = replace(options, runtime=self.name, runtime_origin=f"cluster '{self._cluster.name}'")
        return options

    def exclude(self, nodes: Sequence[str]) -> None:
        """Leave nodes out of jobs, beside those that the cluster file leaves out."""
        exclude = (*self._cluster.slurm.exclude, *nodes)
        self._cluster = replace(self._cluster, slurm=replace(self._cluster.slurm, exclude=exclude))

    def start(self, options: Mapping[str, str]) -> None:
        """Have sbatch decide by its own options when jobs start."""
        directives = (*self._cluster.slurm.directives, *(f"--{name}={value}" for name, value in options.items()))
        self._cluster = replace(self._cluster, slurm=replace(self._cluster.slurm, directives=directives))

    def runtime_of(self, job: str, *, ended: bool) -> None:
        """Return nothing: jobs write to the working folder."""

    def release(self, jobs: Sequence[str]) -> None:
        """Do nothing: Slurm forgets jobs by itself."""

    def script(self, inputs: ScriptInputs) -> str:
        """Return the script of a job."""
        return slurm_script(self._cluster, inputs, self.not_good())

    def check_here(self) -> Cluster:
        """Refuse a machine without the commands of Slurm or SPUR."""
        path = self._environ.get("PATH")
        if missing := [name for name in _COMMANDS if shutil.which(name, path=path) is None]:
            raise UsageProblem(
                f"cluster '{self._cluster.name}': {missing[0]} is not here, so this is no login node of it",
                "log in there, or module load slurm; madlite run --dry-run prints the scripts of runs anywhere",
            )
        return self._cluster

    def array_limit(self) -> int:
        """Return how many elements an array can have, counted from 1: one less than MaxArraySize."""
        if self._cluster.health:  # a job that begins elsewhere is a further one
            return 1
        size = self._cluster.slurm.max_array_size
        if not size and not self.is_spur:
            found = re.search(r"^MaxArraySize\s*=\s*([0-9]+)", self.configuration, re.MULTILINE)
            size = int(found[1]) if found else 0
        return max(1, (size or DEFAULT_ARRAY) - 1)

    def submit(self, folder: Path, script: JobScript, attempt: str = "", exclude: Sequence[str] = ()) -> str:
        """Give a script to sbatch, once: an answer that did not come says nothing of the job."""
        file = folder / script.file
        if not exclude:
            return self.submit_file(file)
        text = read_text(file)
        own = _EXCLUDED.findall(text)  # which the option replaces
        begun = [_BEGUN[name] for name in dict.fromkeys(_START.findall(text))]  # what it waited for is over
        return self.submit_file(file, f"--exclude={','.join((*own, *exclude))}", *begun)

    def submit_file(self, file: Path, *options: str) -> str:
        """Give a file to sbatch, and return the job's id.

        Raises:
            Refused, Unreachable: sbatch does not take it, or does not answer.
        """
        done = self.call(["sbatch", "--parsable", *options, str(file)], tries=1)
        job = done.stdout.strip().partition(";")[0]
        if done.ok and (found := re.fullmatch(r"(?:Submitted batch job )?([0-9]+)", job)):
            return found[1]
        what = failure_text(done)
        if is_transient(done):
            raise Unreachable(f"sbatch: {what}", "sinfo shows whether the cluster answers")
        raise Refused(f"sbatch refused the job (exit code {done.code}): {what}", _refusal_hint(what))

    def submit_check(self, folder: Path, nodes: int, search: Sequence[Path]) -> str:
        """Give the job that checks so many nodes to sbatch, with its files in `folder`; return its id.

        Its script starts `madlite cluster probe` on each node.

        Raises:
            Refused, Unreachable: sbatch does not take it, or does not answer.
        """
        file = folder / "check.sh"
        file.write_text(check_script(self._cluster, folder, nodes, search))
        return self.submit_file(file)

    def find(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of jobs by name, from the user's queue; of those that have just ended, too."""
        asked = ["squeue", "-h", *self._me(), "-o", "%i|%j"]
        found = _jobs_by_name(self.answer(*asked))
        if any(name not in found for name in names):
            found = {**_jobs_by_name(self.read(*asked, "-t", "all")), **found}
        return {name: found[name] for name in names if name in found}

    def queue(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of waiting and running jobs."""
        wanted = frozenset(jobs)
        listed = self.answer("squeue", "-h", *self._me(), "-o", "%i|%T|%r|%e|%N")
        found: dict[str, JobState] = {}
        for line in listed.splitlines():
            fields = [*(part.strip() for part in line.split("|")), "", "", "", ""]
            state = _said(fields[1], reason=fields[2], nodes=fields[4], ends=_time(fields[3]))
            if state.stage == "over":  # what is in the queue has not ended, whatever its word
                state = replace(state, stage="running", ended_by=None)
            found |= {job: state for job in elements(fields[0]) if job in wanted}
        return found

    def ended(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return what accounting, or the controller for as long as it remembers, has of jobs that are over."""
        found = self._of_controller(jobs)
        left = [job for job in jobs if job not in found]
        found |= self._of_accounting(left) if left else {}
        return {job: replace(state, ended_by=self._named(state.ended_by, state.nodes)) for job, state in found.items()}

    def end_in(self, error: str, nodes: str) -> JobEnd | None:
        """Return why slurmstepd ended a job, as the last error of its output says it; None where it does not."""
        return self._named(end_in(error, nodes), nodes)

    def _named(self, end: JobEnd | None, nodes: str) -> JobEnd | None:
        """Return the end of a job of which a node failed with those of its nodes that Slurm has as down."""
        if end is None or end != end_of_word("NODE_FAIL", nodes) or self.is_spur:
            return end
        down = self.down(expand_hosts(nodes))
        return end_of_word("NODE_FAIL", ",".join(down)) if down else end

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs by scancel; SPUR, which has no elements of arrays, ends whole arrays."""
        names = [*dict.fromkeys(job.partition("_")[0] if self.is_spur else job for job in jobs)]
        for at in range(0, len(names), 500):
            done = self.call(["scancel", "--", *names[at : at + 500]])
            if not done.ok and not _GONE.search(failure_text(done)) and "already" not in failure_text(done).lower():
                raise Unreachable(f"scancel: {failure_text(done)}", f"scancel {' '.join(names[:3])}")

    def nodes(self) -> dict[str, str]:
        """Return the partition's nodes, each with why no job can begin there, "" where one can.

        Raises:
            Unreachable: the cluster did not answer.
        """
        states = self.node_states(self._cluster.slurm.partition)
        left_out = dict.fromkeys((*self._excluded(), *self.not_good(states)), "excluded")
        return {name: left_out.get(name, state if _CLOSED.match(state) else "") for name, state in states.items()}

    def idle_nodes(self) -> tuple[str, ...]:
        """Return the partition's nodes on which nothing runs, without those that are left out.

        Raises:
            Unreachable: the cluster did not answer.
        """
        states, excluded = self.node_states(self._cluster.slurm.partition), {*self._excluded()}
        return tuple(name for name, state in states.items() if state == "idle" and name not in excluded)

    def _excluded(self) -> tuple[str, ...]:
        return expand_hosts(",".join(self._cluster.slurm.exclude))

    def not_good(self, nodes: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the nodes, of these or the partition's, that the list of good ones leaves out."""
        asked = self._cluster.slurm
        if not asked.good_nodes:
            return ()
        file = Path(self._cluster.source).parent / asked.good_nodes
        good = frozenset(expand_hosts(",".join(nodes_in(file))))
        if not good:
            raise UsageProblem(f"list of good nodes {file} has no node", "madlite cluster check writes one")
        return tuple(node for node in nodes or self.node_states(asked.partition) if node not in good)

    def _me(self) -> list[str]:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name  # $USER is another one after su or in a container
        except KeyError:
            user = self._environ.get("USER") or self._environ.get("LOGNAME", "")
        return ["-u", user] if user else []

    def _of_controller(self, jobs: Sequence[str]) -> dict[str, JobState]:
        found: dict[str, JobState] = {}
        names = [*dict.fromkeys(job.partition("_")[0] for job in jobs)]
        # it takes one name, and the answer about all jobs costs the controller less than many
        for asked in [""] if len(names) > _FEW and not self.is_spur else names:
            done = self.call(["scontrol", "show", "job", *filter(None, [asked])])
            if not done.ok and not _GONE.search(failure_text(done)):
                raise Unreachable(f"scontrol: {failure_text(done)}")
            found |= _of_blocks(done.stdout, jobs)
        return {job: self._with_earlier(job, state) for job, state in found.items()}

    def _with_earlier(self, job: str, state: JobState) -> JobState:
        """Return the state of a job that was queued again with how it ended before that, as accounting has it."""
        if not state.restarts or state.stage != "over":
            return state
        done = self.call(["sacct", "-n", "-P", "-D", "-j", job, "-o", "JobID,State,NodeList"], tries=1)
        for line in done.stdout.splitlines():
            name, word, nodes = [*line.split("|"), "", ""][:3]
            if job in elements(name) and _state(word) in REQUEUED:
                nodes = state.nodes or nodes
                return replace(state, earlier=self._named(end_of_word(_state(word), nodes), nodes), nodes=nodes)
        return state

    def _of_accounting(self, jobs: Sequence[str]) -> dict[str, JobState]:
        ids = ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
        for columns in (f"{_COLUMNS},DerivedExitCode", _COLUMNS):
            done = self.call(["sacct", "-n", "-P", "-j", ids, "-o", columns])
            if done.ok:
                break
            if is_transient(done):
                return dict.fromkeys(jobs, JobState(reason=f"sacct: {failure_text(done)}"))
        else:
            return {}  # accounting is not everywhere
        found: dict[str, JobState] = {}
        wanted = frozenset(jobs)
        for line in done.stdout.splitlines():
            fields = [*line.split("|"), "", "", "", ""]
            said = _said(fields[1], code=fields[2], nodes=fields[3], derived=fields[4])
            found |= {job: said for job in elements(fields[0]) if job in wanted}
        return found


def elements(text: str) -> list[str]:
    """Return the jobs that an id of squeue or sacct stands for: `12`, `12_3`, `12_[1-3,7%2]`; none of a step's."""
    found = _ELEMENT.fullmatch(text.strip())
    if found is None:
        return []
    job = found["job"]
    if found["many"] is not None:
        return [f"{job}_{index}" for index in _indices(found["many"])]
    return [f"{job}_{found['one']}"] if found["one"] else [job]


def _jobs_by_name(text: str) -> dict[str, str]:
    """Return the jobs of lines of squeue, `12_[1-3]|name`, by name."""
    pairs = [line.partition("|") for line in text.splitlines()]
    return {name.strip(): job.partition("_")[0].strip() for job, _, name in pairs}


def _indices(text: str) -> Iterator[int]:
    for part in text.partition("%")[0].split(","):
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", part.strip())
        if found:
            yield from range(int(found[1]), int(found[2] or found[1]) + 1, int(found[3] or 1))


def _of_blocks(text: str, jobs: Sequence[str]) -> dict[str, JobState]:
    """Return what `scontrol show job` has of jobs and elements of arrays, of all that there are.

    Those that were cancelled before they had a job of their own are in one block of their array, of no index.
    """
    found: dict[str, JobState] = {}
    rest: dict[str, JobState] = {}
    wanted, arrays = frozenset(jobs), {job.partition("_")[0] for job in jobs}
    for block in re.split(r"\n\s*\n", text):
        if arrays.isdisjoint(_OWN_ID.findall(block)):
            continue
        fields = _fields(block)
        index, array = fields.get("ArrayTaskId", ""), fields.get("ArrayJobId", "")
        if index.isdigit() and int(index) >= _NO_INDEX:
            rest[array] = _of_fields(fields)
            continue
        element = "_".join(filter(None, (array, f"[{index}]" if index else "")))
        names = elements(element) if element else [fields.get("JobId", "")]
        found |= {job: _of_fields(fields) for job in names if job in wanted}
    left = {job: rest[array] for job in jobs if (array := job.partition("_")[0]) in rest}
    return {**left, **found}


def _fields(block: str) -> dict[str, str]:
    """Return the fields of `scontrol show job`; the last of a line may hold blanks."""
    return {key: value for line in block.splitlines() for key, value in _FIELD.findall(line)}


def _of_fields(fields: Mapping[str, str]) -> JobState:
    names = ("JobState", "Reason", "ExitCode", "DerivedExitCode", "NodeList", "Restarts")
    state, reason, code, derived, nodes, restarts = (fields.get(name, "") for name in names)
    restarted = int(restarts) if restarts.isdigit() else 0
    return _said(state, reason, code, derived, nodes.replace("(null)", ""), restarts=restarted)


def _said(
    state: str, reason: str = "", code: str = "", derived: str = "", nodes: str = "", ends: str = "", restarts: int = 0
) -> JobState:
    """Return what Slurm says of a job, by its words, with what they mean."""
    number, signal = _code(code)
    said = JobState(state=_state(state), reason=_reason(reason), code=number, signal=signal, nodes=nodes, ends=ends)
    return explained(replace(said, derived=_code(derived)[0], restarts=restarts))


def _state(text: str) -> str:
    """Return a state without what sacct adds to it: `CANCELLED by 1000`, `NODE_FAIL+`."""
    return text.strip().partition(" ")[0].rstrip("+").upper()


def _code(text: str) -> tuple[int | None, int]:
    found = re.fullmatch(r"\s*([0-9]+):([0-9]+)\s*", text)
    return (int(found[1]), int(found[2])) if found else (None, 0)


def _reason(text: str) -> str:
    return "" if text in ("None", "(null)") else text.strip("()")


def _time(text: str) -> str:
    return "" if text in ("N/A", "NONE", "Unknown", "UNLIMITED") else text


_REFUSALS = (
    (
        "submit limit",
        "a limit of the account or QOS: sacctmgr show assoc user=$USER; fewer runs, nodes or a shorter time",
    ),
    ("gres", "gpus and gres of the cluster file: sinfo -o '%P %G' has the GPUs' names"),
    ("generic resource", "gpus and gres of the cluster file: sinfo -o '%P %G' has the GPUs' names"),
    ("memory", "mem of the cluster file: sinfo -o '%P %m' lists each partition's"),
    ("feature", "constraint of the cluster file: sinfo -o '%P %f' lists what nodes have"),
    ("constraint", "constraint of the cluster file: sinfo -o '%P %f' lists what nodes have"),
    ("reservation", "reservation of the cluster file: scontrol show reservation"),
    ("exclusive", "exclusive of the cluster file: false asks for the run's GPUs alone"),
    ("node name", "nodelist and exclude of the cluster file, --exclude: sinfo -N lists the nodes"),
    ("account", "account of the cluster file: sacctmgr show assoc user=$USER lists yours"),
    ("partition", "partition of the cluster file: sinfo -s lists them"),
    ("qos", "qos of the cluster file: sacctmgr show qos lists them"),
    ("time limit", "time of the cluster file: sinfo -o '%P %l' has each partition's limit"),
    ("node configuration", "gpus_per_node, --nodes: sinfo -o '%P %D %G' lists what there is"),
    ("array", "max_array_size of the cluster file: scontrol show config has MaxArraySize"),
    ("option", "directives of the cluster file: sbatch --help lists what it knows"),
)


def _refusal_hint(text: str) -> str:
    lowered = text.lower()
    return next(
        (hint for word, hint in _REFUSALS if word in lowered),
        "madlite run --cluster NAME --tags TAG --dry-run prints the script of a run",
    )
