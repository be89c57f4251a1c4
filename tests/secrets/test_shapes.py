"""What is a secret by its shape is masked wherever it stands, and nothing of an ordinary log looks like one."""

from __future__ import annotations

import json
import random
import string
import time
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from madlite.measure.lines import LONGEST
from madlite.model import Secret
from madlite.secrets import Redactor, collect, guard, shaped, split_userinfo
from tests.rows import each_row
from tests.secrets.streams import streamed

LOGS = Path(__file__).parents[1] / "data/logs"
RANDOM = random.Random(19)


def chars(size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(RANDOM.choice(alphabet) for _ in range(size))


KEY = chars(40, string.ascii_letters + string.digits + "/+")
# what they are made of is said by their issuers; none of them was ever issued
TOKENS = {
    "hugging face": "hf_" + chars(34, string.ascii_letters),
    "hugging face, with digits": "hf_" + chars(34),
    "github": "ghp_" + chars(36),
    "github oauth": "gho_" + chars(36),
    "github user": "ghu_" + chars(36),
    "github server": "ghs_" + chars(36),
    "github refresh": "ghr_" + chars(76),
    "github, longer": "ghp_" + chars(250),
    "github fine-grained": f"github_pat_{chars(22)}_{chars(59)}",
    "gitlab": "glpat-" + chars(20, string.ascii_letters + string.digits + "-_"),
    "gitlab, routable": f"glpat-{chars(27)}.{chars(9, string.ascii_lowercase + string.digits)}",
    "aws": "AKIA" + chars(16, string.ascii_uppercase + "234567"),
    "aws session": "ASIA" + chars(16, string.ascii_uppercase + "234567"),
    "slack": f"xoxb-{chars(12, string.digits)}-{chars(12, string.digits)}-{chars(24)}",
    "openai": "sk-" + chars(48),
    "openai project": f"sk-proj-{chars(60)}_{chars(30)}-T3BlbkFJ{chars(40)}",
    "anthropic": f"sk-ant-api03-{chars(60)}-{chars(30)}AA",
    "npm": "npm_" + chars(36),
    "pypi": "pypi-AgEIcHlwaS5vcmc" + chars(120, string.ascii_letters + string.digits + "-_"),
    "google": "AIza" + chars(35, string.ascii_letters + string.digits + "-_"),
    "docker": "dckr_pat_" + chars(27),
    "stripe": "sk_live_" + chars(24),
    "slack user": f"xoxp-{chars(12, string.digits)}-{chars(12, string.digits)}-{chars(32)}",
}
PLACES = (
    "{}",
    "token={}",
    "x {} y",
    '"{}"',
    "'{}',",
    '{{"token": "{}"}}',
    "\x1b[32m{}\x1b[0m",
    "https://{}@github.com/org/repo",
    "https://oauth2:{}@gitlab.com/org/repo.git",
    "Authorization: token {}",
    "a_{}",
    "/cache/{}/x",
    "é{}é",
)


@each_row("place", PLACES)
@each_row("token", TOKENS.values(), ids=TOKENS)
def test_a_token_is_masked_wherever_it_stands(token: str, place: str) -> None:
    shown = Redactor().text(place.format(token))
    assert shown == place.format("***")
    assert token in shaped(place.format(token))


URLS = {
    "https://user:p4ssword@host/x": "https://user:***@host/x",
    "HTTPS://user:p4ssword@HOST": "HTTPS://user:***@HOST",
    "git clone https://0123abcd@git.example.com/x.git": "git clone https://***@git.example.com/x.git",
    "https://s3cr3t:@host": "https://***:@host",
    "https://s3cr3t:x-oauth-basic@host": "https://***:x-oauth-basic@host",
    "https://user:p@ss@host/": "https://user:***@host/",
    "https://user:p%40ss%2Fw@host/": "https://user:***@host/",
    "redis://:p4ssword@host:6379/0": "redis://:***@host:6379/0",
    "postgresql+psycopg://me:p4ss@db/x?y=1": "postgresql+psycopg://me:***@db/x?y=1",
    "http_proxy=http://me:12345@proxy:3128": "http_proxy=http://me:***@proxy:3128",
    "pip install git+https://t0k3n@host/x": "pip install git+https://***@host/x",
    '"url": "https:\\/\\/me:p4ss@host\\/x"': '"url": "https:\\/\\/me:***@host\\/x"',
    "ssh://me:p4ss@host/x": "ssh://me:***@host/x",
    "https://a:one1@h https://b:two2@h": "https://a:***@h https://b:***@h",
    "https://token@host/x": "https://***@host/x",
}
HEADERS = (
    "Authorization: Bearer {}",
    "authorization: bearer {}",
    "AUTHORIZATION:BEARER {}",
    "curl -H 'Authorization: Bearer {}' https://host",
    'curl --header="Authorization: Basic {}"',
    "-H Authorization:\\ Bearer\\ {}",
    '{{"Authorization": "Bearer {}"}}',
    "{{'Authorization': 'Basic {}'}}",
    '"{{\\"Authorization\\": \\"Bearer {}\\"}}"',
    "[(b'authorization', b'Bearer {}')]",
    "map[Authorization:[Bearer {}]]",
    "Proxy-Authorization: Basic {}",
    "?authorization=Bearer%20{}",
    "Authorization:  token   {}",
)


@each_row(("text", "shown"), URLS.items())
def test_the_password_of_a_url_is_masked(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown
    assert Redactor().text(shown) == shown


@each_row("header", HEADERS)
def test_the_value_of_a_header_is_masked(header: str) -> None:
    value = b64encode(b"someone:p4ssword").decode()
    if "\\ " in header:  # of a shell that has no quotes: what is known is looked for so, not a shape
        assert value not in Redactor([value]).text(header.format(value))
    else:
        assert Redactor().text(header.format(value)) == header.format("***")


def test_what_a_setting_means_is_known_too() -> None:
    assert set(shaped("https://me:p%40ss%2Fword@host")) == {"p%40ss%2Fword", "p@ss/word"}
    assert set(shaped("https://me:p@ss/w+rd@host/x")) >= {"p@ss/w+rd"}
    assert set(shaped("Authorization: Basic " + b64encode(b"me:p4ssword").decode())) >= {"p4ssword"}
    assert shaped("https://alice@host") == (), "a name would be masked all over a log"
    assert shaped("https://al1ce99@host") == ("al1ce99",)


@each_row(
    "text",
    [
        f"{TOKENS['aws']} {KEY}",
        f"{TOKENS['aws']}:{KEY}",
        f"{KEY} for {TOKENS['aws session']}",
        f"aws_access_key_id = {TOKENS['aws']}\naws_secret_access_key = {KEY}\n",
        json.dumps({"AccessKeyId": TOKENS["aws session"], "Expires": "2026-11-22T10:00:00Z", "SecretAccessKey": KEY}),
        json.dumps({"SecretAccessKey": KEY, "AccessKeyId": TOKENS["aws session"]}, indent=4),
        f"-e AWS_SECRET_ACCESS_KEY={KEY} -e AWS_ACCESS_KEY_ID={TOKENS['aws']}",
        f"export AWS_SECRET_ACCESS_KEY='{KEY}'",
        f"<SecretAccessKey>{KEY}</SecretAccessKey>",
        f"--secret-access-key {KEY}",
    ],
)
def test_the_secret_beside_a_key_is_masked(text: str) -> None:
    assert KEY not in Redactor().text(text) and "AKIA" not in Redactor().text(text)
    assert KEY in shaped(text)
    redactor = Redactor()
    lines = [redactor.feed(line) for line in text.encode().splitlines(keepends=True)]
    assert KEY.encode() not in b"".join([*lines, redactor.flush()]), "it may come a line later"


HARMLESS = (
    "from huggingface_hub import hf_hub_download; hf_transfer hf_config hf_ ghp_ gho_ github_pat_ glpat- AKIA xoxb-",
    "hf_model_weights_iterator hf_checkpoint_conversion_for_megatron_core hf_LlamaForCausalLMWithValueHead",
    "/tmp/hf_d41d8cd98f00b204e9800998ecf8427e /tmp/hf_da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "commit da39a3ee5e6b4b0d3255bfef95601890afd80709, image rocm/pytorch@sha256:" + "0123456789abcdef" * 4,
    "docker://ubuntu:22.04@sha256:" + "0123456789abcdef" * 4,
    "user@host git@github.com:org/repo.git ssh://git@host/x ssh://git@host:22/x mail me@example.com",
    "https://git@github.com/org/repo https://host/@scope/pkg@1.2 https://host?mail=me@x https://host:8080/a:b@c",
    "http://localhost:8080,me@there tcp://10.0.0.1:29500 [rank0]: x://b:c",
    "https://$USER:$TOKEN@host https://{user}:{token}@host https://me:${TOKEN}@host https://me:***@host",
    "https://me:%s@host https://***@host https://user@host https://x-access-token:$GH_TOKEN@github.com",
    'Authorization: Bearer $TOKEN "Authorization": "Bearer ${TOKEN}" Authorization: Bearer {token} Authorization: ***',
    "Authorization required; authorization: none; Bearer of news; basic training; the basic authorization",
    "xoxb-is-how-they-begin AKIAIOSFODNN7EXAMPL AKIA in a word: RAKIASHA",
    "secret_access_key=$AWS_SECRET_ACCESS_KEY secret_access_key: da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "disk-20261121T143659 task-d41d8cd98f00b204e9800998ecf8427e sk-learn scikit-learn-1.5 npm_config_cache pypi-mirror",
    "ask-proj-management eyJ eyJhbGciOiJIUzI1NiJ9 AIzawa sk_live_ -----BEGIN CERTIFICATE----- aGZfaHViX2Rvd25sb2Fk",
    "+" * 80 + "=" * 80 + "-" * 80 + "_" * 80 + ":" * 80 + "/" * 80 + "@" * 80,
)


@each_row("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text
    assert shaped(text) == ()


WEB_TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIn0." + chars(43)
PACKED = b64encode(f"hf_{chars(34)}".encode()).decode().rstrip("=")
KEY_LINES = [chars(64, string.ascii_letters + string.digits + "+/") for _ in range(20)]
PRIVATE = "-----BEGIN {}PRIVATE KEY-----\n{}\n-----END {}PRIVATE KEY-----"


@each_row("token", [WEB_TOKEN, PACKED], ids=["jwt", "hub token in base64"])
@each_row("place", [place for place in PLACES if place not in ("a_{}",)])
def test_a_token_of_several_parts_is_masked(token: str, place: str) -> None:
    assert token not in (shown := Redactor().text(place.format(token))) and "***" in shown


@each_row("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@each_row("size", [1, 7, 100, 5000])
def test_a_private_key_is_masked_however_it_is_cut(kind: str, size: int) -> None:
    for end in ("\n", "\\n"):  # in a file, and in a text of JSON
        text = f'a: "{PRIVATE.format(kind, end.join(KEY_LINES), kind)}"\nb\n'.replace("\n", end)
        data = text.encode()
        out = streamed(Redactor(), [data[at : at + size] for at in range(0, len(data), size)]).decode()
        assert not any(line[4:] in out for line in KEY_LINES) and "***" in out
        assert out.startswith(f'a: "-----BEGIN {kind}PRIVATE KEY-----') and out.endswith(f"b{end}")


SET = (
    "password: {}",
    "  token: {}",
    "- secret: {}",
    "client_secret = '{}'",
    "api_key={}",
    'api-key = "{}"',
    "export WANDB_API_KEY={}",
    '{{"n": 1, "token": "{}"}}',
    "x: {{password: {}, user: me}}",
    "'access_key': '{}'",
    '"a": "{{\\"token\\": \\"{}\\"}}"',
)


@each_row("place", SET)
@each_row("value", ["hunter2hunter2", "s3cr3t-value_42", "abcdefghijklmnop"])
def test_a_value_is_masked_by_its_name_in_files_alone(place: str, value: str) -> None:
    text = place.format(value)
    assert Redactor(named=True).text(text) == place.format("***")
    assert Redactor().text(text) == text


def test_a_login_of_docker_is_masked_and_stays_json() -> None:
    text = json.dumps({"auths": {"https://index.example/v1/": {"auth": "bWU6aHVudGVyMg=="}}, "credsStore": "pass"})
    assert json.loads(Redactor(named=True).text(text))["auths"] == {"https://index.example/v1/": {"auth": "***"}}


NAMED_HARMLESS = (
    "token: 1234",
    "tokens/s: 1234.5  tokens per second per gpu: 1,234",
    "tokenizer: meta-llama/Llama-3.1-8B",
    "the password was wrong; password: incorrect for user 5; Enter password: ",
    'pad_token: <pad>, "eos_token": "</s>", mask_token: [MASK], bos_token: begin_of_text1',
    '{"password": 15833, "token": 30001, "secret": 24238, "auth": 7}',
    "token: the",
    "secret: registry-creds",
    "token: $HF_TOKEN  api_key: ${KEY}  password: ***  secret: {{ secret }}",
    '{"secret": "HF_TOKEN", "token": null, "password": ""}',
    "private_key: /etc/ssl/key.pem  auth: basic12345  secret_name: abcdefgh1234",
    "token: 1234.5ms  token: 12:34:56",
)


@each_row("text", NAMED_HARMLESS)
def test_what_is_called_like_a_secret_and_is_none_stays(text: str) -> None:
    assert Redactor(named=True).text(text) == text


@each_row("log", sorted(path for path in LOGS.rglob("*") if path.is_file()), ids=lambda path: path.name)
def test_a_real_log_stays_where_names_are_looked_at(log: Path) -> None:
    data = log.read_bytes()
    assert streamed(Redactor(named=True), [data]) == data


@each_row("log", sorted(path for path in LOGS.rglob("*") if path.is_file()), ids=lambda path: path.name)
def test_a_real_log_stays_byte_for_byte(log: Path) -> None:
    data = log.read_bytes()
    redactor = Redactor()
    sizes = (1000, 65536)
    assert all(streamed(redactor, [data[at : at + size] for at in range(0, len(data), size)]) == data for size in sizes)
    lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
    assert [redactor.feed(line) for line in lines] == lines, "a line is not waited with"
    assert redactor.text(data.decode()) == data.decode()


@each_row("log", sorted(LOGS.glob("*.log"))[::4], ids=lambda path: path.name)
def test_a_real_log_stays_where_secrets_are_known_that_it_does_not_hold(log: Path) -> None:
    data = log.read_bytes()
    known = [*TOKENS.values(), KEY, "p@ss/w+rd=é\"'$ \\ <&>", "hunter2", chars(40, "0123456789abcdef"), "a b"]
    assert streamed(Redactor(known), [data[at : at + 4000] for at in range(0, len(data), 4000)]) == data


SHOWN = [(place.format(token), token) for token in TOKENS.values() for place in PLACES[:7]]
SHOWN += [(text, max(shaped(text), key=len)) for text in URLS if shaped(text)]
SHOWN += [(header.format("abcdefgh.12345-_"), "abcdefgh.12345-_") for header in HEADERS if "\\ " not in header]


@settings(deadline=None)
@example(("?authorization=Bearer%20abcdefgh.12345-_", "abcdefgh.12345-_"), [23], "")
@given(st.sampled_from(SHOWN), st.lists(st.integers(0, 130), max_size=6), st.text("hgx:/A \n", max_size=6))
def test_a_shape_is_masked_however_a_stream_is_cut(shown: tuple[str, str], cuts: list[int], before: str) -> None:
    text, secret = shown
    data = f"{before}|{text}\n".encode()
    at = [0, *sorted(min(place, len(data)) for place in cuts), len(data)]
    out = streamed(Redactor(), [data[a:b] for a, b in zip(at, at[1:], strict=False)]).decode()
    whole = Redactor().text(data.decode())
    assert secret not in out and out == whole


ENDLESS = ("https://me:", "https://", "hf_", "Authorization: Bearer ", "AKIA", "xoxb-1", "glpat-", "secret_access_key=")


@each_row("text", ENDLESS)
def test_little_is_held_of_what_never_ends(text: str) -> None:
    redactor = Redactor()
    out = len(redactor.feed(text.encode())) + sum(len(redactor.feed(b"a" * 1000)) for _ in range(150))
    assert out > 80_000


# a line of nothing but one of these is where a pattern could look again and again
HOSTILE = (
    "hf_a|ghp_|ghp_a|github_pat_|glpat-|glpat-a|xoxb-|xoxb-1|AKIA|AKIAA1|AKIAAAAAAAAAAAAAAAAA|AKIAAAAAAAAAAAAAAAAA |"
    "://|://a|://a:|://a:b|://a@|://:@|a:b@|https://|https://a|@|https:\\/\\/|https://a:b@|"
    "Authorization: |authorization|authorization:basic |AUTHORIZATION: BEARER a|"
    "secret_access_key|secret_access_key=|secret_access_key=a|session_token=|session_token=a|SecretAccess|"
    "sk-|sk-proj-a1|eyJ|eyJaaaaaaaa.|aGZf|AIza|-----BEGIN |-----BEGIN PRIVATE KEY-----|token: |"
    "a|A|/| |=|\x1b|\x1b[|\x1b[3|\x1b[31m|\x1b]|\x1b]0;|\x1b(|\0|'|\"|\\|%2"
).split("|")
KNOWN = [
    "hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
    "a" * 40 + "b",
    "p@ss/w+rd=é\"'$ \\ <&>",
    "AKIAAKIA" * 200 + "x",
    "a\n" * 900,
]


@pytest.mark.host
@each_row("text", HOSTILE, ids=ascii)
def test_half_of_the_longest_line_is_masked_in_no_time(text: str) -> None:
    line = (text * (LONGEST // 2 // len(text) + 1))[: LONGEST // 2]
    known = Redactor(KNOWN)
    known.text("")
    for redactor in (Redactor(), known):
        begun_s = time.process_time()
        redactor.text(line)
        shaped(line)
        assert streamed(redactor, [line.encode()])
        assert time.process_time() - begun_s < 6
        begun_s = time.process_time()
        assert streamed(redactor, [line[at : at + 64].encode() for at in range(0, len(line) // 8, 64)])
        assert time.process_time() - begun_s < 6


def test_values_and_the_environment_are_known_by_shape() -> None:
    env = {
        "URL": "https://me:p4ssword@host",
        "N": "1",
        "PIP_INDEX_URL": f"https://{TOKENS['github']}@host",
        "U": "me@host",
    }
    assert {name for name, value in guard(env).items() if isinstance(value, Secret)} == {"URL", "PIP_INDEX_URL"}
    assert set(collect(env)) == {"p4ssword", TOKENS["github"]}
    assert set(collect({}, [Secret("x https://me:p4ssword@host")])) >= {"p4ssword"}


@each_row(
    ("url", "split"),
    [
        ("https://me:p%40ss@host:8443/x?y=a@b", ("https://host:8443/x?y=a@b", "me", "p@ss")),
        ("https://t0ken@host/x", ("https://host/x", "t0ken", None)),
        ("https://:pw@host/x", ("https://host/x", "", "pw")),
        ("https://me:ss/w+rd@host/x", ("https://host/x", "me", "ss/w+rd")),
        ("https://host/x@1", ("https://host/x@1", "", None)),
        ("https://host:8080/x@1", ("https://host:8080/x@1", "", None)),
        ("git@host:org/x.git", ("git@host:org/x.git", "", None)),
        ("ssh://git@host/x", ("ssh://git@host/x", "", None)),
        ("ssh://git:pw@host/x", ("ssh://git@host/x", "", None)),
        ("/srv/git/x", ("/srv/git/x", "", None)),
        ("", ("", "", None)),
    ],
)
def test_a_url_is_split_from_its_user(url: str, split: tuple[str, str, str | None]) -> None:
    assert tuple(split_userinfo(url)) == split
