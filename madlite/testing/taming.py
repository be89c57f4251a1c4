"""A script's text made safe to read: redirections become words, commands with a path ask a function first.

This keeps sight of what bash's restricted mode refuses (`words.py` has it run under that): a command whose output goes
to a file would not be noted there at all.  What is not understood here is refused there, so that a mistake can hide a
word, and never run anything.  Grammar: https://www.gnu.org/software/bash/manual/html_node/Basic-Shell-Features.html
"""

from __future__ import annotations

import re

from madlite.model import Value
from madlite.testing.shell_words import BREAKS, ShellWords

_REDIRECTION = re.compile(r"(\d+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<>|>\||>>|&>>|&>|>&|<&|<(?!\()|>(?!\())[ \t]*")
_KEPT = re.compile(r"[12]?>&[ \t]*[12](?=[\s;&|()]|$)")  # these two are open everywhere
_CLOSED = re.compile(r"(?:\d+-?|-)(?=[\s;&|()]|$)")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(\[[^]\n]*\])?\+?=")
_LOCKED = re.compile(r"(?<![\w$-])(PATH|SHELL|ENV|BASH_ENV|HISTFILE)(?=\+?=)")  # none can be set there
_KEYWORDS = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "{", "}", "time", "coproc", "[[", "case", "function")
)
_COMMENT = re.compile(r"[^\n]*")
_CASE_END = re.compile(r";;&?|;&")
_NAME = re.compile(r"[ \t]*[^\s()]*")
_TO_WORDS = re.compile(r"[ \t]+--(?=\s)")
_IN = re.compile(r"\s*in\b")
_ESAC = re.compile(r"esac\b")
_PLAIN = re.compile(r"[\w.+:,%@-]+|\[")


class Tamed(Value, frozen=True):
    """A script to read, and what its here-documents hold, as it stands in the script."""

    text: str
    documents: tuple[str, ...]


def tame(text: str) -> Tamed:
    """Return a script that notes words instead of opening files, with the functions of `words.py`.

    Of each redirection the file's name is given to `kit_target`; a command whose name is not plain is given to
    `kit_run`; text of a here-document is marked by file descriptor 202; numbers of processes are `kit_pid`.
    """
    reader = _Reader(_LOCKED.sub(r"kit_\1", text))
    reader.commands("")
    return Tamed(text="".join(reader.out), documents=tuple(reader.documents))


