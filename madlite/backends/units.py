"""Units behind the numbers of a log's steps: which one the name of a group means, and which make it another number."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_STEP = r"(?i:its?|iters?|iterations?|steps?|batch(?:es)?)"
_TOK = r"(?:t|(?i:toks?|tokens?))"
_SAMPLE = r"(?i:samples?|seqs?|sequences?|imgs?|images?)"  # an image is a sample
_GPU = r"(?i:gpu|device|gcd|chip|rank)"
_S = r"(?i:s|secs?|seconds?)"
_MS = r"(?i:ms|msecs?|millis|milliseconds?)"
_TIME = (
    r"(?i:[nu\u00b5\u03bcm]?(?:s|secs?)|(?:nano|micro|milli)?seconds?|millis|m|mins?|minutes?|h|hrs?|hours?|d|days?)"
)
_COUNTED = rf"(?:{_TOK}|{_SAMPLE}|{_STEP}|(?i:frames?|epochs?))"
_SCOPE = rf"(?:/(?:{_GPU}|(?i:node|host)))?"
_FLOPS = r"(?i:flops?)(?:/(?i:s|sec))?"
_LETTER = r"[kKMGTPE]"
_SCALE = rf"{_LETTER}|(?i:kilo|mega|giga|tera|peta|thousands?|[mb]illions?)"
# what is a unit at all
_KNOWN = re.compile(
    rf"{_SCALE}|{_LETTER}/s|{_TIME}(?:/{_COUNTED})?|[kKMGT]?{_COUNTED}/{_TIME}{_SCOPE}|[kKMGT]?(?i:[tsi]ps)|"
    rf"[kKMGT](?:{_TOK}|{_SAMPLE})|(?i:[kmgtpe]|mega|giga|tera|peta)?{_FLOPS}{_SCOPE}|[MGTPE]F(?:/s)?|"
    r"(?i:[kmgtp]?i?b|(?:kilo|mega|giga|tera)?bytes?)"
)
_ANY_TIME = re.compile(rf"{_TIME}(?:/{_COUNTED})?|{_STEP}/{_TIME}")
_ANY_SIZE = re.compile(r"(?i:[kmgtp]?i?b|(?:kilo|mega|giga|tera|kibi|mebi|gibi)?bytes?)")
_OF_COUNTS = ("n", "steps", "last", "epoch", "epoch_steps", "seq_len", "micro_batch", "global_batch", "world_size")
_NOUNS = {"tokens": (_TOK, "tps"), "samples": (_SAMPLE, "[si]ps"), "images": (_SAMPLE, "[si]ps")}


class _Units(NamedTuple):
    """What a group's unit is called, a factor its first group; what another unit is; and those of the same kind."""

    meant: re.Pattern[str]
    other: re.Pattern[str]
    alike: re.Pattern[str]


_COUNT = _Units(re.compile("(?!)"), re.compile(_SCALE), re.compile("(?!)"))
_ENDINGS = (  # of names
    ("_ms", _Units(re.compile(rf"{_MS}(?:/{_STEP})?"), _KNOWN, _ANY_TIME)),
    ("_s", _Units(re.compile(rf"{_S}(?:/{_STEP})?"), _KNOWN, _ANY_TIME)),
    ("_gib", _Units(re.compile(r"(?i:g|gi?b|gi(?:ga|bi)bytes?)"), _KNOWN, _ANY_SIZE)),
    ("_gb", _Units(re.compile(r"(?i:g|gb|gigabytes?)"), _KNOWN, _ANY_SIZE)),
    ("_mib", _Units(re.compile(r"(?i:m|mi?b|me(?:ga|bi)bytes?)"), _KNOWN, _ANY_SIZE)),
    ("_bytes", _Units(re.compile(r"(?i:b|bytes?)"), _KNOWN, _ANY_SIZE)),
)
_TFLOPS = _Units(
    re.compile(rf"T|TF(?:/s)?|(?i:t|tera){_FLOPS}(?:/{_GPU})?"),
    _KNOWN,
    re.compile(r"(?i:[a-z]*flops?(?:/[a-z]+)*|[mgtpe]f(?:/s)?)"),
)
_WORD = r"[a-zA-Z\u00b5\u03bc]{1,24}(?:(?:/| per )[a-zA-Z]{1,24}){0,3}(?![a-zA-Z\u00b5\u03bc\d_])"
_BEHIND = re.compile(rf"(\s{{0,2}})({_WORD})")
_SECOND = re.compile(rf"\s({_WORD})")
_WITHIN = re.compile(rf"(.*\d\.?)(\s{{0,2}})({_WORD})", re.DOTALL)
_LONGEST = 120  # characters of a number and its unit
# behind a word that is the name of the next number, and behind one that may be
_NAMES = re.compile(r"[\"']?\s*[=:]\s*[\"']?[-+.]?\d")
_MAY_NAME = re.compile(r"[\"']?\s*[=:]|\s+[-+.]?\d")


