"""What ends a training for good: which lines say so, which of them explains, and what says nothing."""

from __future__ import annotations

from madlite.backends.base import PatternReader
from madlite.backends.step_lines import step_pattern
from madlite.measure.failure_scan import FailureScan
from madlite.measure.lines import ASIDE, make_block
from madlite.measure.memory import MemoryScan
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.measure.tracebacks import TracebackScan
from tests.monitors import monitored
from tests.rows import each_row

PATTERN = step_pattern(r"step=(?P<n>\d+) tps=(?P<tokens_per_s_per_gpu>\S+)")
TRACEBACK = "Traceback (most recent call last):"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def scan(*lines: str) -> FailureScan:
    found = FailureScan(())
    found.feed(make_block(lines), None)
    found.finish()
    return found


def follow(text: str) -> LogMonitor:
    return monitored([PatternReader(PATTERN, "the end")], text)


@each_row(
    "line",
    [
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 198.00 MiB.",
        TRACEBACK,
        "RuntimeError: process 7 got killed by signal 9",
        "subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 123 got signal: 15",
        "run.sh: line 12: 4711 Killed                  torchrun train.py",
        "Killed",
        "Segmentation fault (core dumped)",
        "Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x7f. Reason: Unknown.",
        "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
    ],
)
def test_a_line_that_ends_a_training(line):
    found = scan("step=1", f"[rank3]: {line}", "bye")
    assert (found.fatal_line, found.launcher_line) == (line, "")


@each_row(
    "line",
    [
        "  exit_signal ..................................... 15",
        "> signal handlers are set, 8 of them",
        "Signal handlers: SIGTERM=save, SIGINT=exit",
        "sending SIGTERM to a stale tensorboard",
        "installed a SIGTERM handler that saves",
        "Skipped patches: 9",
        "failed (exitcode: 0) local_rank: 0",
        "WARNING: destroy_process_group() was not called before program exit",
        "error_injection_rate ............................ 0",
        "ModuleNotFoundError: No module named 'triton'",
    ],
)
def test_a_line_that_says_nothing(line):
    assert scan(line, line).fatal_line == ""


def test_an_exception_explains_better_than_what_stands_around_it():
    frames = ('  File "train.py", line 1, in <module>', "    step()")
    for error in ("RuntimeError: NCCL error", "[20261121 00:16:57][rank-0/1][ERROR] [t.py:1] : KeyError: 'x'"):
        found = scan(TRACEBACK, *frames, error, TRACEBACK, *frames, CHILD, "exitcode: 1", "ValueError: later")
        assert found.fatal_line == error.rpartition("[t.py:1] : ")[2] and found.launcher_line == CHILD.strip()
    memory = "torch.OutOfMemoryError: CUDA out of memory."
    assert scan(TRACEBACK, "RuntimeError: x", memory, CHILD).fatal_line == memory
    # what python says while it ends is no failure
    ignored = ("Exception ignored in: <function Pool.__del__ at 0x7f>", TRACEBACK, "  File x", "TypeError: 'NoneType'")
    assert scan(*ignored).fatal_line == ""
    assert scan(*ignored, TRACEBACK, "OSError: x").fatal_line == "OSError: x"


@each_row("aside", ASIDE)
@each_row("label", ["", "[rank3]: ", "7: ", "2026-11-21T00:00:00.1Z "])
def test_an_exception_aside_ends_nothing_whoever_looks(aside, label):
    lines = [f"{aside} x:", TRACEBACK, '  File "x.py", line 1, in f', "    f()", "ConnectionResetError: gone"]
    lines = [label + line for line in lines]
    assert scan(*lines).fatal_line == ""
    tracebacks = TracebackScan()
    tracebacks.feed(make_block(lines))
    assert tracebacks.raised == [] and tracebacks.begun == ""


@each_row(
    "line",
    [
        "torch.OutOfMemoryError handling enabled",
        "on_oom: retry if CUDA out of memory",
        "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True avoids HIP out of memory",
        "except torch.cuda.OutOfMemoryError:",
    ],
)
def test_prose_on_memory_is_no_want_of_it(line):
    marks = MemoryScan()
    marks.feed(make_block([line]))
    assert (scan(line).fatal_line, marks.out) == ("", "")


@each_row(
    "line",
    [
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        '{"level":"error","msg":"RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB"}',
        "torch.OutOfMemoryError",
        "error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: no",
        "[rank1]: CUDA out of memory",
    ],
)
def test_memory_that_ran_out_is_told_alike_by_all_who_look(line):
    marks = MemoryScan()
    marks.feed(make_block([line]))
    assert scan(line).fatal_line and marks.out
    log = monitored((), line, with_common(()))
    assert log.failures.candidate.cause == "gpu_out_of_memory"


@each_row(
    "line", ["WARNING: CUDA out of memory, retrying with a smaller chunk", "| HIP out of memory: batch 7 is skipped |"]
)
def test_memory_that_ran_out_and_was_got_over_is_a_doubt_and_no_failure(line):
    marks = MemoryScan()
    marks.feed(make_block([line]))
    assert (scan(line).fatal_line, bool(marks.out)) == ("", True)


def test_a_step_that_follows_makes_it_none():
    failed = f"{TRACEBACK}\nRuntimeError: boom\n{CHILD}\n"
    log = follow("step=1 tps=5\n" + failed)
    assert (log.failures.fatal_line, log.failures.launcher_line) == ("RuntimeError: boom", CHILD.strip())
    log = follow("step=1 tps=5\n" + failed + "step=1 tps=5\n")
    assert (log.failures.fatal_line, log.failures.launcher_line) == ("", "")
    # an end mark is of the steps before it
    assert follow("step=1 tps=5\nstep=2 tps=5\nthe end\n").ended
    assert follow("[rank0]: step=2 tps=5\nthe end\n[rank1]: step=2 tps=5\n").ended  # another rank's last line
    assert not follow("step=1 tps=5\nstep=2 tps=5\nthe end\nstep=1 tps=5\n").ended
    assert not follow("step=1 tps=5\nthe end\nstep=2 tps=5\n").ended
    # a program beside the training may be killed
    for line in (
        "run.sh: line 9: 4444 Killed   rocm-smi --showuse -l 1 > gpu.log",
        "a.sh: line 2: 7 Aborted /usr/bin/amd-smi",
    ):
        assert scan(line).fatal_line == ""
    assert scan("run.sh: line 9: 4444 Killed   python train.py").fatal_line


@each_row(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "Fatal Python error: Aborted",
        "HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "train.sh: line 7:   123 Aborted                 python train.py",
        "7: Killed",
        "signal: 9",
        "srun: error: node1: task 0: Exited with exit code 1",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0",
        "[rank0]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp",
    ],
)
def test_how_gpus_and_collectives_die_ends_a_training(line):
    log = follow(f"step=1 tps=5\n{line}\n")
    assert log.failures.fatal_line and log.failures.fatal_line in line
    assert follow(f"{line}\nstep=1 tps=5\n").failures.fatal_line == ""
