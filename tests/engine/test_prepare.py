"""Surveys and fetches of the engine: several runs at once, images, data that a run makes, real containers."""

from __future__ import annotations

import os
import signal
import types

import pytest
from msgspec.structs import replace

from madlite.assets.paths import HUB_INSIDE, AssetRecord, find_asset, repo_folder, save_hub_record, use_prepared
from madlite.backends.loader import Plugins
from madlite.errors import CheckFailed, ExitCode, RuntimeProblem
from madlite.model import Action, Asset, Blocked, Cause, Image, Machine, Status, Traits
from madlite.plan.context import Options
from madlite.plan.plan_file import Rendered
from madlite.plan.submission import PlannedRun
from madlite.platforms.host.runtime import HostRuntime
from madlite.run.prepare import PrepareOptions, prepare_all, resolve
from madlite.store.folder import unfinished
from tests.assets.hub_server import Repo, hub_server
from tests.factories import BASE_IMAGE, HOST, make_plan
from tests.run.output import Output, bash

WIKI = Asset(kind="dataset", ref="wiki", source="made", path="m/wiki", env="DATA_DIR")
RUN = (Action(kind="run", argv=("bash", "run.sh"), cwd="{folder}"),)
MAKES = b"""
[ -n "${MADLITE_PREPARE_ONLY-}" ] || exit 9
mkdir -p "$DATA_DIR/sub"; echo text >"$DATA_DIR/sub/text.idx"; echo "token $MAD_SECRETS_X"
"""


class Lines:
    """Keeps what a person would see."""

    def __init__(self):
        self.texts, self.out, self.bytes = [], b"", 0

    def begin(self, lines, size, run):
        self.texts += lines

    def advance(self, done, text, run):
        self.bytes = done

    def phase(self, text, run):
        self.texts.append(text)

    def output(self, chunk, stream, run):
        self.out += chunk

    def end(self, lines, run=""):
        self.texts += [line.strip() for line in lines]

    def __getattr__(self, name):
        return lambda *args: None


@pytest.fixture
def hub():
    with hub_server() as hub:
        yield hub


@pytest.fixture
def environ(tmp_path, hub):
    more = {"HF_HOME": f"{tmp_path}/hf", "MADLITE_DATA_DIR": f"{tmp_path}/data", "HF_ENDPOINT": hub.url}
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_TOKEN": "good", **more}


def options(tmp_path, environ, **changes):
    return Options(workspace=tmp_path, output=tmp_path / "perf.csv", environ=environ, **changes)


def planned(tmp_path, assets=(), runtime=None, script=MAKES, run="r1", **changes):
    folder = tmp_path / "madlite_runs" / run
    values = {
        "id": run,
        "runtime": "host",
        "traits": HOST,
        "image": None,
        "inside": str(tmp_path),
        "actions": RUN,
        **changes,
    }
    plan = make_plan(tmp_path, **values)
    folder.rmdir()
    backend = types.SimpleNamespace(name="b", assets=lambda plan: assets)
    files = (Rendered(path="run.sh", data=script, template=tmp_path),)
    return PlannedRun(plan=plan, backends=(backend,), files=files, runtime=runtime or HostRuntime({**os.environ}))


def look(runs, tmp_path, environ, **wish):
    return resolve(runs, Plugins(), options(tmp_path, environ), PrepareOptions(**wish))


def fetch(found, tmp_path, environ, **changes):
    found.check()
    lines = Lines()
    return prepare_all(found, options(tmp_path, environ, **changes), lines, str), lines


def test_what_several_runs_need_is_fetched_once_with_all_their_patterns(tmp_path, hub, environ):
    hub.repos["models/lab/m"] = Repo({"a.json": b"{}", "b.bin": b"12", "c.txt": b"no"})
    one = Asset(kind="tokenizer", ref="lab/m", files=("*.json",))
    other = Asset(kind="model", ref="lab/m", files=("*.bin",))
    runs = [planned(tmp_path, [one], run="r1"), planned(tmp_path, [one, other], run="r2")]
    found = look(runs, tmp_path, environ)
    (need,) = found.requirements
    assert need.what == "model lab/m" and need.size == need.missing == 4
    done, _ = fetch(found, tmp_path, environ)
    assert done.exit_code is ExitCode.OK
    for asset in (one, other):
        assert find_asset(asset, tmp_path / "hf/hub", tmp_path / "data") is not None
    assert [need.state for need in look(runs, tmp_path, environ).requirements] == ["here"]


