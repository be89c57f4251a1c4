"""What programs say in their several versions, by the cause that it tells, however a launcher writes it down."""

from __future__ import annotations

import re

import pytest

from madlite.measure.rules import with_common
from madlite.measure.verdict import Observation, Verdict, judge
from madlite.model import Cause, ErrorScan, Status
from madlite.plan.actions import BENIGN, PATTERNS
from tests.measure.checks.runs import DONE, script_plan
from tests.measure.test_diagnosis import (
    LOGS,
    PLUGINS,
    RULES,
    DiagnosisInput,
    diagnose,
    follow,
    footer,
    read,
    timeout,
    trace,
    why,
)
from tests.measure.training_logs import parsed
from tests.monitors import monitored
from tests.rows import each_row
from tests.tiers import ALL

DATA = LOGS.parent


def words_of(kind: str) -> list[tuple[str, str, str]]:
    """Return words, cause and a part of the hint of a kind in the table."""
    rows = [line.split("\t") for line in (DATA / "causes.tsv").read_text().splitlines() if not line.startswith("#")]
    return [(words, cause, hint) for what, cause, hint, words in rows if what == kind]


RAISED, LINES = words_of("raised"), words_of("line")


@each_row("label", [None, 5])
@each_row(("words", "cause", "hint"), RAISED, ids=lambda one: one[:40])
def test_an_exception_has_its_cause_and_hint(words, cause, hint, label):
    others = [timeout(rank) for rank in range(4)]
    found = why(*others[:2], *trace(label, words), *others[2:], *footer(5, 1, {0: -6}))
    assert (found.cause, found.rank, found.line) == (cause, 5, words)
    assert hint in found.hint and "{" not in found.hint and found.where == "/w/train.py:12 in main"
    found = why(*others[:2], *trace(5, words), *others[2:], *footer(0, -6, {5: 1}))
    assert (found.cause, found.rank, found.line) == (cause, 5, words), "rank 0 was ended by what followed"


@each_row("before", ["", "[rank3]: ", "[default3]:", "\x1b[31m", "2026-03-05T09:10:11.123456789Z "])
@each_row(("line", "cause", "hint"), LINES, ids=lambda one: one[:40])
def test_a_line_has_its_cause_and_hint(line, cause, hint, before):
    end = "\x1b[0m" if before.startswith("\x1b") else ""
    found = why("begin", f"{before}{line}{end}", *([] if cause == "killed" else ["Aborted (core dumped)"]))
    assert found.cause == cause and line.split(": ")[-1].strip() in found.line
    assert hint in found.hint and "{" not in found.hint
    if "rank3" in before or "default3" in before:
        assert found.rank == 3
    late = {"collective_timeout"} if cause in ("network", "interrupted") else set()
    assert why("begin", timeout(1), line, timeout(2)).cause in {cause, *late}


BARRIER = "Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:1"


@each_row(
    ("words", "joined"),
    [
        (f"RuntimeError: {BARRIER} (world_size=16, worker_count=8, timeout=0:30:00)", "8 of 16"),
        (
            f"torch.distributed.DistStoreError: {BARRIER.replace('rank: 0', 'rank 0')} "
            "(world_size=2, num_workers_joined=1, timeout=0:05:00)",
            "1 of 2",
        ),
    ],
)
def test_ranks_that_did_not_come_to_the_start_are_counted(words, joined):
    found = why(*trace(0, words), *footer(0, 1, {1: -15}))
    assert (found.cause, found.rank, found.line) == ("network", 0, words) and joined in found.hint
    found = why(*trace(0, words), *trace(3, "KeyError: 'x'"), *footer(3, 1, {0: -15}))
    assert (found.cause, found.rank) == ("python_error", 3), "it waited for one that had failed"


