"""Every hook does what its specification says, has a test here, and a section in the docs."""

from __future__ import annotations

import inspect
import types
from pathlib import Path

import click
import msgspec
import pytest

from madlite.backends.loader import Plugins
from madlite.hookspecs import Hooks, hookimpl
from madlite.model import FailureRule, Finding, Quantity, Reference, Result, Status, Step, Traits, TreeCards
from madlite.plan.make import make_plan
from madlite.plan.submission import PlannedRun
from madlite.run.planning import check_plans
from tests.plan.conftest import given  # noqa: F401 - a fixture
from tests.rows import each_row

SPECS = [name for name in vars(Hooks) if name.startswith("madlite_")]


def plugins_with(name, function) -> Plugins:
    made = types.ModuleType("made")
    setattr(made, name, hookimpl(function))
    plugins = Plugins()
    plugins.register("made", made, "made", "1")
    assert not plugins.problems
    return plugins


@pytest.fixture
def plan(given):  # noqa: F811
    return make_plan(given())


def items(name, function):
    return [item for _, item in plugins_with(name, function).collect(name)]


@each_row("name", SPECS)
def test_a_hook_has_its_test_its_words_and_its_page(name):
    assert f"test_hook_{name.removeprefix('madlite_')}" in globals()
    text = inspect.getdoc(getattr(Hooks, name))
    assert "When:" in text and "Example::" in text
    parameters = [parameter for parameter in inspect.signature(getattr(Hooks, name)).parameters if parameter != "self"]
    assert not parameters or "Parameters:" in text
    assert f"### `{name}(" in Path("docs/plugins.md").read_text()


def test_hook_backends():
    from tests.backends.test_plugins import Tiny

    assert list(plugins_with("madlite_backends", lambda: [Tiny()]).backends()) == ["tiny"]


def test_hook_cards(tmp_path):
    def cards(trees):
        yield Path("models.json")
        for tree in trees:
            yield TreeCards(tree=tree, found=({"name": "tree/a"},))

    shipped = [{"name": "a"}, Path("models.json")]
    asked = {"trees": (tmp_path,)}
    assert [
        item for _, item in plugins_with("madlite_cards", lambda: shipped).collect("madlite_cards", **asked)
    ] == shipped
    of_tree = TreeCards(tree=tmp_path, found=({"name": "tree/a"},))
    found = plugins_with("madlite_cards", cards).collect("madlite_cards", **asked)
    assert [item for _, item in found] == [Path("models.json"), of_tree]


def test_hook_runtimes():
    runtime = types.SimpleNamespace(name="enroot", traits=Traits())
    assert plugins_with("madlite_runtimes", lambda: [runtime]).runtimes() == {"enroot": runtime}


def test_hook_failure_rules():
    rule = FailureRule(pattern="x", cause="y")
    assert items("madlite_failure_rules", lambda: [rule]) == [rule]


def test_hook_references():
    reference = Reference(model="m", device="MI300X", metric="x", value=1.0, source="s")
    plugins = plugins_with("madlite_references", lambda: [reference])
    assert list(plugins.references().values()) == [(reference,)] and not plugins.problems


@each_row(
    ("wrong", "words"),
    [
        ("9,500 tokens/s", "no Reference"),
        (Reference(model="m", device="", metric="x", value=1.0, source="s"), "key 'device' is missing"),
        (Reference(model="m", device="MI300X", metric="x", value=1.0, source=" "), "key 'source' is missing"),
        (Reference(model="m", device="MI300X", metric="x", value=float("nan"), source="s"), "no figure above 0"),
        (Reference(model="m", device="MI300X", metric="x", value="fast", source="s"), "key 'value' is wrong"),
    ],
)
def test_a_reference_that_cannot_be_compared_with_is_told_and_costs_no_other(wrong, words):
    good = Reference(model="m", device="MI300X", metric="x", value=1.0, source="s")
    plugins = plugins_with("madlite_references", lambda: [wrong, good])
    assert list(plugins.references().values()) == [(good,)]
    (problem,) = plugins.problems
    assert words in problem.what


def test_hook_commands():
    group = click.Group("g")
    plugins_with("madlite_commands", lambda group: group.add_command(click.Command("up"))).notify(
        "madlite_commands", group=group
    )
    assert list(group.commands) == ["up"]


def test_hook_exporters():
    board = types.SimpleNamespace(name="board", write=lambda rows, target, options: None)
    plugins = plugins_with("madlite_exporters", lambda: [board, types.SimpleNamespace(name="no write"), board])
    assert [exporter for exporter, _ in plugins.exporters().values()] == [board]
    assert [one.what.rpartition(":")[2].split()[-2:] for one in plugins.problems] == [["left", "out"]] * 2


def test_hook_adjust_plan(plan):
    plugins = plugins_with("madlite_adjust_plan", lambda plan: msgspec.structs.replace(plan, launcher="x"))
    assert plugins.adjust(plan, {}).launcher == "x"


def test_hook_checks(plan):
    plugins = plugins_with("madlite_checks", lambda plan: [Finding(message="odd"), Finding(message="odd")])
    one = PlannedRun(plan=plan, backends=(), files=(), runtime=None)  # type: ignore[arg-type]
    assert check_plans([one, one], plugins) == ([one, one], ("odd",))
    fatal = plugins_with("madlite_checks", lambda plan: [Finding(message="no way", hint="do x", fatal=True)])
    free = msgspec.structs.replace(one, plan=msgspec.structs.replace(plan, blocked=None))
    ((kept,), _) = check_plans([msgspec.structs.replace(free, requested=frozenset())], fatal)
    assert kept.plan.blocked.reason == "no way"


def heard(name, **arguments):
    calls = []
    if name == "madlite_run_started":
        plugins = plugins_with(name, lambda plan: calls.append(plan))
    elif name == "madlite_run_step":
        plugins = plugins_with(name, lambda plan, step: calls.append(step))
    else:
        plugins = plugins_with(name, lambda plan, result: calls.append(result))
    plugins.notify(name, **arguments)
    return calls


def test_hook_run_started(plan):
    assert heard("madlite_run_started", plan=plan) == [plan]


def test_hook_run_step(plan):
    step = Step(n=1, values={Quantity.LOSS: 1.0})
    assert heard("madlite_run_step", plan=plan, step=step) == [step]


def test_hook_run_finished(plan):
    result = Result(plan_id=plan.id, status=Status.SUCCESS)
    assert heard("madlite_run_finished", plan=plan, result=result) == [result]