def test_a_run_that_a_rule_skips_needs_nothing(tmp_path, environ):
    skipped = Blocked(status=Status.SKIPPED, cause=Cause.DEPRECATED, reason="old")
    assert look([planned(tmp_path, [WIKI], blocked=skipped)], tmp_path, environ).requirements == ()


def test_too_few_gpus_here_keep_nothing_from_being_fetched(tmp_path, environ):
    few = Blocked(status=Status.FAILURE, cause=Cause.GPUS, reason="too few")
    assert len(look([planned(tmp_path, [WIKI], blocked=few)], tmp_path, environ).requirements) == 1


def test_files_of_a_server_are_refused_like_repositories_before_anything_is_fetched(tmp_path, hub, environ):
    hub.repos["models/lab/gated"] = Repo({"a.json": b"{}"}, gated=True)
    hub.files["/there"] = b"x"
    files = [
        Asset(kind="dataset", ref=f"{hub.url}/{name}", source="url", path=f"s/{name}", env="D")
        for name in ("there", "gone")
    ]
    runs = [planned(tmp_path, [Asset(kind="model", ref="lab/gated"), *files])]
    with pytest.raises(CheckFailed) as caught:
        look(runs, tmp_path, {**environ, "HF_TOKEN": "stranger"}).check()
    told = [caught.value.message, *(message for message, _ in caught.value.more)]
    assert len(told) == 2 and "lab/gated" in told[0] and "/gone cannot be fetched" in told[1]
    assert not (tmp_path / "data").exists()


def test_a_file_of_a_server_comes_with_its_progress(tmp_path, hub, environ):
    hub.files["/f"] = b"x" * 100_000
    asset = Asset(kind="dataset", ref=f"{hub.url}/f", source="url", path="s/f", env="D")
    done, lines = fetch(look([planned(tmp_path, [asset])], tmp_path, environ), tmp_path, environ)
    assert done.exit_code is ExitCode.OK and lines.bytes == 100_000
    assert lines.texts[0].startswith("[1/1] dataset s/f · http") and lines.texts[1] == f"READY {tmp_path}/data/s/f"
    assert lines.texts[-1] == "everything is here"


def test_what_each_run_fetches_for_itself_is_told_and_left(tmp_path, environ):
    each = Asset(kind="dataset", ref="squad", source="made", hint="by the run")
    found = look([planned(tmp_path, [each])], tmp_path, environ, offline=True)
    found.check()
    assert [(need.state, need.note, need.fetch) for need in found.requirements] == [("by each run", "by the run", None)]
    done, lines = fetch(found, tmp_path, environ)
    assert done.by_runs == ("dataset squad",)
    assert lines.texts == ["everything is here, but for what each run fetches: dataset squad"]


# --- data that a run's own preparation makes, as processes of this machine

made = pytest.mark.host


@made
def test_a_run_s_preparation_fills_the_folder_and_leaves_before_the_training(tmp_path, environ):
    secret = {**environ, "MAD_SECRETS_X": "hf_secret"}
    runs = [planned(tmp_path, [WIKI], HostRuntime({**os.environ, **secret}))]
    done, lines = fetch(look(runs, tmp_path, secret), tmp_path, secret)
    assert done.exit_code is ExitCode.OK, lines.texts
    assert (tmp_path / "data/m/wiki/sub/text.idx").read_text() == "text\n"
    assert b"hf_secret" not in lines.out and lines.out == b"token ***\n"
    assert [need.state for need in look(runs, tmp_path, secret).requirements] == ["here"]
    assert unfinished(tmp_path) == () and not (tmp_path / "perf.csv").exists()


@made
@pytest.mark.parametrize(
    ("script", "told"),
    [(b"echo begun >$DATA_DIR/x; echo no space >&2; exit 5", "exit code 5"), (b"true", "left nothing in")],
)
def test_a_preparation_that_fails_is_not_taken_for_data(tmp_path, environ, script, told):
    runs = [planned(tmp_path, [WIKI], script=script)]
    done, lines = fetch(look(runs, tmp_path, environ), tmp_path, environ)
    assert done.exit_code is ExitCode.RUN_FAILED and told in str(lines.texts)
    assert [need.state for need in look(runs, tmp_path, environ).requirements] == ["to make"]
    assert unfinished(tmp_path) == ()


