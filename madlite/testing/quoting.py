"""Values with spaces, quotes, `$()`, newlines and a leading dash stay what they are: one word, one value of a file.

A plan is rendered with plain marks in its text settings, args and variables, and again with odd values in their places.
Where the words of the script and the contents of its other files differ in more than that, a value broke out.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from madlite.errors import MadliteError
from madlite.plan.render import render
from madlite.testing.flaws import Flaw
from madlite.testing.likeness import first_other, first_unsaid, odd_value, plain_mark, told_keys, without_common
from madlite.testing.limits import answered
from madlite.testing.plans import Made, ask, options_of, plan_of
from madlite.testing.scripts import parsed
from madlite.testing.subject import Subject
from madlite.testing.words import LIMIT_S, Words, words_of

CHECK = "quoting"
_CHOOSING = ("recipe", "release", "recipe_device", "mode", "precision")  # these words choose, and refuse others
_MEND = "write each value through the filter sh in a script, through toml or tojson in a file"
_ARGS = "args"
_SCRIPT = "run.sh"
_PYTHON = "env.MADLITE_PYTHON"
_SLOW = (
    f"a script is read for {LIMIT_S:g} s: let loops that wait call sleep, put long work into a program, "
    "and set nothing that is read-only in bash's restricted mode"
)
_AS_WORD = "give it to the program as a word of its own, which the code reads: python3 - {{ value | sh }} <<'END'"
_CODE = re.compile(r"(?:python|pypy|bash|sh|dash|zsh|perl|ruby|node)[\d.]*")
_STRUCTURED = (".json", ".toml", ".yaml", ".yml")
Told: TypeAlias = tuple[str, str]
"""A key and what became of its value."""


class Refused(Exception):
    """A value cannot be planned with, so that it never reaches a file."""


def check_quoting(subject: Subject, folder: Path, most: int) -> Iterator[Flaw]:
    """Yield values that break out, of at most `most` plans; `folder` is where their scripts are read."""
    seen: set[str] = set()
    for made in subject.spread(most):
        keys = [key for key in _text_keys(made) if key not in seen]
        for key, what in _of_keys(subject, made, keys, folder) if made.files and keys else ():
            if key not in seen:
                seen.add(key)
                mend = _SLOW if key == _SCRIPT else _AS_WORD if what.startswith("it ") else _MEND
                yield Flaw(check=CHECK, where=f"{_worded(key)} of {made.case}", what=what, mend=mend)
        if _SCRIPT in seen:
            return


def _of_keys(subject: Subject, made: Made, keys: Sequence[str], folder: Path) -> Iterator[Told]:
    """Yield keys and what became of their values: all together, and in halves where some go wrong or not together."""
    told: list[Told] = []
    try:
        told = [*_compared(subject, made, keys, folder)]
    except (Refused, MadliteError):
        if len(keys) == 1:
            yield from _alone(subject, made, keys[0])
            return
    else:
        if not told or len(keys) == 1 or told[0][0] == _SCRIPT:
            yield from told
            return
    half = len(keys) // 2
    parts = [*_of_keys(subject, made, keys[:half], folder), *_of_keys(subject, made, keys[half:], folder)]
    yield from parts or told


def _alone(subject: Subject, made: Made, key: str) -> Iterator[Told]:
    """Yield that a template fails at a key's odd value, though any text is taken and no check refuses it."""
    try:
        _files(subject, made, {key: plain_mark(key)})
    except (Refused, MadliteError):
        return  # it takes some words alone
    try:
        _files(subject, made, {key: odd_value(key)})
    except Refused:
        return
    except MadliteError as error:
        if not _is_checked(subject, made, key):
            yield key, f"an odd value breaks a template: {error.message}"


def _compared(subject: Subject, made: Made, keys: Sequence[str], folder: Path) -> Iterator[Told]:
    """Yield keys whose values are not the same in a script's words or a file's contents, with what came of them."""
    plain = _files(subject, made, {key: plain_mark(key) for key in keys})
    odd = _files(subject, made, {key: odd_value(key) for key in keys})
    for path, data in odd.items():
        if path.endswith(_STRUCTURED) and (other := _other_content(path, plain[path], data, keys)):
            yield other[0], f"an odd value changes {path}: {other[1]}"
    for inverted in (False, True) if _SCRIPT in odd else ():
        straight = _words(plain, folder, inverted)
        if not straight.whole:
            yield _SCRIPT, "it could not be read to its end"
            return
        bent = _words(odd, folder, inverted)
        told = [*_other_words(straight, bent, keys)]
        if not told and not bent.whole and not any(_is_checked(subject, made, key) for key in keys):
            told = [(keys[0], "an odd value keeps run.sh from being read to its end")]
        yield from told
        if told:
            return


def _other_content(path: str, plain: bytes, odd: bytes, keys: Sequence[str]) -> Told | None:
    try:
        return first_other(parsed(path, plain), parsed(path, odd), keys)
    except ValueError as error:
        told = told_keys(odd.decode("utf-8", "replace"), keys) or keys
        return told[0], str(error)


