"""Where a card's data comes from."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from madlite.catalog.datasets import PROVIDERS, Provider
from madlite.model import Card, Machine, Request, RunSpec, Secret, Traits
from madlite.plan.actions import plan_data
from madlite.plan.context import Context, Options
from madlite.plan.inputs import RunInputs
from madlite.plan.place import RuntimeChoice
from tests.rows import each_row

MINIO = {"MAD_MINIO": ({"USERNAME": "reader", "PASSWORD": "hush", "MINIO_ENDPOINT": "http://store:9000"},)}
AWS = {"MAD_AWS_S3": ({"USERNAME": "reader", "PASSWORD": "hush"},)}
NODE = {"NAME": "attic", "HOST": "nas.lab", "PORT": "2222", "USERNAME": "reader", "PASSWORD": "hush"}


def find(folder: Path, *sets: dict[str, Provider], data: tuple[str, ...] = (), **changes: object):
    names = tuple(f"set{n}" for n in range(len(sets)))
    asked = zip(names, sets, strict=True)
    table = {name: {kind: given[kind] for kind in PROVIDERS if kind in given} for name, given in asked}
    card = Card(name="llama", root=folder, source="a test", data=data or names)
    containerised = changes.pop("container", True)
    inputs = RunInputs(
        run_id="r",
        request=Request(card=card, tag="llama"),
        backend="tiny",
        spec=RunSpec(),
        machine=Machine(),
        options=Options(workspace=folder, output=folder / "perf.csv"),
        context=Context(),
        runtime=RuntimeChoice(runtime="any", origin="a test", traits=Traits(containerised=containerised)),
        args="",
        data_sets=table,
    )
    return plan_data(replace(inputs, **changes))


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
    assert action.argv[4:6] == ("/data_0", "s3://bucket/key") and "hush" not in " ".join(action.argv)
    assert action.argv[6:] == ("--region", "us-east-1", "--endpoint-url", "http://store:9000")
    assert action.env["AWS_SECRET_ACCESS_KEY"] == Secret("hush")
    assert action.env["AWS_ENDPOINT_URL_S3"] == "http://store:9000"
    assert one.env == {"MAD_DATAHOME": "/data_0"}


def test_a_mirror_keeps_the_data_under_its_name(tmp_path: Path) -> None:
    (mount,) = find(tmp_path, {"minio": Provider(path="b/k", mirrorlocal="cache")}, services=MINIO).mounts
    assert (mount.source, mount.target, mount.create) == (str(tmp_path / "cache/set0"), "/data_dlm_0", True)


def test_an_endpoint_that_does_not_answer_is_passed_over_with_a_note(tmp_path: Path) -> None:
    one = find(
        tmp_path, {"minio": Provider(path="b/k")}, services=MINIO, check_endpoint=lambda endpoint: f"{endpoint} is down"
    )
    assert one.uses == () and one.env == {} and "http://store:9000 is down" in one.notes[0]


def test_a_folder_that_is_missing_lets_the_script_run_without(tmp_path: Path) -> None:
    one = find(tmp_path, {"local": Provider(path="/nowhere")})
    assert one.uses == () and one.problem == "" and "/nowhere is not on this machine" in one.notes[0]
    # without data json the script is told to look itself
    one = find(tmp_path, data=("wiki",), data_sets=None)
    assert one.problem == "" and "wiki" in one.notes[0]
    # a set that data json does not have keeps the run from starting
    assert "'other'" in find(tmp_path, data=("other",)).problem


def test_aws_is_asked_in_its_region_and_keeps_its_keys_out_of_the_command(tmp_path: Path) -> None:
    asked: list[str] = []
    one = find(
        tmp_path,
        {"aws": Provider(path="s3://sets/wiki")},
        services=AWS,
        check_endpoint=lambda at: asked.append(at) or "",
    )
    (action,) = one.actions
    assert asked == ["https://s3.us-east-2.amazonaws.com"]
    assert action.argv[4:] == ("/data_dlm_0", "s3://sets/wiki", "--region", "us-east-2")
    assert action.env["AWS_ACCESS_KEY_ID"] == Secret("reader") and "hush" not in " ".join(action.argv)
    assert "AWS_ENDPOINT_URL" not in action.env and action.timeout_s == 3600
    own = {"MAD_AWS_S3": ({**AWS["MAD_AWS_S3"][0], "REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "http://gate:80"},)}
    (action,) = find(tmp_path, {"aws": Provider(path="b")}, services=own).actions
    assert action.argv[-4:] == ("--region", "eu-west-1", "--endpoint-url", "http://gate:80")


def test_data_that_only_aws_has_keeps_the_run_from_starting_where_aws_cannot_give_it(tmp_path: Path) -> None:
    providers = {"local": Provider(path="/nowhere"), "aws": Provider(path="s3://b/k")}
    unnamed = find(tmp_path, providers).problem
    assert "card 'llama'" in unnamed and "MAD_AWS_S3" in unnamed and "/nowhere is not on this machine" in unnamed
    unreached = find(tmp_path, providers, services=AWS, check_endpoint=lambda at: f"{at} is down").problem
    assert "https://s3.us-east-2.amazonaws.com is down" in unreached
    assert find(tmp_path, {**providers, "local": Provider(path=str(tmp_path))}).problem == ""


def test_a_nas_is_copied_to_a_mirror_and_mounted_in_a_container_without_one(tmp_path: Path) -> None:
    services = {"NAS_NODES": (NODE,)}
    (copied,) = find(tmp_path, {"nas": Provider(path="/sets/wiki/", mirrorlocal="m")}, services=services).actions
    (mounted,) = find(tmp_path, {"nas": Provider(path="/sets/wiki/")}, services=services).actions
    (on_host,) = find(tmp_path, {"nas": Provider(path="/sets/wiki/")}, services=services, container=False).actions
    for action in (copied, mounted, on_host):
        assert action.argv[-2:] == ("reader@nas.lab:/sets/wiki", "2222")
        assert action.env == {"SSHPASS": Secret("hush")} and "hush" not in " ".join(action.argv)
    assert "rsync -azs " in copied.argv[2] and copied.timeout_s == 2400
    assert "sshfs" in mounted.argv[2] and "rsync" not in mounted.argv[2] and mounted.timeout_s == 120
    assert "rsync -azs " in on_host.argv[2] and "apt-get" not in on_host.argv[2], "a machine is its owner's"


def test_the_first_storage_that_answers_is_used(tmp_path: Path) -> None:
    nodes = ({"NAME": "half"}, {**NODE, "PORT": "a"}, {**NODE, "HOST": "down.lab"}, NODE)
    down = lambda at: "down.lab is down" if "down" in at else ""  # noqa: E731
    one = find(tmp_path, {"nas": Provider(path="/s")}, services={"NAS_NODES": nodes}, check_endpoint=down)
    assert one.actions[0].argv[-2] == "reader@nas.lab:/s"
    (note,) = find(tmp_path, {"nas": Provider(path="/s")}, services={"NAS_NODES": nodes[:3]}, check_endpoint=down).notes
    for why in ("half of NAS_NODES has no HOST, USERNAME, PASSWORD", "PORT 'a' is no number", "down.lab is down"):
        assert why in note
    (note,) = find(tmp_path, {"nas": Provider(path="/s")}).notes
    assert "NAS_NODES is neither in the environment nor in credential.json" in note


def test_on_the_host_data_lies_where_it_is(tmp_path: Path) -> None:
    local = find(tmp_path, {"local": Provider(path=str(tmp_path), home="/data")}, container=False)
    assert local.env == {"MAD_DATAHOME": str(tmp_path)} and local.mounts == ()
    kept = find(tmp_path, {"minio": Provider(path="b/k", mirrorlocal="m")}, services=MINIO, container=False)
    assert kept.env == {"MAD_DATAHOME": str(tmp_path / "m/set0")} and kept.mounts == ()


def test_a_store_that_nobody_names_is_passed_over_with_what_is_missing(tmp_path: Path) -> None:
    found = find(tmp_path, {"minio": Provider(path="set/x")})
    assert any("MAD_MINIO with MINIO_ENDPOINT is neither in the environment" in note for note in found.notes)


@each_row("path", ["data", "below/set"])
def test_a_folder_that_a_link_takes_out_of_the_working_folder_is_told(tmp_path: Path, path: str) -> None:
    space, disk = tmp_path / "space", tmp_path / "disk"
    (disk / "set").mkdir(parents=True)
    space.mkdir()
    (space / "data").symlink_to(disk / "set")
    (space / "below").symlink_to(disk)
    found = find(space, {"local": Provider(path=path)})
    assert found.notes == (f"data set 'set0': a link takes {space / path} to {disk / 'set'}",)
    assert find(space, {"local": Provider(path=str(disk / "set"))}).notes == (), "named as it is"
