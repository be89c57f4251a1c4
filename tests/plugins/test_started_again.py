"""A second training that never came to a step, after a whole one: real logs, and their lines before a first step."""

from __future__ import annotations

import pytest

from madlite.backends.loader import load_plugins
from madlite.measure.parse_log import LogReading, read_log
from madlite.model import Cause, Step
from tests.plugins.logs import LOGS, lines
from tests.rows import each_row

OOM = """Traceback (most recent call last):
  File "/opt/train.py", line 12, in <module>
    main()
torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 191.98 GiB
"""
PLUGINS = load_plugins(only_built_in=True)
WHOLE = (
    "torchtitan-0.1.0-debugmodel-cpu-1rank",
    "torchtitan-0.2.2-debugmodel-1xH200",
    "torchtitan-0.2.2-llama3_8b-2xH200-bf16-bs1",
    "torchtitan-0.3.0-debugmodel-cpu-1rank",
    "primus-main-torchtitan0.2.2-debug-cpu-1rank",
    "primus-main-megatron-tiny-cpu-2ranks",
    "megatron-lm-core0.16.1-gpt-cpu-1rank",
    "megatron-lm-core0.16.1-gpt-cpu-loginterval5",
    "megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2",
    "torchtune-0.6.1-full-singledevice-cpu-stdoutlogger",
    "pytorch-training-benchmark-927d18f-llama-tiny-cpu",
)
TRAINER = """***** Running training *****
  Num examples = 24
  Num Epochs = 1
  Instantaneous batch size per device = 2
  Total train batch size (w. parallel, distributed & accumulation) = 2
  Gradient Accumulation steps = 1
  Total optimization steps = 12
"""


def parse(text: str) -> LogReading:
    return read_log("a.log", iter([text.encode()]), PLUGINS, None)


def before_the_first_step(backend: str, text: str) -> str:
    reader = PLUGINS.query(PLUGINS.backends()[backend][0], "reader", None, otherwise=None)
    kept = []
    for line in lines(text.encode()):
        if any(isinstance(event, Step) for event in reader.feed(line)):
            break
        kept.append(line.text)
    assert kept
    return "\n".join([*kept, ""])


@pytest.mark.host
@each_row("name", WHOLE)
def test_a_second_training_without_a_step_is_no_plain_success(name):
    text = (LOGS / f"{name}.log").read_text()
    whole = parse(text)
    head = before_the_first_step(whole.backend, text)
    assert whole.verdict.cause is Cause.NONE
    for end in ("", OOM):
        again = parse(f"{text}\n{head}{end}")
        assert again.verdict.cause is not Cause.NONE or any("last of 2" in doubt for doubt in again.verdict.suspect)
        if end:
            assert again.diagnosis and again.diagnosis.cause == Cause.GPU_MEMORY.value


@each_row(
    ("name", "start"),
    [
        ("hf-trainer-transformers4.57-cpu-whole10", TRAINER),
        ("hf-trainer-transformers4.57-cpu-early1", TRAINER),
        ("hf-madlite-llama3.1_8B_lora-1xH200", 'madlite-config {"steps": 20, "micro_batch": 1}\n'),
        (
            "fluxbenchmark-4eae48a-tinyflux-cpu",
            "2026-11-21 - INFO - Executing command for run 2: accelerate launch train.py --num_iterations=20\n",
        ),
    ],
)
def test_what_a_log_has_not_itself_says_so_too(name, start):
    verdict = parse(f"{(LOGS / f'{name}.log').read_text()}\n{start}").verdict
    assert any("the last of 2 trainings" in one for one in (verdict.reason, *verdict.suspect))


def test_a_trainer_s_sizes_before_its_training_start_no_other_one():
    text = (LOGS / "hf-trainer-transformers4.57-cpu-whole10.log").read_text()
    assert parse(TRAINER.replace("= 12", "= 95") + text).verdict == parse(text).verdict
