"""Of several nodes the one that failed first explains the failure: by what it printed last, however much that was."""

from __future__ import annotations

from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.model import Chunk, Exit
from madlite.run.state import RunState

OTHERS = b"RuntimeError: Connection closed by peer\n"
OWN = b"[rank9]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB\n"


def ran(*chunks: Chunk, codes: tuple[int, ...] = (1, 1), failed: int | None = 1) -> RunState:
    rules = with_common(())
    progress = RunState(LogMonitor((), rules, nodes=2), rules, nodes=2)
    progress.begin("run", 0.0)
    for chunk in chunks:
        progress.feed(chunk)
    progress.monitor.finish()
    progress.end(Exit.of_nodes(codes, failed, 1.0), lambda node: [one.data for one in chunks if one.node == node])
    return progress


def test_the_cause_is_the_failed_node_s_own():
    progress = ran(Chunk(data=OTHERS), Chunk(data=OWN, node=1, stream=2), Chunk(data=OTHERS))
    assert progress.failed_log is not None and "HIP out of memory" in progress.log.best_error_line
    assert "peer" in ran(Chunk(data=OTHERS), Chunk(data=OWN, node=1), failed=0).log.best_error_line


def test_a_node_that_printed_nothing_has_no_log_of_its_own():
    progress = ran(Chunk(data=OTHERS))
    assert progress.failed_log is None and progress.log is progress.monitor
    assert ran(Chunk(data=OTHERS), codes=(0, 0), failed=None).failed_log is None
