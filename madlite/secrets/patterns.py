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
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

Span = tuple[int, int]
LONGEST = 4096  # bytes of a header's value, the longest of them
LONGEST_KEY = 16 << 10  # bytes of a private key
NEAR = 200  # bytes between the id of an AWS key and its secret
_SHORTEST_USER = 4  # characters of a user without a password
_LIKE_A_TOKEN = 20  # characters of a user that is no plain word
_STANDS_FOR = re.compile(rb"\$[A-Z_][A-Z0-9_]*|\$?\{.*|%[sdr]|\*+|\.+|x+|X+", re.DOTALL)
_PORT = re.compile(rb"\d{1,5}[,;|)\]}&]")  # of `http://host:8080,me@there`
_DIGEST = re.compile(rb"sha\d{3}:")  # of docker://image:tag@sha256:…
_OF_HEX = re.compile(rb"[0-9a-f]+")
_KEY_ID = re.compile(rb"A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])")
_SECRET_KEY = re.compile(rb"(?<![A-Za-z0-9/+])(?![0-9a-f]{40})[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
# users that services ask for beside a token, or that are nobody's secret
_COMMON = frozenset(
    b"git user username root admin anonymous __token__ oauth2 x-access-token x-token-auth gitlab-ci-token".split()
)
_NO_PASSWORDS = (b"", b"x-oauth-basic", b"x")  # beside a user that is the token


class _Shape(NamedTuple):
    """`parts` are the secret places of what `pattern` found, `meant` yields what such a part is a spelling of."""

    pattern: re.Pattern[bytes]
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


def complete(lines: bytes) -> int:
    """Return up to where whole lines hold all of each secret.

    A private key may go on, and an AWS key's secret may follow its id.
    """
    near = max(0, len(lines) - NEAR - 20)
    ids = _KEY_ID.search(lines, near) if lines.find(b"IA", near) >= 0 else None
    begins = lines.rfind(b"-----BEGIN ", max(0, len(lines) - LONGEST_KEY))
    begins = begins if begins >= 0 and _KEY_GOES_ON.match(lines, begins) else len(lines)
    at = min(begins, ids.start() if ids else len(lines))
    return lines.rfind(b"\n", 0, at) + 1 if at < len(lines) else at


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
    if not _OF_HEX.fullmatch(found["secret"]):
        yield found.span("secret")


def _header(found: re.Match[bytes]) -> Iterator[Span]:
    if not _STANDS_FOR.fullmatch(found["secret"]):
        yield found.span("secret")


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


def _shape(
    pattern: bytes,
    parts: Callable[[re.Match[bytes]], Iterator[Span]] = _all,
    meant: Callable[[bytes], Iterator[bytes]] = _itself,
) -> _Shape:
    return _Shape(re.compile(pattern), parts, meant)


_BEGINS = (
    rb"(?:(?<![A-Za-z0-9_-])|(?<=[0-9\[]m))"  # once in a long run of letters, also after the `m` that ends a colour
)
_AUTHORITY = rb":\\?/\\?/"  # JSON may write / as \/
_OF_USER, _OF_REST = rb"[^\s/?#@:\"'<>\\`|{}^()\[\],;]", rb"[^\s/?#\"'<>\\`]"
# a header's name and value, as HTTP, JSON, Python and Go write them
_HEADER = rb"(?i:authorization)(?:[^A-Za-z0-9\n]|b(?=['\"\\])){1,16}(?i:%b)(?:[ \t+]|%%20){1,8}(?P<secret>%b)"
_VALUE = rb"[^\s\"'\\,;<>\]})&$\{*%\[(][^\s\"'\\,;<>\]})&]{3,4096}"
_SET_TO = rb"[ \t\"'\\:=,>-]{1,12}"
# of its lines, also where JSON or a shell spells their ends; a part of one may be all there is
_OF_KEY = rb"(?:[A-Za-z0-9+/=\s\\:,]|-(?!----))"
_KEY_GOES_ON = re.compile(rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----%b{0,%d}\Z" % (_OF_KEY, LONGEST_KEY))
# shapes with what says whether a lower-cased text may have one: most of them take longer to find nothing
_SHAPES: tuple[tuple[Callable[[bytes], object], tuple[_Shape, ...]], ...] = (
    (re.compile(rb"hf_[a-z0-9]{30}").search, (_shape(rb"hf_[A-Za-z0-9]{30,255}", _hub_token),)),
    (
        re.compile(rb"g(?:h[pousr]_[a-z0-9]{36}|ithub_pat_|lpat-)").search,
        (
            _shape(rb"gh[pousr]_[A-Za-z0-9]{36,255}"),
            _shape(rb"github_pat_[A-Za-z0-9_]{36,255}"),
            _shape(rb"glpat-[A-Za-z0-9_.-]{20,300}"),
        ),
    ),
    (re.compile(rb"xox[abeoprs]-").search, (_shape(rb"xox[abeoprs]-[A-Za-z0-9-]{10,300}", _with_digit),)),
    (re.compile(rb"a[ks]ia[a-z0-9]{16}").search, (_shape(_KEY_ID.pattern, _key_and_secret),)),
    (
        re.compile(
            rb"s(?:k-[a-z0-9]{3}|k_live_)|npm_[a-z0-9]{36}|pypi-age|aiza|dckr_pat_|agzf|eyj|private key-"
        ).search,
        (
            _shape(rb"sk-(?:proj|svcacct|admin|ant|or-v1)-[A-Za-z0-9_-]{20,300}", _with_digit),
            _shape(rb"sk-[A-Za-z0-9]{32,255}", _no_digest),
            _shape(rb"sk_live_[A-Za-z0-9]{16,255}", _with_digit),
            _shape(rb"npm_[A-Za-z0-9]{36,255}"),
            _shape(rb"pypi-AgE[A-Za-z0-9_-]{40,1024}"),
            _shape(rb"AIza[A-Za-z0-9_-]{35}"),
            _shape(rb"dckr_pat_[A-Za-z0-9_-]{20,255}"),
            _shape(_BEGINS + rb"aGZf[A-Za-z0-9+/]{40,350}", _packed_hub_token),
            _shape(_BEGINS + rb"(?:eyJ[A-Za-z0-9_-]{8,4096}\.){2}[A-Za-z0-9_-]{8,4096}"),
            _shape(rb"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----%b{16,%d}" % (_OF_KEY, LONGEST_KEY), _private_key),
        ),
    ),
    (
        lambda lowered: b"@" in lowered,
        (
            _shape(b"%b%b{0,256}:%b{0,1024}@" % (_AUTHORITY, _OF_USER, _OF_REST), _userinfo, _unquoted),
            _shape(b"https?%b%b{1,256}@" % (_AUTHORITY, _OF_USER), _user_alone, _no_plain_word),
        ),
    ),
    (
        lambda lowered: b"authorization" in lowered,
        (
            _shape(_HEADER % (b"bearer|token", _VALUE), _header),
            _shape(_HEADER % (b"basic", _VALUE), _header, _with_password),
        ),
    ),
    (
        re.compile(rb"se(?:cret[_-]?access|ssion[_-]?token)").search,
        (
            _shape(
                rb"(?i:secret[_-]?access[_-]?key)%b(?P<secret>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])" % _SET_TO, _set_key
            ),
            _shape(rb"(?i:session[_-]?token)%b(?P<secret>[A-Za-z0-9/+=]{100,4096})" % _SET_TO, _set_key),
        ),
    ),
)


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
    begin, group = found.start(), next(name for name in _VALUES if found[name] is not None)
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