@each_row("label", ["", "[rank0]: ", "[rank0]:", "[default0]:", "2026-03-05 09:10:11 "])
@each_row(
    ("words", "cause"),
    [
        (
            "LlamaTokenizer requires the SentencePiece library but it was not found in your environment. Checkout",
            "missing",
        ),
        (
            "T5Converter requires the protobuf library but it was not found in your environment. Check out the",
            "missing",
        ),
        ("AutoModel requires the PyTorch library but it was not found in your environment. Check out the", "missing"),
        ("a thing that no rule knows", "python_error"),
    ],
)
def test_an_exception_without_words_has_those_of_the_next_line(label, words, cause):
    lines = [line.replace("[rank0]: ", label) for line in trace(0, "ImportError: ")]
    for blank in ([], [label], [""]):
        found = why(*lines, *blank, f"{label}{words}", f"{label}installation page of its repo: https://x")
        assert (found.cause.removesuffix("_package"), found.line) == (cause, f"ImportError: {words}")
        assert found.where == "/w/train.py:12 in main"


@each_row("label", ["", "[rank0]: ", "[rank0]:", "[default0]:"])
@each_row("ranks", [[0], [3], [0, 1], [2, 0, 1]])
def test_a_checkpoint_s_exception_is_what_a_rank_raised(label, ranks):
    head = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys"
    nested = "RuntimeError: Missing key in checkpoint state_dict: model.a."
    lines = [line.replace("[rank0]: ", label) for line in trace(0, f"{head}({ranks})")]
    for rank in ranks:
        lines += [f"{label}Traceback (most recent call last): (RANK {rank})"]
        lines += [f'{label}  File "/t/default_planner.py", line 372, in plan', f"{label}    raise it", label + nested]
    found = why(*lines, label, *footer(0, 1, {1: -15}))
    whose = 0 if 0 in ranks else ranks[0]  # torchrun's table names rank 0
    assert (found.cause, found.rank, found.line) == ("bad_option", whose, nested)
    assert found.where == "/t/default_planner.py:372 in plan"
    lines = [line.replace(nested, "ValueError: what no rule knows") for line in lines]
    assert why(*lines).line == "ValueError: what no rule knows"
    alone = trace(0, f"{head}([0])")
    assert why(*alone).line == f"{head}([0])" and why(*alone).cause == "python_error"


CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6060. GLHF!"
STEPS = [f"step {n} loss 2.{n} tps {5000 + n}" for n in range(12)]
REMOTE = (
    "torch.distributed.DistBackendError: NCCL error in: a.cpp:7, remote process exited or there was a network error"
)
RESET = "torch.distributed.DistNetworkError: Connection reset by peer"


@each_row("followed", [CLOSED, REMOTE, RESET, "RuntimeError: Broken pipe"])
@each_row("code", [1, 2, 3, 255])
def test_a_rank_that_ended_by_itself_comes_before_who_lost_it(code, followed):
    own = "the data set is exhausted after 12 batches"
    for said in ([own], [f"[rank1]: {own}"], [f"[default1]:{own}"]):
        found = why(*STEPS, *said, *trace(0, followed), *trace(2, followed), *footer(1, code, {0: -15, 2: 1}))
        assert (found.cause, found.rank, found.line) == ("exit_code", 1, own)
        assert f"exit code {code}" in found.hint
    found = why(*STEPS, *trace(0, followed), *footer(1, code, {0: -15}))
    assert (found.cause, found.rank, found.line) == ("exit_code", 1, f"exitcode  : {code} (pid: 51)")
    raised = trace(1, "KeyError: 'lr'")
    found = why(*STEPS, own, *trace(0, followed), *raised, *footer(1, code, {0: -15}))
    assert (found.cause, found.rank, found.line) == ("python_error", 1, "KeyError: 'lr'")


