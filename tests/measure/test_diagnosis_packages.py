"""A missing package: what ended a rank, and what a program did without."""

from __future__ import annotations

from madlite.measure.diagnosis import DiagnosisInput, diagnose
from madlite.model import Cause, Quantity, Step
from tests.measure.test_diagnosis import RULES, footer, timeout, trace, why
from tests.monitors import monitored
from tests.rows import each_row

APEX = "ModuleNotFoundError: No module named 'apex'"
NAME = "ImportError: cannot import name 'x' from 'a.b' (/a/b.py)"
WORDS = [f"building layer {n} of the model" for n in range(1000)]  # 27 KB
NCCL = [f"n1:77:9{n} [1] NCCL INFO Channel {n:02}/0 : 0[0] -> 1[1] via P2P/IPC/read of a channel" for n in range(300)]


def of_task(rank: int, label: str, error: str) -> list[str]:
    return [line.replace(f"[rank{rank}]: ", label) for line in trace(rank, error)]


@each_row(("error", "cause"), [(APEX, "missing_package"), (NAME, "package_conflict")])
@each_row(
    ("label", "said"),
    [
        ("[rank3]: ", footer(3, 1, {0: -6})),
        ("", footer(3, 1, {0: -6})),
        ("[rank3]: ", []),
        ("3: ", ["srun: error: n1: task 3: Exited with exit code 1"]),
        ("3: ", ["srun: error: n1: tasks 0,2-3: Exited with exit code 1"]),
        ("", ["srun: error: n1: task 3: Exited with exit code 1"]),
        ("[1,3]<stderr>:", ["  Process name: [[6341,1],3]", "  Exit code:    1"]),
    ],
)
def test_a_package_that_ended_a_rank_comes_before_what_other_ranks_say_of_it(label, said, error, cause):
    found = why(*of_task(3, label, error), *NCCL, timeout(0), *said)
    assert (found.cause, found.line) == (cause, error)
    assert found.rank == (3 if label or "srun" not in "".join(said) else None)


def test_a_package_that_a_program_went_on_without_explains_nothing():
    missing = trace(None, APEX)
    assert why(*missing, *WORDS, timeout(1)).cause == "collective_timeout"
    assert why(*WORDS, *missing, timeout(1)).cause == "missing_package"
    assert why(*WORDS, *missing, *WORDS, *footer(0, 1, {})).cause == "missing_package", "it ended by an exception"
    many = [line for rank in range(200) for line in trace(rank, APEX)]
    assert why(*many).cause == "missing_package", "each rank says it, and all of them say much"
    closed = trace(None, "RuntimeError: [/x/pair.cc:5] Connection closed by peer [10.1.2.3]:4455")
    assert why(*missing, *WORDS, *closed, *footer(2, 1, {0: -15})).cause == "network", "by another exception"
    # ranks that did without it are known by one that went on
    missing = [line for rank in range(4) for line in trace(rank, APEX)]
    words = [f"[rank0]: {line}" for line in WORDS]
    assert why(*missing, *words, timeout(0), *footer(0, -6, {1: -6})).cause == "collective_timeout"
    assert why(*trace(3, APEX), *words, timeout(0)).rank == 3, "others' words tell nothing of it"

    # it explains nothing of a program that trained steps without it
    class Steps:
        def feed(self, line):
            return [Step(n=int(line.text[5:]), values={Quantity.LOSS: 1.0})] if line.text.startswith("step=") else ()

        def finish(self, outputs):
            return ()

    log = monitored([Steps()], (*trace(None, APEX), *WORDS, "step=1", "step=2", "bye"), RULES)
    assert diagnose(Cause.EXIT_CODE, log.best_error_line, log, DiagnosisInput(exit_code=1)).cause == "exit_code"
    # it is the last resort of a program that ended right with it
    for error, cause in ((APEX, "missing_package"), (NAME, "package_conflict")):
        found = why(*trace(None, error), *WORDS)
        assert (found.cause, found.line) == (cause, error)
    assert why(*trace(None, APEX), *WORDS, "train: error: bad value").line == "train: error: bad value"
    assert why(*trace(None, APEX), *WORDS, *trace(None, "KeyError: 'lr'")).line == "KeyError: 'lr'"
