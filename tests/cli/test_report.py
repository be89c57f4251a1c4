"""`madlite report`, as a user types it."""

from __future__ import annotations

import os

import pytest

from madlite.cli.main import call
from tests.rows import each_row


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perf.csv").write_text("model,performance,metric,status\ntiny,1.5e+03,tok,SUCCESS\n")
    return tmp_path


def files(folder):
    return sorted(path.name for path in folder.iterdir())


@each_row("options", [["--csv-file-path"], ["--csv_file_path"], ["--csv"], []])
def test_a_page_is_written_and_named(folder, capsys, options):
    assert call(["report", "to-html", *options, "perf.csv", "-v"]) == 0
    assert capsys.readouterr().out == "wrote perf.html\n"
    assert ">1.5e+03</td>" in (folder / "perf.html").read_text()


@each_row("args", [[], ["--dir", "."], ["--directory", "."], ["--csv-file-path", "."]])
def test_a_mail_is_written_and_named(folder, capsys, args):
    assert call(["report", "to-email", *args]) == 0
    assert capsys.readouterr().out == "wrote run_results.html\n"
    assert ">perf</h2>" in (folder / "run_results.html").read_text()


def test_a_mail_goes_into_its_folder_or_where_it_is_told(folder):
    (folder / "sub").mkdir()
    (folder / "perf.csv").rename(folder / "sub/perf.csv")
    assert call(["report", "to-email", "--dir", "sub", "-o", "mail.html"]) == 0
    assert call(["report", "to-email", "--dir", "sub", "-o", str(folder / "mail.html")]) == 0
    assert files(folder) == ["mail.html", "sub"] and files(folder / "sub") == ["mail.html", "perf.csv"]


