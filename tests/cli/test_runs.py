"""`runs`, `show`, `log`: what is told of runs, and that nothing in their folders breaks or steers anything."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.files import Folder
from madlite.machine.processes import FOLDER_MARK, KEPT_MARK, RUN_MARK, Process, RunProcess
from madlite.model import Card, Cause, Check, Compute, Diagnosis, Provenance, Result, Status, Variant
from madlite.reports.log import plain_text, read_log
from madlite.store.events import Requested, RequestedRun, Started, append
from madlite.store.folder import LOCK, LOG, PLAN, RECORD
from madlite.text import escape_formula
from tests.cli.stored_runs import good, store
from tests.factories import WINDOW, write_journal
from tests.rows import each_row


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-000001", good("a"))
    failed = Result(
        plan_id="b",
        status=Status.FAILURE,
        cause=Cause.EXIT_CODE,
        reason="it failed",
        evidence="boom",
        started="2026-01-02T03:05:00+00:00",
        diagnosis=Diagnosis(cause="python_error", line="ValueError: x", rank=3, hint="mend it"),
    )
    store(
        tmp_path, "20260102T030500-b-000002", failed, card=Card(name="llama", root=tmp_path, source="x", tags=("pyt",))
    )
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(args) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_runs_are_listed_the_newest_last(place, capsys):
    lines = said(capsys, "runs").splitlines()
    head = ["ID", "WHEN", "(UTC)", "CARD", "BACKEND", "MODE", "PRECISION", "GPU", "STATUS", "NUMBER", "TOOK"]
    assert lines[0].split() == head
    row = "20260102T030405-a-000001 2026-01-02 03:04:05 tiny script - - cpu SUCCESS 12.5 tps 1 min 01 s"
    assert " ".join(lines[1].split()) == row
    assert "FAILURE [python_error]" in lines[2] and len(lines) == 3


@each_row(
    ("args", "cards"),
    [
        (["--status", "failure"], ["llama"]),
        (["--status", "python-error"], ["llama"]),
        (["--status", "SUCCESS"], ["tiny"]),
        (["--tags", "LLA"], ["llama"]),
        (["--tags", "pyt,tiny"], ["tiny", "llama"]),
        (["--limit", "1"], ["llama"]),
        (["--status", "running"], []),
    ],
)
def test_runs_are_selected(place, capsys, args, cards):
    assert [run["card"] for run in json.loads(said(capsys, "runs", "--json", *args))] == cards


def test_runs_that_go_on_were_cut_off_or_cannot_be_read_are_told_apart(place, capsys):
    store(place, "20260103T000000-c-000003")
    store(place, "20260103T000000-d-000004")
    store(place, "20260103T000000-e-000005", good("e"))
    (place / "madlite_runs/20260103T000000-e-000005" / RECORD).write_text('{"status": ')
    (place / "madlite_runs/link").symlink_to(place / "madlite_runs/20260102T030405-a-000001")
    (place / "madlite_runs/20260102T030405-a-000001" / LOCK).unlink()
    with (place / "madlite_runs/20260103T000000-c-000003" / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = said(capsys, "runs")
    states = {line.split()[0][-6:]: line for line in text.splitlines() if line.startswith("2026")}
    assert "RUNNING" in states["000003"] and "CUT OFF" in states["000004"] and "UNREADABLE" in states["000005"]
    assert len(states) == 5 and "1 record cannot be read" in text and "1 earlier run was cut off" in text
    assert "killed. madlite clean lists what is left" in said(capsys, "show", "000004")
    write_journal(place / "madlite_runs/20260103T000000-d-000004", cleaned="")
    assert "acknowledged" in said(capsys, "show", "000004") and "CUT OFF" in said(capsys, "runs")
    assert "record.json" in said(capsys, "show", "000005")


def test_a_run_whose_command_was_killed_before_it_had_a_folder_never_started(place, capsys):
    run = place / "madlite_runs/20260102T030405-a-000001"
    lost = "20260103T000000-c-000003"
    with Folder.open(run.parent) as runs:
        append(runs, Started(run=run.name))
        append(runs, Requested(batch="b", runs=(RequestedRun(id=lost, card="c"),), command=("run",)), Started(run=lost))
        os.close(runs.create(".batch-b.lock"))  # as a kill leaves it
    assert call(["runs"]) == 0
    told = capsys.readouterr()
    assert (
        "000003" not in told.out and "1 run of an earlier batch never started: c. madlite run --resume" in told.err
    ), told


def test_formulas_are_escaped_and_numbers_are_kept():
    assert [escape_formula(text) for text in ("-1.5e3", "+1", "-x", "@a", "\tb", "a=b", "")] == [
        *("-1.5e3", "+1", "'-x", "'@a", "'\tb", "a=b", "")
    ]


def test_hostile_names_and_texts_steer_no_terminal(place, capsys):
    odd = good("g", reason="\x1b]0;owned\x07")
    store(
        place,
        "20260105T000000-\x1b[2J-000007",
        odd,
        card=Card(name="\x1b[31m\u202ex" + "y" * 500, root=place, source="x"),
    )
    for args in (["runs"], ["show", "000007"], ["reproduce", "000007"], ["show", "nope"], ["runs", "--dir", "\x1b[2J"]):
        text = said(capsys, *args, code=4 if {"nope", "--dir"} & {*args} else 0)
        assert "\x1b" not in text and "\u202e" not in text
    listed = next(line for line in said(capsys, "runs").splitlines() if line.startswith("20260105"))
    assert len(listed) < 250


def test_folders_without_runs_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "no runs in" in said(capsys, "runs")
    assert "there are no runs" in said(capsys, "show", "last", code=4)
    store(tmp_path / "w", "r1", good("r1"))
    for folder in ("w", "w/madlite_runs"):
        assert "r1" in said(capsys, "runs", "--dir", folder)
    assert "none of 1 runs" in said(capsys, "runs", "--dir", "w", "--status", "failure")
    assert "nope is no folder" in said(capsys, "runs", "--dir", "nope", code=4)
    (tmp_path / "madlite_runs").touch()
    assert "madlite_runs is no folder" in said(capsys, "runs", code=4)


@each_row(
    ("name", "found"),
    [
        ("last", "b-000002"),
        ("20260102T030405", "a-000001"),
        ("000002", "b-000002"),
        ("20260102T030500-b-000002", "b-000002"),
    ],
)
def test_a_run_is_found_by_any_part_of_its_name(place, capsys, name, found):
    assert found in said(capsys, "show", name).splitlines()[0]


def test_a_name_of_no_run_or_of_several_is_one_sentence(place, capsys):
    assert "did you mean 20260102T030405-a-000001" in said(capsys, "show", "20260102T030405-a-00001", code=4)
    assert "madlite runs lists them" in said(capsys, "log", "zzz", code=4)
    assert "is part of 2 runs" in said(capsys, "show", "2026", code=4)
    assert "no run ''" in said(capsys, "show", "", code=4)
    for n in range(6):
        store(place, f"many{n}", good("x"))
    assert "and 1 more" in said(capsys, "show", "many", code=4)


def test_the_page_of_a_run_says_everything(place, capsys):
    outcome = good(
        "h",
        window=WINDOW,
        metrics=(replace(good("x").metrics[0], metric="mad_tps"), *good("x").metrics),
        suspect=("few samples",),
        findings=("a note\nof two lines",),
        checks=(Check(name="exit_code", status="pass", text="exit code 0"),),
        compute=Compute(architecture="m", attention="full", flops_per_token=1e9, tflops_per_gpu=12.0, no_mfu="no peak"),
        config={"seq_len": "4096"},
        provenance=Provenance(host={"doctor": "1 of 22 checks differs: numa_balancing=1"}),
    )
    changes = {"variant": Variant(model="m", precision="BF16"), "settings": {"recipe": "r", "on": True}}
    store(place, "full-1", outcome, origins={"variant.precision": "--set"}, **changes)
    text = said(capsys, "show", "full-1", "--all")
    for part in (
        *(
            "SUCCESS (suspect)",
            "12.5 tps (median of 6 steps, 5 to 10",
            "drift +2.00 %",
            "MAD's figures",
            "12.5 mad_tps",
        ),
        *(
            "exit_code       pass",
            "suspect: few samples",
            "a note of two lines",
            "BF16   <- --set",
            "on              true",
        ),
        *("seq_len         4096", "script, recipe r", "plan.json", "madlite run --tags tiny"),
    ):
        assert part in text, part
    assert text.count("numa_balancing=1") == 1
    text = said(capsys, "show", "full-1")
    assert "doctor          1 of 22 checks differs: numa_balancing=1" in text
    for part in ("SUCCESS (suspect)", "12.5 tps", "BF16   <- --set", "1 pass, 0 unknown", "madlite show full-1 --all"):
        assert part in text, part
    for part in ("exit_code", "seq_len         4096", "plan.json"):
        assert part not in text, part
    text = said(capsys, "show", "000002")
    assert "rank 3: ValueError: x" in text and "mend it" in text and "[python_error] it failed" in text
    assert json.loads(said(capsys, "show", "full-1", "--json"))["config"] == {"seq_len": "4096"}


LOGGED = b"one\n\n\x1b[31mred\x1b[0m\r\n50%\r100%\n\x1b]0;title\x07x\xff\x9b\ttab \xe2\x80\xaeback\nlast"


def test_the_log_is_shown_without_what_steers_a_terminal(place, capfdbinary):
    store(place, "log-1", good("l"), log=LOGGED)
    assert call(["log", "log-1"]) == 0
    out = capfdbinary.readouterr().out
    assert out == "one\n\nred\n50%\n100%\nx\ufffd\ufffd\ttab  back\nlast".encode()
    assert call(["log", "log-1", "--raw"]) == 0
    assert capfdbinary.readouterr().out == LOGGED


def test_escapes_are_taken_out_however_the_bytes_come():
    whole = b"".join(plain_text([LOGGED]))
    for size in (1, 2, 3, 7):
        pieces = [LOGGED[at : at + size] for at in range(0, len(LOGGED), size)]
        assert b"".join(plain_text(pieces)) == whole
    endless = b"\x1b]0;" + b"x" * 10_000
    assert b"".join(plain_text([endless[:5000], endless[5000:], b"\n"])) == b" " + endless[1:] + b"\n"


@each_row(("tail", "shown"), [("1", "last"), ("2", "\nlast"), ("3", "c\n\nlast"), ("0", ""), ("99", "a\nb\nc\n\nlast")])
def test_the_last_lines_of_a_log(place, monkeypatch, capfd, tail, shown):
    monkeypatch.setattr("madlite.reports.log._READ_BYTES", 3)
    store(place, "log-2", good("l"), log=b"a\nb\nc\n\nlast")
    store(place, "log-3", good("l"), log=b"a\nb\nc\n\nlast\n")
    assert call(["log", "log-2", "--tail", tail]) == 0
    assert capfd.readouterr().out == shown
    assert call(["log", "log-3", "--tail", tail]) == 0
    assert capfd.readouterr().out == (shown + "\n" if shown else "")


def test_a_log_is_followed_until_its_run_ends(tmp_path):
    store(tmp_path, "live", log=b"first\n")
    folder = tmp_path / "madlite_runs/live"
    log = (folder / LOG).open("ab", buffering=0)
    lock = (folder / LOCK).open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    turns = iter([lambda: log.write(b"second\n"), lambda: (log.write(b"third\n"), lock.close())])
    got = list(read_log(folder, follow=True, wait=lambda seconds: next(turns)()))
    assert b"".join(got) == b"first\nsecond\nthird\n"
    log.close()


def test_a_log_that_is_not_there_yet_is_waited_for_and_one_that_never_comes_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "live")
    folder = tmp_path / "madlite_runs/live"
    (folder / LOG).unlink()
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        turns = iter([lambda: (folder / LOG).write_bytes(b"here\n"), lambda: fcntl.flock(lock, fcntl.LOCK_UN)])
        assert b"".join(read_log(folder, follow=True, wait=lambda seconds: next(turns)())) == b"here\n"
    (folder / LOG).unlink()
    assert "has no log" in said(capsys, "log", "live", code=4)
    (folder / LOG).symlink_to("/etc/passwd")
    assert "cannot be read" in said(capsys, "log", "live", "--follow", code=4)


@pytest.mark.host
def test_a_reader_that_goes_away_is_no_error(place):
    store(place, "long", good("l"), log=b"line\n" * 200_000)
    command = f"set -o pipefail; {sys.executable} -m madlite log long | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("line\n", "")


def test_hundreds_of_runs_are_listed_at_once_and_one_that_appears_or_goes_meanwhile_is_no_error(tmp_path):
    from madlite.reports.runs import list_runs

    record = store(tmp_path, "r0", good("x"))
    text = (tmp_path / "madlite_runs/r0" / RECORD).read_text()
    for n in range(300):
        folder = tmp_path / f"madlite_runs/s{n}"
        folder.mkdir()
        (folder / RECORD).write_text(text)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            folder = tmp_path / "madlite_runs/t"
            folder.mkdir(exist_ok=True)
            (folder / PLAN).write_text("{")
            (folder / PLAN).unlink()
            os.rmdir(folder)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert len(list_runs(tmp_path / "madlite_runs")) in (301, 302)
    finally:
        stop.set()
        thread.join()
    assert record.card == "tiny"


def test_clean_lists_and_acknowledges_what_was_cut_off(place, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setattr("madlite.batch.dead_processes.all_run_processes", lambda: [])
    store(place, "20260103T000000-\x1b[2J-000004")
    listed = said(capsys, "clean")
    assert "unfinished, no row" in listed and "clean --yes" in listed
    assert "\x1b" not in listed
    done = said(capsys, "clean", "--yes")
    assert "marked as ended" in done
    assert "nothing is left behind" in said(capsys, "clean") and "CUT OFF" in said(capsys, "runs")


def test_perf_csv_is_made_again_by_command(place, capsys):
    from madlite.store.folder import RunRows

    rows = RunRows(path="perf.csv", cells=({"model": "tiny"},), at="t", appended=True)
    folder = place / "madlite_runs/20260102T030405-a-000001"
    from madlite.store.record import load_record, record_json

    (folder / RECORD).write_text(record_json(replace(load_record(folder), rows=rows)))
    assert "wrote perf.csv: 1 row of 1 run" in said(capsys, "report", "rebuild")
    assert (place / "perf.csv").read_text().splitlines()[1] == "tiny" + "," * 28
    assert "--force" in said(capsys, "report", "rebuild", code=4)
    assert "wrote perf.csv" in said(capsys, "report", "rebuild", "--force")
    (folder / RECORD).write_text(record_json(replace(load_record(folder), rows=replace(rows, path="other.csv"))))
    store(place, "20260103T000000-c-000003")
    assert "no record, and so no row: it was cut off" in said(capsys, "report", "rebuild", "-o", "x.csv")
    assert "1 row in other.csv" in said(capsys, "show", "a-000001")


def test_the_json_of_a_run_without_a_record_names_its_state_and_no_verdict(place, capsys):
    store(place, "20260103T000000-cut-000003")
    folder = place / "madlite_runs/20260103T000000-cut-000003"
    told = json.loads(said(capsys, "show", "cut", "--json"))
    assert (told["status"], told["version"], told["card"], told["reason"]) == ("CUT OFF", 0, "tiny", "")
    with (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert json.loads(said(capsys, "show", "cut", "--json"))["status"] == "RUNNING"
    (folder / RECORD).write_text('{"version": 9, "id": "x", "status": "SUCCESS"}')
    told = json.loads(said(capsys, "show", "cut", "--json"))
    assert told["status"] == "UNREADABLE" and "of a newer madlite" in told["reason"]
    assert json.loads(said(capsys, "show", "000002", "--json"))["status"] == "FAILURE"


@each_row(
    ("word", "near"),
    [
        ("foo", ""),
        ("sucess", "success"),
        ("cutoff", "cut-off"),
        ("failed", "failure"),
        ("python error x", "python-error"),
    ],
)
def test_a_status_that_no_run_can_have_is_refused_with_the_nearest(place, capsys, word, near):
    text = said(capsys, "runs", "--status", word, code=4)
    assert f"--status {word!r}" in text and (f"did you mean {near}?" in text) == bool(near)


@each_row("word", ["timeout", "gated_repository", "Cut-Off", "unreadable", "PYTHON_ERROR"])
def test_a_status_that_no_run_has_now_is_none(place, capsys, word):
    assert isinstance(json.loads(said(capsys, "runs", "--json", "--status", word)), list)


def test_a_limit_of_0_is_all(place, capsys):
    assert len(json.loads(said(capsys, "runs", "--json", "--limit", "0"))) == 2
    assert "0 all" in said(capsys, "runs", "--help")


def test_the_page_of_a_failure_says_nothing_twice_and_has_no_empty_lines(place, capsys):
    why = "no GPU is here; add one"
    failed = good(
        "t",
        status=Status.FAILURE,
        cause=Cause.GPUS,
        reason=why,
        metrics=(),
        durations_s={"run": 0.01, "total": 3.0},
        diagnosis=Diagnosis(cause="too_few_gpus", hint="add one"),
    )
    store(place, "twice-1", failed)
    store(place, "twice-2", replace(failed, diagnosis=Diagnosis(cause="too_few_gpus"), reason="why", durations_s={}))
    text = said(capsys, "show", "twice-1")
    assert text.count("add one") == 1 and "what to do      add one" in text and "took            total 3.0 s" in text
    assert "because" not in text
    text = said(capsys, "show", "twice-2")
    assert "what to do" not in text and "took" not in text and all(line.strip() for line in text.splitlines())


@pytest.fixture
def elsewhere(place, monkeypatch):
    """What dead runs of this folder and of others left running, and what was removed of it."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    gone = place.parent / "gone"
    marks = [
        {RUN_MARK: "here-1", FOLDER_MARK: str(place / "madlite_runs/here-1")},
        {RUN_MARK: "there-1", FOLDER_MARK: str(gone / "madlite_runs/there-1")},
        {RUN_MARK: "kept-1", FOLDER_MARK: str(gone / "madlite_runs/kept-1"), KEPT_MARK: "1"},
    ]
    removed = []
    seven = Process(pid=7, started=1, uids=(os.geteuid(),) * 3)
    processes = [RunProcess(process=seven, environment=one) for one in marks]
    monkeypatch.setattr("madlite.batch.dead_processes.all_run_processes", lambda: list(processes))
    remove = "madlite.cli.clean.remove"
    monkeypatch.setattr(remove, lambda one, environ, runtimes: removed.append(one.run_id))
    return removed


