"""What is a secret by its shape alone, wherever it stands: the one list of such shapes.

Sources: Hugging Face, "User access tokens" (`hf_` and 34 letters or digits); GitHub, "Authentication token format
updates" of 2021 (`ghp_ gho_ ghu_ ghs_ ghr_` and 36 characters, up to 255 in all) and its fine-grained tokens
(`github_pat_` and 82); GitLab, "Token overview" (`glpat-` and 20, more and a dot in newer ones); AWS IAM, "Unique
identifiers" (ids `AKIA…` and `ASIA…` of 20 characters, whose secret keys have 40 of base64); Slack, "Token types"
(`xoxb-` and others); RFC 3986 (user and password of a URL); RFC 7617 and 6750 (`Authorization: Basic`, `Bearer`);
RFC 7468 (private keys as PEM); RFC 7519 (JWT, three parts of base64, the first two JSON objects); OpenAI and Anthropic
(`sk-…`); npm (`npm_` and 36); PyPI (`pypi-` and a macaroon); Google Cloud (`AIza` and 35); Docker (`dckr_pat_`);
Stripe (`sk_live_`).

All patterns are linear, and none inspects more than some LONGEST bytes.  What stands for a secret that is put in later
(`$TOKEN`, `{token}`, `***`) is none.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

Span = tuple[int, int]
LONGEST = 4096  # bytes of a header's value, the longest of them
LONGEST_KEY = 16 << 10  # bytes of a private key
NEAR = 200  # bytes between the id of an AWS key and its secret
_SHORTEST_USER = 4  # characters of a user without a password
_LIKE_A_TOKEN = 20  # characters of a user that is no plain word
_ALNUM, _WORD, _DASHED, _NAMED = (f"[A-Za-z0-9{more}]" for more in ("", "_", "-", "_.-"))
_OF_USER = r"[^\s/?#@:\"'<>\\`|{}^()\[\],;]"
_OF_REST = r"[^\s/?#\"'<>\\`]"
_BETWEEN = r"(?:[^A-Za-z0-9\n]|b(?=['\"\\]))"  # a header's name and value, as HTTP, JSON, Python and Go write them
_SET_TO = r"[ \t\"'\\:=,>-]"
# what a header's value begins with, and what it goes on with
_FIRST, _NEXT = r"[^\s\"'\\,;<>\]})&$\{*%\[(]", r"[^\s\"'\\,;<>\]})&]"
_BLANK = r"(?:[ \t+]|%20|%2?\Z)"  # at the end of a piece of a stream a part of it
_SCHEME = re.compile(rf"(?:bearer|basic|token){_BLANK}+".encode(), re.IGNORECASE)
_STANDS_FOR = re.compile(rb"\$[A-Z_][A-Z0-9_]*|\$?\{.*|%[sdr]|\*+|\.+|x+|X+", re.DOTALL)
_PORT = re.compile(rb"\d{1,5}[,;|)\]}&]")  # of `http://host:8080,me@there`
_DIGEST = re.compile(rb"sha\d{3}:")  # of docker://image:tag@sha256:…
_OF_HEX = re.compile(rb"[0-9a-f]+")
_KEY_ID = re.compile(rb"A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])")
_SECRET_KEY = re.compile(rb"(?<![A-Za-z0-9/+])(?![0-9a-f]{40})[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_KEY_BEGUN = re.compile(rb"(?<![A-Za-z0-9/+])[A-Za-z0-9/+]{1,40}\Z")
# users that services ask for beside a token, or that are nobody's secret
_COMMON = frozenset(
    b"git user username root admin anonymous __token__ oauth2 x-access-token x-token-auth gitlab-ci-token".split()
)
_NO_PASSWORDS = (b"", b"x-oauth-basic", b"x")  # beside a user that is the token


class Begun(NamedTuple):
    """From where on the end of data may be the start of a secret, and from where it is worth waiting for."""

    kept: int
    held: int


class _Piece(NamedTuple):
    """What one character may be, as a pattern, and how many of them there are at least and at most."""

    what: str
    least: int = 1
    most: int = 1


class _Shape(NamedTuple):
    """`pattern` finds it, `begun` what may be the start of it at the end of a text, `held` what surely looks like it.

    `parts` are the secret places of what was found, `meant` yields what such a part is another spelling of, itself
    included.
    """

    pattern: re.Pattern[bytes]
    begun: str
    held: str
    parts: Callable[[re.Match[bytes]], Iterator[Span]]
    meant: Callable[[bytes], Iterator[bytes]]


def spans(data: bytes, *, named: bool = False) -> list[Span]:
    """Return the places of all secrets that have such a shape, in no order; they may overlap.

    With `named` also those of values under names such as `password`, in lines of YAML, TOML, JSON and INI.
    """
    found = [span for match, shape in _matches(data) for span in shape.parts(match)]
    return [*found, *filter(None, map(_named_value, _settings(data)))] if named else found


def meanings(data: bytes) -> Iterator[bytes]:
    """Yield the secrets of a text by their shape, as they stand there and as they are meant."""
    for match, shape in _matches(data):
        for start, end in shape.parts(match):
            yield from shape.meant(data[start:end])


def begun(data: bytes) -> Begun:
    """Return where such a secret may start that is not over."""
    end = len(data)
    key = _key_at(data)
    if (private := _private_key_at(data)) < end:
        return Begun(min(key, private), private)
    if data.endswith(b"\n"):
        return Begun(key, end)
    at = max(data.rfind(b"\n") + 1, end - LONGEST - NEAR, 0)
    beside = _KEY_BEGUN.search(data, max(at, end - 41)) if key < end else None
    kept, held = (pattern.search(data, at) for pattern in _unfinished())
    waited = min((found.start() for found in (held, beside) if found), default=end)
    return Begun(min(key, waited, kept.start() if kept else end), waited)


@cache
def _unfinished() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of what may begin a shape, and of what surely looks like one; only streams need them."""
    begun, held = "|".join(shape.begun for shape in _EVERY), "|".join(shape.held for shape in _EVERY)
    return re.compile(begun.encode()), re.compile(held.encode())


