"""The same benchmark on every node: its table, and which nodes are named."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from madlite.model import Cause, Metric, Result, Status, Study
from madlite.plan.submission import PlannedRun
from madlite.study.each_node import EACH_NODE, FEWEST, NODE, nodes_lines, plan_nodes, summarise_nodes
from madlite.study.summary import Sample
from tests.factories import make_plan


def samples(numbers: Mapping[str, Sequence[float | None]], *, card: str = "a", lower: bool = False) -> list[Sample]:
    """Return the runs of nodes with their numbers; None of one that failed."""
    found = []
    for series, (node, values) in enumerate(numbers.items(), 1):
        for index, value in enumerate(values, 1):
            study = Study(id="s", kind=EACH_NODE, varied={NODE: node}, series=series, index=index, count=len(values))
            result = Result(plan_id=f"{node}-{index}", status=Status.FAILURE, cause=Cause.NODE)
            if value is not None:
                metric = Metric(
                    metric="speed", text=str(value), status=Status.SUCCESS, label="tok/s", value=value,
                    lower_is_better=lower,
                )  # fmt: skip
                result = Result(plan_id=f"{node}-{index}", status=Status.SUCCESS, metrics=(metric,))
            found.append(Sample(study=study, run=result.plan_id, card=card, variant=None, image="", result=result))
    return found


def test_the_table_has_the_best_node_first_and_names_the_slow_one() -> None:
    found = summarise_nodes("s", samples({"n1": [99.0], "n2": [70.0], "n3": [101.0], "n4": [100.0]}))
    assert [*nodes_lines(found)] == [
        "each-node s",
        "  a · (tok/s)",
        "    node  number  of the median  runs",
        "    n3       101        101.5 %  1 of 1 run",
        "    n4       100        100.5 %  1 of 1 run",
        "    n1        99         99.5 %  1 of 1 run",
        "    n2        70         70.4 %  1 of 1 run  <- 70 tok/s, 30 % below the median of the other nodes', 100",
        "  to leave out: --exclude n2",
    ]


def test_of_a_time_the_slow_node_is_the_one_with_the_largest_number() -> None:
    found = summarise_nodes(
        "s", samples({"n1": [1.0], "n2": [1.5], "n3": [0.5], "n4": [1.02], "n5": [1.01]}, lower=True)
    )
    assert [series.varied[NODE] for series in found.series] == ["n3", "n1", "n5", "n4", "n2"]
    assert list(found.leave_out) == ["n2"], "a fast node is none to leave out"


def test_fewer_nodes_than_a_statement_needs_name_none() -> None:
    of_three = summarise_nodes("s", samples({"n1": [100.0], "n2": [100.0], "n3": [20.0]}))
    assert not of_three.leave_out
    assert [*nodes_lines(of_three)][-1] == f"    3 nodes: none is named as slow of fewer than {FEWEST}"


def test_a_second_slow_node_hides_none() -> None:
    found = summarise_nodes("s", samples({"n1": [100.0], "n2": [60.0], "n3": [101.0], "n4": [99.0], "n5": [61.0]}))
    assert sorted(found.leave_out) == ["n2", "n5"]


def test_nodes_that_scatter_as_all_do_are_not_named() -> None:
    chance, named = random.Random(7), 0
    for _ in range(2000):
        numbers = {f"n{number}": [chance.gauss(100.0, 4.0)] for number in range(FEWEST)}
        named += bool(summarise_nodes("s", samples(numbers)).leave_out)
    assert named < 0.06 * 2000, "of four nodes that scatter by 4 % one is named once in twenty studies"


def test_a_node_whose_runs_all_failed_is_left_out_where_most_nodes_succeeded() -> None:
    numbers = {"n1": [100.0, 100.0], "n2": [None, None], "n3": [101.0, None], "n4": [99.0, 99.5]}
    assert summarise_nodes("s", samples(numbers)).leave_out == {"n2": "failed: node_failed"}
    few = {"n1": [100.0], "n2": [None], "n3": [None], "n4": [99.0]}
    assert not summarise_nodes("s", samples(few)).leave_out, "as likely the benchmark's fault"


def test_cards_have_tables_of_their_own_and_one_list_of_nodes() -> None:
    ordinary = {"n1": [10.0], "n2": [10.1], "n3": [10.2], "n4": [10.0]}
    both = [*samples(ordinary), *samples({**ordinary, "n3": [5.0]}, card="b")]
    numbered = [
        Sample(
            study=Study(id="s", kind=EACH_NODE, varied=sample.study.varied, series=at, index=1, count=1),
            run=sample.run, card=sample.card, variant=None, image="", result=sample.result,
        )
        for at, sample in enumerate(both, 1)
    ]  # fmt: skip
    found = summarise_nodes("s", numbered)
    assert list(found.leave_out) == ["n3"]
    assert [series.card for series in found.series] == ["a"] * 4 + ["b"] * 4


def test_each_run_is_planned_for_every_node(tmp_path) -> None:
    run = PlannedRun(plan=make_plan(tmp_path), backends=(), files=(), runtime=None)
    planned = plan_nodes([run, run], ["n1", "n2"])
    assert [(each.plan.study.varied, each.plan.study.series) for each in planned] == [
        ({NODE: "n1"}, 1), ({NODE: "n2"}, 2), ({NODE: "n1"}, 3), ({NODE: "n2"}, 4),
    ]  # fmt: skip
    assert len({each.plan.id for each in planned}) == 4
