"""Which words a script would give to its programs: a restricted bash reads it with every program taken away.

The script's text is tamed (`taming.py`) and sourced by `reading.sh`, with tests the other way round too, so that both
branches are read.  What a value breaks out to is noted like any other command.  Nothing runs: there is no program on
PATH, and restricted mode refuses commands with a path and output to files, also where the taming was mistaken.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from madlite.model import Value
from madlite.process import capture
from madlite.testing.taming import tame

LIMIT_S = 3.0  # for one script, whatever waits or loops in it
READER = Path(__file__).with_name("reading.sh")
_KEPT = 20  # of the same command: a loop in the background does not always come as far
_END = "\x01"  # ends the words of a command; none of them is this alone
_LINE_END = "\x05"  # as it is noted
_LAST = ("\x02",)  # what is noted when a script has come to its end


class Words(Value, frozen=True):
    """The commands of a script, each with its words.

    Beside them: `> FILE` for a redirection, `<< PROGRAM TEXT` for what a program reads from a here-document, and
    `variable NAME VALUE…` for what is set at the end.
    """

    commands: tuple[tuple[str, ...], ...]
    documents: tuple[str, ...]  # here-documents as they stand in the script
    whole: bool  # whether the script came to its end


def words_of(script: Path, folder: Path, *, inverted: bool = False) -> Words:
    """Return the words of a script that lies in `folder`, beside what it sources; notes are written there too.

    Raises:
        FileNotFoundError: there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise FileNotFoundError("bash")
    empty, notes = folder / "kit_no_programs", folder / "kit_words"
    empty.mkdir(exist_ok=True)
    documents: tuple[str, ...] = ()
    for path in (script, *(path for path in folder.glob("*.sh") if path != script)):
        tamed = tame(path.read_bytes().decode("utf-8", "surrogateescape"))
        end = "\nkit_end\n" if path == script else "\n"
        (folder / f"kit_source_{path.name}").write_bytes((tamed.text + end).encode("utf-8", "surrogateescape"))
        documents += tamed.documents
    env = {"PATH": str(empty), "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
    way = "inverted" if inverted else "straight"
    with _lifeline(folder / "kit_alive") as alive:
        argv = [bash, "--norc", str(READER), script.name, str(notes), way, str(alive), str(LIMIT_S)]
        capture(argv, limit_s=2 * LIMIT_S, env=env, cwd=folder)
    found = list(_commands(notes.read_bytes() if notes.is_file() else b""))
    return Words(commands=tuple(words for words in found if words != _LAST), documents=documents, whole=_LAST in found)


@contextmanager
def _lifeline(path: Path) -> Iterator[Path]:
    """Give a named pipe that is open for writing as long as this process lives: its end is bash's."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    try:
        yield path
    finally:
        os.close(held)


def _commands(data: bytes) -> Iterator[tuple[str, ...]]:
    words: list[str] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for word in data.decode("utf-8", "surrogateescape").replace(_LINE_END, "\n").split("\0")[:-1]:
        if word != _END:
            words.append(word)
            continue
        seen[tuple(words)] += 1
        if seen[tuple(words)] <= _KEPT:
            yield tuple(words)
        words = []
