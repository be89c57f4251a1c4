"""Why a run failed: of real logs what their reading showed, of made-up ones the first cause and not its followers.

A log of a training that went well has none: one false alarm is one too many.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from madlite.backends.loader import load_plugins
from madlite.measure.diagnosis import DiagnosisInput, DiskSpace, diagnose
from madlite.measure.failure_scan import CandidateScan, FailureScan
from madlite.measure.lines import make_block
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import read_log
from madlite.measure.rules import ERROR, ROOT, compile_rules, with_common
from madlite.model import Cause, FailureRule, Status
from madlite.plan.make import make_plan
from tests.monitors import monitored
from tests.plan.conftest import given  # noqa: F401 - a fixture
from tests.rows import each_row

ROOT_FOLDER = Path(__file__).parents[2]
LOGS = ROOT_FOLDER / "tests/data/logs"
PLUGINS = load_plugins(only_built_in=True)
RULES = with_common(PLUGINS.failure_rules())

# what each went wrong by, found by reading it: cause, rank, a part of the deciding line
FAILED = {
    "hf-peft0.21-torchao0.14-conflict-FAIL.log": ("package_conflict", None, "ImportError: Found an incompatible"),
    # the NaN comes first; the exception is what the writing of its checkpoint ran into
    "megatron-lm-core0.16.1-gpt-cpu-nan-abort-FAIL.log": ("nan_loss", 0, "Unexpected result nan on rank 0"),
    "megatron-lm-rocm_dev-gpt-cpu-nan-abort-FAIL.log": ("nan_loss", 0, "found NaN in local forward loss"),
    "megatron-lm-rocm_dev-gpt-cpu-nan-continue.log": ("nan_loss", None, "iteration        2/"),
    "torchtitan-0.1.0-bad-cli-option-FAIL.log": ("bad_option", 0, "--training.batch_size, 2"),
    "torchtitan-0.2.2-bad-option-2xH200-FAIL.log": ("bad_option", 0, "--no-profiling.enable_profiling"),
    # both ranks raise it; torchrun saw rank 1 fail first
    "torchtitan-0.2.2-cpu-2ranks-fsdp-gloo-premulsum-FAIL.log": ("bad_option", 1, "RuntimeError: Cannot use ReduceOp"),
    "torchtitan-0.2.2-cpu-crash-after-step1-FAIL.log": ("python_error", 0, "TypeError: (): incompatible function"),
    "torchtitan-0.2.2-cpu-unpatched-FAIL.log": ("missing_package", 0, "No module named 'triton'"),
    "torchtitan-0.2.2-debugmodel-cpu-nanloss.log": ("nan_loss", 0, "step:  3  loss:      nan"),
    "torchtitan-0.3.0-cpu-flexattention-FAIL.log": ("python_error", 0, "NotImplementedError: FlexAttention"),
    "torchtitan-0.3.0-debugmodel-cpu-nanabort-FAIL.log": ("nan_loss", 0, "RuntimeError: Loss is not finite"),
    "torchtitan-0.3.0-torch2.13-no-set_timeout-FAIL.log": ("python_error", 0, "has no attribute 'set_timeout'"),
    # rank 1 says that its peer closed the connection, and is told to end
    "torchtune-0.6.1-full-distributed-cpu-memstats-FAIL.log": ("bad_option", 0, "ValueError: Logging memory stats"),
}
# no trainings, pieces of logs, and formats that tests/plugins/test_formats.py has with what they come to
OTHERS = (
    *("maxtext-primus-prefix-cut", "mlperf-5.0-aborted", "modded-nanogpt-2025", "nanotron-2025", "nemo-2-nan"),
    "nemo-1.23-exponent",
    "sd-scripts-nan",
    "dryrun",
    "megatron-gpu-lines",
    "made-up-numbers.txt",
    ".jsonl",
    ".disklogger.txt",
    "torchrun-ddp_tiny",
)
WELL = sorted(
    path
    for path in (*LOGS.glob("*"), *(ROOT_FOLDER / "docs/results").glob("**/*.log"))
    if path.name not in FAILED and "FAIL" not in path.name and not any(part in path.name for part in OTHERS)
)


def read(path: Path):
    return read_log(path.name, iter([path.read_bytes()]), PLUGINS, None)


def follow(*lines: str, rules=RULES) -> LogMonitor:
    return monitored((), lines, rules)


def why(*lines: str, cause=Cause.EXIT_CODE, facts=None, rules=RULES):
    log = follow(*lines, rules=rules)
    return diagnose(cause, log.best_error_line, log, facts or DiagnosisInput(exit_code=1))


def test_every_failed_log_is_here():
    assert {path.name for path in LOGS.glob("*FAIL*")} <= set(FAILED)
    assert len(WELL) > 30


@each_row("name", FAILED)
def test_a_failed_log_has_its_cause(name):
    cause, rank, line = FAILED[name]
    reading = read(LOGS / name)
    assert reading.verdict.status is Status.FAILURE
    found = reading.diagnosis
    assert (found.cause, found.rank) == (cause, rank) and line in found.line
    assert reading.verdict.evidence == found.line
    assert not any(word in found.hint for word in ("--set", "madlite", "--image", "--precision", "MAD_SECRETS"))


@each_row("name", [name for name in FAILED if "FAIL" in name])
def test_a_run_with_that_output_has_the_same_cause(name):
    cause, rank, line = FAILED[name]
    backend = PLUGINS.backends()[read(LOGS / name).backend or "script"][0]
    log = monitored([backend.reader(None)], (LOGS / name).read_bytes(), RULES)
    found = diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=1, oom_kills=0))
    assert (found.cause, found.rank) == (cause, rank) and line in found.line


@pytest.mark.host
@each_row("path", WELL, ids=lambda path: path.name)
def test_a_log_that_went_well_raises_no_alarm(path):
    reading = read(path)
    assert reading.diagnosis is None
    assert reading.verdict.status is Status.SUCCESS or "no step reports tokens" in reading.verdict.reason
    assert not any("looks like a failure" in text for text in reading.verdict.findings)


@each_row(
    "line",
    [
        "loss_error: 0.1  cross_entropy_error: 2.5, 0 errors, 0 failures, error_injection_rate 0",
        "ValueError handled: the tokenizer has no pad token, eos is used",
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used.",
        "To avoid out of memory errors, set a smaller batch; in case of Killed workers see the docs",
        "WARNING - Error running lspci: [Errno 2] No such file or directory: 'lspci', fallback to use device_name",
        "model.safetensors.index.json not found at assets/tokenizer, saving one file",
        "[rank0]: warnings.warn('Connection timeout set to 30 s; network is fine')",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 NCCL_ERROR_LEVEL=2 HSA_ENABLE_SDMA=0",
        "step time 1.2 s, killed 0 stragglers, memory 90 %",
        "Sending process 71 closing signal SIGTERM",
        "best validation loss is infinite (no validation)",
        "on_oom: retry if CUDA out of memory, PYTORCH_ALLOC_CONF=x avoids HIP out of memory",
        "run.sh: line 9: 4444 Killed                  rocm-smi --showuse -l 1 > gpu.log",
    ],
)
def test_words_of_a_good_log_are_no_root(line):
    clue = follow(line).failures.candidate
    assert clue is None or clue.tier > ROOT


def timeout(rank: int) -> str:
    return (
        f"[rank{rank}]:[E0305 09:10:11.123 ProcessGroupNCCL.cpp:700] [Rank {rank}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=9) ran for 10 "
        "milliseconds before timing out."
    )


@pytest.fixture
def plan(given):  # noqa: F811
    return make_plan(given())


def footer(root: int, code: int, others: dict[int, int]) -> list[str]:
    """Return torchrun's table."""
    lines = ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "t.py FAILED", "-" * 60]
    lines += ["Failures:", *(["  <NO_OTHER_FAILURES>"] if not others else [])]
    for place, (rank, ended) in enumerate(others.items(), 1):
        lines += [f"[{place}]:", *_entry(rank, ended)]
    return [*lines, "-" * 60, "Root Cause (first observed failure):", "[0]:", *_entry(root, code), "=" * 60]


