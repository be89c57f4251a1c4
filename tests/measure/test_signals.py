"""What launchers and Python say of a process that a signal ended, or that ended by itself, in each one's words."""

from __future__ import annotations

import pytest

from madlite.measure.lines import signal_name, signal_of, signal_of_code
from madlite.model import Cause
from tests.measure.test_diagnosis import LOGS, DiagnosisInput, diagnose, follow, footer, read, timeout, trace, why
from tests.rows import each_row

KILLED = "most often the kernel"
NATIVE = "native code crashed"
SIGNALS = [
    ("SIGSEGV", 11, "Segmentation fault", "crash", NATIVE),
    ("SIGABRT", 6, "Aborted", "crash", NATIVE),
    ("SIGBUS", 7, "Bus error", "crash", "/dev/shm"),
    ("SIGFPE", 8, "Floating point exception", "crash", NATIVE),
    ("SIGILL", 4, "Illegal instruction", "crash", NATIVE),
    ("SIGTRAP", 5, "Trace/breakpoint trap", "crash", NATIVE),
    ("SIGKILL", 9, "Killed", "killed", KILLED),
    ("SIGTERM", 15, "Terminated", "killed", "asked to end by a signal"),
    ("SIGINT", 2, "Interrupt", "killed", "asked to end by a signal"),
    ("SIGHUP", 1, "Hangup", "killed", "asked to end by a signal"),
    ("SIGXCPU", 24, "CPU time limit exceeded", "killed", "ulimit -t"),
    ("SIGUSR1", 10, "User defined signal 1", "killed", "it was sent from outside"),
]
PER_SIGNAL = each_row(("name", "number", "words", "cause", "hint"), SIGNALS)
LABELS = ["", "[rank3]: ", "[default3]:", "[1,3]<stderr>:", "2026-03-05T09:10:11Z [rank3]: "]
STEPS = [f"{rank}: step {n} loss 2.{n}" for n in range(4) for rank in range(4)]


def labelled(label: str, lines: list[str]) -> list[str]:
    return [f"{label}{line}" for line in lines]


@PER_SIGNAL
def test_a_signal_is_known_by_its_name_its_number_a_shell_s_code_and_the_library_s_words(
    name, number, words, cause, hint
):
    texts = (name, str(number), str(128 + number), words)
    assert [signal_of(text) for text in texts] == [number] * 4 and signal_name(number) == name
    assert signal_of_code(-number) == signal_of_code(128 + number) == number


@each_row("code", [None, 0, 1, 2, 127, 128, 255, 1000])
def test_an_exit_code_of_a_program_s_own_is_no_signal(code):
    assert signal_of_code(code) == 0
    assert signal_of("") == signal_of("SIGNAL") == signal_of("Success") == 0


@PER_SIGNAL
@each_row("label", LABELS)
def test_python_s_word_of_a_command_that_a_signal_ended(name, number, words, cause, hint, label):
    said = f"subprocess.CalledProcessError: Command '['python3', '-u', 't.py']' died with <Signals.{name}: {number}>."
    found = why(*labelled(label, trace(None, said)))
    assert (found.cause, found.line, found.rank) == (cause, said, 3 if label else None)
    assert hint in found.hint and (cause == "killed") == (NATIVE not in found.hint)
    assert ("SIGKILL" in found.hint) == (name == "SIGKILL")


@PER_SIGNAL
@each_row("said", ["died with <Signals.SIGKILL: 9>", "died with <Signals.SIGTERM: 15>"])
def test_of_two_signals_that_of_who_was_not_told_counts(name, number, words, cause, hint, said):
    own = f"subprocess.CalledProcessError: Command 'x' died with <Signals.{name}: {number}>."
    other = f"subprocess.CalledProcessError: Command 'y' {said}."
    found = why(*trace(0, own), *trace(1, other))
    told = ("SIGTERM", "SIGINT", "SIGHUP", "SIGABRT")
    assert found.line == (other if name in told and "SIGKILL" in said else own)


@pytest.mark.host
@PER_SIGNAL
@each_row(("tasks", "rank"), [("task 3", 3), ("tasks 0-7", None), ("tasks 0,3", None), ("tasks 1,4-6", None)])
@each_row("more", ["", " (core dumped)"])
def test_slurm_s_word_of_tasks(name, number, words, cause, hint, tasks, rank, more):
    for said in (f"{words}{more}", f"Exited with exit code {128 + number}"):
        if said.startswith("Exited") and number > 15:
            continue  # a program's own code
        for node in ("node1", "node[1-2]", "gpu-a-01.cluster"):
            found = why(f"srun: error: {node}: {tasks}: {said}")
            assert (found.cause, found.rank) == (cause, rank) and said in found.line and hint in found.hint