@made
def test_a_preparation_has_no_limit_but_the_one_that_is_asked_for(tmp_path, environ):
    runs = [planned(tmp_path, [WIKI], script=b"sleep 300", timeout_s=0.1, stop_grace_s=0.1)]
    done, lines = fetch(look(runs, tmp_path, environ), tmp_path, environ, timeout_s=1)
    assert done.exit_code is ExitCode.RUN_FAILED and "timed out after 1 s" in str(lines.texts)


@made
def test_a_preparation_is_ended_by_ctrl_c_and_is_no_run_that_was_cut_off(tmp_path, environ):
    class Impatient(Lines):
        def output(self, chunk, stream, run):
            os.kill(os.getpid(), signal.SIGINT)

    later = Asset(kind="dataset", ref="later", source="made", path="m/later", env="DATA_DIR")
    one = planned(tmp_path, [WIKI, later], script=b"echo ready; exec sleep 300", stop_grace_s=0.2)
    done = prepare_all(look([one], tmp_path, environ), options(tmp_path, environ), Impatient(), str)
    assert done.exit_code is ExitCode.INTERRUPTED and done.left == ("dataset m/wiki", "dataset m/later")
    assert unfinished(tmp_path) == () and find_asset(WIKI, tmp_path, tmp_path / "data") is None


# --- with a real engine


def planned_in_docker(tmp_path, runtime, assets, run, image=BASE_IMAGE, **changes):
    values = {"image": Image(ref=image), "inside": "/myworkspace", "name": f"container_{run}", **changes}
    one = planned(tmp_path, assets, runtime, run=run, **values)
    return replace(one, plan=replace(one.plan, runtime="docker", traits=Traits()))


@pytest.mark.engine
def test_an_image_that_is_here_is_not_asked_for_and_one_that_is_nowhere_fails_alone(
    tmp_path, environ, runtime, docker_environ, base_image
):
    environ = {**environ, **docker_environ, "HOME": str(tmp_path)}
    runs = [
        planned_in_docker(tmp_path, runtime, (), "r1", BASE_IMAGE),
        planned_in_docker(tmp_path, runtime, (WIKI,), "r2", "localhost:9/nowhere:1"),
    ]
    found = look(runs, tmp_path, environ)
    assert [need.state for need in found.requirements] == ["here", "to fetch", "to make"]
    done, lines = fetch(look(runs, tmp_path, environ, images=True), tmp_path, environ)
    assert done.failed[0] == "image localhost:9/nowhere:1" and done.exit_code is ExitCode.RUN_FAILED
    assert [need.what for need in look(runs, tmp_path, environ, images=False).requirements] == ["dataset m/wiki"]
    with pytest.raises(CheckFailed, match="image localhost:9/nowhere:1 is not here"):
        look(runs, tmp_path, environ, offline=True).check()


@pytest.mark.engine
def test_a_container_prepares_into_the_folder_whose_files_are_the_caller_s(
    tmp_path, environ, runtime, docker_environ, base_image, client
):
    environ = {**environ, **docker_environ, "HOME": str(tmp_path)}
    one = planned_in_docker(tmp_path, runtime, (WIKI,), "r1", machine=Machine(pretended=True))
    done, lines = fetch(look([one], tmp_path, environ), tmp_path, environ, user=(1234, 1234))
    assert done.exit_code is ExitCode.OK, lines.texts
    text = tmp_path / "data/m/wiki/sub/text.idx"
    assert text.read_text() == "text\n"
    assert (text.stat().st_uid, text.parent.stat().st_gid) == (1234, 1234)
    assert client.containers(all=True, filters={"label": "madlite.run=r1"}) == []


READS = """
import os, pathlib
hub = pathlib.Path(os.environ["HF_HUB_CACHE"])
commit = (hub / "models--lab--m/refs/main").read_text()
print((hub / "models--lab--m/snapshots" / commit / "tokenizer.json").read_text())
print(os.environ["HF_HUB_OFFLINE"], os.environ["TRANSFORMERS_OFFLINE"], os.environ["HF_DATASETS_OFFLINE"])
print((pathlib.Path(os.environ["DATA_DIR"]) / "sub/text.idx").read_text().strip())
for place in (hub / "models--lab--m", pathlib.Path(os.environ["DATA_DIR"])):
    try:
        (place / "x").touch()
    except OSError as error:
        print(error.strerror)
"""


