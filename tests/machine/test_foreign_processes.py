"""Processes on a run's GPUs: whose they are, by a made-up /proc, and by KFD's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from madlite.machine.processes import (
    LEAST_BYTES,
    ForeignProcess,
    OwnProcesses,
    describe_processes,
    find_foreign,
    is_own,
    merge_processes,
    sees_all_processes,
)
from madlite.machine.sources.amdgpu import driver_ids, kfd_processes
from madlite.machine.sources.base import GpuProcess
from madlite.model import Gpu
from tests.rows import each_row

from .stand_in import Bench

GIB = 1 << 30
OURS = OwnProcesses(mark="MARK=run-1", container="c0ffee" * 10, ancestor=100)


class Proc:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"

    def for_row(self, number: int) -> Proc:
        return Proc(self.folder / f"row{number}")

    def add(
        self,
        pid: int,
        *argv: str,
        env: str = "",
        cgroup: str = "0::/user.slice",
        parent: int = 1,
        state: str = "S",
        size: int = 4096,
    ) -> None:
        place = self.folder / str(pid)
        place.mkdir(parents=True)
        (place / "cmdline").write_bytes("\0".join(argv).encode() + b"\0")
        (place / "comm").write_text("kernel name\n")
        (place / "environ").write_text(env)
        (place / "cgroup").write_text(cgroup + "\n")
        (place / "stat").write_text(f"{pid} (odd ) name) {state} {parent} {pid}{' 0' * 17} {size} 0\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def user(pid: int, size: int | None = 3 * GIB, gpu: int = 0, **facts: object) -> GpuProcess:
    return GpuProcess(pid=pid, gpu=gpu, memory_bytes=size, **facts)  # type: ignore[arg-type]


def test_ours_by_mark_container_and_ancestor_and_nobody_else_s(proc: Proc) -> None:
    proc.add(100, "madlite")
    proc.add(101, "bash", parent=100)
    proc.add(1, "init", env="MARK=run-10\0X=MARK=run-1\0", cgroup="0::/docker/" + "deadbeef" * 8)
    proc.add(11, "python", env="A=1\0MARK=run-1\0B=2\0")
    proc.add(12, "python", cgroup=f"0::/system.slice/docker-{OURS.container}.scope")
    proc.add(13, "python", parent=101)
    assert [is_own(proc.folder, pid, OURS) for pid in (11, 12, 13, 100, 1)] == [True, True, True, True, False]
    assert not is_own(proc.folder, 13, OwnProcesses(mark="MARK=run-1"))
    found = find_foreign([user(pid) for pid in (1, 11, 12, 13)], OURS, proc.folder)
    assert [one.pid for one in found] == [1]


def test_ours_that_wrote_its_title_over_its_environment(proc: Proc) -> None:
    proc.add(1, "init")
    proc.add(30, "raylet", env="MARK=run-1\0")  # which left who started it
    proc.add(31, "ray::train()", env="y::train()\0\0\0", parent=30)
    proc.add(32, "python", env="A=1\0")
    assert [is_own(proc.folder, pid, OURS) for pid in (31, 32)] == [True, False]


def test_a_stranger_in_words(proc: Proc) -> None:
    proc.add(4711, "/usr/bin/python", "/home/x/train.py", "--token", "hf_secret")
    (found,) = find_foreign([user(4711, int(3.2 * GIB)), user(4711, GIB, gpu=3)], OURS, proc.folder)
    assert str(found) == "pid 4711 python train.py, 4.2 GiB on GPU 0, 3"


@each_row(
    ("argv", "text"),
    [
        (("python3", "-m", "torch.distributed.run", "--x"), "python3 torch.distributed.run"),
        (("/opt/bench", "--size=4"), "bench"),
        (("",), "kernel name"),
        (("evil\x1b[31m\nname", "a\tb"), "evil[31mname ab"),
        (("x" * 200,), "x" * 60),
        (("login", "PASSWORD=topsecret"), "login PASSWORD=***"),
    ],
)
def test_commands(proc: Proc, argv: tuple[str, ...], text: str) -> None:
    proc.add(7, *argv)
    (found,) = find_foreign([user(7)], OURS, proc.folder)
    assert found.command == text


def test_tiny_idle_dead_and_unseen_ones_are_no_strangers(proc: Proc) -> None:
    proc.add(1, "Xorg")
    proc.add(2, "python", state="Z")
    proc.add(4, size=0)  # it ended, and its GPU's memory is being given back
    tiny = [user(1, LEAST_BYTES - 1), user(1, None), user(2), user(3), user(4), user(1, 0, busy=False)]
    assert find_foreign(tiny, OURS, proc.folder) == ()


def test_tiny_ones_count_where_they_are_busy_or_their_gpu_was(proc: Proc) -> None:
    proc.add(1, "miner")
    assert len(find_foreign([user(1, 0, busy=True)], OURS, proc.folder)) == 1
    assert len(find_foreign([user(1, None, gpu=2)], OURS, proc.folder, busy_gpus=[2])) == 1
    assert find_foreign([user(1, None, gpu=2)], OURS, proc.folder, busy_gpus=[1]) == ()
    assert find_foreign([user(1, 0, gpu=2, busy=False)], OURS, proc.folder, busy_gpus=[2]) == ()  # a monitor
    assert len(find_foreign([user(1, LEAST_BYTES)], OURS, proc.folder)) == 1


def test_ours_that_ends_while_it_is_looked_at_is_no_stranger(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(21, "python", env="MARK=run-1\0")

    def ends(*_: object) -> bool:
        (proc.folder / "21/environ").write_text("")
        (proc.folder / "21/stat").unlink()
        return False

    monkeypatch.setattr("madlite.machine.processes.is_own", ends)
    assert find_foreign([user(21)], OURS, proc.folder) == ()


def test_the_most_memory_counts_and_the_biggest_come_first() -> None:
    before = [ForeignProcess(pid=n, command="x", memory={0: n * GIB}) for n in range(1, 11)]
    now = [
        ForeignProcess(pid=1, command="x", memory={0: 0, 1: 30 * GIB}),
        ForeignProcess(pid=2, command="x", memory={0: GIB}),
    ]
    said = describe_processes(merge_processes(before, now).values())
    assert said[0] == "pid 1 x, 31.0 GiB on GPU 0, 1"
    assert said[1] == "pid 10 x, 10.0 GiB on GPU 0"
    assert len(said) == 9 and said[-1] == "2 more processes"
    assert describe_processes([ForeignProcess(pid=9, command="y", memory={4: 0})]) == ("pid 9 y, on GPU 4",)


@each_row(("table", "sees"), [("pid:[4026531836]", True), ("pid:[4026532201]", False), ("", False)])
def test_inside_a_container_nobody_can_know(tmp_path: Path, table: str, sees: bool) -> None:
    place = tmp_path / "self/ns"
    place.mkdir(parents=True)
    if table:
        (place / "pid").symlink_to(table)
    Proc(tmp_path).add(1, "init")
    (tmp_path / "proc/1").rename(tmp_path / "1")
    assert sees_all_processes(tmp_path) is sees


def test_where_the_processes_of_others_are_hidden_nobody_can_know(tmp_path: Path) -> None:
    place = tmp_path / "self/ns"
    place.mkdir(parents=True)
    (place / "pid").symlink_to("pid:[4026531836]")
    assert not sees_all_processes(tmp_path)  # hidepid=2
    (tmp_path / "1").mkdir()
    assert not sees_all_processes(tmp_path)  # hidepid=1


def test_kfd_names_processes_by_the_gpus_of_the_run(bench: Bench) -> None:
    bench.mi300x(2)
    bench.file("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "50001\n")
    bench.file("sys/class/kfd/kfd/topology/nodes/2/gpu_id", "50002\n")
    bench.file("sys/class/kfd/kfd/proc/812/vram_50001", f"{5 * GIB}\n")
    bench.file("sys/class/kfd/kfd/proc/812/vram_50002", "0\n")
    bench.file("sys/class/kfd/kfd/proc/812/stats_50002/cu_occupancy", "12\n")
    bench.file("sys/class/kfd/kfd/proc/ignored/vram_50001", "1\n")
    gpus = [Gpu(index=4, render_minor=128), Gpu(index=5, bus="0000:02:00.0")]
    assert driver_ids(bench.root, gpus) == {50001: 4, 50002: 5}
    assert kfd_processes(bench.root, gpus) == (
        GpuProcess(pid=812, gpu=4, memory_bytes=5 * GIB),
        GpuProcess(pid=812, gpu=5, memory_bytes=0, busy=True),
    )


def test_without_kfd_s_list_nobody_knows(bench: Bench) -> None:
    gpu = Gpu(index=0, bus="0000:c1:00.0")
    assert kfd_processes(bench.root, [gpu]) is None
    bench.file("sys/class/kfd/kfd/proc/812/vram_50001", "1\n")
    assert kfd_processes(bench.root, []) is None
    assert driver_ids(bench.root, [gpu]) == {}
