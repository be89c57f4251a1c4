"""What a run on several nodes comes to: which node's exit code is the run's."""

from __future__ import annotations

from madlite.model import Exit
from tests.rows import each_row


@each_row(
    ("codes", "first", "code", "failed"),
    [
        ((0, 0), None, 0, None),
        ((0, None), None, 0, None),  # a node without an end is no failure
        ((0, 3), None, 3, 1),
        ((1, 3), 1, 3, 1),  # the first in time, which takes the others with it
        ((-9, 3), None, -9, 0),
        ((0, 3), 0, 3, 1),  # a node that did not fail cannot be the first that did
    ],
)
def test_the_first_node_that_failed_gives_the_runs_exit_code(codes, first, code, failed):
    ended = Exit.of_nodes(codes, first, 1.5)
    assert (ended.code, ended.failed_node, ended.codes, ended.duration_s) == (code, failed, codes, 1.5)
