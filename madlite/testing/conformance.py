"""The kit as a class of tests: pytest collects one for each check of a subclass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from madlite.model import Backend, Machine
from madlite.testing.checks import run_check
from madlite.testing.machines import MACHINES
from madlite.testing.subject import CardLike, Subject


class BackendConformance:
    """Set `backend` and the rest in a class whose name begins with Test; the fields are those of `check_backend`."""

    backend: ClassVar[Backend]
    cards: ClassVar[Iterable[CardLike]] = ()
    logs: ClassVar[Mapping[str | Path, int | None]] = {}
    outputs: ClassVar[Iterable[str | Path]] = ()
    docs: ClassVar[Iterable[str | Path]] = ()
    foreign: ClassVar[Mapping[str | Path, str]] = {}
    asks: ClassVar[Iterable[Mapping[str, str]]] = ()
    machines: ClassVar[Sequence[Machine]] = MACHINES
    templates: ClassVar[Iterable[str | Path]] = ()
    installed: ClassVar[bool] = True
    most: ClassVar[int | None] = None
    examples: ClassVar[int | None] = None

    @classmethod
    def subject(cls) -> Subject:
        """Return what is tested, made once for all tests of the class."""
        if "_subject" not in cls.__dict__:
            cls._subject = Subject(
                cls.backend,
                cls.cards,
                cls.logs,
                outputs=cls.outputs,
                docs=cls.docs,
                foreign=cls.foreign,
                asks=cls.asks,
                machines=cls.machines,
                templates=cls.templates,
                installed=cls.installed,
                most=cls.most,
                examples=cls.examples,
            )
        return cls._subject

    _subject: ClassVar[Subject]

    def test_members(self) -> None:
        """The backend has every member with its arguments, and answers with madlite's values."""
        self._holds("members")

    def test_names(self) -> None:
        """Name, entry point, settings, metrics and templates are named so that nothing hides another."""
        self._holds("names")

    def test_rendering(self) -> None:
        """Every card, release and GPU renders."""
        self._holds("rendering")

    def test_scripts(self) -> None:
        """Every script passes bash -n and shellcheck."""
        self._holds("scripts")

    def test_quoting(self) -> None:
        """Odd values stay one word."""
        self._holds("quoting")

    def test_secrets(self) -> None:
        """Secrets are rendered nowhere."""
        self._holds("secrets")

    def test_purity(self) -> None:
        """Planning answers, and does nothing else."""
        self._holds("purity")

    def test_reading(self) -> None:
        """The stated steps are read, however the bytes come."""
        self._holds("reading")

    def test_finish(self) -> None:
        """A run that left no files upsets no reader."""
        self._holds("finish")

    def test_fuzz(self) -> None:
        """Broken logs and long lines upset no reader."""
        self._holds("fuzz")

    def test_recognising(self) -> None:
        """Logs of others are left to them."""
        self._holds("recognising")

    def test_results(self) -> None:
        """The result rule names numbers that the reader gives."""
        self._holds("results")

    def test_effects(self) -> None:
        """What a row says of a run is what ran."""
        self._holds("effects")

    def test_docs(self) -> None:
        """A page names every setting, mode and metric."""
        self._holds("docs")

    def test_failures(self) -> None:
        """Failure rules compile, and match their examples."""
        self._holds("failures")

    def _holds(self, check: str) -> None:
        flaws = run_check(check, self.subject())
        if flaws:
            raise AssertionError("\n".join(map(str, flaws)))
