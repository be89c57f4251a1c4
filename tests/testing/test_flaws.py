"""The kit says of each broken backend what is wrong with it, and what to do."""

from __future__ import annotations

import os
import re
import time
from base64 import b64encode

import pytest
from msgspec.structs import replace

from madlite import (
    Finding,
    MadMetric,
    PatternReader,
    Quantity,
    ResultRule,
    RunSpec,
    Step,
    UsageProblem,
    Variant,
    step_pattern,
)
from tests.rows import each_row
from tests.testing.good import STEP, Good, broken, check, named, write_files

pytestmark = pytest.mark.host  # whole checks of backends


async def later(self, plan):
    return ()


def fills(self, request, machine):
    request.settings["kit"] = "x"
    return Good.expand(self, request, machine)


def tells_time(self, card, variant, machine):
    return {"name": str(time.perf_counter_ns()), "lr": 0.1}


def breaks(self, request, machine):
    return {}["nothing"]


def refuses(self, request, machine):
    raise UsageProblem("not here", "go away")


def hands_out(self, card, variant, machine):
    return {"name": os.environ.get("HF_TOKEN", ""), "lr": 0.1}


def hands_out_written_otherwise(self, card, variant, machine):
    return {"name": b64encode(f"user:{os.environ.get('HF_TOKEN', '')}".encode()).decode(), "lr": 0.1}


class Sticky(PatternReader):
    """Remembers the steps of every log that was ever read."""

    seen: set[int] = set()

    def feed(self, line):
        steps = tuple(step for step in super().feed(line) if getattr(step, "n", 0) not in self.seen)
        self.seen.update(step.n for step in steps if isinstance(step, Step))
        return steps


def sticky():
    """Return a backend whose readers share what they saw."""
    shared = type("Shared", (Sticky,), {"seen": set()})
    return broken(reader=lambda self, plan: shared(Good.step))


class Third(PatternReader):
    """Counts the readers there were, as a cache of a module does: the third of a process reads nothing."""

    made = 0

    def __init__(self, *given):
        super().__init__(*given)
        Third.made += 1
        self.number = Third.made

    def feed(self, line):
        return super().feed(line) if self.number < 3 else ()


class Raises(PatternReader):
    def feed(self, line):
        if "at=" in line.text:
            int(line.text.split("at=")[1].split(" ")[0])
        return super().feed(line)

    def finish(self, outputs):
        return [path.name for path in outputs.iterdir()] + [(outputs / "result.json").read_text()]


class Bunched(PatternReader):
    """Tells only the first lines of the same moment."""

    def feed(self, line):
        return super().feed(line) if line.t_s < 9 else ()


class OfOneNode(PatternReader):
    def feed(self, line):
        return super().feed(line) if not line.node else ()


class Counting(PatternReader):
    """Numbers steps by the lines there were, whoever wrote them."""

    count = 0

    def feed(self, line):
        self.count += "at=" in line.text
        return [replace(event, n=self.count) for event in super().feed(line) if isinstance(event, Step)]


class Worded(PatternReader):
    def finish(self, outputs):
        return ["done"]


class Long(PatternReader):
    def feed(self, line):
        if len(line.text) > 9000:
            raise ValueError("too long")
        return super().feed(line)


def works(*_):
    while time.thread_time() < 1e6:
        pass
    return ()


class Works(PatternReader):
    feed = finish = works


class Slow(PatternReader):
    BAD = re.compile(r"(\S+\s*)+!$")

    def feed(self, line):
        return () if len(line.text) > 9000 and self.BAD.search(line.text[:200]) else super().feed(line)


class Bare(PatternReader):
    def feed(self, line):
        return [Step(n=event.n, values={"loss": 1.0}) for event in super().feed(line) if isinstance(event, Step)]


class Texts(PatternReader):
    def feed(self, line):
        return [line.text] if "at=" in line.text else []


def reader_of(kind):
    return broken(reader=lambda self, plan: kind(Good.step, "bye"))


