"""The tracer in front of a model's command. The libraries are stand-ins that log where and what the real ones do."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import each_row
from tests.tools.scripts import tracer

pytestmark = pytest.mark.host

ALL = dict.fromkeys(("ROCBLAS_TRACE", "HIPBLASLT_TRACE", "MIOPEN_TRACE", "TENSILE_TRACE", "RCCL_TRACE"), "1")
PRINTING = {"MIOPEN_TRACE": "1"}
COLLECTIVE = (
    "node:{pid}:{pid} [0] NCCL INFO AllReduce: opCount {n} sendbuff 0x7f{n}0 recvbuff 0x7f{n}8 count {count} "
    "datatype 7 op 0 root 0 comm 0xae{n} [nranks=2] stream 0xac{n} task 0 globalrank {rank}"
)


@pytest.fixture
def traced(tmp_path):
    def run(*command: str, env: dict[str, str] | None = None, **options: object):
        environ = {**os.environ, "MAD_MODEL_NAME": "tiny", "JENKINS_BUILD_NUMBER": "7", **(ALL if env is None else env)}
        return subprocess.run(tracer(*command), cwd=tmp_path, env=environ, capture_output=True, timeout=240, **options)

    return run


@pytest.fixture
def calls(tmp_path):
    """Return the result as library → configuration → calls."""

    def read() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        with (tmp_path / "library_trace.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                assert (row["jobid"], row["model"]) == ("7", "tiny") and row["created_date"]
                found.setdefault(row["library"], {})[row["config"]] = int(row["calls"])
        return found

    return read


@each_row(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("/nonexistent/command",), 127),
        (("/etc/hostname",), 126),
    ],
)
@each_row("env", [{}, PRINTING, {"RCCL_TRACE": "1"}], ids=["nothing", "output read", "output ours"])
def test_a_shell_sees_the_commands_exit_code(tmp_path, command, code, env):
    shell = ["sh", "-c", '"$@"; echo $?', "sh", *tracer(*command)]
    said = subprocess.run(shell, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=240)
    assert said.stdout == f"{code}\n"


def test_output_is_passed_on_byte_by_byte(traced, tmp_path):
    data = [random.Random(n).randbytes(300_000 + n) for n in (1, 2)]
    for n in (0, 1):
        (tmp_path / f"{n}").write_bytes(data[n])
    for env in (ALL, {"RCCL_TRACE": "1"}):
        done = traced("sh", "-c", "cat 0; cat 1 >&2", env=env)
        assert (done.stdout, done.stderr) == (data[0], data[1])


def test_output_that_goes_to_one_place_keeps_its_order(tmp_path):
    command = tracer("sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do echo out $n; echo err $n >&2; done")
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **PRINTING}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.stdout.decode().splitlines() == [f"{word} {n}" for n in range(1, 10) for word in ("out", "err")]


def test_a_command_whose_output_nobody_reads_ends_as_it_would_alone(tmp_path):
    with subprocess.Popen(
        tracer("yes"), cwd=tmp_path, env={**os.environ, **PRINTING}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None and process.stdout.read(4) == b"y\ny\n"
        process.stdout.close()
        assert process.wait(240) == 128 + signal.SIGPIPE


def test_what_a_command_leaves_in_the_background_is_not_waited_for(traced, tmp_path):
    done = traced("sh", "-c", "sleep 1000 & echo $! >left; echo done", env=ALL)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert done.stdout == b"done\n"


def test_standard_input_is_the_commands(traced):
    assert traced("cat", env=ALL, input=b"hello").stdout == b"hello"


COUNTER = """
import os, signal, sys
got = []
def note(number, _):
    got.append(signal.Signals(number).name)
    print(got[-1], flush=True)
