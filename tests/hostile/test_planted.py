"""Something lies in the place of every file that a run writes, before it or during it: nothing outside changes.

Names come from a run without harm, so that a new file of a run's is planted too.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import commands
from tests.engine.checkout import UNPROBED
from tests.tiers import every

LIMIT_S = 600.0  # a hang; nothing takes so long
RESULTS = r"model,performance,metric\na,1,x\nb,2,x\n"
SCRIPT = f"""
echo 'performance: 5 x'
printf '{RESULTS}' > r.csv
echo a > x_output.csv
: > ../ready
while [ ! -e ../go ]; do sleep 0.05; done
"""
KEPT = ("models.json", "scripts", "docker", "run_directory", "ready", "go")
# what has a name of its own each time, and is planted under the name that it has by then
OWN = "<run>"


def plant_link(path: Path, outside: Path) -> None:
    """Lay a link to somebody's file."""
    path.symlink_to(outside / "victim")


def plant_empty_link(path: Path, outside: Path) -> None:
    """Lay a link to an empty file, as root's authorized_keys may be."""
    path.symlink_to(outside / "empty")


def plant_dangling(path: Path, outside: Path) -> None:
    """Lay a link to what is not there."""
    path.symlink_to(outside / f"made-{path.name}")


def plant_pipe(path: Path, outside: Path) -> None:
    """Make a pipe, which whoever opens it waits for."""
    os.mkfifo(path)


def plant_folder(path: Path, outside: Path) -> None:
    """Make a folder with a file in it."""
    path.mkdir()
    (path / "theirs").write_text("theirs")


PLANTS: tuple[Callable[[Path, Path], None], ...] = (
    plant_link,
    plant_empty_link,
    plant_dangling,
    plant_pipe,
    plant_folder,
)


