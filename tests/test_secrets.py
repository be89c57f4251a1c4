"""Secrets: which they are, and that no way of cutting or writing them lets one through."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from madlite.secrets import Redactor, collect, guard, is_secret_name
from madlite.types import Secret, to_json

SECRET = "hf_Ab/c+9=x"


@pytest.mark.parametrize(
    "name", "MAD_SECRETS_HFTOKEN HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY db_password GITHUB_PAT MINI_TOKEN".split()
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", "PATH TOKENIZERS_PARALLELISM TOKENIZER_MODEL HOME MAD_MODEL_NAME KEYBOARD".split())
def test_names_of_settings(name):
    assert not is_secret_name(name)


def test_only_what_can_be_a_secret_is_collected():
    environ = {"HF_TOKEN": SECRET, "USE_TOKEN": "true", "A_PASSWORD": "abc", "X_SECRET": "/run/secrets/x", "N": "v"}
    assert collect(environ, [Secret("other_one"), "plain"]) == (SECRET, "other_one")


@given(st.integers(0, 40), st.integers(0, 40), st.text(max_size=20), st.text(max_size=20))
def test_a_secret_never_passes_however_it_is_cut(one, two, before, after):
    data = (before + SECRET + after).encode()
    redactor = Redactor([SECRET])
    a, b = sorted((min(one, len(data)), min(two, len(data))))
    out = redactor.feed(data[:a]) + redactor.feed(data[a:b]) + redactor.feed(data[b:]) + redactor.flush()
    assert SECRET.encode() not in out
    assert out == data.replace(SECRET.encode(), b"***")


def test_output_is_held_back_only_as_long_as_it_may_be_a_secret():
    redactor = Redactor([SECRET])
    assert redactor.feed(b"step 1\n") == b"step 1\n"
    assert redactor.feed(b"x hf_A") == b"x "
    assert redactor.feed(b"lpha") == b"hf_Alpha"


def test_urls_and_json_spell_it_otherwise():
    text = f"https://u:{quote(SECRET, safe='')}@h {json.dumps({'t': SECRET})}"
    assert Redactor([SECRET]).text(text) == 'https://u:***@h {"t": "***"}'


def test_a_key_file_is_masked_line_by_line():
    key = "-----BEGIN KEY-----\nAAAABBBBCCCC\n-----END KEY-----\n"
    assert "AAAABBBB" not in Redactor([key]).text("found AAAABBBBCCCC there")


def test_a_longer_secret_wins_over_a_shorter_one():
    assert Redactor(["abcd", "abcdefgh"]).text("abcdefgh") == "***"


def test_a_secret_prints_as_stars_everywhere():
    secret = guard({"HF_TOKEN": SECRET})["HF_TOKEN"]
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert SECRET not in to_json({"a": secret})
