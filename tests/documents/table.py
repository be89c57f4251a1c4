"""The commands of AMD's documents as data: what each says, the command that does it here, and how the two differ.

A file of `tests/data/documents` is a document: its image, the GPUs it is about, named differences, and its commands.
`text` is what the document has one type, a line each: `export`, `cd`, and programs with variables before them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import tomli

FOLDER = Path(__file__).parents[1] / "data/documents"
DEVICES = ("MI300X", "MI325X", "MI350X", "MI355X")
_PIPES = ("|&", "|", "&&", ";")


class Difference(msgspec.Struct, frozen=True):
    """What differs from a document, each a pattern of `compare`, under a name, and why it is meant."""

    name: str
    why: str
    what: tuple[str, ...]


class Command(msgspec.Struct, frozen=True):
    """What a section of a document has one type, and the arguments of `madlite run` that do it.

    `starts` is what that runs where it is a script of MAD's.  `differences` and `on` name differences, on every GPU and
    on one.  `refused` is part of the message where nothing runs; `means` are values of the plan that the text's words
    stand for.  `devices` are the GPUs that the text is for, where the document has another text for others.
    """

    section: str
    text: str
    madlite: str
    starts: str = ""
    differences: tuple[str, ...] = ()
    on: dict[str, tuple[str, ...]] = {}
    refused: str = ""
    devices: tuple[str, ...] = ()
    means: dict[str, str | int | bool] = {}


class Document(msgspec.Struct, frozen=True):
    """A document; GPUs that it is not about are refused in the words of `elsewhere`.

    `always` names what differs in all of its trainings.
    """

    document: str
    image: str
    devices: tuple[str, ...]
    elsewhere: str = ""
    always: tuple[str, ...] = ()
    difference: tuple[Difference, ...] = ()
    command: tuple[Command, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """A program of a document's text: its words, and the variables that it sees."""

    words: tuple[str, ...]
    variables: dict[str, str]


class Row(msgspec.Struct, frozen=True):
    """A command on one GPU: the patterns of its differences, or what refuses it."""

    document: Document
    command: Command
    device: str

    @property
    def name(self) -> str:
        return f"{self.document.document}: {self.command.section}, {self.device}"

    @property
    def refused(self) -> str:
        return self.command.refused if self.device in self.document.devices else self.document.elsewhere

    @property
    def expected(self) -> tuple[str, ...]:
        """Return the patterns of everything that this row has differ."""
        return tuple(one for name in self.names for one in _named(self.document, name).what)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of this row's differences."""
        trains = steps(self.command.text)[-1].words[0] not in ("docker", "madengine", "wget")
        always = self.document.always if trains else ()
        return (*always, *self.command.differences, *self.command.on.get(self.device, ()))


def _named(document: Document, name: str) -> Difference:
    (found,) = [one for one in (*document.difference, *shared()) if one.name == name]
    return found


def shared() -> tuple[Difference, ...]:
    """Return the differences that several documents name."""
    return msgspec.convert(_read(FOLDER / "shared.toml")["difference"], tuple[Difference, ...])


def documents() -> list[Document]:
    """Return every document, by the name of its file."""
    files = sorted(file for file in FOLDER.glob("*.toml") if file.name != "shared.toml")
    return [msgspec.convert(_read(file), Document) for file in files]


def rows() -> list[Row]:
    """Return every command on every GPU, or on those that its text is for."""
    commands = [(one, command) for one in documents() for command in one.command]
    return [Row(one, command, device) for one, command in commands for device in command.devices or DEVICES]


def _read(file: Path) -> dict[str, Any]:
    return tomli.loads(file.read_text())


def steps(text: str) -> list[Step]:
    """Return the programs of a text with their variables: those exported before, and those before their own words."""
    exported: dict[str, str] = {}
    found = []
    for line in text.strip().replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if words[0] == "export":
            exported |= _pairs(words[1:])
        elif words[0] != "cd":
            words = words[: next((n for n, word in enumerate(words) if word in _PIPES), None)]
            own = next(n for n, word in enumerate(words) if not _is_pair(word))
            found.append(Step(words=_plain(words[own:]), variables={**exported, **_pairs(words[:own])}))
    return found


def _plain(words: list[str]) -> tuple[str, ...]:
    """Return a command as what it starts: `tune run` is torchrun with a recipe of torchtune's."""
    if words[:2] == ["tune", "run"]:
        return ("torchrun", *(f"{word}.py" if word.endswith("_distributed") else word for word in words[2:]))
    return tuple(words)


def _is_pair(word: str) -> bool:
    return word.partition("=")[0].isidentifier() and "=" in word


def _pairs(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}
