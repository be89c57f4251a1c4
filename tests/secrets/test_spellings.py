"""A known secret is masked as URLs, JSON, shells and base64 write it: made by the tools themselves, cut anywhere."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from urllib.parse import quote, quote_plus

from hypothesis import given, settings
from hypothesis import strategies as st

from madlite.secrets import MASK, Redactor
from tests.rows import each_row
from tests.secrets.streams import streamed

ODD = "p@ss/w+rd=é\"'$ \\ <&>"
SECRETS = {
    "odd": ODD,
    "token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzEXAMPLEKY",
    "digits": "0123456789abcdef0123456789abcdef01234567",
    "words": "correct horse battery staple, again and again: and a last time that no line of 80 has room for",
    "control": "first\tse\\nd\x1b\x07 línea",
    "emoji": "pässwörd-😀-ключ",
}


def bash(command: str, secret: str, locale: str = "C.UTF-8") -> str:
    done = subprocess.run(
        ["bash", "-c", command], env={"S": secret, "PATH": os.environ["PATH"], "LC_ALL": locale}, capture_output=True
    )
    return (done.stdout + done.stderr).decode(errors="surrogateescape")


def base64_at(before: int, alphabet: Callable[[bytes], bytes]) -> Callable[[str], str]:
    return lambda secret: alphabet(b"{:,"[:before] + b"xyz" + secret.encode() + b"', 'more'").decode()


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it stands": str,
    "quote": quote,
    "quote without /": lambda secret: quote(secret, safe=""),
    "quote, lower case": lambda secret: lower_percent(quote(secret, safe="")),
    "quote_plus": quote_plus,
    "quote_plus, lower case": lambda secret: lower_percent(quote_plus(secret)),
    "of JavaScript": lambda secret: quote(secret, safe="!'()*"),
    "a user of a URL": lambda secret: f"https://me:{quote(secret, safe='!$&()*+,;=')}@host/path",
    "set -x": lambda secret: bash('set -x; : "$S" "--token=$S"', secret),
    "set -x without UTF-8": lambda secret: bash('set -x; : "$S"', secret, "C"),
    "printf %q": lambda secret: bash('printf "%q" "$S"', secret),
    "printf %q without UTF-8": lambda secret: bash('printf "%q" "$S"', secret, "C"),
    "declare -p": lambda secret: bash("export S; declare -p S", secret),
    "shlex": shlex.quote,
    "json": json.dumps,
    "json of Unicode": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json of Go": lambda secret: go_json(secret),
    **{f"base64 at {n}": base64_at(n, base64.b64encode) for n in range(3)},
    **{f"base64 of URLs at {n}": base64_at(n, base64.urlsafe_b64encode) for n in range(3)},
    "base64 alone": lambda secret: base64.b64encode(secret.encode()).decode(),
}


def lower_percent(text: str) -> str:
    parts = text.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def go_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# what undoes a spelling is what an attacker would do: nothing that is left says four characters of the secret
def is_gone(secret: str, shown: str) -> bool:
    plain = "".join(shown.replace(MASK.decode(), " ").split())
    return not any(secret[at : at + 6] in shown for at in range(len(secret) - 5)) and secret not in plain


@cache
def written(name: str, spelling: str) -> str:
    return SPELLINGS[spelling](SECRETS[name])


@each_row("spelling", SPELLINGS)
@each_row("name", SECRETS)
def test_every_spelling_of_a_secret_is_masked(name: str, spelling: str) -> None:
    text = written(name, spelling)
    before, after = "step 1 loss 2.5 token=", " | 12 MiB\n"
    shown = Redactor([SECRETS[name]]).text(before + text + after)
    assert MASK.decode() in shown and shown.startswith(before[:12]) and shown.endswith(after)
    assert is_gone(SECRETS[name], shown)
    # what is left is what stands around it: a quote, a name, digits that neighbours share
    assert len(shown) - len(before + after) <= len(text) - len(SECRETS[name]) * 0.6


OFTEN = ("as it stands", "quote_plus", "set -x", "json", "base64 at 1")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SECRETS)),
    st.sampled_from(OFTEN),
    st.lists(st.integers(0, 400), max_size=6),
    st.text("ab\n \x1b[m0hfp", max_size=8),
)
def test_cuts_of_a_stream_change_nothing(name, spelling, cuts, before) -> None:
    data = f"{before}|{written(name, spelling)}|\n".encode()
    redactor = Redactor([SECRETS[name]])
    shown, whole = streamed(redactor, cut(data, cuts)).decode(), redactor.text(data.decode())
    assert MASK.decode() in shown and is_gone(SECRETS[name], shown) and shown == whole


@each_row("secret", ["hunter22", "p'ss\"wd\\1"])
def test_a_short_secret_is_found_as_a_longer_one_is(secret: str) -> None:
    redactor = Redactor([secret])
    assert redactor.text(f"{secret[:4]}\n{secret[4:]}") == f"{secret[:4]}\n{secret[4:]}"
    for spell in (json.dumps, shlex.quote, quote, lambda text: bash('printf %q "$S"', text)):
        assert secret[3:] not in redactor.text(spell(secret)) and "***" in redactor.text(spell(secret))


@each_row("secret", ["abc", "12", "a\nb"])
def test_what_is_shorter_than_four_characters_stays(secret: str) -> None:
    text = f"{secret} {secret!r} {quote(secret)} {secret.encode().hex()} {base64.b64encode(secret.encode())}"
    assert Redactor([secret]).text(text) == text


@settings(deadline=None)
@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=3))
def test_nothing_is_lost_of_what_is_no_secret(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "surrogatepass")
    assert streamed(Redactor([SECRETS["token"], ODD]), cut(data, cuts)) == data
