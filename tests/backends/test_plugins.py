"""Plugins: a broken one is named once and stops nothing else."""

from __future__ import annotations

import types
from pathlib import Path

import msgspec
import pytest

from madlite.backends import loader as room
from madlite.backends.loader import Plugins, load_plugins
from madlite.errors import PluginError, UsageProblem
from madlite.hookspecs import hookimpl
from madlite.model import Finding, Quantity, Step, Traits
from madlite.plan.make import make_plan
from madlite.run.backend_choice import find_backend
from tests.plan.conftest import given  # noqa: F401 - a fixture
from tests.rows import each_row


def module(**hooks) -> types.ModuleType:
    made = types.ModuleType("made")
    for name, function in hooks.items():
        setattr(made, name, hookimpl(function))
    return made


class Entry:
    """An entry point as importlib.metadata gives it."""

    def __init__(self, name, made, dist="other"):
        self.name, self.value, self._made = name, f"{name}_module", made
        self.dist = types.SimpleNamespace(name=dist, version="1.2")

    def load(self):
        if isinstance(self._made, BaseException):
            raise self._made
        return self._made


def load(monkeypatch, *entries, **options) -> Plugins:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: list(entries))
    return load_plugins(**options)


@each_row("error", [ImportError("no module named torch"), SystemExit(3), SyntaxError("bad"), ValueError("x\ny")])
def test_an_import_error_is_one_problem_and_the_rest_loads(monkeypatch, error):
    good = module(madlite_references=lambda: [1])
    plugins = load(monkeypatch, Entry("bad", error), Entry("good", good))
    assert list(plugins.loaded) == ["good"]
    (problem,) = plugins.problems
    assert "bad" in problem.where and "other" in problem.where and type(error).__name__ in problem.what
    assert "\n" not in problem.what


def test_a_hook_with_a_wrong_argument_is_named(monkeypatch):
    bad = module(madlite_run_started=lambda plan, colour: None)
    plugins = load(monkeypatch, Entry("bad", bad), Entry("good", module(madlite_references=lambda: [1])))
    assert list(plugins.loaded) == ["good"]
    assert "colour" in plugins.problems[0].what


def test_a_misspelt_hook_is_named_with_a_suggestion(monkeypatch):
    plugins = load(monkeypatch, Entry("odd", module(madlite_backend=lambda: [], madlite_references=lambda: [1])))
    assert "did you mean madlite_backends?" in plugins.problems[0].what
    assert [item for _, item in plugins.collect("madlite_references")] == [1]


def failing(*args, **kwargs):
    raise RuntimeError("oops")


def failing_later():
    yield 1
    raise RuntimeError("later")


@each_row("hook", [lambda: failing(), failing_later])
def test_an_exception_in_a_collecting_hook_is_named_once(monkeypatch, hook):
    plugins = load(
        monkeypatch, Entry("a", module(madlite_references=hook)), Entry("b", module(madlite_references=lambda: [2]))
    )
    for _ in range(3):
        assert [item for _, item in plugins.collect("madlite_references")] == [2]
    assert len(plugins.problems) == 1 and "RuntimeError" in plugins.problems[0].what


def test_an_exception_in_a_sink_is_named_once_and_the_others_hear(monkeypatch, given):  # noqa: F811
    heard = []
    plugins = load(
        monkeypatch,
        Entry("a", module(madlite_run_step=lambda plan, step: failing())),
        Entry("b", module(madlite_run_step=lambda step: heard.append(step.n))),
    )
    plan = make_plan(given())
    for n in range(3):
        plugins.notify("madlite_run_step", plan=plan, step=Step(n=n, values={Quantity.LOSS: 1.0}))
    assert heard == [0, 1, 2] and len(plugins.problems) == 1


def test_adjusting_a_plan_chains_and_leaves_its_mark(monkeypatch, given):  # noqa: F811
    replace = msgspec.structs.replace

    def louder(plan):
        return replace(plan, env={**plan.env, "NCCL_DEBUG": "INFO"}, launcher="mine")

    def seen(plan, options):
        return replace(plan, notes=(plan.launcher, options["x"]))

    plugins = load(
        monkeypatch,
        Entry("a", module(madlite_adjust_plan=louder)),
        Entry("b", module(madlite_adjust_plan=seen)),
        Entry("c", module(madlite_adjust_plan=lambda plan: None)),
        Entry("d", module(madlite_adjust_plan=lambda plan: "what")),
        Entry("e", module(madlite_adjust_plan=lambda plan: failing())),
    )
    plan = plugins.adjust(make_plan(given()), {"x": "1"})
    assert plan.notes == ("mine", "1") and plan.env["NCCL_DEBUG"] == "INFO"
    assert plan.origins["env.NCCL_DEBUG"] == plan.origins["launcher"] == "plugin a"
    assert [problem.where.split()[1] for problem in plugins.problems] == ["d", "e"]


