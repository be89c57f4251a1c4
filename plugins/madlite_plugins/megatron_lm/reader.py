"""Read the log of Megatron-LM, also where Megatron-Bridge or Primus runs it (iterations.py tells the lines' format).

Numbers are per device.  The last rank prints the iterations, with Megatron-Bridge rank 0 the FLOPs of each before it.
Around them: the arguments (`  seq_length ...... 8192`), each rank's memory after its first iterations, and means over
the run that the scripts of ROCm's fork print at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from madlite import (
    NUMBER,
    EffectiveConfig,
    Ended,
    Event,
    Line,
    Phase,
    Quantity,
    RunPlan,
    Spans,
    Step,
    Summary,
    number,
    rank_before,
    without_label,
    world_before,
)
from madlite_plugins.megatron_lm.iterations import Iteration, read_iterations

START_MARK = "[before the start of training step]"
END_MARK = "[after training is done]"
ARGUMENTS = {
    "train_iters": "steps",
    "seq_length": "seq_len",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "world_size": "world_size",
    "lr_warmup_iters": "warmup_steps",
    "log_interval": "log_interval",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
RAMP_UP = "rampup_batch_size"
"""The argument by which the global batch grows from iteration to iteration."""
FORMATS = ("fp4", "fp8", "bf16", "fp16")
"""Arguments that say in which numbers the model computes, those of the fewest bits first."""
_ARGUMENT = re.compile(rf"(?:^|[\s\]])({'|'.join(ARGUMENTS)}) \.{{2,}} (\d{{1,12}})\s*$")
_FORMAT = re.compile(rf"(?:^|[\s\]])({'|'.join(FORMATS)}) \.{{2,}} (\w{{1,40}})\s*$")
_RAMP_UP = re.compile(rf"(?:^|[\s\]]){RAMP_UP} \.{{2,}} (?!None\s*$)\S")
# DeepSpeed prints its own configuration in the same form, whose world_size is that of data parallelism alone
_OF_DEEPSPEED = re.compile(r"\[(?:config|engine|logging|utils)\.py:\d{1,6}:\w{1,60}\]")
_WORLD = re.compile(r"using world size: (\d{1,9})\b")
_OFF = ("none", "false", "null", "no")
_SUMMARY = re.compile(
    rf"(throughput per GPU|tokens/GPU/s|elapsed time per iteration|mem usages): ({NUMBER})\s*$"  # as they are printed
)
_SUMMARIES = ("throughput per GPU:", "tokens/GPU/s:", "elapsed time per iteration:", "mem usages:")
_UTILISATION = re.compile(rf"Step Time : ({NUMBER})s GPU utilization: ({NUMBER})MODEL_TFLOP/s/GPU")
_VALIDATION = re.compile(
    rf"validation loss at iteration (\d{{1,12}})\b[^|]{{0,80}}\| lm loss value: ({NUMBER}|NAN|INF) \|"
)
_MEMORY = re.compile(
    r"after \d{1,12} iterations\) memory \(MB\) \| allocated: [\d.]+ \| max allocated: (\d+\.\d+) "
    r"\| reserved: [\d.]+ \| max reserved: (\d+\.\d+)(?: \||\s*$)"
)
_MIB_OF_GIB = 1024  # what is called MB there is 2^20 bytes
_FAILED = re.compile(r"madlite: torchrun ended with exit code (\d{1,3})\b")  # the run's own script
_FRAME = re.compile(r'File "[^"]*(?:/megatron/(?:core|training|legacy)/|\bpretrain_\w+\.py)[^"]*", line ')
_ROUNDING_S = 0.0051  # of the time in the line with the FLOPs


class MegatronReader:
    """Follows one log; what the log reports about its sizes goes before what the plan does.

    A log goes on where a training was started again, perhaps with other sizes: what was said last counts.
    """

    def __init__(self, plan: RunPlan | None = None) -> None:
        variant = plan.variant if plan else None
        self._seq_len = (variant.seq_len if variant else None) or 0
        self._world = plan.place.nodes * max(1, plan.place.gpus_per_node) if plan else 0
        self._facts: dict[str, str] = {}
        self._formats: dict[str, str] = {}
        self._memory: dict[Quantity, float] = {}  # told since the last iteration, of the fullest device
        self._ahead: Step | None = None  # with the FLOPs of an iteration that is not printed yet
        self._started = False
        self._spans = Spans()
        self._batch = ""  # the global batch that was said last
        self._ramps_up = plan is not None and RAMP_UP in plan.run_args.replace("-", "_").lower()

    def feed(self, line: Line) -> Iterable[Event]:
        """Return the events of one line; the order of the tests is what makes long logs quick."""
        text = line.text
        if "|" in text and "iteration" in text:
            return self._read_bars(line)
        if " ...." in text:
            return () if _OF_DEEPSPEED.search(text) else self._read_argument(text)
        if "MODEL_TFLOP" in text:
            return self._read_utilisation(line)
        text = without_label(line)
        if text.startswith(_SUMMARIES) and (found := _SUMMARY.match(text)):
            return (Summary(values={found[1]: found[2]}),)
        if text.startswith("madlite: ") and (found := _FAILED.match(text)):
            return (Ended(marker=found[0], code=int(found[1])),)
        if "using world size: " in text and (found := _WORLD.search(text)) and "world_size" not in self._facts:
            self._facts["world_size"] = found[1]
            self.learn(self._facts)
        if START_MARK in text:
            return (Phase(name="train", t_s=line.t_s, starts=True),)
        return (Ended(marker=END_MARK),) if END_MARK in text else ()

    def finish(self, outputs: Path) -> Iterable[Event]:
        """Return the step that waited for its iteration line to the end."""
        return (self._ahead,) if self._ahead and self._ahead.n == 1 and not self._started else ()

    def learn(self, facts: Mapping[str, str]) -> None:
        """Take sizes that the log says elsewhere, by EffectiveConfig's names."""
        self._seq_len = int(facts.get("seq_len", self._seq_len))
        self._world = int(facts.get("world_size", self._world))
        self._spans.interval = int(facts.get("log_interval", self._spans.interval))
        self._batch = facts.get("global_batch", self._batch)

    def ramp_up(self) -> None:
        """Take that the global batch grows: what lines say of it is no difference."""
        self._ramps_up = True

    def _read_bars(self, line: Line) -> Iterator[Event]:
        for iteration in read_iterations(line.text):
            if iteration.values or iteration.unread:
                yield from self._report_facts(iteration)
                yield self._step(iteration, line)
        for found in _VALIDATION.finditer(line.text):
            loss = {Quantity.LOSS: number(found[2])}
            yield Step(n=int(found[1]), values=loss, rank=line.rank, t_s=line.t_s, phase="validate")
        if memory := _MEMORY.search(line.text):
            self._add_memory(Quantity.MEMORY_ALLOCATED_GIB, memory[1])
            self._add_memory(Quantity.MEMORY_RESERVED_GIB, memory[2])

    def _step(self, iteration: Iteration, line: Line) -> Step:
        values, rank = {**self._memory, **iteration.values}, rank_before(line, iteration.start)
        self._started, self._memory = True, {}
        self._add_flops(values)
        self._add_tokens(values, iteration, line)
        span = self._spans.of(iteration.n, rank)
        return Step(
            n=iteration.n,
            values=values,
            rank=rank,
            t_s=line.t_s,
            span=span,
            skipped=iteration.skipped >= span,
            unread=iteration.unread,
        )

    def _report_facts(self, iteration: Iteration) -> Iterator[Event]:
        """Yield the arguments once all were read, so that none is of a line that was cut off.

        Iterations say their global batch themselves.
        """
        facts = {"steps": str(iteration.of), **self._facts} if self._facts or not self._started else {}
        if iteration.global_batch and not self._ramps_up and str(iteration.global_batch) != self._batch:
            facts["global_batch"] = self._batch = str(iteration.global_batch)
        if facts:
            yield EffectiveConfig(values=facts)
            self._facts = {}

    def _add_memory(self, quantity: Quantity, mib: str) -> None:
        self._memory[quantity] = max(number(mib) / _MIB_OF_GIB, self._memory.get(quantity, 0.0))

    def _add_flops(self, values: dict[Quantity, float]) -> None:
        if self._ahead and Quantity.TFLOPS_PER_GPU not in values:
            ahead = self._ahead.values
            if abs(values.get(Quantity.STEP_TIME_S, math.nan) - ahead[Quantity.STEP_TIME_S]) <= _ROUNDING_S:
                values[Quantity.TFLOPS_PER_GPU] = ahead[Quantity.TFLOPS_PER_GPU]

    def _add_tokens(self, values: dict[Quantity, float], iteration: Iteration, line: Line) -> None:
        """Compute the tokens that a line does not report, by the formula of those that do; images have none."""
        if Quantity.TOKENS_PER_S_PER_GPU in values or iteration.of_images:
            return
        self._world = world_before(line, iteration.start) or self._world
        tokens = (iteration.global_batch or 0) * (iteration.seq_len or self._seq_len)
        device_seconds = values.get(Quantity.STEP_TIME_S, 0.0) * self._world
        if tokens and device_seconds > 0:
            values[Quantity.TOKENS_PER_S_PER_GPU] = tokens / device_seconds

    def _read_argument(self, text: str) -> Iterable[Event]:
        name = text.partition(" ....")[0].rpartition(" ")[2].rpartition("]")[2]
        if name in ARGUMENTS and (found := _ARGUMENT.search(text)):
            fact = {ARGUMENTS[found[1]]: found[2]}
            self._facts.update(fact)
            self.learn(fact)
        elif name in FORMATS and (found := _FORMAT.search(text)):
            self._formats[name] = found[2]
            self._facts.update(precision_of(self._formats))
        elif name == RAMP_UP and _RAMP_UP.search(text):
            self.ramp_up()
        return ()

    def _read_utilisation(self, line: Line) -> Iterator[Event]:
        """Keep an iteration's FLOPs for its line; where such lines are not in the log, each is a step itself."""
        if not (found := _UTILISATION.search(line.text)):
            return
        before = self._ahead
        values = {Quantity.STEP_TIME_S: number(found[1]), Quantity.TFLOPS_PER_GPU: number(found[2])}
        self._ahead = Step(n=before.n + 1 if before else 1, values=values, rank=line.rank, t_s=line.t_s)
        if before and not self._started:
            yield from (before, self._ahead) if before.n == 1 else (self._ahead,)


def precision_of(formats: Mapping[str, str]) -> dict[str, str]:
    """Return the precision that the arguments of FORMATS come to; nothing before it is sure."""
    chosen = next((name for name in FORMATS if formats.get(name, "none").lower() not in _OFF), "fp32")
    return {"precision": chosen.upper()} if {"bf16", "fp16"} <= formats.keys() or chosen in ("fp4", "fp8") else {}


def detect(head: Sequence[str]) -> float:
    """Say how surely these lines are Megatron's: an iteration, what it says of its ranks, or a traceback of it."""
    if any(
        Quantity.STEP_TIME_S in iteration.values for text in head if "|" in text for iteration in read_iterations(text)
    ):
        return 0.8
    if any(text.find("using world size: ") >= 0 and "data-parallel size: " in text for text in head):
        return 0.8
    if any("building GPT model ..." in text for text in head):
        return 0.3
    return 0.25 if any('File "' in text and _FRAME.search(text) for text in head) else 0.0