def _entry(rank: int, code: int) -> list[str]:
    signals = {-9: "Signal 9 (SIGKILL) received by PID 5", -15: "Signal 15 (SIGTERM) received by PID 6"}
    trace = signals.get(code, "To enable traceback see: https://pytorch.example/errors")
    return [
        "  time      : 2026-03-05_09:10:11",
        "  host      : n7",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 5{rank})",
        "  error_file: <N/A>",
        f"  traceback : {trace}",
    ]


def trace(rank: int | None, error: str, file: str = "/w/train.py") -> list[str]:
    before = "" if rank is None else f"[rank{rank}]: "
    return [
        f"{before}Traceback (most recent call last):",
        f'{before}  File "{file}", line 12, in main',
        f"{before}    step()",
        f'{before}  File "/v/lib/python3.12/site-packages/a/b.py", line 9, in step',
        f"{before}    raise it",
        f"{before}{error}",
    ]


OOM = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 6.00 GiB. GPU 3 has a total capacity of 255.98 GiB "
    "of which 2.56 GiB is free."
)


def test_of_several_failures_the_first_s_is_the_cause():
    # memory that ran out on one rank comes before the timeouts of the others
    late = [timeout(rank) for rank in range(8) if rank != 3]
    found = why(*late[:2], *trace(3, OOM), *late[2:], *footer(0, -6, {1: -6, 3: 1}))
    assert (found.cause, found.rank, found.line) == ("gpu_out_of_memory", 3, OOM)
    assert found.where == "/w/train.py:12 in main"
    assert "99 % of 256 GiB were in use, 6.00 GiB more were asked for" in found.hint
    # an exception comes before what other ranks say of it
    closed = "RuntimeError: [/x/pair.cc:5] Connection closed by peer [10.1.2.3]:4455. A remote worker may have crashed."
    found = why(*trace(1, closed), *trace(0, "KeyError: 'lr'"), *footer(0, 1, {1: -15}))
    assert (found.cause, found.rank, found.line) == ("python_error", 0, "KeyError: 'lr'")
    assert found.where == "/w/train.py:12 in main"
    found = why(*trace(1, closed), *footer(0, 1, {1: -15}))
    assert (found.cause, found.rank) == ("exit_code", 0), "rank 0 ended first, by itself: no link did"
    found = why(*trace(1, closed), *footer(1, 1, {0: -15}))
    assert (found.cause, found.rank) == ("network", 1), "where nothing else is said"
    # of several exceptions that of the rank that failed first counts
    found = why(*trace(0, "AssertionError: b"), *trace(5, "IndexError: a"), *footer(5, 1, {0: 1}))
    assert (found.rank, found.line) == (5, "IndexError: a")
    assert why(*trace(0, "AssertionError"), *trace(5, "IndexError: a")).line == "AssertionError"
    # a segmentation fault has its rank
    found = why(*footer(2, -11, {0: -15}))
    assert (found.cause, found.rank) == ("crash", 2) and "SIGSEGV" in found.hint
    # a timeout without another cause is one
    found = why("step", timeout(4), timeout(5), *footer(4, -6, {5: -6}))
    assert (found.cause, found.rank) == ("collective_timeout", 4) and "ALLREDUCE" in found.hint