class Tiny:
    name = "tiny"

    def claim(self, card, checkout): ...
    def expand(self, request, machine): ...
    def check(self, plan): ...
    def assets(self, plan): ...
    def detect(self, head): ...
    def reader(self, plan): ...


def test_two_backends_of_one_name_name_both_distributions(monkeypatch):
    made = module(madlite_backends=lambda: [Tiny()])
    plugins = load(monkeypatch, Entry("a", made, dist="left"), Entry("b", module(**vars_of(made)), dist="right"))
    with pytest.raises(PluginError, match=r"left.*right"):
        plugins.backends()


def vars_of(made):
    return {name: value for name, value in vars(made).items() if name.startswith("madlite_")}


def test_a_backend_or_runtime_that_lacks_something_is_left_out(monkeypatch):
    half = types.SimpleNamespace(name="half", claim=print)
    plugins = load(monkeypatch, Entry("a", module(madlite_backends=lambda: [half, Tiny()])))
    assert list(plugins.backends()) == ["tiny"]
    assert "expand" in plugins.problems[0].what
    # a runtime without a name is left out
    named, bare = types.SimpleNamespace(name="slurm", traits=Traits()), types.SimpleNamespace(name="")
    plugins = load(monkeypatch, Entry("r", module(madlite_runtimes=lambda: [bare, named, 3])))
    assert plugins.runtimes() == {"slurm": named}
    assert len(plugins.problems) == 2 and all("lacks a name" in one.what for one in plugins.problems)
    # a runtime without traits is left out
    plugins = load(monkeypatch, Entry("r", module(madlite_runtimes=lambda: [types.SimpleNamespace(name="slurm")])))
    assert plugins.runtimes() == {}
    (problem,) = plugins.problems
    assert problem.what.startswith("runtime ") and problem.what.endswith(" lacks traits; left out")


def test_plugins_can_be_switched_off(monkeypatch):
    ours, theirs = module(madlite_references=lambda: [1]), module(madlite_references=lambda: [2])
    entries = [Entry("theirs", theirs), Entry("ours", ours, dist="madlite")]
    assert list(load(monkeypatch, *entries).loaded) == ["ours", "theirs"]
    assert list(load(monkeypatch, *entries, only_built_in=True).loaded) == ["ours"]
    assert list(load(monkeypatch, *entries, disabled="1").loaded) == ["ours"]
    assert list(load(monkeypatch, *entries, disabled="x, theirs").loaded) == ["ours"]
    assert list(load(monkeypatch, *entries, disabled="other").loaded) == ["ours"], "the distribution's name"


def test_an_unknown_backend_gets_a_suggestion(monkeypatch):
    plugins = load(monkeypatch, Entry("a", module(madlite_backends=lambda: [Tiny()])))
    with pytest.raises(UsageProblem, match="--backend") as caught:
        find_backend(plugins, "tinny", "--backend")
    assert "did you mean tiny?" in caught.value.hint


def test_madlites_own_plugins_come_through_the_same_door():
    names = {entry.name for entry, distribution, _ in room._entry_points() if distribution == room.OURS}
    assert {"script", "torchtitan", "hf"} <= names
    assert {"script", "torchtitan", "hf"} <= set(load_plugins(only_built_in=True).backends())


def test_of_two_plugins_of_one_name_the_second_is_left_out(monkeypatch):
    first, second = module(madlite_references=lambda: [1]), module(madlite_references=lambda: [2])
    plugins = load(monkeypatch, Entry("same", first, "a"), Entry("same", second, "b"))
    assert [item for _, item in plugins.collect("madlite_references")] == [1]
    assert [(one.where, one.what) for one in plugins.problems] == [("plugin same", "b brings a second one; left out")]


def test_what_a_check_answers_that_is_no_finding_is_noted_and_left_out(monkeypatch, given):  # noqa: F811
    good = Finding(message="slow")
    plugins = load(monkeypatch, Entry("c", module(madlite_checks=lambda plan: ["odd", good])))
    assert plugins.checks(make_plan(given()), ()) == (good,)
    assert [one.what for one in plugins.problems] == ["check answered 'odd', which is no Finding"]


def test_a_plugin_may_be_an_object_whose_files_lie_beside_its_class(monkeypatch):
    class Plugin:
        @hookimpl
        def madlite_references(self):
            return [1]

    plugins = load(monkeypatch, Entry("object", Plugin()))
    assert [item for _, item in plugins.collect("madlite_references")] == [1]
    assert plugins.loaded["object"].folder == Path(__file__).parent
