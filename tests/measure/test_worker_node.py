"""A node of several on which a framework prints nothing: it is no failure, and says where the result is."""

from __future__ import annotations

from msgspec.structs import replace

from madlite.measure.failure_scan import FailureScan
from madlite.measure.lines import make_block
from madlite.measure.verdict import Observation, judge
from madlite.model import Cause, Exit, ResultRule, Status, Variant
from tests.measure.checks.runs import plan_of
from tests.measure.test_diagnosis import follow
from tests.rows import each_row

FRAMES = ['  File "/v/torch/distributed/elastic/agent/server/api.py", line 938, in _exit_barrier', "    barrier("]
ELAPSED = "Error waiting on exit barrier. Elapsed: 300.1 seconds"
GLOG = "E0305 09:10:11.123000 77 torch/distributed/elastic/agent/server/api.py:950] "
BARRIERS = {
    "each line with the logger's words": [
        f"{GLOG}{line}"
        for line in (
            ELAPSED,
            "Traceback (most recent call last):",
            *FRAMES,
            "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /torch.rendezvous.x/last_member",
        )
    ],
    "the first line alone": [
        f"ERROR:torch.distributed.elastic.agent.server.api:{ELAPSED}",
        "Traceback (most recent call last):",
        *FRAMES,
        "RuntimeError: Socket Timeout",
    ],
    "a cause before it": [
        f"{GLOG}{ELAPSED}",
        "Traceback (most recent call last):",
        *FRAMES,
        "torch.distributed.DistNetworkError: Connection reset by peer",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        *FRAMES,
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the store has failed.",
    ],
    "another while it was handled": [
        f"[node1] {GLOG}{ELAPSED}",
        "[node1] " + GLOG + "Traceback (most recent call last):",
        *("[node1] " + GLOG + line for line in FRAMES),
        "[node1] " + GLOG + "RuntimeError: Broken pipe",
        "[node1] " + GLOG,
        "[node1] " + GLOG + "During handling of the above exception, another exception occurred:",
        "[node1] " + GLOG,
        "[node1] " + GLOG + "Traceback (most recent call last):",
        *("[node1] " + GLOG + line for line in FRAMES),
        "[node1] " + GLOG + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
    "a warning of the store": [
        "[W305 09:10:11.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4): Connection reset by peer",
        "W0305 09:10:11.123000 77 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1347] The node 'n1_77_0' "
        "has failed to shutdown the rendezvous 'x' due to an error of type RendezvousConnectionError.",
    ],
}
RULE = ResultRule(kind="steps", loss_expected=False, printed_on="first")


def plan(nodes: int = 2, node: str = "1", printed_on: str = "first", **changes: object):
    rule = replace(RULE, printed_on=printed_on, **changes)
    return plan_of("torchtitan", Variant(model="m"), nodes=nodes, result_rule=rule, settings={"node_rank": node})


def verdict(made, *lines: str, code: int = 0):
    return judge(made, Observation(exit=Exit(code=code, duration_s=9.0)), follow("begin", *lines))


@each_row("barrier", BARRIERS.values(), ids=BARRIERS)
def test_a_node_that_prints_no_result_says_where_it_is(barrier):
    found = verdict(plan(), *barrier)
    assert (found.status, found.cause, found.metrics) == (Status.SKIPPED, Cause.NONE, ())
    assert "on node 0" in found.reason and found.suspect == ()
    found = verdict(plan(4, "0", "last"), *barrier)
    assert found.status is Status.SKIPPED and "on node 3" in found.reason


@each_row("barrier", BARRIERS.values(), ids=BARRIERS)
def test_the_exit_barrier_is_no_failure_and_no_cause(barrier):
    scan = FailureScan(())
    scan.feed(make_block(barrier), None)
    scan.finish()
    assert (scan.fatal_line, scan.launcher_line) == ("", "")
    clue = follow("begin", *barrier).failures.candidate
    assert clue is None or clue.cause != "network" or "[W" in clue.line or clue.line.startswith("W0305")


@each_row("barrier", BARRIERS.values(), ids=BARRIERS)
def test_an_exception_after_the_barrier_is_one(barrier):
    raised = ["Traceback (most recent call last):", '  File "/w/t.py", line 1, in f', "    f()", "KeyError: 'x'"]
    found = follow(*barrier, "a line", "b line", "c line", *raised).failures.candidate
    assert found is not None and (found.cause, found.line) == ("python_error", "KeyError: 'x'")


@each_row(
    ("made", "lines", "code"),
    [
        (plan(node="0"), (), 0),  # where the result should be
        (plan(printed_on="each"), (), 0),
        (plan(nodes=1), (), 0),
        (plan(node=""), (), 0),  # nobody says which node this is
        (plan(), (), 1),
        (plan(), ("run.sh: line 9:   77 Killed   python train.py",), 0),
        (plan(), ("Traceback (most recent call last):", '  File "t.py", line 1', "KeyError: 'x'"), 0),
        (plan(), ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",), 0),
        (plan(node="1", printed_on="last"), (), 0),
    ],
)
def test_a_node_that_failed_or_that_was_to_print_the_result_is_a_failure(made, lines, code):
    assert verdict(made, *lines, code=code).status is Status.FAILURE
