"""The comparison of the documents' commands sees what differs, and takes no more than it was told."""

from __future__ import annotations

from tests.documents.compare import differences, unexpected
from tests.documents.stubs import Call
from tests.documents.table import Command, Document, Row, steps
from tests.rows import each_row

SAID = steps("""
cd /workspace/x
export A=1
pip install -r requirements.txt
B=2 bash examples/train.sh --lr 3 --fast |& tee a.log
""")
PIP = Call(words=("pip", "install", "-r", "requirements.txt"), env={"A": "1"})
TRAIN = Call(words=("bash", "examples/train.sh", "--lr", "3", "--fast"), env={"A": "1", "B": "2"})


def changed(words: str = "bash examples/train.sh --lr 3 --fast", **env: str) -> list[Call]:
    return [PIP, Call(words=tuple(words.split()), env={**TRAIN.env, **env})]


def test_the_same_commands_do_not_differ():
    assert differences(SAID, [PIP, TRAIN]) == []
    assert differences(steps("bash run.sh --lr=3"), [Call(words=("bash", "run.sh", "--lr", "3"), env={})]) == []


@each_row(
    ("calls", "found"),
    [
        ([TRAIN], ["not run: pip install -r requirements.txt"]),
        ([PIP, PIP, TRAIN], ["also run: pip install -r requirements.txt"]),
        (changed("bash examples/train.sh --lr 4 --fast"), ["--lr 3 -> 4"]),
        (changed("bash examples/train.sh --lr 3"), ["- --fast"]),
        (changed("bash examples/train.sh --lr 3 --fast --more x"), ["+ --more x"]),
        (changed("bash examples/train.sh word --lr 3 --fast"), ["+ word"]),
        (changed("bash other/train.sh --lr 3 --fast"), ["examples/train.sh -> other/train.sh"]),
        (changed(C="3"), ["+ C=3"]),
        (changed(A="2"), ["A=1 -> 2"]),
        ([PIP, Call(words=TRAIN.words, env={"A": "1"})], ["- B=2"]),
    ],
)
def test_each_change_is_one_difference(calls, found):
    assert differences(SAID, calls) == found


def test_a_difference_without_a_name_and_a_name_without_a_difference_are_both_wrong():
    assert unexpected(["+ A=1", "+ B=2"], ["+ A=*", "+ C"]) == ["unnamed: + B=2", "named, and not there: + C"]
    assert unexpected(["+ A=1"], ["+ A=*"]) == []


def test_a_gpu_that_the_document_is_not_about_is_refused():
    document = Document(document="d", image="i", devices=("MI300X",), elsewhere="no recipe")
    row = Row(document, Command(section="s", text="bash x.sh", madlite="x"), "MI355X")
    assert row.refused == "no recipe" and Row(document, row.command, "MI300X").refused == ""
