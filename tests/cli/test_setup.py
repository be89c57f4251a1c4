"""What a command reads before the engine starts."""

from __future__ import annotations

import pytest

from madlite.cli.setup import read_credentials
from madlite.errors import UsageProblem


def test_tables_are_read_and_service_blocks_left_to_those_they_are_for(tmp_path):
    (tmp_path / "credential.json").write_text(
        '{"MINI": {"user": "u", "port": 22, "x": null}, "NAS_NODES": [{"NAME": "n", "PASSWORD": "hf_hush_hush"}]}'
    )
    assert read_credentials(tmp_path) == {"MINI": {"user": "u", "port": "22"}}


def test_no_file_is_not_an_empty_file(tmp_path):
    assert read_credentials(tmp_path) is None
    (tmp_path / "credential.json").write_text("{}")
    assert read_credentials(tmp_path) == {}


@pytest.mark.parametrize("text", ["[", "[]", '"hf_hush_hush"'])
def test_a_file_that_cannot_be_used_is_one_sentence_without_its_content(tmp_path, text):
    (tmp_path / "credential.json").write_text(text)
    with pytest.raises(UsageProblem, match=r"credential\.json") as caught:
        read_credentials(tmp_path)
    assert "hush" not in caught.value.message
