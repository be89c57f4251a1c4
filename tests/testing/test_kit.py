"""The kit as its users have it: nothing in a good backend, names, samples, pages, foreign logs, the class of tests."""

from __future__ import annotations

import importlib
import os
import re
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from madlite import FailureRule, ResultRule, UsageProblem, Variant, hookimpl
from madlite.backends.loader import load_plugins
from madlite.catalog.sources import template_root
from madlite.testing import CHECKS, BackendConformance, check_backend, run_check
from madlite.testing.plans import find_shellcheck
from madlite.testing.subject import Subject
from tests.rows import each_row
from tests.testing.good import CARD, CONFIG, HEAD, LOG, PAGE, SCRIPT, TWO, Good, broken, check, write_files

pytestmark = pytest.mark.host  # whole checks of backends


@pytest.mark.host
def test_nothing_is_found_in_a_good_backend(place):
    assert list(map(str, check(Good(), place, most=None))) == []


@pytest.mark.host
def test_a_script_that_is_none_and_a_missing_shellcheck_are_told(place, monkeypatch):
    (place / "templates/good/run.sh.j2").write_text(HEAD + "if\n")
    assert all("run.sh of card good_model" in flaw.where for flaw in check(Good(), place, "scripts"))
    monkeypatch.setattr("madlite.testing.plans.find_shellcheck", lambda: None)
    (missing,) = check(Good(), place, "scripts")
    assert "no shellcheck" in missing.what and "pip install 'madlite[testing]'" in missing.hint
    assert find_shellcheck() is not None, "this machine has one"


