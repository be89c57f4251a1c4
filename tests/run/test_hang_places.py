"""Where the ranks of a run that hangs stand, and which of them is named first."""

from __future__ import annotations

from msgspec.structs import replace

from madlite.run.hang import ProcessInfo, RankPlaces, locate_ranks
from tests.rows import each_row

TEXT = """Process {pid}: {command}
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (active+gil): "MainThread"
{frames}
Thread 99 (idle): "QueueFeeder"
    wait (threading.py:355)
"""
REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:{line})"
STEP = ("train_step (train.py:40)", "main (train.py:90)", "<module> (train.py:99)")
LOADS = ("next_batch (data.py:12)", "main (train.py:88)", "<module> (train.py:99)")
AGENT = "/usr/bin/python3 /usr/local/bin/torchrun --nproc_per_node 8 train.py"


def dumped(
    pid: int, rank: str, *frames: str, parent: int = 1, local: str = "", command: str = "python3 -u train.py"
) -> ProcessInfo:
    text = TEXT.format(pid=pid, command=command, frames="\n".join(f"    {frame}" for frame in frames))
    return ProcessInfo(pid=pid, rank=rank, text=text, parent=parent, local_rank=local, command=command)


def ranks(*stacks: tuple[str, ...]) -> list[ProcessInfo]:
    return [dumped(10 + n, str(n), *frames) for n, frames in enumerate(stacks)]


def test_two_ranks_in_different_lines_of_one_module_share_no_place():
    found = locate_ranks(
        ranks(
            ("synchronize (torch/cuda/__init__.py:1162)", "<module> (hang.py:5)"),
            ("stuck_in_my_loader (hang.py:10)", "<module> (hang.py:11)"),
        )
    )
    assert found == RankPlaces(
        text="rank 1 in stuck_in_my_loader (hang.py:10); rank 0 in synchronize (torch/cuda/__init__.py:1162)",
        outliers="rank 1",
    )


@each_row(("nodes", "found"), [((0, 0, 1, 1), 1), ((0, 0, 0, 0), None)])
def test_the_node_of_the_ranks_that_stand_apart_is_known_where_there_are_several(nodes, found):
    stacks = [(REDUCE.format(line=2806), *STEP)] * 3 + [LOADS]
    dumps = [replace(one, node=node) for one, node in zip(ranks(*stacks), nodes, strict=True)]
    places = locate_ranks(dumps)
    assert (places.outliers, places.node) == ("rank 3", found)


F, G, INNER = ("f (a.py:1)",), ("g (a.py:2)",), ("<module> (hang.py:5)",)
WAITS, BACKWARD = (REDUCE.format(line=2806), *STEP), ("_engine_run_backward (torch/autograd/graph.py:829)",)
IN_REDUCE = "in all_reduce (torch/distributed/distributed_c10d.py:2806)"


@each_row(
    ("stacks", "text", "outliers"),
    [
        ([*[WAITS] * 3, LOADS, *[WAITS] * 4], f"rank 3 in next_batch (data.py:12); 7 of 8 ranks {IN_REDUCE}", "rank 3"),
        ([("g (x.py:1)", "f (t.py:4)")] * 3 + [("g (x.py:1)", "f (t.py:5)")] * 3, "6 of 6 ranks in g (x.py:1)", None),
        ([("g (x.py:1)",)] * 4 + [("g (x.py:2)",)] * 2, "ranks 4, 5 in g (x.py:2); 4 of 6 ranks in g (x.py:1)", None),
        ([STEP, STEP], "2 of 2 ranks in train_step (train.py:40)", ""),
        ([INNER, INNER], "2 of 2 ranks in <module> (hang.py:5)", ""),  # the line is theirs
        ([F, G], "rank 0 in f (a.py:1); rank 1 in g (a.py:2)", ""),  # as many each: nobody is the odd one
        ([BACKWARD, F, BACKWARD, F], None, "ranks 1, 3"),  # unless the others wait
        ([("barrier (comm.py:3)",), F], None, "rank 1"),
        (
            [(f"f{n} (a.py:1)", *STEP) for n in range(10)],
            "".join(f"rank {n} in f{n} (a.py:1); " for n in range(4)) + "6 more ranks elsewhere",
            "",
        ),
    ],
)
def test_the_ranks_that_stand_apart_are_told_first(stacks, text, outliers):
    places = locate_ranks(ranks(*stacks))
    assert text in (None, places.text) and outliers in (None, places.outliers)


def test_a_wait_of_the_standard_library_is_told_with_who_waits_there():
    queue = ("wait (threading.py:359)", "get (/usr/lib/python3.12/queue.py:171)", "next_batch (data.py:12)", *STEP)
    found = locate_ranks(ranks(queue, STEP, STEP))
    assert found.text.startswith(
        "rank 0 in wait (threading.py:359) < get (/usr/lib/python3.12/queue.py:171) < next_batch (data.py:12); "
        "ranks 1, 2 in"
    )


def test_one_ranks_innermost_calls_are_told():
    assert locate_ranks([dumped(5, "0", "get (queue.py:171)", *STEP)]) == RankPlaces(
        text="rank 0 in get (queue.py:171) < train_step (train.py:40) < main (train.py:90)", outliers="rank 0"
    )
    alone = [dumped(4, "", "wait (popen.py:1)", command=AGENT), dumped(5, "", *STEP), dumped(6, "", "other (x.py:1)")]
    assert locate_ranks(alone) == RankPlaces(
        text="in train_step (train.py:40) < main (train.py:90) < <module> (train.py:99)", outliers="it"
    )


@each_row(
    "agent",
    [
        dumped(4, "", "wait (popen.py:1)"),
        dumped(4, "0", "wait (popen.py:1)", command=AGENT),
        dumped(4, "0", "wait (popen.py:1)", command="python3 -m torch.distributed.run train.py"),
        dumped(4, "0", "wait (popen.py:1)", command="/opt/python3 /opt/bin/accelerate launch train.py"),
    ],
)
def test_a_launcher_is_no_rank_whatever_its_environment_says(agent):
    workers = [dumped(5, "0", *STEP, parent=4), dumped(6, "1", *STEP, parent=4)]
    assert locate_ranks([agent, *workers]).text == "2 of 2 ranks in train_step (train.py:40)"


def test_where_ranks_have_a_local_rank_what_has_none_started_them():
    agent = dumped(4, "0", "poll (own_launcher.py:3)")
    workers = [dumped(5 + n, str(n), *STEP, parent=4, local=str(n)) for n in range(2)]
    assert locate_ranks([agent, *workers]).text == "2 of 2 ranks in train_step (train.py:40)"


def test_what_a_rank_started_is_none_in_whatever_order_they_come():
    loader = dumped(1000, "0", "_worker_loop (torch/utils/data/_utils/worker.py:271)", parent=200)
    own, other = dumped(200, "0", *STEP), dumped(201, "1", *STEP)
    assert locate_ranks([loader, own, other]).text == "2 of 2 ranks in train_step (train.py:40)"
    silent = ProcessInfo(pid=200, rank="0", text="")
    assert locate_ranks([loader, silent, other]).text.startswith("rank 1 in train_step"), (
        "its loader does not stand for it"
    )


def test_nothing_is_told_of_dumps_that_failed():
    assert locate_ranks([ProcessInfo(pid=1, rank="0", text="")]) == RankPlaces()
    assert locate_ranks([]) == RankPlaces()
