"""The kit as its users have it: nothing in a good backend, names, samples, pages, foreign logs, the class of tests."""

from __future__ import annotations

import pytest

from madlite import (
    MadMetric,
    PatternReader,
    Summary,
)
from madlite.testing import CHECKS, BackendConformance, check_backend, run_check
from madlite.testing.scripts import find_shellcheck
from madlite.testing.subject import Subject
from tests.testing.good import CARD, CONFIG, HEAD, LOG, PAGE, SCRIPT, TWO, Good, broken, check


@pytest.mark.host
def test_nothing_is_found_in_a_good_backend(place):
    assert list(map(str, check(Good(), place, most=None))) == []


@pytest.mark.host
def test_a_missing_shellcheck_is_told_and_bash_is_asked_all_the_same(place, monkeypatch):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "if\n")
    monkeypatch.setattr("madlite.testing.scripts.find_shellcheck", lambda: None)
    broken_script, missing = check(Good(), place, "scripts")
    assert "bash: " in broken_script.what
    assert "no shellcheck" in missing.what and "pip install 'madlite[testing]'" in missing.mend
    assert find_shellcheck() is not None, "this machine has one"


def test_an_installed_backend_has_an_entry_point_and_a_name_of_its_own(place):
    (flaw,) = check(Good(), place, "names", installed=True)
    assert (
        "no entry point of group madlite brings it" in flaw.what
        and "[project.entry-points.madlite] good = " in flaw.mend
    )


def test_a_name_that_another_backend_has_is_a_clash(place):
    (place / "templates/torchtitan").mkdir()
    (place / "templates/torchtitan/run.sh.j2").write_text(SCRIPT)
    same = broken(name="torchtitan", template="torchtitan/run.sh.j2", files={})
    card = {**CARD, "backend": "torchtitan"}
    (flaw,) = check(same, place, "names", installed=True, cards=[card])
    assert "madlite_plugins.torchtitan.backend.Torchtitan is installed as a backend of this name" in flaw.what


@pytest.mark.host
def test_everything_is_collected_and_a_check_that_cannot_go_on_keeps_what_it_found(place):
    class Worst(Good):
        name = "Worst!"

        def reader(self, plan):
            raise OSError("no reader today")

    flaws = check(Worst(), place, docs=[])
    names = {flaw.check for flaw in flaws}
    assert {"members", "names", "reading", "fuzz", "docs"} <= names <= set(CHECKS)
    assert any("OSError: no reader today" in flaw.what for flaw in flaws)


def test_a_wrong_page_or_none_is_said(place):
    (flaw,) = check_backend(Good(), [CARD], installed=False, templates=[place / "templates"], only=["docs"])
    assert "there is no page about it" in flaw.what
    assert any("it is not there" in flaw.what for flaw in check(Good(), place, "docs", docs=[place / "none.md"]))


def test_a_log_that_another_backend_knows_better_is_said(place):
    (place / "good.log").write_text("[titan] 2026-01-01 - root - INFO - step:  1  loss: 2\n" + LOG)
    (flaw,) = check(Good(), place, "recognising")
    assert "backend torchtitan is 0.9 sure of it, this one 0.5" in flaw.what


def test_a_figure_of_files_counts_where_the_files_are_given(place):
    class Sums(PatternReader):
        def finish(self, outputs):
            return [Summary(values={"Total": path.read_text()}) for path in outputs.glob("total.txt")]

    summed = type("Broken", (Good,), {"mad_metrics": (MadMetric(metric="a", rule="summary", key="Total"),)})
    summed.reader = lambda self, plan: Sums(Good.step, "bye")
    (place / "left").mkdir()
    (place / "left/total.txt").write_text("3")
    assert len(check(summed(), place, "results")) == 1
    assert check(summed(), place, "results", outputs=[place / "left"]) == []


def test_logs_of_others_are_asked_about(place):
    (place / "other.log").write_text("at=1 tps=2 loss=3\n")
    flaws = check(Good(), place, "recognising", foreign={place / "other.log": "hf"})
    assert [flaw.what for flaw in flaws] == ["it answered 0.5, its owner 0"]


def test_a_sample_is_spread_over_all_that_could_be_planned(place):
    asks = [{"lr": str(n / 100)} for n in range(1, 40)]
    given = {"installed": False, "templates": [place / "templates"], "asks": asks}
    every, some = Subject(Good(), [CARD], **given), Subject(Good(), [CARD], most=5, **given)
    assert len(every.made) == 5 * 41 and len(some.made) == 5
    assert {one.case.machine.device for one in some.made} == {"MI300X", "MI355X", "H100", "cpu"}
    assert {made.plan.settings["lr"] for made in every.made} == {0.001, *(n / 100 for n in range(1, 40))}
    assert run_check("rendering", every) == []


@pytest.mark.host
class TestOfAGoodBackend(BackendConformance):
    """The form for pytest, over files of this test's own."""

    backend = Good()
    cards = (CARD,)
    installed = False
    machines = TWO
    most = 3

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def files(request, tmp_path_factory):
        folder = tmp_path_factory.mktemp("good")
        (folder / "templates/good").mkdir(parents=True)
        for name, text in (("run.sh.j2", SCRIPT), ("train.toml.j2", CONFIG)):
            (folder / "templates/good" / name).write_text(text)
        (folder / "good.log").write_text(LOG)
        (folder / "good.md").write_text(PAGE)
        request.cls.templates, request.cls.docs = [folder / "templates"], [folder / "good.md"]
        request.cls.logs = {folder / "good.log": 12}


def test_the_class_has_a_test_for_each_check_and_its_failure_says_all():
    class Bad(BackendConformance):
        backend = type("Broken", (Good,), {"name": "Broken!", "template": "none"})()
        cards = (CARD,)
        installed = False
        machines = TWO

    assert {name.removeprefix("test_") for name in dir(Bad) if name.startswith("test_")} == set(CHECKS)
    with pytest.raises(AssertionError) as failed:
        Bad().test_names()
    assert "its name is 'Broken!'" in str(failed.value)
    with pytest.raises(AssertionError) as failed:
        Bad().test_rendering()
    assert str(failed.value).count("\n") >= 1, "one line for each machine"