def test_a_mail_goes_through_a_link_and_into_a_pipe(folder):
    (folder / "link.html").symlink_to("real.html")
    os.mkfifo(folder / "pipe")
    with os.fdopen(os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader:
        assert call(["report", "to-email", "-o", "pipe"]) == call(["report", "to-email", "-o", "link.html"]) == 0
        assert ">perf</h2>" in reader.read()
    assert (folder / "pipe").is_fifo() and (folder / "link.html").is_symlink()
    assert ">perf</h2>" in (folder / "real.html").read_text()


def test_a_file_left_out_of_a_mail_is_a_warning(folder, capsys):
    (folder / "a.csv").write_text("")
    (folder / "b.csv").write_text("x\n1,2\n3\n")
    assert call(["report", "to-email"]) == 0
    empty, damaged = capsys.readouterr().err.splitlines()
    assert empty.startswith("warning: left out: a.csv is empty")
    assert damaged == "warning: b.csv: 1 row cannot be read and is left out: line 2 has 2 cells under 1 columns"


@each_row(
    ("args", "said"),
    [
        (["to-html"], "--csv-file-path"),
        (["to-html", "--csv-file-path", "absent.csv"], "absent.csv cannot be read: No such file"),
        (["to-html", "--csv-file-path", "."], "is a folder"),
        (["to-html", "--csv-file-path", ""], "is a folder"),
        (["to-html", "--csv-file-path", "notes.txt"], "no .csv file"),
        (["to-html", "--csv-file-path", "broken.csv"], "is empty"),
        (["to-email", "--dir", "absent"], "absent is not there"),
        (["to-email", "--dir", "notes.txt"], "is a file"),
        (["to-email", "--dir", "none"], "no CSV file is in"),
        (["update-perf"], "no result"),
        (["update-perf", "--single_result", "absent.json"], "absent.json"),
        (["update-perf", "--single-result", "one.json", "--perf-csv", "absent.csv"], "absent.csv"),
        (["update-perf", "--multiple-results", "perf.csv"], "--model-name"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_4(folder, capsys, args, said):
    (folder / "notes.txt").write_text("x")
    (folder / "broken.csv").write_text("")
    (folder / "none").mkdir(exist_ok=True)
    (folder / "one.json").write_text('{"model": "m", "performance": "1", "metric": "t", "status": "SUCCESS"}')
    before = files(folder)
    assert call(["report", *args]) == 4
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and " hint: " in err and "Traceback" not in err
    assert files(folder) == before


def test_report_alone_shows_what_there_is(capsys):
    assert call(["report"]) == 4
    said = capsys.readouterr()
    assert "to-html" in said.out and "to-email" in said.out and "update-perf" in said.out
    assert said.err.startswith("error: no command of report is named")


def test_a_result_joins_perf_csv(folder, capsys):
    (folder / "one.json").write_text('{"model": "m", "performance": "0012", "metric": "tok", "status": "SUCCESS"}')
    assert call(["report", "update-perf", "--single", "one.json"]) == 0
    assert capsys.readouterr().out == "1 row added to perf.csv\n"
    assert (folder / "perf.csv").read_text().splitlines()[1:] == ["tiny,1.5e+03,tok,SUCCESS", "m,0012,tok,SUCCESS"]


def test_several_results_come_before_a_single_one(folder, capsys):
    (folder / "one.json").write_text('{"model": "m", "performance": "1", "metric": "t", "status": "SUCCESS"}')
    (folder / "common.json").write_text('{"n_gpus": "8"}')
    (folder / "results.csv").write_text("model,performance,metric\na,1,tok\nb,2,tok\n")
    args = ["--multiple-results", "results.csv", "--common_info", "common.json", "--model_name", "m"]
    assert call(["report", "update-perf", "--single_result", "one.json", "--failed-result", "x.json", *args]) == 0
    said = capsys.readouterr()
    assert said.out == "2 rows added to perf.csv\n" and "--failed-result adds nothing" in said.err
    assert (folder / "perf.csv").read_text().splitlines()[2:] == ["m_a,1,tok,SUCCESS", "m_b,2,tok,SUCCESS"]


@each_row(
    ("args", "said"),
    [
        (["perf.csv", "--csv-file-path", "perf.csv"], "two results files are named"),
        ([], "no results file is named"),
        (["nope"], "nope cannot be read: No such file"),
    ],
)
def test_a_page_of_nothing_or_of_two_is_refused(folder, capsys, args, said):
    assert call(["report", "to-html", *args]) == 4
    assert said in capsys.readouterr().err and files(folder) == ["perf.csv"]


def test_a_page_of_results_is_written_and_counted(folder, capsys):
    assert call(["report", "html"]) == 0
    assert capsys.readouterr().out == "wrote report.html: 1 result in 1 series, 0 failed, 0 suspect\n"
    assert f"<title>Benchmark results of {folder.name}</title>" in (folder / "report.html").read_text()
    assert call(["report", "html", "perf.csv", "-o", "x.html", "--title", "Week 48 <b>"]) == 0
    assert "<title>Week 48 &lt;b&gt;</title>" in (folder / "x.html").read_text()


def test_results_are_printed_as_markdown(folder, capsys):
    assert call(["report", "md", "perf.csv"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# Benchmark results of ") and "| tiny tok | 1 | 1,500 | – |" in said
    assert call(["report", "md", "-o", "notes.md", "--where", "model=tiny"]) == 0
    assert (folder / "notes.md").read_text().startswith("# Benchmark results of ")


@each_row("option", ["--baseline", "--against"])
def test_results_are_compared_with_a_base(folder, capsys, option):
    lines = "".join(f"tiny,{2000 + n},tok,SUCCESS\n" for n in range(8))
    (folder / "new.csv").write_text("model,performance,metric,status\n" + lines)
    (folder / "old.csv").write_text("model,performance,metric,status\n" + lines.replace(",2", ",1"))
    assert call(["report", "md", "new.csv", option, "old.csv"]) == 0
    said = capsys.readouterr().out
    assert "| tiny tok | 1,004 | 2,004 | +99.7 % |" in said
    assert call(["report", "html", "new.csv", option, "old.csv"]) == 0
    assert "+99.7 %" in (folder / "report.html").read_text()


@each_row(
    ("args", "said"),
    [
        (["nothing.csv"], "'nothing.csv' is no file, run, study or baseline"),
        (["--where", "model"], "--where 'model' has no value"),
        (["--where", "model=other"], "this folder has no results with model=other"),
        (["--against", "nothing"], "'nothing' is no file, run, study or baseline"),
        (["-o", "no/such/folder.html"], "no/such/folder.html cannot be written"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(folder, capsys, args, said):
    assert call(["report", "html", *args]) == 4
    assert said in capsys.readouterr().err
    assert files(folder) == ["perf.csv"]
