"""When a silence is too long: each phase has its limit, and only what counts in it is a sign of life."""

from __future__ import annotations

import pytest

from madlite.model import EffectiveConfig, Ended, Phase, Quantity, ResultRule, Step, Variant
from madlite.run.watchdog import StallDetector
from tests.factories import make_plan
from tests.rows import each_row


class Run:
    """A silence that is followed, on a clock that the test moves."""

    def __init__(self, folder, *, steps: int | None = None, kind: str = "steps", **limits: float) -> None:
        self.now = 1000.0
        rule = ResultRule(kind=kind)
        plan = make_plan(folder, result_rule=rule, variant=Variant(model="m", steps=steps), **limits)
        self.silence = StallDetector(plan, lambda: self.now)
        self.action = self.silence.following()
        self.action.__enter__()

    def wait(self, for_s: float) -> None:
        self.now += for_s

    def output(self, *events: object) -> None:
        with self.silence.reading():
            for event in events:
                self.silence.note(event)

    def steps(self, first: int, last: int, every_s: float = 2.0, stride: int = 1) -> None:
        for n in range(first, last + 1, stride):
            self.wait(every_s)
            self.output(step(n))

    @property
    def limit_s(self) -> float:
        """After how many more seconds of silence it counts as hung, to the second; 99999 where it never does."""
        begun, low, high = self.now, 0, 99_999
        while low < high:
            middle = (low + high) // 2
            self.now = begun + middle
            quiet = self.silence.check()
            low, high = (low, middle) if quiet is not None and quiet.hung else (middle + 1, high)
        self.now = begun
        return low

    @property
    def hung(self) -> str:
        quiet = self.silence.check()
        return quiet.text if quiet is not None and quiet.hung else ""


def step(n: int, rank: int | None = None, **more: object) -> Step:
    return Step(n=n, values={Quantity.LOSS: 2.0}, rank=rank, **more)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_before_the_first_step_any_output_is_life_and_the_start_limit_holds(run):
    assert run.limit_s == 1800
    for _ in range(5):
        run.wait(1700)
        run.output()
        assert run.limit_s == 1800
    run.wait(1801)
    assert run.hung == "no output for 1801 s before the first step"


def test_after_steps_only_a_new_one_is_life(run):
    run.steps(1, 40)
    assert run.limit_s == 300
    for _ in range(31):
        run.wait(10)
        run.output()
    assert run.hung == "no step for 310 s after step 40 (steps took 2.0 s)"


def test_twenty_median_steps_are_waited_for_where_they_take_longer(run):
    run.steps(1, 10, every_s=40)
    run.steps(11, 11, every_s=600)  # a checkpoint: the median stays
    assert run.limit_s == 800


def test_lines_that_cover_ten_steps_are_waited_for_as_lines(run):
    run.steps(1, 101, every_s=200, stride=10)
    assert run.limit_s == 3 * 200
    assert run.silence.wait_s() == 5.0


def test_ranks_that_print_the_same_step_count_once(tmp_path):
    run = Run(tmp_path)
    for n in range(1, 9):
        run.wait(60)
        for rank in range(8):
            run.wait(0.01)
            run.output(step(n, rank))
    assert run.limit_s == pytest.approx(20 * 60.08, abs=1)


def test_lines_out_of_a_buffer_count_as_what_came_at_once(run):
    for burst in range(4):
        run.wait(800)
        run.output(*(step(80 * burst + n) for n in range(1, 81)))
    assert run.limit_s == 3 * 800


def test_after_one_line_the_first_steps_own_time_is_allowed_thrice(tmp_path):
    slow, quick, endless = Run(tmp_path), Run(tmp_path), Run(tmp_path, start_silence_s=0)
    for run, for_s in ((slow, 400), (quick, 1), (endless, 4000)):
        run.wait(for_s)
        run.output(step(1))
    assert (slow.limit_s, quick.limit_s, endless.limit_s) == (1200, 300, 12_000)


@each_row("steps", [10, None])
def test_after_the_last_step_any_output_is_life_again(tmp_path, steps):
    run = Run(tmp_path, steps=steps)
    if steps is None:  # the log says how many there are to be
        run.output(EffectiveConfig(values={"steps": "10"}))
    run.steps(1, 9)
    assert run.limit_s == 300
    run.steps(10, 10)
    run.wait(1000)
    run.output()
    assert run.limit_s == 1800
    run.wait(1800)
    assert run.hung == "no output for 1800 s after the last step, 10"


def test_the_end_mark_is_the_end_whoever_knows_how_many_steps_there_were_to_be(run):
    run.steps(1, 9)
    run.output(Ended(marker="done"))
    assert run.limit_s == 1800


def test_a_phase_that_the_log_names_may_take_as_long_as_the_start(run):
    run.steps(1, 9)
    run.output(Phase(name="validate"))
    run.wait(700)
    run.output()
    assert run.limit_s == 1800
    run.wait(1800)
    assert run.hung == "no output for 1800 s in phase 'validate' after step 9"
    run.output(step(10))
    assert run.limit_s == 300, "the time of the phase is no step's"


