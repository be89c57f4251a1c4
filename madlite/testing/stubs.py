"""What a script calls: bash runs it with a stub in the place of every program, which notes its words and succeeds.

Nothing else runs, and no file is touched: bash is in its restricted mode, without a program on PATH, and every output
goes to a here-string in place of its file.  Tests are run the other way round too, so that both branches are seen.
What is rewritten for that is what a regular expression finds, whether it is quoted or not: a mistake of it can
hide a word, and never run anything, and a text is the same in two renderings that are compared.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from madlite.model import Value
from madlite.process import complete

LIMIT_S = 6.0  # for one script, whatever waits in it; what loops has two seconds of the processor's time (stubs.sh)
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
