"""Data that comes from elsewhere: from buckets with the real client, from storages with stand-ins of their tools."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.checkout import Checkout
from tests.engine.own_python import USUAL, offer

SECRET = "s3cret-word"
SCRIPT = 'env | grep -cE "AWS_ACCESS_KEY|SSHPASS"; echo "performance: $(cat "$MAD_DATAHOME/n.txt") x"\n'
STAND_INS = {
    "ssh": "exit 9\n",
    "sshpass": f'test "$1" = -e && test "$SSHPASS" = {SECRET} && shift && exec "$@"\n',
    "rsync": 'echo "rsync $*"; for last; do :; done; echo 99 > "$last/n.txt"\n',
    "sshfs": f'test "$SSHPASS" = {SECRET} && echo "sshfs $*" && echo 98 > "$2/n.txt"\n',
}


def write(folder: Path, name: str, table: object) -> None:
    (folder / name).write_text(json.dumps(table))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An S3-compatible server on loopback with a few objects; yields its address."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "reader", "aws_secret_access_key": SECRET}
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    s3.create_bucket(Bucket="sets")
    for key, text in {"wiki/n.txt": "99", "wiki2/n.txt": "1", "n.txt": "97", "other.txt": "1"}.items():
        s3.put_object(Bucket="sets", Key=key, Body=f"{text}\n".encode())
    yield endpoint
    server.stop()


def fetch(checkout: Checkout, provider: str, service: dict[str, object], path: str, *more: str, **fields: object):
    """Run a card whose data is in the bucket, with the client of this very Python."""
    write(checkout.folder, "data.json", {"wiki": {provider: {"path": path, **fields}}})
    write(checkout.folder, "credential.json", service)
    checkout.card("m", SCRIPT, data="wiki")
    places, environ = {}, f"{sys.prefix}/bin:{USUAL}"
    if checkout.runtime == "docker":
        places, environ = offer("awscli", "aws", checkout.folder.parent / "client")
    context = {"docker_mounts": places, "docker_env_vars": {"PATH": environ}}
    return checkout.run("--tags", "m", "-c", json.dumps(context), *more)


def minio(endpoint: str) -> dict[str, object]:
    return {"MAD_MINIO": {"USERNAME": "reader", "PASSWORD": SECRET, "MINIO_ENDPOINT": endpoint}}


def assert_came(checkout: Checkout, done, provider: str, number: str) -> dict[str, str]:
    """Check that the data came, and that no later step, file or line has the secret; return the row."""
    (row,) = checkout.rows
    log = next(checkout.folder.glob("madlite_runs/*/run.log")).read_text()
    assert (done.returncode, row["performance"]) == (0, number), done.stdout + done.stderr + log
    assert (row["dataname"], row["data_provider_type"]) == ("wiki", provider)
    written = [path for path in checkout.folder.rglob("*") if path.is_file() and path.name != "credential.json"]
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in done.stdout + done.stderr
    assert "\n0\n" in log, "the keys are the fetch's alone"
    assert float(row["data_download_duration"]) > 0
    checkout.assert_nothing_left()
    return row


def test_minio_data_comes_from_the_bucket(checkout: Checkout, bucket: str) -> None:
    assert assert_came(checkout, fetch(checkout, "minio", minio(bucket), "s3://sets/wiki"), "minio", "99")["data_size"]


@pytest.mark.parametrize(("path", "number"), [("s3://sets/wiki/", "99"), ("sets/n.txt", "97"), ("s3://sets", "97")])
def test_aws_data_is_a_folder_an_object_or_a_bucket(on_host: Checkout, bucket: str, path: str, number: str) -> None:
    service = {"MAD_AWS_S3": {"USERNAME": "reader", "PASSWORD": SECRET, "AWS_ENDPOINT_URL_S3": bucket}}
    row = assert_came(on_host, fetch(on_host, "aws", service, path), "aws", number)
    assert row["data_size"]


def test_a_path_that_is_not_there_is_the_reason(on_host: Checkout, bucket: str) -> None:
    done = fetch(on_host, "minio", minio(bucket), "s3://sets/wik")
    (record,) = on_host.records()
    assert done.returncode == 3 and "'data' failed" in record["reason"]
    assert record["evidence"] == "s3://sets/wik is empty or not there"


def test_a_mirror_keeps_what_was_fetched(on_host: Checkout, bucket: str) -> None:
    done = fetch(on_host, "minio", minio(bucket), "s3://sets/wiki", "--force-mirror-local", "cache")
    assert done.returncode == 0, done.stderr
    assert (on_host.folder / "cache/wiki/n.txt").read_text() == "99\n"


def test_a_store_that_does_not_answer_is_named(on_host: Checkout) -> None:
    done = fetch(on_host, "minio", minio("http://127.0.0.1:9"), "s3://sets/wiki")
    assert done.returncode == 3 and "127.0.0.1 cannot be reached" in done.stdout + done.stderr


@pytest.fixture
def storage() -> Iterator[int]:
    """What an SSH server says first, on a port of loopback; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    with server.accept()[0] as client:
                        client.sendall(b"SSH-2.0-stand-in\r\n")
                except OSError:
                    return

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def from_storage(checkout: Checkout, port: int, tools: dict[str, str], **fields: object):
    """Run a card whose data is on a storage, with stand-ins of the tools, and of no others than the system's."""
    write(checkout.folder, "data.json", {"wiki": {"nas": {"path": "/sets/wiki", **fields}}})
    node = {"NAME": "attic", "HOST": "127.0.0.1", "PORT": port, "USERNAME": "reader", "PASSWORD": SECRET}
    write(checkout.folder, "credential.json", {"NAS_NODES": [node]})
    checkout.card("m", SCRIPT, data="wiki")
    folder = checkout.folder.parent / "tools"
    folder.mkdir()
    for name, text in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
        (folder / name).chmod(0o755)
    inside = "/tools" if checkout.runtime == "docker" else str(folder)
    context = {"docker_mounts": {"/tools": str(folder)}, "docker_env_vars": {"PATH": f"{inside}:{USUAL}"}}
    if checkout.runtime == "host":
        context.pop("docker_mounts")
    return checkout.run("--tags", "m", "-c", json.dumps(context))


