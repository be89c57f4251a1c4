"""What to do when a GPU's memory ran out, in numbers of the run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite.measure.memory import gpu_memory_hint
from madlite.measure.steps import Steps
from madlite.model import Quantity, ResultRule, Step, Variant
from madlite.plan.make import make_plan
from tests.plan.conftest import given  # noqa: F401 - a fixture
from tests.rows import each_row

PLAIN = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 512.00 MiB."
OLD = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB (GPU 1; 79.25 GiB total capacity; "
    "70.00 GiB already allocated; 793.00 MiB free; 77.00 GiB reserved in total by PyTorch)"
)
SHARED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 80.00 GiB "
    "of which 2.00 GiB is free. Including non-PyTorch memory, this process has 48.00 GiB memory in use. Of the "
    "allocated memory 30.00 GiB is allocated by PyTorch, and 16.00 GiB is reserved by PyTorch but unallocated."
)


def steps(*used: tuple[float, float]) -> Steps:
    sizes = (Quantity.MEMORY_RESERVED_GIB, Quantity.MEMORY_PERCENT)
    return Steps(Step(n=n, values=dict(zip(sizes, one, strict=True))) for n, one in enumerate(used, 1))


@pytest.fixture
def plan(given):  # noqa: F811
    def make(**sizes):
        return replace(make_plan(given()), variant=Variant(model="m", **sizes))

    return make


def test_a_smaller_micro_batch_and_the_peak_of_the_steps(plan):
    before = steps((170.0, 88.54), (182.4, 95.0), (float("nan"), 90.0))
    hint = gpu_memory_hint(PLAIN, plan(micro_batch=4), before, {})
    assert hint == "micro batch 4 → 3 (--batch-size 3): peak was 95 % of 192 GiB"
    # without a completed step half is tried
    for micro, less in ((24, 12), (3, 1), (2, 1)):
        assert gpu_memory_hint(OLD, plan(micro_batch=micro), Steps(), {}).startswith(f"micro batch {micro} → {less} (")
    # a micro batch of one cannot be smaller
    hint = gpu_memory_hint("x", plan(micro_batch=1, seq_len=8192), Steps(), {})
    assert "1 already" in hint and "a shorter --seq-len than 8192" in hint and "checkpointing" in hint


def test_a_log_of_somebody_else_names_no_option(plan):
    # to a card's own script madlite's options are nothing
    own = replace(plan(micro_batch=4), result_rule=ResultRule(kind="performance_line"), templates=())
    assert gpu_memory_hint(PLAIN, own, steps((182.4, 95.0)), {}) == "micro batch 4 → 3: peak was 95 % of 192 GiB"
    assert gpu_memory_hint("x", None, Steps(), {"micro_batch": "8"}) == "micro batch 8 → 4"
    assert "--" not in gpu_memory_hint(SHARED, None, steps((9.0, 9.0)), {"micro_batch": "1", "seq_len": "4,096"})
    for odd in ("0", "x", "1e9", "９", "9" * 40, ""):
        assert gpu_memory_hint("x", None, Steps(), {"micro_batch": odd}).startswith("a smaller batch per GPU")


@each_row(
    ("micro", "whole", "settings", "options"),
    [
        (4, 32, {}, "--batch-size 2 --set global_batch=16"),  # 8 ranks, one pass each
        (4, 64, {}, "--batch-size 2"),  # in 4 passes in place of 2
        (6, 96, {}, "--batch-size 3"),
        (5, 80, {}, "--batch-size 2"),
        (7, 112, {}, "--batch-size 3 --set global_batch=48"),
        (4, 64, {"accumulation": 2}, "--batch-size 2 --set global_batch=32"),  # two passes are planned
        (4, 8, {"tp": 2, "pp": 2}, "--batch-size 2 --set global_batch=4"),  # 2 data ranks
        (4, 8, {"tp": "2", "pp": 2, "cp": 0}, "--batch-size 2 --set global_batch=4"),
        (4, 36, {}, "--batch-size 2 --set global_batch=32"),  # 36 is none itself
        (4, 3, {}, "--batch-size 2 --set global_batch=16"),
        (4, None, {}, "--batch-size 2"),
    ],
)
def test_the_global_batch_stays_a_multiple_of_micro_batch_and_data_ranks(plan, micro, whole, settings, options):
    made = plan(micro_batch=micro, global_batch=whole)
    made = replace(made, settings={**made.settings, **settings})
    hint = gpu_memory_hint("x", made, Steps(), {})
    assert hint.endswith(f"({options})")


@each_row(
    ("micro", "wanted", "free", "less"),
    [(4, "6.00", "2.56", 3), (24, "3.00", "2.00", 23), (24, "30.00", "1.00", 21), (24, "150.00", "10.00", 15),
     (2, "150.00", "1.00", 1), (8, "1.00", "9.00", 7)],
)  # fmt: skip
def test_after_a_step_what_was_wanted_says_how_much_smaller(plan, micro, wanted, free, less):
    line = f"Tried to allocate {wanted} GiB. GPU 5 has a total capacity of 256.00 GiB of which {free} GiB is free."
    hint = gpu_memory_hint(line, plan(micro_batch=micro), steps((100.0, 40.0)), {})
    assert hint.startswith(f"micro batch {micro} → {less} (")


def test_the_peak_does_not_contradict_the_message(plan):
    full = "Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 192.00 GiB of which 1.00 GiB is free."
    hint = gpu_memory_hint(full, plan(micro_batch=4), steps((0.6, 3.0)), {})
    assert hint.endswith(": 99 % of 192 GiB were in use, 2.00 GiB more were asked for")
    some = full.replace("which 1.00", "which 61.00")
    hint = gpu_memory_hint(some, plan(micro_batch=4), steps((182.4, 95.0)), {})
    assert hint.endswith(": peak was 95 % of 192 GiB"), "what the steps used is more"
    # without steps the message itself tells
    hint = gpu_memory_hint(OLD, plan(micro_batch=2), Steps(), {})
    assert hint.endswith(": 99 % of 79 GiB were in use, 3.00 GiB more were asked for")
    assert gpu_memory_hint(PLAIN, plan(micro_batch=2), Steps(), {}).endswith(": 0.50 GiB more were asked for")
    hint = gpu_memory_hint(SHARED, plan(), Steps(), {})
    assert hint.startswith("other processes hold 30 GiB of this GPU: end them or take other GPUs; ")


@each_row("line", ["of which 1.2.3 GiB is free; total capacity of 5 GiB", "total capacity of 0 GiB", "…" * 999])
def test_odd_numbers_raise_nothing(line):
    assert gpu_memory_hint(line, None, Steps(), {}).startswith("a smaller batch")