@each_row(("kills", "cause"), [(None, "killed"), (2, "host_out_of_memory"), (0, "killed")])
def test_a_rank_that_was_killed_comes_before_those_that_were_told_to_end(kills, cause):
    lines = ["E0305 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 51) of binary: /usr/bin/python3"]
    lines += footer(1, -9, {0: -15, 2: -15})
    found = why(*lines, facts=DiagnosisInput(exit_code=1, oom_kills=kills))
    assert (found.cause, found.rank) == (cause, 1) and "-9" in found.line
    assert "memory" in found.hint
    found = why(
        "[rank2]: RuntimeError: x", *trace(2, "SomethingError: gone"), *lines, facts=DiagnosisInput(oom_kills=kills)
    )
    assert (found.cause, found.rank) == (cause, 1), "another rank's exception came of it"


def test_what_was_done_without_or_said_before_or_after_is_not_the_cause():
    missing = trace(None, "ModuleNotFoundError: No module named 'apex'")
    found = why(*missing, "goes on without", *trace(None, "ValueError: no such schedule"))
    assert (found.cause, found.line) == ("python_error", "ValueError: no such schedule")
    assert why(*missing).cause == "missing_package"
    assert why(*missing, "x", *footer(0, -9, {})).cause == "killed"
    # what python says while it ends is not the cause
    ignored = ["Exception ignored in: <function f>", *trace(None, "TypeError: 'NoneType'")]
    thread = ["Exception in thread Thread-2 (loop):", *trace(None, "OSError: closed")]
    logged = ["--- Logging error ---", *trace(None, "ValueError: fmt")]
    assert why(*ignored, *thread, *logged, *trace(None, "EOFError: x")).line == "EOFError: x"
    assert why(*ignored, *thread, *logged).cause == "exit_code"

    class Steps:
        def feed(self, line):
            from madlite.model import Quantity, Step

            return [Step(n=int(line.text[5:]), values={Quantity.LOSS: 1.0})] if line.text.startswith("step=") else ()

        def finish(self, outputs):
            return ()

    def after(*lines: str):
        log = monitored([Steps()], lines, RULES)
        return diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=1))

    assert after(*trace(None, OOM), "step=1", *trace(None, "ValueError: x")).line == "ValueError: x"
    # a buffered stdout brings its steps after what the same process wrote to stderr
    assert after("step=1", *trace(None, OOM), "step=2", "step=3").cause == "gpu_out_of_memory"
    assert after(*trace(None, OOM), "step=1", *(f"x{n}" for n in range(500)), "step=2").cause == "exit_code"


