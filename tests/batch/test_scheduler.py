"""Runs of a batch are packed on the GPUs: none is shared, none waits for ever, the longest begins first."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite.batch.gpu_allocator import GpuAllocator, Job, lease_states
from madlite.batch.scheduler import Scheduler
from madlite.machine.processes import RUN_MARK
from madlite.model import Gpu
from madlite.store.gpu_leases import LeaseFolder, lease_names
from tests.waiting import wait_until

EIGHT = tuple(Gpu(index=n, bus=f"0000:{n + 1:02x}:00.0") for n in range(8))
ALL = tuple(range(8))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


def pool_of(folder, **more) -> GpuAllocator:
    return GpuAllocator(EIGHT, LeaseFolder(folder), **more)


def job(position: int, gpus: int, expected_s: float | None = None, **more) -> Job:
    return Job(position=position, run_id=f"r{position}", gpus=gpus, allowed=ALL, expected_s=expected_s, **more)


class Machine:
    """Takes runs as long as some can start, and ends them in the order that a test has."""

    def __init__(self, jobs, pool, **more) -> None:
        self.now_s = 0.0
        self.scheduler = Scheduler(jobs, pool, cpu_slots=2, clock=lambda: self.now_s, **more)
        self.running: dict[int, object] = {}
        self.order: list[int] = []

    def fill(self) -> list[int]:
        """Start all that can start now; return their positions."""
        begun = []
        while (start := self.scheduler._next()) is not None:
            used = [gpu for one in self.running.values() for gpu in one.gpu_ids]
            assert not set(used) & set(start.gpu_ids) and len(set(start.gpu_ids)) == start.job.gpus
            self.running[start.job.position] = start
            begun.append(start.job.position)
        self.order += begun
        return begun

    def end(self, position: int) -> tuple[str, ...]:
        return self.scheduler.end(self.running.pop(position))


@given(sizes=st.lists(st.sampled_from((0, 1, 2, 4, 8)), min_size=1, max_size=40), seed=st.randoms())
def test_none_is_shared_and_each_gets_its_turn(tmp_path_factory, sizes, seed):
    with closing(pool_of(tmp_path_factory.mktemp("leases") / "l")) as pool:
        jobs = [job(n, size, seed.choice((None, 1.0, 50.0))) for n, size in enumerate(sizes)]
        machine = Machine(jobs, pool)
        machine.fill()
        while machine.running:
            machine.now_s += 1
            machine.end(seed.choice(list(machine.running)))
            machine.fill()
        assert sorted(machine.order) == list(range(len(sizes)))


def test_the_longest_begins_first_and_one_of_unknown_length_is_taken_for_a_usual_one(folder):
    with closing(pool_of(folder)) as pool:
        jobs = [job(0, 8, 10), job(1, 8, 500), job(2, 8), job(3, 8, 100)]
        machine = Machine(jobs, pool)
        while machine.fill():
            machine.end(machine.order[-1])
        assert machine.order == [1, 2, 3, 0] or machine.order == [1, 3, 2, 0]
        assert machine.order[0] == 1 and machine.order[-1] == 0


def test_a_run_for_all_gpus_is_passed_by_none_that_needs_some_and_by_those_that_need_none(folder):
    with closing(pool_of(folder)) as pool:
        jobs = [job(0, 4, 100), job(1, 8, 90), job(2, 4, 80), job(3, 0, 70)]
        machine = Machine([jobs[0]], pool)
        assert machine.fill() == [0]
        machine.scheduler._waiting = [*jobs[1:]]
        assert machine.fill() == [3]
        machine.end(0)
        assert machine.fill() == [1]
        machine.end(1)
        assert machine.fill() == [2]


def test_without_durations_nobody_passes_a_run_that_needs_all_and_small_ones_pass_one_that_leaves_them_room(folder):
    with closing(pool_of(folder)) as pool:
        machine = Machine([job(0, 1)], pool)
        machine.fill()
        machine.scheduler._waiting = [job(1, 8), job(2, 1)]
        assert machine.fill() == []
        machine.scheduler._waiting = [job(3, 6), job(4, 2), job(5, 4)]
        assert machine.fill() == [3]
        machine.scheduler._waiting = [job(4, 2), job(5, 1), job(6, 1)]
        assert machine.fill() == [5], "the first leaves six: with one of them it still has its two when the others end"


def test_runs_with_a_key_in_common_are_apart_and_others_go_past_them(folder):
    with closing(pool_of(folder)) as pool:
        port = frozenset({"port 1234"})
        machine = Machine([job(0, 1, keys=port), job(1, 1, keys=port), job(2, 1)], pool)
        assert machine.fill() == [0, 2]
        machine.end(0)
        assert machine.fill() == [1]


def test_without_a_gpu_the_slots_count_and_beside_runs_know_each_other(folder):
    with closing(pool_of(folder)) as pool:
        machine = Machine([job(n, 0) for n in range(3)], pool)
        assert machine.fill() == [0, 1]
        assert machine.end(0) == ("r1",)
        assert machine.fill() == [2]
        assert machine.end(1) == ("r0", "r2")


def test_another_attempt_of_a_run_keeps_its_gpus_and_is_beside_what_it_meets_itself(folder):
    with closing(pool_of(folder)) as pool:
        machine = Machine([job(0, 4), job(1, 4), job(2, 4)], pool)
        scheduler = machine.scheduler
        assert machine.fill() == [0, 1]
        again = scheduler.try_again(machine.running[0], "again", "", 0.0)
        assert again.gpu_ids == machine.running[0].gpu_ids and again.job.run_id == "again"
        machine.running[0] = again
        assert machine.fill() == [], "the third waits for the GPUs of a run and not of an attempt"
        assert machine.end(1) == ("r0", "again")
        assert machine.fill() == [2]
        assert machine.end(0) == ("r1", "r2") and machine.end(2) == ("again",)


@pytest.fixture
def leftover(folder):
    """Return a run that has failed, its scheduler, what each question for its remains is answered, and what is shown.

    The last answer is given again.
    """
    answers, shown = ["pid 99", ""], []

    def remains(holder) -> str:
        assert not scheduler._condition._is_owned(), "it reads the table of processes"
        return answers.pop(0) if len(answers) > 1 else answers[0]

    with closing(pool_of(folder, remains=remains)) as pool:
        scheduler = Scheduler([job(0, 4)], pool, 1, on_wait=shown.append)
        yield scheduler.take(), scheduler, answers, shown


def test_another_attempt_starts_once_nothing_of_the_failed_one_is_left_on_its_gpus(leftover, monkeypatch):
    monkeypatch.setattr("madlite.batch.scheduler.POLL_LEFT_S", 0.01)
    start, scheduler, answers, shown = leftover
    answers[:] = ["pid 99", "pid 99", ""]
    assert scheduler.try_again(start, "again", "", 0.0).leased == start.leased and answers == [""]
    assert shown == ["pid 99, left by run r0 that is to be tried again", ""]


def test_a_run_that_is_to_leave_something_starts_its_next_attempt_beside_it(leftover):
    start, scheduler, answers, _ = leftover
    keeps = replace(start, job=replace(start.job, keeps=True))
    assert scheduler.try_again(keeps, "again", "", 0.0) is not None and answers == ["pid 99", ""]


def test_a_stop_ends_the_wait_for_what_an_attempt_left(leftover):
    start, scheduler, answers, shown = leftover
    answers[:] = ["pid 99"]
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(scheduler.try_again(start, "again", "", 0.0)))
    thread.start()
    wait_until(lambda: shown)
    scheduler.stop()
    thread.join(60)
    assert said == [None]


def test_a_stop_ends_the_wait_for_another_attempt():
    scheduler = Scheduler([job(0, 0)], None, 1)
    start = scheduler.take()
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(scheduler.try_again(start, "again", "", 600.0)))
    thread.start()
    scheduler.stop()
    thread.join(60)
    assert said == [None] and scheduler.end(start) == () and scheduler.take() is None


def test_a_run_that_executes_nothing_is_beside_none(folder):
    with closing(pool_of(folder)) as pool:
        machine = Machine([job(0, 1), job(1, 0, blocked=True), job(2, 1)], pool)
        assert sorted(machine.fill()) == [0, 1, 2]
        assert (machine.end(0), machine.end(1), machine.end(2)) == (("r2",), (), ("r0",))


def test_an_exclusive_run_has_every_gpu_and_uses_its_own(folder):
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        start = Scheduler([job(0, 2, exclusive=True)], pool, 1).take()
        assert start.leased == ALL and start.gpu_ids == (0, 1)
        assert other.take(job(1, 1), passes=False) is None and "run r0 of user" in other.waiting.text


def test_what_another_process_has_is_waited_for_and_whoever_waits_for_many_is_not_starved(folder):
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        assert other.take(job(7, 3), passes=False) == (0, 1, 2)
        assert pool.take(job(0, 8), passes=False) is None
        assert pool.waiting.text.startswith("GPU 0, 1, 2: run r7 of user")
        other.give_back((0,))
        assert other.take(job(8, 1), passes=False) is None, "it waits behind the one that waits for all"
        assert "is first" in other.waiting.text
        other.give_back((1, 2))
        assert pool.take(job(0, 8), passes=False) == ALL
        pool.give_back(ALL)
        assert other.take(job(8, 1), passes=False) == (0,)


def test_gpus_of_another_process_are_none_that_a_waiting_run_is_passed_for(folder):
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        other.take(job(90, 4), passes=False), other.take(job(91, 1), passes=False)
        machine = Machine([job(0, 4), *(job(n, 1) for n in range(1, 9))], pool)
        assert machine.fill() == [], "three are free, and another process has the others for as long as it likes"
        other.give_back((4,))
        assert machine.fill() == [0]


def test_what_a_waiting_run_keeps_is_for_nobody_else(folder):
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        other.take(job(90, 2), passes=False), other.take(job(91, 1), passes=False)
        machine = Machine([job(0, 2, 100)], pool)
        assert machine.fill() == [0]
        machine.scheduler._waiting = [job(1, 4, 50), job(2, 1, 200)]
        assert machine.fill() == [], "three are kept; two more will be there in 100 s, unless another process is sooner"
        other.give_back((2,))
        assert machine.fill() == [1]


def test_a_run_that_a_killed_one_keeps_waiting_is_passed_until_that_is_gone(folder):
    left = {"r9": "pid 99"}
    with closing(pool_of(folder, remains=lambda holder: left.get(holder.run, ""))) as pool:
        killed = pool_of(folder)
        killed.take(job(9, 1), passes=False)
        for lease in killed._mine.values():
            lease.leave()  # as the kernel does
        machine = Machine([job(0, 8), job(1, 4), job(2, 4), job(3, 4)], pool)
        assert machine.fill() == [1]
        left.clear()
        assert machine.fill() == [], "nothing but the batch's own runs keeps the first now"
        machine.end(1)
        assert machine.fill() == [0]


def test_what_a_killed_run_left_keeps_its_gpu_and_nothing_else(folder):
    left = {"r7": "pid 99"}
    with closing(pool_of(folder, remains=lambda holder: left.get(holder.run, ""))) as pool:
        killed = pool_of(folder)
        assert killed.take(job(7, 1), passes=False) == (0,)
        for lease in killed._mine.values():
            lease.leave()  # as the kernel does
        assert pool.take(job(0, 8), passes=False) is None
        text = pool.waiting.text
        assert text.startswith("GPU 0: pid 99, left by run r7") and "madlite doctor --gpus" in text
        assert pool.take(job(1, 7), passes=False) == ALL[1:]
        pool.give_back(ALL[1:])
        left.clear()
        assert pool.take(job(0, 8), passes=False) == ALL


@pytest.mark.host
@pytest.mark.parametrize("keeps", [False, True])
def test_what_an_ended_run_could_not_end_keeps_its_gpus_until_it_is_gone(folder, keeps):
    run = f"r-{uuid4().hex}"  # what others mark on this machine is none of it
    marked = {**os.environ, RUN_MARK: run}
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        scheduler = Scheduler([replace(job(0, 2, keeps=keeps), run_id=run)], pool, 1)
        start = scheduler.take()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=marked) as left:
            wait_until(lambda: "cat" in Path(f"/proc/{left.pid}/cmdline").read_text())
            scheduler.end(start)
            assert other.take(job(1, 8), passes=False) == (ALL if keeps else None)
            if not keeps:
                assert other.waiting.text.startswith(f"GPU 0, 1: pid {left.pid}, left by run {run} of user")
                assert [text for _, text in lease_states(folder, EIGHT).values()] == [f"pid {left.pid}"] * 2 + [""] * 6
            left.stdin.close()
        if not keeps:
            assert other.take(job(1, 8), passes=False) == ALL


def test_gpus_with_foreign_processes_are_left_alone_until_those_are_gone(folder):
    foreign = {3: "pid 7 python"}
    with closing(pool_of(folder, in_use=lambda: dict(foreign))) as pool:
        assert pool.foreign() == foreign
        assert pool.take(job(0, 7), passes=False) == (0, 1, 2, 4, 5, 6, 7)
        pool.give_back((0, 1, 2, 4, 5, 6, 7))
        assert pool.take(job(1, 8), passes=False) is None and "GPU 3: pid 7 python" in pool.waiting.text
        foreign.clear()
        pool._foreign_at_s -= 60
        assert pool.waiting.for_foreign and pool.is_out_of_date and pool.foreign() == {}
        assert pool.take(job(1, 8), passes=False) == ALL


def test_what_is_on_a_gpu_that_some_run_has_is_not_foreign(folder):
    listed = dict.fromkeys(range(4), "pid 7 python")
    left = {"r9": "pid 9"}
    remains = {"remains": lambda holder: left.get(holder.run, "")}
    with closing(pool_of(folder, in_use=lambda: dict(listed), **remains)) as pool, closing(pool_of(folder)) as other:
        killed = pool_of(folder)
        killed.take(job(9, 1), passes=False)
        other.take(job(8, 1), passes=False)
        pool._foreign_at_s = time.monotonic()
        assert pool.take(job(0, 1), passes=False) == (2,)
        for lease in killed._mine.values():
            lease.leave()  # as the kernel does
        pool._foreign_at_s -= 60
        assert pool.foreign() == {3: "pid 7 python"}, "0 is a dead run's, 1 another command's, 2 its own"


def test_tools_that_list_foreign_processes_hold_up_nobody(folder):
    asked, goes_on = threading.Event(), threading.Event()

    def in_use() -> dict[int, str]:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            assert goes_on.wait(240)
            return {}
        return dict.fromkeys(ALL, "pid 7 python")

    with closing(pool_of(folder, in_use=in_use)) as pool:
        pool.foreign()
        pool._foreign_at_s -= 60
        scheduler, begun = Scheduler([job(0, 8)], pool, 1), []
        takes = threading.Thread(target=lambda: begun.append(scheduler.take()))
        takes.start()
        assert asked.wait(60)
        looks = threading.Thread(target=scheduler.left_s, args=(1.0,))
        looks.start()
        looks.join(60)
        is_held_up = looks.is_alive()
        goes_on.set()
        takes.join(60), looks.join(60)
        assert not is_held_up and begun[0].leased == ALL


def test_the_leases_name_the_attempt_that_is_on_the_gpus_and_its_session(folder):
    with closing(pool_of(folder)) as pool, closing(LeaseFolder(folder)) as leases:
        scheduler = Scheduler([job(0, 2)], pool, 1)
        start = scheduler.take()
        scheduler.note(start, "second-attempt", "/w/second-attempt", "0123456789ab")
        states = list(leases.states(lease_names(EIGHT).values()))
        assert [one.locked for one in states] == [True] * 2 + [False] * 6
        assert {(one.holder.run, one.holder.handle) for one in states[:2]} == {("second-attempt", "0123456789ab")}
        scheduler.end(start)
        scheduler.note(start, "late", "/w/late")
        assert all(one.holder is None for one in leases.states(lease_names(EIGHT).values()))


def test_a_stop_ends_the_wait_for_other_processes(folder):
    said: list[str] = []
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        other.take(job(7, 8), passes=False)
        scheduler = Scheduler([job(0, 1)], pool, 1, on_wait=said.append)
        ended: list[object] = []
        thread = threading.Thread(target=lambda: ended.append(scheduler.take()))
        thread.start()
        wait_until(lambda: said)
        scheduler.stop()
        thread.join(60)
        assert ended == [None] and "run r7 of user" in said[0]


def test_the_time_left_is_what_all_gpus_need_together(folder):
    with closing(pool_of(folder)) as pool:
        machine = Machine([job(0, 8, 100), job(1, 4, 50)], pool)
        assert machine.scheduler.left_s(None) == 125
        machine.fill()
        machine.now_s = 40
        assert machine.scheduler.left_s(None) == 85
        machine.scheduler._waiting[0] = replace(job(1, 4), expected_s=None)
        assert machine.scheduler.left_s(None) is None and machine.scheduler.left_s(50) == 85


def test_a_forked_child_does_not_keep_a_lease(folder):
    with closing(pool_of(folder)) as pool, closing(pool_of(folder)) as other:
        pool.take(job(0, 8), passes=False)
        assert all(not os.get_inheritable(lease._fd) for lease in pool._mine.values())
        pool.give_back(ALL)
        assert other.take(job(1, 8), passes=False) == ALL