def end(*_):
    print(*got, "end", flush=True)
    os._exit(5)
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, note)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def noting(tmp_path):
    """Start a command that notes signals, in a process group of its own; TERM ends it."""
    with subprocess.Popen(
        tracer(sys.executable, "-c", COUNTER),
        cwd=tmp_path,
        env={**os.environ, "ROCBLAS_TRACE": "1", "TMPDIR": str(tmp_path)},  # a killed tracer leaves its log there
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_tracer_alone_reaches_the_command(noting, number):
    noting.send_signal(number)
    assert noting.stdout.readline() == f"{number.name}\n"
    noting.terminate()
    assert noting.stdout.readline() == f"{number.name} end\n" and noting.wait(240) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_group_reaches_the_command_once(noting, number):
    noting.send_signal(signal.SIGSTOP)  # so that the command is done with it before the tracer hears of it
    os.killpg(noting.pid, number)
    assert noting.stdout.readline() == f"{number.name}\n"
    noting.send_signal(signal.SIGTERM)  # the highest number: passed on, and handled, after what came before
    noting.send_signal(signal.SIGCONT)
    assert noting.stdout.readline() == f"{number.name} end\n" and noting.wait(240) == 5


def test_nothing_is_left_running_when_the_group_is_killed(noting):
    os.killpg(noting.pid, signal.SIGKILL)
    noting.wait(240)
    assert noting.stdout.read() == ""  # every process that held it is gone


def test_calls_that_go_into_a_file_are_counted_over_all_ranks(traced, calls):
    rank = """
import os, sys
rank = int(sys.argv[1])
assert os.environ["ROCBLAS_LAYER"] == "6" and os.environ["HIPBLASLT_LOG_MASK"] == "32"
assert os.environ["NCCL_DEBUG"] == "INFO" and os.environ["NCCL_DEBUG_SUBSYS"] == "COLL"
assert "HIPBLASLT_LOG_LEVEL" not in os.environ
def log(name, mode, text):
    with open(os.environ[name], mode) as file:
        file.write(text)
for n in range(3):
    log("ROCBLAS_LOG_BENCH_PATH", "a", f"./rocblas-bench -f gemm_ex -m {n // 2} --alpha 1\\n")
log("HIPBLASLT_LOG_FILE", "w", "hipblaslt-bench --api_method c -m 48 -n 176\\n")
for n in range(4):
    os.write(1, (sys.argv[2].format(pid=rank, n=n, count=4096, rank=rank) + "\\n").encode())
log("ROCBLAS_LOG_PROFILE_PATH", "a", "- { rocblas_function: \\"rocblas_gemm_ex\\", M: 12, call_count: 3 }\\n")
"""
    script = '"$0" -c "$1" 0 "$2" & first=$!; "$0" -c "$1" 1 "$2" && wait $first'
    env = {**ALL, "HIPBLASLT_LOG_LEVEL": "1", "NCCL_DEBUG": "WARN"}
    done = traced("bash", "-c", script, sys.executable, rank, COLLECTIVE, env=env)
    assert (done.returncode, done.stdout.count(b"NCCL INFO AllReduce:"), done.stderr) == (0, 8, b"")
    assert calls() == {
        "rocblas": {"./rocblas-bench -f gemm_ex -m 0 --alpha 1": 4, "./rocblas-bench -f gemm_ex -m 1 --alpha 1": 2},
        "rocblas_function": {'rocblas_function: "rocblas_gemm_ex", M: 12': 6},
        "hipblaslt": {"hipblaslt-bench --api_method c -m 48 -n 176": 2},
        "rccl": {"AllReduce count 4096 datatype 7 op 0 root 0 nranks=2": 8},
    }


def test_calls_among_the_output_are_counted_and_stay_there(traced, calls):
    lines = [
        "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver conv -n 32 -F 1",
        "[default0]:MIOpen: Command [LogCmdFindConvolution] ./bin/MIOpenDriver conv -n 32 -F 1",
        "MIOpen(HIP): Command [LogCmdBNorm] ./bin/MIOpenDriver bnormfp16 -n 4",
    ]
    text = "\n".join(lines)
    script = (
        'test "$MIOPEN_ENABLE_LOGGING_CMD $TENSILE_DB" = "1 0x8000" && echo "$1" >&2; printf "Running kernel: Cijk_a"'
    )
    done = traced("bash", "-c", script, "x", text)
    assert (done.stdout, done.stderr.decode()) == (b"Running kernel: Cijk_a", text + "\n")
    assert calls() == {
        "miopen": {"./bin/MIOpenDriver conv -n 32 -F 1": 2, "./bin/MIOpenDriver bnormfp16 -n 4": 1},
        "tensile": {"Cijk_a": 1},
    }


def test_only_what_was_asked_for_is_switched_on_and_counted(traced, calls):
    script = "env; echo 'Running kernel: Cijk_a'; echo './rocblas-bench -f x' >>\"$ROCBLAS_LOG_BENCH_PATH\""
    done = traced("bash", "-c", script, env={"ROCBLAS_TRACE": "1", "TENSILE_TRACE": "0", "NCCL_DEBUG": "WARN"})
    assert b"TENSILE_DB" not in done.stdout and b"\nNCCL_DEBUG=WARN\n" in done.stdout
    assert calls() == {"rocblas": {"./rocblas-bench -f x": 1}}


def test_a_warning_among_what_a_library_logs_is_still_seen(traced, calls):
    script = "echo 'rocBLAS warning: no such kernel' >>\"$ROCBLAS_LOG_BENCH_PATH\""
    done = traced("bash", "-c", script, env={"ROCBLAS_TRACE": "1"})
    assert done.stderr == b"rocBLAS warning: no such kernel\n" and calls() == {}


def test_without_anything_to_trace_no_file_is_written(traced, tmp_path):
    assert traced("echo", "hello", env={}).stdout == b"hello\n"
    assert list(tmp_path.iterdir()) == []
    # without a command it says how to use it
    done = traced()
    assert done.returncode == 2 and b"usage" in done.stderr


def test_a_second_tracer_in_front_of_the_command_counts_nothing_twice(traced, calls):
    assert traced(*tracer("sh", "-c", "echo 'Running kernel: Cijk_a'"), env={"TENSILE_TRACE": "1"}).returncode == 0
    assert calls() == {"tensile": {"Cijk_a": 1}}


def test_a_failing_command_leaves_the_calls_it_made(traced, calls):
    assert traced("sh", "-c", "echo 'Running kernel: Cijk_a'; exit 3", env={"TENSILE_TRACE": "1"}).returncode == 3
    assert calls() == {"tensile": {"Cijk_a": 1}}


def test_a_result_that_cannot_be_written_does_not_change_the_exit_code(traced, tmp_path):
    Path(tmp_path, "library_trace.csv").mkdir()
    done = traced("sh", "-c", "exit 4")
    assert done.returncode == 4 and b"library_trace.csv cannot be written" in done.stderr
