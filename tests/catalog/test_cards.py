from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from madlite.catalog.cards import make_card, read_cards
from madlite.errors import CatalogError
from madlite.model import Card
from tests.rows import each_row

ROOT = Path("/mad")


def read(*entries: object, scope: str = "") -> tuple[Card, ...]:
    return read_cards(json.dumps(entries).encode(), "models.json", ROOT, scope)


def one(scope: str = "", **fields: object) -> Card:
    return read({"name": "m", **fields}, scope=scope)[0]


def complaint(text: bytes) -> str:
    with pytest.raises(CatalogError) as caught:
        read_cards(text, "models.json", ROOT)
    return caught.value.message


def complaint_about(**fields: object) -> str:
    return complaint(json.dumps([{"name": "first"}, {"name": "m", **fields}]).encode())


def test_every_field_of_a_card_arrives() -> None:
    same = {
        "dockerfile": "docker/pytorch_train",
        "dockercontext": "./docker",
        "scripts": "scripts/pytorch_train/run.sh",
        "args": "--model_repo m",
        "n_gpus": "8",
        "multiple_results": "perf.csv",
        "cred": "AMD_GITHUB",
        "url": "https://example.com/r.git",
        "owner": "o@example.com",
        "training_precision": "bf16",
        "additional_docker_run_options": "--shm-size=2g",
        "is_deprecated": True,
        "backend": "torchtitan",
        "recipe": {"steps": 10, "compile": True, "lr": 0.1, "mode": "lora"},
        "image": "rocm/x:1",
    }
    lists = {"tags": ["pyt", "training"], "runtimes": ["docker", "host"]}
    told = {"timeout": 86400, "data": "huggingface, imagenet", "skip_gpu_arch": "gfx90a, A100"}
    extra = {"distributed": {"launcher": "torchrun", "nnodes": 2}}
    assert one(**same, **lists, **told, **extra) == Card(
        name="m",
        root=ROOT,
        source="models.json",
        **same,
        tags=("pyt", "training"),
        runtimes=("docker", "host"),
        timeout_s=86400,
        data=("huggingface", "imagenet"),
        skip_gpu_arch=("gfx90a", "A100"),
        extra=extra,
    )


def test_a_card_may_be_short_and_odd() -> None:
    # a card with a name only has the defaults
    assert one() == Card(name="m", root=ROOT, source="models.json")
    # tags may be one text with commas
    assert one(tags="xs, x2,").tags == ("xs", "x2")
    # recipe may be a name
    assert one(recipe="debug").recipe == "debug"
    # a byte order mark is tolerated
    assert read_cards(b'\xef\xbb\xbf[{"name": "m"}]', "models.json", ROOT)[0].name == "m"
    # a name may hold slashes and letters of any language
    assert read({"name": "primus_train/größe"})[0].name == "primus_train/größe"
    # an empty list is no error
    assert read() == ()
    # a long wrong value is cut short
    assert len(complaint_about(args=list(range(1000)))) < 150


def test_null_counts_as_absent_in_every_field() -> None:
    fields = "dockerfile args n_gpus gpus_per_node data tags timeout skip_gpu_arch is_deprecated recipe runtimes"
    assert one(**dict.fromkeys(fields.split())) == one()


@each_row(
    ("fields", "expected"),
    [
        ({}, "1"),
        ({"n_gpus": "-1"}, "-1"),
        ({"n_gpus": -1}, "-1"),
        ({"n_gpus": 8}, "8"),
        ({"n_gpus": " 4 "}, "4"),
        ({"n_gpus": 0}, "0"),
        ({"ngpus": 2}, "2"),
        ({"num_gpus": 3, "ngpus": 2}, "3"),
        ({"n_gpus": "8", "num_gpus": 3}, "8"),
        ({"n_gpus": "8", "gpu_count": 4}, "4"),
        ({"n_gpus": "8", "gpu_count": 4, "gpus_per_node": "2"}, "2"),
        ({"n_gpus": "8", "gpus_per_node": None}, "8"),
    ],
)
def test_the_first_gpu_count_of_madengines_order_counts(fields: dict[str, object], expected: str) -> None:
    assert one(**fields).n_gpus == expected