def unit_behind(name: str, line: str, at: int) -> tuple[str, float | None]:
    """Return the unit behind a group's number, and its factor: None where the name says another unit.

    A word that is no unit does not belong to the number, nor one that names the next (`800 G 3.2`, `800 ms=3`).
    """
    found = _BEHIND.match(line, at)
    if found is None:
        return "", 1.0
    blank, word = found.groups()
    if blank and _is_name(name, word, line, found.end()):
        return "", 1.0
    second = _SECOND.match(line, found.end()) if len(word) == 1 and word in _LETTER else None
    if second is not None and (factor := _factor(name, word + second[1])) is not None:
        return line[at : second.end()], factor or None
    factor = _factor(name, word, attached=not blank)
    return (found[0], factor or None) if factor is not None else ("", 1.0)


def number_and_unit(name: str, text: str) -> tuple[str, float | None]:
    """Return a group's text without the unit that it ends in, and its factor: None where the name says another unit.

    There a letter is a factor of bytes and of milliseconds as well: nanotron prints `52.1G` and `1.07K`.
    """
    found = _WITHIN.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return text, 1.0
    bare, blank, word = found.groups()
    printed = name.endswith("_bytes") or (name.endswith("_ms") and word in "kK")
    if word in _FACTORS and (not name or (printed and not blank)):
        return bare, _FACTORS[word]
    factor = _factor(name, word, attached=not blank)
    return (text, 1.0) if factor is None else (bare, factor or None)


def _is_name(name: str, word: str, line: str, end: int) -> bool:
    """Return whether a word behind a number names the next one; a unit of the same kind does so before `=` alone."""
    units = _units_of(name)
    alike = units is not None and units.alike.fullmatch(word) is not None and word not in _FACTORS
    return (_NAMES if alike else _MAY_NAME).match(line, end) is not None


def _factor(name: str, word: str, *, attached: bool = False) -> float | None:
    """Return the factor of a unit, 0 of one that the name does not mean, None of a word that is no unit."""
    units = _units_of(name)
    if units is None:  # a loss
        return _FACTORS.get(word) if attached else None
    word = word.replace(" per ", "/")
    while word:
        if found := units.meant.fullmatch(word):
            return _FACTORS[found[1]] if found.lastindex else 1.0
        if units.other.fullmatch(word):
            return 0.0
        word = word.rpartition("/")[0]
    return None


@cache
def _units_of(name: str) -> _Units | None:
    """Return the units of a group's name, None of a number that has none."""
    name = name.removesuffix("_mean")
    if name in _OF_COUNTS:
        return _COUNT
    if name.startswith("tflops"):
        return _TFLOPS
    what, per_s, gpu = name.partition("_per_s")
    if per_s and gpu in ("", "_per_gpu"):
        return _rate(what, f"(?:/{_GPU})?" if gpu else "")
    return next((units for ending, units in _ENDINGS if name.endswith(ending)), None)


def _rate(what: str, scope: str) -> _Units:
    if what == "steps":
        return _Units(re.compile(f"{_STEP}/{_S}"), _KNOWN, _ANY_TIME)
    noun, short = _NOUNS.get(what, (f"(?i:{re.escape(what.removesuffix('s'))}s?)", "(?!)"))
    meant = re.compile(rf"([kKMGT])?(?:{noun}(?:/{_S}{scope})?|(?i:{short}))?")
    return _Units(meant, _KNOWN, re.compile(rf"[kKMGT]?{noun}(?:/[a-zA-Z]+)*|{_TIME}/{noun}"))
