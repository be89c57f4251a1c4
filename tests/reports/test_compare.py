"""Two sides of results: which change is one, how sure it is, and what is said where it cannot be."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from madlite.errors import UsageProblem
from madlite.model import Scalar, Status, Study, Variant
from madlite.reports.compare import (
    DEFAULTS,
    Report,
    Settings,
    Verdict,
    closing_notes,
    compare,
    noise_of,
    read_gates,
    runs_needed,
    trips,
)
from madlite.reports.series import Sample, Series, direction_of, group, of_record, of_row
from madlite.reports.series_key import DIMENSIONS
from madlite.store.folder import RunRows
from madlite.store.record import Record
from tests.csv_results import noisy, row
from tests.rows import each_row


def series(values, suspect: str = "", failed: int = 0, **dimensions: object) -> Series:
    known = {"model": "llama", "precision": "bf16", "device": "MI300X", "gpus": "8", "metric": "tokens_per_s_per_gpu"}
    key = tuple(str({**known, **dimensions}.get(name, "")) for name in DIMENSIONS)
    samples = tuple(Sample(value=value, suspect=suspect) for value in values)
    return Series(key=key, values=tuple(values), samples=samples, failed=failed, direction=direction_of(key[-1]))


def one(base, new, settings=DEFAULTS, **more):
    report = compare([base], [new], settings=settings, **more)
    assert len(report.comparisons) == 1
    return report.comparisons[0]


def test_five_clear_runs_a_side_are_a_regression():
    found = one(series([100, 101, 99, 100.5, 99.5]), series([97, 96.5, 97.5, 96, 97.2]))
    assert found.verdict is Verdict.REGRESSION
    assert found.ratio == pytest.approx(0.97) and found.change == pytest.approx(-0.03)
    assert found.p == pytest.approx(2 / 252)
    assert found.interval is not None and found.interval.low <= 0.97 <= found.interval.high


SECONDS = {"metric": "step_time_s"}  # of which less is better
LITTLE = [100.0, 100.1, 100.2, 100.3, 100.4], [100.5, 100.6, 100.7, 100.8, 100.9]  # significant, and below the least


@each_row(
    ("base", "new", "verdict", "reason", "change"),
    [
        (series([100, 101, 99]), series([90, 91, 89]), Verdict.INSUFFICIENT_DATA, "3 against 3 runs cannot be", -0.1),
        (series(LITTLE[0]), series(LITTLE[1]), Verdict.NO_CHANGE, "", 0.005),
        (series([100.0] * 6), series([100, 95, 94, 95, 95, 100.2]), Verdict.SUSPICIOUS, "not significant", -0.05),
        (series([100.0] * 5), series([90.0] * 5, suspect="flat"), Verdict.SUSPICIOUS, "5 of 10 runs are suspect", -0.1),
        (series([100.0] * 5), series([], failed=3), Verdict.INSUFFICIENT_DATA, "no number in new: 3 failed", None),
        (series([2.0, 2.01, 1.99, 2.02, 2.0], **SECONDS), series([1.9] * 5, **SECONDS), Verdict.IMPROVEMENT, "", 0.05),
    ],
    ids=["too few runs", "a small change", "not significant", "suspect runs", "no number", "less is better"],
)
def test_a_verdict_has_its_reason_and_its_change(base, new, verdict, reason, change):
    found = one(base, new)
    assert found.verdict is verdict and found.reason.startswith(reason)
    assert found.change == (change if change is None else pytest.approx(change, abs=0.001))


def test_a_metric_whose_direction_is_unknown_is_not_judged_but_can_be_told():
    base, new = series([1.0, 1.1, 1.2, 1.3, 1.4], metric="score"), series([2.0, 2.1, 2.2, 2.3, 2.4], metric="score")
    found = one(base, new)
    assert found.verdict is Verdict.SUSPICIOUS and "--better 'score=higher'" in found.reason
    assert one(base, new, Settings(better={"score": "lower"})).verdict is Verdict.REGRESSION


def test_numbers_are_never_compared_across_precision_sequence_or_gpu():
    base = [series([100.0] * 5, seq_len=4096)]
    for other in ({"precision": "fp8"}, {"seq_len": 8192}, {"device": "MI325X"}, {"metric": "tflops_per_gpu"}):
        report = compare(base, [series([100.0] * 5, **{"seq_len": 4096, **other})])
        assert not report.comparisons and report.only_base and report.only_new


def test_the_same_unknown_dimension_on_both_sides_is_the_nearest_partner():
    without, known = series([100.0] * 6), series([100.0], nodes="1")
    report = compare([without, known], [series([50.0] * 6), series([99.0], nodes="1")])
    assert [(one.base, one.new) for one in report.comparisons] == [(100.0, 50.0), (100.0, 99.0)]
    assert trips(report, read_gates(["regression>3%"]))[0].series.startswith("llama bf16 8xMI300X tokens_per_s")


def test_one_run_decides_against_no_number_of_runs():
    assert tripped("regression>3%", series(noisy(20, 1)), series([50.0])) == ["regression>3%"]
    assert one(series(noisy(20, 1)), series([50.0])).verdict is Verdict.INSUFFICIENT_DATA


def test_runs_that_failed_before_they_had_a_metric_are_failures_of_their_series():
    failed = series([], failed=3, metric="")
    report = compare([series([100.0] * 5)], [failed])
    assert (report.only_base, report.only_new) == ((), ())
    assert report.comparisons[0].reason == "no number in new: 3 failed"
    assert [t.gate for t in trips(report, read_gates(["failure"]))] == ["failure"]
    assert not compare([series([100.0] * 5)], [series([], failed=3, metric="", precision="fp8")]).comparisons


def test_a_significant_regression_trips_its_gate_also_where_a_run_is_suspect():
    base, new = series([100.0, 101, 99, 100.5, 99.5]), series([50.0, 51, 49, 50.5, 49.5], suspect="loss is flat")
    report = compare([base], [new])
    (trip,) = trips(report, read_gates(["regression>3%"]))
    assert report.comparisons[0].verdict is Verdict.SUSPICIOUS and trip.reason.endswith("5 of 10 runs are suspect")


def test_of_negative_numbers_less_is_less():
    lower = (
        series([-7.0, -7.1, -6.9, -7.2, -6.8], metric="loss"),
        series([-12.0, -12.1, -11.9, -12.2, -11.8], metric="loss"),
    )
    found = one(*lower)
    assert (found.verdict, found.ratio, found.interval) == (Verdict.IMPROVEMENT, None, None)
    assert found.change == pytest.approx(5 / 7)
    assert one(*lower, Settings(better={"loss": "higher"})).verdict is Verdict.REGRESSION
    assert one(series([0.0, 0.0, 1.0]), series([1.0] * 3)).reason == "the median of the base is 0"


def test_what_one_side_does_not_record_is_named():
    found = one(series([1.0], seq_len=4096, nodes=1), series([1.0])).pair.unknown
    assert found == (
        *("seq_len", "runtime", "args", "settings", "env", "nodes", "image digest", "script", "files of the script"),
        *("repositories", "packages", "gpu driver", "machine"),
    )


def point_of(kind: str, value: float, variant: Variant | None = None, **varied: Scalar) -> Series:
    """Return the series of a run of a study."""
    study = Study(id="s", kind=kind, varied=varied, series=1, index=1)
    rows = RunRows(path="perf.csv", cells=({"model": "m", "metric": "tps", "performance": str(value)},))
    record = Record(id="r", card="m", status=Status.SUCCESS, study=study, rows=rows, variant=variant)
    (found,) = group(of_record(record, ""))
    return found


def pairs_of(report: Report) -> list[tuple[float | None, float | None]]:
    return sorted((one.base, one.new) for one in report.comparisons)


def test_the_points_of_a_sweep_are_series_of_their_own():
    two = Variant(model="m", mode="pretrain", precision="BF16", micro_batch=2)
    low, high = (
        point_of("sweep", 100.0, fused="false", ac="none"),
        point_of("sweep", 200.0, two, micro_batch="2", ac="full"),
    )
    assert (low["varied"], high["varied"]) == ("ac=none, fused=false", "ac=full"), "the micro batch is a dimension"
    assert point_of("sweep", 1.0, micro_batch="2")["varied"] == "micro_batch=2", "not of a card with its own script"
    report = compare(
        [low, high], [point_of("sweep", 202.0, two, ac="full"), point_of("sweep", 101.0, ac="none", fused="false")]
    )
    assert pairs_of(report) == [(100.0, 101.0), (200.0, 202.0)]


def test_a_run_of_no_study_is_compared_with_each_point_of_a_sweep():
    plain = point_of("repeat", 100.0)
    assert plain["varied"] == ""
    points = [point_of("sweep", 100.0, fused="false"), point_of("sweep", 200.0, fused="true")]
    there, back = compare([plain], points), compare(points, [plain])
    assert pairs_of(there) == [(100.0, 100.0), (100.0, 200.0)] and pairs_of(back) == [(100.0, 100.0), (200.0, 100.0)]
    assert {one.name for one in there.comparisons} == {one.name for one in back.comparisons} == {
        "m fused=false tps", "m fused=true tps",
    }  # fmt: skip


def test_the_points_of_two_searches_that_differ_are_not_compared_with_a_default():
    base = [point_of("tune", 100.0), point_of("tune", 150.0, ac="none")]
    report = compare(base, [point_of("tune", 100.0), point_of("tune", 70.0, ac="full")])
    assert pairs_of(report) == [(100.0, 100.0)]
    assert [one["varied"] for one in (*report.only_base, *report.only_new)] == ["ac=none", "ac=full"]


def test_across_a_dimension_the_difference_is_said():
    report = compare([series([1.0], micro_batch=4)], [series([1.0], micro_batch=5)], across=["micro_batch"])
    assert [(d.name, d.values) for d in report.comparisons[0].differences] == [("micro_batch", (("4",), ("5",)))]


def test_runs_without_a_number_are_named_as_such_and_not_as_other_work():
    report = compare([series([1.0])], [series([], failed=1, precision="", metric="")])
    report = replace(report, base="before", new="after", only_base=(series([1.0]),), comparisons=())
    base, new = closing_notes(replace(report, only_new=(series([], failed=1, precision="", metric=""),)))
    assert base.startswith("only in before: llama bf16")
    assert new.startswith("no number in after, whose runs failed or were skipped: llama")


def test_of_two_possible_partners_none_is_guessed():
    report = compare([series([1.0], seq_len=4096), series([1.0], seq_len=8192)], [series([1.0])])
    assert not report.comparisons and len(report.only_base) == 2


def test_what_the_sides_ran_with_stands_beside_the_ratio_images_first():
    rows = [of_row(row(1, docker_image="v1", machine_name="x", git_commit="a"), "f:2")]
    others = [of_row(row(2, docker_image="v2", machine_name="x", git_commit="b"), "g:2")]
    found = compare(group(rows), group(others)).comparisons[0].differences
    assert [(d.name, d.values) for d in found] == [("image", (("v1",), ("v2",))), ("git commit", (("a",), ("b",)))]


def test_the_worst_change_comes_first():
    names = "abc"
    base = [series([100.0] * 5, model=name) for name in names]
    new = [series([value] * 5, model=name) for name, value in zip(names, (110.0, 80.0, 95.0), strict=True)]
    report = compare(base, new)
    assert [found.pair.new["model"] for found in report.comparisons] == ["b", "c", "a"]
    assert report.expected_false_alarms == pytest.approx(0.15)


# Noise.


def test_noise_is_learned_from_neighbours_whatever_steps_the_level_made():
    values = [*noisy(200, 1, 100), *noisy(200, 2, 130)]
    assert noise_of(values) == pytest.approx(0.01, rel=0.25)
    assert noise_of([1.0, 2.0, 3.0]) is None


def test_where_noise_comes_from_is_said():
    base, new = series([100.0, 101.0]), series([97.0])
    assert one(base, new).noise_from == "these runs"
    assert one(base, new, history=lambda _: noisy(20, 1)).noise_from == "20 earlier runs"
    assert one(base, new, Settings(noise=0.02)).noise_from == "--noise"
    assert one(series([100.0]), new).noise is None


# Gates.


def tripped(text: str, base: Series, new: Series, *, require_data: bool = False, **more: object) -> list[str]:
    report = compare([base], [new], **more)
    return [trip.gate for trip in trips(report, read_gates([text] if text else []), require_data=require_data)]


def test_a_gate_wants_significance_and_its_size():
    base, new = series([100, 101, 99, 100.5, 99.5]), series([97, 96.5, 97.5, 96, 97.2])
    assert tripped("regression>2%", base, new) == ["regression>2%"]
    assert tripped("regression", base, new) == ["regression"]
    assert not tripped("regression>3.5%", base, new)
    assert not tripped("improvement>1%", base, new)
    assert tripped("improvement>1%", new, base) == ["improvement>1%"]


def test_a_gate_that_cannot_decide_says_how_many_runs_are_missing_and_is_no_pass():
    report = compare([series([100.0, 101, 99])], [series([96.0, 97, 95, 96.5])])
    assert report.comparisons[0].reason == (
        "3 against 4 runs cannot be significant: p is 0.057 at best; --repeat 4 on each side can"
    )
    (trip,) = trips(report, read_gates(["regression>3%"]))
    assert trip.reason.startswith("undecided: 1 more run of each is needed; 3 against 4 runs cannot be significant")
    assert not trips(report, read_gates(["regression>3%"]), allow_undecided=True)
    for new in ([96.0], [98.0], [120.0]):  # whatever the one number is
        (trip,) = trips(compare([series([100.0])], [series(new)]), read_gates(["regression>3%"]))
        assert "3 more runs of each are needed" in trip.reason
    assert tripped("", series([100.0]), series([96.0]), require_data=True) == ["--require-data"]
    assert not tripped("suspicious,failure,missing", series([100.0]), series([96.0]))


def test_a_regression_gate_that_compared_nothing_is_no_pass():
    base = series([100.0] * 5)
    for new in ([], [series([99.0] * 5, precision="fp8")], [series([], failed=5)]):
        (trip,) = trips(compare([base], new), read_gates(["regression"]))
        assert "undecided: nothing was compared, for no series has a number on both sides" in trip.reason
        assert not trips(compare([base], new), read_gates(["regression"]), allow_undecided=True)
    score = [series([1.0, 2, 3, 4, 5], metric="score")]
    assert "--better" in trips(compare(score, score), read_gates(["regression"]))[0].reason
    assert not trips(compare([base], [base]), read_gates(["regression"]))


def test_how_many_runs_decide_against_a_baseline():
    assert [runs_needed(base, 0.05) for base in (1, 2, 3, 4, 5, 8)] == [0, 8, 5, 4, 3, 2]


def test_gates_on_what_is_missing_failed_or_suspicious():
    base = series([100.0] * 5)
    assert [t.gate for t in trips(compare([base], []), read_gates(["missing"]))] == ["missing"]
    assert [t.gate for t in trips(compare([base], []), (), require_data=True)] == ["--require-data"]
    assert tripped("failure", base, series([], failed=5)) == ["failure"]
    assert tripped("suspicious", base, series([90.0] * 5, suspect="x")) == ["suspicious"]
    assert not tripped("failure,suspicious,missing", base, series([100.0] * 5))


@each_row("text", ["regresion>3%", "regression>3", "regression<3%", "suspicious>3%", ">3%", "regression>-3%"])
def test_what_is_no_gate_is_refused_by_its_name(text):
    with pytest.raises(UsageProblem, match="--fail-on"):
        read_gates([text])


# How often the truth is found: the figures of docs/compare.md, with fewer draws (benchmarks/power.py has them in full).


def found_share(n: int, change: float, draws: int = 1500) -> float:
    rng = random.Random(n)
    hits = 0
    for _ in range(draws):
        base = series([rng.gauss(100, 1) for _ in range(n)])
        new = series([rng.gauss(100 * (1 - change), 1) for _ in range(n)])
        hits += one(base, new).verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
    return hits / draws


@each_row(("n", "least"), [(5, 0.93), (6, 0.975)])
def test_a_change_of_three_standard_deviations_is_found(n, least):
    assert found_share(n, 0.03) >= least


def test_a_false_alarm_is_rare():
    assert found_share(5, 0.0) <= 0.05


def test_two_hundred_unchanged_series_keep_the_gate_silent():
    rng = random.Random(7)
    gates = read_gates(["regression>3%"])
    for _ in range(10):
        sides = [[series([rng.gauss(100, 0.6) for _ in range(5)], model=f"m{k}") for k in range(200)] for _ in range(2)]
        assert not trips(compare(*sides), gates)


# Runs of one sitting share a level of their machine.


def of_sitting(rng: random.Random, n: int, level: float, noise: float, study: str) -> tuple[Sample, ...]:
    return tuple(Sample(value=rng.gauss(level, noise), study=study) for _ in range(n))


def in_sittings(samples: tuple[Sample, ...]) -> Series:
    return replace(series([sample.value for sample in samples]), samples=samples)


def false_verdicts(settings: Settings, *, turns: bool, draws: int = 400) -> float:
    rng = random.Random(11)
    wrong = 0
    for _ in range(draws):
        levels = [rng.gauss(100, 2) for _ in "ab"]
        sides = zip([levels[0]] * 2 if turns else levels, "aa" if turns else "ab", strict=True)
        base, new = (in_sittings(of_sitting(rng, 5, level, 0.5, study)) for level, study in sides)
        wrong += one(base, new, settings).verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT)
    return wrong / draws


def test_a_stated_noise_bounds_the_verdict_where_each_side_is_one_sitting():
    assert false_verdicts(DEFAULTS, turns=False) > 0.3, "what runs of one sitting cannot know"
    assert false_verdicts(Settings(noise=0.02), turns=False) <= 0.07


def test_runs_in_turns_share_their_level_and_keep_their_verdicts():
    assert false_verdicts(DEFAULTS, turns=True) <= 0.05
    rng = random.Random(3)
    base, new = (in_sittings(of_sitting(rng, 5, level, 0.5, "s")) for level in (100, 95))
    assert (one(base, new).verdict, one(base, new).reason) == (Verdict.REGRESSION, "")


def test_a_verdict_over_one_sitting_says_so_and_what_to_do():
    rng = random.Random(3)
    base, new = (in_sittings(of_sitting(rng, 5, level, 0.5, str(level))) for level in (100, 90))
    found = one(base, new)
    assert found.verdict is Verdict.REGRESSION
    assert (
        found.reason.startswith("each side is one sitting") and "--repeat in turns or on several days" in found.reason
    )
    days = tuple(replace(sample, study="", when=f"2026-01-0{n}T00:00:00") for n, sample in enumerate(base.samples, 1))
    assert one(in_sittings(days), new).reason.startswith("new is one sitting")
    assert one(series([100.0, 101, 99, 100, 102]), new).reason == "", "of rows nobody knows their day"
    stated = one(base, new, Settings(noise=0.1))
    assert stated.verdict is Verdict.NO_CHANGE and stated.reason == "within the stated noise: below 28.3%"


def on_one_day(order: str, level: dict[str, float]) -> list[Series]:
    """Return two sides whose runs began in this order, a minute after each other."""
    rng, found = random.Random(5), {"a": [], "b": []}
    for minute, side in enumerate(order):
        found[side].append(Sample(value=rng.gauss(level[side], 0.5), when=f"2026-01-01T00:{minute:02}:00"))
    return [in_sittings(tuple(samples)) for samples in found.values()]


@each_row("order", ["aaaaabbbbb", "bbbbbaaaaa", "aaaababbbb"])
def test_sides_one_after_the_other_on_one_day_share_no_level(order):
    sides = on_one_day(order, {"a": 100, "b": 90})
    assert one(*sides).reason.startswith("each side is one sitting")
    (trip,) = trips(compare(*([side] for side in sides)), read_gates(["regression>3%"]))
    assert "each side is one sitting" in trip.reason
    assert one(*sides, Settings(noise=0.05)).verdict is Verdict.NO_CHANGE


def test_a_stated_noise_counts_runs_of_unknown_days_as_one_sitting():
    sides = [series([100.0, 101, 99, 100, 102]), series([96.0, 95, 97, 96, 95.5])]
    assert one(*sides).verdict is Verdict.REGRESSION
    assert one(*sides, Settings(noise=0.02)).reason == "within the stated noise: below 5.7%"


@each_row("order", ["ababababab", "abbaabbaab"])
def test_sides_in_turns_on_one_day_share_their_level(order):
    sides = on_one_day(order, {"a": 100, "b": 90})
    assert (one(*sides).verdict, one(*sides).reason) == (Verdict.REGRESSION, "")


def in_turns(rng: random.Random, n: int, rho: float) -> list[Series]:
    """Return two unchanged sides of a study in turns, on a machine whose level is AR(1) from run to run."""
    level, values = rng.gauss(0, 1), []
    for _ in range(2 * n):
        values.append(100 + level + rng.gauss(0, 0.5))
        level = rho * level + (1 - rho * rho) ** 0.5 * rng.gauss(0, 1)
    return [in_sittings(tuple(Sample(value=value, study="s") for value in values[side::2])) for side in (0, 1)]


@each_row("n", [3, 5])
@each_row("rho", [0.5, 0.9, 0.99])
def test_the_interval_of_runs_in_turns_has_the_true_ratio(n, rho):
    """What benchmarks/comparing.py measures, with fewer draws."""
    rng, draws, inside = random.Random(f"{n} {rho}"), 200, 0
    for _ in range(draws):
        interval = one(*in_turns(rng, n, rho)).interval
        inside += interval.low <= 1 <= interval.high
    assert inside >= 0.93 * draws