class _Reader(ShellWords):
    """Goes through a script once."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.documents: list[str] = []
        self.pending: list[tuple[str, bool, bool]] = []  # delimiter, quoted, tabs are dropped

    def commands(self, end: str) -> None:
        """Take commands up to and with a closing character, or to the end of the text."""
        fresh = True  # the next word is a command's name
        while self.more() and not (end and self.starts(end)):
            if self.starts(" ", "\t", "\\\n"):
                self.take(2 if self.starts("\\") else 1)
            elif self.starts("#"):
                self.taken(_COMMENT)
            elif redirection := _REDIRECTION.match(self.text, self.at):
                self.redirection(redirection)
            elif self.starts("\n", ";", "&", "|"):
                self.separator()
                fresh = True
            else:
                fresh = self.brackets(fresh=fresh) if self.starts("(", ")") else self.name_or_word(fresh=fresh)
        self.take(len(end))

    def separator(self) -> None:
        if self.starts("\n"):
            self.line_end()
        elif self.starts(";;", ";&"):
            self.taken(_CASE_END)
            self.patterns()
        else:
            self.take(1)

    def line_end(self) -> None:
        self.take(1)
        waiting, self.pending = self.pending, []
        for delimiter, quoted, tabs in waiting:
            self.document(delimiter, quoted=quoted, tabs=tabs)

    def brackets(self, *, fresh: bool) -> bool:
        """Take a subshell, an arithmetic command or the brackets of a function; say whether a name follows."""
        if self.starts("((") and (fresh or self.text[: self.at].rstrip().endswith("for")):
            self.balanced("(", ")")
            return False
        if self.starts("(") and fresh:
            begin = self.at
            self.take(1)
            self.commands(")")
            return not self.text[begin + 1 : self.at - 1].strip()  # function name ()
        self.take(1)
        return self.starts(")") or self.text[self.at - 1] == ")"

    def name_or_word(self, *, fresh: bool) -> bool:
        """Take a word; say whether a command's name follows."""
        mark, begin = len(self.out), self.at
        self.word()
        raw = self.text[begin : self.at]
        if not fresh:
            return False
        if raw in _KEYWORDS or _ASSIGNED.match(raw):
            return self.keyword(raw)
        if raw == "set" and _TO_WORDS.match(self.text, self.at):
            self.out.insert(mark, "builtin ")  # the words of "$@"; nothing else that set does is wanted
        elif not _PLAIN.fullmatch(raw):
            self.out.insert(mark, "kit_run ")
        return False

    def keyword(self, raw: str) -> bool:
        """Take what belongs to a keyword or an assignment; say whether a command's name follows."""
        if raw == "[[":
            self.conditions()
        elif raw == "case":
            self.case()
        elif raw == "function":
            self.taken(_NAME)
        elif raw.endswith("=") and self.starts("("):
            self.values()
        return raw not in ("[[", "}")

    def conditions(self) -> None:
        """Take what is between [[ and ]], where < and > compare."""
        while self.more() and not self.starts("]]"):
            self.take(1) if self.text[self.at] in BREAKS else self.word()
        self.take(2)

    def case(self) -> None:
        while self.starts(" ", "\t"):
            self.take(1)
        self.word()
        self.taken(_IN)
        self.patterns()

    def patterns(self) -> None:
        """Take the patterns of a case up to the bracket behind them; nothing before esac."""
        while self.more() and not self.starts(")") and not _ESAC.match(self.text, self.at):
            self.gap_or_word()
        self.take(1 if self.starts(")") else 0)

    def gap_or_word(self) -> None:
        """Take a comment, a character between words, or a word."""
        if self.starts("#"):
            self.taken(_COMMENT)
        elif self.text[self.at] in BREAKS and not self.starts("<(", ">("):
            self.take(1)
        else:
            self.word()

    def values(self) -> None:
        """Take the values of an array."""
        self.take(1)
        while self.more() and not self.starts(")"):
            self.gap_or_word()
        self.take(1)

    def redirection(self, found: re.Match[str]) -> None:
        """Take a redirection: text as it is, marked; of a file its name alone."""
        number, sign = found[1] or "", found[2]
        if kept := _KEPT.match(self.text, self.at):
            return self.take(kept.end() - self.at)
        if sign in ("<<", "<<-", "<<<"):
            self.out.append("202<<<x " if number in ("", "0") else "")
            self.take(found.end() - self.at)
            return self.word() if sign == "<<<" else self.delimiter(tabs=sign == "<<-")
        self.at = found.end()
        closed = _CLOSED.match(self.text, self.at) if sign in (">&", "<&") else None
        if closed:
            self.at = closed.end()
            self.out.append(" ")
            return None
        self.out.append(' 203<<<"$( (kit_target ')  # a process in the word does not hold the text
        self.word()
        self.out.append(') >&2)" ')
        return None

    def delimiter(self, *, tabs: bool) -> None:
        begin = self.at
        while self.more() and self.text[self.at] not in BREAKS:
            self.at += 1
        raw = self.text[begin : self.at]
        self.out.append(raw)
        bare = re.sub(r"[\\'\"]", "", raw)
        self.pending.append((bare, bare != raw, tabs))

    def document(self, delimiter: str, *, quoted: bool, tabs: bool) -> None:
        """Take a here-document with its last line; where it is not quoted, commands in it are read."""
        indent = r"\t*" if tabs else ""
        ends = re.compile(rf"^{indent}{re.escape(delimiter)}$", re.MULTILINE).search(self.text, self.at)
        end, behind = (ends.start(), ends.end()) if ends else (len(self.text), len(self.text))
        body = self.text[self.at : end]
        self.documents.append(body)
        if not quoted:
            inner = _Reader(body)
            inner.quotes("")
            body = "".join(inner.out)
            self.documents += inner.documents
        self.out += [body, self.text[end : behind + 1]]
        self.at = behind + 1
