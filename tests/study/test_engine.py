"""What all studies have in common: which runs count, the outcome of all, the files at the end, and which is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from madlite.batch.resume import Resumption
from madlite.batch.runner import BatchSettings, BatchStart
from madlite.errors import ExitCode, UsageProblem
from madlite.model import Cause, Result, Status, Study, Value
from madlite.plan.submission import PlannedRun
from madlite.run.screen import RunOutcome
from madlite.store.batches import BatchLog, StudyFolder, studies_of, study_path
from madlite.study import engine
from madlite.study.engine import Answer, Ask, Strategy, StudyRuns, find_study
from madlite.study.grid import Grid
from madlite.study.summary import Sample, samples_of
from tests.factories import make_plan, note_requested
from tests.rows import each_row

ID, OTHER = "20261124T021500-3fa91c", "20261124T021501-abcdef"


def run_of(folder: Path, name: str, point: int, *, warm_up: bool = False) -> PlannedRun:
    study = Study(id=ID, kind="sweep", varied={"A": point}, series=point, index=None if warm_up else 1, warm_up=warm_up)
    return PlannedRun(plan=make_plan(folder, id=name, study=study), backends=(), files=(), runtime=None)  # type: ignore[arg-type]


def good(name: str) -> Result:
    return Result(plan_id=name, status=Status.SUCCESS)


def bad(name: str, cause: Cause = Cause.EXIT_CODE) -> Result:
    return Result(plan_id=name, status=Status.FAILURE, cause=cause, reason="it ended")


class Content(Value, frozen=True):
    """What the search below came to."""

    runs: tuple[str, ...]


class Points(Strategy):
    """A search that tries these points, each as often as it is named."""

    kind = "tune"
    machine_causes = frozenset((Cause.DISK,))

    def __init__(self, folder: Path, points: Sequence[int]) -> None:
        super().__init__(ID, [])
        self._folder, self._points, self.seen = folder, points, list[Sample]()

    def ask(self, samples: Sequence[Sample]) -> Ask | None:
        self.seen = samples = [*samples]
        if len(samples) == len(self._points):
            return None
        self.planned.append(run_of(self._folder, f"r{len(samples)}", self._points[len(samples)]))
        return Ask(runs=self.planned[-1:], text=f"point {self._points[len(samples)]}")

    def summary(self, samples: Sequence[Sample]) -> Answer:
        names = tuple(one.run for one in self.seen)
        lines, files = (", ".join(names),), {"page.html": "<p>"}
        return Answer(content=Content(runs=names), lines=lines, files=files, exit_code=ExitCode.OK)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make the runs of a study whose runs end with these results; others never start.  `ran` has what was begun."""

    def made(
        strategy: Strategy, results: Iterable[Result], resumed: Resumption | None = None
    ) -> tuple[StudyRuns, RunOutcome, list[str]]:
        by_id, said = {one.plan_id: one for one in results}, list[str]()

        def batch(planned, *args, **kwargs):
            made.ran += [one.plan.id for one in planned]
            ended = tuple(by_id[one.plan.id] for one in planned if one.plan.id in by_id)
            is_good = all(one.status is Status.SUCCESS for one in ended)
            code = ExitCode.OK if is_good else ExitCode.RUN_FAILED
            outcome = RunOutcome(results=ended, not_started=(), exit_code=code)
            return SimpleNamespace(run=lambda signals: outcome)

        monkeypatch.setattr(engine, "Batch", batch)
        options = SimpleNamespace(workspace=tmp_path, environ={})
        screen = SimpleNamespace(end=said.extend)
        study = StudyRuns(strategy, BatchLog())
        outcome = study.run(BatchStart(options, None, screen, BatchSettings(), resumed))  # type: ignore[arg-type]
        return study, outcome, said

    made.ran = []
    return made


def test_runs_of_a_point_whose_warm_up_failed_are_named_and_a_failure(tmp_path, make):
    runs = [run_of(tmp_path, f"r{point}", point) for point in (1, 2)]
    warm_ups = [run_of(tmp_path, f"w{point}", point, warm_up=True) for point in (1, 2)]
    study, outcome, _ = make(Grid(ID, runs, warm_ups), [good("w1"), bad("w2"), good("r1")])
    assert [one.plan_id for one in outcome.results] == ["r1"], "a warm-up is no result"
    assert (outcome.not_started, outcome.exit_code) == (("tiny",), ExitCode.RUN_FAILED)
    assert study.study["failed_warm_ups"] == ("tiny (A=2)",)
    assert json.loads((study_path(tmp_path, ID) / "study.json").read_text()) == json.loads(json.dumps(study.study))
    assert study.lines[-1] == f"  madlite runs --of {ID}; madlite_runs/study-{ID}/study.json"
    _, outcome, _ = make(Grid(OTHER, runs, warm_ups), [good("w1"), good("w2"), good("r1"), good("r2")])
    assert (outcome.not_started, outcome.exit_code) == ((), ExitCode.OK)


