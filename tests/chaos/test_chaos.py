"""Twenty rounds of chaos in `make test-all`; `make chaos` plays two hundred, and SEED=… RUNS=1 one of them again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.attacks import draw
from tests.chaos.cards import Part
from tests.chaos.daemon import Engine
from tests.chaos.judge import Told, _of_screen
from tests.chaos.play import play
from tests.rows import each_row

SEEDS = range(1, 21)


@pytest.fixture(scope="module")
def attacked(engine: str) -> Iterator[Engine]:
    """An engine of our own: the one that other tests use is never attacked, and says only that one can be had here."""
    own = Engine()
    yield own
    own.close()


@pytest.mark.engine
@pytest.mark.full
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed}-{draw(seed).runtime}-{draw(seed).attack.kind}")
def test_every_run_ends_with_one_truthful_row_or_is_told_as_unfinished(seed: int, attacked: Engine) -> None:
    played = play(seed, attacked)
    assert played.broken == [], f"make chaos SEED={seed} RUNS=1"


def test_a_seed_is_the_same_round_every_time_and_the_twenty_hold_what_they_should() -> None:
    rounds = [draw(seed) for seed in SEEDS]
    assert rounds == [draw(seed) for seed in SEEDS]
    assert {one.runtime for one in rounds} == {"host", "docker"}
    assert len({one.attack.kind for one in (draw(seed) for seed in range(200))}) == 9


@each_row(
    ("said", "has", "has_none"),
    [
        ("run       20261121T162857-c0quick-ad2ee4  unfinished, no row, /x", False, True),
        ("run       20261121T162857-c0quick-ad2ee4  unfinished, its row is in perf.csv, /x", True, False),
        (
            "warning: 2 earlier runs were cut off: r-c0quick-ad2ee4 (no row), r-c1-1 (x). madlite clean lists",
            False,
            True,
        ),
        ("warning: 1 earlier run was cut off: r-c0quick-ad2ee4 (its row is in perf.csv)", True, False),
        ("warning: 1 earlier run was cut off: r-c0quick-ad2ee4 (whether its row is in perf.csv can", False, False),
        ("warning: 2 runs of an earlier batch never started: c1multi, c0quick. madlite clean --yes", False, True),
        ("run       20261121T162857-c1quick-ad2ee4  unfinished, no row, /c0quick", False, False),
    ],
)
def test_the_judge_reads_which_runs_are_said_to_have_a_row(said: str, has: bool, has_none: bool) -> None:
    told, part = Told(), Part("c0quick", "quick", 0.1, "1.0")
    told.text = f"nothing\n{said}\nmore\n"
    assert (told.says_row(part), told.says_no_row(part)) == (has, has_none)


TRACEBACK = 'Traceback (most recent call last):\n  File "__main__.py", line 5, in <module>\n{}KeyboardInterrupt\n'


@each_row(
    ("said", "word", "rules"),
    [
        ("Fatal Python error: init_import_site: Failed to import the site module\n" + TRACEBACK, "SIGINT", 0),
        (TRACEBACK, "SIGINT", 0),
        (TRACEBACK.replace("{}", '  File "main.py", line 9, in entry\n'), "SIGINT", 2),
        ("[1/1] Running\n" + TRACEBACK, "SIGINT", 2),
        (TRACEBACK, "SIGTERM", 2),
    ],
)
def test_a_ctrl_c_that_comes_while_python_itself_begins_breaks_no_rule(said: str, word: str, rules: int) -> None:
    one = next(one for one in map(draw, range(300)) if one.attack.word == word)
    assert len(list(_of_screen(one, said.replace("{}", ""), 1))) == rules
