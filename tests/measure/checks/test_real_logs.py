"""No check warns or fails where all went well: real logs of every framework, with the plans that they were run by."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from madlite.model import Cause, RunPlan, Status, Variant
from tests.measure.checks.runs import judged, plan_of, says, texts
from tests.rows import each_row


def variant(precision: str, seq_len: int | None, micro: int, global_: int | None, steps: int, **more: int) -> Variant:
    return Variant(
        model="m", precision=precision, seq_len=seq_len, micro_batch=micro, global_batch=global_, steps=steps, **more
    )


DEBUG = {"family": "llama3", "flavor": "debugmodel"}
ONE = {"tp": 1, "pp": 1, "cp": 1}
H200 = {**ONE, "family": "llama3", "flavor": "8B", "dp_shard": -1}
TITAN, MEGATRON, PRIMUS = "torchtitan", "megatron_lm", "primus"
TINY = variant("FP32", 128, 2, 4, 20)
TINY_12, TINY_8 = variant("FP32", 128, 2, 4, 12), variant("FP32", 128, 2, 4, 8)
TWO = {"settings": H200, "gpus": 2}
MEGATRON_ON_CPU = {"framework": "megatron"}
PACKED = {"settings": {"packed": True}}
FSDP_LOG, ACCUMULATED = "pytorch-training-benchmark-927d18f-llama-tiny-cpu.log", {"settings": {"accumulation": 8}}
HF_SHARDED = {"gpus": 2, "settings": {"accumulation": 1}}
RANKS_OF_TWO = {"settings": {**DEBUG, "log_ranks": "0,1", "dp_replicate": 2}, "gpus": 2}
TITAN_OF_PRIMUS = {"framework": "torchtitan", "gpus": 2, "settings": {**ONE, "ep": 1}}
H200S, H100, H200_1 = "docs/results/2xH200", "docs/results/1xH100", "docs/results/1xH200"
RUNS = [
    ("torchtitan-0.1.0-debugmodel-cpu-1rank.log", TITAN, variant("BF16", 256, 2, 2, 20), {"settings": DEBUG}),
    ("torchtitan-0.2.2-debugmodel-cpu-1rank.log", TITAN, variant("BF16", 256, 2, 2, 20), {"settings": DEBUG}),
    ("torchtitan-0.3.0-debugmodel-cpu-1rank.log", TITAN, variant("BF16", 256, 2, 2, 20), {"settings": DEBUG}),
    ("torchtitan-0.2.2-debugmodel-1xH200.log", TITAN, variant("BF16", 2048, 8, None, 20), {"gpus": 1}),
    ("torchtitan-0.2.2-debugmodel-cpu-2ranks-ddp-nocolor.log", TITAN, variant("BF16", 256, 2, 4, 12), RANKS_OF_TWO),
    ("torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log", TITAN, variant("BF16", 8192, 1, 2, 25), TWO),
    (f"{H200S}/llama3.1_8B-fp8.log", TITAN, variant("FP8", 8192, 2, None, 25), TWO),
    (f"{H200S}/llama3.1_8B-bf16-madlite-1.log", TITAN, variant("BF16", 8192, 2, None, 25), TWO),
    *((f"{H200S}/llama3.1_8B-bf16-bare-{n}.log", TITAN, variant("BF16", 8192, 2, 4, 25), TWO) for n in range(1, 6)),
    (f"{H200S}/debugmodel.log", TITAN, variant("BF16", 2048, 8, 16, 40), {"settings": DEBUG, "gpus": 2}),
    (f"{H100}/llama3.1_8B-bf16.log", TITAN, variant("BF16", 8192, 1, 1, 40), {"settings": H200, "gpus": 1}),
    ("megatron-lm-core0.16.1-gpt-cpu-1rank.log", MEGATRON, TINY, {"settings": ONE}),
    ("megatron-lm-core0.16.1-gpt-cpu-loginterval5.log", MEGATRON, variant("FP32", 128, 2, 4, 20, warmup_steps=1), {}),
    ("megatron-lm-rocm_dev-2b855baf-gpt-cpu-1rank.log", MEGATRON, TINY, {"settings": {**ONE, "ep": 0}}),
    ("megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log", MEGATRON, variant("FP32", 512, 2, 4, 12), {"gpus": 2}),
    ("primus-main-megatron-small-cpu-1rank-tflops.log", PRIMUS, variant("FP32", 512, 2, 4, 7), MEGATRON_ON_CPU),
    ("primus-main-megatron-tiny-cpu-1rank.log", PRIMUS, TINY_12, {**MEGATRON_ON_CPU, "settings": ONE}),
    ("primus-main-megatron-tiny-cpu-2ranks.log", PRIMUS, TINY_8, {**MEGATRON_ON_CPU, "gpus": 2}),
    ("primus-v26.4.0-megatron-tiny-cpu-1rank.log", PRIMUS, TINY_8, MEGATRON_ON_CPU),
    ("primus-v26.5.1-megatron-tiny-cpu-1rank.log", PRIMUS, TINY_8, MEGATRON_ON_CPU),
    ("primus-main-torchtitan0.2.2-debug-cpu-2ranks.log", PRIMUS, variant("BF16", 256, 2, 4, 10), TITAN_OF_PRIMUS),
    (FSDP_LOG, "pytorch_fsdp", variant("BF16", 128, 2, None, 32, warmup_steps=16), ACCUMULATED),
    ("torchtune-madlite-tiny_full-2ranks-cpu.log", "torchtune", variant("FP32", 256, 4, None, 20), PACKED),
    ("torchtune-madlite-tiny_lora-cpu.log", "torchtune", variant("FP32", 256, 4, None, 20), PACKED),
    (f"{H200_1}/torchtune-llama3.1_8B_full.log", "torchtune", variant("BF16", None, 2, None, 20), {"gpus": 1}),
    (f"{H200_1}/torchtune-llama3.1_8B_lora.log", "torchtune", variant("BF16", None, 2, None, 20), {"gpus": 1}),
    (f"{H200S}/hf-gpt_oss_20B_lora-fsdp2.log", "hf", variant("BF16", 8192, 1, 4, 10), {"gpus": 2}),
    (f"{H200S}/hf-llama3.1_8B_lora-ddp.log", "hf", variant("BF16", 4096, 2, 4, 25), {"gpus": 2}),
    (f"{H200S}/hf-llama3.1_8B_lora-fsdp2.log", "hf", variant("BF16", 4096, 2, 4, 25), {"gpus": 2}),
    (f"{H200S}/hf-tiny_pretrain-fsdp1.log", "hf", variant("BF16", 256, 4, 8, 40), {"gpus": 2}),
    (f"{H200S}/hf-llama3.1_8B_pretrain-fsdp2.log", "hf", variant("BF16", 8192, 1, 2, 25), HF_SHARDED),
]
SILENT = ("hf-madlite-llama3.1_8B_lora-1xH200.log", "fluxbenchmark-4eae48a-tinyflux-cpu.log")  # of their configuration


@each_row(("name", "backend", "planned", "more"), RUNS, ids=[run[0].removesuffix(".log") for run in RUNS])
def test_what_went_well_is_doubted_by_nobody(name, backend, planned, more):
    verdict = judged(plan_of(backend, planned, **more), name)
    assert (verdict.status, verdict.suspect) == (Status.SUCCESS, ())
    assert says(verdict)["config"] == "pass"
    assert not {"warn", "fail"} & set(says(verdict).values())


@each_row("name", SILENT)
def test_what_a_log_does_not_say_is_no_difference(name):
    backend, steps = ("hf", 20) if name.startswith("hf") else ("flux", 12)
    verdict = judged(plan_of(backend, variant("FP8", 17, 3, 5, steps), gpus=8), name)
    assert verdict.status is Status.SUCCESS and says(verdict)["config"] == "unknown"
    (only,) = verdict.suspect  # speed and step time, which are in the log, come to other sizes
    assert "s/step are" in only and says(verdict)["consistency"] == "warn"


def test_what_agrees_is_told():
    plan = plan_of(TITAN, variant("BF16", 8192, 1, 2, 25), gpus=2, settings=H200)
    said = texts(judged(plan, "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1.log"))
    assert said["config"] == (
        "seq_len 8192, micro_batch 1, global_batch 2, world_size 2, steps 25, tp 1, pp 1, cp 1, "
        "family llama3, flavor 8B"
    )
    assert (said["last_step"], said["ranks"]) == ("step 25 of 25", "rank 0 reports")


NAMES_NO_FP8 = (
    ("torchtitan-0.1.0-debugmodel-cpu-1rank.log", "Starting job: ", "Float8 training active"),
    ("torchtitan-0.2.2-debugmodel-cpu-1rank.log", "Building device mesh", "Float8 tensorwise scaled training active"),
    ("torchtitan-0.3.0-debugmodel-cpu-1rank.log", "torchtitan version: ", "Swapped to Float8Linear layers"),
    ("primus-main-torchtitan0.2.2-debug-cpu-2ranks.log", "Starting job: ", "Swapped to FP8Linear layers"),
    ("pytorch-training-benchmark-927d18f-llama-tiny-cpu.log", "Creating model with config: ", "Fp8LLaMA("),
)


STARTS = ("Starting job: ", "torchtitan version: ", "Initing communication")


def planned_in_fp8(name: str) -> RunPlan:
    planned, more = next((run[2], run[3]) for run in RUNS if run[0] == name)
    backend = next(run[1] for run in RUNS if run[0] == name)
    return plan_of(backend, replace(planned, precision="FP8"), **more)


@each_row(("name", "before", "mark"), NAMES_NO_FP8, ids=[row[0] for row in NAMES_NO_FP8])
def test_a_log_that_would_name_fp8_and_does_not_makes_an_fp8_run_suspect(name, before, mark):
    plan = planned_in_fp8(name)
    verdict = judged(plan, name)
    assert says(verdict)["config"] == "warn" and verdict.status is Status.SUCCESS
    assert verdict.suspect == ("FP8 was planned, and the trainer's log has its start and no line that names FP8",)

    def with_mark(text: str) -> str:
        at = text.index("\n", text.index(before)) + 1
        return text[:at] + mark + "\n" + text[at:]

    assert says(judged(plan, name, with_mark))["config"] == "pass"


@each_row(("name", "before", "mark"), NAMES_NO_FP8, ids=[row[0] for row in NAMES_NO_FP8])
def test_a_log_that_was_cut_at_its_beginning_leaves_the_precision_unknown(name, before, mark):
    def cut(text: str) -> str:
        return text[text.index("\n", max(text.rfind(start) for start in STARTS)) :]

    assert says(judged(planned_in_fp8(name), name, cut))["config"] != "warn"


@each_row("name", ["megatron-lm-core0.16.1-gpt-cpu-1rank.log", "primus-main-megatron-tiny-cpu-1rank.log"])
def test_a_log_that_always_names_its_precision_fails_an_fp8_run(name):
    verdict = judged(planned_in_fp8(name), name)
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.CONFIG)


def test_the_experts_fp8_of_primus_is_named_nowhere_and_no_doubt():
    name = "primus-main-torchtitan0.2.2-debug-cpu-2ranks.log"
    plan = planned_in_fp8(name)
    plan = replace(plan, settings={**plan.settings, "flags": "--primus_turbo.use_moe_fp8 True"})
    assert says(judged(plan, name))["config"] == "pass"


def test_madlite_s_own_script_names_its_mixed_precision():
    name = "docs/results/2xH200/hf-tiny_pretrain-fsdp1.log"

    def named(word: str) -> Callable[[str], str]:
        return lambda text: text.replace('"micro_batch": 4}', f'"micro_batch": 4, "precision": "{word}"}}')

    plan = planned_in_fp8(name)
    states = {word: says(judged(plan, name, named(word)))["config"] for word in ("fp8", "bf16", "no")}
    assert states == {"fp8": "pass", "bf16": "fail", "no": "warn"}
