"""The folder of a round: a MAD checkout with its cards, on a small file system of its own where a disk fills up."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.chaos.attacks import Round
from tests.chaos.cards import STAND_IN, TRUTH_BYTES, Part
from tests.engine.checkout import Checkout

LIMIT_S = 240.0
_TMPFS = "size=6m,nr_inodes=600"
AFTER = Part("after", "quick", 0.0, "7.5")
_EARLIER = {
    "29": "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,"
    "docker_image,git_commit,machine_name,deployment_type,launcher,gpu_architecture,performance,metric,relative_change,"
    "status,build_duration,test_duration,dataname,data_provider_type,data_size,data_download_duration,build_number,"
    "additional_docker_run_options\n"
    'old,8,1,8,,,"--a ""b""","x,y",,,,,,,local,docker,gfx942,1.50e+03,tps,,SUCCESS,,0012,,,,,0,\n',
    "25": "model, n_gpus, training_precision, pipeline, args, tags, docker_file, base_docker, docker_sha, "
    "docker_image, git_commit, machine_name, gpu_architecture, performance, metric, relative_change, status, "
    "build_duration, test_duration, dataname, data_provider_type, data_size, data_download_duration, build_number, "
    "additional_docker_run_options\n"
    "older,8,,,,t,,,,,,,gfx90a,0012,tps,,SUCCESS,,N/A,,,,,,\n",
    "odd": '\ufeffstatus,model,"note, of mine",performance,metric\r\n'
    'SUCCESS,old,"two\nlines, and ""quotes""",1234567e8,x\r\nFAILURE,=1+1,,None,\r\n',
}


class Place(Checkout):
    """A round's folder, and the commands that run in it."""

    def __init__(self, folder: Path, one: Round, docker_host: str) -> None:
        folder.mkdir()
        self.mounted = one.on_tmpfs and _succeeds("mount", "-t", "tmpfs", "-o", _TMPFS, "chaos", str(folder))
        super().__init__(folder, one.runtime, docker_host)
        (folder / "truth").mkdir()
        for part in (*one.parts, AFTER):
            self._add(part)
        (folder / "python.sh").write_text(STAND_IN)
        (folder / "python.sh").chmod(0o755)
        if one.before != "none":
            (folder / "perf.csv").write_bytes(_EARLIER[one.before].encode())
        self.earlier = self.tables()

    def start_round(self, one: Round) -> subprocess.Popen[bytes]:
        """Start `madlite run` of the round's cards; its output goes into a file, beside the folder."""
        names = ",".join(part.name for part in one.parts)
        words = ("--set", "stop_grace_s=0.4", "--set", f"env.MADLITE_PYTHON={self.folder}/python.sh")
        runtime = () if all(part.kind == "steps" for part in one.parts) else ("--runtime", one.runtime)
        with self.screen.open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "madlite", "run", *runtime, "--tags", names, *words],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def screen(self) -> Path:
        """What the attacked command wrote."""
        return self.folder.parent / f"{self.folder.name}.screen"

    def truth(self, part: Part) -> str:
        """Return how a card truly ended: "" never begun, "begun", or "ended" with its number."""
        lines = (self.folder / "truth" / part.name).read_bytes().split(b"\n")
        return lines[0].strip(b"\0 ").decode()

    def tables(self) -> dict[str, list[list[str]]]:
        """Return the records of every results file, perf.csv and those it was moved to, header first.

        Raises:
            csv.Error, UnicodeDecodeError: one of them does not parse.
        """
        names = (path.name for path in sorted(self.folder.glob("perf*.csv")))
        return {name: self.table(name) for name in names if name == "perf.csv" or name.startswith("perf.moved")}

    def table(self, name: str) -> list[list[str]]:
        """Return the records of one file, header first."""
        with (self.folder / name).open(newline="", encoding="utf-8-sig") as file:
            return [line for line in csv.reader(file, strict=True) if line]

    def left_processes(self) -> list[psutil.Process]:
        """Return also those that carry no mark any more, but are in this folder."""
        found = {process.pid: process for process in super().left_processes()}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                of_folder = environment.get("MADLITE_RUN_FOLDER", "").startswith(f"{self.folder}/")
                if of_folder and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process
        return list(found.values())

    def astray(self) -> list[psutil.Process]:
        """Return those that are in this folder without a mark: after a command and what it started, there are none."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd().startswith(f"{self.folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def remove(self) -> None:
        """Take the file system away."""
        if self.mounted:
            _succeeds("umount", "-l", str(self.folder))

    def _add(self, part: Part) -> None:
        path = self.folder / "scripts" / part.name / "run.sh"
        path.parent.mkdir(parents=True)
        path.write_text(part.script)
        (self.folder / "truth" / part.name).write_bytes(b"\0" * TRUTH_BYTES)
        self.cards.append(part.card())
        (self.folder / "models.json").write_text(json.dumps(self.cards))


def _succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True).returncode == 0