def test_whose_exception_is_repeated_by_another_process_is_known():
    # a task that slurm saw exit first comes before who lost it
    lost = [line.replace("[rank0]: ", "0: ") for line in trace(0, CLOSED)]
    found = why("1: no batch is left", *lost, "srun: error: n1: task 1: Exited with exit code 3")
    assert (found.cause, found.rank) == ("exit_code", 1) and "exit code 3" in found.hint
    found = why(*lost, "srun: error: n1: task 0: Exited with exit code 1")
    assert (found.cause, found.rank) == ("network", 0), "it is the one that lost another"
    found = why(*trace(None, CLOSED), "srun: error: n1: task 1: Exited with exit code 3")
    assert found.cause == "network", "a task may be a whole node"
    # an exception that another process raised is the one of that process
    spawned = trace(None, "torch.multiprocessing.spawn.ProcessRaisedException: ")
    own = trace(None, "KeyError: 'deep'", "/w/worker.py")
    found = why(*spawned, "", "-- Process 1 terminated with the following error:", *own)
    assert (found.cause, found.line, found.where) == ("python_error", "KeyError: 'deep'", "/w/worker.py:12 in main")
    # what torchrun repeats of a rank is that ranks
    table = footer(1, 3, {0: -15})
    at = next(n for n, line in enumerate(table) if "SIGTERM" in line)
    table[at : at + 1] = [
        "  traceback : Traceback (most recent call last):",
        *(f"    {line}" for line in trace(None, CLOSED)),
    ]
    found = why(*STEPS, *trace(0, CLOSED), *table)
    assert (found.cause, found.rank) == ("exit_code", 1)
    raised = footer(0, 1, {1: -15})
    at = next(n for n, line in enumerate(raised) if "To enable" in line)
    raised[at : at + 1] = ["  traceback : Traceback (most recent call last):", *trace(None, "KeyError: 'lr'")]
    assert why(*STEPS, *trace(1, CLOSED), *raised).rank == 0


def test_the_time_of_coreutils_timeout_is_told_by_its_exit_code():
    log = follow("step 1", "step 2")
    found = diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=124))
    assert found.cause == "exit_code" and "timeout" in found.hint
    # a log that never ends with a table costs no more
    log = monitored((), b"  rank      : 1 (local_rank: 1)\n" + b"a line of text that says nothing\n" * 20_000, RULES)
    assert log.failures.candidate is None


TITAN = LOGS / "torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log"
TRAINER = LOGS / "hf-trainer-peft-transformers5.17-cpu-notqdm.log"
SCRIPT = ["begin", "epoch 1 loss 2.5", "epoch 2 loss 2.25", "performance: 5121.5 tokens_per_second", "saved"]
# what a training says that went well, and the error pattern that it has, by which MAD's net fails a card's own script
HARMLESS = [line.partition("\t")[::2] for line in (DATA / "harmless.txt").read_text().splitlines()]
LABELLED = [*HARMLESS, *((f"[rank1]:{words}", pattern) for words, pattern in HARMLESS)]


@pytest.mark.host
@each_row(("n", "words"), enumerate(words for words, _ in LABELLED))
@each_row(("log", "mark"), [(TITAN, r"step:.*loss"), (TRAINER, r"^{'loss'")], ids=["titan", "trainer"])
def test_a_training_that_went_well_stays_one_whatever_its_log_says(n, words, log, mark, tmp_path):
    text = log.read_text().splitlines(keepends=True)
    last = max(at for at, line in enumerate(text) if re.search(mark, line))
    places = (3, last, last + 1, len(text))
    for place in places if ALL else (places[n % 4],):
        path = tmp_path / "x.log"
        path.write_text("".join([*text[:place], f"{words}\n", *text[place:]]))
        found = read(path)
        assert (found.verdict.status.value, found.verdict.suspect, found.diagnosis) == ("SUCCESS", (), None)
        assert not any("looks like" in said for said in found.verdict.findings)


@pytest.mark.host
@each_row(("words", "pattern"), LABELLED, ids=lambda text: text[:50])
def test_a_script_that_went_well_fails_by_an_error_pattern_alone(words, pattern):
    for place in range(len(SCRIPT) + 1):
        lines = [*SCRIPT[:place], words, *SCRIPT[place:]]
        log = monitored((), lines, RULES, error_scan=ErrorScan(patterns=PATTERNS, benign=BENIGN))
        assert_script(judge(script_plan(), Observation(exit=DONE), log), pattern)
    parse = parsed([*SCRIPT, words])
    assert_script(parse.verdict, pattern)
    assert pattern or parse.diagnosis is None


def assert_script(verdict: Verdict, pattern: str) -> None:
    assert [one.text for one in verdict.metrics] == ["5121.5"], "the number stays in the row"
    assert not any("looks like" in said for said in verdict.findings)
    if pattern:
        assert verdict.cause is Cause.ERROR_PATTERN and f"pattern '{pattern}'" in verdict.reason
    else:
        assert (verdict.status, verdict.suspect) == (Status.SUCCESS, ())