def _key_at(data: bytes) -> int:
    """Return where the id of an AWS key stands whose secret may still come; the data's length if nowhere."""
    near = max(0, len(data) - NEAR - 20)
    found = _KEY_ID.search(data, near) if data.find(b"IA", near) >= 0 else None
    return found.start() if found else len(data)


def _private_key_at(data: bytes) -> int:
    """Return where a private key begins that is not over; the data's length if nowhere."""
    at = data.rfind(_BEGIN, max(0, len(data) - LONGEST_KEY))
    found = _PRIVATE_KEY.match(data, at) if at >= 0 else None
    return at if found and found.end() == len(data) else len(data)


def _matches(data: bytes) -> Iterator[tuple[re.Match[bytes], _Shape]]:
    lowered = data.lower()
    for needed, shapes in _SHAPES:
        if needed(lowered):
            for shape in shapes:
                for match in shape.pattern.finditer(data):
                    yield match, shape


def _all(found: re.Match[bytes]) -> Iterator[Span]:
    yield found.span()


def _hub_token(found: re.Match[bytes]) -> Iterator[Span]:
    if not _OF_HEX.fullmatch(found[0], 3):  # a digest in a name
        yield found.span()


def _with_digit(found: re.Match[bytes]) -> Iterator[Span]:
    if _has_digit(found[0]):
        yield found.span()


def _no_digest(found: re.Match[bytes]) -> Iterator[Span]:
    if not _OF_HEX.fullmatch(found[0], 3):
        yield from _with_digit(found)


