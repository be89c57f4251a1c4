"""`madlite verify`: a run is what its log gives, and whatever somebody changed of it is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.archive import tars
from tests.rows import each_row

pytestmark = pytest.mark.host
TRAINING, SCRIPT = "torchrun", "-a-"


def run_of(place: Path, which: str) -> Path:
    (folder,) = (place / "madlite_runs").glob(f"2*{which}*")
    return folder


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    capsys.readouterr()
    found = call(args)
    captured = capsys.readouterr()
    assert found == code, captured.out + captured.err
    assert "Traceback" not in captured.err and "internal error" not in captured.err
    return captured.out + captured.err


def differing(capsys: pytest.CaptureFixture[str], what: str) -> dict[str, tuple[str, str]]:
    """Return what differs of one run or archive: recorded, and found."""
    capsys.readouterr()
    assert call(["verify", what, "--json"]) == 5
    runs = json.loads(capsys.readouterr().out)
    items = [item for run in runs for item in run["checks"] if item["outcome"] == "differs"]
    return {item["what"]: (item["recorded"], item["found"]) for item in items}


def packed(place: Path, which: str) -> Path:
    archive = place / "x.tar.gz"
    archive.unlink(missing_ok=True)
    assert call(["archive", run_of(place, which).name, "-o", archive.name]) == 0
    return archive


def rebuilt(capsys: pytest.CaptureFixture[str], place: Path, name: str) -> str:
    """Make a results file again of all runs of a folder."""
    words = {"--runs": "madlite_runs", "-o": name}
    return said(capsys, "report", "rebuild", *(part for at, one in words.items() for part in (at, str(place / one))))


def test_runs_and_their_archive_are_what_their_logs_give(place, capsys):
    text = said(capsys, "verify", "2*")
    assert text.count(" OK ") == 2 and "2 runs, none with differences" in text
    said(capsys, "archive", "2*", "-o", "x.tar.gz")
    whole = json.loads(said(capsys, "verify", "x.tar.gz", "--json", "--strict"))
    assert [run["outcome"] for run in whole] == ["ok", "ok"] and all(len(run["checks"]) >= 8 for run in whole)
    names = {item["what"] for run in whole for item in run["checks"]}
    assert {"manifest", "plan", "status", "steps", "window median", "row", "steps.jsonl", "file run.sh"} <= names


def test_a_file_in_which_a_secret_was_masked_cannot_be_checked(place, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "tps 1001.5")
    archive, other = packed(place, TRAINING), tmp_path / "other"
    monkeypatch.delenv("HF_TOKEN")
    other.mkdir()
    said(capsys, "import", str(archive), "--dir", str(other))
    for name, words in ((str(archive), ()), ("last", ("--dir", str(other)))):
        text = said(capsys, "verify", name, *words, code=5)
        assert "file run.log cannot be checked: a secret was masked in it when it was packed" in text


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


def edited(change: Callable[[dict], object]) -> Callable[[bytes], bytes]:
    """Return what changes a record."""

    def edit(data: bytes) -> bytes:
        record = json.loads(data)
        change(record)
        return json.dumps(record).encode()

    return edit


def metric(record: dict) -> None:
    record["metrics"][0] |= {"text": "2001.5", "value": 2001.5}


def everywhere(record: dict) -> None:
    metric(record)
    record["window"]["median"] = 2001.5
    record["rows"]["cells"][0]["performance"] = "2001.5"


NUMBER = "number tokens_per_s_per_gpu"
# what was changed in an archive whose hashes all agree with it → what of it differs from the log, or from the record
TAMPERED = {
    "the number": ("record.json", edited(metric), {NUMBER: ("2001.5", "1001.5"), "row 1": None}),
    "the number everywhere": (
        "record.json",
        edited(everywhere),
        {NUMBER: ("2001.5", "1001.5"), "window median": ("2001.5", "1001.5")},
    ),
    "the value alone": (
        "record.json",
        edited(lambda record: record["metrics"][0].update(value=1.0)),
        {NUMBER: ("1", "1001.5")},
    ),
    "the steps": ("record.json", edited(lambda record: record.update(steps=40)), {"steps": ("40", "20")}),
    "the status": (
        "record.json",
        edited(lambda record: record.update(status="FAILURE", ended_by="no_metric")),
        {"status": ("FAILURE", "SUCCESS")},
    ),
    "the row": (
        "record.json",
        edited(lambda record: record["rows"]["cells"][0].update(performance="5")),
        {"row 1": ("1001.5 tokens_per_s_per_gpu SUCCESS", "5 tokens_per_s_per_gpu SUCCESS")},
    ),
    "the card": ("record.json", edited(lambda record: record.update(card="other")), {"plan card": ("other", None)}),
    "the window": (
        "record.json",
        edited(lambda record: record["window"].update(last_step=40)),
        {"window last_step": ("40", "20")},
    ),
    "a line of the log": (
        "run.log",
        lambda data: re.sub(rb"tps 100\d\.5", b"tps 3000.5", data),
        {NUMBER: ("1001.5", "3000.5"), "window median": ("1001.5", "3000.5"), "steps.jsonl line 1": None},
    ),
    "a step of the log": ("run.log", replaced(b"step 20 loss", b"stop 20 loss"), {"steps": ("20", "19")}),
    "the end of the log": ("run.log", lambda data: data[: data.index(b"step 15")], {"steps": ("20", "14")}),
    "a loss that is none": (
        "run.log",
        lambda data: re.sub(rb"(step 19 loss) \S+", rb"\1 nan", data),
        {"status": ("SUCCESS", None)},
    ),
    "the steps file": ("steps.jsonl", replaced(b'"n":7', b'"n":8'), {"steps.jsonl line 7": None}),
    "the script": ("run.sh", lambda data: data + b"# more\n", {"file run.sh": None}),
    "the plan": ("plan.json", replaced(b'"backend": "torchrun"', b'"backend": "script"'), {"plan backend": None}),
    "the plan's id": ("plan.json", lambda data: re.sub(rb'"id": "2\w+', b'"id": "x', data, count=1), {"plan id": None}),
}


@each_row("what", TAMPERED)
def test_an_archive_that_was_changed_with_its_hashes_does_not_agree_with_its_log(place, capsys, what):
    name, change, expected = TAMPERED[what]
    archive = tars.changed(packed(place, TRAINING), place / "y.tar.gz", f"/{name}", change, hashes=True)
    found = differing(capsys, str(archive))
    for key, values in expected.items():
        assert key in found, found
        pairs = zip(found[key], values or (None, None), strict=True)
        assert all(wanted is None or got.startswith(wanted) for got, wanted in pairs), found
    if name == "record.json":
        assert set(found) == set(expected)


@each_row("name", ["record.json", "run.log", "run.sh", "plan.json", "steps.jsonl"])
def test_a_file_that_was_swapped_is_not_the_manifest_s(place, capsys, name):
    archive = tars.changed(packed(place, TRAINING), place / "y.tar.gz", f"/{name}", lambda data: data + b"\n")
    found = differing(capsys, str(archive))
    assert found[f"manifest {name}"]
    assert "is not as it was packed" in said(capsys, "import", str(archive), "--dir", str(place.parent), code=4)
    assert not [*place.parent.glob("madlite_runs/[!.]*")]


def test_a_file_that_is_gone_from_an_archive_is_missed(place, capsys):
    files = tars.read(packed(place, TRAINING))
    gone = next(name for name in files if name.endswith("run.log"))
    del files[gone]
    archive = tars.write(place / "y.tar.gz", files)
    assert differing(capsys, str(archive))["manifest run.log"][1] == "no such file"


def test_a_changed_number_of_a_script_is_found_in_its_folder_and_in_perf_csv(place, capsys):
    name = run_of(place, SCRIPT).name
    perf = place / "perf.csv"
    perf.write_bytes(perf.read_bytes().replace(b"12.5", b"99.5"))
    assert differing(capsys, name) == {"perf.csv": ("12.5 tok SUCCESS", "no row with these cells")}
    log = run_of(place, SCRIPT) / "run.log"
    log.write_bytes(log.read_bytes().replace(b"12.5", b"11.5"))
    assert differing(capsys, name)["number tok"] == ("12.5", "11.5")
    record = run_of(place, SCRIPT) / "record.json"
    record.write_bytes(record.read_bytes().replace(b"12.5", b"11.5"))
    found = differing(capsys, name)
    assert set(found) == {"perf.csv"}, "record and log agree"


def test_an_error_that_was_added_to_a_script_s_log_is_found(place, capsys):
    log = run_of(place, SCRIPT) / "run.log"
    log.write_bytes(b"RuntimeError: CUDA out of memory\n" + log.read_bytes())
    found = differing(capsys, run_of(place, SCRIPT).name)
    assert found["status"][0] == "SUCCESS" and found["status"][1].startswith("FAILURE (")


def test_patterns_of_elsewhere_that_never_end_are_ended_and_said_in_a_sentence(place, capsys, tmp_path, monkeypatch):
    """A run's own patterns are its user's code; those of an archive are not."""
    endless = rb"step (?:\\d+)+z (?P<n>\\d+) loss"
    files = tars.read(packed(place, TRAINING))
    for name, data in files.items():
        if name.endswith(("plan.json", "record.json")):
            files[name] = data.replace(rb"step (?P<n>\\d+) loss", endless)
            assert files[name] != data
        if name.endswith("run.log"):
            files[name] = b"step " + b"1" * 60 + b" loss\n" + data
    archive = tars.write(tmp_path / "y.tar.gz", tars.with_hashes(files))
    monkeypatch.setattr("madlite.archive.verify._LIMIT_S", 1)
    other = tmp_path / "other"
    other.mkdir()
    said(capsys, "import", str(archive), "--dir", str(other))
    why = "was not read within 1 s, by the patterns of its plan, which came from elsewhere"
    text = said(capsys, "verify", str(archive), code=5)
    assert text.count(why) == 1 and "number cannot be checked: the log of run" in text
    assert said(capsys, "verify", "2*", "--dir", str(other), code=5).count(why) == 1
    text = said(capsys, "parse", "last", "--dir", str(other), code=4)
    assert text.count(why) == 1 and "| madlite parse -" in text


def test_imported_logs_are_parsed_as_where_they_were_made(place, capsys, tmp_path):
    run, archive, other = run_of(place, TRAINING).name, packed(place, TRAINING), tmp_path / "other"
    other.mkdir()
    said(capsys, "import", str(archive), "--dir", str(other))
    there = json.loads(said(capsys, "parse", run, "--json", "--dir", str(other)))
    here = json.loads(said(capsys, "parse", run, "--json"))
    assert {**there, "log": ""} == {**here, "log": ""} and len(here["steps"]) == 20


def test_what_is_not_here_cannot_be_checked_and_strict_says_so_by_its_exit_code(place, capsys):
    folder = run_of(place, TRAINING)
    (folder / "run.log").unlink()
    (place / "perf.csv").unlink()
    text = said(capsys, "verify", folder.name)
    assert "OK as far as it can be checked" in text and "number cannot be checked: run " in text
    assert "perf.csv cannot be checked: there is no such file" in text
    said(capsys, "verify", folder.name, "--strict", code=5)


def test_a_log_whose_middle_is_missing_makes_no_difference_of_its_steps(place, capsys):
    folder = run_of(place, TRAINING)
    log = folder / "run.log"
    data = log.read_bytes()
    begin, end = data.index(b"step 3 "), data.index(b"step 9 ")
    log.write_bytes(data[:begin] + b"[madlite: %d bytes left out here]\n" % (end - begin) + data[end:])
    text = said(capsys, "verify", folder.name, code=5)  # its size is another one
    assert re.search(r"steps cannot be checked: the log lacks \d+ bytes", text)
    assert "file run.log differs" in text and "number tokens_per_s_per_gpu differs" not in text


def test_what_cannot_be_read_is_said_in_a_sentence(place, capsys):
    (place / "x.tar.gz").write_bytes(b"no archive")
    assert "x.tar.gz is no whole archive of runs" in said(capsys, "verify", "x.tar.gz", code=4)
    assert "no-such.tar.gz" in said(capsys, "verify", "./no-such.tar.gz", code=4)
    (run_of(place, SCRIPT) / "record.json").write_text("{")
    assert "record.json" in said(capsys, "verify", run_of(place, SCRIPT).name, code=4)


def test_imported_runs_are_verified_and_their_rows_appended_once(place, capsys, tmp_path):
    said(capsys, "archive", "2*", "-o", "x.tar.gz")
    other = tmp_path / "other"
    other.mkdir()
    archive = str(place / "x.tar.gz")
    assert "2 runs taken in" in said(capsys, "import", archive, "--dir", str(other))
    assert not (other / "perf.csv").exists()
    assert "its row was added to perf.csv" in said(capsys, "import", archive, "--dir", str(other), "--rows")
    assert (other / "perf.csv").read_bytes() == (place / "perf.csv").read_bytes()
    assert "its row is in perf.csv" in said(capsys, "import", archive, "--dir", str(other), "--rows")
    assert (other / "perf.csv").read_bytes() == (place / "perf.csv").read_bytes()
    text = said(capsys, "verify", "2*", "--dir", str(other), "--strict")
    assert text.count(" OK ") == 2
    rebuilt(capsys, other, "again.csv")
    assert (other / "again.csv").read_bytes() == (place / "perf.csv").read_bytes()


def test_imported_runs_without_rows_add_none_to_a_rebuilt_file(place, capsys, tmp_path):
    said(capsys, "archive", f"*{SCRIPT}*", "-o", "x.tar.gz")
    other = tmp_path / "other"
    shutil.copytree(place, other, ignore=lambda folder, names: [name for name in names if SCRIPT in name])
    before = (other / "perf.csv").read_text().splitlines()
    (other / "perf.csv").write_text("\n".join(before[:-1]) + "\n")
    said(capsys, "import", str(place / "x.tar.gz"), "--dir", str(other))
    text = rebuilt(capsys, other, "y.csv")
    assert "of 1 run" in text and "12.5" not in (other / "y.csv").read_text()
