"""The table of checks and the functions that find the values."""

from __future__ import annotations

from pathlib import Path

from madlite.doctor import check
from madlite.doctor.check import Answer, Check, Target, applicable, judge, table
from madlite.doctor.examine import FUNCTIONS


def test_each_entry_has_a_function_a_full_source_and_a_fix_for_what_can_fail() -> None:
    assert {entry.name for entry in table().check} == set(FUNCTIONS)
    used = {name for entry in table().check for name in entry.source}
    assert used == set(table().sources)
    # every fix is for a value with a source and every failure too
    wrong = [entry.name for entry in table().check if (entry.fix or entry.needed_for) and not entry.source]
    assert wrong == []


def entry(**facts: object) -> Check:
    return Check(**{"name": "system", "group": "kernel", "where": "/x", "right": "0", **facts})  # type: ignore[arg-type]


def test_a_right_value_is_of_its_gpu_and_has_a_source() -> None:
    # a right value without a source is none
    assert judge(entry(), Target(), Answer("1", False), "publish").state == "unknown"
    assert judge(entry(source=("smoke",)), Target(), Answer("1", False), "publish").state == "differs"
    # a right value of another gpu is none
    of_gpu = entry(right_on={"MI300X": "1"}, source=("smoke",))
    states = [
        judge(of_gpu, Target(device=device), Answer("2", False), "compare").state for device in ("MI300X", "MI210")
    ]
    assert states == ["differs", "unknown"]


def test_a_difference_fails_from_the_purpose_on_that_needs_it() -> None:
    needs = {"": [False] * 3, "publish": [False, False, True], "compare": [False, True, True], "develop": [True] * 3}
    for needed_for, expected in needs.items():
        own = entry(needed_for=needed_for, source=("smoke",))
        fails = [judge(own, Target(), Answer("1", False), purpose).fails for purpose in check.PURPOSES]
        assert fails == expected
    # of checks of one name the first that applies counts
    for device, needed_for in (("MI300A", "compare"), ("MI300X", "")):
        found = [
            item for item in applicable(Target(vendor="AMD", device=device)) if item.name == "transparent_hugepages"
        ]
        assert [item.needed_for for item in found] == [needed_for]
    assert not [item for item in applicable(Target()) if item.name == "transparent_hugepages"]


PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def rows() -> list[str]:
    """The checks as rows of docs/doctor.md."""
    lines = []
    for item in table().check:
        gpus = "/".join(item.devices) or "/".join(item.vendors) or "any"
        values = {text: [name for name, own in item.right_on.items() if own == text] for text in item.right_on.values()}
        by_gpu = ", ".join(f"{text} ({'/'.join(names)})" for text, names in values.items())
        cells = (
            *(
                f"`{item.name}`",
                gpus,
                f"`{item.where}`",
                item.right or by_gpu or ("by the machine" if item.source else "–"),
            ),
            *(item.needed_for or "advice" if item.source else "–", ", ".join(item.source) or "none"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def test_the_page_lists_the_checks_and_the_sources() -> None:
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition("## Checks")[2].partition("\n## ")[0]
    assert [line for line in part.splitlines() if line.startswith("| `")] == rows()
    part = text.partition("## Sources")[2].partition("\n## ")[0]
    sources = [f"| {name} | {full} |" for name, full in table().sources.items()]
    assert [line for line in part.splitlines() if line.startswith("| ")][1:] == sources
