"""Values with spaces, quotes, `$()`, newlines and a leading dash stay what they are: one word, one value of a file.

A plan is rendered with plain marks in its text settings, args and variables, and again with odd values in their places.
Where what the script calls, or the contents of its other files, differ in more than that, a value broke out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from madlite.errors import MadliteError
from madlite.plan.render import render
from madlite.testing.flaws import Flaw, answered
from madlite.testing.plans import Made, expand, options_of, plan_of
from madlite.testing.scripts import parsed
from madlite.testing.stubs import LIMIT_S, Calls, calls_of
from madlite.testing.subject import Subject

_CHOOSING = ("recipe", "release", "recipe_device", "mode", "precision")  # these words choose, and refuse others
_ARGS, _SCRIPT, _PYTHON = "args", "run.sh", "env.MADLITE_PYTHON"
_HINT = "write each value through the filter sh in a script, through toml or tojson in a file"
_SLOW = (
    f"a script has {LIMIT_S:g} s for it: let loops that wait call sleep, put long work into a program, "
    "and set nothing that is read-only in bash's restricted mode"
)
_AS_WORD = "give it to the program as a word of its own, which the code reads: python3 - {{ value | sh }} <<'END'"
_CODE = re.compile(r"(?:python|pypy|bash|sh|dash|zsh|perl|ruby|node)[\d.]*")
_DOCUMENT = re.compile(rb"<<-?[ \t]*[\"'\\]?(\w+)")
_STRUCTURED = (".json", ".toml", ".yaml", ".yml")
_FOR_PEOPLE = ("echo", "printf", "variable")  # words for people or of a variable, not for a program
_SOME = "a value, or some of its words"
Difference: TypeAlias = tuple[str, str]
"""A key and what became of its value."""


class RefusedScript(Exception):
    """A value cannot be planned with, so that it never reaches a file."""


class Oddity:
    """A key's odd value, and the mark that stands in its place.

    Out of its quotes anywhere it calls a program of its key's name, and behind the end of a here-document another one.

    Args:
        key: the key.
        ends: the lines that end here-documents.
    """

    def __init__(self, key: str, ends: Sequence[str] = ()) -> None:
        self.key, self.name, self.behind = key, f"kit_canary_{key}", f"kit_behind_{key}"
        self.mark = f"MARK{re.sub('[^A-Za-z0-9]', '', key)}KRAM"
        name, lines = self.name, "".join(f"{end}\n{self.behind}\n" for end in ends)
        self.value = (
            f"-x  'one two' \"three\" $({name}) `{name}` ; {name} & # \u00fc\u00f1\u4e2d \\ * ~ $HOME !! %s"
            f" {{{{ 7 }}}}\n{name} | {name}\n{lines}-y"
        )
        split = [tuple(_split(self.value)), tuple(self.value.split())]
        self.parts = [words for some in split for words in (some, tuple(map(_as_bash, some)))]
        joined = map(" ".join, self.parts)
        self._forms = [text.casefold() for text in (*(form(self.value) for form in _FORMS), *joined)]

    def is_in(self, text: str) -> bool:
        """Return whether a text contains the value or its mark."""
        return self.name in text or self.mark in text

    def marked(self, text: str) -> str:
        """Return a text in small letters with marks for values, however they are written there."""
        text = text.casefold()
        if self.name.casefold() in text:
            text = reduce(lambda text, form: text.replace(form, self.mark.casefold()), self._forms, text)
        return text


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _as_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _as_template_json(text: str) -> str:
    """Return what Jinja's filter tojson makes of a text: safe for HTML too."""
    return re.sub("[<>&']", lambda found: f"\\u{ord(found[0]):04x}", _as_json(text))


def _as_bash(text: str) -> str:
    """Return what bash's printf %q makes of a text."""
    if "\n" in text:
        return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


_FORMS = (
    *(str, _as_json, lambda text: json.dumps(text, ensure_ascii=False)[1:-1], _as_template_json, _as_bash),
    lambda text: text.replace("\\", "\\\\").replace('"', '\\"'),
)


def check_quoting(subject: Subject, folder: Path) -> Iterator[Flaw]:
    """Yield values that break out, of some plans; `folder` is where their scripts are run."""
    seen: set[str] = set()
    alone: set[str] = set()  # keys that were refused, which would take others with them
    for made in subject.spread(subject.examples):
        keys = [key for key in _text_keys(made) if key not in seen] if made.files else []
        groups = [[key for key in keys if key not in alone], *([key] for key in keys if key in alone)]
        for key, what in (one for group in groups if group for one in _of_keys(subject, made, group, folder, alone)):
            if key not in seen:
                seen.add(key)
                hint = _SLOW if key == _SCRIPT else _AS_WORD if what.startswith("it ") else _HINT
                yield Flaw("quoting", f"{_worded(key)} of {made.case}", what, hint)
        if _SCRIPT in seen:
            return


