"""One word of a script, with everything that is quoted or substituted in it, read on the way to a tamed script."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

BREAKS = " \t\n;&|<>()"
_REQUIRED = re.compile(r"(\$\{!?\w+(?:\[[^]\n]*\])?):?\?")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*'?", re.DOTALL)
_BACKQUOTED = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL)


class ShellWords(ABC):
    """Goes through a text once and writes `out`; every method starts at `at` and leaves it behind what it read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.out: list[str] = []

    @abstractmethod
    def commands(self, end: str) -> None:
        """Take commands up to and with a closing character, or to the end of the text."""

    def take(self, count: int) -> None:
        """Take so many characters as they are."""
        self.out.append(self.text[self.at : self.at + count])
        self.at += count

    def starts(self, *texts: str) -> bool:
        """Say whether one of these texts is here."""
        return self.text.startswith(texts, self.at)

    def more(self) -> bool:
        """Say whether the text goes on."""
        return self.at < len(self.text)

    def taken(self, pattern: re.Pattern[str]) -> str:
        """Take what a pattern matches here, and return it; nothing where it does not."""
        found = pattern.match(self.text, self.at)
        self.take(len(found[0]) if found else 0)
        return found[0] if found else ""

    def until(self, end: str) -> None:
        """Take everything up to and with a text."""
        found = self.text.find(end, self.at)
        self.take((found if found >= 0 else len(self.text)) + len(end) - self.at)

    def word(self) -> None:
        """Take one word, with everything that is quoted or substituted in it."""
        while self.more() and (self.text[self.at] not in BREAKS or self.starts("<(", ">(")):
            if self.starts("<(", ">("):
                self.take(2)
                self.commands(")")
            else:
                self.quotes_or_special(quoted=False)

    def quotes_or_special(self, *, quoted: bool) -> None:
        """Take a text in double quotes, or what `special` takes."""
        if self.starts('"'):
            self.take(1)
            self.quotes('"')
        else:
            self.special(quoted=quoted)

    def quotes(self, end: str) -> None:
        """Take text in double quotes, to the closing one or the end of the text."""
        while self.more() and not (end and self.starts(end)):
            self.special(quoted=True)
        self.take(len(end))

    def special(self, *, quoted: bool) -> None:
        """Take one character, or what it begins or quotes."""
        if self.starts("'") and not quoted:
            self.take(1)
            self.until("'")
        elif self.starts("\\"):
            self.take(2)
        elif self.starts("$"):
            self.dollar(quoted=quoted)
        elif self.starts("`"):
            self.backquotes()
        else:
            self.take(1)

    def dollar(self, *, quoted: bool) -> None:
        """Take what a dollar begins."""
        if self.starts("$(("):
            self.take(1)
            self.balanced("(", ")")
        elif self.starts("$("):
            self.take(2)
            self.commands(")")
        elif self.starts("${"):
            self.parameter(quoted=quoted)
        elif self.starts("$$", "$!"):
            self.out.append("${kit_pid}")
            self.at += 2
        elif self.starts("$'") and not quoted:
            self.taken(_ANSI)
        else:
            self.take(1)

    def parameter(self, *, quoted: bool) -> None:
        """Take ${…}; one that a script demands has its message in place of the script's end."""
        if found := _REQUIRED.match(self.text, self.at):
            self.out.append(f"{found[1]}:-")
            self.at = found.end()
        else:
            self.take(3 if self.starts("${$", "${!}") else 2)
        while self.more() and not self.starts("}"):
            self.quotes_or_special(quoted=quoted)
        self.take(1)

    def backquotes(self) -> None:
        """Take a command in backquotes; one with backslashes as it is."""
        found = _BACKQUOTED.match(self.text, self.at)
        body = found[1] if found else ""
        self.at = found.end() if found else len(self.text)
        inner = type(self)(body)
        if "\\" not in body:
            inner.commands("")
        self.out.append(f"`{''.join(inner.out) if inner.out else body}`")

    def balanced(self, opens: str, closes: str) -> None:
        """Take an arithmetic expression, from its first bracket to its last."""
        depth = 0
        while self.more():
            depth += self.starts(opens) - self.starts(closes)
            if self.starts("$"):
                self.dollar(quoted=True)
                continue
            self.take(1)
            if not depth:
                return
