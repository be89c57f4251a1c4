"""`madlite runs --of` and `madlite show` of a tune and a bisect: what they came to, from what is written down."""

from __future__ import annotations

import re

from msgspec.structs import replace

from madlite.cli.main import call
from madlite.model import Study, to_json
from madlite.store.batches import StudyFolder
from madlite.study.bisect_runs import BisectSummary, ItemSummary, summary_lines
from madlite.study.engine import Answer
from madlite.study.tune_report import TunedPoint, TuneReport, report_lines
from tests.cli.stored_runs import good, store
from tests.rows import each_row

ID = "20261122T093011-3fa91c"


def report() -> str:
    default = TunedPoint(text="default", varied={}, outcome="ok", speed=100.0, full=2)
    best = TunedPoint(
        text="micro_batch=3", varied={"micro_batch": 3}, outcome="ok", speed=103.0, full=2, short=1, ratio=1.03
    )
    found = TuneReport(
        id=ID, card="a", backend="hf", metric="tps", unit="tokens/s/GPU", points=(best, default), best=best,
        default=default, confirmed=True, why="confirmed",
    )  # fmt: skip
    return to_json(Answer(content=found, lines=tuple(report_lines(found))).stored)


def bisection(conclusion: str = "found") -> BisectSummary:
    def item(name: str, value: float) -> ItemSummary:
        return ItemSummary(
            name=name, note="", standing="good", values=(value,), median=value, change=None, interval=None,
            runs=("r",), failures=(),
        )  # fmt: skip

    return BisectSummary(
        id=ID, kind="bisect", metric="tps", conclusion=conclusion, last_good="a.toml", first_bad="b.toml",
        candidates=(), failed="", change=-0.1, interval=None, in_turns=False, runs=2,
        items=(item("a.toml", 100.0), item("b.toml", 90.0)),
    )  # fmt: skip


def test_suspect_numbers_of_a_bisection_are_told():
    begun = bisection()
    good, bad = begun.items
    lines = summary_lines(replace(begun, items=(good, replace(bad, suspect=2, standing="bad", failures=("hang",)))))
    assert [line.split("-")[-1].strip() for line in lines][2:4] == ["good", "bad, 2 suspect: hang"]


def told(capsys, *words: str) -> tuple[str, str]:
    assert call([*words]) == 0
    done = capsys.readouterr()
    return done.out, done.err


@each_row(
    ("conclusion", "text"),
    [
        ("found", "last good a.toml, first bad b.toml: change -10.0 % -"),
        ("no change", "by 1 and 1 runs, change -10.0 % -; other ends"),
        (
            "not confirmed",
            "first bad b.toml, but in turns the change is -10.0 % -: the number changes little by little",
        ),
    ],
)
def test_each_conclusion_of_a_bisection_names_its_change(conclusion, text):
    assert text in " ".join(summary_lines(bisection(conclusion)))


@each_row(
    ("kind", "summary", "lines"),
    [
        (
            "tune",
            report(),
            [
                "micro_batch=3  103  +3.00 %",
                "stopped, the gain is confirmed by full runs",
                "fastest: micro_batch=3: +3.00 %",
                f"  madlite run --recipe-file madlite_runs/study-{ID}/recipe.toml",
            ],
        ),
        (
            "bisect",
            to_json(Answer(content=bisection(), lines=tuple(summary_lines(bisection()))).stored),
            ["1  a.toml", "last good a.toml, first bad b.toml: change -10.0 %"],
        ),
    ],
)
def test_who_closed_the_terminal_gets_what_a_study_came_to(tmp_path, capsys, monkeypatch, kind, summary, lines):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a", good("a"), study=Study(id=ID, kind=kind))
    folder = StudyFolder.create(tmp_path, ID)
    folder.write("study.json", summary)
    folder.write("recipe.toml", "tag = 'a'\n")
    assert f"study {ID} goes on: madlite runs --watch" in told(capsys, "runs", "--of", ID)[0]
    folder.close()
    for words in (("runs", "--of", "last"), ("show", ID), ("show", f"study-{ID[:17]}")):
        out, _ = told(capsys, *words)
        plain = re.sub("  +", "  ", out)
        assert not [line for line in lines if line not in plain], out
        assert "goes on" not in out and f"madlite_runs/study-{ID}/study.json" in out


def test_of_a_study_that_was_killed_the_command_is_named_that_goes_on_with_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a", good("a"), study=Study(id=ID, kind="tune"))
    out, _ = told(capsys, "show", ID)
    assert out == f"study {ID} has not come to its end: madlite run --tags tiny --resume={ID} goes on with it\n"
    folder = StudyFolder.create(tmp_path, ID)
    folder.write("study.json", "{")
    folder.close()
    assert "study.json cannot be read: " in told(capsys, "runs", "--of", ID)[0]


def test_an_id_that_nothing_has_is_named_with_the_nearest_ones(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store(tmp_path, "20260102T030405-a-00000a", good("a"), batch="", study=Study(id=ID, kind="tune"))
    other = ID[:-1] + "d"
    out, err = told(capsys, "runs", "--of", other)
    assert out == "none of 1 runs is one of those\n"
    assert f"begins with '{other}': did you mean {ID}?" in err
    assert "begins with" not in told(capsys, "runs", "--of", ID, "--status", "failure")[1]
    assert call(["show", other]) == 4
    assert f"no run '{other}'" in capsys.readouterr().err