def test_what_a_killed_run_still_has_running_is_told(place, capsys, monkeypatch):
    name = "20260103T000000-d-000004"
    store(place, name)
    (place / "madlite_runs/20260102T030405-a-000001" / LOCK).unlink()
    marks = {RUN_MARK: name, FOLDER_MARK: str(place / "madlite_runs" / name)}
    found = [
        RunProcess(process=Process(pid=pid, started=1, uids=(os.geteuid(),) * 3), environment=marks)
        for pid in (2**22 + 1, 2**22 + 2)
    ]
    monkeypatch.setattr("madlite.batch.dead_processes.all_run_processes", lambda: list(found))
    text = "2 of its processes are still running; madlite clean --yes ends them"
    assert f"warning: {name}: {text}\n" in said(capsys, "runs") and text in said(capsys, "show", "000004")
    assert f"warning: {name}: {text}\n" in said(capsys, "runs", "--watch", "--once")
    del found[1]
    assert "1 of its processes is still running; madlite clean --yes ends it" in said(capsys, "show", "000004")


def test_what_is_of_no_run_has_no_column_for_one(place, capsys):
    (place / "perf.csv.lock").touch()
    (place / ".perf.csv.999999999").touch()
    assert "file      " + str(place / ".perf.csv.999999999") in said(capsys, "clean")
    assert f"removed file: {place}/.perf.csv.999999999" in said(capsys, "clean", "--yes")


