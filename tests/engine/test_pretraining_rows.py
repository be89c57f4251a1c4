"""From a tag of MAD on a pretended machine to the rows of perf.csv, the log being one of the framework's shape."""

from __future__ import annotations

import statistics

import pytest

from madlite.cli import setup
from madlite.cli.planning import planner
from madlite.measure.monitor import LogMonitor
from madlite.measure.verdict import Observation, judge
from madlite.model import Exit, Result, Status
from madlite.perfcsv.rows import build_rows
from madlite.store.folder import RunStart

COLUMNS = ("mode", "precision", "batch_size", "seq_len", "device", "num_gpus")


def plans(tmp_path, monkeypatch, *args: str):
    from madlite.cli.plan import explain as command

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plugins = setup.load()
    given = command.make_context("explain", [*args]).params
    options = setup.make_options(given)
    return planner(plugins, options, given)(options)


def rows(planned, log: str):
    (backend,) = planned.backends
    plan = planned.plan
    monitor = LogMonitor([backend.reader(plan)])
    monitor.feed(log.encode())
    monitor.finish(plan.folder)
    verdict = judge(plan, Observation(exit=Exit(code=0, duration_s=1e6)), monitor)
    assert verdict.status is Status.SUCCESS, verdict
    result = Result(plan_id=plan.id, status=verdict.status, metrics=verdict.metrics, window=verdict.window)
    return list(build_rows(plan, result, RunStart()))


def titan_log(steps: int, ranks: int, tps) -> str:
    """Every rank prints each step, in Primus's wrapper, as `run_pretrain.sh` leaves it."""
    lines = []
    for n in range(1, steps + 1):
        for rank in range(ranks):
            lines.append(
                f"[\x1b[32m20261121 00:17:{n % 60:02d}\x1b[0m][\x1b[36mrank-{rank}/{ranks}\x1b[0m]"
                f"\x1b[1m[INFO]     \x1b[0m\x1b[1mstep: {n:2d}  loss: {9 - n / 10:.5f}  grad_norm:  1.2  "
                f"memory: 160.12GiB(83.39%)  "
                f"tps: {tps(n):,}  tflops: {tps(n) / 20:.2f}  mfu: 40.00%\x1b[0m"
            )
    return "\n".join(lines) + "\n[20261121 00:20:00] [INFO] torchrun exited with code 0\n"


@pytest.mark.parametrize(("precision", "batch", "base"), [("BF16", "4", 11000), ("FP8", "5", 15000)])
def test_a_primus_torchtitan_tag_gives_mads_rows_and_one_of_the_window(tmp_path, monkeypatch, precision, batch, base):
    args = ["primus_pyt_train_llama-3.1-8b", "--image-release", "v25.10", "--machine", "8xMI300X"]
    both = plans(tmp_path, monkeypatch, *args)
    assert [(one.plan.variant.precision, one.plan.variant.micro_batch) for one in both] == [("BF16", 4), ("FP8", 5)]
    planned = next(one for one in both if one.plan.variant.precision == precision)
    found = rows(planned, titan_log(50, 8, lambda n: base + n if n > 5 else 300))
    assert [row["metric"] for row in found] == [
        "tok_per_s_per_gpu",
        "TFLOPS_per_gpu",
        "GPU_memory_usage (%)",
        "tokens_per_s_per_gpu",
    ]
    expected = ("pretrain", precision, batch, "8192", "MI300X", "8")
    assert {tuple(row[name] for name in COLUMNS) for row in found} == {expected}
    assert {row["n_gpus"] for row in found} == {"8"} and {row["gpu_architecture"] for row in found} == {"gfx942"}
    assert {row["model"] for row in found} == {"primus_pyt_train_llama-3.1-8b"}
    assert [float(row["performance"]) for row in found] == pytest.approx(
        [base + 50, (base + 50) / 20, 83.39, statistics.median(base + n for n in range(6, 51))]
    )


def test_the_newest_release_is_taken_and_named(tmp_path, monkeypatch):
    both = plans(tmp_path, monkeypatch, "primus_pyt_train_llama-3.1-8b", "--machine", "8xMI300X")
    assert {one.plan.variant.release for one in both} == {"v26.6"}
    assert {one.plan.image.ref for one in both} == {"rocm/primus:v26.6"}
    assert all(any("v26.6: the newest with a recipe" in note for note in one.plan.notes) for one in both)


def test_a_gpu_on_anothers_recipe_keeps_its_own_name(tmp_path, monkeypatch):
    args = ["primus_pyt_megatron_lm_train_llama-3.1-8b", "--precision", "BF16", "--image-release", "v26.2"]
    (one,) = plans(tmp_path, monkeypatch, *args, "--machine", "8xMI325X")
    assert one.plan.machine.device == "MI325X" and one.plan.settings["recipe_device"] == "MI300X"
    assert any("MI325X runs with the recipe of MI300X" in note for note in one.plan.notes)
    line = (
        " iteration {n:8d}/      50 | consumed samples: {c:12d} | elapsed time per iteration (ms): {ms:.1f}/700.0 | "
        "throughput per GPU (TFLOP/s/GPU): {tf:.1f}/500.0 | tokens per GPU (tokens/s/GPU): {tps:.1f}/9600.0 | "
        "learning rate: 1.0E-05 | global batch size:   128 | lm loss: 9.0E+00 | loss scale: 1.0 | grad norm: 0.5 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )
    lines = [line.format(n=n, c=128 * n, ms=1000 - n, tf=500 + n, tps=9000 + n) for n in range(1, 51)]
    found = rows(one, "\n".join(f"[20261121 00:17:16][rank-7/8][INFO]     {text}" for text in lines) + "\n")
    assert {row["device"] for row in found} == {"MI325X"}
    figures = {row["metric"]: float(row["performance"]) for row in found}
    assert figures["tok_per_s_per_gpu"] == 9050 and figures["tokens_per_s_per_gpu"] == 9028