def _text_keys(made: Made) -> Iterator[str]:
    for key, value in made.plan.settings.items():
        if isinstance(value, str) and key not in _CHOOSING:
            yield key
    if made.plan.variant:
        yield "model"
    yield _ARGS
    yield from (f"env.{name}" for name in (*made.spec.env, _PYTHON[4:]))


def _worded(key: str) -> str:
    return key if key in (_ARGS, _SCRIPT) else f"variable {key[4:]}" if key.startswith("env.") else f"setting {key}"


def _of_keys(subject: Subject, made: Made, keys: Sequence[str], folder: Path, alone: set[str]) -> list[Difference]:
    """Return keys and what became of their values: all together, and in halves where some go wrong or not together."""
    differences: list[Difference] = []
    try:
        differences = _compared(subject, made, keys, folder)
        if not differences or len(keys) == 1 or differences[0][0] == _SCRIPT:
            return differences
    except (RefusedScript, MadliteError):
        if len(keys) == 1:
            alone.add(keys[0])
            return _alone(subject, made, keys[0])
    half = len(keys) // 2
    parts = (_of_keys(subject, made, some, folder, alone) for some in (keys[:half], keys[half:]))
    return [one for part in parts for one in part] or differences


def _alone(subject: Subject, made: Made, key: str) -> list[Difference]:
    """Return that a template fails at a key's odd value, though any text is taken and no check refuses it."""
    oddity = Oddity(key)
    try:
        _files(subject, made, {key: oddity.mark})
    except (RefusedScript, MadliteError):
        return []  # it takes some words alone
    try:
        _files(subject, made, {key: oddity.value})
    except RefusedScript:
        return []
    except MadliteError as error:
        if not _is_checked(subject, made, [oddity]):
            return [(key, f"an odd value breaks a template: {error.message}")]
    return []