@each_row(("tasks", "rank"), [("task 3", 3), ("tasks 0-7", None), ("tasks 0,3", None)])
def test_slurm_s_word_of_memory_and_of_exit_codes(tasks, rank):
    found = why(f"srun: error: node1: {tasks}: Out Of Memory")
    assert (found.cause, found.rank) == ("host_out_of_memory", rank) and "memory for the job" in found.hint
    found = why(f"srun: error: node1: {tasks}: Exited with exit code 1")
    assert (found.cause, found.rank) == ("exit_code", rank) and f"{tasks} ended with exit code 1" in found.hint
    found = why(*trace(None, "KeyError: 'lr'"), f"srun: error: node1: {tasks}: Killed")
    assert (found.cause, found.line) == ("python_error", "KeyError: 'lr'")


ENDS = [
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-03-05T09:10:11 ***",
    "srun: error: n1: tasks 0-2,4-7: Terminated",
    "srun: error: n2: task 9: Killed",
]


@each_row("ends", [ENDS, ENDS[1:2], ENDS[2:3], ENDS[3:], ENDS[:0:-1]])
def test_tasks_that_slurm_ended_because_one_had_failed_are_not_the_cause(ends):
    exited = "srun: error: n1: task 3: Exited with exit code 1"
    found = why(exited, *ends)
    assert (found.cause, found.rank, found.line) == ("exit_code", 3, exited)
    found = why(exited.replace("task 3", "tasks 3,5"), *ends)
    assert found.cause == "exit_code" and "tasks 3,5: Exited" in found.line
    for place in range(len(ends) + 1):
        found = why(*ends[:place], *trace(3, "KeyError: 'lr'"), *ends[place:], exited)
        assert (found.cause, found.rank, found.line) == ("python_error", 3, "KeyError: 'lr'")
    crashed = "srun: error: n1: task 3: Segmentation fault (core dumped)"
    found = why(crashed, *ends[:3])
    assert (found.cause, found.rank) == ("crash", 3)


def test_a_job_that_was_cancelled_is():
    found = why(ENDS[1])
    assert found.cause == "killed" and "sacct" in found.hint
    found = why(*trace(0, "KeyError: 'x'"), f"{ENDS[1][:-4]} DUE TO NODE FAILURE ***")
    assert found.cause == "node_failed" and "sacct" in found.hint
    found = why(*trace(0, "KeyError: 'x'"), f"{ENDS[1][:-4]} DUE TO PREEMPTION ***")
    assert found.cause == "preempted" and "priority" in found.hint


@each_row(
    ("line", "cause", "rank"),
    [
        ("mpirun noticed that process rank 3 with PID 77 on node n1 exited on signal 6 (Aborted).", "crash", 3),
        ("mpirun noticed that process rank 3 with PID 77 on node n1 exited on signal 7 (Bus error).", "crash", 3),
        ("mpirun noticed that process rank 3 with PID 77 on node n1 exited on signal 9 (Killed).", "killed", 3),
        ("=   KILLED BY SIGNAL: 9 (Killed)", "killed", None),
        ("=   KILLED BY SIGNAL: 11 (Segmentation fault)", "crash", None),
        ("[2026-03-05 09:10:11] [launch.py:321:x] ['python3', 't.py'] exits with return code = -11", "crash", None),
        ("[2026-03-05 09:10:11] [launch.py:321:x] ['python3', 't.py'] exits with return code = -9", "killed", None),
        ("[2026-03-05 09:10:11] [launch.py:321:x] ['bash', 't.sh'] exits with return code = 139", "crash", None),
        ("subprocess.CalledProcessError: Command 'run.sh' returned non-zero exit status 137.", "killed", None),
        ("subprocess.CalledProcessError: Command 'run.sh' returned non-zero exit status 134.", "crash", None),
        ("command terminated with exit code 137", "killed", None),
        ("subprocess.CalledProcessError: Command 'run.sh' returned non-zero exit status 1.", "exit_code", None),
        ("subprocess.CalledProcessError: Command 'run.sh' returned non-zero exit status 255.", "exit_code", None),
        ("[2026-03-05 09:10:11] [launch.py:321:x] ['python3', 't.py'] exits with return code = 1", "exit_code", None),
    ],
)  # fmt: skip
def test_other_launchers_words(line, cause, rank):
    found = why("begin", line)
    assert (found.cause, found.rank) == (cause, rank)
    assert (KILLED in found.hint) == (cause == "killed") and (NATIVE in found.hint) == (cause == "crash")


@each_row("code", [134, 137, 139, 143])
def test_a_code_that_a_shell_around_a_rank_passes_on_is_its_signal_s(code):
    found = why(*footer(1, code, {0: -15}))
    cause = {137: "killed", 143: "killed"}.get(code, "crash")
    assert (found.cause, found.rank) == (cause, 1)


EXITED = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with"


