"""`show` of several runs: what differs between them stands side by side; and runs named by `last~N`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Check, GpuUse, ImageUsed, Machine, Metric, Place, Provenance, Status, Telemetry, Variant
from madlite.text import shortened_middle
from tests.cli.stored_runs import good, store
from tests.factories import WINDOW
from tests.rows import each_row


def run(folder: Path, day: int, number: float, driver: str = "6.10.5", **changes: object) -> str:
    name = f"202611{day:02}T120000-a-0000{day:02}"
    ended = good(
        name,
        f"2026-11-{day:02}T12:00:00+00:00",
        metrics=(Metric(metric="tps", text=f"{number:g}", status=Status.SUCCESS, value=number),),
        window=WINDOW,
        image=ImageUsed(ref="rocm/x:1", digest=f"sha256:{'0' * 28}{day}{'0' * 28}"),
        provenance=Provenance(gpu={"driver": driver}, versions={"madlite": f"0.{day}"}, packages={"torch": "2.6"}),
        telemetry=Telemetry(
            source="NVML",
            over="window",
            samples=9,
            power_w=640.0 + day,
            gpus=(GpuUse(index=0, clock_mhz=1900.0), GpuUse(index=1, clock_mhz=1900.0 + 2 * day), GpuUse(index=2)),
        ),
        checks=(Check(name="loss", status="pass" if day < 3 else "warn", text="of 6 steps"),),
    )
    common = {"machine": Machine(device="MI300X"), "place": Place(gpus_per_node=8)}
    store(folder, name, ended, variant=Variant(model="m", precision="BF16", micro_batch=day), **common, **changes)
    return name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    run(tmp_path, 2, 100.0)
    run(tmp_path, 3, 90.0, driver="6.12")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(args) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def cells(text: str) -> dict[str, list[str]]:
    """Return the lines of a table by their names."""
    lines = [[part.strip() for part in line.split("  ") if part.strip()] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if line}


def test_what_differs_stands_first_and_what_is_equal_is_left_out(place, capsys):
    text = said(capsys, "show", "last~1", "last")
    told = cells(text)
    assert text.splitlines()[0] == "2 runs   tiny script pretrain BF16 8xMI300X"
    assert [line for line in text.splitlines() if line[:1] != " "][1:] == [
        *("what differs", "number", "GPUs", "checks", "versions"),
        "not recorded of all, so that a difference cannot be seen: seq_len, script, files of the script,",
    ]
    assert told["micro_batch"] == ["2", "3"] and told["gpu driver"] == ["6.10.5", "6.12"]
    assert told["number"] == ["100 tps", "90 tps"]
    assert told["against the first"] == ["-", "-10.0 %"], "90 / 100 - 1"
    assert told["power W/GPU"] == ["642", "643"] and told["clock MHz"] == ["1,902", "1,903"], "of the GPUs that tell"
    assert "pass" in text and "warn" in text and told["madlite"] == ["0.2", "0.3"]
    assert "torch" not in told and "CV" not in told and "package torch" not in text
    every = cells(said(capsys, "show", "last~1", "last", "--all"))
    assert every["package torch"] == ["2.6", "2.6"] and every["CV"] == ["1.00 %", "1.00 %"]
    assert "seq_len" not in every, "no run has one"


def test_where_the_scripts_of_both_are_kept_their_diff_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for day, text in ((2, "lr = 1\n"), (3, "lr = 2\n")):
        name = f"202611{day:02}T120000-a-0000{day:02}"
        known = Provenance(script="run.sh", script_sha256=str(day) * 64)
        store(tmp_path, name, good(name, provenance=known))
        assert "the changed lines" not in said(capsys, "show", "last", "last")
        (tmp_path / "madlite_runs" / name / "run.sh").write_text(text)
    (line,) = (line for line in said(capsys, "show", "last~1", "last").splitlines() if "changed lines" in line)
    scripts = [f"madlite_runs/202611{day:02}T120000-a-0000{day:02}/run.sh" for day in (2, 3)]
    assert line == f"the changed lines: diff -u {scripts[0]} {scripts[1]}"


def test_the_columns_fit_the_terminal_and_show_where_values_differ(place, capsys, monkeypatch):
    for width in (60, 72, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        text = said(capsys, "show", "last~1", "last")
        assert max(map(len, text.splitlines())) <= width
        first, second = cells(text)["image digest"]
        assert first != second and "…" in first, "they differ in the middle"
    monkeypatch.setenv("COLUMNS", "20")
    assert "6.12" in said(capsys, "show", "last~1", "last")
    monkeypatch.delenv("COLUMNS")
    assert "sha256:0000" in said(capsys, "show", "last~1", "last")


@each_row("most", range(1, 12))
def test_the_middle_is_left_out(most):
    text = shortened_middle("0123456789", most)
    assert len(text) <= most and (text == "0123456789" or text.count("…") == 1)
    assert shortened_middle("0123456789", 7) == "0123…89"


def test_several_runs_for_programs_are_a_list_of_records(place, capsys):
    found = json.loads(said(capsys, "show", "last", "last~1", "--json"))
    alone = json.loads(said(capsys, "show", "last", "--json"))
    assert found[0] == alone and found[1]["metrics"][0]["value"] == 100.0


def test_runs_that_are_equal_or_have_no_record_can_be_shown(place, capsys):
    text = said(capsys, "show", "last", "last")
    assert "what differs" not in text and "no difference in what is recorded of what they ran with" in text
    assert "not recorded of all, so that a difference cannot be seen: seq_len, script," in text
    store(place, "20261104T120000-a-000004")
    told = cells(said(capsys, "show", "last~1", "last"))
    assert told["status"] == ["SUCCESS", "CUT OFF"] and told["number"] == ["90 tps", "-"]


def test_what_a_run_wrote_steers_no_terminal(place, capsys):
    run(place, 4, 1.0, settings={"\x1b[2J": "\x1b]0;x\x07\n\u202e"})
    text = said(capsys, "show", "last~1", "last")
    assert "\x1b" not in text and "\u202e" not in text and "setting" in text


@each_row("command", [["show"], ["log"], ["reproduce"], ["show", "last"]])
def test_a_run_is_named_by_how_many_are_after_it(place, capsys, command):
    (place / "madlite_runs/20261102T120000-a-000002/run.log").write_text("the older log\n")
    text = said(capsys, *command, "last~1")
    assert "000002" in text or "the older log" in text or "--tags tiny" in text
    assert "last~2: madlite_runs has 2 runs" in said(capsys, *command, "last~2", code=4)
    for name in ("last~", "last~x", "last~-1", "last~²", "last~" + "9" * 5000, "LAST~1"):
        assert "no run" in said(capsys, *command, name, code=4)


def test_of_no_runs_none_is_the_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "there are no runs in" in said(capsys, "show", "last~1", code=4)
    (tmp_path / "madlite_runs").mkdir()
    assert "there are no runs in" in said(capsys, "show", "last~1", "last", code=4)
    assert "'last~1' is no file, run, study or baseline" in said(capsys, "compare", "last~1", "last", code=4)