class Place:
    """A working folder with one card, and files of somebody's beside it."""

    def __init__(self, folder: Path, runtime: str, environ: dict[str, str], image: str) -> None:
        self.space, self.outside = folder / "space", folder / "outside"
        self.runtime, self.environ, self.image = runtime, environ, image
        self.outside.mkdir()
        (self.outside / "victim").write_text("somebody's\n")
        (self.outside / "empty").touch()
        (self.space / "scripts/m").mkdir(parents=True)
        (self.space / "scripts/m/run.sh").write_text(SCRIPT)
        card = {"name": "m", "scripts": "scripts/m/run.sh", "n_gpus": "0", "args": "", "multiple_results": "r.csv"}
        (self.space / "models.json").write_text(json.dumps([card]))
        self.process: commands.Started | None = None

    def start(self) -> None:
        more = ["--image", self.image] if self.runtime == "docker" else []
        words = ("run", "--tags", "m", "--runtime", self.runtime, *UNPROBED, *more)
        self.process = commands.start(words, self.space, self.environ)

    def wait_until_it_runs(self) -> bool:
        """Wait for the workload; False where the command ended without it."""
        assert self.process is not None
        until = time.monotonic() + LIMIT_S
        while not (self.space / "ready").exists() and self.process.poll() is None:
            assert time.monotonic() < until, "the workload does not start"
            time.sleep(0.02)
        return (self.space / "ready").exists()

    def finish(self) -> tuple[int, str]:
        assert self.process is not None
        (self.space / "go").touch()
        printed, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, printed

    def run(self) -> tuple[int, str]:
        self.start()
        self.wait_until_it_runs()
        return self.finish()

    def files(self) -> list[str]:
        """Return what madlite made, with `<run>` for the run's folder."""
        found = []
        for path in sorted(self.space.rglob("*")):
            name = path.relative_to(self.space)
            if name.parts[0] in KEPT or path.is_dir() or "work" in name.parts:
                continue
            if name.parts[0] == "madlite_runs" and len(name.parts) > 2:
                name = Path("madlite_runs", OWN, *name.parts[2:])
            found.append(str(name))
        return found

    def state_outside(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.outside)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.outside.rglob("*")
            if path.is_file()
        }

    def own_run(self) -> Path:
        (run,) = (path for path in (self.space / "madlite_runs").iterdir() if path.name[:2] == "20")
        return run


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the files of a run without harm."""
    place = Place(tmp_path_factory.mktemp("names"), "host", dict(os.environ), "")
    code, printed = place.run()
    assert code == 0, printed
    found = place.files()
    assert {"perf.csv", "perf_super.json", "r.csv", "m_host.live.log", "build_manifest.json"} <= {*found}
    assert {f"madlite_runs/{OWN}/record.json", "madlite_runs/events.jsonl", "madlite_runs/.gitignore"} <= {*found}
    return found


BOTH = [pytest.param("host", marks=pytest.mark.host), pytest.param("docker", marks=pytest.mark.engine)]
# file by file they differ little: of containers make test takes what has every file in its place at once
HOST_FIRST = [BOTH[0], pytest.param("docker", marks=[pytest.mark.engine, pytest.mark.full])]
# and of these a link that leads out and a pipe
EVERY_FILE = pytest.mark.parametrize(
    ("place", "plant"),
    [pytest.param("host", plant, marks=pytest.mark.host) for plant in PLANTS]
    + [
        pytest.param("docker", plant, marks=[pytest.mark.engine, *(() if at in (0, 3) else (pytest.mark.full,))])
        for at, plant in enumerate(PLANTS)
    ],
    indirect=["place"],
)


@pytest.fixture(params=BOTH)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    environ, image = dict(os.environ), ""
    if request.param == "docker":
        environ |= request.getfixturevalue("docker_environ")
        image = request.getfixturevalue("base_image")
    place = Place(tmp_path, request.param, environ, image)
    yield place
    if place.process is not None and place.process.poll() is None:
        place.process.kill()
        place.process.wait()


def take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def judge(place: Place, before: dict[str, str], code: int, printed: str) -> None:
    assert place.state_outside() == before, "nothing outside is made, and nothing is changed"
    assert "Traceback" not in printed and "internal error" not in printed, printed
    assert code in (0, 3, 4), printed
    perf = place.space / "perf.csv"
    rows = [row for row in csv.DictReader(perf.open(newline=""))] if perf.is_file() and not perf.is_symlink() else []
    rows = [row for row in rows if row.get("model")]
    if code == 0:
        assert [(row["model"], row["performance"], row["status"]) for row in rows] == [
            ("m_a", "1", "SUCCESS"),
            ("m_b", "2", "SUCCESS"),
        ], printed
    else:
        assert all(row["status"] == "FAILURE" or row["performance"] in ("1", "2") for row in rows), rows
    if "SUCCESS" in printed and not rows:
        assert "no row in" in printed or code == 4, printed


# what is planted one by one: in its place nothing can run, or no row can be written
ALONE = (
    "perf.csv",
    "madlite_runs/events.jsonl",
    *(f"madlite_runs/.{name}.lock" for name in ("side_files", "r.csv", "run_directory")),
)


@EVERY_FILE
def test_in_place_of_every_file_before_a_run(
    place: Place, names: list[str], plant: Callable[[Path, Path], None]
) -> None:
    (place.space / "madlite_runs").mkdir()
    planted = [name for name in names if OWN not in name and name not in ALONE]
    for name in planted:
        plant(place.space / name, place.outside)
    before = place.state_outside()
    code, printed = place.run()
    judge(place, before, code, printed)
    if plant in (plant_link, plant_dangling):
        for name in ("perf_entry.json", "perf_super.csv", "m_host.live.log" if place.runtime == "host" else ""):
            assert name in printed, printed


@pytest.mark.parametrize("place", HOST_FIRST, indirect=True)
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("plant", every(PLANTS, 3))
def test_in_place_of_one_file_before_a_run(place: Place, name: str, plant: Callable[[Path, Path], None]) -> None:
    (place.space / "madlite_runs").mkdir()
    plant(place.space / name, place.outside)
    before = place.state_outside()
    code, printed = place.run()
    judge(place, before, code, printed)
    if name == "perf.csv":
        assert code == 4 and "perf.csv" in printed and not (place.space / "ready").exists(), printed


@EVERY_FILE
def test_in_place_of_every_file_during_a_run(
    place: Place, names: list[str], plant: Callable[[Path, Path], None]
) -> None:
    place.start()
    assert place.wait_until_it_runs()
    run, before = place.own_run(), place.state_outside()
    planted = [name.replace(OWN, run.name) for name in names if name not in ALONE]
    for name in planted:
        take_away(place.space / name)
        plant(place.space / name, place.outside)
    code, printed = place.finish()
    judge(place, before, code, printed)
    for name in ("perf_entry.json", "record.json") if plant is plant_link else ():
        assert name in printed, printed


@pytest.mark.parametrize("place", HOST_FIRST, indirect=True)
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("plant", every(PLANTS, 3))
def test_in_place_of_one_file_during_a_run(place: Place, name: str, plant: Callable[[Path, Path], None]) -> None:
    place.start()
    assert place.wait_until_it_runs()
    take_away(place.space / name)
    plant(place.space / name, place.outside)
    before = place.state_outside()
    code, printed = place.finish()
    judge(place, before, code, printed)
    if name == "perf.csv":
        assert code == 3 and "no row in" in printed and (place.own_run() / "result.json").is_file(), printed


@pytest.mark.parametrize("place", HOST_FIRST, indirect=True)
@pytest.mark.parametrize("plant", [plant_link, plant_dangling, plant_pipe])
def test_in_place_of_the_folder_of_runs_before_a_run(place: Place, plant: Callable[[Path, Path], None]) -> None:
    if plant is plant_link:
        (place.outside / "folder").mkdir()
        (place.space / "madlite_runs").symlink_to(place.outside / "folder")
    else:
        plant(place.space / "madlite_runs", place.outside)
    before = place.state_outside()
    code, printed = place.run()
    assert code == 4 and "madlite_runs is no folder" in printed and place.state_outside() == before, printed
    assert not (place.space / "perf.csv").exists() and not any((place.outside / "folder").glob("*"))


@pytest.mark.parametrize("place", HOST_FIRST, indirect=True)
@pytest.mark.parametrize("what", ["madlite_runs", "run"])
def test_a_link_in_place_of_the_folder_of_runs_during_a_run(place: Place, what: str) -> None:
    place.start()
    assert place.wait_until_it_runs()
    run = place.own_run()
    folder = run if what == "run" else run.parent
    folder.rename(place.space / "moved")
    (place.outside / "folder" / run.name).mkdir(parents=True)
    folder.symlink_to(place.outside / "folder" / (run.name if what == "run" else ""))
    before = place.state_outside()
    code, printed = place.finish()
    judge(place, before, code, printed)
    moved = place.space / "moved" / ("" if what == "run" else run.name)
    assert json.loads((moved / "record.json").read_text())["status"] == "SUCCESS"
