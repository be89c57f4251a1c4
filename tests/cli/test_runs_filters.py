"""`runs` with filters, columns, order and groups: which runs are listed, and what of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.cli.arguments import SINCE, UNTIL
from madlite.cli.main import call
from madlite.model import Card, ImageUsed, Machine, Metric, Place, Provenance, Status, Study, Variant
from madlite.reports import listing
from madlite.reports.listing import COLUMNS, ordered
from madlite.reports.runs import list_runs
from madlite.reports.series_key import FACT_GROUPS, FACT_NAMES, record_facts
from tests.cli.stored_runs import good, store
from tests.rows import each_row


def run(folder: Path, day: int, number: float | None, *, suspect: tuple[str, ...] = (), **changes: object) -> str:
    """Leave a run of 2 November and later with a number, or a failure; return its id."""
    name = f"202611{day:02}T120000-a-0000{day:02}"
    metric = Metric(metric="tps", text=f"{number:,.1f}" if number else "", status=Status.SUCCESS, value=number)
    provenance = Provenance(gpu={"driver": "6.12" if day > 3 else "6.10.5"}, environment={"NCCL_DEBUG": "INFO"})
    ended = good(
        name,
        f"2026-11-{day:02}T12:00:00+00:00",
        metrics=(metric,) if number else (),
        status=Status.SUCCESS if number else Status.FAILURE,
        suspect=suspect,
        provenance=provenance,
        image=ImageUsed(ref="rocm/x:1", digest="sha256:" + "ab"[day > 3] * 64),
    )
    common = {
        "machine": Machine(device="MI300X"),
        "place": Place(gpus_per_node=8),
        "variant": Variant(model="m", mode="pretrain", precision="BF16", seq_len=4096),
    }
    store(folder, name, ended, **{**common, **changes})
    return name


def five_runs(folder: Path) -> Path:
    for day, number in ((2, 1002.0), (3, 998.0), (4, 1000.0), (5, None)):
        run(folder, day, number, study=Study(id="s1", kind="repeat"), batch="b1")
    llama = Card(name="llama", root=folder, source="x")
    run(folder, 6, 95.5, card=llama, machine=Machine(device="H200"), place=Place(gpus_per_node=4))
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return five_runs(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return five_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def same_place(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same runs for every test that only reads them."""
    monkeypatch.chdir(made)
    return made


