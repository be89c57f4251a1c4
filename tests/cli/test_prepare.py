"""`madlite prepare` from its options to its exit code, against a stand-in for the hub."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from madlite.assets.hub import Access, list_files
from madlite.assets.paths import find_asset
from madlite.cli.main import call
from madlite.model import Asset
from tests import commands
from tests.assets.hub_server import Repo, hub_server
from tests.rows import each_row

pytestmark = pytest.mark.host  # against a real server of this machine

C4 = "en/c4-train.00000-of-01024.json.gz"
PART = os.urandom(2_000_000)
CARD = ["--tags", "demo_torchtitan_llama_debug", "--no-mock-data", "--runtime", "host"]
ARGS = [*CARD, "--set", "tokenizer_repo=meta-llama/tiny"]
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MAD_SECRETS_HFTOKEN", "MAD_SECRETS_HF_TOKEN")


@pytest.fixture
def hub():
    with hub_server() as hub:
        hub.repos["models/meta-llama/tiny"] = Repo(
            {"tokenizer.json": b"{}", "tokenizer_config.json": b"{ }", "README.md": b""}, gated=True
        )
        hub.repos["datasets/allenai/c4"] = Repo({C4: PART})
        yield hub


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, hub):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in (*TOKENS, "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "MADLITE_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("MAD_SECRETS_HFTOKEN", "good")


def prepared(capfd, *args):
    code = call(["prepare", *ARGS, *args])
    out = capfd.readouterr()
    return code, out.out, out.err


def explained(capfd, *args):
    code = call(["explain", "--json", *ARGS, *args])
    out = capfd.readouterr()
    return json.loads(out.out)[0] if code == 0 else {}, out.err


def test_a_card_that_nothing_can_be_planned_for_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["prepare", "--tags", "pyt_ncf_training", "--dry-run"]) == 4
    assert "needs a MAD checkout" in capsys.readouterr().err


def test_data_that_nobody_brings_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    card = {"scripts": "run.sh", "dockerfile": "base", "n_gpus": "-1", "args": "", "tags": ["t"]}
    cards = [{**card, "name": "lacks", "data": "wiki"}, {**card, "name": "fine"}]
    (tmp_path / "models.json").write_text(json.dumps(cards))
    (tmp_path / "data.json").write_text('{"wiki": {"aws": {"path": "s3://sets/wiki"}}}')
    (tmp_path / "run.sh").write_text("true\n")
    (tmp_path / "base.Dockerfile").write_text("# CONTEXT {}\nFROM scratch\n")
    assert call(["prepare", "--tags", "t", "--dry-run"]) == 4
    assert "no provider has data set 'wiki'" in capsys.readouterr().err
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert call(["prepare", "--tags", "fine", "--dry-run"]) == 0, "an engine that is not there may come later"


def test_a_dry_run_tells_what_is_needed_and_fetches_nothing(capfd, home, hub, token):
    code, out, _ = prepared(capfd, "--dry-run")
    assert code == 0 and hub.gets("resolve") == hub.gets("cdn") == []
    heads, tokenizer, data, total = out.splitlines()
    assert heads.split() == ["what", "from", "size", "state", "where"]
    assert tokenizer.split()[:2] == ["tokenizer", "meta-llama/tiny"] and "gated" in tokenizer
    assert f"1.9 MiB  to fetch  {home}/hf/hub" in data and total == "to fetch: 1.9 MiB"
    assert not (home / "hf").exists() and not (home / "cache").exists() and not list((home / "work").iterdir())


def test_everything_that_is_refused_is_told_at_once_and_nothing_is_fetched(capfd, home, hub):
    hub.repos.pop("datasets/allenai/c4")
    code, out, err = prepared(capfd)
    assert code == 4 and "unknown" in out
    assert f"accept its conditions at {hub.url}/meta-llama/tiny" in err and "MAD_SECRETS_HFTOKEN" in err
    assert "has no data set repository allenai/c4" in err
    assert hub.gets("resolve") == [] and not (home / "hf").exists()


def test_once_it_is_here_it_needs_neither_hub_nor_token(capfd, home, hub, token, monkeypatch):
    code, out, _ = prepared(capfd)
    assert code == 0 and out.splitlines()[-1] == "everything is here"
    monkeypatch.delenv("MAD_SECRETS_HFTOKEN")
    hub.asked.clear()
    code, out, err = prepared(capfd)
    assert (code, err) == (0, "") and [line.split()[-2] for line in out.splitlines()[1:3]] == ["here", "here"]
    plan, err = explained(capfd)
    cache = str(home / "hf/hub")
    offline = {"HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    assert plan["env"].items() >= offline.items()
    assert plan["notes"][-1] == f"meta-llama/tiny, allenai/c4: prepared in {cache}, nothing is fetched"
    assert "would be refused" not in err and hub.asked == []


def test_without_anything_prepared_a_plan_is_as_it_was(capfd):
    plan, err = explained(capfd)
    assert not any(name.startswith(("HF_", "TRANSFORMERS_")) for name in plan["env"]) and plan["mounts"] == []
    assert not any("prepare" in note for note in plan["notes"]) and "would be refused" in err


def test_a_part_that_is_missing_is_named(capfd, home, hub, token):
    assert prepared(capfd)[0] == 0
    for blob in (home / "hf/hub/datasets--allenai--c4/blobs").iterdir():
        blob.unlink()
    plan, _ = explained(capfd)
    assert "HF_HUB_OFFLINE" not in plan["env"]
    assert (
        "allenai/c4" in plan["notes"][-1] and "madlite prepare --tags demo_torchtitan_llama_debug" in plan["notes"][-1]
    )
    hub.asked.clear()
    code, out, _ = prepared(capfd)
    assert code == 0 and hub.gets("tiny") == [] and len(hub.gets("cdn")) == 1


@each_row("way", ["option", "variable"])
def test_offline_nobody_is_asked_and_what_is_missing_is_named(capfd, home, hub, token, monkeypatch, way):
    if way == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = prepared(capfd, *(["--offline"] if way == "option" else []))
    assert code == 4 and hub.asked == []
    assert "tokenizer meta-llama/tiny is not here in full" in err and "dataset allenai/c4 is not here in full" in err


def test_too_little_room_is_told_before_anything_is_fetched(capfd, home, hub, token, monkeypatch):
    monkeypatch.setattr("madlite.assets.paths.LEAST_BYTES", 10**18)
    code, _, err = prepared(capfd)
    assert code == 4 and hub.gets("cdn") == []
    assert f"too little room in {home}/hf/hub" in err and "bytes) are free" in err and "HF_HOME=" in err
    assert prepared(capfd, "--dry-run")[0] == 4


def test_a_fetch_that_fails_ends_with_3_and_the_rest_is_fetched(capfd, home, hub, token):
    hub.fail["/cdn/"] = 403
    code, out, _ = prepared(capfd)
    assert code == 3
    assert "FAILURE dataset allenai/c4" in out and "403" in out
    assert out.splitlines()[-1].startswith("failed: dataset allenai/c4; files that came are kept")
    assert (home / "hf/hub/models--meta-llama--tiny").exists()
    hub.fail.clear()
    assert prepared(capfd)[0] == 0


def test_the_token_is_shown_nowhere(capfd, hub, monkeypatch):
    monkeypatch.setenv("MAD_SECRETS_HFTOKEN", "hf_unguessable")
    code, out, err = prepared(capfd)
    assert code == 4 and "does not accept the token in MAD_SECRETS_HFTOKEN" in err
    hub.tokens["hf_unguessable"] = True
    code, out, more = prepared(capfd)
    assert code == 0 and "hf_unguessable" not in out + err + more


def test_a_branch_that_moved_is_fetched_where_it_is_asked_for(capfd, home, hub, token):
    assert prepared(capfd)[0] == 0
    hub.repos["datasets/allenai/c4"] = Repo({C4: PART[:-1]}, commit="e" * 40)
    assert prepared(capfd)[0] == 0 and len(hub.gets("cdn")) == 1
    code, out, _ = prepared(capfd, "--refresh")
    assert code == 0 and len(hub.gets("cdn")) == 2
    asset = Asset(kind="dataset", ref="allenai/c4", files=(C4,))
    assert find_asset(asset, home / "hf/hub", home / "data").name == "e" * 40


@each_row("value", ["http://[b", "huggingface.co"])
def test_an_address_of_the_hub_that_is_none_is_refused(capfd, token, monkeypatch, value):
    monkeypatch.setenv("HF_ENDPOINT", value)
    code, _, err = prepared(capfd)
    assert code == 4 and f"the hub at {value} cannot be reached" in err and "HF_ENDPOINT" in err


def test_blanks_around_the_address_of_the_hub_are_none_of_it(capfd, hub, token, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f" {hub.url}/ ")
    assert prepared(capfd)[0] == 0


def test_a_plan_s_own_variables_go_before_the_caller_s(capfd, home, hub, token, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "callers"))
    mine = home / "mine"
    own = [f"env.HF_ENDPOINT={hub.url}", "env.HF_HUB_OFFLINE=0", f"env.HF_HUB_CACHE={mine}"]
    code, _, err = prepared(capfd, *(word for one in own for word in ("--set", one)))
    assert code == 0, err
    assert {file.name for file in mine.iterdir()} >= {"models--meta-llama--tiny", "datasets--allenai--c4"}
    assert not (home / "callers").exists()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.asked.clear()
    code, _, err = prepared(capfd, "--set", "env.HF_HUB_OFFLINE=1")
    assert code == 4 and "is not here in full" in err and hub.asked == []


def test_a_cache_that_cannot_be_written_to_is_told_with_its_place(capfd, home, hub, token):
    (home / "hf").write_text("in the way")
    code, out, _ = prepared(capfd)
    assert code == 3 and f"tokenizer meta-llama/tiny cannot be written: {home}/hf" in out


def test_what_the_hub_does_not_have_is_told_with_who_asks_for_it(capfd, hub, token):
    code, _, err = prepared(capfd, "--set", "tokenizer_repo=meta-llama/none")
    assert code == 4 and "has no model repository meta-llama/none" in err
    assert "asked for by the recipe and settings of demo_torchtitan_llama_debug (backend torchtitan)" in err


def test_offline_a_cache_of_an_older_client_is_taken_by_its_look_and_used_from_then_on(capfd, home, hub, token):
    assert prepared(capfd)[0] == 0
    for place in (home / "hf/hub").glob("*--*"):
        shutil.rmtree(place / ".madlite")
        shutil.rmtree(place / "trees", ignore_errors=True)
    assert "HF_HUB_OFFLINE" not in explained(capfd)[0]["env"]
    hub.asked.clear()
    code, out, err = prepared(capfd, "--offline", "--dry-run")
    assert code == 0 and "complete as far as its own files show" in out
    assert "HF_HUB_OFFLINE" not in explained(capfd)[0]["env"], "a dry run notes nothing"
    assert prepared(capfd, "--offline")[0] == 0 and hub.asked == []
    assert explained(capfd)[0]["env"]["HF_HUB_OFFLINE"] == "1"


def test_runs_that_need_nothing_say_so(capfd, hub):
    assert call(["prepare", "--tags", "demo_torchtitan_llama_debug", "--runtime", "host"]) == 0
    assert capfd.readouterr().out.splitlines() == ["nothing is needed from elsewhere", "everything is here"]
    assert hub.asked == []


def test_help_loads_no_client_of_the_hub():
    code = "import sys; from madlite.cli.main import call; call(['prepare', '-h']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: madlite prepare" in done.stdout
    assert not {"huggingface_hub", "docker", "jinja2"} & set(done.stdout.splitlines()[-1].split())


# --- real processes


def start(*args):
    return commands.start(("prepare", *ARGS, *args), Path.cwd(), os.environ)


@pytest.mark.host
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_cut_off_in_the_middle_of_a_file_it_has_what_came_before_and_fetches_that_file_again(home, hub, token, number):
    hub.hold_after = 1_200_000
    running = start()
    try:
        assert hub.held.wait(240)
        running.send_signal(number)
        out, _ = running.communicate()
    finally:
        running.kill()
    assert running.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    if number != signal.SIGKILL:
        assert "Traceback" not in out and "not fetched: dataset allenai/c4; files that came are kept" in out
    asset = Asset(kind="dataset", ref="allenai/c4", files=(C4,))
    assert find_asset(asset, home / "hf/hub", home / "data") is None
    hub.hold_after = None
    hub.hold.set()
    hub.asked.clear()
    again = start()
    out, _ = again.communicate()
    assert again.returncode == 0, out
    assert hub.gets("tokenizer.json") == [] and len(hub.gets("cdn")) == 1
    assert (find_asset(asset, home / "hf/hub", home / "data") / C4).read_bytes() == PART
    assert list_files(asset, Access(endpoint=hub.url)).files == {C4: len(PART)}


@pytest.mark.host
def test_two_at_the_same_time_fetch_everything_once(home, hub, token):
    hub.hold_after = 500_000
    running = [start() for _ in range(2)]
    assert hub.held.wait(240)
    hub.hold_after = None
    hub.hold.set()
    for one in running:
        out, _ = one.communicate()
        assert one.returncode == 0, out
    assert len(hub.gets("cdn")) == 1


@pytest.mark.host
@pytest.mark.training
@pytest.mark.full
def test_a_prepared_run_trains_without_a_network(capfd, home, hub, token, monkeypatch):
    """torchtitan, with the tokenizer and the part of c4 that were prepared, and no hub to ask."""
    if find_spec("torchtitan") is None:  # which cannot be imported here where torch has no GPU: the run brings a shim
        (pytest.fail if os.environ.get("CI") else pytest.skip)("torchtitan is not installed")
    from tests.plugins.logs import TEMPLATES

    made = home / "made"
    command = [sys.executable, str(TEMPLATES / "torchtitan/make_assets.py"), "--tokenizer", "t", "--text", "x"]
    made.mkdir()
    subprocess.run(command, cwd=made, check=True)
    hub.repos["models/meta-llama/tiny"].files = {file.name: file.read_bytes() for file in (made / "t").iterdir()}
    hub.repos["datasets/allenai/c4"].files = {C4: gzip.compress((made / "x/data.json").read_bytes())}
    assert prepared(capfd)[0] == 0
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("MAD_SECRETS_HFTOKEN")
    assert call(["run", *ARGS, "--steps", "12"]) == 0
    assert "SUCCESS" in (home / "work/perf.csv").read_text()
