"""`compare`, `baseline`, `run --baseline`: what an engineer and a pipeline see."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.model import Card, Metric, Result, Status, Study
from madlite.reports.comparison import slowdowns
from madlite.reports.index import open_index
from madlite.reports.selectors import read_side, run_history
from tests.cli.stored_runs import good, store
from tests.csv_results import noisy, row, write
from tests.rows import each_row


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", [row(value) for value in noisy(5, 1)])
    write(tmp_path / "b.csv", [row(value, docker_image="rocm/pytorch:v2") for value in noisy(5, 2, 95)])
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(args) == code, capsys.readouterr()
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def stored(place: Path, number: float, second: int, **changes: object) -> str:
    metric = Metric(metric="tokens_per_s_per_gpu", text=str(number), status=Status.SUCCESS, value=number)
    name = f"20260102T0304{second:02}-a-0000{second:02}"
    store(place, name, good(name, f"2026-01-02T03:04:{second:02}+00:00", metrics=(metric,)), **changes)
    return name


def test_a_regression_is_told_with_what_differs_and_trips_its_gate(place, capsys):
    text = output(capsys, "compare", "a.csv", "b.csv", "--fail-on", "regression>3%", code=5)
    assert text.startswith("a.csv → b.csv")
    assert "regression (p 0.0079)" in text and "  image: rocm/pytorch:v1 → rocm/pytorch:v2" in text
    assert "failed regression>3%: llama bf16 8xgfx942 tokens_per_s_per_gpu: -" in text
    assert "a difference cannot be seen: seq_len" in text


def test_the_same_for_programs(place, capsys):
    found = json.loads(output(capsys, "compare", "a.csv", "b.csv", "--json", "--fail-on", "regression", code=5))
    (only,) = found["series"]
    assert (only["verdict"], only["base_runs"], only["new_runs"]) == ("regression", 5, 5)
    assert only["series"]["model"] == "llama" and only["ratio_low"] < only["ratio"] < only["ratio_high"] < 1
    assert found["failed_gates"][0]["gate"] == "regression"


def test_markdown_has_no_markup_of_the_data(place, capsys):
    write(place / "c.csv", [row(value, model="a|b<script>@all") for value in noisy(5, 1)])
    text = output(capsys, "compare", "c.csv", "c.csv", "--markdown")
    assert "a\\|b\\<script\\>@\u200ball" in text and "⚪ no change" in text
    assert all(line.count(" | ") == 6 for line in text.splitlines() if line.startswith("| a"))


def test_junit_has_a_test_for_each_series(place, capsys):
    write(place / "c.csv", [row(1.0, model="x\x1b & <y>")])
    output(capsys, "compare", "c.csv", "c.csv", "--junit", "x.xml")
    suite = ElementTree.parse(place / "x.xml").getroot()[0]
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("1", "0", "1")
    output(capsys, "compare", "a.csv", "b.csv", "--junit", "y.xml", "--fail-on", "regression", code=5)
    suite = ElementTree.parse(place / "y.xml").getroot()[0]
    assert suite[0].find("failure") is not None


def test_two_values_of_a_column(place, capsys):
    both = [*[row(v) for v in noisy(5, 1)], *[row(v, docker_image="rocm/pytorch:v2") for v in noisy(5, 2, 95)]]
    write(place / "c.csv", both)
    text = output(capsys, "compare", "c.csv", "--by", "docker_image")
    assert text.startswith("docker_image=rocm/pytorch:v1 → docker_image=rocm/pytorch:v2") and "regression" in text
    text = output(capsys, "compare", "c.csv", "rocm/pytorch:v2,rocm/pytorch:v1", "--by", "docker_image")
    assert "improvement" in text
    assert "has no docker_image 'v9'" in output(capsys, "compare", "c.csv", "v9,v8", "--by", "docker_image", code=4)
    assert "did you mean docker_image" in output(capsys, "compare", "c.csv", "--by", "docker_imag", code=4)


def test_runs_by_last_and_id_and_filter(place, capsys):
    for second, number in enumerate((100.0, 101.0, 99.0, 100.5, 90.0), 1):
        stored(place, number, second)
    text = output(capsys, "compare", "last~1", "last")
    assert "100.5" in text and "90" in text and "insufficient data: 1 against 1 run" in text
    assert "20260102T030401-a-000001" not in text
    assert "-10.4 %" in text
    text = output(capsys, "compare", "000001", "last", "--fail-on", "regression>3%", code=5)
    assert "failed regression>3%: tiny" in text and "undecided: 3 more runs of each are needed" in text
    assert "failed" not in output(
        capsys, "compare", "000001", "last", "--fail-on", "regression>3%", "--allow-undecided", code=0
    )
    text = output(capsys, "compare", "model=tiny", "model=tiny")
    assert "5/5" in text and "5 of the runs are on both sides" in text


def test_runs_of_a_baseline_that_the_new_side_has_as_well_do_not_hide_a_regression(place, capsys):
    for second, number in enumerate((100.0, 101.0, 99.0, 100.5, 99.5), 1):
        stored(place, number, second)
    output(capsys, "baseline", "set", "good", "model=tiny")
    for second, number in enumerate((90.0, 91.0, 89.0, 90.5, 89.5), 11):
        stored(place, number, second)
    text = output(capsys, "compare", "good", "model=tiny", "--fail-on", "regression>3%", code=5)
    assert "5/5" in text and "-10.0 %" in text and "where NEW has others, they count for BASE" in text


def test_a_suspect_run_is_not_believed(place, capsys):
    name = "20260102T030509-a-000099"
    metric = Metric(metric="tokens_per_s_per_gpu", text="50", status=Status.SUCCESS, value=50.0)
    for second, number in enumerate(noisy(5, 1), 1):
        stored(place, number, second)
    store(place, name, good(name, metrics=(metric,), suspect=("loss is flat",)))
    output(capsys, "baseline", "set", "b", "model=tiny")
    assert "suspicious (p 1): 2 of 12 runs are suspect" in output(capsys, "compare", "b", "model=tiny")


def test_what_a_bisect_ran_to_and_fro_is_no_noise(place):
    """Of a bisect over a change of 10 % the distance of neighbours is that change."""
    for second in range(8):
        study = Study(id="s", kind="bisect", varied={"image": "ab"[second % 2]}, series=1, index=1)
        stored(place, 100.0 + 10 * (second % 2), second, study=study)
    for second, number in enumerate((110.0, 110.5, 109.5, 110.2), 20):
        stored(place, number, second, study=Study(id="r", kind="repeat", series=1, index=second))
    runs = place / "madlite_runs"
    with open_index(runs) as index:
        (series,) = read_side("model=tiny", index, {}).series
        assert len(series.values) == 12
        assert list(run_history(index, ())(series)) == [110.0, 110.5, 109.5, 110.2]


def test_a_baseline_stays_when_its_file_is_gone(place, capsys):
    assert "baseline old: 1 series, 5 results of a.csv" in output(capsys, "baseline", "set", "old", "a.csv")
    (place / "a.csv").unlink()
    assert "baseline old → b.csv" in output(capsys, "compare", "old", "b.csv")
    listed = output(capsys, "baseline", "list").splitlines()
    assert listed[1].split()[0] == "old" and listed[1].endswith("a.csv")
    assert "there is a baseline 'old'" in output(capsys, "baseline", "set", "old", "b.csv", code=4)
    output(capsys, "baseline", "set", "old", "b.csv", "--force")
    output(capsys, "baseline", "drop", "old")
    assert "there is no baseline 'old'" in output(capsys, "baseline", "drop", "old", code=4)


@each_row(
    ("args", "message"),
    [
        (("nothing.csv", "a.csv"), "'nothing.csv' is no file, run, study or baseline"),
        (("a.csv",), "'last' is no file, run, study or baseline"),
        (("", "a.csv"), "'' is no file, run, study or baseline"),
        (("a.csv", "b.csv", "--where", "device"), "--where 'device' has no value"),
        (("a.csv", "b.csv", "--where", "device=MI355X"), "a.csv has no results with device=MI355X"),
        (("a.csv", "b.csv", "--noise", "3"), "is no percentage: write 1%, 0.5%"),
        (("a.csv", "b.csv", "--fail-on", "regresion"), "did you mean regression?"),
        (("a.csv", "b.csv", "--better", "score"), "--better 'score' names no direction"),
        (("a.csv", "b.csv", "--across", "micro"), "--across 'micro' is no dimension"),
        (("a.csv", "b.csv", "--where", "foo="), "--where 'foo=' has no value"),
        (("a.csv", "b.csv", "--where", "device=x", "--where", "device=y"), "--where names 'device' twice"),
        (("a.csv", "b.csv", "--alpha", "nan"), "is no finite number"),
        (("baseline:x", "a.csv"), "is no file, run, study or baseline"),
        (("last~3", "a.csv"), "is no file, run, study or baseline"),
    ],
)
def test_what_cannot_be_understood_is_one_sentence(place, capsys, args, message):
    assert message in output(capsys, "compare", *args, code=4)


def test_a_plan_saved_in_the_working_folder_makes_it_no_run(place, capsys):
    for second in range(1, 6):
        stored(place, 100.0 + second, second)
    before = output(capsys, "compare", ".", "b.csv")
    (place / "plan.json").write_text("{}")
    assert output(capsys, "compare", ".", "b.csv") == before


def test_a_baseline_has_no_secret_and_can_be_filtered_by_what_ran(place, capsys):
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    write(place / "c.csv", [row(value, args=f"--token={token}") for value in noisy(5, 1)])
    output(capsys, "baseline", "set", "c", "c.csv")
    assert token not in (place / "madlite_runs/baselines/c.json").read_text()
    assert "no change" in output(capsys, "compare", "c", "c.csv", "--where", "docker_image=rocm/pytorch:v1")
    assert "has no results" in output(capsys, "compare", "c", "c.csv", "--where", "docker_image=v9", code=4)


def test_a_baseline_of_other_dimensions_is_refused_in_a_sentence(place, capsys):
    output(capsys, "baseline", "set", "old", "a.csv")
    file = place / "madlite_runs/baselines/old.json"
    saved = json.loads(file.read_text())
    key = saved["series"][0]["key"]
    for other in ([*key, "x"], key[:-1]):
        saved["series"][0]["key"] = other
        file.write_text(json.dumps(saved))
        text = output(capsys, "compare", "old", "b.csv", code=4)
        assert "old.json is a baseline of another version of madlite" in text and "madlite baseline drop old" in text


def test_a_damaged_baseline_is_named(place, capsys):
    output(capsys, "baseline", "set", "old", "a.csv")
    (place / "madlite_runs/baselines/old.json").write_text("{")
    assert "old.json is no baseline" in output(capsys, "compare", "old", "b.csv", code=4)
    assert "old.json is no baseline" in output(capsys, "baseline", "list")


@pytest.mark.host
def test_a_run_is_compared_when_it_ends_and_its_row_has_the_change(place, capfd):
    script = 'echo "performance: ${NUMBER:-100} samples_per_second"\n'
    (place / "run.sh").write_text(script)
    card = {"name": "one", "url": "", "scripts": "run.sh", "n_gpus": "1", "owner": "x", "tags": [], "args": ""}
    (place / "models.json").write_text(json.dumps([{**card, "training_precision": "bf16"}]))
    output(capfd, "run", "--tags", "one", "--runtime", "host")
    output(capfd, "baseline", "set", "first", "last")
    (place / "run.sh").write_text(script.replace("100", "90"))
    text = output(
        capfd, "run", "--tags", "one", "--runtime", "host",
        "--baseline", "first", "--fail-on", "regression>3%", code=5,
    )  # fmt: skip
    assert "baseline first → this command" in text and "-10.0 %" in text and "script: " in text
    warning = "1 run against 1 of baseline first cannot decide, and undecided is exit code 5: a baseline of 5 runs"
    assert warning in text
    assert "undecided: 3 more runs of each are needed" in text
    rows = (place / "perf.csv").read_text().splitlines()
    at = rows[0].split(",").index("relative_change")
    assert [line.split(",")[at] for line in rows[1:]] == ["", "-10.00"]
    assert "--fail-on without --baseline" in output(capfd, "run", "--tags", "one", "--fail-on", "missing", code=4)
    unset = ("--baseline", "", "--fail-on", "regression>3%")  # a variable that is not there
    assert "--fail-on without --baseline" in output(capfd, "run", "--tags", "one", *unset, code=4)


def test_results_are_compared_without_the_baselines_runs_and_by_one_default(place, capsys):
    card = Card(name="tiny", root=place, source="a test")
    for second, number in enumerate(noisy(5, 1), 1):
        stored(place, number, second, batch="b1", card=card)
    output(capsys, "baseline", "set", "v1", "model=tiny")
    for second, number in enumerate(noisy(4, 2, 50), 11):
        stored(place, number, second, batch="b2", card=card)
    for second, number in enumerate(noisy(4, 3, 92), 21):
        stored(place, number, second, batch="b3", card=card)
    by_compare = output(capsys, "compare", "v1", "--fail-on", "regression>3%", code=5)
    assert "the newest batch or study (b3: 4 runs)" in by_compare and "5/4" in by_compare
    text = output(capsys, "report", "md", "--baseline", "v1")
    assert "compared with baseline v1: the newest batch or study (b3: 4 runs)" in text
    changed = next(part for part in by_compare.split() if re.fullmatch(r"-\d+\.\d+", part))
    assert f"{changed} %" in text and "regression" in text and "no change" not in text
    assert "compared with baseline v1" in output(capsys, "report", "md", "last", "--baseline", "v1")
    failed = Result(plan_id="f", status=Status.FAILURE, started="2027-01-01T00:00:00+00:00")
    store(place, "20270101T000000-f-000001", failed, batch="b4", card=card)
    assert "the newest batch or study (none of its runs has a number)" in output(capsys, "compare", "v1")


def test_a_study_is_named_as_for_runs_of(place, capsys):
    studies = ("20260102T030401-dddddd", "20260102T030500-bbbbbb")
    for n, number in enumerate((100.0, 102.0, 110.0, 112.0)):
        of = studies[n // 2]
        study = Study(id=of, kind="repeat", series=1, index=n % 2 + 1, count=2)
        stored(place, number, n + 1, study=study, batch=of)
    for name in (studies[0], studies[0][:17], "dddd", "study=last~1", "study=dddddd"):
        found = json.loads(output(capsys, "compare", name, "study=last", "--json"))
        assert [(line["base"], line["new"]) for line in found["series"]] == [(101.0, 111.0)], name
    both = f"{studies[0]}, {studies[1]}"
    assert f"'202601' is part of 2 studies and batches: {both}" in output(capsys, "compare", "202601", code=4)
    run = "20260102T030401-a-000001"
    told = output(capsys, "compare", "20260102T030401", code=4)  # else it would be one of its two runs
    assert f"is part of the id of run {run}, and of that of batch or study {studies[0]}" in told
    assert "study last~2: there are not so many in" in output(capsys, "compare", "study=last~2", code=4)
    assert "madlite_runs has 4 runs" in output(capsys, "compare", "last~99", "last", code=4)
    assert "2 of 2 runs" in output(capsys, "runs", "--of", "bbbb") and "2 of 2 runs" in output(capsys, "show", "bbbb")


def test_a_run_that_is_clearly_slower_than_those_before_it_is_told(place):
    usual = [stored(place, number, n) for n, number in enumerate((100.0, 101.0, 99.5, 100.5, 100.2), 1)]
    slow = stored(place, 83.0, 6)
    names = f"madlite show {usual[-1]} {slow} shows what differs"
    assert slowdowns(place, [slow]) == [f"tiny: -17.2 % against the last 5 runs of its series; {names}"]
    assert slowdowns(place, usual[-1:]) == [], "what came after it is no reason, and it is as the others"
    for number in (96.5, 130.0):  # 3.7 % less, and more
        assert slowdowns(place, [stored(place, number, 7)]) == []
    assert slowdowns(place, [stored(place, 83.0, 8), stored(place, 99.0, 9)]) == [], "not both are"


@pytest.mark.parametrize(
    ("numbers", "changes"),
    [
        ((100.0, 101.0, 99.5, 100.5), {}),  # four runs do not tell what is usual
        ((100.0, 130.0, 80.0, 110.0, 95.0), {}),  # nor do those that vary so
        ((100.0, 101.0, 99.5, 100.5, 100.2), {"args": "--other"}),  # another series
    ],
)
def test_a_slower_run_is_no_alarm_where_earlier_ones_do_not_tell(place, numbers, changes):
    for n, number in enumerate(numbers, 1):
        stored(place, number, n, **changes)
    assert slowdowns(place, [stored(place, 75.0, 9)]) == []