def test_a_storage_s_data_is_copied_to_its_mirror(on_host: Checkout, storage: int) -> None:
    done = from_storage(on_host, storage, STAND_INS, mirrorlocal="cache")
    row = assert_came(on_host, done, "nas", "99")
    log = next(on_host.folder.glob("madlite_runs/*/run.log")).read_text()
    ssh = f"ssh -p {storage} -o StrictHostKeyChecking=accept-new"
    assert f"rsync -azs -e {ssh} -- reader@127.0.0.1:/sets/wiki/ " in log and row["data_size"] == ""
    assert (on_host.folder / "cache/wiki/n.txt").read_text() == "99\n"


def test_a_storage_s_data_is_mounted_where_nothing_keeps_it(checkout: Checkout, storage: int) -> None:
    done = from_storage(checkout, storage, STAND_INS)
    mounted = checkout.runtime == "docker"
    assert_came(checkout, done, "nas", "98" if mounted else "99")
    log = next(checkout.folder.glob("madlite_runs/*/run.log")).read_text()
    said = f"sshfs reader@127.0.0.1:/sets/wiki /data_dlm_0 -p {storage} -o ssh_command=sshpass -e ssh"
    assert (said in log) == mounted


def test_a_tool_that_is_missing_is_the_reason(checkout: Checkout, storage: int) -> None:
    tools = {name: STAND_INS[name] for name in ("ssh", "sshfs")}
    tools |= {"apt-get": "exit 100\n", "rsync": STAND_INS["rsync"]}
    done = from_storage(checkout, storage, tools)
    (record,) = checkout.records()
    assert done.returncode == 3 and record["evidence"] == "data of a NAS needs sshpass, not installed here"


def test_a_bad_card_stops_no_other(checkout: Checkout) -> None:
    write(checkout.folder, "data.json", {"far": {"aws": {"path": "s3://far/away"}}})
    checkout.card("data", SCRIPT, data="far")
    checkout.card("options", 'echo "performance: 4 x"\n', additional_docker_run_options="--nonsense")
    checkout.card("gone", "")
    (checkout.folder / "scripts/gone/run.sh").unlink()
    checkout.card("good", 'echo "performance: 5 x"\n')
    done = checkout.run("--tags", "t")
    found = {row["model"]: (row["status"], row["performance"]) for row in checkout.rows}
    options = ("FAILURE", "") if checkout.runtime == "docker" else ("SUCCESS", "4")
    bad = ("FAILURE", "")
    assert found == {"data": bad, "options": options, "gone": bad, "good": ("SUCCESS", "5")}
    assert done.returncode == 3 and "MAD_AWS_S3 with USERNAME and PASSWORD" in done.stdout
    assert "scripts/gone/run.sh is not in this folder" in done.stdout
    assert ("No such option" in done.stdout) == (checkout.runtime == "docker")
    again = checkout.run("--tags", "t", "--set", "typo=1")
    assert again.returncode == 4 and "typo" in again.stderr and len(checkout.rows) == 4