def test_a_training_that_begins_after_another_has_a_start_of_its_own(run):
    run.steps(1, 9)
    run.output(Phase(name="train", begins=True))
    run.wait(1800)
    assert run.hung == "no output for 1800 s before the first step"
    run.steps(1, 3)
    assert run.limit_s == 300


def test_validation_steps_are_life(run):
    run.steps(1, 9)
    for n in range(10, 15):
        run.wait(250)
        run.output(step(n, phase="validate"))
    assert run.limit_s == 300


def test_a_step_that_is_told_again_is_no_new_one_but_a_training_that_went_back_is(run):
    run.steps(1, 40)
    run.wait(200)
    run.output(step(40))
    assert run.limit_s == 100
    run.output(step(20))
    assert run.limit_s == 300
    run.steps(21, 30)
    assert run.limit_s == 300


@each_row("name", ["silence_s", "start_silence_s"])
def test_0_switches_a_limit_off(tmp_path, name):
    run = Run(tmp_path, **{name: 0})
    assert (run.limit_s < 99_999) is (name == "silence_s")
    run.steps(1, 10)
    assert (run.limit_s < 99_999) is (name == "start_silence_s")


def test_a_run_without_steps_has_the_limit_that_was_asked_for(tmp_path):
    run = Run(tmp_path, kind="performance_line", start_silence_s=60.0, silence_s=60.0)
    run.wait(59)
    run.output()
    run.wait(60)
    assert run.hung == "no output for 60 s"


@each_row(
    ("limits", "option"),
    [
        ({"start_silence_s": 3.0, "silence_s": 3.0}, "--silence-limit"),  # as a plan has it of that option alone
        ({"start_silence_s": 3.0, "silence_s": 5.0}, "--start-silence-limit"),
        ({"start_silence_s": 3.0, "silence_s": 0.0}, "--start-silence-limit"),
    ],
)
def test_of_a_scripts_output_the_option_in_force_is_named(tmp_path, limits, option):
    run = Run(tmp_path, kind="performance_line", **limits)
    run.wait(3)
    assert run.silence.check().option == option


def test_nothing_is_looked_at_before_and_after_the_action(run):
    run.action.__exit__(None, None, None)
    run.wait(99_999)
    run.output(step(1))
    assert run.silence.check() is None and run.silence.wait_s() is None and run.silence.description() == ""
    assert run.silence.findings(by_itself=True) == ()


def test_a_step_that_takes_far_longer_is_told_of_now_and_then_and_found_when_it_comes(run):
    run.steps(1, 30)
    told = []
    for _ in range(45):
        run.wait(1)
        if quiet := run.silence.check():
            assert not quiet.hung
            told.append(quiet.text)
    assert told[0] == "no step for 11 s after step 30 (median 2.0 s)" and 2 < len(told) < 6
    assert run.silence.description() == "no step for 45 s after step 30 (median 2.0 s)"
    run.output(step(31))
    assert run.silence.findings(by_itself=True) == ("stalled for 45 s before step 31 (steps took 2.0 s)",)


def test_no_step_is_slow_before_anybody_knows_how_long_they_take_or_within_ten_seconds(run):
    run.steps(1, 2, every_s=100)
    run.steps(3, 30, every_s=0.5)
    run.wait(9)
    assert run.silence.check() is None
    run.output(step(31))
    assert run.silence.findings(by_itself=True) == ()


def test_the_longest_stalls_are_named_and_the_others_counted(run):
    run.steps(1, 20)
    for n in range(21, 27):
        run.steps(n, n, every_s=20.0 + n)
    assert run.silence.findings(by_itself=True) == (
        "stalled for 44 s before step 24 (steps took 2.0 s)",
        "stalled for 45 s before step 25 (steps took 2.0 s)",
        "stalled for 46 s before step 26 (steps took 2.0 s)",
        "stalled 6 times, for 261 s in all",
    )


def test_a_silence_at_the_end_is_a_finding_unless_it_is_why_the_run_was_stopped(run):
    run.steps(1, 30)
    run.wait(120)
    run.action.__exit__(None, None, None)
    expected = "no step for 120 s before the end, after step 30 (steps took 2.0 s)"
    assert run.silence.findings(by_itself=True) == (expected,) and run.silence.findings(by_itself=False) == ()


def test_a_long_start_is_told_of(run):
    run.wait(61)
    assert run.silence.check().text == "no output for 61 s before the first step"


def test_output_that_takes_long_to_read_is_no_silence(run):
    run.steps(1, 10)
    with run.silence.reading():
        run.wait(4000)
        assert run.silence.check() is None


def test_numbers_that_are_none_change_nothing(run):
    run.output(EffectiveConfig(values={"steps": "many"}))
    run.output(EffectiveConfig(values={}))
    run.steps(1, 10)
    run.output(step(4_000_000))  # garbled
    run.steps(11, 20)
    assert run.limit_s == 300


def test_looks_come_often_enough_for_a_short_limit(tmp_path):
    run = Run(tmp_path, silence_s=2.0)
    assert run.silence.wait_s() == 0.5
    run.wait(1799.95)
    assert run.silence.wait_s() == 0.1
