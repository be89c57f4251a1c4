"""What is done to a run, and when: all of it drawn from the round's seed."""

from __future__ import annotations

import random
import signal
from typing import Literal, NamedTuple

from tests.chaos.cards import Part, draw_parts

Kind = Literal["none", "signal", "engine", "container", "disk", "inodes", "shut", "append", "rotate"]
Target = Literal["madlite", "group", "workload", "one of the workload"]
Moment = Literal["any", "start-up", "result", "append"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_TARGETS: tuple[Target, ...] = ("madlite", "madlite", "group", "workload", "one of the workload")
_SHUT = ("perf.csv", ".", "madlite_runs", "the run's folder")
START_S = {"host": 0.7, "docker": 3.5}  # about what comes before the first card's script


class Attack(NamedTuple):
    """One attack: `word` is the signal's name or what is made read-only; `again` after so many seconds."""

    kind: Kind
    moment: Moment
    wait_s: float
    word: str = ""
    target: Target | str = ""
    again_s: float | None = None
    lasts_s: float | None = None  # None: until madlite has ended

    def __str__(self) -> str:
        again = "" if self.again_s is None else f" +{self.again_s:.2f}"
        return f"{self.kind} {self.word} {self.target}{again}".strip()


class Round(NamedTuple):
    """Everything of a round."""

    seed: int
    runtime: Literal["host", "docker"]
    parts: list[Part]
    attack: Attack
    before: str  # which perf.csv is there before

    @property
    def on_tmpfs(self) -> bool:
        """Whether its folder is a small file system of its own."""
        return self.attack.kind in ("disk", "inodes")


def draw(seed: int) -> Round:
    """Return the round of a seed, the same every time."""
    chance = random.Random(seed)
    runtime: Literal["host", "docker"] = chance.choice(("host", "host", "docker"))
    parts = draw_parts(chance, runtime)
    before = chance.choice(("none", "none", "29", "25", "odd"))
    return Round(seed, runtime, parts, _attack(chance, runtime, parts), before)


def _attack(chance: random.Random, runtime: str, parts: list[Part]) -> Attack:
    kinds: list[Kind] = ["signal"] * 10 + ["disk"] * 3 + ["shut"] * 4 + ["inodes", "append", "rotate", "none"]
    kind = chance.choice(kinds + (["engine"] * 5 + ["container"] * 2 if runtime == "docker" else []))
    moment: Moment = chance.choice(("any", "any", "any", "start-up", "result", "append"))
    length_s = START_S[runtime] + sum(part.length_s for part in parts)
    longest_s = {"any": length_s + 0.3, "start-up": START_S[runtime], "result": 0.4, "append": 0.1}[moment]
    attack = Attack(kind, moment, chance.uniform(0.0, longest_s))
    again_s = chance.choice((None, None, None, chance.uniform(0.0, 0.5)))
    if kind == "signal":
        word = chance.choice(_SIGNALS).name
        return attack._replace(word=word, target=chance.choice(_TARGETS), again_s=again_s)
    if kind in ("engine", "container"):
        word = chance.choice((signal.SIGTERM, signal.SIGKILL)).name
        return attack._replace(word=word, lasts_s=chance.choice((None, 0.0)))
    if kind == "shut":
        attack = attack._replace(word=chance.choice(_SHUT))
    return attack._replace(lasts_s=chance.choice((None, None, chance.uniform(0.0, 1.0))))