def _other_words(plain: Words, odd: Words, keys: Sequence[str]) -> Iterator[Told]:
    called = {key for words in odd.commands for key in keys if words[:1] and words[0].startswith(_call_of(key))}
    for key in sorted(called):
        yield key, "a part of an odd value is run as a command of run.sh"
    yield from _in_code(odd, sorted(set(keys) - called))
    if called or not odd.whole:
        return
    straight, bent = ([tuple(_plain_code(words, keys)) for words in one.commands] for one in (plain, odd))
    other = first_unsaid(list(filter(_is_said, straight)), list(filter(_is_said, bent)), keys)
    if other is None:
        before, after = without_common(_not_said(straight), _not_said(bent), keys)
        other = first_other(before, after, keys)
    if other is not None:
        yield other[0], f"an odd value changes the words of run.sh: {other[1]}"


def _in_code(odd: Words, keys: Sequence[str]) -> Iterator[Told]:
    """Yield keys whose values are texts of a script that something else than bash's grammar ends or reads."""
    codes = [code for words in odd.commands for code in _codes(words)]
    for key in keys:
        if any(f"\n{_call_of(key)} | {_call_of(key)}\n" in text for text in odd.documents):
            yield key, "it stands in a here-document of run.sh, which a line of it could end"
        elif any(odd_value(key) in code != odd_value(key) for code in codes):
            yield key, "it is a part of code that a program of run.sh reads"


def _not_said(commands: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [words for words in commands if not _is_said(words)]


def _is_said(words: tuple[str, ...]) -> bool:
    """Say whether words are for people or a variable, not for a program."""
    return words[:1] in (("echo",), ("printf",), ("variable",))


def _codes(words: tuple[str, ...]) -> list[str]:
    """Return those words that a program reads as code: behind -c, or its here-document."""
    if words[:1] == ("<<",):
        return [words[2]] if _is_program(words[1]) else []
    found = [n for n, word in enumerate(words[:-1]) if word in ("-c", "-e") and any(map(_is_program, words[:n]))]
    return [words[found[0] + 1]] if found else []


def _is_program(word: str) -> bool:
    marks = (plain_mark(_PYTHON), odd_value(_PYTHON))
    return word in marks or _CODE.fullmatch(word.rpartition("/")[2]) is not None


def _plain_code(words: tuple[str, ...], keys: Sequence[str]) -> Iterator[str]:
    """Yield words; in code a value that is quoted for a shell is its mark."""
    codes = _codes(words)
    for word in words:
        yield reduce(_without_quotes, keys, word) if word in codes else word


def _without_quotes(code: str, key: str) -> str:
    return code.replace(shlex.quote(odd_value(key)), plain_mark(key))


def _call_of(key: str) -> str:
    return f"kit_canary_{key}"


def _words(files: Mapping[str, bytes], folder: Path, inverted: bool) -> Words:
    """Return the words of run.sh in a fresh folder of always the same name."""
    place = folder / "quoted"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path, data in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(data)
    return words_of(place / "run.sh", place, inverted=inverted)


def _files(subject: Subject, made: Made, values: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a plan with other values.

    Raises:
        Refused: the backend or a key's type does not take them.
        UsageProblem: a template does not.
    """
    case = made.case
    card = case.card
    if _ARGS in values:
        text = values[_ARGS]
        card = replace(card, args=f"--{_ARGS} {shlex.quote(text)}")
    sets = tuple((key, value) for key, value in values.items() if key != _ARGS)
    case = replace(case, card=card, asked=(*case.asked, *sets))
    options = options_of(case)
    try:
        drafts = ask(subject.backend, case, options)
        draft = next((one for one in drafts if one.templates == made.draft.templates), drafts[0])
        plan = plan_of(subject.backend, case, draft, options)
    except MadliteError as error:
        raise Refused from error
    return {file.path: file.data for file in render(plan, subject.search)}


def _is_checked(subject: Subject, made: Made, key: str) -> bool:
    """Say whether the backend's own check keeps such a plan from starting."""
    case = replace(made.case, asked=(*made.case.asked, (key, odd_value(key))))
    options = options_of(case)
    plan = plan_of(subject.backend, case, ask(subject.backend, case, options)[0], options)
    return any(finding.fatal for finding in answered(subject.backend.check, plan))


def _text_keys(made: Made) -> Iterator[str]:
    for key, value in made.plan.settings.items():
        if isinstance(value, str) and key not in _CHOOSING:
            yield key
    if made.plan.variant:
        yield "model"
    yield _ARGS
    yield from (f"env.{name}" for name in (*made.draft.env, _PYTHON[4:]))


def _worded(key: str) -> str:
    return key if key in (_ARGS, _SCRIPT) else f"variable {key[4:]}" if key.startswith("env.") else f"setting {key}"