def _packed_hub_token(found: re.Match[bytes]) -> Iterator[Span]:
    data = found[0]
    if re.match(rb"hf_[A-Za-z0-9]{30}", a2b_base64(data[: len(data) // 4 * 4])):
        yield found.span()


def _private_key(found: re.Match[bytes]) -> Iterator[Span]:
    yield found.start() + found[0].index(b"KEY-----") + len(b"KEY-----"), found.end()


def _key_and_secret(found: re.Match[bytes]) -> Iterator[Span]:
    start, end = found.span()
    yield start, end
    for beside in _SECRET_KEY.finditer(found.string, max(0, start - NEAR), end + NEAR):
        yield beside.span()


def _set_key(found: re.Match[bytes]) -> Iterator[Span]:
    value = re.search(rb"[A-Za-z0-9/+=]+\Z", found[0])
    if value and not _OF_HEX.fullmatch(value[0]):
        yield found.start() + value.start(), found.end()


def _header(found: re.Match[bytes]) -> Iterator[Span]:
    scheme = _SCHEME.search(found[0])
    if scheme and not _STANDS_FOR.fullmatch(found[0], scheme.end()):
        yield found.start() + scheme.end(), found.end()


def _userinfo(found: re.Match[bytes]) -> Iterator[Span]:
    start, end = found.start() + found[0].rindex(b"/") + 1, found.end() - 1
    user, _, password = found.string[start:end].partition(b":")
    if _STANDS_FOR.fullmatch(password) or _PORT.match(password) or _DIGEST.match(found.string, found.end()):
        return
    if password in _NO_PASSWORDS or (len(user) >= _LIKE_A_TOKEN and any(48 <= byte <= 57 for byte in user)):
        yield from _user(start, user)
    if password not in _NO_PASSWORDS:
        yield end - len(password), end


def _user_alone(found: re.Match[bytes]) -> Iterator[Span]:
    start = found.start() + found[0].rindex(b"/") + 1
    yield from _user(start, found.string[start : found.end() - 1])


def _user(start: int, user: bytes) -> Iterator[Span]:
    if len(user) >= _SHORTEST_USER and user.lower() not in _COMMON and not _STANDS_FOR.fullmatch(user):
        yield start, start + len(user)


def _itself(part: bytes) -> Iterator[bytes]:
    yield part


def _unquoted(part: bytes) -> Iterator[bytes]:
    yield from (part, unquote_to_bytes(part))


def _no_plain_word(part: bytes) -> Iterator[bytes]:
    if not part.isalpha() or len(part) >= _LIKE_A_TOKEN:  # a user's name would be masked all over a log
        yield from _unquoted(part)


def _with_password(part: bytes) -> Iterator[bytes]:
    yield part
    try:
        yield a2b_base64(part).partition(b":")[2]
    except Error:
        return


def _text(text: str) -> list[_Piece]:
    return [_Piece(re.escape(char)) for char in text]


def _begun_by(no: str, text: str) -> list[_Piece]:
    """Return the pieces of a text that follows no such character: in a long run of them it is looked for once.

    It may follow the `m` that ends a colour.
    """
    first, *rest = _text(text)
    return [_Piece(rf"(?:(?<!{no})|(?<=[0-9\[]m)){first.what}"), *rest]


def _any_case(text: str) -> list[_Piece]:
    """Return the pieces of a name in any case, where `_` may be a dash or left out."""
    return [_Piece("[_-]", 0) if char == "_" else _Piece(f"[{char}{char.upper()}]") for char in text]


def _shape(
    pieces: Iterable[_Piece],
    parts: Callable[[re.Match[bytes]], Iterator[Span]] = _all,
    meant: Callable[[bytes], Iterator[bytes]] = _itself,
    *,
    secret: tuple[int, int] = (-1, 1),
    after: str = "",
    unless: str = "",
) -> _Shape:
    """Return the shape that the pieces make one after another.

    `secret` are the piece from which on it is secret, and how many characters of it are worth waiting for; `after` is
    what follows, which is no part of it, `unless` what may have to follow before that is known.
    """
    every = tuple(pieces)
    head = every[: secret[0]]
    begun, held = rf"{unless}\Z", ""
    for place in range(len(every) - 1, 0, -1):
        what, least, most = every[place]
        if place == len(head):
            held = rf"(?:{what}{{{secret[1]},{most}}}\Z|{what}{{{least},{most}}}{begun})"
        short = r"\Z" if most == 1 else rf"{what}{{0,{most}}}\Z"
        begun = rf"(?:{short}|{what}{{{least},{most}}}{begun})"
    pattern = re.compile(f"{_joined(every)}{after}".encode())
    return _Shape(pattern, every[0].what + begun, _joined(head) + held, parts, meant)


def _joined(pieces: Iterable[_Piece]) -> str:
    return "".join(what if least == most == 1 else f"{what}{{{least},{most}}}" for what, least, most in pieces)


_AUTHORITY = (_Piece(":"), *(_Piece(r"\\", 0), _Piece("/")) * 2)  # JSON may write / as \/
_HEADER = (*_any_case("authorization"), _Piece(_BETWEEN, 1, 16))
_VALUE = (_Piece(_BLANK, 1, 8), _Piece(_FIRST), _Piece(_NEXT, 3, LONGEST))
_ENOUGH = (-1, 8)
_HUB = (_shape([*_text("hf_"), _Piece(_ALNUM, 30, 255)], _hub_token, secret=_ENOUGH),)
_GIT = (
    _shape([*_text("gh"), _Piece("[pousr]"), *_text("_"), _Piece(_ALNUM, 36, 255)], secret=_ENOUGH),
    _shape([*_text("github_pat_"), _Piece(_WORD, 36, 255)], secret=_ENOUGH),
    _shape([*_text("glpat-"), _Piece(_NAMED, 20, 300)], secret=_ENOUGH),
)
_CHAT = (
    _shape([*_text("xox"), _Piece("[abeoprs]"), *_text("-"), _Piece(_DASHED, 10, 300)], _with_digit, secret=_ENOUGH),
)
_KEYS = (
    _shape(
        [*_text("A"), _Piece("[KS]"), *_text("IA"), _Piece("[A-Z0-9]", 16, 16)],
        _key_and_secret,
        secret=_ENOUGH,
        after="(?![A-Za-z0-9])",
    ),
)
_SERVICES = (
    *(
        _shape([*_text(f"sk-{kind}-"), _Piece("[A-Za-z0-9_-]", 20, 300)], _with_digit, secret=_ENOUGH)
        for kind in ("proj", "svcacct", "admin", "ant", "or-v1")
    ),
    _shape([*_text("sk-"), _Piece(_ALNUM, 32, 255)], _no_digest, secret=_ENOUGH),
    _shape([*_text("sk_live_"), _Piece(_ALNUM, 16, 255)], _with_digit, secret=_ENOUGH),
    _shape([*_text("npm_"), _Piece(_ALNUM, 36, 255)], secret=_ENOUGH),
    _shape([*_text("pypi-AgE"), _Piece("[A-Za-z0-9_-]", 40, 1024)], secret=_ENOUGH),
    _shape([*_text("AIza"), _Piece("[A-Za-z0-9_-]", 35, 35)], secret=_ENOUGH),
    _shape([*_text("dckr_pat_"), _Piece("[A-Za-z0-9_-]", 20, 255)], secret=_ENOUGH),
    _shape([*_begun_by(_ALNUM, "aGZf"), _Piece("[A-Za-z0-9+/]", 40, 350)], _packed_hub_token, secret=_ENOUGH),
)
_JSON_PART = _Piece("[A-Za-z0-9_-]", 8, LONGEST)
_WEB_TOKENS = (
    _shape(
        [
            *_begun_by("[A-Za-z0-9_-]", "eyJ"),
            _JSON_PART,
            _Piece(r"\."),
            *_text("eyJ"),
            _JSON_PART,
            _Piece(r"\."),
            _JSON_PART,
        ],
        secret=(3, 8),
    ),
)
_BEGIN = b"-----BEGIN "
# of its lines, also where JSON or a shell spells their ends; a part of one may be all there is
_OF_KEY = r"(?:[A-Za-z0-9+/=\s\\:,]|-(?!----))"
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----%b{0,%d}" % (_OF_KEY.encode(), LONGEST_KEY))
_PRIVATE_KEYS = (
    _shape(
        [
            *_text(_BEGIN.decode()),
            _Piece("[A-Z ]", 0, 30),
            *_text("PRIVATE KEY-----"),
            _Piece(_OF_KEY, 16, LONGEST_KEY),
        ],
        _private_key,
    ),
)
_HEADERS = tuple(
    _shape([*_HEADER, *_any_case(scheme), *_VALUE], _header, meant, secret=(-2, 1))
    for scheme, meant in (("bearer", _itself), ("token", _itself), ("basic", _with_password))
)
_SET_KEYS = (
    _shape(
        [*_any_case("secret_access_key"), _Piece(_SET_TO, 1, 12), _Piece("[A-Za-z0-9/+]", 40, 40)],
        _set_key,
        after="(?![A-Za-z0-9/+=])",
    ),
    _shape([*_any_case("session_token"), _Piece(_SET_TO, 1, 12), _Piece("[A-Za-z0-9/+=]", 100, LONGEST)], _set_key),
)
_URLS = (
    _shape(
        [*_AUTHORITY, _Piece(_OF_USER, 0, 256), _Piece(":"), _Piece(_OF_REST, 0, 1024), _Piece("@")],
        _userinfo,
        _unquoted,
        secret=(-4, 1),
        unless="[a-z0-9]{0,6}",
    ),
    _shape(
        [*_text("http"), _Piece("s", 0), *_AUTHORITY, _Piece(_OF_USER, 1, 256), _Piece("@")],
        _user_alone,
        _no_plain_word,
        secret=(-2, 1),
    ),
)
_OF_SERVICES = re.compile(
    rb"s(?:k-[a-z0-9]{3}|k_live_)|npm_[a-z0-9]{36}|pypi-age|aiza|dckr_pat_|agzf|eyj|private key-"
).search
# shapes with what says whether a lower-cased text may have one: most of them take longer to find nothing
_SHAPES: tuple[tuple[Callable[[bytes], object], tuple[_Shape, ...]], ...] = (
    (re.compile(rb"hf_[a-z0-9]{30}").search, _HUB),
    (re.compile(rb"g(?:h[pousr]_[a-z0-9]{36}|ithub_pat_|lpat-)").search, _GIT),
    (re.compile(rb"xox[abeoprs]-").search, _CHAT),
    (re.compile(rb"a[ks]ia[a-z0-9]{16}").search, _KEYS),
    (_OF_SERVICES, (*_SERVICES, *_WEB_TOKENS, *_PRIVATE_KEYS)),
    (lambda lowered: b"@" in lowered, _URLS),
    (lambda lowered: b"authorization" in lowered, _HEADERS),
    (re.compile(rb"se(?:cret[_-]?access|ssion[_-]?token)").search, _SET_KEYS),
)
_EVERY = tuple(shape for _, shapes in _SHAPES for shape in shapes)


# Values under a name that says what they are, as settings in files have them: `password: hunter2`, `"auth": "Zm9v…"`.
# They are looked for in files that leave the machine, not in every line that a workload prints.

_SETTING = re.compile(
    rb"""(?P<key>pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|auth)
    (?P<after>\\?["']?)[ \t]*(?:=>|[:=])[ \t]*
    (?:"(?P<double>(?:[^"\\\n]|\\.){1,4096})"|'(?P<single>[^'\n]{1,4096})'|\\"(?P<escaped>[^"\\\n]{1,4096})
    |(?P<bare>[^\s"'#,;{}\[\]()<>\\]{1,4096}))""",
    re.IGNORECASE | re.VERBOSE,
)
_VALUES = ("double", "single", "escaped", "bare")
_LINE_BEGUN = re.compile(rb"""[ \t{,;#-]*(?:export[ \t]+)?\\?["']?[\w.-]*""")
_NAME_BEGUN = re.compile(rb"[\w.-]*\Z")
_ENDS = re.compile(rb"[ \t]*(?:[,;})\]#&\r\n]|\Z)")
_WORDS = re.compile(rb"true|false|null|none|nil|yes|no|on|off|required|optional", re.IGNORECASE)
_NUMBER = re.compile(rb"[-+]?[\d.,:_/%]+[A-Za-z]{0,3}")  # with a unit, a time, a range
_VARIABLE = re.compile(rb"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_PLACE = re.compile(rb"[/~<\[$%]|\.{1,2}/|\{\{|[A-Za-z][\w+.-]*://")
_OF_TEXT = re.compile(
    rb"(?:pad|eos|bos|unk|mask|sep|cls|image|audio|video|start|end|stop|next|last|first|prev)[_.-]?\Z", re.IGNORECASE
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{8,}={0,2}")
_SHORTEST_WORD, _SHORTEST_MIX = 12, 8  # characters of letters alone that are no word, and of letters and digits


def _settings(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yield what may set a value; the words are looked for first, for most lines have none."""
    lowered = data.lower()
    for word in (b"pass", b"secret", b"token", b"api", b"access", b"private", b"credential", b"auth"):
        at = lowered.find(word)
        while at >= 0:
            if found := _SETTING.match(data, at):
                yield found
            at = lowered.find(word, at + 1)


def _named_value(found: re.Match[bytes]) -> Span | None:
    """Return the place of a value that is a secret by its name; None where its name or itself says something else."""
    begin, group = found.start(), next(one for one in _VALUES if found[one] is not None)
    if group == "bare" and (found["after"] or not _ENDS.match(found.string, found.end())):
        return None  # a number of JSON, or prose
    near = max(0, begin - NEAR)
    line = found.string[max(found.string.rfind(b"\n", near, begin) + 1, near) : begin]
    begun = _NAME_BEGUN.search(line)
    prefix = begun[0] if begun else b""
    name, before = prefix + found["key"].lower(), line[: len(line) - len(prefix)].rstrip()
    in_braces = b"{" in before and before.endswith((b"{", b","))
    is_setting = group != "bare" or in_braces or _LINE_BEGUN.fullmatch(line) is not None
    if name.endswith(b"auth"):  # user and password, as the file of docker's logins has them
        is_secret = name == b"auth" and bool(found["after"]) and _BASE64.fullmatch(found[group]) is not None
    elif b"pass" in found["key"].lower():
        is_secret = _is_password(found[group], is_setting)
    else:
        is_secret = _OF_TEXT.search(line) is None and _is_key(found[group], is_setting)
    return found.span(group) if is_secret else None


def _is_password(value: bytes, is_setting: bool) -> bool:
    """Return whether a value is a password: in prose a word about one stands there more often."""
    return not _says_nothing(value) and (is_setting or _has_digit(value))


def _is_key(value: bytes, is_setting: bool) -> bool:
    if _says_nothing(value) or _NUMBER.fullmatch(value) or _VARIABLE.fullmatch(value):
        return False
    if _has_digit(value):
        return len(value) >= _SHORTEST_MIX
    return is_setting and len(value) >= _SHORTEST_WORD and value.isalnum()


def _says_nothing(value: bytes) -> bool:
    """Return whether a value is too short for a secret, stands for one, or is a switch or the name of a file."""
    is_other = _STANDS_FOR.fullmatch(value) or _WORDS.fullmatch(value) or _PLACE.match(value)
    return len(value) < _SHORTEST_USER or is_other is not None


def _has_digit(value: bytes) -> bool:
    return any(48 <= byte <= 57 for byte in value)
