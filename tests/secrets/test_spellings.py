"""A known secret is masked however a tool writes it: made by the tools themselves, with noise in it, cut anywhere."""

from __future__ import annotations

import base64
import html
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape, quoteattr

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape as escape_jinja

from madlite.secrets import MASK, Redactor
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
    "env | cat -v": lambda secret: (
        bash("printf %s \"$S\" | tr -d '\\033\\007' | cat -A | tr -d '$'", secret) if secret.isascii() else secret
    ),
    "shlex": shlex.quote,
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "repr in a repr": lambda secret: repr(repr({"token": secret})),
    "html": html.escape,
    "html without quotes": lambda secret: html.escape(secret, quote=False),
    "html of Jinja": lambda secret: str(escape_jinja(secret)),
    "html of digits": lambda secret: html.escape(secret).encode("ascii", "xmlcharrefreplace").decode(),
    "xml": escape,
    "xml attribute": quoteattr,
    "yaml": lambda secret: yaml.safe_dump({"token": secret}),
    "yaml of Unicode": lambda secret: yaml.safe_dump({"token": secret}, allow_unicode=True),
    "yaml in single quotes": lambda secret: yaml.safe_dump(secret, default_style="'", allow_unicode=True),
    "yaml in double quotes": lambda secret: yaml.safe_dump(secret, default_style='"'),
    "json": json.dumps,
    "json of Unicode": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json twice": lambda secret: json.dumps(json.dumps({"token": secret})),
    "json twice, of Unicode": lambda secret: json.dumps(json.dumps(secret, ensure_ascii=False), ensure_ascii=False),
    "json in html": lambda secret: html.escape(json.dumps({"token": secret})),
    "json in a URL": lambda secret: quote(json.dumps({"token": secret})),
    "json of Go": lambda secret: go_json(secret),
    **{f"base64 at {n}": base64_at(n, base64.b64encode) for n in range(3)},
    **{f"base64 of URLs at {n}": base64_at(n, base64.urlsafe_b64encode) for n in range(3)},
    "base64 alone": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 in lines": lambda secret: base64.encodebytes(b"me:" * 20 + secret.encode() + b":more" * 20).decode(),
    "base64 in a URL": lambda secret: quote(base64.b64encode(secret.encode()), safe=""),
    "base64 of json": lambda secret: base64.b64encode(json.dumps({"a": secret}).encode()).decode(),
    "digits": lambda secret: secret.encode().hex(),
    "upper digits": lambda secret: secret.encode().hex().upper(),
    "digits apart": lambda secret: secret.encode().hex(" "),
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


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", SECRETS)
def test_every_spelling_of_a_secret_is_masked(name: str, spelling: str) -> None:
    text = written(name, spelling)
    before, after = "step 1 loss 2.5 token=", " | 12 MiB\n"
    shown = Redactor([SECRETS[name]]).text(before + text + after)
    assert MASK.decode() in shown and shown.startswith(before[:12]) and shown.endswith(after)
    assert is_gone(SECRETS[name], shown)
    # what is left is what stands around it: a quote, a name, digits that neighbours share
    assert len(shown) - len(before + after) <= len(text) - len(SECRETS[name]) * 0.6


NOISE = [
    "\r",
    "\0",
    "\n",
    "\r\n",
    "\n    ",
    "\x1b[31m",
    "\x1b[0;1m",
    "\x1b[K",
    "\x1b[2A",
    "\x1b(B",
    "\x1b]0;a title\x07",
]
LONG = ("odd", "token", "key", "digits", "words")
OFTEN = ("as it stands", "quote_plus", "set -x", "html", "json twice", "yaml", "base64 at 1", "digits")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


def without_noise(text: str) -> str:
    for noise in sorted(NOISE, key=len, reverse=True):
        text = text.replace(noise, "")
    return text.replace(" ", "")


