"""How a plan uses what is prepared; a machine without any of it plans as before."""

from __future__ import annotations

import types

import pytest

from madlite.assets.paths import (
    DATA_INSIDE,
    HUB_INSIDE,
    AssetRecord,
    needed_assets,
    repo_folder,
    save_hub_record,
    save_prepared_record,
    use_prepared,
)
from madlite.backends.loader import Plugins
from madlite.model import Asset, Machine, Mount
from madlite.plan.submission import PlannedRun
from madlite.run.planning import check_plans
from tests.factories import HOST, make_plan
from tests.rows import each_row

TOKENIZER = Asset(kind="tokenizer", ref="lab/Lama", gated=True, files=("tokenizer.json",))
DATA = Asset(kind="dataset", ref="lab/set")
FILE, OTHER = (
    Asset(kind="dataset", ref=f"http://x/{name}", source="url", path=f"sets/{name}", env="DATA_DIR")
    for name in ("a.bin", "a.idx")
)
WIKI = Asset(kind="dataset", ref="wiki", source="made", path="m/wiki", env="DATA_DIR")
EACH_RUN = Asset(kind="dataset", ref="squad", source="made")


@pytest.fixture
def environ(tmp_path):
    return {"HF_HOME": str(tmp_path / "hf"), "MADLITE_DATA_DIR": str(tmp_path / "data")}


@pytest.fixture
def bring(tmp_path):
    """Put assets where `madlite prepare` puts them."""

    def bring(*assets):
        for asset in assets:
            if asset.source == "hub":
                cache = tmp_path / "hf/hub"
                folder = repo_folder(asset, cache)
                file = folder / "snapshots" / ("a" * 40) / "tokenizer.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("{}")
                (folder / "refs").mkdir(exist_ok=True)
                (folder / "refs/main").write_text("a" * 40)
                record = AssetRecord(ref=asset.ref, files={"tokenizer.json": 2}, patterns=asset.files, commit="a" * 40)
                save_hub_record(asset, cache, tmp_path / "data", record)
            else:
                place = tmp_path / "data" / asset.path
                file = place if asset.source == "url" else place / "text.idx"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("x")
                save_prepared_record(asset, tmp_path / "data", {file.name: 1})

    return bring


def test_a_container_gets_the_cache_to_read_and_asks_nobody(tmp_path, environ, bring):
    bring(TOKENIZER, DATA)
    plan = use_prepared(make_plan(tmp_path), (TOKENIZER, DATA), environ)
    assert plan.mounts == tuple(
        Mount(source=f"{tmp_path}/hf/hub/{name}", target=f"{HUB_INSIDE}/{name}", read_only=True)
        for name in ("models--lab--Lama", "datasets--lab--set")
    )
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    assert plan.env == {"HF_HUB_CACHE": HUB_INSIDE, **offline}
    mounted = plan.origins[f"mount {HUB_INSIDE}/models--lab--Lama"]
    assert plan.origins["env.HF_HUB_OFFLINE"] == mounted == "madlite prepare"
    assert plan.notes == (f"lab/Lama, lab/set: prepared in {tmp_path}/hf/hub, nothing is fetched",)


def test_the_host_needs_no_mount(tmp_path, environ, bring):
    bring(TOKENIZER, WIKI)
    plan = use_prepared(make_plan(tmp_path, runtime="host", traits=HOST), (TOKENIZER, WIKI), environ)
    assert plan.mounts == () and plan.env["HF_HUB_CACHE"] == f"{tmp_path}/hf/hub" and plan.env["HF_HUB_OFFLINE"] == "1"
    assert plan.env["DATA_DIR"] == f"{tmp_path}/data/m/wiki"


def test_nothing_here_changes_nothing(tmp_path, environ):
    plan = make_plan(tmp_path)
    assert use_prepared(plan, (TOKENIZER, FILE, WIKI, EACH_RUN), environ) == plan
    assert use_prepared(plan, (), environ) == plan


def test_with_a_repository_missing_the_run_fetches_for_itself(tmp_path, environ, bring):
    bring(TOKENIZER)
    plan = use_prepared(make_plan(tmp_path), (TOKENIZER, DATA), environ)
    assert plan.mounts == () and plan.env == {}
    assert DATA.ref in plan.notes[0] and "madlite prepare --tags tiny" in plan.notes[0]


@pytest.mark.parametrize(("missing", "can"), [(WIKI, True), (FILE, True), (EACH_RUN, False)])
def test_repositories_that_are_here_are_used_though_the_run_fetches_something_else(
    tmp_path, environ, bring, missing, can
):
    """What it fetches may be of the hub as well: the cache around the repositories is the container's own."""
    bring(TOKENIZER)
    plan = use_prepared(make_plan(tmp_path), (TOKENIZER, missing), environ)
    assert [mount.target for mount in plan.mounts] == [f"{HUB_INSIDE}/models--lab--Lama"]
    assert plan.env == {"HF_HUB_CACHE": HUB_INSIDE}, "no switch keeps the rest from the network"
    (note,) = plan.notes
    assert note.startswith(f"lab/Lama: prepared in {tmp_path}/hf/hub, fetched by the run") and missing.ref in note
    assert ("madlite prepare --tags tiny" in note) is can
    host = use_prepared(make_plan(tmp_path, runtime="host", traits=HOST), (TOKENIZER, missing), environ)
    assert host.env == {"HF_HUB_CACHE": f"{tmp_path}/hf/hub"}


