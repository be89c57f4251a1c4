"""Where a card's data comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.catalog.datasets import PROVIDERS, Provider
from madlite.errors import UsageProblem
from madlite.plan.data import Surroundings, plan_data
from madlite.types import Card, Secret

MINIO = {"MAD_MINIO": {"USERNAME": "reader", "PASSWORD": "hush", "MINIO_ENDPOINT": "http://store:9000"}}


def find(folder: Path, *sets: dict[str, Provider], data: tuple[str, ...] = (), **changes: object):
    names = tuple(f"set{n}" for n in range(len(sets)))
    asked = zip(names, sets, strict=True)
    table = {name: {kind: given[kind] for kind in PROVIDERS if kind in given} for name, given in asked}
    values = {
        "sets": table,
        "services": {},
        "workspace": folder,
        "inside": "/myworkspace",
        "folder": "/myworkspace/madlite_runs/r",
        "container": True,
        "reach": lambda endpoint: "",
    }
    card = Card(name="llama", root=folder, source="a test", data=data or names)
    return plan_data(card, Surroundings(**{**values, **changes}))


def test_a_local_folder_is_mounted_read_only_unless_it_may_be_written(tmp_path: Path) -> None:
    one = find(tmp_path, {"local": Provider(path=str(tmp_path))})
    (mount,) = one.mounts
    assert (mount.source, mount.target, mount.read_only) == (str(tmp_path), "/data_dlm_0", True)
    assert one.env == {"MAD_DATAHOME": "/data_dlm_0"} and one.actions == ()
    written = find(tmp_path, {"local": Provider(path=str(tmp_path), readwrite="true")})
    assert written.mounts[0].read_only is False


def test_a_local_home_is_where_the_data_is_mounted(tmp_path: Path) -> None:
    one = find(tmp_path, {"local": Provider(path=str(tmp_path), home="/data")})
    assert one.mounts[0].target == one.env["MAD_DATAHOME"] == "/data"


def test_several_sets_add_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    here = {"local": Provider(path="a")}
    both = find(tmp_path, here, here)
    assert both.env == {"MAD_DATAHOME": "/data_dlm_0,/data_dlm_1"}
    assert [mount.target for mount in both.mounts] == ["/data_dlm_0", "/data_dlm_1"]
    assert [use.name for use in both.uses] == ["set0", "set1"]


def test_the_first_provider_that_has_the_data_is_used(tmp_path: Path) -> None:
    (tmp_path / "fetch.sh").touch()
    providers = {"local": Provider(path=str(tmp_path)), "custom": Provider(path="fetch.sh", args="--n 3 $WHERE")}
    custom = find(tmp_path, providers)
    assert custom.uses[0].provider == "custom"
    (action,) = custom.actions
    assert "--n 3 $WHERE" in action.argv[2], "the workload's shell expands it"
    assert action.argv[-2:] == ("/data_dlm_0", "/myworkspace/fetch.sh")
    (tmp_path / "fetch.sh").unlink()
    assert find(tmp_path, providers).uses[0].provider == "local"


def test_minio_keeps_its_password_out_of_the_command(tmp_path: Path) -> None:
    one = find(tmp_path, {"minio": Provider(path="s3://bucket/key", home="/data")}, services=MINIO)
    (action,) = one.actions
    assert action.argv[-2:] == ("/data_0", "s3://bucket/key") and "hush" not in " ".join(action.argv)
    assert action.env["AWS_SECRET_ACCESS_KEY"] == Secret("hush")
    assert action.env["AWS_ENDPOINT_URL_S3"] == "http://store:9000"
    assert one.env == {"MAD_DATAHOME": "/data_0"}


def test_a_mirror_keeps_the_data_under_its_name(tmp_path: Path) -> None:
    (mount,) = find(tmp_path, {"minio": Provider(path="b/k", mirrorlocal="cache")}, services=MINIO).mounts
    assert (mount.source, mount.target, mount.create) == (str(tmp_path / "cache/set0"), "/data_dlm_0", True)


def test_an_endpoint_that_does_not_answer_is_passed_over_with_a_note(tmp_path: Path) -> None:
    one = find(tmp_path, {"minio": Provider(path="b/k")}, services=MINIO, reach=lambda endpoint: f"{endpoint} is down")
    assert one.uses == () and one.env == {} and "http://store:9000 is down" in one.notes[0]


def test_a_missing_folder_lets_the_script_run_without(tmp_path: Path) -> None:
    one = find(tmp_path, {"local": Provider(path="/nowhere")})
    assert one.uses == () and one.problem == "" and "/nowhere is not on this machine" in one.notes[0]


@pytest.mark.parametrize("provider", ["nas", "aws"])
def test_a_provider_madlite_does_not_have_is_refused_where_it_is_the_only_one(tmp_path: Path, provider: str) -> None:
    with pytest.raises(UsageProblem) as raised:
        find(tmp_path, {"local": Provider(path="/nowhere"), provider: Provider(path="x")})
    assert provider in raised.value.message and "/nowhere" in raised.value.message and raised.value.hint
    assert find(tmp_path, {"local": Provider(path=str(tmp_path)), provider: Provider(path="x")}).uses


def test_a_set_that_data_json_does_not_have_keeps_the_run_from_starting(tmp_path: Path) -> None:
    assert "'other'" in find(tmp_path, data=("other",)).problem


def test_without_data_json_the_script_is_told_to_look_itself(tmp_path: Path) -> None:
    one = find(tmp_path, data=("wiki",), sets=None)
    assert one.problem == "" and "wiki" in one.notes[0]


def test_on_the_host_data_lies_where_it_is(tmp_path: Path) -> None:
    local = find(tmp_path, {"local": Provider(path=str(tmp_path), home="/data")}, container=False)
    assert local.env == {"MAD_DATAHOME": str(tmp_path)} and local.mounts == ()
    kept = find(tmp_path, {"minio": Provider(path="b/k", mirrorlocal="m")}, services=MINIO, container=False)
    assert kept.env == {"MAD_DATAHOME": str(tmp_path / "m/set0")} and kept.mounts == ()


def test_a_store_that_nobody_names_is_passed_over_with_what_is_missing(tmp_path: Path) -> None:
    found = find(tmp_path, {"minio": Provider(path="set/x")})
    assert any("MAD_MINIO with MINIO_ENDPOINT is neither in the environment" in note for note in found.notes)


@pytest.mark.parametrize("path", ["data", "below/set"])
def test_a_folder_that_a_link_takes_out_of_the_working_folder_is_told(tmp_path: Path, path: str) -> None:
    space, disk = tmp_path / "space", tmp_path / "disk"
    (disk / "set").mkdir(parents=True)
    space.mkdir()
    (space / "data").symlink_to(disk / "set")
    (space / "below").symlink_to(disk)
    found = find(space, {"local": Provider(path=path)})
    assert found.notes == (f"data set 'set0': a link takes {space / path} to {disk / 'set'}",)
    assert find(space, {"local": Provider(path=str(disk / "set"))}).notes == (), "named as it is"
