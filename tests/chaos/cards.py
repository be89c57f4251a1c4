"""The cards that rounds run: each tells a file that no attack reaches how it truly ended."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

Kind = Literal["quick", "multi", "steps", "stubborn", "failing", "orphan"]

STEPS = 24
PATTERN = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d.]+)"
TRUTH_BYTES = 4096

# written in place into a file that is there already: a full disk and a folder made read-only take it all the same
_TELL = 'tell() { printf "%s\\n" "$1" | dd of="$truth" conv=notrunc status=none; }\n'
_WAIT = 'for i in 1 2 3 4 5 6 7 8 9 10; do echo "working $i"; sleep {pause_s}; done\n'
_LAST = 'tell "ended {number}"; echo "performance: {number} tokens_per_second"\n'
_SCRIPTS: dict[Kind, str] = {
    "quick": _WAIT + _LAST,
    "multi": _WAIT
    + 'printf "model,performance,metric,temperature\\na,{number},tps,61\\nb,{number}1,tps,62\\n" >perf_{name}.csv'
    + ' && tell "ended {number}"\n',
    "steps": 'for n in $(seq 1 {steps}); do echo "step $n loss 2.$n tps {number}"; sleep {short_s}; done\n'
    'tell "ended {number}"\n',
    "stubborn": "trap '' INT TERM HUP\n" + _WAIT + _LAST,
    "failing": _WAIT + 'echo "performance: {number} tokens_per_second"; echo "boom" >&2; exit 3\n',
    "orphan": "(exec setsid sleep 300) &\n(env -i setsid sleep 300 > /dev/null 2>&1 &)\n" + _WAIT + _LAST,
}

# what stands in for python with torch: it starts the script that torchrun would start, which is the word with its path
STAND_IN = '#!/bin/bash\nfor word; do case "$word" in */run.sh) exec bash "$word" ;; esac; done\nexec python3 "$@"\n'


class Part(NamedTuple):
    """One card of a round: what it does, how long, and the number it would end with."""

    name: str
    kind: Kind
    length_s: float
    number: str

    @property
    def rows(self) -> int:
        """How many rows it has where it went well."""
        return 2 if self.kind == "multi" else 1

    @property
    def script(self) -> str:
        """Its script; `truth` is where it tells how it ended."""
        pause_s, short_s = f"{self.length_s / 10:.3f}", f"{self.length_s / STEPS:.3f}"
        words = {"number": self.number, "name": self.name, "steps": STEPS, "pause_s": pause_s, "short_s": short_s}
        body = _SCRIPTS[self.kind]
        for key, value in words.items():
            body = body.replace("{" + key + "}", str(value))
        above = ".." if self.kind != "steps" else "."
        return f"#!/bin/bash\ntruth={above}/truth/{self.name}\n{_TELL}tell begun\necho begun\n{body}"

    def card(self) -> dict[str, object]:
        """Return it in MAD's schema."""
        script = f"scripts/{self.name}/run.sh"
        card: dict[str, object] = {"name": self.name, "n_gpus": "-1", "tags": ["chaos"], "args": ""}
        if self.kind == "steps":
            recipe = {"script": script, "steps": STEPS, "step": PATTERN, "nproc_per_node": 1}
            return {**card, "backend": "torchrun", "runtimes": ["host"], "recipe": recipe}
        card |= {"dockerfile": "docker/base", "scripts": script}
        return {**card, "multiple_results": f"perf_{self.name}.csv"} if self.kind == "multi" else card


def draw_parts(chance: random.Random, runtime: str) -> list[Part]:
    """Return one to three cards; those of a rendered run need no image, and run on the host alone."""
    kinds: list[Kind] = ["quick", "multi", "stubborn", "failing", "orphan"]
    if runtime == "host":
        kinds += ["steps", "steps"]
    return [
        Part(
            f"c{place}{kind}", kind, chance.uniform(0.05, 1.2), f"{chance.randrange(1, 1000)}.{chance.randrange(1, 10)}"
        )
        for place, kind in enumerate(chance.choices(kinds, k=chance.choice((1, 1, 2, 3))))
    ]


def _number(chance: random.Random) -> str:
    return f"{chance.randrange(1, 1000)}.{chance.randrange(1, 10)}"
