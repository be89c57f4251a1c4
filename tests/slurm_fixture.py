"""A real Slurm for tests: four nodes with eight pretended AMD GPUs each on this machine, from Debian's packages.

Munge, ports and files are the cluster's own, so that several live side by side.  All processes of a test run share one
(`slurm`); a test that kills its daemons has one of its own (`own_slurm`).  A keeper process starts the daemons as its
children, and ends them when it is told to or when the process that leads the test run is gone.

A node has CPUs=8, whatever the machine has.  GPUs are character devices, as gres.conf refuses plain files; with
`amd_gpu_env` a job has them in ROCR_VISIBLE_DEVICES.  There is no slurmdbd: `sacct` of the cluster's PATH reads the
records of jobcomp/filetxt, and `scontrol show job` knows a job for ten minutes.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.engine_fixture import OF_THE_RUN, give_up
from tests.waiting import wait_until

NODES = ("n1", "n2", "n3", "n4")
GPUS_PER_NODE = 8
_PROGRAMS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge", "runuser": "util-linux"}
_SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
_PORTS = range(20000, 32000)  # below what the kernel gives to clients
_START_LIMIT_S = 90.0
_PREEMPTION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "SlurmctldParameters=preempt_send_user_signal",  # PreemptParameters=send_user_signal of later Slurms
    "PartitionName=grace Nodes=n[1-4] PriorityTier=1 GraceTime=15 MaxTime=INFINITE State=UP",
    "PartitionName=brief Nodes=n[1-4] PriorityTier=1 GraceTime=2 MaxTime=INFINITE State=UP",
    "PartitionName=urgent Nodes=n[1-4] PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP",
)
_TRIES = 3  # another process may take a port between its choice and its use


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster that runs; its folder has slurm.conf, log/ and the pid of each daemon."""

    home: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a user of the cluster: nothing else of the caller's but HOME and TMPDIR."""
        kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
        return {**kept, "PATH": f"{self.home}/bin:{_SEARCH}", "SLURM_CONF": str(self.home / "slurm.conf")}

    def run(self, *argv: str, limit_s: float = 300.0, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster, to its end; its exit status is the caller's to look at."""
        return subprocess.run(
            argv, env={**self.environ, **environ}, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def batch(self, script: Path, *options: str) -> str:
        """Submit a batch script; return the job's id."""
        return self.checked("sbatch", "--parsable", *options, str(script)).strip().partition(";")[0]

    def checked(self, *argv: str) -> str:
        """Return the output of a command that has to succeed."""
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        """Return what `scontrol show job` has of a job, by key."""
        words = self.checked("scontrol", "--oneliner", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job_id: str, *states: str) -> dict[str, str]:
        """Wait until a job has one of these states; return what is known of it then."""
        wait_until(lambda: self.job(job_id)["JobState"] in states, f"job {job_id} {' or '.join(states)}")
        return self.job(job_id)

    def leave(self, job_id: str, minutes: int) -> None:
        """Let a job that runs have less than so many minutes from now on, and at least one less than that."""
        so_far, _, _ = self.job(job_id)["RunTime"].rpartition(":")
        hours, _, over = so_far.rpartition(":")
        limit = 60 * int(hours) + int(over) + minutes
        self.checked("scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit}")

    def pid_of(self, daemon: str) -> int:
        """Return the process id of a daemon: `slurmctld`, `munged` or `slurmd-n1`."""
        return int((self.home / "pids" / daemon).read_text())

    def kill(self, daemon: str) -> None:
        """Kill a daemon (`slurmctld`, `slurmd-n1`) at once; what it started lives on."""
        process = psutil.Process(self.pid_of(daemon))
        process.kill()
        with suppress(psutil.TimeoutExpired):
            process.wait(30)

    def kill_node(self, node: str) -> None:
        """Kill a node's slurmd and what it has of each step there, as a machine that loses its power does."""
        self.kill(f"slurmd-{node}")
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                if process.info["name"] == "slurmstepd" and any(
                    str(one.laddr).startswith(f"{self.home}/spool/{node}/") for one in process.net_connections("unix")
                ):
                    process.kill()

    def restart(self, daemon: str) -> None:
        """Start a daemon that was killed, and wait until all nodes are up again."""
        (self.home / "start" / daemon).touch()
        wait_until(lambda: not (self.home / "start" / daemon).exists(), f"{daemon} started")
        wait_until(self.up, "all nodes are up")

    def up(self) -> bool:
        """Return whether the controller answers and every node can take a job."""
        with suppress(subprocess.TimeoutExpired):
            states = self.run("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T", limit_s=30).stdout.split()
            return len(states) == len(NODES) and not {"down", "unknown", "down*", "unknown*"} & {*states}
        return False


@pytest.fixture(scope="session")
def slurm() -> SlurmCluster:
    """Return the cluster that all processes of a test run share; a missing Slurm fails in CI and skips elsewhere."""
    _need_slurm()
    folder = Path(os.environ[OF_THE_RUN])
    with (folder / "slurm-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = SlurmCluster(folder / "slurm")
        if not (cluster.home / "ready").exists():
            start_cluster(cluster.home, leader=int((folder / "leader").read_text()))
    return cluster


@pytest.fixture(scope="module")
def allocation(slurm: SlurmCluster) -> Iterator[dict[str, str]]:
    """Yield the environment of a job that has two nodes until the tests of a file have ended."""
    said = slurm.run("salloc", "--no-shell", "-N2")
    job = said.stderr.partition("job allocation ")[2].split()[0]
    nodes = slurm.wait_for(job, "RUNNING")["NodeList"]
    yield {**slurm.environ, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_NUM_NODES": "2"}
    slurm.checked("scancel", job)


@pytest.fixture
def own_slurm() -> Iterator[SlurmCluster]:
    """Yield a cluster whose daemons the test may kill; a dead slurmd is noticed after some ten seconds."""
    _need_slurm()
    home = Path(tempfile.mkdtemp(prefix="madlite-slurm-"))
    cluster = start_cluster(home / "cluster", leader=os.getpid(), slurmd_timeout_s=10)
    try:
        yield cluster
    finally:
        end_cluster(cluster.home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def preempting_slurm() -> Iterator[SlurmCluster]:
    """Yield a cluster whose partition `urgent` takes the nodes of `grace` and of `brief`, whose jobs are queued again.

    They have a grace of 15 s in the one and of 2 s in the other; where they ask for a signal they get it before that.
    """
    _need_slurm()
    home = Path(tempfile.mkdtemp(prefix="madlite-slurm-"))
    cluster = start_cluster(home / "cluster", leader=os.getpid(), more=_PREEMPTION)
    try:
        yield cluster
    finally:
        end_cluster(cluster.home)
        shutil.rmtree(home, ignore_errors=True)


def start_cluster(home: Path, leader: int, slurmd_timeout_s: int = 120, more: Sequence[str] = ()) -> SlurmCluster:
    """Start a cluster in a new folder, and wait until every node can take a job.

    leader: the process with whose end the cluster's ends.
    slurmd_timeout_s: after how long without an answer a node is down.  A busy machine needs a long one.
    more: further lines of slurm.conf.
    """
    for _ in range(_TRIES):
        shutil.rmtree(home, ignore_errors=True)
        _write_files(home, slurmd_timeout_s)
        with (home / "slurm.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        if _comes_up(home, leader):
            (home / "ready").touch()
            return SlurmCluster(home)
        end_cluster(home)
    return give_up("Slurm does not come up here:\n" + "\n".join(_last_words(file) for file in (home / "log").iterdir()))


def _comes_up(home: Path, leader: int) -> bool:
    with (home / "log/keeper").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.slurm_fixture", str(home), str(leader)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
    (home / "keeper").write_text(str(keeper.pid))
    deadline = time.monotonic() + _START_LIMIT_S
    while keeper.poll() is None and time.monotonic() < deadline:
        if SlurmCluster(home).up():
            return True
        time.sleep(0.1)
    return False


def _last_words(log: Path) -> str:
    return f"{log.name}: {log.read_text(errors='replace')[-600:]}"


def end_cluster(home: Path) -> None:
    """End a cluster that start_cluster made, with all that its jobs left running."""
    with suppress(OSError, ValueError, psutil.NoSuchProcess, psutil.TimeoutExpired):
        keeper = psutil.Process(int((home / "keeper").read_text()))
        if str(home) in keeper.cmdline():
            keeper.terminate()
            keeper.wait(60)
    _kill_what_is_left(home)


def end_shared_cluster() -> None:
    """End what `slurm` started, in the process that leads the test run."""
    home = Path(os.environ[OF_THE_RUN], "slurm")
    if home.exists():
        end_cluster(home)


def _need_slurm() -> None:
    for program, package in _PROGRAMS.items():
        if not shutil.which(program, path=_SEARCH):
            give_up(f"{program} is not installed (Debian: {package})")
    if os.geteuid() != 0:
        give_up("a Slurm can be started by root only")


def _write_files(home: Path, slurmd_timeout_s: int) -> None:
    for name in ("state", "log", "dev", "munge", "bin", "pids", "start", *(f"spool/{node}" for node in NODES)):
        (home / name).mkdir(parents=True)
    for place in (home, *home.parents):  # munged, which is another user, has to pass
        if place.stat().st_uid == os.geteuid() and place.name.startswith("madlite-"):
            place.chmod(0o711)
    home.chmod(0o755)
    munge = home / "munge"
    (munge / "munge.key").write_bytes(secrets.token_bytes(1024))
    (munge / "munge.key").chmod(0o400)
    munge.chmod(0o711)
    for place in (munge, munge / "munge.key"):
        shutil.chown(place, "munge")
    for index in range(GPUS_PER_NODE):
        os.mknod(home / f"dev/nvidia{index}", 0o20666, os.makedev(1, 3))
    (home / "gres.conf").write_text(
        f"NodeName=n[1-4] Name=gpu File={home}/dev/nvidia[0-{GPUS_PER_NODE - 1}] Flags=amd_gpu_env\n"
    )
    (home / "cgroup.conf").write_text("CgroupAutomount=no\n")  # an empty file is refused
    (home / "slurm.conf").write_text(_configuration(home, _free_ports(), slurmd_timeout_s))
    sacct = home / "bin/sacct"
    sacct.write_text(f'#!/bin/sh\nexec {shutil.which("sacct")} -c -f {home}/log/jobcomp.txt "$@"\n')
    sacct.chmod(0o755)
    (home / "log/jobcomp.txt").touch()


def _free_ports() -> int:
    """Return the first of as many free ports in a row as a cluster has daemons."""
    while True:
        first = random.randrange(_PORTS.start, _PORTS.stop - len(NODES))
        sockets = [socket.socket() for _ in range(len(NODES) + 1)]
        try:
            for at, each in enumerate(sockets):
                each.bind(("", first + at))
        except OSError:
            continue
        else:
            return first
        finally:
            for each in sockets:
                each.close()


def _configuration(home: Path, port: int, slurmd_timeout_s: int) -> str:
    host = socket.gethostname().partition(".")[0]
    settings: Mapping[str, object] = {
        "ClusterName": "example",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": port,
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={home}/munge/socket",
        "CryptoType": "crypto/munge",
        "StateSaveLocation": home / "state",
        "SlurmdSpoolDir": home / "spool/%n",
        "SlurmctldPidFile": home / "slurmctld.pid",
        "SlurmdPidFile": home / "slurmd-%n.pid",
        "SlurmctldLogFile": home / "log/slurmctld",
        "SlurmdLogFile": home / "log/slurmd-%n",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerParameters": "sched_interval=2,bf_interval=2,sched_min_interval=0",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SwitchType": "switch/none",
        "SlurmdTimeout": slurmd_timeout_s,
        "MessageTimeout": 60,
        "KillWait": 10,
        "MinJobAge": 600,
        "FirstJobId": random.randrange(1000, 60000),
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": home / "log/jobcomp.txt",
        "GresTypes": "gpu",
        "PropagateResourceLimits": "NONE",
        "SlurmdParameters": "config_overrides",
    }
    node = (
        f"NodeName=n[1-{len(NODES)}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{port + 1}-{port + len(NODES)}] "
        "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2000 "
        f"Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
    )
    partition = f"PartitionName=gpu Nodes=n[1-{len(NODES)}] Default=YES MaxTime=INFINITE State=UP"
    return "\n".join([*(f"{name}={value}" for name, value in settings.items()), node, partition, ""])


def _keep(home: Path, leader: int) -> None:
    """Run the daemons of a cluster until TERM, or until the leader is gone; start again what a test wants."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    environ = {**os.environ, "PATH": _SEARCH, "SLURM_CONF": str(home / "slurm.conf")}
    daemons = {name: _start(home, name, environ) for name in ("munged", "slurmctld", *(f"slurmd-{n}" for n in NODES))}
    started = psutil.Process(leader).create_time() if psutil.pid_exists(leader) else None
    while not ended and started is not None:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(leader).create_time() == started:
                for name, daemon in daemons.items():
                    wanted = home / "start" / name
                    if daemon.poll() is not None and wanted.exists():
                        daemons[name] = _start(home, name, environ)
                        wanted.unlink()
                time.sleep(0.1)
                continue
        break
    for daemon in reversed(daemons.values()):
        daemon.kill()
        daemon.wait()
    _kill_what_is_left(home)


def _start(home: Path, name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    program, _, node = name.partition("-")
    munge = home / "munge"
    argv = {
        "munged": [
            *("runuser", "-u", "munge", "--", "munged", "--foreground", f"--key-file={munge}/munge.key"),
            *(f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log"),
            f"--seed-file={munge}/seed",
        ],
        "slurmctld": ["slurmctld", "-D"],
        "slurmd": ["slurmd", "-D", "-N", node],
    }[program]
    with (home / f"log/{name}.out").open("ab") as log:
        daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environ), cwd=home)
    (home / "pids" / name).write_text(str(daemon.pid))
    if program == "munged":
        deadline = time.monotonic() + _START_LIMIT_S
        while not (munge / "socket").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    return daemon


def _kill_what_is_left(home: Path) -> None:
    """Kill munged, daemons and what jobs started: all that have the cluster's configuration in their environment."""
    ours = f"SLURM_CONF={home}/slurm.conf".encode()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if process.pid != os.getpid() and ours in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                process.kill()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]))
