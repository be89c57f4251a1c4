"""Formats that plugins bring: the one of docs/plugins.md, typed off the page, and broken ones."""

from __future__ import annotations

import re
import types
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Exported
from tests.backends.test_plugins import Entry, module
from tests.reports.export.sources import write_perf
from tests.rows import each_row

PAGE = Path(__file__).parents[3] / "docs/plugins.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_perf(tmp_path)
    return tmp_path


@pytest.fixture
def installed(monkeypatch):
    ours = list(entry_points(group="madlite", name="exports"))

    def install(made: object) -> None:
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Entry("made", made), *ours])

    return install


def export(capsys, *words: str) -> tuple[int, str]:
    code = call(["export", *words])
    told = "".join(capsys.readouterr())
    assert "Traceback" not in told and "internal error" not in told
    return code, told


def test_the_page_s_format_is_used_as_it_says(installed, capsys):
    (code,) = re.findall(r'```python\n("""A ledger.*?)```', PAGE.read_text(), re.DOTALL)
    made = types.ModuleType("made")
    exec(code, made.__dict__)
    installed(made)
    assert export(capsys, "--to", "ledger", "-o", "r.ledger") == (0, "exported to r.ledger: 2 new\n")
    assert "0 new, 2 were there" in export(capsys, "--to", "ledger", "-o", "r.ledger", "--option", "unit=yes")[1]
    assert [line.split()[1:] for line in Path("r.ledger").read_text().splitlines()] == [
        ["llama", "tokens_per_s_per_gpu", "2500.5"],
        ["llama", "tokens_per_s_per_gpu", "1500.0"],
    ]
    assert "ledger      a ledger of lines" in export(capsys, "--list")[1]
    assert export(capsys, "--to", "ledgre", "-o", "x")[1].count("did you mean ledger?") == 1
    assert "none is named\n hint: -o results.ledger" in export(capsys, "--to", "ledger")[1]
    assert "ledger knows no --append" in export(capsys, "--to", "ledger", "--append")[1]
    assert call(["doctor", "--plugins"]) == 0 and "    exports to  ledger" in capsys.readouterr().out


def test_the_page_s_command_has_options_of_its_own(installed, capsys):
    (code,) = re.findall(r'```python\n("""A board.*?)```', PAGE.read_text(), re.DOTALL)
    made = types.ModuleType("made")
    exec(code, made.__dict__)
    installed(made)
    written = (0, "ours: llama, 2500.5\n")
    assert export(capsys, "--to", "board", "perf.csv", "--team", "ours") == written
    assert re.fullmatch(r"[0-9a-f]{64} llama 2500\.5\n", Path("ours.board").read_text())
    assert export(capsys, "perf.csv", "--te=ours", "--to=board") == written, "words in any order, and abbreviated"
    assert export(capsys, "--to", "board", "--help")[1].startswith("Usage: madlite export --to board [OPTIONS] FILE\n")
    assert "board       the lab's board; its options: " in export(capsys, "--list")[1]
    code, told = export(capsys, "--to", "board", "perf.csv")
    assert code == 4 and "missing option '--team'\n hint: madlite export --to board --help" in told
    assert "no such option '--append'" in export(capsys, "--to", "board", "perf.csv", "--append")[1]
    code, told = export(capsys, "--t", "board")
    assert code == 4 and "board has options of its own\n hint: madlite export --to board --help" in told
    assert call(["doctor", "--plugins"]) == 0 and "    exports to  board" in capsys.readouterr().out


@pytest.mark.parametrize("switch", ["--no-plugins", "--no-p"])
def test_without_plugins_none_is_loaded_to_find_its_command(installed, monkeypatch, capsys, switch):
    installed(types.ModuleType("made"))
    monkeypatch.setattr(Entry, "load", lambda entry: pytest.fail("it was loaded"))
    code, told = export(capsys, "--to", "board", switch)
    assert code == 4 and "'board' is no format of an export" in told


@each_row(
    "answer, words",
    [
        (ZeroDivisionError("odd"), "export to bad (plugin of other) failed: ZeroDivisionError: odd"),
        ("done", "export to bad (plugin of other) returned no Exported: 'done'"),
    ],
)
def test_a_broken_format_is_told_with_its_plugin(answer, words, installed, capsys):
    def write(rows, target, options):
        if isinstance(answer, Exception):
            raise answer
        return answer

    bad = types.SimpleNamespace(name="bad", summary="", options=(), write=write)
    installed(module(madlite_exporters=lambda: [bad]))
    code, told = export(capsys, "--to", "bad")
    assert code == 4 and words in told


def test_a_format_of_ours_is_not_replaced(installed, capsys):
    mine = types.SimpleNamespace(name="csv", summary="", options=(), write=lambda *given: Exported(new=0))
    installed(module(madlite_exporters=lambda: [mine]))
    told = export(capsys, "--to", "csv", "-o", "out.csv")[1]
    assert "exported to out.csv: 5 new\n" in told and "exporter csv: madlite brings one; left out" in told
