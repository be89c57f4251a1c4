"""Which of the variables `MADLITE_<NAME>` the text of a program requests.

Of Python what its strings say: no comment, no docstring and no sentence of a message requests one, nor does a line that
sets one.  Of other programs, and of Python that does not parse, their text without comments.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_ANY = r"(?<![A-Za-z0-9_])MADLITE_"
_NAME = re.compile(rf"{_ANY}([A-Z][A-Z0-9_]*)(?![A-Za-z0-9_])(?!\s*=(?!=))")  # a whole one, which is not set here
_EXPANDED = re.compile(r"\$(?:\{[!#]?)?MADLITE_([A-Z][A-Z0-9_]*)(?![A-Za-z0-9_])")  # as a shell does, or expandvars
_PREFIX = re.compile(rf"{_ANY}(?![A-Za-z0-9_])")
_PUT_TOGETHER = re.compile(rf"{_ANY}(?:\$|\{{|%|[\"']\s*[+.%])")  # with a name that stands elsewhere
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]*\b")
_PYTHON = re.compile(r"#!.*python")
# strings, so that no `#` in one begins a comment; what begins one does so as a word
_QUOTED_OR_COMMENT = re.compile(r"'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\"|(?P<comment>(?<![^\s;()\]}&|])#[^\n]*)")
_SHELLS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".fish")
_PRINTED = re.compile(r"\b(?:echo|printf)\b[^;|&\n]*")


class Named(NamedTuple):
    """What a text requests: variables by what follows `MADLITE_`, or all of them.

    Where names are put together, `parts` are the words they may be made of, in capitals.
    """

    names: frozenset[str] = frozenset()
    every: bool = False
    put_together: bool = False
    parts: frozenset[str] = frozenset()

    def __or__(self, other: Named) -> Named:
        """Return what either requests: a part may stand in another module than where it is used."""
        return Named(
            self.names | other.names,
            self.every or other.every,
            self.put_together or other.put_together,
            self.parts | other.parts,
        )

    def has(self, name: str) -> bool:
        """Return whether a variable is requested."""
        return self.every or name in self.names or (self.put_together and name in self.parts)


def parsed(text: str, suffix: str) -> ast.Module | None:
    """Return a program's tree; None of what is no Python: by its file's suffix, by its first line, or as it reads."""
    if suffix != ".py" and (not _PYTHON.match(text) if text.startswith("#!") else suffix in _SHELLS):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's code: none of our business
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def named_in(text: str, tree: ast.Module | None) -> Named:
    """Return what a program requests, by its tree where it is Python."""
    return _of_text(text) if tree is None else _of_tree(tree)


def _of_text(text: str) -> Named:
    code = _QUOTED_OR_COMMENT.sub(lambda found: "" if found["comment"] else found[0], text)
    used = _PRINTED.sub(" ", code)
    names = {found[1] for text, pattern in ((code, _EXPANDED), (used, _NAME)) for found in pattern.finditer(text)}
    put_together = _PUT_TOGETHER.search(used) is not None
    every = _PREFIX.search(_PUT_TOGETHER.sub(" ", used)) is not None
    return Named(frozenset(names), every, put_together, frozenset(word.upper() for word in _WORD.findall(code)))


def _of_tree(tree: ast.Module) -> Named:
    found = _Strings()
    with suppress(RecursionError):  # deeper than anybody writes; what was found until there stands
        found.visit(tree)
    return Named(frozenset(found.names), found.every, found.put_together, frozenset(found.parts))


class _Strings(ast.NodeVisitor):
    """Takes in the strings of a program that it uses, and the words that may become strings: keywords, fields."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.parts: set[str] = set()
        self.every = self.put_together = False

    def visit_Expr(self, node: ast.Expr) -> None:
        """Pass over a docstring, and code that is left out as a string."""
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Pass over the name of a variable that is set or deleted."""
        self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            self.visit(node.slice)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Take the names of a class's fields: what goes through them finds variables of these names."""
        for field in node.body:
            targets = field.targets if isinstance(field, ast.Assign) else [getattr(field, "target", None)]
            self.parts.update(target.id.upper() for target in targets if isinstance(target, ast.Name))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Take the keyword's name."""
        self.parts.add((node.arg or "").upper())
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Take a string with fields."""
        for part, after in zip(node.values, [*node.values[1:], None], strict=True):
            self._take_or_visit(part, followed=after is not None)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Take what is put together by `+` and `%`."""
        joined = isinstance(node.op, (ast.Add, ast.Mod))
        self._take_or_visit(node.left, followed=joined)
        self._take_or_visit(node.right, followed=joined)

    def visit_Call(self, node: ast.Call) -> None:
        """Take what is put together by `format`."""
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == "format":
            self._take_or_visit(func.value, followed=True)
            for argument in (*node.args, *node.keywords):
                self.visit(argument)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Take a string."""
        self._take(node.value, followed=False)

    def _take_or_visit(self, node: ast.expr, *, followed: bool) -> None:
        if isinstance(node, ast.Constant):
            self._take(node.value, followed=followed)
        else:
            self.visit(node)

    def _take(self, value: object, *, followed: bool) -> None:
        """Take a string in; `followed` where more is put behind it."""
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            return
        self.parts.update(_parts_of(text))
        words = text.split()
        sentence = len(words) > 1 and not all("MADLITE_" in word for word in words)
        self.names.update(found[1] for found in (_EXPANDED if sentence else _NAME).finditer(text))
        if sentence or not _PREFIX.search(text):
            return
        if followed or _PUT_TOGETHER.search(text):
            self.put_together = True
        else:
            self.every = True


def _parts_of(text: str) -> Iterator[str]:
    """Yield the words of a string, in capitals; of a sentence those that are written so."""
    if len(text.split()) > 1:
        yield from _CAPITALS.findall(text)
        return
    for word in _WORD.findall(text.replace("-", "_")):
        yield word.upper()