@each_row(("written", "expected"), [(-1, None), (0, 0), (7200, 7200)])
def test_timeout_minus_one_is_the_default_and_zero_no_limit(written: int, expected: int | None) -> None:
    assert one(timeout=written).timeout_s == expected


@each_row(
    ("fields", "place"),
    [
        ({"n_gpus": "9" * 5000}, "n_gpus"),
        ({"n_gpus": "0" * 5000}, "n_gpus"),
        ({"n_gpus": 1_000_001}, "n_gpus"),
        ({"gpu_count": "1000001"}, "gpu_count"),
        ({"timeout": 10**400}, "timeout"),
        ({"timeout": 11 * 365 * 24 * 3600}, "timeout"),
    ],
)
def test_numbers_that_nobody_can_mean_are_refused_by_their_place(fields: dict[str, object], place: str) -> None:
    with pytest.raises(CatalogError, match=rf"models\.json: card 'm' \(entry 1\): {place} must be .*found") as refused:
        one(**fields)
    assert len(refused.value.message) < 300


def test_the_largest_numbers_are_taken_and_longer_ones_refused_in_words() -> None:
    assert (one(n_gpus="1000000").n_gpus, one(n_gpus=" 08 ").n_gpus) == ("1000000", "08")
    assert one(timeout=10 * 365 * 24 * 3600).timeout_s == 315_360_000
    # a number too long to be written is still refused in words
    with pytest.raises(CatalogError, match=r"plugin x: card 'm' \(cards\[0\]\): timeout must be a whole number"):
        make_card({"name": "m", "timeout": 10**5000}, "plugin x", "cards[0]", ROOT)


@each_row(
    ("fields", "place"),
    [
        ({"args": "a\0b"}, "args"),
        ({"tags": ["x", "y\0"]}, "tags[1]"),
        ({"recipe": {"lr\0": 1}}, "recipe key"),
        ({"distributed": {"launcher": "\0"}}, "distributed.launcher"),
    ],
)
def test_a_nul_in_a_text_is_refused_by_its_place(fields: dict[str, object], place: str) -> None:
    with pytest.raises(CatalogError, match="NUL") as refused:
        one(**fields)
    assert refused.value.message.startswith(f"models.json: card 'm' (entry 1): {place} must be text without a NUL")


def test_a_sub_folders_paths_become_relative_to_the_root_and_its_names_get_its_prefix() -> None:
    card = one("team", dockerfile="../../docker/mini", scripts="run.sh", dockercontext="./docker", tags=["t"])
    assert (card.name, card.scope, card.dockerfile, card.scripts) == (
        "team/m",
        "team",
        "docker/mini",
        "scripts/team/run.sh",
    )
    assert (card.dockercontext, card.tags) == ("./docker", ("t",))
    # a sub folders card without paths gets none
    card = one("team")
    assert (card.dockerfile, card.scripts) == ("", "")


