"""What is looked for in a script's output: defaults, the card's keys, the context's, and mistakes in either."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.model import Action, Card, FileTemplate, ResultRule, RunSpec
from madlite.model.values import to_json
from madlite.plan.actions import BENIGN, PATTERNS, error_scan_origin, make_error_scan
from madlite.plan.context import Context, read_context, unused_keys
from tests.rows import each_row

SCRIPT = RunSpec(actions=(Action(kind="run", argv=("bash", "run.sh")),))


def card(**extra) -> Card:
    return Card(name="tiny", root=Path("/mad"), source="models.json", extra=extra)


def context(**keys) -> Context:
    return read_context(None, to_json(keys))


def test_patterns_are_the_usual_ones_or_those_that_were_given():
    # a script is scanned with the usual patterns
    scan = make_error_scan(card(), context(), SCRIPT)
    assert scan.patterns == PATTERNS and scan.benign == BENIGN
    assert len(PATTERNS) == 13 and "FAILED" in PATTERNS and "FutureWarning" in BENIGN
    assert error_scan_origin(card(), context()) == ""
    # own patterns replace and harmless text adds
    own = card(log_error_patterns=["OOM"], log_error_benign_patterns=["OOM killer is idle"])
    scan = make_error_scan(own, context(log_error_benign_patterns=["expected"]), SCRIPT)
    assert scan.patterns == ("OOM",) and scan.benign == (*BENIGN, "OOM killer is idle", "expected")
    assert make_error_scan(own, context(log_error_patterns=["Killed"]), SCRIPT).patterns == ("Killed",)
    assert make_error_scan(card(log_error_patterns=[]), context(), SCRIPT).patterns == PATTERNS
    # an empty list of patterns in the context is refused
    with pytest.raises(UsageProblem, match="log_error_patterns"):
        context(log_error_patterns=[])
    # the origin names whoever changed it
    asked = context(log_error_patterns=["Killed"])
    assert error_scan_origin(card(log_error_pattern_scan=True), asked) == "card, --additional-context"
    assert unused_keys(asked) == []


@each_row(
    "draft",
    [
        RunSpec(templates=(FileTemplate(path="run.sh", template="tiny/run.sh.j2"),)),
        RunSpec(actions=SCRIPT.actions, result_rule=ResultRule(kind="steps")),
    ],
)
def test_a_rendered_run_is_not_scanned(draft):
    assert make_error_scan(card(), context(log_error_pattern_scan=True), draft) is None


@each_row("off", [False, "false", "False", 0, "off"])
def test_the_scan_can_be_switched_off(off):
    assert make_error_scan(card(log_error_pattern_scan=off), context(), SCRIPT) is None
    assert make_error_scan(card(), context(log_error_pattern_scan=off), SCRIPT) is None
    assert make_error_scan(card(log_error_pattern_scan=off), context(log_error_pattern_scan="true"), SCRIPT) is not None


@each_row(
    ("key", "value"),
    [
        ("log_error_pattern_scan", "perhaps"),
        ("log_error_pattern_scan", ["false"]),
        ("log_error_benign_patterns", "text"),
        ("log_error_benign_patterns", ["fine", 3]),
        ("log_error_benign_patterns", [""]),
        ("log_error_patterns", {"a": 1}),
        ("log_error_patterns", [None]),
    ],
)
def test_a_mistake_names_who_made_it_and_the_key(key, value):
    with pytest.raises(UsageProblem, match=rf"card 'tiny' \(models.json\).*'{key}") as of_card:
        make_error_scan(card(**{key: value}), context(), SCRIPT)
    assert "is wrong" in of_card.value.message
    with pytest.raises(UsageProblem, match=rf"--additional-context.*'{key}"):
        make_error_scan(card(), context(**{key: value}), SCRIPT)