@pytest.mark.parametrize(
    ("warm_up", "has_caches", "ran"),
    [(good("w1"), True, ["r2"]), (good("w1"), False, ["w1", "r2"]), (bad("w1"), True, ["w1", "r2"])],
)
def test_of_a_study_that_is_resumed_only_what_is_left_is_run_and_what_is_not_warm_is_warmed(
    tmp_path, make, warm_up, has_caches, ran
):
    warm = run_of(tmp_path, "w1", 1, warm_up=True)
    runs = [run_of(tmp_path, f"r{index}", 1) for index in (1, 2)]
    runs[1] = replace(runs[1], plan=replace(runs[1].plan, study=replace(runs[1].plan.study, index=2)))
    finished = {"r1": good("r1"), "w1": warm_up}
    StudyFolder.create(tmp_path, ID).close()
    if has_caches:
        (study_path(tmp_path, ID) / "caches/series-1").mkdir(parents=True)
    study, outcome, _ = make(Grid(ID, runs, [warm]), [good("w1"), good("r2")], Resumption(finished=finished))
    assert make.ran == ran
    assert [one.plan_id for one in outcome.results] == ["r1", "r2"] and outcome.exit_code is ExitCode.OK
    assert study.study["series"][0]["succeeded"] == 2 and study.study["failed_warm_ups"] == ()


def test_what_the_machine_ended_tells_nothing_and_ends_a_search(tmp_path, make):
    study, outcome, said = make(Points(tmp_path, [1, 2, 3]), [good("r0"), bad("r1", Cause.DISK)])
    assert study.study == {"runs": ("r0",), "lines": ["r0"]} and said == ["point 1", "point 2"]
    assert study.lines[1] == "  stopped, the machine ended the last run, which counts for nothing: it ended"
    assert [one.plan_id for one in outcome.results] == ["r0", "r1"], "it has its row all the same"
    assert sorted(file.name for file in study_path(tmp_path, ID).iterdir()) == ["page.html", "study.json"]


def test_what_was_interrupted_tells_nothing_and_other_failures_do(tmp_path, make):
    study, _, _ = make(Points(tmp_path, [1, 2, 3]), [bad("r0"), bad("r1", Cause.INTERRUPTED), good("r2")])
    assert study.study == {"runs": ("r0",), "lines": ["r0"]}


@each_row(("cause", "is_its_own"), [(Cause.DISK, True), (Cause.NETWORK, False)])
def test_a_point_that_the_machine_ended_twice_failed_by_itself_where_it_can_have_the_cause(tmp_path, cause, is_its_own):
    search = Points(tmp_path, [])
    search.machine_causes = frozenset((Cause.DISK, Cause.NETWORK))
    study = StudyRuns(search, BatchLog())

    def tells(result: Result) -> bool:
        (sample,) = samples_of([run_of(tmp_path, result.plan_id, 1)], [result])
        return study._tells(sample)

    assert [tells(bad("r0", cause)), tells(bad("r1", cause))] == [False, is_its_own]
    assert [tells(good("r2")), tells(bad("r3", cause))] == [True, False], "in between the machine was mended"


def test_a_study_in_which_nothing_ran_is_not_resumed(tmp_path, make):
    make(Points(tmp_path, []), [])
    assert studies_of(tmp_path, "tune") == []


def test_the_study_that_is_resumed_is_the_newest_of_the_same_request_or_the_one_that_is_named(tmp_path):
    with pytest.raises(UsageProblem, match="there is no tune to resume in this folder"):
        find_study(tmp_path, "tune", "last", {})
    for name, rate in ((ID, "1"), (OTHER, "2")):
        StudyFolder.create(tmp_path, name, "tune", {"card": "a", "lr": rate}).close()
        note_requested(tmp_path, name)
    assert find_study(tmp_path, "tune", "last", {"card": "a", "lr": "1"}) == ID
    assert find_study(tmp_path, "tune", OTHER[:15], {"card": "a", "lr": "2"}) == OTHER
    for named, said in {
        "last": f"tune {OTHER} was begun with another lr, mode",
        ID: f"tune {ID} was begun with another lr",
        "2026": "'2026' begins 2 studies in this folder",
        "2025": "no tune '2025' in this folder",
    }.items():
        with pytest.raises(UsageProblem, match=said):
            find_study(tmp_path, "tune", named, {"card": "a", "mode": "x"})