def test_a_message_of_several_lines_names_what_it_is_about():
    lines = [
        *trace(None, "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-2)"),
        "",
        "Cannot access gated repo for url https://huggingface.co/acme/big-7B/resolve/main/config.json.",
        "Access to model acme/big-7B is restricted and you are not in the authorized list. Visit it to ask for access.",
    ]
    found = why(*lines)
    assert found.cause == "gated_repository" and "https://huggingface.co/acme/big-7B" in found.hint
    assert why(lines[5]).cause == "gated_repository"


def test_a_line_names_the_rank_that_its_launcher_does():
    assert why("[rank2]: srun: error: n3: task 5: Out Of Memory").rank in (2, 5)
    assert why("[rank2]: RuntimeError: No HIP GPUs are available").rank == 2


@each_row(
    ("code", "kills", "cause"),
    [(-9, 1, "host_out_of_memory"), (137, 1, "host_out_of_memory"), (-9, 0, "killed"), (137, 0, "killed"),
     (-9, None, "killed"), (137, None, "killed"), (143, 0, "killed"), (-11, 0, "crash"), (139, None, "crash"),
     (-7, 0, "crash"), (134, 0, "crash"),
     (1, 1, "exit_code"), (255, 0, "exit_code"), (128, 0, "exit_code")],
)  # fmt: skip
def test_an_exit_code_alone_tells_of_a_signal(code, kills, cause):
    found = why("hello", facts=DiagnosisInput(exit_code=code, oom_kills=kills))
    assert (found.cause, found.line) == (cause, "hello")
    assert bool(found.hint) == (cause != "exit_code")


@each_row(
    "told",
    [
        "[ 77.1] Out of memory: Killed process 4321 (python), UID 0",
        "slurmstepd: error: Detected 3 oom_kill events in StepId=42.0. Some of the step tasks have been OOM Killed.",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    ],
)
@each_row("ended", ["run.sh: line 4: 99 Killed   python train.py", "srun: error: n1: task 3: Killed"])
def test_a_kill_with_the_kernels_own_words_is_for_want_of_memory(told, ended):
    assert why(told, ended).cause == why(ended, told).cause == "host_out_of_memory"
    alone = why(ended)
    assert alone.cause == "killed" and "memory" in alone.hint and "dmesg" in alone.hint


def test_a_full_disk_tells_of_its_folder(tmp_path):
    line = "OSError: [Errno 28] No space left on device: '/o/a.pt'"
    room = DiskSpace(folder=tmp_path, free_bytes=3 << 29, free_inodes=70_000)
    found = why(line, facts=DiagnosisInput(exit_code=1, disk=room))
    assert found.cause == "disk_full" and f"{tmp_path} has 1.5 GiB and 70000 inodes left" in found.hint
    assert "/o/a.pt" in found.hint
    none = DiskSpace(folder=tmp_path, free_bytes=3 << 29, free_inodes=0)
    assert why(line, facts=DiagnosisInput(exit_code=1, disk=none)).cause == "inodes_full"
    assert why(line, facts=DiagnosisInput(disk=DiskSpace(folder=tmp_path, free_bytes=0))).cause == "disk_full"
    assert "df -i" in why(line).hint