def said(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert call(["runs", *args]) == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def days(capsys: pytest.CaptureFixture[str], *args: str) -> list[int]:
    return [int(one["id"][6:8]) for one in json.loads(said(capsys, "--json", *args))]


@each_row(
    ("args", "found"),
    [
        (["--where", "device=MI300X"], [2, 3, 4, 5]),
        (["--where", "device=mi300x", "--where", "gpus=8", "--where", "precision=bf16"], [2, 3, 4, 5]),
        (["--where", "device=H200", "--where", "device=MI300X"], [2, 3, 4, 5, 6]),
        (["--where", "card=llama"], [6]),
        (["--where", "model=llama"], [6]),
        (["--where", "gpu driver=6.12"], [4, 5, 6]),
        (["--where", "gpu-driver=6.12", "--where", "status=SUCCESS"], [4, 6]),
        (["--where", "env NCCL_DEBUG=INFO"], [2, 3, 4, 5, 6]),
        (["--where", f"image_digest=sha256:{'a' * 64}"], [2, 3]),
        (["--where", "performance=1,000.0"], [4]),
        (["--where", "study="], [6]),
        (["--where", "mode=finetune"], []),
        (["--since", "2026-11-04"], [4, 5, 6]),
        (["--until", "2026-11-04"], [2, 3, 4]),
        (["--until", "2026-11-04T11:59"], [2, 3]),
        (["--since", "2026-11-03", "--until", "2026-11-04 12:00:01", "--status", "success"], [3, 4]),
        (["--where", "device=MI300X", "--limit", "2"], [4, 5]),
        (["--since", "2026-11-30"], []),
        (["--sort", "performance"], [6, 3, 4, 2, 5]),
        (["--sort", "-performance"], [2, 4, 3, 6, 5]),
        (["--sort", "-when"], [6, 5, 4, 3, 2]),
        (["--sort", "card,-when"], [6, 5, 4, 3, 2]),
        (["--sort", "-gpu driver,when"], [4, 5, 6, 2, 3]),
        (["--sort", "-performance", "--limit", "2"], [6, 5]),
    ],
)
def test_runs_are_chosen_and_put_in_order(same_place, capsys, args, found):
    assert days(capsys, *args) == found


def test_times_are_counted_back_from_now_and_a_day_ends_with_until():
    before = datetime.now(timezone.utc)
    ago = SINCE.convert("2d", None, None)
    assert before - timedelta(days=2) <= ago <= datetime.now(timezone.utc) - timedelta(days=2)
    assert SINCE.convert("2026-11-01", None, None) == datetime(2026, 11, 1, tzinfo=timezone.utc)
    assert UNTIL.convert("2026-11-01", None, None) == datetime(2026, 11, 2, tzinfo=timezone.utc)
    assert UNTIL.convert("2026-11-01 08:30", None, None) == datetime(2026, 11, 1, 8, 30, tzinfo=timezone.utc)


@each_row("text", ["", "yesterday", "2026-02-30", "2026-11-01T25:00", "2y", "999999w", "٢d"])
def test_what_is_no_time_is_refused(same_place, capsys, text):
    assert f"{text!r} is no time: write 2d, 12h" in said(capsys, "--since", text, code=4)


def test_columns_are_those_that_are_named(same_place, capsys):
    lines = said(capsys, "--columns", "id,performance,gpu driver,status", "--limit", "2").splitlines()
    assert lines[0].split("  ")[0] == "ID" and lines[0].split()[-2:] == ["DRIVER", "STATUS"]
    assert lines[1].split() == ["20261105T120000-a-000005", "-", "6.12", "FAILURE"]
    assert lines[2].split() == ["20261106T120000-a-000006", "95.5", "6.12", "SUCCESS"]
    (told,) = json.loads(said(capsys, "--json", "--columns", "n_gpus,image digest,suspect", "--limit", "1"))
    assert told == {"n_gpus": 4, "image digest": f"sha256:{'b' * 64}", "suspect": []}


def test_every_field_of_the_list_is_a_column_and_every_fact_has_a_name(place):
    run(place, 7, 1.0, settings={"a": 1}, args="--x 1")
    for one in list_runs(place / "madlite_runs"):
        assert {*listing.as_json(one)} == {*COLUMNS}
        assert all(name in FACT_NAMES or name.startswith(FACT_GROUPS) for name in record_facts(one.record))


@each_row(
    ("args", "message"),
    [
        (["--columns", "id,perfomance"], "--columns 'perfomance': no run has a value of that name"),
        (["--columns", "id,perfomance"], "did you mean performance?"),
        (["--sort", "-whn"], "did you mean when?"),
        (["--where", "devise=H200"], "did you mean device?"),
        (["--where", "imagedigest=x"], "did you mean image digest?"),
        (["--where", "=x"], "has no value"),
        (["--where", "device"], "--where 'device' has no value"),
        (["--where", "\x1b[2J=x"], "no run has a value of that name"),
        (["--group", "stduy"], "stduy"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(same_place, capsys, args, message):
    text = said(capsys, *args, code=4)
    assert message in text and "\x1b" not in text


def test_a_fact_that_no_run_has_finds_none_and_is_named(same_place, capsys):
    text = said(capsys, "--where", "gpu drivr=6.12")
    assert "none of 5 runs is one of those" in text
    assert "no run here has 'gpu drivr'; did you mean gpu driver?" in text
    assert "no run here has 'env XLA_FLAGS'" in said(capsys, "--columns", "id,env XLA_FLAGS")


def test_groups_have_a_heading_with_their_statistics(place, capsys):
    run(place, 7, 1100.0, study=Study(id="s1", kind="repeat"), suspect=("flat loss",))
    run(place, 8, 5.0, study=Study(id="s1", kind="repeat", warm_up=True))
    lines = said(capsys, "--group", "study").splitlines()
    # by hand: 998, 1000, 1002, 1100 have the mean 1025 and the deviations -27, -25, -23, 75:
    # the standard deviation is sqrt((729 + 625 + 529 + 5625) / 3) = 50.03, 4.88 % of the mean
    heading = "repeat s1: n 4, median 1,001 tps, CV 4.88 % between runs, 998..1,100, 1 failed, 1 suspect"
    assert lines[0].startswith("ID ") and lines[1] == heading
    assert [line.split("-")[0] for line in lines[2:8]] == [f"202611{day:02}T120000" for day in (2, 3, 4, 5, 7, 8)]
    assert lines[8] == "no study: n 1, median 95.5 tps" and lines[9].startswith("20261106")


def test_a_group_of_several_series_has_a_line_for_each(place, capsys):
    run(place, 7, 50.0, variant=Variant(model="m", mode="pretrain", precision="FP8"))
    lines = said(capsys, "--group", "card", "--columns", "id").splitlines()
    assert lines[1] == "card tiny: 5 runs"
    assert lines[2].startswith("  tiny script pretrain BF16 seq 4096 8xMI300X tps: n 3, median 1,000 tps")
    assert lines[3] == "  tiny script pretrain FP8 8xMI300X tps: n 1, median 50 tps"
    text = said(capsys, "--group", "series", "--columns", "id")
    assert text.count("series tiny") == 2 and "998..1,002, 1 failed" in text


def test_groups_for_programs(same_place, capsys):
    found = json.loads(said(capsys, "--group", "batch", "--json", "--columns", "id"))
    assert [(one["by"], one["name"], len(one["runs"])) for one in found] == [("batch", "b1", 4), ("batch", "", 1)]
    (statistics,) = found[0]["series"]
    assert statistics["series"]["model"] == "tiny" and statistics["series"]["metric"] == "tps"
    assert [statistics[name] for name in ("n", "median", "min", "max", "failed")] == [3, 1000.0, 998.0, 1002.0, 1]
    assert statistics["cv"] == pytest.approx(0.002), "deviations of 2, 0 and -2 around 1000"
    assert found[0]["runs"][0] == {"id": "20261102T120000-a-000002"}
    assert json.loads(said(capsys, "--group", "card", "--json", "--status", "running")) == []


def test_what_goes_on_or_is_not_as_madlite_left_it_counts_as_nothing(place, capsys):
    store(place, "20261109T120000-a-000009", study=Study(id="s2", kind="repeat"))
    folder = place / "madlite_runs/20261106T120000-a-000006"
    (folder / "record.json").write_text((folder / "record.json").read_text() + "\n")
    text = said(capsys, "--group", "study", "--columns", "id,reason")
    assert "repeat s2: 1 run\n" in text


def test_a_name_of_a_fact_and_its_value_steer_no_terminal(place, capsys):
    run(place, 7, 1.0, settings={"\x1b[2J": "\x1b]0;x\x07"})
    text = said(capsys, "--columns", "id,setting \x1b[2J")
    assert "\x1b" not in text and "\x07" not in text


def test_runs_without_a_value_come_last_in_either_direction(same_place):
    runs = list_runs(same_place / "madlite_runs")
    for descending in (False, True):
        assert ordered(runs, [("performance", descending)])[-1].state == "FAILURE"
    mixed = [replace(one, origin=text) for one, text in zip(runs, ("b", "10", "9", "", "a"), strict=True)]
    assert [one.origin for one in ordered(mixed, [("origin", False)])] == ["10", "9", "a", "b", ""]
