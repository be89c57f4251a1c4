"""A workload that is root in its container, with the workspace mounted, and what later commands make of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from madlite.model import Status, to_json
from madlite.store.folder import RunRows
from madlite.store.record import Record, record_json
from tests import commands
from tests.csv_rows import csv_rows
from tests.factories import make_plan, note_made, write_journal
from tests.rows import each_row

NOBODY = 65534
KEY = "ssh-ed25519 AAAA somebody@elsewhere"


def madlite(space: Path, environ: dict[str, str], *words: str) -> tuple[int, str]:
    done = commands.run(words, space, {**os.environ, **environ})
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed and "internal error" not in printed, printed
    return done.returncode, printed


def make_space(folder: Path, script: str, **card: object) -> Path:
    space = folder / "space"
    (space / "scripts/m").mkdir(parents=True)
    (space / "scripts/m/run.sh").write_text(script)
    entry = {"name": "m", "scripts": "scripts/m/run.sh", "n_gpus": "0", "args": "", **card}
    (space / "models.json").write_text(json.dumps([entry]))
    return space


def rows_of(perf: Path) -> list[tuple[str, str]]:
    return [(row["model"], row["performance"]) for row in csv_rows(perf)]


def plant_run(runs: Path, name: str, path: str) -> Path:
    """Make a folder as of a run that ended and whose row no file took."""
    folder = runs / name
    folder.mkdir(parents=True)
    rows = RunRows(path=path, cells=({"model": KEY, "performance": "9", "metric": "x", "status": "SUCCESS"},))
    (folder / "record.json").write_text(record_json(Record(id=name, status=Status.SUCCESS, rows=rows)))
    write_journal(folder, rows)
    (folder / "plan.json").write_text(to_json(make_plan(runs.parent, id=name, model_dir="run_directory")))
    (folder / "lock").touch()
    return folder


ATTACKS = r"""
cd /myworkspace || exit 9
ls madlite_runs | sed 's/^/sees: /'
touch madlite_runs/x 2>/dev/null && echo 'wrote into the folder of runs'
mkdir madlite_runs/planted 2>/dev/null && echo 'made a folder of a run'
mv madlite_runs elsewhere 2>/dev/null && echo 'moved the folder of runs'
mv madlite_runs/$MADLITE_RUN_ID x 2>/dev/null && echo 'moved its own folder'
for name in record.json journal.jsonl plan.json lock run.log; do
  [ -e madlite_runs/$MADLITE_RUN_ID/$name ] && echo "sees $name"
