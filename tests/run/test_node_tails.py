"""Of several nodes the one that failed first explains the failure: by what it printed last, however much that was."""

from __future__ import annotations

from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.model import Chunk, Exit
from madlite.run import state
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
    progress.end(Exit.of_nodes(codes, failed, 1.0))
    return progress


def test_the_cause_is_the_failed_node_s_own():
    progress = ran(Chunk(data=OTHERS), Chunk(data=OWN, node=1, stream=2), Chunk(data=OTHERS))
    assert progress.failed_log is not None and "HIP out of memory" in progress.log.best_error_line
    assert "peer" in ran(Chunk(data=OTHERS), Chunk(data=OWN, node=1), failed=0).log.best_error_line


def test_a_node_that_printed_nothing_has_no_log_of_its_own():
    progress = ran(Chunk(data=OTHERS))
    assert progress.failed_log is None and progress.log is progress.monitor
    assert ran(Chunk(data=OTHERS), codes=(0, 0), failed=None).failed_log is None


def test_what_is_kept_of_a_node_is_bounded_and_begins_with_a_line(monkeypatch):
    monkeypatch.setattr(state, "_KEPT_OF_NODES_BYTES", 2000)
    early = [
        Chunk(data=b"ValueError: long ago\n" + b"x" * 80 + b" of step\n", node=1, stream=n % 2 + 1) for n in range(500)
    ]
    progress = ran(*early, Chunk(data=b"half a line that ", node=1), Chunk(data=b"ends\n" + OWN, node=1))
    kept = progress.failed_log
    assert kept is not None and "HIP out of memory" in kept.best_error_line
    assert 0 < kept.lines < 30
