"""Names that a hub, or a setting, calls things by: none of them becomes a path elsewhere."""

from __future__ import annotations

import pytest

from madlite.assets import tries
from madlite.assets.hub import Access, ask
from madlite.assets.hub_fetch import HubFetch
from madlite.assets.hub_words import Refused, Unknown
from madlite.assets.names import is_file_name, is_repo, is_revision
from madlite.assets.presence import find_snapshot
from madlite.model import Asset
from tests.assets.hub_server import Repo

MODEL = Asset(kind="model", ref="lab/small")
ODD_FILES = [
    "..\\evil",
    "../evil",
    "/abs/evil",
    "a/../../evil",
    "C:evil",
    "c:\\x",
    "a\x1b[2Jb",
    "a\nb",
    "a//b",
    "./a",
    "a\0b",
]
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


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setattr(tries, "TRIES", 1)


@pytest.mark.parametrize("name", ["config.json", "a/b/c.bin", "ä.txt", "..a", "a..b", ".gitattributes", "a b", "xy:z"])
def test_a_file_s_name_that_is_one(name):
    assert is_file_name(name)


@pytest.mark.parametrize("name", [*ODD_FILES, "", ".", "a/", "x" * 300, "\udcff"])
def test_a_file_s_name_that_is_none(name):
    assert not is_file_name(name)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B", "01-ai/Yi_34B", "a/b.c-d", "_x/y"])
def test_a_repository_s_name_that_is_one(name):
    assert is_repo(name)


@pytest.mark.parametrize("name", ODD_REPOS)
def test_a_repository_s_name_that_is_none_is_refused_unasked(hub, tmp_path, name):
    assert not is_repo(name)
    odd = Asset(kind="model", ref=name, files=("a",))
    with pytest.raises(Unknown, match="is no name of a repository") as refused:
        ask(odd, Access(endpoint=hub.url))
    assert refused.value.message.isprintable() and hub.asked == []
    assert find_snapshot(odd, tmp_path, tmp_path) is None


@pytest.mark.parametrize("revision", ["../../x", "a..b", "a\\b", "/x", "a b", "a\nb", "x/"])
def test_a_revision_that_is_none_is_refused_unasked_and_read_nowhere(hub, tmp_path, revision):
    assert not is_revision(revision) and is_revision("refs/pr/1") and is_revision("v1.0")
    (tmp_path / "x").write_text("a" * 40)
    odd = Asset(kind="model", ref="lab/small", revision=revision)
    with pytest.raises(Unknown, match="is no branch, tag or commit of lab/small"):
        ask(odd, Access(endpoint=hub.url))
    assert hub.asked == [] and find_snapshot(odd, tmp_path, tmp_path) is None


@pytest.mark.parametrize("name", ODD_FILES)
@pytest.mark.parametrize("patterns", [(), ("*",)])
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused_whole(hub, name, patterns):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}", name: b"evil"})
    asset = Asset(kind="model", ref="lab/small", files=patterns)
    with pytest.raises(Refused, match="names a file of lab/small .*, which would lie elsewhere") as refused:
        ask(asset, Access(endpoint=hub.url))
    assert refused.value.message.isprintable() and refused.value.hint


def test_an_odd_name_that_is_not_needed_costs_nothing(hub):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}", "..\\evil": b"evil"})
    wanted = Asset(kind="model", ref="lab/small", files=("*.json",))
    assert ask(wanted, Access(endpoint=hub.url)).files == {"config.json": 2}


@pytest.mark.parametrize("commit", ["../../../../evil", "/abs", "short", "a" * 41, "g" * 40])
def test_what_a_server_calls_a_commit_and_is_none_is_refused(hub, commit):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}"}, commit=commit)
    for patterns in ((), ("config.json",)):
        with pytest.raises(Refused):
            ask(Asset(kind="model", ref="lab/small", files=patterns), Access(endpoint=hub.url))


def test_a_commit_that_becomes_another_while_files_come_is_refused(hub, tmp_path):
    hub.repos["models/lab/small"] = Repo({"config.json": b"{}"})
    access = Access(endpoint=hub.url)
    listing = ask(MODEL, access)
    hub.repos["models/lab/small"].said = "../../../evil"
    with pytest.raises(Refused, match="names a commit of lab/small '../../../evil', which is none"):
        HubFetch(MODEL, tmp_path / "hub", tmp_path / "data", access, {}, print, lambda count: None).run(listing)
    assert not (tmp_path / "evil").exists()