done
echo mine > madlite_runs/$MADLITE_RUN_ID/output.txt || echo 'cannot write its outputs'
ls -a / > run_directory/x_output.csv
echo 'performance: 5 x'
"""


@pytest.mark.engine
def test_a_container_sees_nothing_of_the_folder_of_runs_but_its_own_part(tmp_path, docker_environ, base_image):
    space = make_space(tmp_path, ATTACKS)
    plant_run(space / "madlite_runs", "20260101T000000-other-000001", "perf.csv")
    code, printed = madlite(space, docker_environ, "run", "--tags", "m", "--image", base_image)
    assert code == 0, printed
    (run,) = (path for path in (space / "madlite_runs").glob("*-m-*"))
    log = (run / "run.log").read_text()
    assert f"sees: {run.name}\n" in log and log.count("sees") == 1, log
    for done in ("wrote into", "made a folder", "moved", "cannot write"):
        assert done not in log, log
    assert (run / "work/output.txt").read_text() == "mine\n"
    assert {"record.json", "run.log", "plan.json"} <= {path.name for path in run.iterdir()}


UNMOUNTS = r"""
cd /myworkspace || exit 9
umount madlite_runs/$MADLITE_RUN_ID && umount madlite_runs && echo 'reached it'
cp -r planted madlite_runs/20260101T000000-planted-000001
cp -r madlite_runs/$MADLITE_RUN_ID madlite_runs/20260101T000000-copy-000002
echo 'performance: 5 x'
"""


@pytest.mark.engine
def test_what_a_container_with_rights_to_unmount_plants_is_named_and_left_alone(tmp_path, docker_environ, base_image):
    options = "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    space = make_space(tmp_path, UNMOUNTS, additional_docker_run_options=options)
    victim = tmp_path / "authorized_keys"
    plant_run(space, "planted", str(victim))
    code, printed = madlite(space, docker_environ, "run", "--tags", "m", "--image", base_image)
    log = next((space / "madlite_runs").glob("*-m-*/run.log")).read_text()
    assert code == 0 and "reached it" in log, printed + log
    code, printed = madlite(space, docker_environ, "run", "--tags", "m", "--image", base_image)
    assert code == 0 and "20260101T000000-planted-000001" in printed and "left alone" in printed, printed
    assert not victim.exists() and rows_of(space / "perf.csv") == [("m", "5")] * 2
    code, printed = madlite(space, docker_environ, "runs")
    assert "20260101T000000-planted-000001" in printed and "left alone" in printed
    code, printed = madlite(space, docker_environ, "report", "rebuild", "--output", "again.csv")
    assert code == 0, printed
    assert KEY not in (space / "again.csv").read_text()


@pytest.mark.host
@each_row("first", [True, False], ids=["before any run", "after a run"])
def test_rows_that_somebody_planted_go_nowhere(tmp_path, first):
    space = make_space(tmp_path, "echo 'performance: 5 x'")
    before = (space / "scripts/m/run.sh").read_bytes()
    if not first:
        assert madlite(space, {}, "run", "--tags", "m", "--runtime", "host")[0] == 0
    paths = (f"{tmp_path}/profile", "../profile", "perf.csv", "scripts/m/run.sh", "/proc/self/mem")
    planted = [f"20260101T000000-m-abcde{n}" for n in range(len(paths))]
    for name, path in zip(planted, paths, strict=True):
        plant_run(space / "madlite_runs", name, path)
    code, printed = madlite(space, {}, "run", "--tags", "m", "--runtime", "host")
    assert code == 0 and all(name in printed for name in planted) and "left alone" in printed, printed
    assert not (tmp_path / "profile").exists() and (space / "scripts/m/run.sh").read_bytes() == before
    assert rows_of(space / "perf.csv") == [("m", "5")] * (1 if first else 2)
    assert all((space / "madlite_runs" / name / "journal.jsonl").exists() for name in planted), "they are left alone"


@pytest.mark.host
def test_a_row_that_waits_goes_only_to_a_results_file(tmp_path):
    """Its own run's folder was changed by hand: the file that its row is for is another one now."""
    space = make_space(tmp_path, "echo 'performance: 5 x'")
    (space / "perf.csv").mkdir()
    assert madlite(space, {}, "run", "--tags", "m", "--runtime", "host")[0] == 4
    (space / "perf.csv").rmdir()
    (space / "scripts/m/run.sh").write_text("mkdir ../perf.csv; echo 'performance: 5 x'")
    assert madlite(space, {}, "run", "--tags", "m", "--runtime", "host")[0] == 3
    (space / "perf.csv").rmdir()
    (folder,) = (space / "madlite_runs").glob("*-m-*")
    journal = folder / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"file":"perf.csv"', f'"file":"{tmp_path}/profile"'))
    (space / "scripts/m/run.sh").write_text("echo 'performance: 6 x'")
    code, printed = madlite(space, {}, "run", "--tags", "m", "--runtime", "host")
    assert code == 0 and not (tmp_path / "profile").exists(), printed
    assert f"1 run is not collected: {folder.name}" in printed, printed
    assert rows_of(space / "perf.csv") == [("m", "6")]


@pytest.mark.host
def test_a_folder_of_runs_of_another_user_brings_no_row(tmp_path):
    """Who owns it writes the event log: rows of his own are his to add."""
    space = make_space(tmp_path, "echo 'performance: 5 x'")
    folder = plant_run(space / "madlite_runs", "20260101T000000-m-abcdef", "perf.csv")
    note_made(folder)
    for path in (space / "madlite_runs", *(space / "madlite_runs").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    code, printed = madlite(space, {}, "run", "--tags", "m", "--runtime", "host")
    assert code == 0 and rows_of(space / "perf.csv") == [("m", "5")], printed


@pytest.mark.host
def test_a_perf_csv_that_was_edited_by_hand_is_appended_to_as_it_is_and_nobody_is_warned(tmp_path):
    space = make_space(tmp_path, "echo 'performance: 5 x'")
    run = ("run", "--tags", "m", "--runtime", "host")
    madlite(space, {}, *run)
    perf = space / "perf.csv"
    perf.write_text(perf.read_text().replace(",5,", ",50,", 1))
    for words in (run, ("runs",), ("clean",)):
        code, printed = madlite(space, {}, *words)
        assert code == 0 and "changed" not in printed, printed
    assert rows_of(perf) == [("m", "50"), ("m", "5")]
