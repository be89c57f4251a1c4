"""The table of checks and the functions that find the values."""

from __future__ import annotations

from pathlib import Path

from madlite.doctor import check
from madlite.doctor.check import Answer, Check, Target, applicable, judge, table
from madlite.doctor.examine import FUNCTIONS


def test_each_entry_has_a_function_and_each_function_an_entry() -> None:
    assert {entry.name for entry in table().check} == set(FUNCTIONS)


def test_each_source_is_named_in_full() -> None:
    used = {name for entry in table().check for name in entry.source}
    assert used == set(table().sources)


def test_every_fix_is_for_a_value_with_a_source_and_every_failure_too() -> None:
    wrong = [entry.name for entry in table().check if (entry.fix or entry.needed_for) and not entry.source]
    assert wrong == []


def entry(**facts: object) -> Check:
    return Check(**{"name": "system", "group": "kernel", "where": "/x", "right": "0", **facts})  # type: ignore[arg-type]


def test_a_right_value_without_a_source_is_none() -> None:
    assert judge(entry(), Target(), Answer("1", False), "publish").state == "unknown"
    assert judge(entry(source=("smoke",)), Target(), Answer("1", False), "publish").state == "differs"


def test_a_right_value_of_another_gpu_is_none() -> None:
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


def test_of_checks_of_one_name_the_first_that_applies_counts() -> None:
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
