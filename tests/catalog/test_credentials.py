"""Tables of credential.json, and services of the environment."""

from __future__ import annotations

import json
import os

import pytest

from madlite.catalog.datasets import read_credentials, read_services
from madlite.errors import UsageProblem
from tests.rows import each_row


def test_tables_are_read_and_service_blocks_left_to_those_they_are_for(tmp_path):
    (tmp_path / "credential.json").write_text(
        '{"MINI": {"user": "u", "port": 22, "x": null}, "NAS_NODES": [{"NAME": "n", "PASSWORD": "hf_hush_hush"}]}'
    )
    assert read_credentials(tmp_path) == {"MINI": {"user": "u", "port": "22"}}


def test_no_file_is_not_an_empty_file(tmp_path):
    assert read_credentials(tmp_path) is None
    (tmp_path / "credential.json").write_text("{}")
    assert read_credentials(tmp_path) == {}


@each_row("text", ["[", "[]", '"hf_hush_hush"', '{"A": {"password": "hf_hush_hush\\u0000"}}', '{"A":' * 5000])
def test_a_file_that_cannot_be_used_is_one_sentence_without_its_content(tmp_path, text):
    (tmp_path / "credential.json").write_text(text)
    with pytest.raises(UsageProblem, match=r"credential\.json") as caught:
        read_credentials(tmp_path)
    assert "hush" not in caught.value.message


def test_a_service_of_the_environment_comes_before_the_files_and_other_tables_are_none(tmp_path):
    tables = {"MINI": {"user": "x"}, "MAD_MINIO": {"USERNAME": "file"}, "MAD_AWS_S3": {"USERNAME": "s3"}}
    (tmp_path / "credential.json").write_text(json.dumps(tables))
    assert read_services(tmp_path, {}) == {name: (tables[name],) for name in ("MAD_MINIO", "MAD_AWS_S3")}
    assert read_services(tmp_path, {"MAD_MINIO": '{"USERNAME": "here"}'})["MAD_MINIO"] == ({"USERNAME": "here"},)
    # a service of the environment is no table of the file
    environ = {"MAD_MINIO": '{"USERNAME": "u", "PORT": 9}'}
    assert read_services(tmp_path / "none", environ) == {"MAD_MINIO": ({"USERNAME": "u", "PORT": "9"},)}
    # storages are several and their ports text
    nodes = [{"NAME": "one", "PORT": 22}, {"NAME": "two", "PORT": "2222"}]
    (tmp_path / "credential.json").write_text(json.dumps({"NAS_NODES": nodes}))
    assert read_services(tmp_path, {}) == {"NAS_NODES": ({"NAME": "one", "PORT": "22"}, nodes[1])}
    assert read_services(tmp_path, {"NAS_NODES": json.dumps(nodes[0])})["NAS_NODES"] == ({"NAME": "one", "PORT": "22"},)


@each_row("text", [b"[", b"[1]", b'{"A": "\xffhush"}', b'{"A": "hush\\u0000"}', b'{"A":' * 5000])
def test_a_service_that_cannot_be_used_is_one_sentence_without_its_content(tmp_path, text):
    with pytest.raises(UsageProblem, match="MAD_MINIO of the environment is no JSON object") as caught:
        read_services(tmp_path, {"MAD_MINIO": os.fsdecode(text)})
    assert "hush" not in caught.value.message
