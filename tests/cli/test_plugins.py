"""`madlite doctor --plugins`, and commands that plugins bring."""

from __future__ import annotations

import json
import types

import click
import pytest

from madlite.cli.main import Commands, call, main
from madlite.hookspecs import hookimpl
from tests.backends.test_plugins import Entry, module


@pytest.fixture
def installed(monkeypatch):
    """Install plugins: modules or what their import raises, by name."""
    from importlib import metadata

    ours = list(metadata.entry_points(group="madlite"))

    def install(**made: object) -> None:
        entries = [Entry(name, one) for name, one in made.items()]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [*ours, *entries])
        monkeypatch.setattr(main, "commands", {})
        monkeypatch.delitem(main.__dict__, "_asked_plugins", raising=False)

    yield install
    main.__dict__.pop("_asked_plugins", None)


def test_plugins_are_listed_with_what_they_bring_and_what_is_wrong(installed, capsys):
    installed(good=module(madlite_references=lambda: []), bad=ImportError("no module named torch"))
    assert call(["doctor", "--plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("good  (other 1.2)")
    assert lines[at + 1] == "    hooks     madlite_references"
    at = lines.index("torchtitan  (built in)")
    assert "madlite_backends" in lines[at + 1] and lines[at + 2] == "    backends  torchtitan"
    (problem,) = [line for line in lines if line.startswith("problem: ")]
    assert problem.startswith("problem: plugin bad (other): cannot be loaded: ImportError: no module named torch")


def test_without_third_party_plugins_only_our_own_are_listed(installed, capsys):
    installed(good=module(madlite_references=lambda: []))
    assert call(["doctor", "--plugins", "--no-plugins", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["plugins"]]
    assert "good" not in names and "torchtitan" in names


def brings(*commands: click.Command) -> types.ModuleType:
    made = types.ModuleType("made")

    def madlite_commands(group):
        for one in commands:
            group.add_command(one)

    made.madlite_commands = hookimpl(madlite_commands)
    return made


def test_a_plugin_adds_commands_and_replaces_none_of_ours(installed, capsys):
    @click.command("greet", help="Say hello.")
    def greet():
        click.echo("hello")

    @click.command("run", help="Something else.")
    def run():
        raise AssertionError("not reached")

    installed(greeter=brings(greet, run))
    assert call(["greet"]) == 0 and capsys.readouterr().out == "hello\n"
    assert call(["--help"]) == 0
    page = capsys.readouterr().out
    assert "Say hello." in page and "Something else." not in page
    assert isinstance(main, Commands) and main.get_command(None, "run").callback is not run.callback


def test_a_command_of_a_plugin_that_is_switched_off_is_none(installed, capsys, monkeypatch):
    monkeypatch.setenv("MADLITE_DISABLE_PLUGINS", "1")
    installed(greeter=brings(click.Command("greet")))
    assert call(["greet"]) == 4 and "no such command 'greet'" in capsys.readouterr().err
