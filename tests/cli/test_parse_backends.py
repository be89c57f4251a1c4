"""Which backend reads a log, and how it is judged by a backend that says nothing of its results."""

from __future__ import annotations

import os
import types

import pytest

from madlite import PatternReader, ResultRule, TemplateBackend, hookimpl, step_pattern
from madlite.backends.loader import Plugins
from madlite.cli import setup
from madlite.cli.main import call
from madlite.measure.parse_log import HEAD_BYTES, take_head
from madlite.model import FailureRule, Quantity
from tests.cli.parsed_log import parsed


class Tiny(TemplateBackend):
    template, step = "", step_pattern(r"step=(?P<n>\d+) img=(?P<images_per_s_per_gpu>\S+) loss=(?P<loss>\S+)")

    def __init__(self, name="tiny", sure=0.5):
        self.name, self.sure = name, sure

    def detect(self, head):
        if self.sure is None:
            raise RuntimeError("oops")
        return self.sure if any("step=" in text for text in head) else 0.0


class Bare:
    """A backend that is no TemplateBackend: it says nothing of how its result is taken."""

    name = "bare"
    claim = expand = check = assets = None

    def __init__(self):
        self.claim = self.expand = self.check = self.assets = lambda *given: ()

    def detect(self, head):
        return 0.9

    def reader(self, plan):
        assert plan is None
        return PatternReader(step_pattern(r"step=(?P<n>\d+) img=(?P<images_per_s_per_gpu>\S+)"), "the end")


@pytest.fixture
def with_backends(monkeypatch, tmp_path):
    log = tmp_path / "x.log"
    log.write_text("".join(f"step={n} img={100 + n} loss=2\n" for n in range(1, 21)))

    def load(*backends):
        made = types.ModuleType("made")
        made.madlite_backends = hookimpl(lambda: list(backends))
        made.madlite_failure_rules = hookimpl(lambda: [FailureRule(pattern="boom", cause="boom", hint="mind it")])
        plugins = Plugins()
        plugins.register("made", made, "made", "1")
        monkeypatch.setattr(setup, "load", lambda *given: plugins)
        return log

    return load


def test_the_surest_has_it_and_a_tie_is_told(with_backends, capsys):
    log = with_backends(Tiny("a", 0.5), Tiny("b", 0.7), Tiny("c", None))
    assert parsed(capsys, log)["backend"] == "b"
    with_backends(Tiny("a", 0.5), Tiny("b", 0.5))
    assert call(["parse", str(log)]) == 4
    err = capsys.readouterr().err
    assert "a or b" in err and "--backend a" in err
    assert parsed(capsys, log, "--backend", "b")["backend"] == "b"


def test_a_backend_that_raises_is_told_of_once(with_backends, capsys):
    log = with_backends(Tiny("c", None))
    assert call(["parse", str(log)]) == 4
    assert capsys.readouterr().err.count("detect failed") == 1


def test_a_backend_without_a_rule_has_its_steps_judged(with_backends, capsys):
    log = with_backends(Bare())
    found = parsed(capsys, log)
    assert (found["window"]["quantity"], found["window"]["median"]) == ("images/s/GPU", 113)
    assert found["result"]["metrics"][-1]["metric"] == "images_per_s_per_gpu"
    assert any("no end mark" in finding for finding in found["findings"])
    log.write_text(log.read_text() + "boom\n")
    result = parsed(capsys, log, code=3)["result"]
    assert (result["cause"], result["evidence"]) == ("error_pattern", "boom") and "(boom)" in result["reason"]
    log.write_text(log.read_text() + "the end\n")
    found = parsed(capsys, log)
    assert found["result"]["status"] == "SUCCESS"
    assert any("looks like a failure (boom)" in finding for finding in found["findings"])


def test_the_headline_is_what_the_steps_have(with_backends, capsys):
    class Tokens(Tiny):
        def result_rule(self):
            return ResultRule(kind="steps", headline=Quantity.TOKENS_PER_S_PER_GPU, headline_metric="tok")

    found = parsed(capsys, with_backends(Tokens()))
    assert found["window"]["quantity"] == "images/s/GPU"
    assert found["result"]["metrics"][-1] == {"metric": "images_per_s_per_gpu", "text": "113", "value": 113}


def test_a_log_is_recognised_after_much_else(with_backends, capsys):
    log = with_backends(Tiny())
    log.write_text("#12 0.3 Collecting numpy\n" * 5000 + log.read_text())
    assert parsed(capsys, log)["training"]["steps"] == 20


def test_a_weak_guess_waits_for_what_more_lines_say(with_backends, capsys):
    class Late(Tiny):
        def detect(self, head):
            return 0.9 if any("step=" in text for text in head) else 0.0

    class Weak(Tiny):
        def detect(self, head):
            return 0.3

    log = with_backends(Late("late"), Weak("weak"))
    log.write_text("#12 0.3 Collecting numpy\n" * 5000 + log.read_text())
    assert parsed(capsys, log)["backend"] == "late"
    with_backends(Weak("weak"))
    assert parsed(capsys, log)["backend"] == "weak"


def test_nothing_is_written(with_backends, capsys, tmp_path, monkeypatch):
    log = with_backends(Tiny())
    monkeypatch.chdir(tmp_path)
    parsed(capsys, log)
    assert os.listdir(tmp_path) == ["x.log"]


def test_only_so_much_of_a_log_is_held_to_recognise_it():
    chunks = iter([bytes(1 << 20)] * 10)
    assert sum(map(len, take_head(chunks))) == HEAD_BYTES and len(list(chunks)) == 6