ONE = PatternReader(Good.step)
RULE = ResultRule(kind="steps", headline=Quantity.TOKENS_PER_S_PER_GPU)
BROKEN = {
    "members": [
        (broken(check=None), "it has no method check", "def check(self, plan)"),
        (broken(claim=lambda self, card: 0), "claim does not take card, checkout", "def claim(self, card, checkout)"),
        (broken(claim=lambda self, card, checkout: 10), "it answered 10", "that one's"),
        (broken(claim=lambda self, card, checkout: card.extra["x"]), "it raised KeyError", "answer 0"),
        (broken(reader=lambda self, plan: ONE), "the same reader twice", "a fresh one"),
        (broken(reader=lambda self, plan: object()), "it has no method feed", "def feed(self, line)"),
        (broken(check=lambda self, plan: ["bad"]), "it answered 'bad'", "return madlite.Finding"),
        (broken(assets=lambda self, plan: [Finding(message="x")]), "it answered Finding(", "return madlite.Asset"),
        (broken(check=lambda self, plan: plan.settings["x"]), "it raised KeyError: 'x' (", "Finding"),
        (broken(check=later), "check is a coroutine", "not async"),
    ],
    "names": [
        (broken(name="Good!", template="Good!/run.sh.j2"), "its name is 'Good!'", "small letters"),
        (named(batch_size=2), "which stands for micro_batch", ""),
        (named(Rate=2), "--set Rate= would not reach it", ""),
        (named(steps=2), "it hides the steps of the variant", ""),
        (broken(template="run.sh.j2"), "it is not below the folder good", "templates/good/"),
        (
            broken(run_spec=lambda self, request, variant, machine: RunSpec(variant=variant, result_rule=RULE)),
            "nothing to run",
            "run.sh",
        ),
    ],
    "rendering": [
        (broken(expand=breaks), "expand raised KeyError: 'nothing'", "madlite.UsageProblem"),
        (broken(expand=refuses), "refuses it on every machine", "recipe"),
        (broken(expand=lambda self, *_: []), "there is no card to plan for", "name cards that have plans"),
        (broken(template="good/none.j2"), "template 'good/none.j2'", "looked for in"),
        (broken(settings=lambda self, *_: {"name": "x"}), "'dict object' has no attribute 'lr'", "looked for in"),
        (
            broken(settings=lambda self, *_: {"name": "x", "lr": "!"}, files={"a.json": "good/train.toml.j2"}),
            "a.json of",
            "tojson",
        ),
    ],
    "reading": [
        (sticky(), "a second fresh reader returned other events", "in the reader"),
        (reader_of(Third), "gave other events than the whole", "depend on no chunk"),
        (broken(step=step_pattern(STEP.replace("at=", "at=1"))), "training steps were read, 12 are stated", "compare"),
        (reader_of(Texts), "the reader answered 'at=1 ", "Step, Phase"),
        (reader_of(lambda *_: None), "the reader raised AttributeError", "returns ()"),
        (reader_of(Bunched), "the same lines later gave other events", "t_s"),
        (reader_of(OfOneNode), "the same lines of another node gave other events", "line.node"),
        (reader_of(Counting), "two ranks that print the same, line by line, gave 24 steps in place of 12", "line.rank"),
    ],
    "finish": [
        (reader_of(Raises), "it raised FileNotFoundError", "where no file is"),
        (reader_of(Worded), "it answered 'done'", "return events of madlite"),
    ],
    "fuzz": [
        (reader_of(Long), "the reader raised ValueError: too long", "answer ()"),
        (reader_of(Raises), "the reader raised ValueError: invalid literal", "answer ()"),
        (reader_of(Bare), "the reader answered Step(", "madlite.Quantity"),
        (reader_of(Slow), "takes over 0.2 s", "bound them"),
    ],
    "detection": [
        (broken(detect=lambda self, head: 2), "it answered 2", "from 0.0 to 1.0"),
        (broken(detect=lambda self, head: float("nan")), "it answered nan", "from 0.0 to 1.0"),
        (broken(detect=lambda self, head: len(head[0])), "it raised IndexError", "answer 0.0"),
        (broken(detect=lambda self, head: 0.2), "which is no log: it answered 0.2", "0.0 nothing"),
        (broken(detect=lambda self, head: 1.0 * any("step" in text for text in head)), "its owner 0.9", "alone"),
    ],
    "results": [
        (broken(mad_metrics=(MadMetric(metric="a", quantity=Quantity.MFU_PERCENT),)), "has % MFU", "drop it"),
        (
            broken(result_rule=lambda self: ResultRule(kind="steps", headline=Quantity.STEP_TIME_S)),
            "no step of the logs has s/step",
            "",
        ),
        (
            broken(
                step=step_pattern(STEP.replace("(?P<loss>", "(?:")),
                result_rule=lambda self: ResultRule(
                    kind="steps", headline=Quantity.TOKENS_PER_S_PER_GPU, loss_expected=True
                ),
            ),
            "metric loss: no step of the logs has loss",
            "drop it from the ResultRule",
        ),
    ],
    "docs": [
        (named(width=4), "good.md does not name it", "write `width`"),
        (
            broken(variants=lambda self, *_: [Variant(model="m", mode="tune", steps=9)]),
            "good.md does not name it",
            "`tune`",
        ),
    ],
    "purity": [
        (broken(expand=fills), "it changes what it was given", "change a copy"),
        (broken(settings=tells_time), "the same question had two answers", "no clock"),
    ],
    "secrets": [
        (broken(settings=hands_out), "it holds the value of $HF_TOKEN", "leave it in the environment"),
        (broken(settings=hands_out_written_otherwise), "it holds the value of $HF_TOKEN", "leave it"),
        (
            broken(check=lambda self, plan: [Finding(message=os.environ.get("HF_TOKEN", ""))]),
            "findings and assets",
            "leave",
        ),
    ],
}
ROWS = [(name, *row) for name, rows in BROKEN.items() for row in rows]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # the flaw of one of them
@pytest.mark.timeout(900)
@each_row(("name", "backend", "what", "hint"), ROWS, ids=[f"{name}: {what}" for name, _, what, _ in ROWS])
def test_what_is_wrong_is_said_with_what_to_do(tmp_path, monkeypatch, name, backend, what, hint):
    place = write_files(tmp_path)
    monkeypatch.setenv("KIT_LEFT_THIS", "")
    monkeypatch.chdir(place)
    Third.made = 0
    monkeypatch.setattr("madlite.testing.reading.LINE_LIMIT_S", 0.2)
    flaws = check(backend, place, name, most=None if "every machine" in what else 3)
    assert any(what in str(flaw) and hint in flaw.hint for flaw in flaws), list(map(str, flaws))
    assert {flaw.check for flaw in flaws} == {name}
    assert all("\n" not in str(flaw) for flaw in flaws)


@each_row(
    ("name", "backend", "hint"),
    [
        ("rendering", broken(expand=works), "only computes"),
        ("members", broken(check=works), "Finding"),
        ("purity", broken(assets=works), "mend this first"),
        ("finish", reader_of(Works), "return nothing"),
        ("reading", reader_of(Works), "returns ()"),
        ("fuzz", reader_of(Works), "bound them"),
    ],
)
def test_what_works_for_ever_is_ended(tmp_path, monkeypatch, name, backend, hint):
    place = write_files(tmp_path)
    for module, limit in (("flaws", "CALL_LIMIT_S"), ("subject", "LOG_LIMIT_S"), ("reading", "LINE_LIMIT_S")):
        monkeypatch.setattr(f"madlite.testing.{module}.{limit}", 0.01)
    flaws = check(backend, place, name)
    assert any("too long" in flaw.what or "takes over" in flaw.what for flaw in flaws), list(map(str, flaws))
    assert any(hint in flaw.hint for flaw in flaws), list(map(str, flaws))