RENDEZVOUS = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
PODS = [
    "trainer-1   0/1     ImagePullBackOff   0          3m",
    "Warning  Failed  5s  kubelet  Error: ErrImagePull",
    "0/3 nodes are available: 3 Insufficient amd.com/gpu.",
]


@each_row("line", PODS)
@each_row("label", [None, 0])
def test_a_pod_that_did_not_start_comes_before_who_waited_for_it(line, label):
    cause = "too_few_gpus" if "Insufficient" in line else "image_missing"
    waited = trace(label, RENDEZVOUS)
    for lines in ([line, *waited], [*waited, line], [line, *waited, *footer(0, 1, {})]):
        assert (why(*lines).cause, why(*lines).line) == (cause, line)
    assert why(*waited).cause == "network"
    found = why(line, "Normal  Pulled  kubelet  Successfully pulled image", *trace(label, "KeyError: 'lr'"))
    assert (found.cause, found.line) == ("python_error", "KeyError: 'lr'"), "it started later"
    assert why(line, *trace(label, "torch.OutOfMemoryError: HIP out of memory.")).cause == "gpu_out_of_memory"


LABELS = ["3: ", "[1,3]<stderr>:", "[default3]:", "[pod/trainer-3/main] "]
STEPS_OF_FOUR = [f"step {n} loss 2.{n} tps {5000 + n}" for n in range(12)]


@pytest.mark.host
@each_row("label", LABELS)
@each_row(("words", "cause", "hint"), RAISED, ids=lambda one: one[:40])
def test_an_exception_has_its_cause_behind_every_launcher_s_label(words, cause, hint, label):
    steps = [label.replace("3", str(rank)) + line for line in STEPS_OF_FOUR for rank in range(4)]
    found = why(*steps, *(label + line[len("[rank3]: ") :] for line in trace(3, words)))
    assert (found.cause, found.rank, found.line) == (cause, 3, words) and hint in found.hint


@each_row("backend", ["torchtitan", "primus", "megatron_lm", "pytorch_fsdp", "torchtune", "script"])
@each_row("words", [words for words, _, _ in RAISED if "bitsandbytes" in words], ids=lambda one: one[:60])
def test_what_bitsandbytes_lacks_is_told_of_any_backend_s_training(backend, words):
    rules = with_common(PLUGINS.failure_rules(), {backend})
    found = why(*trace(0, words), rules=rules)
    assert found.cause in ("missing_package", "package_conflict") and found.hint and "{" not in found.hint


REASON = "You need to have {} installed to convert a slow tokenizer to a fast one."


@each_row("label", ["", "[rank0]: ", "[default0]:", "[1,0]<stderr>:"])
@each_row("wanted", ["sentencepiece or tiktoken", "sentencepiece"])
def test_a_tokenizer_that_lacks_a_package_is_told_with_what_it_lacks(label, wanted):
    said = "ValueError: Couldn't instantiate the backend tokenizer from one of: "
    more = ["(1) a `tokenizers` library serialization file, ", "(2) a slow tokenizer instance to convert or "]
    more += ["(3) an equivalent slow tokenizer class to instantiate and convert. ", REASON.format(wanted)]
    found = why(*(label + line for line in [*trace(None, said), *more]))
    assert found.cause == "missing_package" and "sentencepiece" in found.hint
    assert found.line == said.strip()


@each_row("label", ["", "[rank0]: ", "[default0]:", "[1,0]<stderr>:"])
@each_row(
    ("nested", "cause"),
    [
        ("ValueError: Size mismatch between saved torch.Size([10, 3]) and current: torch.Size([5, 3]) for a.b", "bad_"),
        ("RuntimeError: Missing key in checkpoint state_dict: model.a.", "bad_"),
        ("_pickle.UnpicklingError: pickle data was truncated", "missing_"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/c/__0_0.distcp'", "missing_"),
    ],
)
def test_what_a_checkpoint_s_exception_holds_has_a_cause(label, nested, cause):
    head = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])"
    lines = trace(None, head)
    for rank in (0, 1):
        lines += [
            f"Traceback (most recent call last): (RANK {rank})",
            '  File "/t/p.py", line 3, in plan',
            "    x",
            nested,
        ]
    found = why(*(label + line for line in lines))
    assert found.cause.startswith(cause) and (found.line, found.rank) == (nested, 0)
