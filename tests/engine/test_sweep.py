"""`--sweep` with real runs of the host runtime: a row per point with its values, and a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.csv_rows import csv_rows
from tests.rows import each_row
from tests.tiers import first_of

pytestmark = pytest.mark.host

SCRIPT = '[ "$SIZE" != 8 ] || { echo "torch.OutOfMemoryError: HIP out of memory. Tried to allocate"; exit 1; }\n'
SCRIPT += 'echo "performance: $((SIZE * 10)) tok"\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scripts/a").mkdir(parents=True)
    (tmp_path / "scripts/a/run.sh").write_text(SCRIPT)
    card = {"name": "a", "scripts": "scripts/a/run.sh", "args": "", "tags": ["t"], "runtimes": ["host"]}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    monkeypatch.delenv("MODEL_DIR", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    # to ask what is there is a third of a short run's time, or more
    monkeypatch.setattr("madlite.run.instrumentation.Instrumentation.probe", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def studies(place: Path) -> list[dict]:
    records = [json.loads(file.read_text()) for file in place.glob("madlite_runs/*/record.json")]
    return [one["study"] for one in records]


def test_each_point_has_its_row_and_the_table_marks_the_best(place, capfd) -> None:
    assert call(["run", "--tags", "a", "--sweep", "env.SIZE=1,3,8"]) == 3
    rows = csv_rows(place / "perf.csv")
    assert [(row["env.SIZE"], row["performance"], row["status"]) for row in rows] == [
        ("1", "10", "SUCCESS"),
        ("3", "30", "SUCCESS"),
        ("8", "", "FAILURE"),
    ]
    found = studies(place)
    assert len({one["id"] for one in found}) == 1 and {one["kind"] for one in found} == {"sweep"}
    assert sorted(one["varied"]["env.SIZE"] for one in found) == ["1", "3", "8"]
    out = capfd.readouterr().out
    assert "env.SIZE=3  30  tok  <- best" in out and "env.SIZE=8   -  FAILURE" in out
    assert call(["runs", "--of", found[0]["id"]]) == 0
    listed = capfd.readouterr().out
    assert listed.count("env.SIZE=") >= 3
    assert call(["run", "--tags", "a"]) == 0, "a run of no study comes after it"
    capfd.readouterr()
    assert call(["runs", "--of", "last"]) == 0
    assert capfd.readouterr().out == listed


def test_there_is_no_last_study_where_no_run_is_of_one(place, capfd) -> None:
    assert call(["runs", "--of", "last"]) == 4
    assert capfd.readouterr().err.startswith("error: study last: there are not so many in madlite_runs\n hint: ")


def test_points_are_repeated_in_turns(place, capfd) -> None:
    assert call(["run", "--tags", "a", "--sweep", "env.SIZE=1,3", "--repeat", "2"]) == 0
    rows = csv_rows(place / "perf.csv")
    assert [row["env.SIZE"] for row in rows] == ["1", "3", "1", "3"]
    found = studies(place)
    assert sorted((one["varied"]["env.SIZE"], one["index"]) for one in found if not one["warm_up"]) == [
        *[("1", 1), ("1", 2)],
        *[("3", 1), ("3", 2)],
    ]
    assert "env.SIZE=3" in capfd.readouterr().out


@pytest.mark.parametrize("more", first_of([(), ("--repeat", "2"), ("--parallel", "2")], 1))
def test_a_point_that_cannot_be_planned_is_a_failed_run_and_the_others_run(place, capfd, monkeypatch, more) -> None:
    monkeypatch.setenv("SIZE", "3")
    assert call(["run", "--tags", "a", "--sweep", "timeout_s=50,soon,60", *more]) == 3
    out = capfd.readouterr().out
    assert "FAILURE a [prepare_failed] --sweep timeout_s=soon: --set timeout_s=soon: timeout_s takes a number" in out
    times = 2 if "--repeat" in more else 1
    ends = sorted((row["timeout_s"], row["performance"], row["status"]) for row in csv_rows(place / "perf.csv"))
    assert [end for end in ends if end[0] != "soon"] == sorted([(t, "30", "SUCCESS") for t in ("50", "60")] * times)
    assert {end for end in ends if end[0] == "soon"} == {("soon", "", "FAILURE")}
    assert "timeout_s=soon   -  FAILURE prepare_failed" in out


@each_row(
    ("words", "message"),
    [
        (["--sweep", "env.SIZE"], "is not KEY=A,B"),
        (["--sweep", "nonsense=1,2"], "--sweep nonsense=1: "),
        (["--sweep", "env.SIZE=1,2", "--set", "env.SIZE=3"], "--set env.SIZE beside --sweep"),
        (["--sweep", "timeout=1,2", "--timeout", "5"], "--timeout beside --sweep"),
        (["--sweep", "until=1%,2%", "--until", "3%"], "--until beside --sweep"),
        (["--sweep", "image=x,y", "--image", "z"], "--image beside --sweep"),
        (["--tags", "a:mbs=4", "--sweep", "micro_batch=1,2"], ":mbs of tag a:mbs=4 beside --sweep"),
        (["--zip"], "--zip without --sweep"),
        (["--sweep", "env.SIZE=1,2", "--skip-model-run"], "--skip-model-run beside --sweep"),
    ],
)
def test_nonsense_is_one_sentence_before_anything_runs(place, capfd, words, message) -> None:
    assert call(["run", "--tags", "a", *words]) == 4
    error = capfd.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (place / "perf.csv").exists()


BROKEN = "echo \"ModuleNotFoundError: No module named 'nosuch'\"; exit 1\n"


def test_a_broken_card_ends_no_sweep_of_other_cards(place, capfd) -> None:
    for name in ("b", "c", "z"):
        (place / f"scripts/{name}").mkdir()
        (place / f"scripts/{name}/run.sh").write_text(SCRIPT if name == "z" else BROKEN)
    (place / "scripts/a/run.sh").write_text(BROKEN)
    cards = [{"name": name, "scripts": f"scripts/{name}/run.sh", "runtimes": ["host"]} for name in "abcz"]
    (place / "models.json").write_text(json.dumps(cards))
    assert call(["run", "--tags", "a,b,c,z", "--sweep", "env.SIZE=1,2"]) == 3
    assert [row["status"] for row in csv_rows(place / "perf.csv") if row["model"] == "z"] == ["SUCCESS"] * 2


@pytest.mark.parametrize(
    ("script", "words", "ran"),
    [
        (BROKEN, [], 3),
        (BROKEN, ["--keep-going"], 5),
        (BROKEN.replace("nosuch", "no$SIZE"), [], 5),
        (SCRIPT.replace("!= 8", "= 8"), [], 5),  # memory is what a smaller point may have
        (f'[ "$SIZE" = 2 ] || {{ {BROKEN.strip()}; }}\n{SCRIPT}', [], 5),
    ],
)
def test_three_first_runs_with_one_error_end_the_sweep(place, capfd, script, words, ran) -> None:
    (place / "scripts/a/run.sh").write_text(script)
    assert call(["run", "--tags", "a", "--sweep", "env.SIZE=1,2,3,4,5", *words]) == 3
    assert len(csv_rows(place / "perf.csv")) == ran
    printed = "".join(capfd.readouterr())
    assert ("failed with the same error before a step" in printed) is (ran == 3)
    if ran == 3:
        assert "No module named 'nosuch'; --keep-going" in printed and "never started: a (2 runs)" in printed
