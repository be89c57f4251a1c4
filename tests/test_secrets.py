"""Secrets: which they are, and that no way of cutting or writing them lets one through."""

from __future__ import annotations

import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from madlite.model import Image, Secret, to_json
from madlite.secrets import Redactor, assigned, collect, guard, is_secret, is_secret_name, masked_json
from tests.rows import each_row

SECRET = "hf_Ab/c+9=x"


SECRETS = "MAD_SECRETS_HFTOKEN HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY db_password GITHUB_PAT MINI_TOKEN".split()
SETTINGS = "PATH TOKENIZERS_PARALLELISM TOKENIZER_MODEL HOME KEYBOARD MAX_NUM_BATCHED_TOKENS TOKENS_PER_STEP".split()


def test_names_of_secrets_are_told_from_those_of_settings():
    assert [name for name in (*SETTINGS, *SECRETS) if is_secret_name(name)] == SECRETS


def test_only_what_can_be_a_secret_is_collected():
    environ = {"HF_TOKEN": SECRET, "USE_TOKEN": "true", "A_PASSWORD": "abc", "X_SECRET_FILE": "/run/x", "N": "v"}
    assert collect(environ, [Secret("other_one"), "plain"]) == (SECRET, "other_one")


@each_row(
    ("name", "value", "secret"),
    [
        ("MAX_TOKEN", "131072", False),
        ("EOS_TOKEN_ID", "128001", False),
        ("DROP_TOKEN_RATE", "0.25", False),
        ("HF_TOKEN_PATH", "/home/me/.cache/huggingface/token", False),
        ("HF_TOKEN", "none", False),
        ("DB_PASSWORD", "131072", True),
        ("MAD_SECRETS_PIN", "131072", True),
        ("AWS_SECRET_ACCESS_KEY", "/hf/SECRET+abc", True),
        ("X_SECRET", "/hf/SECRET", True),
    ],
)
def test_a_number_or_a_path_is_a_secret_where_the_name_leaves_no_doubt(name, value, secret):
    assert is_secret(name, value) is secret
    assert collect({name: value}) == ((value,) if secret else ())
    assert isinstance(guard({name: value})[name], Secret) is secret


def test_what_was_wrapped_is_masked_even_where_it_looks_like_a_setting():
    assert collect({}, [Secret("131072"), Secret("/a/path"), Secret("abc")]) == ("131072", "/a/path")


def test_a_variable_that_holds_a_known_secret_is_one():
    assert guard({"URL": f"https://u:{SECRET}@h", "N": "v"}, [SECRET]) == {
        "URL": Secret(f"https://u:{SECRET}@h"),
        "N": "v",
    }


@given(st.integers(0, 40), st.integers(0, 40), st.text(max_size=20), st.text(max_size=20))
def test_a_secret_never_passes_however_it_is_cut(one, two, before, after):
    data = (before + SECRET + after).encode()
    redactor = Redactor([SECRET])
    a, b = sorted((min(one, len(data)), min(two, len(data))))
    out = redactor.feed(data[:a]) + redactor.feed(data[a:b]) + redactor.feed(data[b:]) + redactor.flush()
    assert SECRET.encode() not in out
    assert out == data.replace(SECRET.encode(), b"***")


def test_output_comes_line_by_line_and_a_carriage_return_ends_one():
    redactor = Redactor([SECRET])
    assert redactor.feed(b"step 1\n") == b"step 1\n"
    assert redactor.feed(b"x hf_A") == b""
    assert redactor.feed(b"lpha\r 10%") == b"x hf_Alpha\r"
    assert redactor.flush() == b" 10%"


def test_urls_and_json_spell_it_otherwise():
    text = f"https://u:{quote(SECRET, safe='')}@h {json.dumps({'t': SECRET})}"
    assert Redactor([SECRET]).text(text) == 'https://u:***@h {"t": "***"}'


def test_a_key_file_is_masked_line_by_line():
    key = "-----BEGIN KEY-----\nAAAABBBBCCCC\n-----END KEY-----\n"
    assert "AAAABBBB" not in Redactor([key]).text("found AAAABBBBCCCC there")


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in zip(places, places[1:], strict=False)]


@given(
    st.lists(st.text("abc", min_size=4, max_size=9), min_size=1, max_size=5),
    st.lists(st.text("abcd\n", max_size=6), max_size=12),
    st.lists(st.integers(0, 80), max_size=6),
)
def test_secrets_that_overlap_are_masked_the_same_however_they_are_cut(secrets, pieces, cuts):
    data = "".join(pieces + secrets[:2] + pieces[:1]).encode()
    redactor = Redactor(secrets)
    out = b"".join(map(redactor.feed, parts(data, cuts))) + redactor.flush()
    assert out == Redactor(secrets).text(data.decode()).encode()
    covered = bytearray(data)
    for secret in map(str.encode, secrets):
        for at in range(len(data)):
            if data.startswith(secret, at):
                covered[at : at + len(secret)] = b"*" * len(secret)
    assert out.replace(b"*", b"") == covered.replace(b"*", b""), "all of every secret is gone, and nothing else"


def test_a_longer_secret_wins_over_a_shorter_one():
    assert Redactor(["abcd", "abcdefgh"]).text("abcdefgh") == "***"
    redactor = Redactor(["hf_abcd", "hf_abcdSECRET"])
    assert redactor.feed(b"x hf_abcd") + redactor.feed(b"SECRET\n") == b"x ***\n"
    assert redactor.feed(b"hf_abcd") + redactor.feed(b"\n") + redactor.flush() == b"***\n"