def test_a_hang_has_the_line_rank_and_hint_of_what_waited_or_says_where_to_look(plan):
    # an exception of one rank explains why the others stood still
    for cause in (Cause.HANG, Cause.TIMEOUT):
        found = why(*trace(3, "ValueError: bad shape"), timeout(0), timeout(1), cause=cause)
        assert (found.cause, found.rank, found.line) == ("python_error", 3, "ValueError: bad shape")
    assert why("cp: cannot stat 'x': No such file or directory", cause=Cause.HANG).cause == "hang"
    # what our own signals bring about
    told = trace(2, "RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated. ")
    assert why(*told, cause=Cause.HANG).cause == "hang"
    signal = trace(None, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: 15")
    assert why(*signal, cause=Cause.TIMEOUT).cause == "timeout"
    # a collective that waited gives a hang its line rank and hint
    found = why(timeout(4), timeout(5), cause=Cause.HANG, facts=DiagnosisInput(plan=plan))
    assert (found.cause, found.rank) == ("hang", 4) and "Watchdog caught" in found.line
    assert "ALLREDUCE number 77" in found.hint and "hang/stacks.txt" in found.hint
    # a bare hang says where to look and which limit may be too short
    hint = why("loading", cause=Cause.HANG, facts=DiagnosisInput(plan=plan)).hint
    assert "hang/stacks.txt" in hint and "--start-silence-limit" in hint


def test_a_plugins_rule_comes_before_a_common_one_and_fills_its_hint(plan):
    rule = FailureRule(pattern=r"No module named '(?P<name>b\w+)'", cause="x", tier="error", hint="get {name}, {odd}")
    found = why("ModuleNotFoundError: No module named 'bits'", rules=with_common([rule]))
    assert (found.cause, found.hint) == ("x", "get bits, {odd}")
    # a plugins rule wins on its line though a common one names more
    found = why(
        "ModuleNotFoundError: No module named 'torchao'", facts=DiagnosisInput(plan=replace(plan, backend="torchtitan"))
    )
    assert found.source == "torchtitan/failures.toml"
    assert found.hint == "FP8 needs torchao where the training runs: pip install torchao; or --precision BF16"
    told = why(*trace(0, "ModuleNotFoundError: No module named 'torchao'"))
    assert told.hint == "FP8 needs torchao where the training runs: pip install torchao", "no option of another's run"
    # options are told in runs of a backend that has them alone
    line = "KeyError: 'float8'"
    assert "--set precision=FP8" in why(line, facts=DiagnosisInput(plan=replace(plan, backend="primus"))).hint
    assert "--set" not in why(line, facts=DiagnosisInput(plan=replace(plan, backend="script"))).hint


def test_a_log_is_explained_by_the_rules_of_its_own_backend():
    log = (LOGS / "torchtitan-0.2.2-cpu-crash-after-step1-FAIL.log").read_text()
    log = log.replace(
        "TypeError: (): incompatible function", "ValueError: Logging memory stats is not supported on CPU devices"
    )
    reading = read_log("x", iter([log.encode()]), PLUGINS, None)
    assert (reading.backend, reading.diagnosis.cause) == ("torchtitan", "python_error")
    # other backends rules do not explain a training
    rules = PLUGINS.failure_rules()
    float8 = trace(0, "KeyError: 'float8'")
    assert why(*float8, rules=with_common(rules, {"torchtitan"})).cause == "bad_option"
    assert why(*float8, rules=with_common(rules, {"primus"})).cause == "bad_option", "it trains with torchtitan"
    for other in ("torchtune", "hf", "torchrun"):
        assert why(*float8, rules=with_common(rules, {other})).cause == "python_error"
    third = FailureRule(pattern="KeyError: 'float8'", cause="mine")
    assert why(*float8, rules=with_common([*rules, third], {"hf"})).cause == "mine"


@each_row(
    ("lines", "cause", "hint"),
    [
        (["HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/o/m/resolve/main/c.json"],
         "gated_repository", "https://huggingface.co/o/m,"),
        (["HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/datasets/o/d/resolve/main/a.txt"],
         "gated_repository", "https://huggingface.co/datasets/o/d,"),
        (["HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2",
          "", "Invalid user token."], "gated_repository", "settings/tokens"),
        (["HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/o/m"],
         "network", "token"),
        (["HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/o/m/resolve/main/c.json"],
         "missing_repository", "has no o/m,"),
        (["huggingface_hub.errors.EntryNotFoundError: 404 Client Error. (Request ID: x)", "",
          "Entry Not Found for url: https://huggingface.co/o/m/resolve/main/w.safetensors."],
         "missing_file", "o/m has no w.safetensors"),
        (["OSError: o/m does not appear to have a file named config.json. Checkout 'https://huggingface.co/o/m/tree/main'"],
         "missing_file", "o/m has no such file"),
    ],
)  # fmt: skip
def test_what_the_hub_says_without_naming_its_error(lines, cause, hint):
    found = why(*trace(None, lines[0]), *lines[1:])
    assert found.cause == cause and hint in found.hint
    assert why(*lines).cause == cause, "without its traceback"


def test_the_classified_error_of_a_chain_counts():
    first = (
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://huggingface.co/o/m/resolve/main/c"
    )
    chain = ["", "The above exception was the direct cause of the following exception:", ""]
    second = "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. (Request ID: x)"
    assert why(*trace(None, first), *chain, *trace(None, second)).cause == "missing_file"
    private = "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: x)"
    refused = "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/o/m/resolve/main/c"
    assert why(*trace(None, refused), *chain, *trace(None, private)).cause == "missing_repository"
    # of an exception that was handled what came out of it counts
    assert why(*trace(None, "KeyError: 'a'"), *HANDLING, *trace(None, "ValueError: b")).line == "ValueError: b"
    lines = [*trace(1, "KeyError: 'a'"), *(f"[rank1]: {line}" for line in HANDLING), *trace(1, "ValueError: b")]
    assert why(*lines).line == "ValueError: b"
    cause = ["", "The above exception was the direct cause of the following exception:", ""]
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/d/a.json'"
    found = why(*trace(None, missing), *cause, *trace(None, "RuntimeError: no tokenizer"))
    assert (found.cause, found.line) == ("missing_file", missing)
    # memory that ran out is the cause, whatever the handler of it ran into
    assert why(*trace(0, OOM), *(f"[rank0]: {line}" for line in HANDLING), *trace(0, "AttributeError: x")).line == OOM
    # the same once more, and nobody handled it
    again = why(
        *trace(None, "KeyError: 'a'"), *HANDLING, *trace(None, "OSError: b"), "x", *trace(None, "KeyError: 'a'")
    )
    assert again.line == "OSError: b"
    # an exception has its rule where its line was not asked about
    scan = CandidateScan(compile_rules(RULES))
    scan.feed(make_block(trace(2, OOM)), every_rule=False)
    (clue,) = scan.candidates()
    assert (clue.cause, clue.rank, clue.tier, clue.uncaught) == ("gpu_out_of_memory", 2, ROOT, True)
    scan.feed(make_block([OOM, timeout(1)]), every_rule=False)
    assert len(scan.candidates()) == 1


HANDLING = ["", "During handling of the above exception, another exception occurred:", ""]


@each_row(
    "survived",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (autotune: config skipped)",
        "RuntimeError: HIP error: out of memory",
        "OSError: [Errno 28] No space left on device: '/root/.triton/cache' (falling back)",
        "cp: write error: No space left on device",
        "loss is inf, skipping step and lowering scale",
    ],
)
def test_what_a_rank_survived_is_not_why_it_ended(survived):
    assert why(survived, *trace(None, "ValueError: final")).line == "ValueError: final"
    assert why(f"[rank1]: {survived}", *trace(1, "ValueError: final")).line == "ValueError: final"


