"""A working folder with what a page shows: runs that became slower, a suspect one, failures, steps, machines."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

from msgspec.structs import replace

from madlite.model import Card, Image, ImageUsed, Machine, Metric, Place, Quantity, Status, Variant
from madlite.model.results import Diagnosis, GpuUse, Provenance, Telemetry
from madlite.store.folder import STEPS
from tests.cli.stored_runs import good, store
from tests.factories import WINDOW

BEGIN = datetime(2026, 9, 1, 6, 0, tzinfo=timezone.utc)
MODELS = (
    ("llama-3.1-8b", "bf16", "MI300X", 9210.0),
    ("llama-3.1-70b", "fp8", "MI355X", 1874.0),
    ("flux", "bf16", "MI300X", 0.42),
)
RUNS = 20
SLOWER_FROM = 12  # the run from which the first model is slower, with another image


def working_folder(folder: Path) -> Path:
    """Leave runs of three models in a folder, and a perf.csv with rows of others; return it."""
    chance = random.Random(4)
    for model, precision, device, speed in MODELS:
        for n in range(RUNS):
            slower = n >= SLOWER_FROM and model == MODELS[0][0]
            _run(folder, chance, model, precision, device, speed * (0.95 if slower else 1.0), n, slower=slower)
    for n, (cause, line) in enumerate(
        (("gpu_out_of_memory", "HIP out of memory. Tried to allocate 2.50 GiB"), ("hang", "no step for 600 s"))
    ):
        outcome = good(
            "x", when=f"{BEGIN + timedelta(days=20 + n):%Y-%m-%dT%H:%M:%S+00:00}", metrics=(), status=Status.FAILURE
        )
        found = Diagnosis(cause=cause, line=line, hint="a smaller micro batch: --batch-size 1")
        outcome = replace(outcome, diagnosis=found, reason=line)
        _store(folder, f"20260921T06000{n}-mixtral-abcde{n}", outcome, "mixtral-8x7b", "bf16", "MI300X")
    (folder / "perf.csv").write_text(
        "model,n_gpus,training_precision,gpu_architecture,performance,metric,status,machine_name\n"
        + "".join(f"sdxl,8,fp16,gfx942,{12.5 + n / 10},images_per_second,SUCCESS,node{n % 2}\n" for n in range(6))
        + "sdxl,8,fp16,gfx942,,,FAILURE,node1\n"
    )
    return folder


def _run(folder, chance, model, precision, device, speed, n, *, slower):
    run_id = f"{BEGIN + timedelta(days=2 * n):%Y%m%dT%H%M%S}-{model.replace('.', '-')}-{n:06x}"
    steps = [speed * chance.gauss(1, 0.006) * (0.6 if at < 4 else 1) for at in range(60)]
    steps[40] = speed * 0.7 if n == RUNS - 1 else steps[40]
    steady = steps[10:]
    mean = sum(steady) / len(steady)
    metric = Metric(metric="tokens_per_s_per_gpu", text=f"{mean:.5g}", status=Status.SUCCESS, value=mean)
    window = replace(WINDOW, n=50, first_step=11, last_step=60, median=mean, mean=mean, cv=0.006)
    outcome = good(
        run_id,
        when=f"{BEGIN + timedelta(days=2 * n):%Y-%m-%dT%H:%M:%S+00:00}",
        metrics=(metric,),
        window=window,
        steps=60,
        suspect=("the GPUs were slowed down for 12 % of the window: thermal",) if n == 5 else (),
        image=ImageUsed(ref="rocm/pytorch-training:v26.2" if slower else "rocm/pytorch-training:v26.1"),
        telemetry=Telemetry(
            source="amd-smi", power_w=702.0, throttled=0.0, gpus=(GpuUse(index=0, temperature_c=71.0),)
        ),
        provenance=Provenance(
            gpu={"product": f"AMD Instinct {device}", "driver": "6.16.13" if slower else "6.14.14", "rocm": "7.1.0"},
            host={"kernel": "6.8.0-79-generic", "cpu": "2 × AMD EPYC 9654"},
        ),
    )
    made = _store(folder, run_id, outcome, model, precision, device)
    lines = (
        {
            "n": at + 1,
            "rank": 0,
            "phase": "train",
            "t_s": at * 1.5,
            "values": {
                "tokens/s/GPU": value,
                "loss": 11 - 7 * (at / 60) ** 0.5 + chance.gauss(0, 0.03),
                "GiB reserved": 141.2,
            },
        }
        for at, value in enumerate(steps)
    )
    (made / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _store(folder, run_id, outcome, model, precision, device):
    store(
        folder,
        run_id,
        outcome,
        card=Card(name=model, root=folder, source="a test"),
        backend="torchtitan",
        place=Place(nodes=1, gpus_per_node=8),
        machine=Machine(device=device, architecture="gfx942", hostname=f"node-{device.lower()}"),
        variant=Variant(model=model, mode="pretrain", precision=precision, seq_len=8192, micro_batch=4),
        image=Image(ref="rocm/pytorch-training"),
    )
    return folder / "madlite_runs" / run_id


SPEED = Quantity.TOKENS_PER_S_PER_GPU.label
