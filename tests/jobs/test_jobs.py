"""Lines about runs of a cluster that wait and run, many of them."""

from __future__ import annotations

from madlite.cli.job_screen import state_lines
from madlite.jobs.job import RunState
from madlite.plan.schedulers import JobState
from madlite.plan.submission import JobRun
from madlite.store.folder import Progress

LONG = "primus_pyt_megatron_lm_train_llama-3.1-70b"


def waiting(number: int, reason: str = "Resources", card: str = LONG) -> RunState:
    run = JobRun(id=f"20261127T120000-{card}-{number:06x}", card=card, number=number)
    return RunState(
        run=run, job=f"77_{number}", word="PENDING", state=JobState(state="PENDING", stage="pending", reason=reason)
    )


def running(number: int) -> RunState:
    state = JobState(state="RUNNING", stage="running", nodes="node[0001-0004]", ends="2026-11-27T16:00:00")
    progress = Progress(started="2026-11-27T12:00:00+00:00", step=5, steps=100)
    return RunState(run=waiting(number).run, job=f"77_{number}", word="RUNNING", state=state, progress=progress)


def test_a_thousand_runs_that_wait_fit_on_the_screen():
    states = [running(1), running(2), *map(waiting, range(3, 1003)), waiting(1003, "Priority", "b")]
    lines = [*state_lines(states, 8)]
    assert len(lines) == 4, lines
    text = " ".join(lines)
    assert f"1000 runs: PENDING (Resources), jobs 77_3 to 77_1002, 1000 of {LONG}" in text
    assert text.count("RUNNING on node[0001-0004], step 5 of 100") == 2 and "job 77_1003 PENDING (Priority)" in text


def test_each_of_them_is_listed_on_request():
    states = [*map(waiting, range(1, 1001))]
    assert len([*state_lines(states, None)]) == 1000
    assert all(line.startswith("  20261127T120000-") for line in state_lines(states, None))
