"""Which words a script would give to its programs: bash reads it with every program taken away.

The script is sourced by a bash that finds no program, has its own `exec`, `exit`, `cd`, `set` and `kill` replaced by
functions, and notes the words of every command; tests are also run the other way round, so that both branches are
read.  What a value breaks out to is noted like any other command: nothing runs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from madlite.process import capture
from madlite.types import Value

_LIMIT_S = 20.0
_END = "\x01"  # ends the words of a command; none of them is this alone
_DRIVER = r"""
exec 9>"$2"
note() { builtin printf '%s\0' "$@" $'\001' >&9; }
command_not_found_handle() { note "$@"; }
exec() { [[ $# -eq 0 ]] || note "$@"; }
command() { note "$@"; }
exit() { :; }
kill() { :; }
set() { :; }
cd() { note cd "$@"; }
if [[ $3 == inverted ]]; then
  test() { ! builtin test "$@"; }
  function [ { ! builtin [ "$@"; }
fi
builtin source "$1"
for name in $(compgen -e); do builtin printf '%s\0' "export" "$name" "${!name}" $'\001' >&9; done
"""


class Words(Value, frozen=True):
    """The commands of a script, each with its words; exported variables are commands `export NAME VALUE`."""

    commands: tuple[tuple[str, ...], ...]
    whole: bool  # whether the script came to its end


def words_of(script: Path, folder: Path, *, inverted: bool = False) -> Words:
    """Return the words of a script that lies in `folder`, which it may write into.

    Raises:
        FileNotFoundError: there is no bash.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise FileNotFoundError("bash")
    empty = folder / "no_programs"
    empty.mkdir(exist_ok=True)
    driver, noted = folder / "kit_driver", folder / "kit_words"
    driver.write_text(_DRIVER, encoding="utf-8")
    noted.write_bytes(b"")
    argv = [bash, "--norc", str(driver), str(script), str(noted), "inverted" if inverted else "straight"]
    env = {"PATH": str(empty), "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}
    ran = capture(argv, limit_s=_LIMIT_S, env=env, cwd=folder)
    return Words(commands=tuple(_commands(noted.read_bytes())), whole=not ran.timed_out)


def _commands(data: bytes) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    words: list[str] = []
    for word in data.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        if word == _END:
            found.append(tuple(words))
            words = []
        else:
            words.append(word)
    return found