def test_what_repositories_share_is_mounted_too(tmp_path, environ, bring):
    bring(TOKENIZER)
    (tmp_path / "hf/hub/blobs").mkdir()
    plan = use_prepared(make_plan(tmp_path), (TOKENIZER,), environ)
    assert [mount.target for mount in plan.mounts] == [f"{HUB_INSIDE}/models--lab--Lama", f"{HUB_INSIDE}/blobs"]


@each_row("own", [{"HF_HUB_CACHE": "/mine"}, {"HUGGINGFACE_HUB_CACHE": "/mine"}, {"HF_HUB_OFFLINE": "0"}])
def test_a_cache_or_a_network_of_the_user_s_own_is_left_alone(tmp_path, environ, bring, own):
    bring(TOKENIZER)
    plan = make_plan(tmp_path, env=own)
    assert use_prepared(plan, (TOKENIZER,), environ) == plan


def test_a_switch_of_the_user_s_own_stays(tmp_path, environ, bring):
    bring(TOKENIZER)
    plan = use_prepared(make_plan(tmp_path, env={"HF_DATASETS_OFFLINE": "0"}), (TOKENIZER,), environ)
    assert plan.env["HF_DATASETS_OFFLINE"] == "0" and plan.env["HF_HUB_OFFLINE"] == "1"


def test_a_host_that_is_to_use_the_network_does(tmp_path, environ, bring):
    bring(TOKENIZER)
    plan = make_plan(tmp_path, runtime="host", traits=HOST)
    assert use_prepared(plan, (TOKENIZER,), {**environ, "HF_HUB_OFFLINE": "0"}) == plan


def test_a_host_plan_s_own_cache_is_where_is_looked(tmp_path, environ, bring):
    bring(TOKENIZER)
    moved = make_plan(tmp_path, runtime="host", traits=HOST, env={"HF_HOME": str(tmp_path / "other")})
    assert use_prepared(moved, (TOKENIZER,), environ) == moved


def test_files_of_one_folder_are_used_once_all_of_them_are_here(tmp_path, environ, bring):
    bring(FILE)
    plan = make_plan(tmp_path)
    assert use_prepared(plan, (FILE, OTHER), environ) == plan
    bring(OTHER)
    used = use_prepared(plan, (FILE, OTHER), environ)
    assert used.env == {"DATA_DIR": f"{DATA_INSIDE}/sets"}
    assert used.mounts == (Mount(source=f"{tmp_path}/data/sets", target=f"{DATA_INSIDE}/sets", read_only=True),)
    own = make_plan(tmp_path, env={"DATA_DIR": "/mine"})
    assert use_prepared(own, (FILE, OTHER), environ) == own


def test_another_machine_s_plan_knows_nothing_of_this_one(tmp_path, environ, bring):
    bring(TOKENIZER)
    plan = make_plan(tmp_path, machine=Machine(pretended=True))
    assert use_prepared(plan, (TOKENIZER,), environ) == plan


def backend(assets):
    return types.SimpleNamespace(
        name="b", check=lambda plan: (), assets=lambda plan: assets if "DATA_DIR" not in plan.env else ()
    )


def checked(tmp_path, environ, assets, **changes):
    plan = use_prepared(make_plan(tmp_path, **changes), assets, environ)
    ((one,), _) = check_plans([PlannedRun(plan=plan, backends=(backend(assets),), files=(), runtime=None)], Plugins())
    return one.plan.blocked


@pytest.mark.parametrize("others", [(), (EACH_RUN,), (WIKI,)])
def test_a_gated_repository_that_is_here_needs_no_token(tmp_path, environ, bring, others):
    refused = checked(tmp_path, environ, (TOKENIZER, *others))
    assert refused.reason.startswith("lab/Lama is a gated repository")
    assert "or madlite prepare --tags tiny once, after which runs need none" in refused.hint
    bring(TOKENIZER)
    assert checked(tmp_path, environ, (TOKENIZER, *others)) is None


def test_only_gated_repositories_that_are_not_here_want_a_token(tmp_path, environ, bring):
    other = Asset(kind="model", ref="lab/Other", gated=True)
    bring(TOKENIZER)
    assert checked(tmp_path, environ, (TOKENIZER, DATA), runtime="host", traits=HOST) is None
    reason = checked(tmp_path, environ, (TOKENIZER, other), runtime="host", traits=HOST).reason
    assert "lab/Other is a gated" in reason and "lab/Lama" not in reason
    in_container = checked(tmp_path, environ, (TOKENIZER, DATA))
    assert "lab/Lama" in in_container.reason, "a container sees nothing of an incomplete cache"


def test_a_repository_of_which_only_a_part_is_here_wants_a_token(tmp_path, environ, bring):
    weights = Asset(kind="model", ref="lab/Lama", gated=True, files=("*.safetensors",))
    bring(TOKENIZER)
    assert "lab/Lama" in checked(tmp_path, environ, (TOKENIZER, weights), runtime="host", traits=HOST).reason


def test_a_backend_is_asked_as_if_nothing_were_prepared(tmp_path, environ, bring):
    """Else data that is prepared would look like data of the user's own, and be needed no more."""
    bring(WIKI)
    plan = use_prepared(make_plan(tmp_path), (WIKI,), environ)
    assert needed_assets(plan, [backend([WIKI])], Plugins()) == (WIKI,)
    own = make_plan(tmp_path, env={"DATA_DIR": "/mine"})
    assert needed_assets(own, [backend([WIKI])], Plugins()) == ()
