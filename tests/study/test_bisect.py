"""Where a number changed: simulated lists with noise, failing items and a machine that drifts."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.reports.compare import read_gates
from madlite.study.bisect import Bisection, Found, Judge, Measurement, NextItem
from tests.rows import each_row


def run_bisection(
    bisection: Bisection, measure: Callable[[NextItem], Measurement], known: Iterable[Measurement] = ()
) -> None:
    """Feed what is known, then measure until nothing is left."""
    for sample in known:
        bisection.add(sample)
    while bisection.upcoming is not None:
        bisection.add(measure(bisection.upcoming))


def names(count: int) -> list[str]:
    return [*map(str, range(count))]


class Simulated:
    """A list whose number changes by a part from its item `first` on; each run adds `drift` to the machine."""

    def __init__(
        self,
        seed: int,
        count: int,
        first: int,
        *,
        noise: float = 0.005,
        step: float = -0.03,
        drift: float = 0.0,
        failing: Collection[int] = (),
        direction: str = "higher",
    ) -> None:
        self.random, self.count, self.first = random.Random(seed), count, first
        self.noise, self.step, self.drift, self.failing = noise, step, drift, failing
        self.direction = direction
        self.runs: list[int] = []

    def measure(self, upcoming: NextItem) -> Measurement:
        item = upcoming.item
        self.runs.append(item)
        if item in self.failing:
            return Measurement(item=item, value=None, reason="does not build")
        level = 1000 * (1 + self.step * (item >= self.first)) * (1 + self.drift * len(self.runs))
        value = level * (1 + self.random.gauss(0, self.noise))
        return Measurement(item=item, value=value, direction=self.direction)  # type: ignore[arg-type]

    def search(self, **judge: object) -> Found:
        bisection = Bisection(names(self.count), Judge(**judge))  # type: ignore[arg-type]
        run_bisection(bisection, self.measure)
        assert bisection.found is not None
        return bisection.found


def pairs_found(count: int, cases: int = 60, **options: object) -> int:
    """How many of so many lists, with their steps anywhere, end with the right pair."""
    right = 0
    for seed in range(cases):
        first = random.Random(seed).randrange(1, count)
        found = Simulated(seed, count, first, **options).search()  # type: ignore[arg-type]
        right += (found.conclusion, found.last_good, found.first_bad) == ("found", str(first - 1), str(first))
    return right


@each_row("noise", [0.003, 0.005, 0.01])
def test_a_change_of_three_percent_is_found_in_noise(noise: float):
    assert pairs_found(20, noise=noise) >= 57


@each_row(("step", "direction"), [(0.03, "higher"), (0.03, "lower"), (-0.03, "lower")])
def test_so_is_one_for_the_better_and_one_of_a_duration(step: float, direction: str):
    assert pairs_found(9, cases=20, step=step, direction=direction) >= 19


@each_row("drift", [-0.001, 0.001, -0.002])
def test_a_machine_that_drifts_by_as_much_as_the_change_is_noticed(drift: float):
    assert pairs_found(20, drift=drift) >= 57


def test_it_takes_no_more_runs_than_the_noise_needs():
    quiet, loud = (Simulated(1, 64, 40, noise=noise) for noise in (0.002, 0.01))
    quiet.search()
    loud.search()
    # 4 and 4 of the ends; 4 more of the good one; 2 runs of each of 6 items; 4 and 4 of the pair
    assert len(quiet.runs) <= 8 + 4 + 6 * 2 + 8 and len(quiet.runs) < len(loud.runs) < 140


def test_ends_that_do_not_differ_have_nothing_between_them():
    kinds = [Simulated(seed, 20, 99, noise=0.005).search().conclusion for seed in range(60)]
    assert kinds.count("no change") >= 58
    steady = Simulated(3, 20, 99, noise=0.001)
    assert steady.search().conclusion == "no change" and len(steady.runs) == 8 and {*steady.runs} == {0, 19}, "in turns"


def test_a_gate_says_how_large_a_change_is_and_in_which_direction():
    assert Simulated(1, 9, 4, noise=0.003).search(gates=read_gates(["regression>5%"])).conclusion == "no change"
    assert Simulated(1, 9, 4, noise=0.003).search(gates=read_gates(["improvement"])).conclusion == "no change"
    found = Simulated(1, 9, 4, noise=0.003).search(gates=read_gates(["regression>2%"]))
    assert (found.conclusion, found.last_good, found.first_bad) == ("found", "3", "4")


def test_a_number_that_falls_little_by_little_has_no_pair():
    class Slope(Simulated):
        def measure(self, upcoming: NextItem) -> Measurement:
            return Measurement(item=upcoming.item, value=1000 - 2 * upcoming.item + self.random.gauss(0, 1))

    found = Slope(2, 31, 0).search()
    assert found.conclusion == "not confirmed" and found.change is not None and abs(found.change) < 0.01


@each_row("end", [0, 6])
def test_an_end_without_a_number_ends_it(end: int):
    found = Simulated(1, 7, 3, failing=[end]).search()
    assert (found.conclusion, found.failed) == ("end failed", str(end))


def test_two_items_are_their_own_pair():
    simulated = Simulated(1, 2, 1)
    found = simulated.search()
    assert (found.conclusion, found.last_good, found.first_bad, found.candidates) == ("found", "0", "1", ())
    assert simulated.runs[:4] == [0, 1, 0, 1]


def test_items_that_fail_are_left_out_after_one_run_each():
    simulated = Simulated(1, 9, 5, failing=[4, 5, 6])
    found = simulated.search()
    assert (found.last_good, found.first_bad, found.candidates) == ("3", "7", ("4", "5", "6"))
    assert [simulated.runs.count(item) for item in (4, 5, 6)] == [1, 1, 1]


def test_one_failure_of_an_item_that_has_numbers_is_no_reason_to_leave_it_out():
    simulated = Simulated(1, 3, 1)
    failed: list[int] = []

    def measure(upcoming: NextItem) -> Measurement:
        if simulated.runs.count(1) == 1 and upcoming.item == 1 and not failed:
            failed.append(1)
            return Measurement(item=1, value=None, reason="port in use")
        return simulated.measure(upcoming)

    bisection = Bisection(names(3), Judge())
    run_bisection(bisection, measure)
    assert failed and bisection.standing[1] == "bad"


@given(st.data(), st.integers(3, 40))
def test_any_step_among_any_failing_items_lies_within_what_is_named(data: st.DataObject, count: int):
    first = data.draw(st.integers(1, count - 1))
    failing = data.draw(st.sets(st.integers(1, count - 2), max_size=count - 2))
    found = Simulated(0, count, first, noise=0.0005, failing=failing).search()
    tested = [item for item in range(count) if item not in failing]
    good, bad = max(item for item in tested if item < first), min(item for item in tested if item >= first)
    assert (found.last_good, found.first_bad) == (str(good), str(bad))
    assert found.candidates == tuple(map(str, range(good + 1, bad)))


@given(st.integers(0, 10**6), st.integers(0, 200))
def test_a_search_that_was_cut_off_goes_on_as_if_it_had_not_been(seed: int, cut: int):
    whole = Simulated(seed, 12, 1 + seed % 11, noise=0.01, drift=-0.0005, failing=[seed % 10 + 1])
    first = Bisection(names(12), Judge())
    run_bisection(first, whole.measure)
    known = first.samples[:cut]
    values = iter(first.samples[cut:])
    again = Bisection(names(12), Judge())
    run_bisection(again, lambda upcoming: next(values), known)
    assert (again.found, again.standing) == (first.found, first.standing) and not [*values]


def test_samples_of_another_search_are_refused():
    with pytest.raises(ValueError, match="item 3"):
        Bisection(names(9), Judge()).add(Measurement(item=3, value=1.0))


@pytest.mark.host
@each_row(("first", "failing"), [(5, ()), (5, (4, 5)), (9, (4, 5, 6, 8)), (1, (1, 2)), (7, (2, 6, 10))])
def test_git_bisect_names_the_same_commits(tmp_path: Path, first: int, failing: tuple[int, ...]):
    """With `git bisect run`, where exit code 125 skips a commit."""
    count = 12

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=240).stdout

    git("init", "-q")
    for item in range(count):
        (tmp_path / "number").write_text(str(item))
        git("add", ".")
        git("commit", "-q", "-m", str(item))
    commits = git("rev-list", "--reverse", "HEAD").split()
    git("bisect", "start", commits[-1], commits[0])
    skip = " ".join(map(str, failing)) or "none"
    test = f'n=$(cat number); for s in {skip}; do [ "$n" = "$s" ] && exit 125; done; [ "$n" -lt {first} ]'
    said = git("bisect", "run", "sh", "-c", test)
    told = said[said.find("could be any of:") :] if "could be any of:" in said else said[said.find("Bisecting") :]
    if "is the first bad commit" in said:
        named = {commits.index(said.partition(" is the first bad commit")[0].split()[-1])}
    else:
        named = {commits.index(word) for word in told.split() if word in commits}
    found = Simulated(0, count, first, noise=0.0005, failing=failing).search()
    assert named == {*map(int, (*found.candidates, found.first_bad))}, said
