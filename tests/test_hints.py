"""A hint of several parts reads as sentences, on a line of its own and within brackets."""

from __future__ import annotations

import re
from pathlib import Path

from madlite.cli.main import call
from madlite.errors import inline_hint, one_hint
from tests.rows import each_row

ROOT = Path(__file__).parents[1]


@each_row(
    ("parts", "whole", "within"),
    [
        ((), "", ""),
        (("", ""), "", ""),
        (("leave it out",), "leave it out", "leave it out"),
        (("leave it out", "", "it reads x"), "leave it out; it reads x", "leave it out; it reads x"),
        (("a", "b", "c"), "a; b; c", "a; b; c"),
        (("is it a?", "madlite b"), "is it a?   madlite b", "is it a? madlite b"),
        (("ls .", "madlite b"), "ls .; madlite b", "ls .; madlite b"),
        (("ls ..", "madlite b"), "ls ..; madlite b", "ls ..; madlite b"),
        (("known: a; b.", "is it c?"), "known: a; b. is it c?", "known: a; b. is it c?"),
    ],
)
def test_parts_of_a_hint(parts, whole, within):
    assert one_hint(*parts) == whole and inline_hint(whole) == within


@each_row(
    "asked", [["--set", "global_batch=3"], ["--precision", "BF17"], ["--precision", "FP8"], ["--set", "declared=modle"]]
)
@each_row("command", [["run", "--dry-run", "--tags"], ["explain"]])
def test_what_would_be_refused_is_told_in_sentences(command, asked, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    call([*command, "torchrun_ddp_tiny", *asked])
    out, err = capsys.readouterr()
    told = [line for line in f"{out}\n{err}".splitlines() if re.search(r"would be refused|^error: | hint: ", line)]
    assert told and not any("   " in line.strip() for line in told if "did you mean" not in line)
    assert not any("   " in line.strip() for line in told if "would be refused" in line)


def test_hints_are_joined_in_one_place():
    sources = [path for folder in ("madlite", "plugins") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    assert [path for path in sources if '"   ".join' in path.read_text(encoding="utf-8")] == []
