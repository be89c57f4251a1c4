"""What the working folder's files say, and what is told where they cannot be used."""

from __future__ import annotations

import pytest

from madlite.cli.setup import read_credentials
from madlite.errors import UsageProblem


def test_credentials_are_tables_of_texts_and_numbers(tmp_path):
    (tmp_path / "credential.json").write_text('{"HUB": {"username": "bob", "pin": 1234}}')
    assert read_credentials(tmp_path) == {"HUB": {"username": "bob", "pin": "1234"}}


@pytest.mark.parametrize("entry", ['"hf_hush_hush"', "null", '["hf_hush_hush"]'])
def test_a_credential_that_is_no_table_is_named_and_its_value_is_not(tmp_path, entry):
    (tmp_path / "credential.json").write_text(f'{{"HUB": {{"a": "b"}}, "NAS": {entry}}}')
    with pytest.raises(UsageProblem) as refused:
        read_credentials(tmp_path)
    assert "credential.json: 'NAS'" in refused.value.message
    assert "hush" not in refused.value.message + refused.value.hint
