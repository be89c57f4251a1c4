"""A backend with a trainer whose optimum and memory limit are known, as an installed third-party plugin of a folder."""

from __future__ import annotations

import os
from pathlib import Path

PLUGIN = """
from madlite import Knob, TemplateBackend, Variant, hookimpl, step_pattern


class Fake(TemplateBackend):
    name = "fake"
    template = "fake/run.sh.j2"
    end_mark = "the end"
    step = step_pattern(
        r"step=(?P<n>[0-9]+) tps=(?P<tokens_per_s_per_gpu>[0-9.]+) loss=(?P<loss>[0-9.]+) "
        r"gib=(?P<memory_reserved_gib>[0-9.]+)"
    )
    knobs = (
        Knob(key="micro_batch"),
        Knob(key="checkpointing", values=("none", "full"), memory=(2.0, 1.0), speed=(1.1, 1.0)),
        Knob(key="kernel", values=("plain", "broken"), speed=(1.0, 1.2)),
    )

    def variants(self, card, machine):
        yield Variant(model="fake", mode="pretrain", precision="BF16", seq_len=128, micro_batch=2, steps=30)

    def settings(self, card, variant, machine):
        return {"checkpointing": "full", "kernel": "plain", "lr": 0.001}


@hookimpl
def madlite_backends():
    return [Fake()]
"""
TEMPLATE = """#!/usr/bin/env bash
# {{ variant.model }} {{ variant.mode }} {{ variant.precision }} {{ variant.seq_len }}
exec "${MADLITE_PYTHON:-python3}" TRAIN {{ variant.steps | sh }} {{ variant.micro_batch | sh }} \\
  {{ settings.checkpointing | sh }} {{ settings.kernel | sh }} {{ settings.lr | sh }}
"""
# 80 GiB: 20 and 10 for each sequence, without checkpointing 20; so that 5 and 2 fit, and 100 x m / (1 + m) of 5 is best
TRAIN = """
import os, pathlib, sys, time

steps, batch, checkpointing, kernel = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
here = pathlib.Path(__file__).parent
with (here / "ran").open("a") as file:
    print(steps, batch, checkpointing, kernel, file=file)
if (here / "hub").exists() and f"{batch} {checkpointing} {kernel}" == (here / "hub").read_text():
    sys.exit("HfHubHTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://huggingface.co/api/x")
gib = 20 + batch * (20 if checkpointing == "none" else 10)
if gib > 75:
    print(f"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total "
          f"capacity of 79.11 GiB of which 4.11 GiB is free. Process 1 has 75.00 GiB memory in use.", file=sys.stderr)
    sys.exit(1)
if kernel == "broken":
    raise RuntimeError("no such kernel")
speed = 100 * batch / (1 + batch) * (1.05 if checkpointing == "none" else 1)
for n in range(1, steps + 1):
    print(f"step={n} tps={speed * (1 + 0.001 * (n % 3)):.4f} loss={5 / n:.4f} gib={gib}", flush=True)
    if (here / "wait").exists() and f"{batch} {checkpointing} {kernel}" == (here / "wait").read_text() and n == 3:
        time.sleep(600)
print("the end")
"""


def install(folder: Path, env: dict[str, str]) -> None:
    """Make the plugin in a folder and have madlite find it there."""
    info = folder / "fake_trainer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-trainer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[madlite]\nfake = fake_trainer\n")
    (info / "RECORD").write_text("")
    package = folder / "fake_trainer"
    (package / "templates/fake").mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN)
    (package / "templates/fake/run.sh.j2").write_text(TEMPLATE.replace("TRAIN", str(folder / "train.py")))
    (folder / "train.py").write_text(TRAIN)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), env.get("PYTHONPATH", ""))))
