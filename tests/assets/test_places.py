"""Folders and tokens as huggingface_hub finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from madlite.assets.paths import data_folder, find_token, hub_cache, is_offline
from madlite.model import Secret
from tests.rows import each_row

PLACES = [
    {},
    {"XDG_CACHE_HOME": "/x"},
    {"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"},
    {"HF_HOME": "~/h"},
    {"HF_HUB_CACHE": "/c", "HF_HOME": "/h"},
    {"HF_HUB_CACHE": "$SHARED/c", "SHARED": "/s"},
    {"HUGGINGFACE_HUB_CACHE": "/old"},
    {"HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/old"},
]
THEIRS = """
import importlib, json, os, sys
import huggingface_hub.constants as constants
for given in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(given)
    print(importlib.reload(constants).HF_HUB_CACHE)
"""


def test_the_cache_is_where_huggingface_hub_has_it_and_prepared_data_beside():
    given = [{"HOME": "/home/somebody", **environ} for environ in PLACES]
    command = [sys.executable, "-c", THEIRS, json.dumps(given)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [str(hub_cache(environ)) for environ in given] == theirs
    # prepared data has a folder of its own
    assert data_folder({"MADLITE_DATA_DIR": "/d", "XDG_CACHE_HOME": "/x"}) == Path("/d")
    assert data_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/madlite/data")
    assert data_folder({"HOME": "/h"}) == Path("/h/.cache/madlite/data")


def test_the_first_token_that_is_one_counts_and_says_where_it_is_from():
    found = find_token({"HF_TOKEN": " ", "MAD_SECRETS_HFTOKEN": Secret("hf_x\n")})
    assert (found.origin, found.value.reveal()) == ("MAD_SECRETS_HFTOKEN", "hf_x")
    assert find_token({"HF_TOKEN": ""}) is None
    assert "hf_x" not in json.dumps(str(found))


@each_row(("value", "offline"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("", False)])
def test_offline_is_what_the_hub_s_libraries_take_for_it(value, offline):
    assert is_offline({"HF_HUB_OFFLINE": value}) is offline