def test_clean_ends_what_is_of_this_folder_and_of_others_only_where_it_is_told_to(elsewhere, place, capsys):
    listed = said(capsys, "clean")
    assert re.search(r"^process   here-1  1 process: pid 7 \([^()]*\)$", listed, re.MULTILINE), listed
    assert f"(of {place.parent}/gone/madlite_runs/there-1: " in listed
    assert "madlite clean --everywhere --yes)" in listed and listed.count("--everywhere --kept --yes)") == 1
    said(capsys, "clean", "--yes")
    assert elsewhere == ["here-1"]
    said(capsys, "clean", "--yes", "--everywhere")
    assert elsewhere == ["here-1", "here-1", "there-1"]
    said(capsys, "clean", "--yes", "--everywhere", "--kept")
    assert elsewhere[3:] == ["here-1", "there-1", "kept-1"]


def test_where_only_other_folders_left_something_nothing_of_this_one_is_left(elsewhere, place, capsys, monkeypatch):
    monkeypatch.chdir(place.parent)
    listed = said(capsys, "clean", "--yes")
    assert (
        listed.splitlines()[-1].startswith("warning: containers") or "nothing is left behind in this folder" in listed
    )
    assert elsewhere == []


def runs_as_json(capsys) -> list[dict]:
    assert call(["runs", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def doubted(place):
    store(place, "20260107T000000-doubt-000009", good("d", suspect=("ranks differ",)))
    return place


def test_a_suspect_success_can_be_chosen_and_is_a_success_too(doubted, capsys):
    def chosen(word: str) -> list[str]:
        return [run["id"][-6:] for run in json.loads(said(capsys, "runs", "--json", "--status", word))]

    assert chosen("suspect") == chosen("Suspect") == ["000009"] and chosen("success") == ["000001", "000009"]
    assert "SUCCESS (suspect)" in said(capsys, "runs", "--status", "suspect")
    assert "did you mean suspect?" in said(capsys, "runs", "--status", "suspct", code=4)


def test_what_ran_where_is_listed(place, capsys):
    from madlite.model import Machine, Place

    store(
        place,
        "20260108T000000-gpus-000010",
        good("g"),
        backend="torchtitan",
        variant=Variant(model="m", mode="pretrain", precision="FP8"),
        machine=Machine(device="MI300X"),
        place=Place(nodes=2, gpus_per_node=8),
    )
    store(place, "20260109T000000-live-000011", machine=Machine(device="H200"), place=Place(gpus_per_node=4))
    lines = {line.split()[0][-6:]: line.split() for line in said(capsys, "runs").splitlines()}
    assert lines["000010"][4:9] == ["torchtitan", "pretrain", "FP8", "16xMI300X", "SUCCESS"]
    assert lines["000011"][4:8] == ["script", "-", "-", "4xH200"], "a run without a record is known by its plan"
    (told,) = [run for run in runs_as_json(capsys) if run["id"].endswith("000010")]
    assert [told[name] for name in ("backend", "mode", "precision", "gpu", "n_gpus")] == [
        *("torchtitan", "pretrain", "FP8", "MI300X", 16)
    ]