def _files(subject: Subject, made: Made, values: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a plan with other values.

    Raises:
        Refused: the backend or a key's type does not take them.
        UsageProblem: a template does not.
    """
    case = made.case
    card = case.card
    if _ARGS in values:
        card = replace(card, args=f"--{_ARGS} {shlex.quote(values[_ARGS])}")
    sets = tuple((key, value) for key, value in values.items() if key != _ARGS)
    case = replace(case, card=card, asked=(*case.asked, *sets))
    options = options_of(case)
    try:
        specs = expand(subject.backend, case, options)
        spec = next((run_spec for run_spec in specs if run_spec.templates == made.spec.templates), specs[0])
        plan = plan_of(subject.backend, case, spec, options)
    except MadliteError as error:
        raise RefusedScript from error
    return {file.path: file.data for file in render(plan, subject.search)}


def _is_checked(subject: Subject, made: Made, oddities: Sequence[Oddity]) -> bool:
    """Return whether the backend's own check keeps a plan with one of the values from starting."""
    for oddity in oddities:
        case = replace(made.case, asked=(*made.case.asked, (oddity.key, oddity.value)))
        options = options_of(case)
        plan = plan_of(subject.backend, case, expand(subject.backend, case, options)[0], options)
        if any(finding.fatal for finding in answered(subject.backend.check, plan)):
            return True
    return False


def _compared(subject: Subject, made: Made, keys: Sequence[str], folder: Path) -> list[Difference]:
    """Return keys whose values are not the same in what a script calls or a file holds, with what came of them."""
    plain = _files(subject, made, {key: Oddity(key).mark for key in keys})
    ends = sorted({end.decode() for end in _DOCUMENT.findall(plain.get(_SCRIPT, b""))})
    oddities = [Oddity(key, ends) for key in keys]
    odd = _files(subject, made, {oddity.key: oddity.value for oddity in oddities})
    differences: list[Difference] = []
    for path in odd:
        if path.endswith(_STRUCTURED) and (other := _other_content(path, plain[path], odd[path], oddities)):
            differences.append((other[0], f"an odd value changes {path}: {other[1]}"))
    for straight, bent in zip(*calls_of([plain, odd], folder), strict=True) if _SCRIPT in odd else ():
        if not straight.finished:
            return [*differences, (_SCRIPT, "it could not be run to its end")]
        found = [*_other_calls(straight, bent, oddities)]
        if not found and not bent.finished and not _is_checked(subject, made, oddities):
            found = [(keys[0], "an odd value keeps run.sh from being run to its end")]
        if found:
            return [*differences, *found]
    return differences


def _other_content(path: str, plain: bytes, odd: bytes, oddities: Sequence[Oddity]) -> Difference | None:
    try:
        one, other = (list(_leaves(parsed(path, data))) for data in (plain, odd))
    except ValueError as error:
        return _key_in(oddities, odd.decode("utf-8", "replace")), str(error)
    return _other_words([tuple(one)], [tuple(other)], oddities)


def _leaves(content: Any) -> Iterator[str]:
    """Yield the keys and values of tables and lists as words, with brackets."""
    if isinstance(content, Mapping | list):
        yield "["
        for one in content.items() if isinstance(content, Mapping) else content:
            yield from _leaves(list(one) if isinstance(one, tuple) else one)
        yield "]"
    else:
        yield content if isinstance(content, str) else repr(content)


def _other_calls(plain: Calls, odd: Calls, oddities: Sequence[Oddity]) -> Iterator[Difference]:
    names = {words[0] for words in odd.commands if words}
    codes = [code for words in odd.commands for code in _codes(words, oddities)]
    quoted = [
        reduce(lambda code, oddity: code.replace(shlex.quote(oddity.value), oddity.mark), oddities, code)
        for code in codes
    ]
    broken = False
    for oddity in oddities:
        what = ""
        if any(name.startswith(oddity.name) for name in names):
            what, broken = "a part of an odd value is run as a command of run.sh", True
        elif oddity.behind in names:
            what, broken = "it stands in a here-document of run.sh, which a line of it could end", True
        elif any(oddity.name in code for code in quoted):
            what = "it is a part of code that a program of run.sh reads"
        if what:
            yield oddity.key, what
    if not broken and odd.finished:
        swap = dict(zip(codes, quoted, strict=True))
        bent = [tuple(swap.get(word, word) for word in words) for words in odd.commands]
        if other := _other_words(plain.commands, bent, oddities):
            yield other[0], f"an odd value changes the words of run.sh: {other[1]}"


def _codes(words: Sequence[str], oddities: Sequence[Oddity]) -> list[str]:
    """Return those words that a program reads as code: behind -c, or its here-document."""

    def is_program(word: str) -> bool:
        python = [mark for oddity in oddities if oddity.key == _PYTHON for mark in (oddity.mark, oddity.value)]
        return word in python or _CODE.fullmatch(word.rpartition("/")[2]) is not None

    if words[:1] == ("<<",):
        return [words[2]] if is_program(words[1]) else []
    found = [n for n, word in enumerate(words[:-1]) if word in ("-c", "-e") and any(map(is_program, words[:n]))]
    return [words[found[0] + 1]] if found else []


def _other_words(
    plain: Sequence[tuple[str, ...]], odd: Sequence[tuple[str, ...]], oddities: Sequence[Oddity]
) -> Difference | None:
    """Return what one side has and the other has not: of words for people those with values, else each command.

    They come in any order, as the commands of a pipeline do.
    """
    one, other = (Counter(_shape(words, oddities) for words in commands) for commands in (plain, odd))
    marks = [_SOME, *(some.mark.casefold() for some in oddities)]
    for_people = {words for words in {**one, **other} if words[:1] and words[0] in _FOR_PEOPLE}
    missing = [words for words in one if words in for_people - set(other) and any(mark in f"{words}" for mark in marks)]
    missing += [words for words in one - other if words not in for_people]
    extra = [words for words in other - one if words not in for_people]
    if not missing and not extra:
        return None
    before, after = (" ".join(some[0]) if some else "nothing" for some in (missing, extra))
    return _key_in(oddities, f"{missing}{extra}"), f"{after!r:.80} in place of {before!r:.80}"


def _shape(words: Sequence[str], oddities: Sequence[Oddity]) -> tuple[str, ...]:
    """Return words with marks for values, one for all words of a value that is meant to be some.

    Among words for people or of a variable, where it may be a few of these, one for all values in a row.
    """
    if words[:1] and words[0] in _FOR_PEOPLE:
        marks = {oddity.mark.casefold() for oddity in oddities} | {
            word for oddity in oddities for part in oddity.parts for word in part
        }
        read = [
            word if word in marks else reduce(lambda word, oddity: oddity.marked(word), oddities, word)
            for word in words
        ]
        read = [_SOME if word in marks else word for word in read]
        return tuple(word for at, word in enumerate(read) if word != _SOME or read[at - 1] != _SOME)
    found: list[str] = []
    at = 0
    while at < len(words):
        parts = [(part, oddity.mark.casefold()) for oddity in oddities for part in oddity.parts if words[at] == part[0]]
        value = next((some for some in parts if tuple(words[at : at + len(some[0])]) == some[0]), None)
        found.append(value[1] if value else reduce(lambda word, oddity: oddity.marked(word), oddities, words[at]))
        at += len(value[0]) if value else 1
    return tuple(found)


def _key_in(oddities: Sequence[Oddity], text: str) -> str:
    """Return the key whose value a text contains, or the first one."""
    text = text.casefold()
    found = (oddity.key for oddity in oddities if oddity.name.casefold() in text or oddity.mark.casefold() in text)
    return next(found, oddities[0].key if oddities else _ARGS)