@PER_SIGNAL
@each_row("label", LABELS)
def test_a_process_that_pytorch_began_and_a_signal_ended(name, number, words, cause, hint, label):
    found = why(*labelled(label, trace(None, f"{EXITED} signal {name}")))
    assert found.cause == cause and hint in found.hint and EXITED in found.line
    if cause == "crash" or name == "SIGKILL":
        assert found.rank == (3 if label else 1)


@each_row("label", [*LABELS, "3: "])
@each_row("code", [1, 3, 255])
def test_a_process_that_pytorch_began_and_that_ended_by_itself(label, code):
    raised = labelled(label, trace(None, f"{EXITED} exit code {code}"))
    found = why(*STEPS, *raised)
    assert (found.cause, found.rank) == ("exit_code", 3 if label else 1)
    assert f"exit code {code}" in found.hint and EXITED in found.line
    said = f"{label}the data set is exhausted"
    found = why(*STEPS, said, *raised)
    assert (found.cause, found.line) == ("exit_code", "the data set is exhausted")


@each_row("label", [*LABELS, "3: "])
@each_row(
    ("error", "cause"),
    [
        ("KeyError: 'deep'", "python_error"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB.", "gpu_out_of_memory"),
        ("ModuleNotFoundError: No module named 'einops'", "missing_package"),
    ],
)
def test_what_a_process_that_pytorch_began_raised_is_of_that_process(label, error, cause):
    spawned = trace(None, "torch.multiprocessing.spawn.ProcessRaisedException: ")
    own = ["", "-- Process 1 terminated with the following error:", *trace(None, error, "/w/worker.py")]
    found = why(*STEPS, *labelled(label, [*spawned, *own]))
    assert (found.cause, found.line, found.where) == (cause, error, "/w/worker.py:12 in main")
    assert found.rank == (3 if label else 1)


ORPHAN = [
    "Traceback (most recent call last):",
    '  File "<string>", line 1, in <module>',
    '  File "/usr/lib/python3.12/multiprocessing/spawn.py", line 122, in spawn_main',
    "    exitcode = _main(fd, parent_sentinel)",
    '  File "/usr/lib/python3.12/multiprocessing/spawn.py", line 132, in _main',
    "    self = reduction.pickle.load(from_parent)",
]


@each_row("orphan", ["EOFError: Ran out of input", "_pickle.UnpicklingError: pickle data was truncated"])
def test_a_process_that_lost_who_began_it_is_not_the_cause(orphan):
    parent = trace(None, "TypeError: cannot pickle 'generator' object")
    for lines in ([*parent, *ORPHAN, orphan], [*ORPHAN, orphan, *parent]):
        assert why(*lines).line == "TypeError: cannot pickle 'generator' object"
    assert why(*ORPHAN, orphan).cause == "exit_code"
    assert why(*trace(None, orphan)).cause == "missing_file", "read from a file it is"


def test_what_ranks_say_of_a_link_comes_after_a_signal():
    late = [timeout(rank) for rank in range(8) if rank != 3]
    for line in ("srun: error: n1: tasks 3,5: Segmentation fault (core dumped)", "srun: error: n1: tasks 3,5: Killed"):
        assert why(*late, line).line == line


@each_row("kills", [2, 0])
def test_the_kernel_s_count_tells_who_ended_tasks(kills):
    log = follow("srun: error: n1: tasks 0-7: Killed")
    found = diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=1, oom_kills=kills))
    assert found.cause == ("host_out_of_memory" if kills else "killed")


TITAN = LOGS / "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log"


@each_row(
    ("lines", "rank", "line"),
    [
        (["srun: error: n1: task 1: Exited with exit code 1"], 1, "task 1: Exited"),
        (["srun: error: n1: tasks 0-1: Exited with exit code 1"], None, "tasks 0-1: Exited"),
        (["error: no batch", "srun: error: n1: tasks 0-1: Exited with exit code 1"], None, "error: no batch"),
        (footer(1, 3, {0: -15}), 1, "exitcode  : 3"),
        (["config error: no such layer", *["."] * 9, *footer(1, 3, {0: -15})], 1, "config error: no such layer"),
        (trace(None, f"{EXITED} exit code 1"), 1, EXITED),
    ],
)
@each_row("steps", [0, 4])
def test_a_log_that_ends_too_soon_has_the_exit_that_a_launcher_saw(lines, rank, line, steps, tmp_path):
    text = TITAN.read_text().splitlines()
    at = [n for n, one in enumerate(text) if "step:" in one and "loss" in one]
    path = tmp_path / "x.log"
    path.write_text("\n".join([*text[: at[steps - 1] + 1 if steps else 10], *lines, ""]))
    found = read(path)
    assert (found.verdict.status.value, found.diagnosis.cause, found.diagnosis.rank) == ("FAILURE", "exit_code", rank)
    assert line in found.diagnosis.line and "exit code" in found.diagnosis.hint
