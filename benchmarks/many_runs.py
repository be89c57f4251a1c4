"""Makes a folder of many runs, as madlite leaves them: python benchmarks/many_runs.py FOLDER [COUNT]

Each has its plan, lock, record and events in the log of the folder of runs; the newest also have steps and a log.
Cards, GPUs and precisions repeat, numbers vary by a percent and fall by five in the last tenth of one series.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from madlite.model import Metric, Place, Quantity, Status, Study, Variant, Window, json_line, to_json
from madlite.model.results import Diagnosis, Provenance
from madlite.store.events import EVENTS, Ended, Event, LogBegan, Started
from madlite.store.folder import RunRows
from madlite.store.record import Record

CARDS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.3-70b", "qwen3-8b", "deepseek-v3-16b", "mixtral-8x7b", "flux.1-dev")
BACKENDS = ("torchtitan", "primus", "megatron_lm")
DEVICES = (("MI300X", 8), ("MI355X", 8), ("H100", 8))
CAUSES = ("gpu_oom", "rccl_error", "python_error", "timeout")
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
WITH_LOGS = 50
STEPS = 100
PACKAGES = {f"package-{n:02d}": f"{n % 5}.{n}.0" for n in range(40)}


def make(folder: Path, count: int) -> Path:
    """Make so many runs in `folder`/madlite_runs and return that."""
    runs = folder / "madlite_runs"
    runs.mkdir(parents=True)
    random.seed(7)
    with (runs / EVENTS).open("wb") as log:
        log.write(json_line(LogBegan(inode=str(runs.stat().st_ino))))
        for n in range(count):
            log.writelines(map(json_line, _one(runs, n, count)))
    return runs


def _one(runs: Path, n: int, count: int) -> Iterator[Event]:
    """Make a run and yield its events."""
    record = record_of(n, count)
    folder = runs / record.id
    folder.mkdir()
    data = to_json(record).encode()
    (folder / "plan.json").write_text(json.dumps({"id": record.id, "card": {"name": record.card}}))
    (folder / "lock").touch()
    (folder / "record.json").write_bytes(data)
    if count - n <= WITH_LOGS:
        _write_log(folder)
    yield Started(at=record.started, run=record.id, file="perf.csv")
    yield Ended(at=record.ended, run=record.id)


def record_of(n: int, count: int) -> Record:
    """Return the record of the `n`th run of so many."""
    card, backend = CARDS[n % len(CARDS)], BACKENDS[n // 7 % len(BACKENDS)]
    device, gpus = DEVICES[n // 21 % len(DEVICES)]
    precision = ("BF16", "FP8")[n // 63 % 2]
    began = FIRST + timedelta(minutes=4 * n)
    level = 12_000 * (1.8 if precision == "FP8" else 1) * (1 + n % len(CARDS))
    level *= 0.95 if n > 0.9 * count and card == CARDS[0] else 1
    value = round(level * random.gauss(1, 0.01), 2)
    status = Status.FAILURE if n % 11 == 3 else Status.SUCCESS
    good = status is Status.SUCCESS
    metric = Metric(metric="tokens_per_s_per_gpu", text=str(value), status=Status.SUCCESS, value=value)
    cells = {"model": card, "performance": str(value), "metric": metric.metric, "status": "SUCCESS"}
    cause = "" if good else CAUSES[n % len(CAUSES)]
    return Record(
        id=f"{began:%Y%m%dT%H%M%S}-{card.replace('.', '-')}-{n:06x}",
        status=status,
        madlite="0.1.0",
        command=("run", "--tags", card),
        started=began.isoformat(),
        ended=(began + timedelta(minutes=3)).isoformat(),
        card=card,
        tags=("pyt", "train", card.split("-")[0]),
        backend=backend,
        runtime="docker",
        batch=f"{began:%Y%m%d}T000000-{n // 360:06x}",
        study=Study(id=f"study-{n // 500}", kind="repeat") if n % 500 < 5 else None,
        hostname=f"node-{n % 4}",
        device=device,
        architecture="gfx942",
        place=Place(gpus_per_node=gpus),
        variant=Variant(
            model=card, mode="pretrain", precision=precision, seq_len=8192, micro_batch=2, global_batch=16, steps=STEPS
        ),
        recipe=f"{card}-{precision.lower()}",
        settings={"recipe": f"{card}-{precision.lower()}"},
        cause=cause,
        reason="" if good else f"it ended with exit code 1 ({cause})",
        diagnosis=None if good else Diagnosis(cause=cause, line="torch.OutOfMemoryError: HIP out of memory.", rank=3),
        suspect=("power is below half of the limit",) if good and n % 97 == 5 else (),
        steps=STEPS,
        window=_window(value) if good else None,
        metrics=(metric,) if good else (),
        provenance=Provenance(packages=PACKAGES, gpu={"driver": f"6.{n * 4 // count}.0"}, host={"kernel": "6.8.0"}),
        durations_s={"build": 2.0, "data": 1.0, "run": 170.0, "total": 175.0 + n % 9},
        rows=RunRows(path="perf.csv", cells=(cells,), at=began.isoformat(), appended=True) if good else None,
    )


def _window(value: float) -> Window:
    spread = 0.004 * value
    return Window(
        quantity=Quantity.TOKENS_PER_S_PER_GPU, n=60, first_step=40, last_step=99, dropped=40, median=value, mean=value,
        std=spread, cv=0.004, min=value - 2 * spread, max=value + 2 * spread, last=value, drift=0.001, outliers=0,
    )  # fmt: skip


def _write_log(folder: Path) -> None:
    steps = [
        {"n": n, "rank": 0, "phase": "train", "values": {"tokens/s/GPU": 12_000 - 4000 / n, "loss": 11 / n**0.2}}
        for n in range(1, STEPS + 1)
    ]
    (folder / "steps.jsonl").write_bytes(b"".join(msgspec.json.encode(step) + b"\n" for step in steps))
    lines = (f"[titan] INFO - step: {one['n']:2d}  loss: {one['values']['loss']:.4f}\n" for one in steps)
    (folder / "run.log").write_text("".join(lines))


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000))
