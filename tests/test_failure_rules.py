"""Failure rules as data: what is in the files can be used, and a bad one is told with file and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from madlite import PluginError, read_failure_rules
from madlite.backends.loader import load_plugins
from madlite.backends.log_formats import explained, flaw_of
from madlite.measure.rules import COMMON, ignores_case, needed_texts
from madlite.model import Cause, FailureRule
from tests.rows import each_row

ROOT = Path(__file__).parents[1]
FILES = [COMMON, *sorted((ROOT / "plugins/madlite_plugins").glob("*/failures.toml"))]
RULES = [(path.parent.name, rule) for path in FILES for rule in read_failure_rules(path)]
PAGE = (ROOT / "docs/failures.md").read_text()


def test_every_file_is_read_and_every_plugin_brings_its_own():
    assert len(FILES) == 10
    brought = load_plugins(only_built_in=True).failure_rules()
    assert sorted(rule.pattern for rule in brought) == sorted(rule.pattern for name, rule in RULES if name != "measure")
    assert all(rule.source == f"{name}/failures.toml" for name, rule in RULES)


@each_row(("name", "rule"), RULES, ids=lambda one: one if isinstance(one, str) else one.pattern[:30])
def test_a_rule_of_ours(name, rule):
    pattern = re.compile(rule.pattern)
    assert flaw_of(rule) == "" and pattern.search(rule.example)
    assert rule.cause in {cause.value for cause in Cause}
    assert needed_texts(pattern) and not ignores_case(pattern), "a search for it in every line would be slow"
    if not rule.example.startswith("madlite: "):
        assert not re.search(r"--set|--image|--precision|madlite|MAD_SECRETS|--seq-len", rule.hint), (
            "belongs into `here`"
        )
    if name == "measure":
        assert (
            rule.hint
            or rule.tier == "sign"
            or rule.cause in ("gpu_out_of_memory", "host_out_of_memory", "disk_full", "inodes_full")
        )


def test_the_page_names_every_cause():
    for cause in Cause:
        assert cause is Cause.NONE or f"| `{cause.value}` |" in PAGE, cause


def test_the_first_rule_of_a_file_that_matches_its_examples_is_of_their_cause():
    rules = read_failure_rules(COMMON)
    for rule in rules:
        roots = [one for one in rules if one.tier == rule.tier and re.search(one.pattern, rule.example)]
        assert roots[0].cause == rule.cause, rule.example


@each_row(
    ("text", "said"),
    [
        ("[[rule]]\ncause = 'x'\npattern = 'a('", "rule 1: key 'pattern': 'a(' is no regular expression"),
        ("[[rule]]\ncause = 'x'\npattern = 'a'\n[[rule]]\ncause = 'x'\npattern = 'a*'", "rule 2: key 'pattern'"),
        ("[[rule]]\npattern = 'a'", "cause"),
        ("[[rule]]\npattern = 'a'\ncause = ''", "rule 1: key 'cause' is empty"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\nhnt = 'y'", "unknown field `hnt`"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\ntier = 'top'", "$.rule[0].tier"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\nhint = '{b}'", "key 'hint': the pattern has no group 'b'"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\nhere = 'say {b}'", "key 'here'"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\nexample = 'b'", "key 'example': 'b' is not matched"),
        ("[[rule]]\npattern = 7\ncause = 'x'", "$.rule[0].pattern"),
        ("rule = 7", "$.rule"),
        ("backends = 'x'", "$.backends"),
        ("backends = ['x', 7]", "$.backends[1]"),
        ("[[rule]]\npattern = 'a'\ncause = 'x'\nbackends = 'y'", "$.rule[0].backends"),
        ("rule = [7]", "$.rule[0]"),
        ("[rules]\n", "unknown field `rules`"),
        ("[[rule", "failure rules "),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_key(tmp_path, text, said):
    path = tmp_path / "failures.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PluginError) as caught:
        read_failure_rules(path)
    assert str(path) in caught.value.message and said in caught.value.message


def test_a_rule_is_for_the_backends_of_its_file_unless_it_names_its_own(tmp_path):
    path = tmp_path / "own.toml"
    rule = "[[rule]]\npattern = 'x'\ncause = 'y'\n"
    path.write_text(f"backends = ['a', 'b']\n{rule}{rule}backends = ['b']\n")
    assert [rule.backends for rule in read_failure_rules(path)] == [("a", "b"), ("b",)]


@each_row("name", sorted({name for name, _ in RULES} - {"measure"}))
def test_built_in_rules_are_for_their_own_backend_and_those_that_train_with_it(name):
    known = load_plugins(only_built_in=True).backends()
    for rule in (rule for owner, rule in RULES if owner == name):
        assert name in rule.backends and set(rule.backends) <= set(known)
        assert (
            set(rule.backends) <= {name, "primus"}
            if name in ("torchtitan", "megatron_lm")
            else rule.backends == (name,)
        )
    assert all(not rule.backends for owner, rule in RULES if owner == "measure")


def test_a_rule_keeps_its_source_and_fields(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        "[[rule]]\npattern = 'x(?P<n>1)'\ncause = 'mine'\nhint = '{n} {m}'\nsource = 'me'\n".replace(" {m}", "")
    )
    assert read_failure_rules(path) == (FailureRule(pattern="x(?P<n>1)", cause="mine", hint="{n}", source="me"),)
    assert explained("{n} of {other} {}", {"n": "1"}) == "1 of {other} {}"


def test_a_hint_and_what_madlite_has_for_it_give_no_advice_twice():
    four_words = re.compile(r"(?=\b(\w+ \w+ \w+ \w+)\b)")
    twice = [
        rule.hint
        for _, rule in RULES
        if {*four_words.findall(rule.hint.replace("fetch ", "fetches "))} & {*four_words.findall(rule.here)}
    ]
    assert twice == []