def test_a_root_that_was_raised_or_is_another_ranks_stays_the_cause():
    for root in ("RuntimeError: HIP error: out of memory", "OSError: [Errno 28] No space left on device: '/o'"):
        assert why(*trace(None, root), "x", *trace(None, "ValueError: final")).line == root
        assert why(f"[rank1]: {root}", *trace(0, "ValueError: final")).rank == 1
        assert why(root, *trace(None, "ModuleNotFoundError: No module named 'a'")).line == root
    # a fault is survived by nobody
    fault = "Memory access fault by GPU node-4 (Agent handle: 0x7) on address 0x7f1. Reason: Unknown."
    assert why(fault, *trace(None, "RuntimeError: HIP error")).cause == "gpu_fault"
    assert (
        why("train.py: error: unrecognized arguments: --x", *trace(None, "RuntimeError: it failed")).cause
        == "bad_option"
    )
    # what ended a run stays its cause unless a rank failed before
    assert why(timeout(1), cause=Cause.TIMEOUT).cause == "timeout"
    assert why(timeout(1), cause=Cause.HANG).cause == "hang"
    assert why(*trace(2, OOM), timeout(1), cause=Cause.TIMEOUT).rank == 2
    assert why(*trace(2, OOM), cause=Cause.INTERRUPTED).cause == "interrupted"


