"""Names that a hub, or a setting, calls things by: none of them becomes a path elsewhere."""

from __future__ import annotations

import threading

import pytest

from madlite.assets.hub import Access, Refused, RepoDownload, list_files
from madlite.assets.paths import find_snapshot
from madlite.errors import RuntimeProblem
from madlite.model import Asset
from tests.assets.hub_server import Repo
from tests.rows import each_row

MODEL = Asset(kind="model", ref="lab/small")
ODD_FILES = ["../evil", "/abs/evil", "a/../../evil", "a\x1b[2Jb", "a\nb", "a//b", "./a", "a\0b"]
ODD_REPOS = [
    "..\\evil",
    "../evil",
    "/abs",
    "a/b/c",
    "-a/b",
    "a/.b",
    "lab/small.",
    "a--b",
    "a b",
    "a\nb",
    "",
    "..",
    "a/\x1b",
]


@each_row("name", ODD_REPOS)
def test_a_repository_s_name_that_is_none_is_refused_unasked(hub, tmp_path, name):
    odd = Asset(kind="model", ref=name, files=("a",))
    with pytest.raises(Refused, match="is no name of a repository") as refused:
        list_files(odd, Access(endpoint=hub.url))
    assert refused.value.message.isprintable() and hub.asked == []
    assert find_snapshot(odd, tmp_path, tmp_path) is None


@each_row("revision", ["../../x", "a\nb", "a\0b"])
def test_a_revision_that_is_none_is_refused_and_read_nowhere(hub, tmp_path, revision):
    (tmp_path / "x").write_text("a" * 40)
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}"})
    odd = Asset(kind="model", ref="lab/small", revision=revision)
    with pytest.raises(Refused):
        list_files(odd, Access(endpoint=hub.url))
    assert find_snapshot(odd, tmp_path, tmp_path) is None


@each_row("name", ODD_FILES)
@each_row("patterns", [(), ("*",)])
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused_whole(hub, name, patterns):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}", name: b"evil"})
    asset = Asset(kind="model", ref="lab/small", files=patterns)
    with pytest.raises(Refused, match="names a file of lab/small .*, which would lie elsewhere") as refused:
        list_files(asset, Access(endpoint=hub.url))
    assert refused.value.message.isprintable() and refused.value.hint


def test_an_odd_name_that_is_not_needed_costs_nothing(hub):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}", "../evil": b"evil"})
    wanted = Asset(kind="model", ref="lab/small", files=("*.json",))
    assert list_files(wanted, Access(endpoint=hub.url)).files == {"config.json": 2}


@each_row("commit", ["../../../../evil", "/abs", "short", "a" * 41, "g" * 40])
def test_what_a_server_calls_a_commit_and_is_none_is_refused(hub, commit):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}"}, commit=commit)
    for patterns in ((), ("config.json",)):
        with pytest.raises(Refused):
            list_files(Asset(kind="model", ref="lab/small", files=patterns), Access(endpoint=hub.url))


def test_a_commit_that_becomes_another_while_files_come_is_refused(hub, tmp_path):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}"})
    access = Access(endpoint=hub.url)
    listing = list_files(MODEL, access)
    hub.repos["models/lab/small"].said = "../../../evil"
    with pytest.raises((RuntimeProblem, Refused, ValueError)):
        RepoDownload(MODEL, listing, access, tmp_path / "hub", print, threading.Event()).run(tmp_path / "data")
    assert not (tmp_path / "evil").exists()
