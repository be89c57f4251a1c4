"""Split the text of `docker run` options into words, as the shell does that madengine gives them to.

Quotes and backslashes keep `$`, a backquote and `~` as they are written (POSIX, Shell Command Language, 2.2 Quoting);
elsewhere a variable is the caller's. What comes out of a variable is not split again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from madlite.secrets import Redactor, assigned

_KEPT = str.maketrans("$`~", "\ufdd0\ufdd1\ufdd2")  # no text holds these: Unicode gives them to programs
_WRITTEN = str.maketrans("\ufdd0\ufdd1\ufdd2", "$`~")
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_PAIR = re.compile(r"\\(.)", re.DOTALL)
_WORD = re.compile(rf"(?:{_QUOTED.pattern}|[^\s'\"\\])+", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def split_words(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the words, with `$NAME`, `${NAME}` and a leading `~` replaced by the caller's.

    Raises:
        ValueError: a quotation does not end, a variable is not set, or a command's output is asked for.
    """
    return [_expand(word, environ).translate(_WRITTEN) for word in shlex.split(_QUOTED.sub(_keep, text))]


def odd_words(text: str) -> list[str]:
    """Return, as they are written, the words whose quotes or backslashes stand inside of what they mean."""
    return [word for word in _WORD.findall(text) if not _VARIABLE.search(_QUOTED.sub(_keep, word)) and _is_odd(word)]


def _is_odd(word: str) -> bool:
    return shlex.split(word)[0] not in word


def _keep(quoted: re.Match[str]) -> str:
    """Mark the signs that mean themselves in a quoted part; its quotes and other backslashes are shlex's."""
    text = quoted[0]
    if text[0] == "'":
        return text.translate(_KEPT)
    if text[0] == "\\":
        return text[1].translate(_KEPT) if text[1] in "$`~" else text
    marked = _PAIR.sub(lambda pair: pair[1].translate(_KEPT) if pair[1] in "$`" else pair[0], text)
    return marked.replace("~", "~".translate(_KEPT))


def _expand(word: str, environ: Mapping[str, str]) -> str:
    if "$(" in word or "`" in word:
        raise ValueError(f"'{_shown(word)}' asks for a command's output, and no shell runs here")

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in environ:
            raise ValueError(f"'{_shown(word)}' needs the variable {name}, which is not set")
        return environ[name]

    if word == "~" or word.startswith("~/"):
        word = "$HOME" + word[1:]
    return _VARIABLE.sub(value, word)


def _shown(word: str) -> str:
    """Return a word for a message: of `HF_TOKEN=…` the name alone."""
    word = word.translate(_WRITTEN)
    return Redactor(assigned([word])).text(word)