def test_a_warning_explains_nothing_by_itself():
    for line in (
        "WARNING: Could not resolve host: tracker.example, running offline",
        "No module named 'apex', continuing",
        "sh: 1: nvidia-smi: not found",
    ):
        found = why(line, "train: bad value -1, stop")
        assert (found.cause, found.line) == ("exit_code", "train: bad value -1, stop")
    # a line that looks like an error tells and a warning does not
    log = follow("titan - WARNING - index.json not found at /a", "starting", "OddError: gone", "[W1121 x.cpp:1] late")
    assert log.best_error_line == "OddError: gone"
    assert follow("titan - WARNING - index.json not found at /a", "starting").best_error_line == "starting"
    assert follow("Warning: all", "UserWarning: b").best_error_line == "UserWarning: b", "there is nothing else"
    # a log that was cut off shows its last step and no warning
    log = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text().split("\n")
    cut = next(n for n, line in enumerate(log) if "step: 12" in line)
    warning = "[rank0]:[W1121 ProcessGroupNCCL.cpp:1] Warning: WARNING: destroy_process_group() was not called before"

    def evidence(*more: str) -> str:
        return read_log("x", iter(["\n".join([*log[: cut + 1], *more]).encode()]), PLUGINS, None).verdict.evidence

    assert "step: 12" in evidence() and "step: 12" in evidence(warning) and "step: 12" in evidence("bye", "")
    assert evidence("MyError: the store is gone", warning) == "MyError: the store is gone"


