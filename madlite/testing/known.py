"""The begin of logs of frameworks that madlite knows, with made-up numbers: nobody else's backend may claim them.

Formats: docs/backends/.  Each is an owner's: how sure it is here is asked of the installed backend of that name.
"""

from __future__ import annotations

HEADS: dict[str, tuple[str, ...]] = {
    "torchtitan": (
        "[titan] 2026-03-02 10:00:00,100 - root - INFO - Starting job: a job",
        "[titan] 2026-03-02 10:00:09,100 - root - INFO - step:  1  loss:  8.1000  grad_norm:  1.4000  "
        "memory:  2.00GiB(2.50%)  tps: 1,234  tflops: 5.60  mfu: 0.70%",
    ),
    "megatron_lm": (
        "using world size: 8, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 1",
        " [2026-03-02 10:00:00.100000] iteration        1/      50 | consumed samples:            8 | elapsed time per "
        "iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-05 | "
        "global batch size:     8 | lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: 5.000 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
    ),
    "hf": (
        "trainable params: 1,000 || all params: 100,000 || trainable%: 1.0000",
        "{'loss': 2.5, 'grad_norm': 0.5, 'learning_rate': 0.0001, 'epoch': 0.01}",
    ),
    "pytorch_fsdp": (
        "Initing communication",
        "Step: 3; TFLOP/s: 123.0; iteration time: 0.5; token per second: 1234.5",
    ),
}