@settings(deadline=None)
@given(
    st.sampled_from(LONG),
    st.sampled_from(OFTEN),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(NOISE)), max_size=4),
    st.lists(st.integers(0, 400), max_size=6),
    st.text("ab\n \x1b[m0hfp", max_size=8),
)
def test_noise_in_a_secret_and_cuts_of_a_stream_change_nothing(name, spelling, noises, cuts, before) -> None:
    chars = list(written(name, spelling))
    for place, noise in noises:
        chars[place % len(chars)] += noise
    text = "".join(chars)
    data = f"{before}|{text}|\n".encode()
    redactor = Redactor([SECRETS[name]])
    shown = streamed(redactor, cut(data, cuts)).decode()
    if "base64" not in spelling:
        assert SECRETS[name] not in shown
    assert MASK.decode() in shown
    whole = redactor.text(data.decode())
    if shown != whole:  # up to three characters before a line's end, or of another spelling, were out
        assert len(without_noise(shown)) <= len(without_noise(whole)) + 3 + (len("\x1b]0;a title") if noises else 0)
    assert not any(part in without_noise(shown) for part in parts_of(name, spelling))


def parts_of(name: str, spelling: str) -> set[str]:
    """What would tell the secret: any twelve characters of it as it is written, but those that its tool adds."""
    text = without_noise(written(name, spelling))
    shown = without_noise(Redactor([SECRETS[name]]).text(written(name, spelling)))
    return {text[at : at + 12] for at in range(len(text) - 11) if text[at : at + 12] not in shown}


@pytest.mark.host
@pytest.mark.parametrize("noise", NOISE, ids=ascii)
@pytest.mark.parametrize("name", LONG)
def test_noise_between_all_characters(name: str, noise: str) -> None:
    data = f"x {noise.join(SECRETS[name])} y".encode()
    assert Redactor([SECRETS[name]]).text(data.decode()) == "x *** y"
    for size in (1, 3, 7, 64):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        shown = without_noise(streamed(Redactor([SECRETS[name]]), pieces).decode())
        assert shown in {f"x{SECRETS[name][:n]}***y" for n in range(4)}


@pytest.mark.parametrize("secret", ["hunter22", "p'ss\"wd\\1"])
def test_a_short_secret_is_found_between_colours_and_not_across_lines(secret: str) -> None:
    redactor = Redactor([secret])
    assert redactor.text(f"x \x1b[1m{secret[:4]}\x1b[0m{secret[4:]} y") == "x \x1b[1m*** y"
    assert redactor.text(f"x \0{secret[:4]}\0{secret[4:]} y") == "x \0*** y"
    assert redactor.text(f"{secret[:4]}\n{secret[4:]}") == f"{secret[:4]}\n{secret[4:]}"
    for spell in (repr, json.dumps, shlex.quote, quote, lambda text: bash('printf %q "$S"', text)):
        assert secret[3:] not in redactor.text(spell(secret)) and "***" in redactor.text(spell(secret))


@pytest.mark.parametrize("secret", ["abc", "12", "a\nb"])
def test_what_is_shorter_than_four_characters_stays(secret: str) -> None:
    text = f"{secret} {secret!r} {quote(secret)} {secret.encode().hex()} {base64.b64encode(secret.encode())}"
    assert Redactor([secret]).text(text) == text


@settings(deadline=None)
@given(st.text(max_size=30), st.lists(st.integers(0, 30), max_size=3))
def test_nothing_is_lost_of_what_is_no_secret(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "surrogatepass")
    assert streamed(Redactor([SECRETS["token"], ODD]), cut(data, cuts)) == data


def test_a_line_that_may_begin_a_secret_is_not_torn_apart() -> None:
    """Two streams are written to one file: half a line of one would be amidst the other's."""
    redactor = Redactor(["56.75 is my password"])
    assert redactor.feed(b"step 1 loss 5\n") == b"step 1 loss 5\n"
    assert redactor.feed(b"step 2 loss 56.\n") == b"step 2 loss 56.\n"
    assert redactor.feed(b"75 is my password\n") == b"***\n", "what comes after it is masked all the same"
    assert redactor.feed(b"x 56.") == b"x " and redactor.flush() == b"56."


def test_what_waits_for_the_rest_of_a_secret_stays_small() -> None:
    redactor = Redactor([SECRETS["token"]])
    out = redactor.feed(b"hf_AbCd") + b"".join(redactor.feed(b"\0" * 1000) for _ in range(20))
    assert len(out) > 17_000, "a few kilobytes of noise are waited for"
    assert len(out) + len(redactor.flush()) == 20_007
