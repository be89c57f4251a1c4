"""Values with spaces, quotes, `$()`, newlines and a leading dash stay what they are, in what a script calls too.

What madlite.testing.plans reads in the text of every backend's scripts is seen here in what bash makes of them.  A
plan is rendered with plain marks in its text settings, args and variables, and again with odd values in their places.
What the script calls, and the contents of its other files, must be the same but for that.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from pathlib import Path

from madlite.errors import MadliteError
from madlite.model import Value
from madlite.process import complete
from madlite.testing.flaws import Defect
from madlite.testing.plans import AS_WORD, HINT, PYTHON, files_with, name_of, parsed, text_keys
from madlite.testing.subject import Made, Subject

# What a script calls: bash runs it with a stub in the place of every program, which notes its words and succeeds.
#
# Nothing else runs, and no file is touched: bash is in its restricted mode, without a program on PATH, and every output
# goes to a here-string in place of its file.  Tests are run the other way round too, so that both branches are seen.
# What is rewritten for that is what a regular expression finds, whether it is quoted or not: a mistake of it can
# hide a word, and never run anything, and a text is the same in two renderings that are compared.

LIMIT_S = 60.0  # for what waits in scripts, on a busy machine; what loops has two seconds of processor time (stubs.sh)
_STUBS = Path(__file__).with_name("stubs.sh")
_MOST_REPEATS = 20  # of the same command: a loop in the background does not always come as far
_END, _LINE_END = "\x01", "\x05"  # behind a command's last word; in the place of a line's end
_LAST = ("\x02",)  # what is noted when a script has come to its end
_REWRITTEN = re.compile(
    r"""(?P<kept> \[\[\s.*?\s\]\] | \(\(.*?\)\) )  # where < and > compare
    | (?P<output> (?:\d*<|\d+|&|\{\w+\})? (?:>>?\|?(?![(&>]) | >&(?=[ \t]*[^\s\d"$-])) ) [ \t]*
    | (?P<pid> \$[$!] )
    | (?P<required> \$\{!?\w+(?:\[[^]\n]*\])? ) :?\?  # would end the script
    | (?<![\w$-]) (?P<locked> PATH|SHELL|ENV|BASH_ENV|HISTFILE ) (?=\+?=)
    | (?P<words> \bset(?=[ \t]+--\s) )
    | (?P<begin> (?:(?<!\\)\n | [;&|(`!] | [{)]\s | \b[A-Za-z_]\w*=[^\s$(]*[ \t]
      | \b(?:then|else|do|if|while|until|elif)\s) [ \t]* )
      (?=["']?\$[\w{@] | \.{0,2}/\w) (?![^\s;]*\)(?:\s|$))  # a name that may have a slash, no case's pattern""",
    re.VERBOSE,
)


class Calls(Value, frozen=True):
    """The commands that a script called, each with its words.

    Beside them: `<< PROGRAM TEXT` for what a program reads from a here-document, and `variable NAME VALUE…` for what is
    set at the end.
    """

    commands: tuple[tuple[str, ...], ...]
    finished: bool  # whether the script came to its end


def calls_of(renderings: Sequence[Mapping[str, bytes]], folder: Path) -> list[tuple[Calls, Calls]]:
    """Return what run.sh of each rendering calls, as it is and with tests the other way round; all at the same time.

    Raises:
        FileNotFoundError: there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise FileNotFoundError("bash")
    home = folder / "stubs"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    os.mkfifo(home / "kit_alive")
    places = [home / f"kit{number}" for number in range(len(renderings))]
    for place, files in zip(places, renderings, strict=True):
        for path, data in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)
            if path.endswith(".sh"):
                (place / f"kit_source_{Path(path).name}").write_bytes(_rewritten(data, is_main=path == "run.sh"))
    env = {"TMPDIR": str(home), "LC_ALL": "C.UTF-8"}
    complete([bash, "--norc", str(_STUBS), *map(str, places)], limit_s=LIMIT_S, env=env, cwd=home, limit_bytes=1 << 20)
    return [(_calls(place, "straight"), _calls(place, "inverted")) for place in places]


def _rewritten(data: bytes, *, is_main: bool) -> bytes:
    text = _REWRITTEN.sub(_instead, "\n" + data.decode("utf-8", "surrogateescape"))
    return (text + ("\nkit_end\n" if is_main else "\n")).encode("utf-8", "surrogateescape")


def _instead(found: re.Match[str]) -> str:
    """Return what a part of a script becomes where programs are stubs."""
    part = found[found.lastgroup or 0]
    instead = {"output": " 203<<<", "pid": "${kit_pid}", "required": f"{part}:-", "locked": f"kit_{part}"}
    return {**instead, "words": f"builtin {part}", "begin": f"{part}kit_run "}.get(found.lastgroup or "", part)


def _calls(place: Path, way: str) -> Calls:
    notes = Path(f"{place}.{way}")
    data = notes.read_bytes() if notes.is_file() else b""
    text = data.decode("utf-8", "surrogateescape").replace(_LINE_END, "\n")
    found = list(_commands(text.replace(f"{place.parent}/{place.name}", "/kit")))
    return Calls(commands=tuple(words for words in found if words != _LAST), finished=_LAST in found)


def _commands(text: str) -> Iterator[tuple[str, ...]]:
    words: list[str] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for word in text.split("\0")[:-1]:
        if word != _END:
            words.append(word)
            continue
        seen[tuple(words)] += 1
        if seen[tuple(words)] <= _MOST_REPEATS:
            yield tuple(words)
        words = []


# Odd values in place of plain ones.

_SCRIPT = "run.sh"
_SLOW = (
    f"a script has {LIMIT_S:g} s for it: let loops that wait call sleep, put long work into a program, "
    "and set nothing that is read-only in bash's restricted mode"
)
_CODE = re.compile(r"(?:python|pypy|bash|sh|dash|zsh|perl|ruby|node)[\d.]*")
_DOCUMENT = re.compile(rb"<<-?[ \t]*[\"'\\]?(\w+)")
_STRUCTURED = (".json", ".toml", ".yaml", ".yml")
_BREAK = "\x1f"  # between words
_FOR_PEOPLE = ("echo", "printf", "variable")  # which may have some words of a value alone
_ENDLESS = "it could not be run to its end"


class Oddity:
    """A key's odd value, and the mark that stands in its place.

    Out of its quotes anywhere it calls a program of its key's name, and behind the end of a here-document, which is one
    of `ends`, another one.
    """

    def __init__(self, key: str, ends: Sequence[str] = ()) -> None:
        self.key, self.name, self.behind = key, f"kit_canary_{key}", f"kit_behind_{key}"
        self.mark = f"mark{re.sub('[^a-z0-9]', '', key.casefold())}kram"
        name, lines = self.name, "".join(f"{end}\n{self.behind}\n" for end in ends)
        self.value = (
            f"-x  'one two' \"three\" $({name}) `{name}` ; {name} & # \u00fc\u00f1\u4e2d \\ * ~ $HOME !! %s"
            f" {{{{ 7 }}}}\n{name} | {name}\n{lines}-y"
        )
        as_json = json.dumps(self.value)[1:-1]
        words = (shlex.split(self.value), self.value.split())  # of a value that is meant to be some
        self.words = {how(word) for some in words for word in some for how in (str, _as_bash)}
        forms = (
            *(self.value, as_json, json.dumps(self.value, ensure_ascii=False)[1:-1]),
            re.sub("[<>&']", lambda found: f"\\u{ord(found[0]):04x}", as_json),  # as Jinja's filter tojson
            self.value.replace("\\", "\\\\").replace('"', '\\"'),
            _as_bash(self.value),
            *(between.join(map(how, some)) for some in words for how in (str, _as_bash) for between in (_BREAK, " ")),
        )
        self._forms = [form.casefold() for form in forms]

    def marked(self, text: str) -> str:
        """Return a text in small letters with marks for values, however they are written there."""
        return reduce(lambda text, form: text.replace(form, self.mark), self._forms, text.casefold())


def _as_bash(text: str) -> str:
    """Return what bash's printf %q makes of a text."""
    if "\n" in text:
        return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


def check_quoting(subject: Subject, folder: Path) -> Iterator[Defect]:
    """Yield values that break out, of some plans; `folder` is where their scripts are run."""
    seen: set[str] = set()
    for made in subject.spread(subject.examples):
        keys = [key for key in text_keys(made) if key not in seen]
        for key, what in _of_keys(subject, made, keys, folder):
            seen.add(key)
            hint = _SLOW if what == _ENDLESS else AS_WORD if what.startswith("it ") else HINT
            name = key if key == _SCRIPT else name_of(key)
            yield f"{name} of {made.case}", what, hint
        if _SCRIPT in seen:
            return


def _of_keys(subject: Subject, made: Made, keys: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield keys and what became of their odd values: of each alone in the files, of all together in the script."""
    ends = sorted({end.decode() for file in made.files for end in _DOCUMENT.findall(file.data)})
    whole: list[Oddity] = []
    for oddity in (Oddity(key, ends) for key in keys):
        try:
            plain = files_with(subject, made, {oddity.key: oddity.mark})
            odd = files_with(subject, made, {oddity.key: oddity.value}) if plain is not None else None
        except MadliteError as error:
            yield oddity.key, f"an odd value breaks a template: {error.message}"
            continue
        if plain is None or odd is None:
            continue
        what = next((what for path in odd if (what := _changed(path, plain[path], odd[path], oddity))), "")
        if what:
            yield oddity.key, what
        else:
            whole.append(oddity)
    found = _of_script(subject, made, whole, folder)
    if found is None:  # values that are taken alone may exclude each other
        found = [pair for oddity in whole for pair in _of_script(subject, made, [oddity], folder) or ()]
    yield from found


def _of_script(subject: Subject, made: Made, oddities: Sequence[Oddity], folder: Path) -> list[tuple[str, str]] | None:
    """Return keys and what became of their values in what the script calls; None where they are not taken together."""
    try:
        plain = files_with(subject, made, {oddity.key: oddity.mark for oddity in oddities})
        odd = files_with(subject, made, {oddity.key: oddity.value for oddity in oddities})
    except MadliteError:
        return None
    if plain is None or odd is None:
        return None
    both = zip(*calls_of([plain, odd], folder), strict=True) if _SCRIPT in odd else ()
    return next(filter(None, (list(_in_calls(calls, others, oddities)) for calls, others in both)), [])


def _changed(path: str, plain: bytes, odd: bytes, oddity: Oddity) -> str:
    """Return how an odd value changes the contents of a file, "" where it does not."""
    if not path.endswith(_STRUCTURED):
        return ""
    try:
        before, after = (oddity.marked(json.dumps(parsed(path, data), default=str)) for data in (plain, odd))
    except ValueError as error:
        return f"an odd value changes {path}: {error}"
    return "" if before == after else f"an odd value changes {path}: {after!r:.160}"


def _in_calls(plain: Calls, odd: Calls, oddities: Sequence[Oddity]) -> Iterator[tuple[str, str]]:
    """Yield keys whose odd values change what a script calls."""
    if not plain.finished:
        yield _SCRIPT, _ENDLESS
        return
    out = [(oddity.key, what) for oddity in oddities if (what := _broken_out(odd, oddity, oddities))]
    yield from out
    if not out and not odd.finished:
        yield _SCRIPT, "an odd value keeps run.sh from being run to its end"
    elif not out:
        calls = {_shape(words, oddities) for words in odd.commands}
        for words in (words for words in plain.commands if _shape(words, oddities) not in calls):
            key = next((oddity.key for oddity in oddities if oddity.mark in "".join(words)), "")
            if key or words[0] not in _FOR_PEOPLE:
                yield key or _SCRIPT, f"an odd value changes the words of run.sh: {' '.join(words)!r:.160}"
                return


def _broken_out(odd: Calls, oddity: Oddity, oddities: Sequence[Oddity]) -> str:
    """Return how a part of a value is run, or could be; "" where it is not."""
    names = {words[0] for words in odd.commands if words}
    if any(name.startswith(oddity.name) for name in names):
        return "a part of an odd value is run as a command of run.sh"
    if oddity.behind in names:
        return "it stands in a here-document of run.sh, which a line of it could end"
    if any(oddity.name in _without(_code(words, oddities), oddity) for words in odd.commands):
        return "it is a part of code that a program of run.sh reads"
    return ""


def _shape(words: Sequence[str], oddities: Sequence[Oddity]) -> str:
    """Return the words of a command with a mark for each value."""
    code = _code(words, oddities)
    if words[0] not in _FOR_PEOPLE:
        whole = [reduce(_without, oddities, word) if word == code else word for word in words]
        return reduce(lambda text, oddity: oddity.marked(text), oddities, _BREAK.join(whole))
    marks = {text for oddity in oddities for text in (oddity.mark, *oddity.words)}
    marked = (word if word in marks else reduce(lambda text, odd: odd.marked(text), oddities, word) for word in words)
    return _BREAK.join(word for word, _ in groupby("a value" if word in marks else word for word in marked))


def _without(code: str, oddity: Oddity) -> str:
    """Return code with a mark where it has a value as a word."""
    return code.replace(shlex.quote(oddity.value), oddity.mark)


def _code(words: Sequence[str], oddities: Sequence[Oddity]) -> str:
    """Return the word that a program reads as code: behind -c, or its here-document; "" where there is none."""
    python = [text for oddity in oddities if oddity.key == PYTHON for text in (oddity.mark, oddity.value)]

    def is_program(word: str) -> bool:
        return word in python or _CODE.fullmatch(word.rpartition("/")[2]) is not None

    if words[:1] == ("<<",):
        return words[2] if is_program(words[1]) else ""
    found = [n for n, word in enumerate(words[:-1]) if word in ("-c", "-e") and any(map(is_program, words[:n]))]
    return words[found[0] + 1] if found else ""