def test_a_secret_of_several_lines_is_waited_for():
    assert Redactor(["one\ntwo"]).feed(b"x one\ntwo y\nz") == b"x *** y\n"
    key = "-----BEGIN X-----\r\nMIIEpA\r\nAB\r\nzz==\r\n-----END X-----"
    redactor = Redactor([key])
    assert [redactor.feed(line) for line in f"ok\nkey: {key}\n".encode().splitlines(keepends=True)] == [
        *(b"ok\n", b"", b"", b"", b"", b"key: ***\n")
    ]
    assert redactor.feed(b"key: -----BEGIN X-----\r\n") + redactor.feed(b"AB\r\n") == b"key: ***\r\nAB\r\n"
    # one that is longer than what is held of a line without an end
    key = "\n".join(f"{n}" for n in range(20_000))
    redactor = Redactor([key])
    chunks = parts(f"key: {key}\n".encode(), [*range(0, 120_000, 1000)])
    assert b"".join(map(redactor.feed, chunks)) == b"key: ***\n"
    # a first line that comes on and on
    redactor = Redactor(["a\naaaa", "a\nb\nb"])
    assert len(b"".join(redactor.feed(b"a\n") for _ in range(50_000))) > 30_000


@given(
    st.lists(st.text("ab\n\r", max_size=9).map(str.strip).filter(lambda text: len(text) >= 4), min_size=1, max_size=4),
    st.lists(st.text("abc\n\r", max_size=6), max_size=8),
    st.lists(st.integers(0, 80), max_size=9),
)
def test_secrets_of_several_lines_are_masked_the_same_however_they_are_cut(secrets, pieces, cuts):
    data = "".join([*pieces, *secrets[:2], *pieces[:1]]).encode()
    redactor = Redactor(secrets)
    out = b"".join(map(redactor.feed, parts(data, cuts))) + redactor.flush()
    assert out == Redactor(secrets).text(data.decode()).encode()


def test_little_is_held_of_an_endless_secret():
    redactor = Redactor(["aaaa"])
    out = b"".join([redactor.feed(b"a" * 1000) for _ in range(150)])
    assert set(out) == set(b"*") and redactor.feed(b"b\n") == b"***b\n"


@each_row("secret", ["\udcff\udcfeabcd", "\ud800abcd", "\x00abcd", "ü€abcd", 'a"b\\c d'])
def test_any_text_can_be_a_secret(secret):
    redactor = Redactor([secret])
    spelled = [secret, json.dumps(secret), to_json([secret])]
    for text in spelled:
        assert "abcd" not in redactor.text(f"x {text} y") and "c d" not in redactor.text(text)
    redactor = Redactor(["\udcff\udcfeabcd"])  # its bytes, in a stream
    assert redactor.feed(b"x \xff\xfeab") + redactor.feed(b"cd y\n") == b"x *** y\n"


def test_json_stays_json_where_a_number_is_a_secret():
    image = Image(ref="base:7200", build_args={"A": Secret("7200"), "B": "x7200", "7200": "y"})
    shown = json.loads(masked_json([image, 7200, 1.5, None], ["7200"]))
    assert shown[0]["ref"] == "base:***" and shown[0]["build_args"] == {"A": "***", "B": "x***", "***": "y"}
    assert shown[1:] == [7200, 1.5, None]


@each_row(
    "word",
    [
        "--set=env.HF_TOKEN=hf_one",
        "env.HF_TOKEN=hf_one",
        '{"docker_env_vars": {"HF_TOKEN": "hf_one", "N": "1"}}',
        "{'docker_env_vars': {'HF_TOKEN': 'hf_one'",
        "tag:hf_token=hf_one:steps=3",
    ],
)
def test_a_command_line_that_spells_a_secret_out(word):
    assert "hf_one" in assigned([word]) and "hf_one" not in Redactor(assigned([word])).text(word)


def test_a_command_line_without_secrets_hides_nothing():
    assert assigned(["run", "--set", "steps=1000", "max_tokens=4096", "--tags", "a:b=c"]) == ()


def test_a_secret_prints_as_stars_everywhere():
    secret = guard({"HF_TOKEN": SECRET})["HF_TOKEN"]
    assert f"{secret} {secret!r} {[secret]}" == "*** *** [***]"
    assert SECRET not in to_json({"a": secret})


@each_row(
    ("text", "found"),
    [
        ("run --hf_token abcd1234 --steps 3", ["abcd1234"]),
        ("--hf-token='abcd 1234'", ["abcd 1234"]),
        ("--wandb-api-key=abcd1234 --password pass-word", ["abcd1234", "pass-word"]),
        ("--moe-token-dispatcher-type alltoall --tokenizer-type HuggingFaceTokenizer", []),
        ("--pad_token <pad_pad> --eos-token </s__> --max-tokens 4096 --token", []),
        ("--hf_token $HF_TOKEN --hf_token --next", []),
        ("x--hf_token abcd1234", []),
    ],
)
def test_flags_of_a_command_that_spell_a_secret_out(text: str, found: list[str]) -> None:
    assert [one for one in assigned([text]) if one in text and len(one) > 3] == found