def test_the_real_text_of_a_collective_librarys_error_counts():
    backend = "torch.distributed.DistBackendError: NCCL error in: a.cpp:77, {}, NCCL version 2.26.6"
    cuda = trace(3, backend.format("unhandled cuda error (run with NCCL_DEBUG=INFO for details)"))
    found = why(*cuda, "ncclUnhandledCudaError: Call to CUDA function failed.", "Last error:",
                "Failed to CUDA calloc async 608 bytes: out of memory")  # fmt: skip
    assert found.cause == "gpu_out_of_memory"
    assert why("n1:5:5 [0] NCCL WARN Cuda failure 2 'out of memory'").cause == "gpu_out_of_memory"
    assert (why(*cuda).cause, why(*cuda).rank) == ("gpu_fault", 3)
    used = trace(3, backend.format("invalid usage (run with NCCL_DEBUG=WARN for details)"))
    found = why(*used, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000")
    assert found.cause == "bad_option" and "ranks 1 and 0 are on one GPU" in found.hint
    assert why(*trace(3, backend.format("unhandled system error"))).cause == "network"


@each_row(
    ("line", "cause"),
    [
        ("RuntimeError: Socket Timeout", "network"),
        ("torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0", "network"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "network"),
    ],
)
def test_what_other_ranks_say_of_a_dead_one_follows(line, cause):
    assert why(*trace(0, line)).cause == cause
    found = why(*trace(0, line), "srun: error: node1: task 3: Killed")
    assert (found.cause, found.rank) == ("killed", 3)


@each_row(
    ("line", "rank"),
    [
        ("srun: error: node1: task 3: Segmentation fault (core dumped)", 3),
        ("srun: error: node1: task 4: Bus error", 4),
        ("mpirun noticed that process rank 5 with PID 0 on node n1 exited on signal 9 (Killed).", 5),
        ("mpirun noticed that process rank 6 with PID 0 on node n1 exited on signal 11 (Segmentation fault).", 6),
    ],
)
def test_slurm_and_open_mpi_name_the_rank(line, rank):
    found = why(line)
    crashed = "Segmentation" in line or "Bus" in line
    assert (found.rank, found.cause) == (rank, "crash" if crashed else "killed")


def test_a_failed_log_is_not_suspect_too():
    log = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text()
    log = "\n".join(line for line in log.split("\n") if "Training completed" not in line)
    verdict = read_log("x", iter([f"{log}\n".encode()]), PLUGINS, None).verdict
    assert verdict.status is Status.SUCCESS and verdict.suspect
    log += "\n" + "\n".join(trace(0, "ValueError: bad shape")) + "\n"
    verdict = read_log("x", iter([log.encode()]), PLUGINS, None).verdict
    assert (verdict.status, verdict.suspect, verdict.evidence) == (Status.FAILURE, (), "ValueError: bad shape")
    # a number or size that cannot be has the line it was read from
    log = (LOGS / "torchtitan-0.2.2-debugmodel-cpu-1rank.log").read_text()
    none = re.sub(r"tps:(\S* )[\d,]+", r"tps:\g<1>0", log)
    verdict = read_log("x", iter([none.encode()]), PLUGINS, None).verdict
    assert verdict.cause is Cause.BAD_NUMBER and "step: 20" in verdict.evidence
    monitor = LogMonitor([PLUGINS.backends()["torchtitan"][0].reader(None)], RULES)
    monitor.feed(log.encode())
    assert "local batch size 2" in monitor.config_lines["micro_batch"]
    # a script that ended well without a number may have handled an error
    fine = DiagnosisInput(exit_code=0)
    assert why("cp: cannot stat 'x': No such file or directory", cause=Cause.NO_METRIC, facts=fine).cause == "no_metric"
    assert why(*trace(None, "OSError: x"), cause=Cause.NO_METRIC, facts=fine).cause == "python_error"
    assert why(OOM, cause=Cause.NO_METRIC, facts=fine).cause == "gpu_out_of_memory"


def test_whatever_a_log_says_something_is_found_or_nothing():
    odd = (
        "Root Cause (first observed failure):",
        "  rank      : 99999999999",
        "  exitcode  : -",
        "[rank]: x",
        "Traceback (",
    )
    found = why(*odd, *(line * 3 for line in trace(4, "E")), "\x00", "=" * 5000, "failed (exitcode: -7) local_rank: 0")
    assert found.cause == "crash"
    endless = ["Traceback (most recent call last):", *("no frame" for _ in range(4000)), "ValueError: x"]
    assert why(*endless).cause == "exit_code"
    # a tier is an order
    clues = follow(timeout(1), *trace(0, "KeyError: 1"), OOM)
    assert (
        clues.failures.candidate.tier == ROOT
        and follow(timeout(1), *trace(0, "KeyError: 1")).failures.candidate.tier == ERROR
    )
    # where a launcher alone speaks its first failure is the line
    found = why("loss 2.5 at 1", "loss 2.4 at 2", *footer(6, 1, {2: 1}))
    assert (found.cause, found.rank, found.line) == ("exit_code", 6, "exitcode  : 1 (pid: 56)")
    assert why("Error: nothing works", *footer(6, 1, {})).line == "Error: nothing works"


def test_a_long_log_without_steps_is_held_in_part(monkeypatch):
    monkeypatch.setattr("madlite.measure.failure_scan._BUFFER_SIZE", 1000)
    monkeypatch.setattr("madlite.measure.failure_scan._HEAD_SIZE", 5000)
    ending = FailureScan(RULES)
    for line in (timeout(1), *("words " * 20 for _ in range(300)), timeout(2), "end"):
        ending.feed(make_block([line]), None)
    ending.finish()
    assert ending.late_candidate.rank == 1 and ending.scan.launchers.first is None
    ending.forget()
    assert ending.late_candidate is None
    # what shows an end is one anywhere, and a cause in the beginning and at the end
    handled = "W1 handled: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    for last, cause in (("end", None), (handled, "gpu_out_of_memory")):
        ending = FailureScan(RULES)
        for line in (*("words " * 20 for _ in range(300)), handled, *("words " * 20 for _ in range(300)), last):
            ending.feed(make_block([line]), None)
        ending.finish()
        assert ending.fatal_line and (ending.late_candidate and ending.late_candidate.cause) == cause
