"""How far a job is by what its scheduler said, and the one clock of what is waited for."""

from __future__ import annotations

from types import SimpleNamespace

from madlite.jobs import job
from madlite.jobs.job import Job, Patience
from madlite.plan.schedulers import JobState
from madlite.plan.submission import JobRun
from madlite.platforms.slurm.states import explained

RUN = JobRun(id="20261127T120000-a-000001", card="a", number=1)


def test_a_job_is_over_only_once_the_scheduler_was_asked_about_it_and_does_not_list_it():
    found = Job(RUN, "77")
    assert found.state.stage == "unknown"
    for state, stage in (("PENDING", "pending"), ("COMPLETING", "running"), ("SUSPENDED", "running"), ("", "over")):
        found.state = explained(JobState(state=state))
        assert found.state.stage == stage


def test_patience_counts_from_the_first_question_in_seconds_and_in_answers(monkeypatch):
    at_s = 100.0
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: at_s))
    patience = Patience()
    assert (patience.seconds("over"), patience.polls("over")) == (0, 0)
    assert patience.is_due("question", 10) and not patience.is_due("question", 10)
    at_s, patience.answers = 107.0, 3
    assert (patience.seconds("over"), patience.polls("over")) == (7, 3)
    assert not patience.is_due("question", 10)
    at_s = 110.0
    assert patience.is_due("question", 10) and not patience.is_due("question", 10)
    patience.forget("over")
    assert (patience.seconds("over"), patience.polls("over")) == (0, 0)
