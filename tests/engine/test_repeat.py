"""`madlite run --repeat`: whole commands, on the host and in real containers."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.engine.checkout import Checkout, end
from tests.engine_fixture import spare_given

# prints what the cache has, leaves a kernel of its own in it, and a number that grows with each run of the folder
COUNTS = """cache=$TORCHINDUCTOR_CACHE_DIR
echo "cache has: $(ls "$cache")."
touch "$cache/$MAD_MODEL_NAME"
echo x >> ../count
echo "performance: $(wc -l < ../count) samples/s"
"""
# the first two runs of the folder end, the third one waits
THIRD_WAITS = COUNTS + '[ "$(wc -l < ../count)" = 3 ] && echo begun $$ && sleep 300\nexit 0\n'


@pytest.fixture
def checkout(checkout: Checkout) -> Checkout:
    checkout.name_dockerfile(f"own{os.getpid()}")
    return checkout


def records(checkout: Checkout) -> list[dict]:
    """Records of results in the order in which they began, by their numbers."""
    found = [one for one in checkout.records() if not one["study"]["warm_up"]]
    return sorted(found, key=lambda one: float(one["metrics"][0]["value"]) if one["metrics"] else 1e9)


def log_of(checkout: Checkout, record: dict) -> str:
    return (checkout.folder / "madlite_runs" / record["id"] / "run.log").read_text()


def caches_left(checkout: Checkout) -> list[str]:
    return [str(path) for path in checkout.folder.glob("madlite_runs/study-*/*") if path.name != "study.json"]


def test_two_cards_in_turns_with_caches_that_their_study_warmed(checkout: Checkout):
    for name in ("one", "two"):
        checkout.card(name, COUNTS)
    done = checkout.run("--tags", "one,two", "--repeat", "2", "--summary-output", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["model"], row["performance"]) for row in checkout.rows] == [
        ("one", "3"), ("two", "4"), ("one", "5"), ("two", "6")
    ], "1 and 2 are the warm-ups'"  # fmt: skip
    found = records(checkout)
    studies = [one["study"] for one in found]
    assert [(one["series"], one["index"]) for one in studies] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert {one["caches"] for one in found} == {"warm"} and len({one["id"] for one in studies}) == 1
    said = [log_of(checkout, one) for one in found]
    assert ["cache has: one." in log or "cache has: two." in log for log in said] == [True] * 4
    warm_ups = [one for one in checkout.records() if one["study"]["warm_up"]]
    assert ["cache has: ." in log_of(checkout, one) for one in warm_ups] == [True, True], "nobody else's"
    assert [(one["rows"], one["caches"], one["study"]["index"]) for one in warm_ups] == [(None, "cold", None)] * 2
    line = "mean 4 (2 runs are too few for an interval: --repeat 5), median 4, 3 to 5, between-run CV 35.4 %"
    assert f"samples/s: {line}" in done.stdout and "2 of 2 runs, caches warm" in done.stdout
    told = json.loads((checkout.folder / "summary.json").read_text())
    assert [one["metrics"][0]["values"] for one in told["study"]["series"]] == [[3.0, 5.0], [4.0, 6.0]]
    assert len(told["run_phase"]["successful_runs"]) == 4
    (file,) = checkout.folder.glob("madlite_runs/study-*/study.json")
    assert json.loads(file.read_text()) == told["study"] and caches_left(checkout) == []
    listed = checkout.madlite("runs", "--of", studies[0]["id"]).stdout
    assert line in listed and listed.count("SUCCESS, warm-up") == 2
    checkout.assert_nothing_left()


def test_cold_runs_find_nothing_and_neither_does_another_study(checkout: Checkout):
    checkout.card("one", COUNTS)
    for words in (("--cold", "--repeat", "2"), ("--repeat", "1")):
        done = checkout.run("--tags", "one", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    every = checkout.records()
    first = [one for one in every if one["caches"] == "cold"]
    assert len(first) == 3 and all("cache has: ." in log_of(checkout, one) for one in first), "two, and a warm-up"
    assert [one["study"]["warm_up"] for one in every].count(True) == 1 and len(checkout.rows) == 3
    assert caches_left(checkout) == [] and "of one run: no interval" in done.stdout
    checkout.assert_nothing_left()


@pytest.mark.engine
def test_a_manifest_is_repeated_and_an_image_is_built_anew_once(tmp_path, engine, base_image):
    checkout = Checkout(tmp_path / "mad", "docker", engine)
    checkout.name_dockerfile(f"own{os.getpid()}")
    checkout.card("one", COUNTS)
    try:
        done = checkout.run("--tags", "one", "--repeat", "2", "--clean-docker-cache")
        assert done.returncode == 0, done.stdout + done.stderr
        plans = [json.loads(path.read_text()) for path in checkout.folder.glob("madlite_runs/*/plan.json")]
        fresh = [(one["study"]["warm_up"], one["image"]["no_cache"]) for one in plans]
        assert sorted(fresh) == [(False, False), (False, False), (True, True)]
        manifest = json.loads((checkout.folder / "build_manifest.json").read_text())
        assert len(manifest["built_images"]) == len(manifest["built_models"]) == 1
        done = checkout.run("--manifest-file", "build_manifest.json", "--repeat", "2")
        assert done.returncode == 0 and "2 of 2 runs, caches warm" in done.stdout, done.stdout + done.stderr
        assert [row["performance"] for row in checkout.rows] == ["2", "3", "5", "6"]
    finally:
        spare_given(engine, tmp_path)


def test_a_warm_up_that_fails_ends_the_study_with_its_cause(on_host: Checkout):
    on_host.card("one", COUNTS)
    on_host.card("two", "echo no; exit 7\n")
    done = on_host.run("--tags", "one", "two", "--repeat", "3", "--summary-output", "summary.json")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "FAILURE two [exit_code]" in done.stdout and "never started: one (3 runs), two (3 runs)" in done.stdout
    assert "the warm-up failed: two; nothing was repeated" in done.stdout
    assert not (on_host.folder / "perf.csv").exists() and caches_left(on_host) == []
    told = json.loads((on_host.folder / "summary.json").read_text())
    assert not told["overall_success"] and told["study"]["failed_warm_ups"] == ["two"]
    assert "the warm-up failed: two; nothing was repeated" in on_host.madlite("runs", "--of", "last").stdout


def test_a_point_of_a_sweep_whose_warm_up_fails_is_left_out_and_the_others_are_repeated(on_host: Checkout):
    on_host.card("one", '[ "$A" = 2 ] && [ ! -e ../mended ] && exit 4; echo "performance: $A samples/s"\n')
    words = ("--tags", "one", "--sweep", "env.A=1,2,3", "--repeat", "2", "--summary-output", "summary.json")
    done = on_host.run(*words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert sorted(row["performance"] for row in on_host.rows) == ["1", "1", "3", "3"]
    assert "the warm-up failed: one (env.A=2); its runs were not started" in done.stdout
    assert "never started: one (2 runs)" in done.stdout and "failed: one (exit_code)" in done.stdout
    told = json.loads((on_host.folder / "summary.json").read_text())
    assert not told["overall_success"] and told["study"]["failed_warm_ups"] == ["one (env.A=2)"]
    listed = on_host.madlite("runs", "--of", "last")
    assert listed.returncode == 0 and listed.stdout.count(", warm-up") == 3, listed.stdout + listed.stderr
    assert "the warm-up failed: one (env.A=2); its runs were not started" in listed.stdout
    (on_host.folder / "mended").touch()
    done = on_host.run(*words, "--resume")
    assert done.returncode == 0 and caches_left(on_host) == [], done.stdout + done.stderr
    assert "the warm-up failed" not in on_host.madlite("runs", "--of", "last").stdout
    assert sorted(row["performance"] for row in on_host.rows) == ["1", "1", "2", "2", "3", "3"]


def test_a_run_that_fails_is_counted_and_the_others_go_on(on_host: Checkout):
    on_host.card("one", COUNTS + '[ "$(wc -l < ../count)" != 3 ] || exit 7\n')
    done = on_host.run("--tags", "one", "--repeat", "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert [row["status"] for row in on_host.rows] == ["SUCCESS", "FAILURE", "SUCCESS"]
    assert "one  (2 of 3 runs, 1 failed (exit_code), caches warm)" in done.stdout
    assert "mean 3 (2 runs are too few for an interval" in done.stdout, "of 2 and 4"


def test_ctrl_c_ends_the_study_with_the_statistics_of_what_is_done(on_host: Checkout):
    on_host.card("one", THIRD_WAITS)
    started = on_host.start("--tags", "one", "--repeat", "4")
    on_host.wait_for("begun")
    code, out = end(started, signal.SIGINT)
    assert code == 130, out
    assert [row["status"] for row in on_host.rows] == ["SUCCESS", "FAILURE"]
    assert "one  (1 of 4 runs, 1 failed (interrupted), 2 not started, caches warm)" in out
    assert "samples/s: 2, of one run: no interval" in out and "never started: one (2 runs)" in out
    assert caches_left(on_host) == []
    on_host.assert_nothing_left()


def test_a_kill_loses_no_row_and_clean_removes_the_caches(on_host: Checkout):
    on_host.card("one", THIRD_WAITS)
    started = on_host.start("--tags", "one", "--repeat", "3")
    on_host.wait_for("begun")
    end(started, signal.SIGKILL)
    assert [row["performance"] for row in on_host.rows] == ["2"] and caches_left(on_host)
    study = next(one["study"]["id"] for one in on_host.records())
    said = on_host.madlite("runs").stderr
    assert f"study {study} was cut off and its caches are left. madlite clean --yes removes them" in said
    assert "1 run of an earlier" in said
    assert f"study     {study}  its caches, " in on_host.madlite("clean").stdout
    cleaned = on_host.madlite("clean", "--yes")
    assert cleaned.returncode == 0 and f"removed study {study}" in cleaned.stdout, cleaned.stdout
    assert not list(on_host.folder.glob("madlite_runs/study-*"))
    assert "nothing is left behind" in on_host.madlite("clean").stdout
    on_host.assert_nothing_left()


def test_a_plan_file_is_repeated_too_and_a_dry_run_touches_nothing(on_host: Checkout):
    on_host.card("one", COUNTS)
    assert on_host.madlite("plan", "--tags", "one", "--runtime", "host", "-o", "one.json").returncode == 0
    done = on_host.madlite("run", "--plan", "one.json", "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["performance"] for row in on_host.rows] == ["2", "3"] and "2 of 2 runs, caches warm" in done.stdout
    before = sorted(on_host.folder.glob("madlite_runs/*"))
    dry = on_host.run("--tags", "one", "--repeat", "2", "--dry-run")
    assert "/caches/series-1/inductor" in dry.stdout and sorted(on_host.folder.glob("madlite_runs/*")) == before


def test_what_does_not_go_together_is_refused_in_a_sentence(on_host: Checkout):
    on_host.card("one", COUNTS)
    for words, said in {
        ("--repeat", "0"): "invalid value for '--repeat': 0",
        ("--repeat", "x"): "invalid value for '--repeat': 'x' is not a valid whole number",
        ("--cold",): "--cold without --repeat",
        ("--settle-timeout", "3"): "--settle-timeout without --settle",
        ("--settle", "one"): "--settle one: it is no temperature",
        ("--repeat", "2", "--keep-alive"): "--keep-alive beside --repeat",
        ("--repeat", "2", "--skip-model-run"): "--skip-model-run beside --repeat",
    }.items():
        done = on_host.run("--tags", "one", *words)
        assert (done.returncode, said in done.stderr, " hint: " in done.stderr) == (4, True, True), (words, done.stderr)
    assert not (on_host.folder / "madlite_runs").exists()


def test_a_run_by_itself_says_that_it_has_the_user_s_caches_and_settles_where_it_can(on_host: Checkout):
    on_host.card("one", "echo performance: 1 x\n")
    done = on_host.run("--tags", "one", "--settle")
    assert done.returncode == 0 and "note: --settle has no effect: nothing here reports" in done.stdout, done.stderr
    assert on_host.records()[0]["caches"] == "user" and on_host.records()[0]["study"] is None
    shown = on_host.madlite("show", "last", "--all").stdout
    assert "the user's: whatever they hold" in shown
