"""What the hub says before anything is fetched, and what is told of its refusals."""

from __future__ import annotations

import pytest

from madlite.assets.hub import Access, Refused, list_files
from madlite.assets.paths import Token
from madlite.model import Asset, Secret
from tests.assets.hub_server import LARGE, Repo
from tests.rows import each_row

pytestmark = pytest.mark.host  # against a real server of this machine

WEIGHTS = b"w" * (LARGE + 5)


def access(hub, token=""):
    return Access(endpoint=hub.url, token=Token(value=Secret(token), origin="HF_TOKEN") if token else None)


@pytest.fixture
def hub(hub):
    files = {"README.md": b"read", "config.json": b"{}", "model.safetensors": WEIGHTS}
    hub.repos["models/lab/open"] = Repo(files)
    hub.repos["models/lab/gated"] = Repo(files, gated=True)
    hub.repos["models/lab/private"] = Repo(files, private=True)
    hub.repos["datasets/lab/set"] = Repo({"en/part-0.gz": b"0" * 10, "en/part-1.gz": b"1" * 20})
    return hub


def test_a_listing_has_what_the_patterns_match_and_sizes(hub):
    found = list_files(Asset(kind="model", ref="lab/open", files=("*.json", "*.safetensors")), access(hub))
    assert found.files == {"config.json": 2, "model.safetensors": len(WEIGHTS)} and found.commit == "a" * 40
    assert found.bytes == 2 + len(WEIGHTS)


def test_nothing_is_fetched_by_asking(hub):
    list_files(Asset(kind="model", ref="lab/open"), access(hub))
    assert hub.gets("resolve") == [] and hub.gets("cdn") == []


def test_files_that_are_named_are_asked_for_by_their_names(hub):
    found = list_files(Asset(kind="dataset", ref="lab/set", files=("en/part-1.gz", "en/part-9.gz")), access(hub))
    assert found.files == {"en/part-1.gz": 20} and found.absent == ("en/part-9.gz",)
    assert hub.gets("tree") == [] and f"/api/datasets/lab/set/paths-info/{'a' * 40}" in [
        path for _, path, *_ in hub.asked
    ]


def refused(hub, token="", **values):
    with pytest.raises(Refused) as caught:
        list_files(Asset(**{"kind": "model", "ref": "lab/open", **values}), access(hub, token))
    return caught.value


def test_gated_without_a_token(hub):
    told = refused(hub, ref="lab/gated", gated=True, hint="--mock-data")
    assert told.message == "lab/gated is a gated repository, and there is no Hugging Face token"
    assert f"accept its conditions at {hub.url}/lab/gated" in told.hint
    assert "MAD_SECRETS_HFTOKEN" in told.hint and "HF_TOKEN" in told.hint and "--mock-data" in told.hint


def test_gated_with_the_token_of_somebody_who_did_not_accept(hub):
    told = refused(hub, "stranger", ref="lab/gated")
    assert "the account of the token in HF_TOKEN has no access to it" in told.message
    assert f"accept its conditions at {hub.url}/lab/gated" in told.hint and "stranger" not in told.message + told.hint


def test_gated_with_access(hub):
    assert list_files(Asset(kind="model", ref="lab/gated"), access(hub, "good")).files["config.json"] == 2


def test_a_listing_that_everybody_may_see_does_not_pass_for_access(hub):
    """The hub shows a gated repository's listing, and often its README, to everybody."""
    assert "gated" in refused(hub, ref="lab/gated", files=("*.json",)).message


@each_row("ref", ["lab/open", "lab/gated", "lab/unknown"])
def test_a_token_that_is_none(hub, ref):
    told = refused(hub, "wrong", ref=ref)
    assert told.message.startswith("the hub does not accept the token in HF_TOKEN")
    assert "settings/tokens" in told.hint and "wrong" not in told.message


@each_row("token", ["a b", "hf_ü", "hf\nx"])
def test_a_token_that_cannot_be_one_is_not_even_sent(hub, token):
    assert "HF_TOKEN has characters" in refused(hub, token).message
    assert hub.asked == []


@each_row(("token", "more"), [("", "if it is private: export MAD_SECRETS_HFTOKEN"), ("good", "private to others")])
def test_no_such_repository(hub, token, more):
    told = refused(hub, token, ref="lab/unknown")
    assert told.message == f"{hub.url} has no model repository lab/unknown" and more in told.hint


def test_a_private_repository_is_as_if_there_were_none(hub):
    assert "has no model repository lab/private" in refused(hub, ref="lab/private").message
    assert list_files(Asset(kind="model", ref="lab/private"), access(hub, "good")).files


def test_a_data_set_is_no_model(hub):
    assert "has no model repository lab/set" in refused(hub, ref="lab/set").message
    assert "has no data set repository lab/open" in refused(hub, kind="dataset").message


def test_no_such_revision(hub):
    told = refused(hub, revision="v9")
    assert told.message == f"lab/open on {hub.url} has no revision 'v9'"
    assert f"{hub.url}/lab/open/tree/main" in told.hint
    assert list_files(Asset(kind="model", ref="lab/open", revision="a" * 40), access(hub)).commit == "a" * 40


@each_row("files", [("*.gguf",), ("tokenizer.model",)])
def test_patterns_that_match_nothing(hub, files):
    told = refused(hub, files=files)
    assert told.message == f"lab/open on {hub.url} has no file that matches {files[0]}"
    assert told.hint == "it has README.md, config.json, model.safetensors"


def test_a_repository_of_many_files_is_not_told_in_full(hub):
    hub.repos["models/lab/many"] = Repo({f"{n}.txt": b"" for n in range(20)})
    assert refused(hub, ref="lab/many", files=("*.bin",)).hint.endswith("7.txt and 12 more")


def test_a_name_that_no_repository_can_have(hub):
    assert "'../odd name' is no name of a repository" in refused(hub, ref="../odd name").message


@each_row(("status", "word"), [(429, "429"), (503, "503")])
def test_a_hub_in_trouble(hub, status, word):
    hub.fail["/api/"] = status
    told = refused(hub)
    assert word in told.message and "try again later" in told.hint


def test_a_token_that_may_not_do_this(hub):
    hub.fail["/resolve/"] = 403
    assert "the hub refuses lab/open with the token in HF_TOKEN" in refused(hub, "good").message
    assert f"see {hub.url}/datasets/lab/set and" in refused(hub, "good", kind="dataset", ref="lab/set").hint


def test_no_network_is_one_refusal_whatever_was_asked_for():
    nowhere = Access(endpoint="http://127.0.0.1:9")
    told = []
    for asset in (Asset(kind="model", ref="lab/a"), Asset(kind="dataset", ref="lab/b", files=("x",))):
        with pytest.raises(Refused) as caught:
            list_files(asset, nowhere)
        told.append(caught.value.message)
    assert len(set(told)) == 1 and told[0].startswith("the hub at http://127.0.0.1:9 cannot be reached")


def test_a_mistake_of_ours_is_no_refusal(hub, monkeypatch):
    monkeypatch.setattr("madlite.assets.hub.matching", lambda *_: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        list_files(Asset(kind="model", ref="lab/open", files=("*",)), access(hub))


@each_row("endpoint", ["huggingface.co", "http://", "ftp://x", "http://[x", "http://h:x"])
def test_an_address_that_is_none_is_told(endpoint):
    with pytest.raises(Refused, match="cannot be reached"):
        list_files(Asset(kind="model", ref="lab/a"), Access(endpoint=endpoint))
