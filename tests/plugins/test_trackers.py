"""MLflow and Trackio, the real packages with stores of files: exports, and runs that they follow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.reports.export.sources import write_perf

pytestmark = pytest.mark.host

FIGURES = "step: $n  loss: $((300 - n)).5  memory:  1.0GiB(1%)  tps: 1,234  mfu: 1%"
LINE = f"[titan] 2026-11-21 12:00:00,000 - root - INFO - {FIGURES}"
STEPS = f'for n in $(seq 1 30); do echo "{LINE}"; done\necho "performance: 5 x"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path


# a busy machine may need longer than half a minute to import a tracker, and what it has not taken by then is lost
PATIENT = """
from madlite.cli.main import entry
from madlite_plugins import tracking
tracking._END_LIMIT_S = 240.0
entry()
"""


def madlite(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: trackers keep states of a process."""
    environ = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", PATIENT, *words], env=environ, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr
    return done


def export(capsys, *words: str) -> tuple[int, str, str]:
    """Run an export in this process, which imports MLflow once."""
    code = call(["export", "--to", "mlflow", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def mlflow_runs(folder: Path) -> list:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(folder / "mlruns"))
    found = client.search_experiments(filter_string="name = 'madlite'")
    return list(client.search_runs([found[0].experiment_id], order_by=["attributes.start_time"])) if found else []


def trackio_logs(folder: Path) -> dict[str, list[dict]]:
    text = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as s; "
        "print(json.dumps({name: s.get_logs('madlite', name) for name in s.get_runs('madlite')}))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_mlflow_gets_each_result_once(folder, capsys):
    write_perf(folder)
    assert export(capsys)[:2] == (0, f"exported to experiment madlite of {folder}/mlruns: 5 new\n")
    write_perf(folder, "new,1,1,,,7,x,SUCCESS,,\n")
    assert "1 new, 5 were there" in export(capsys)[1]
    runs = mlflow_runs(folder)
    assert len(runs) == 6 and {run.info.status for run in runs} == {"FINISHED", "FAILED"}
    best = max(runs, key=lambda run: run.data.metrics.get("tokens_per_s_per_gpu", 0))
    assert best.data.metrics == {"tokens_per_s_per_gpu": 2500.5, "success": 1.0}
    assert (best.data.params["model"], best.data.params["gpus"]) == ("llama", "8")
    assert best.data.params["fact.git commit"] == "1234567e8"


@pytest.mark.full
def test_a_run_that_an_export_left_half_made_is_made_again(folder, capsys):
    from madlite_plugins.mlflow.client import Experiment

    write_perf(folder, "")
    call(["export", "--to", "jsonl", "-o", "out.jsonl"])
    key = json.loads(Path("out.jsonl").read_text().splitlines()[0])["key"]
    half = Experiment(str(folder / "mlruns")).begin(key, "half", {"model": "llama"})
    capsys.readouterr()
    assert "5 new" in export(capsys)[1]
    runs = mlflow_runs(folder)
    assert len(runs) == 5 and half not in {run.info.run_id for run in runs}


@pytest.mark.full
def test_a_server_that_does_not_answer_is_one_sentence(folder, capsys, monkeypatch):
    write_perf(folder)
    code, _, told = export(capsys, "-o", "http://me:s3cretword@127.0.0.1:9")
    assert code == 4 and "s3cretword" not in told
    assert told == "error: no MLflow server answers at http://127.0.0.1:9\n hint: -o http://host:5000\n"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert "no MLflow server is named" in export(capsys)[2]


def test_trackio_gets_each_result_once(folder):
    write_perf(folder)
    done = madlite("export", "--to", "trackio")
    assert (done.returncode, done.stdout) == (0, "exported to project madlite of Trackio: 5 new\n")
    assert "0 new, 5 were there" in madlite("export", "--to", "trackio").stdout
    logs = trackio_logs(folder)
    assert sorted(one.get("tokens_per_s_per_gpu", 0) for (one,) in logs.values()) == [0, 0, 0, 1500.0, 2500.5]
    done = madlite("export", "--to", "trackio", TRACKIO_SPACE_ID="me/space")
    assert done.returncode == 4 and "trackio sync --project madlite publishes the store" in done.stderr


def test_runs_are_followed_while_they_go_on_and_exported_no_second_time(folder, capsys):
    (folder / "run.sh").write_text(STEPS)
    card = {"name": "m", "scripts": "run.sh", "n_gpus": "-1", "tags": ["t"], "args": ""}
    (folder / "models.json").write_text(json.dumps([card]))
    done = madlite("run", "--tags", "t", "--runtime", "host", MADLITE_TRACK="mlflow, trackio")
    assert done.returncode == 0 and "Trackio" not in done.stdout and "has not all" not in done.stderr, done.stderr
    (run_id,) = [path.name for path in (folder / "madlite_runs").iterdir() if (path / "record.json").is_file()]

    (run,) = mlflow_runs(folder)
    assert (run.info.run_name, run.info.status, run.data.tags["madlite.key"]) == (run_id, "FINISHED", run_id)
    assert run.data.metrics["loss"] == 270.5 and run.data.metrics["success"] == 1.0 and run.data.metrics["x"] == 5.0
    assert run.data.params["model"] == "m" and "madlite.partial" not in run.data.tags
    logs = trackio_logs(folder)[run_id]
    assert [one["loss"] for one in logs if "loss" in one] == [300 - n + 0.5 for n in range(1, 31)]
    assert logs[-1]["x"] == 5.0 and logs[-1]["success"] == 1.0

    assert "0 new, 1 were there" in export(capsys)[1]
    assert "0 new, 1 were there" in madlite("export", "--to", "trackio").stdout
    keys = []
    for source in ("perf.csv", "last"):  # a row of perf.csv is the result of the run beside it
        call(["export", source, "--to", "jsonl", "-o", "out.jsonl"])
        keys += [(one["key"], one["run"]) for one in map(json.loads, Path("out.jsonl").read_text().splitlines())]
    assert keys[: len(keys) // 2] == keys[len(keys) // 2 :] and keys[0][1] == run_id


def test_a_tracker_that_cannot_be_reached_costs_a_run_nothing(folder):
    (folder / "run.sh").write_text("echo 'performance: 5 x'\n")
    card = {"name": "m", "scripts": "run.sh", "n_gpus": "-1", "tags": ["t"], "args": ""}
    (folder / "models.json").write_text(json.dumps([card]))
    where = {"MADLITE_TRACK": "mlflow", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = madlite("run", "--tags", "t", "--runtime", "host", **where)
    assert done.returncode == 0 and "no MLflow server answers at http://127.0.0.1:9" in done.stderr
    assert "SUCCESS" in (folder / "perf.csv").read_text()


def test_a_tracker_that_is_none_is_told():
    done = madlite("doctor", "--plugins", MADLITE_TRACK="mlfow")
    assert done.returncode == 0
    assert done.stderr == "warning: MADLITE_TRACK names 'mlfow', which is no tracker: mlflow, trackio\n"


def test_nothing_of_a_tracker_is_loaded_where_none_is_asked_for():
    text = (
        "import sys; from madlite.backends.loader import load_plugins; load_plugins(only_built_in=True); "
        "print([n for n in sys.modules if n.split('.')[0] in ('mlflow', 'trackio')], "
        "'madlite_plugins.mlflow.live' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