@pytest.mark.engine
def test_a_prepared_run_finds_everything_inside_and_can_change_none_of_it(
    tmp_path, hub, environ, runtime, docker_environ, base_image
):
    hub.repos["models/lab/m"] = Repo({"tokenizer.json": b'{"words": 3}'}, gated=True)
    environ = {**environ, **docker_environ, "HOME": str(tmp_path)}
    assets = (Asset(kind="tokenizer", ref="lab/m", gated=True, files=("tokenizer.json",)), WIKI)
    one = planned_in_docker(tmp_path, runtime, assets, "r1")
    done, lines = fetch(look([one], tmp_path, environ), tmp_path, environ)
    assert done.exit_code is ExitCode.OK, lines.texts
    hub.asked.clear()
    plan = use_prepared(planned_in_docker(tmp_path, runtime, assets, "r2").plan, assets, environ)
    plan.folder.mkdir(parents=True)
    output = Output()
    with runtime.open(plan) as session:
        script = bash(f"python3 - <<'END'\n{READS}\nEND\n")
        assert session.run(script, output).code == 0
    assert output.streams[1].decode().splitlines() == [
        '{"words": 3}', "1 1 1", "text", "Read-only file system", "Read-only file system",
    ]  # fmt: skip
    assert plan.env["HF_HUB_CACHE"] == HUB_INSIDE and hub.asked == []


def test_a_broken_record_is_as_if_nothing_were_prepared(tmp_path, environ):
    asset = Asset(kind="model", ref="lab/m")
    save_hub_record(asset, tmp_path / "hf/hub", tmp_path / "data", AssetRecord(ref="lab/m", files={}))
    for file in (repo_folder(asset, tmp_path / "hf/hub") / ".madlite").iterdir():
        file.write_bytes(b"\xff{")
    plan = make_plan(tmp_path)
    assert use_prepared(plan, (asset,), environ) == plan


@made
def test_what_another_command_made_meanwhile_is_not_made_again(tmp_path, environ):
    runs = [planned(tmp_path, [WIKI])]
    found = look(runs, tmp_path, environ)
    for _ in range(2):
        done, lines = fetch(found, tmp_path, environ)
        assert done.exit_code is ExitCode.OK
    assert lines.out == b""


def test_a_preparation_that_cannot_be_started_is_told(tmp_path, environ):
    class Broken(HostRuntime):
        def open(self, plan):
            raise RuntimeProblem("no room for a container", cause=Cause.PREPARE)

    runs = [planned(tmp_path, [WIKI], Broken({**os.environ}))]
    done, lines = fetch(look(runs, tmp_path, environ), tmp_path, environ)
    assert done.exit_code is ExitCode.RUN_FAILED and "no room for a container" in str(lines.texts)
    assert [need.state for need in look(runs, tmp_path, environ).requirements] == ["to make"]


def test_data_that_cannot_be_written_is_told_with_its_place(tmp_path, environ):
    runs = [planned(tmp_path, [WIKI])]
    found = look(runs, tmp_path, environ)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/m").write_text("a file in the way")
    done, lines = fetch(found, tmp_path, environ)
    assert done.exit_code is ExitCode.RUN_FAILED and "m/wiki cannot be written" in str(lines.texts)


def test_a_file_of_a_server_that_is_here_is_told_with_its_size(tmp_path, hub, environ):
    hub.files["/there"] = b"12345"
    asset = Asset(kind="dataset", ref=f"{hub.url}/there", source="url", path="there/x")
    assert fetch(look([planned(tmp_path, [asset])], tmp_path, environ), tmp_path, environ)[0].exit_code is ExitCode.OK
    (need,) = look([planned(tmp_path, [asset])], tmp_path, environ).requirements
    assert (need.state, need.size) == ("here", 5)


def test_an_image_whose_own_cache_hides_ours_is_told(tmp_path, hub, environ):
    hub.repos["models/lab/m"] = Repo({"a.json": b"{}"})
    run = planned(tmp_path, [Asset(kind="model", ref="lab/m")], env={"HF_HUB_CACHE": "/own"})
    run = replace(run, plan=replace(run.plan, runtime="docker", traits=Traits()))
    (need,) = [need for need in look([run], tmp_path, environ).requirements if need.what == "model lab/m"]
    assert "its container has a cache of its own (HF_HUB_CACHE=/own), and does not see this one" in need.note