def test_a_shellcheck_that_fails_is_told_with_its_words(place, monkeypatch):
    tool = place / "shellcheck"
    tool.write_text("#!/bin/sh\necho cannot allocate >&2; exit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr("madlite.testing.plans.find_shellcheck", lambda: str(tool))
    (flaw,) = check(Good(), place, "scripts")
    assert flaw.what == "shellcheck failed: cannot allocate"


def test_an_installed_backend_has_an_entry_point_and_a_name_of_its_own(place):
    (flaw,) = check(Good(), place, "names", installed=True)
    assert (
        "no entry point of group madlite brings it" in flaw.what
        and "[project.entry-points.madlite] good = " in flaw.hint
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


def test_a_wrong_page_and_a_log_that_another_backend_knows_better_are_said(place):
    (flaw,) = check_backend(Good(), [CARD], installed=False, templates=[place / "templates"], only=["docs"])
    assert "there is no page about it" in flaw.what
    assert any("it is not there" in flaw.what for flaw in check(Good(), place, "docs", docs=[place / "none.md"]))
    (place / "good.log").write_text("[titan] 2026-01-01 - root - INFO - step:  1  loss: 2\n" + LOG)
    (flaw,) = check(Good(), place, "detection")
    assert "backend torchtitan is 0.9 sure of it, this one 0.5" in flaw.what


def test_a_sample_is_spread_over_all_that_could_be_planned(place):
    cards = [CARD, *({**CARD, "name": f"with {n}", "recipe": {"lr": n / 100}} for n in range(1, 39))]
    given = {"installed": False, "templates": [place / "templates"]}
    every, some = Subject(Good(), cards, **given), Subject(Good(), cards, most=5, **given)
    assert len(every.made) == 5 * 2 * 39 and len(some.made) == 5
    assert {one.case.machine.device for one in some.made} == {"MI300X", "MI355X", "H100", "cpu"}
    assert {made.plan.settings["lr"] for made in every.made} == {0.001, *(n / 100 for n in range(1, 39))}
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
    assert "card good_model on 8xMI300X and 3 more cases: template 'none'" in str(failed.value)


def test_equal_flaws_are_told_once_with_their_number(place):
    def breaks(self, request, machine):
        raise KeyError("x")

    (flaw,) = check(broken(expand=breaks), place, "rendering", most=None)
    assert flaw.where == "card good_model on 8xMI300X and 3 more cases"
    flaws = check(broken(check=lambda self, plan: ["bad"]), place, "members", most=None)
    assert [flaw.where for flaw in flaws] == ["check of card good_model on 8xMI300X and 3 more cases"]


def test_a_missing_template_is_told_in_few_sentences(place):
    flaws = check(broken(template="good/none.j2"), place, most=None)
    (flaw,) = flaws
    assert (flaw.check, flaw.where) == ("rendering", "card good_model on 8xMI300X and 3 more cases")


@each_row(
    ("only", "what"),
    [(["nope"], "there is no check 'nope': there are members, names"), ("reading", "there is no check 'r'")],
)
def test_a_check_that_is_not_there_is_the_caller_s_mistake(only, what):
    with pytest.raises(ValueError, match=re.escape(what)):
        check_backend(Good(), [CARD], installed=False, only=only)
    with pytest.raises(ValueError, match="there is no check 'nope'"):
        run_check("nope", Subject(Good(), installed=False))


def test_files_that_are_not_there_are_told_by_their_path(place):
    logs, none = {"/nowhere/none.log": 1}, "/nowhere/none.log: it is not there (name the file as it is)"
    given = {"installed": False, "templates": [place / "templates"], "machines": TWO}
    (flaw,) = check_backend(Good(), [CARD], logs, only=["reading"], **given)
    assert str(flaw) == f"reading: log {none}"
    assert check_backend(Good(), [CARD], logs, only=["fuzz", "detection", "results"], **given) == []


@each_row(
    ("card", "what"), [({"nam": "x"}, "name"), ("/nowhere/models.json", "/nowhere/models.json"), ({"name": 1}, "name")]
)
def test_a_card_that_is_none_is_told_of_the_card(place, card, what):
    (flaw,) = check(Good(), place, "rendering", cards=[card])
    assert flaw.where == "cards" and what in flaw.what and "a card is {" in flaw.hint


def test_a_backend_without_a_plan_does_not_pass(place):
    assert any("good/none.j2" in flaw.what for flaw in check(broken(template="good/none.j2"), place, "rendering"))
    assert any("no card" in flaw.what for flaw in check(Good(), place, "rendering", cards=[]))
    refused = broken(expand=lambda self, *_: [])
    assert [flaw.check for flaw in check(refused, place)] == ["rendering"], "nothing else is there to be said"


@each_row("name", ["reading", "fuzz"])
def test_no_check_of_logs_passes_without_one(place, name):
    given = {"installed": False, "templates": [place / "templates"], "machines": TWO, "only": [name], "most": 3}
    flaws = check_backend(Good(), [CARD], **given)
    assert [(flaw.check, flaw.what) for flaw in flaws] == [(name, "there is no log to read")]
    unread = broken(result_rule=lambda self: ResultRule(kind="line"))
    assert check_backend(unread, [CARD], **given) == [], "what is not judged by steps has no log of them"


def test_templates_are_found_beside_a_class_that_is_inherited(tmp_path, monkeypatch):
    write_files(tmp_path)
    (tmp_path / "kit_base.py").write_text("from tests.testing.good import Good\nclass Base(Good):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    inherited = type("Inherited", (importlib.import_module("kit_base").Base,), {})()
    assert tmp_path / "templates" in Subject(inherited, installed=False).search
    given = {"installed": False, "machines": TWO, "only": ["rendering"]}
    assert check_backend(inherited, [CARD], {tmp_path / "good.log": 12}, **given) == []


def test_an_installed_backend_s_templates_are_those_that_a_run_finds():
    torchtitan, plugin = load_plugins().backends()["torchtitan"]
    beside = (plugin.folder / "templates", plugin.folder)
    assert Subject(torchtitan).search == (*beside, template_root(None))


def test_variables_that_a_check_sets_for_a_while_are_the_caller_s_again(place, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_own")
    assert check(Good(), place, "secrets") == []
    assert os.environ["HF_TOKEN"] == "hf_own"


def test_a_refusal_that_tells_a_secret_is_a_flaw(place):
    def refuses(self, request, machine):
        if token := os.environ.get("HF_TOKEN"):
            raise UsageProblem(f"{token} is no token")
        return Good.expand(self, request, machine)

    (flaw, *_) = check(broken(expand=refuses), place, "secrets")
    assert "refusal of" in flaw.where and flaw.what == "it holds the value of $HF_TOKEN"


def test_in_another_thread_than_the_first_everything_is_checked_without_a_limit(place):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(check, Good(), place, "members", "rendering").result() == []


def test_a_rule_that_explains_nothing_is_said(place):
    made = types.ModuleType("made")
    made.madlite_backends = hookimpl(lambda: [Good()])
    made.madlite_failure_rules = hookimpl(
        lambda: [
            FailureRule(pattern="a+", cause="x", example="aa"),
            FailureRule(pattern="b", cause="x", example="a"),
            FailureRule(pattern="c(", cause="x"),
            "nonsense",
        ]
    )
    subject = Subject(Good(), [CARD], installed=False, templates=[place / "templates"])
    subject.plugins.register("made", made, "made", "1")
    said = [flaw.what for flaw in run_check("failures", subject)]
    assert [text.partition(":")[0] for text in said] == ["key 'example'", "key 'pattern'", "it is no FailureRule"]


class Any(Good):
    """Takes any precision."""

    def variants(self, card, machine):
        yield Variant(model="good", micro_batch=2, steps=20)


@each_row(
    ("backend", "words", "what"),
    [
        (Good(), "", ""),
        (Any(), "", ""),  # what its script is not told is refused
        (Any(), "--precision {{ variant.precision | sh }}", "takes precision 'NO_SUCH_PRECISION'"),
    ],
)
def test_a_word_of_a_row_is_what_ran(tmp_path, backend, words, what):
    place = write_files(tmp_path)
    script = place / "templates/good/run.sh.j2"
    script.write_text(script.read_text().replace("-m good", f"-m good {words}"))
    flaws = [str(flaw) for flaw in check(backend, place, "effects")]
    assert bool(flaws) == bool(what) and any(what in flaw for flaw in flaws or [""])