@each_row(
    ("field", "value", "expected"),
    [
        ("n_gpus", [8], 'n_gpus must be text such as "8" or "-1", at most "1000000", found [8]'),
        ("n_gpus", "all", 'n_gpus must be text such as "8" or "-1", at most "1000000", found "all"'),
        ("n_gpus", "", 'n_gpus must be text such as "8" or "-1", at most "1000000", found ""'),
        ("n_gpus", -2, 'n_gpus must be text such as "8" or "-1", at most "1000000", found -2'),
        ("n_gpus", True, 'n_gpus must be text such as "8" or "-1", at most "1000000", found true'),
        ("gpus_per_node", 1.5, 'gpus_per_node must be text such as "8" or "-1", at most "1000000", found 1.5'),
        (
            "timeout",
            -2,
            "timeout must be a whole number of seconds up to 315360000, 0 for none, -1 for the default, found -2",
        ),
        (
            "timeout",
            "60",
            'timeout must be a whole number of seconds up to 315360000, 0 for none, -1 for the default, found "60"',
        ),
        ("tags", ["a", 1], 'tags must be a list of texts, or one text with commas, found ["a", 1]'),
        ("data", {"a": 1}, 'data must be a list of texts, or one text with commas, found {"a": 1}'),
        ("args", ["--x"], 'args must be text, found ["--x"]'),
        ("dockerfile", 5, "dockerfile must be text, found 5"),
        ("is_deprecated", "yes", 'is_deprecated must be true or false, found "yes"'),
        ("recipe", {"a": []}, "recipe must be a recipe's name, or an object of texts, numbers and truth values, found"),
        ("name", "", 'name must be text that can be printed and is not empty, found ""'),
        ("name", "  ", 'name must be text that can be printed and is not empty, found "  "'),
        ("name", "a\nb", 'name must be text that can be printed and is not empty, found "a\\nb"'),
        ("name", "a\x1b[31m", 'name must be text that can be printed and is not empty, found "a\\u001b[31m"'),
        ("name", 7, "name must be text that can be printed and is not empty, found 7"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_it_should_be(field: str, value: object, expected: str) -> None:
    at = "entry 2" if field == "name" else "card 'm' (entry 2)"
    assert complaint_about(**{field: value}).startswith(f"models.json: {at}: {expected}")


@each_row(
    ("text", "expected"),
    [
        (b'[\n  {"name": "m",}\n]', "models.json: line 2, column 16 is not JSON: trailing comma in object"),
        (b'[{"name": "m"}\n {"name": "n"}]', "models.json: line 2, column 2 is not JSON: expected ',' or ']'"),
        ('["ä", x]'.encode(), "models.json: line 1, column 7 is not JSON: invalid character"),
        (b'[{"name": "m"', "models.json: line 1, column 14 is not JSON: Input data was truncated"),
        (b"", "models.json: line 1, column 1 is not JSON: Input data was truncated"),
        (b'["ok",\n "\xff"]', "models.json: line 2, column 3 is not UTF-8: invalid start byte"),
        (b"[" * 100_000, "models.json: brackets are nested too deep"),
        (b'{"name": "m"}', 'models.json: it must be a list of cards, found {"name": "m"}'),
        (b'[{"name": "m"}, 5]', "models.json: entry 2 must be an object, found 5"),
        (b"[{}]", "models.json: entry 1 has no name; it has no field at all"),
        (b'[{"args": "", "tags": []}]', "models.json: entry 1 has no name; it has args, tags"),
        (b'[{"name": null, "args": ""}]', "models.json: entry 1 has no name; it has args"),
        (b'[{"name": "m"}, {"name": "n"}, {"name": "m"}]', "models.json: entries 1 and 3 have one name, 'm'"),
    ],
)
def test_a_broken_file_is_told_with_the_place(text: bytes, expected: str) -> None:
    assert complaint(text) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
# The first text hypothesis draws on a machine takes it seconds; that says nothing about our code.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
FIELDS = st.sampled_from(
    ["name", "dockerfile", "n_gpus", "gpu_count", "tags", "timeout", "data", "recipe", "is_deprecated", "other"]
)


@UNHURRIED
@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=5), max_size=4))
def test_any_list_of_objects_gives_cards_or_one_catalog_error(entries: list[dict[str, object]]) -> None:
    try:
        cards = read(*entries)
    except CatalogError as error:
        assert error.message.startswith("models.json: ") and "$" not in error.message.partition(", found ")[0]
    else:
        assert [card.name for card in cards] == [entry["name"] for entry in entries]


@UNHURRIED
@given(st.binary(max_size=60))
def test_any_bytes_give_cards_or_one_catalog_error(text: bytes) -> None:
    try:
        read_cards(text, "models.json", ROOT)
    except CatalogError as error:
        assert error.message.startswith("models.json: ")
