"""The search of `madlite tune` against simulated trainers whose optimum and memory limit are known."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite import TemplateBackend
from madlite.backends.recipe_book import read_book
from madlite.study.tune_models import Choice, Point, RunSteps, Seen, Space, Trial
from madlite.study.tune_search import Budget, Costs, NextRun, Stop, next_run
from madlite_plugins.hf.backend import HuggingFace
from madlite_plugins.torchtitan.backend import Torchtitan
from madlite_plugins.torchtune.backend import Torchtune
from tests.rows import each_row
from tests.study.simulated import Trainer
from tests.tiers import examples

CHECKPOINTING = Choice(
    key="activation_checkpoint", values=("none", "selective", "full"), memory=(2.2, 1.0, 0.3), speed=(1.08, 1.0, 0.8)
)
COMPILE = Choice(key="compile", values=(True, False), memory=(1.0, 1.3), speed=(1.0, 0.85))
DEFAULT = Point(batch=2, group=("selective", True))
H200 = Space(default=DEFAULT, choices=(CHECKPOINTING, COMPILE), memory_gib=141.0)
USUAL = Budget(seconds=480, runs=5, either=True)  # what the command has without an option

# Llama 3.1 8B in BF16 on two H200, TFLOP/s/GPU: measured by hand; the others follow t(m) = m / (c + m) of the measured
MEASURED = {
    (1, "selective"): 497.0,
    (2, "selective"): 535.0,
    (3, "selective"): 553.0,
    (1, "none"): 540.0,
    (4, "full"): 500.0,
}
COST = 0.166  # of 497 and 535
PER_SEQUENCE_GIB = {"none": 60.0, "selective": 26.0, "full": 8.0}


def llama_speed(point: Point) -> float:
    mode, compiled = point.group
    known = MEASURED.get((point.batch, str(mode)))
    anchor = {"none": (1, 540.0), "selective": (3, 553.0), "full": (4, 500.0)}[str(mode)]
    shape = point.batch / (COST + point.batch) * (COST + anchor[0]) / anchor[0]
    return (known or min(553.0, anchor[1] * shape)) * (1.0 if compiled else 0.8)


def llama_memory(point: Point) -> float:
    mode, compiled = point.group
    return 35.0 + PER_SEQUENCE_GIB[str(mode)] * point.batch * (1.0 if compiled else 1.3)


def llama(**fields: object) -> Trainer:
    return Trainer(space=H200, speed=llama_speed, memory_gib=llama_memory, limit_gib=137.0, **fields)  # type: ignore[arg-type]


@each_row("tells_memory", [True, False])
@each_row(("noise", "least"), [(0.0, 20), (0.003, 20), (0.01, 18)])
def test_the_measured_landscape_is_won_within_eight_minutes(noise: float, least: int, tells_memory: bool):
    """Of 20 series of runs with a noise of 1 % each two may miss; with what a real machine has none does."""
    won = 0
    for seed in range(20):
        trainer = llama(noise=noise, tells_memory=tells_memory, seed=seed)
        stop = trainer.tune(USUAL)
        best = Seen(H200, trainer.trials).best
        won += llama_speed(best) >= 0.995 * 553 and llama_speed(best) >= 1.02 * 535
        assert trainer.spent_s <= 480 and stop.why in ("confirmed", "budget")
        full = [one.point for one in trainer.trials if one.full]
        assert full.count(DEFAULT) >= 1 and full.count(best) >= 1, "the winner is confirmed beside the default"
    assert won >= least


# Two H200, tokens/s/GPU with two sequences: 16, 8, selective measured on one machine, 4 and 2 on another one, scaled;
# the others and the memory are assumed.  A number is every how many layers one is recomputed whole.
PER_LAYERS = {
    "none": 10_250.0,
    "16": 10_124.5,
    "8": 9_974.5,
    "4": 9_721.0,
    "2": 9_164.0,
    "memory_budget": 9_300.0,
    "selective": 9_381.5,
    "full": 7_700.0,
}
PER_LAYERS_GIB = {
    "none": 54.0,
    "16": 50.5,
    "8": 49.0,
    "4": 43.0,
    "2": 31.5,
    "memory_budget": 28.0,
    "selective": 26.0,
    "full": 8.0,
}


@each_row("global_batch", [0, 2])
def test_the_fewest_layers_that_fit_are_recomputed(global_batch: int):
    """Every sixteenth fits with two sequences, none does not; with one sequence all do, and gain less."""
    knobs = {knob.key: knob for knob in read_book(Torchtitan.book).knobs}
    knob = knobs["activation_checkpoint"]
    choice = Choice(key=knob.key, values=knob.values, memory=knob.memory, speed=knob.speed)
    default = Point(batch=2, group=("selective", True))
    space = Space(default=default, choices=(choice, COMPILE), global_batch=global_batch, memory_gib=141.0)

    def speed(point: Point) -> float:
        shape = point.batch / (COST + point.batch) * (COST + 2) / 2
        return PER_LAYERS[str(point.group[0])] * shape * (1.0 if point.group[1] else 0.8)

    def memory(point: Point) -> float:
        return 35.0 + PER_LAYERS_GIB[str(point.group[0])] * point.batch * (1.0 if point.group[1] else 1.3)

    for seed in range(examples(10)):
        trainer = Trainer(space=space, speed=speed, memory_gib=memory, limit_gib=137.0, noise=0.003, seed=seed)
        stop = trainer.tune(USUAL)
        assert Seen(space, trainer.trials).best == Point(batch=2, group=("16", True)), trainer.trials
        assert stop.why == "confirmed" and trainer.spent_s <= 480


RECOMPUTED = {"none": 0.0, "16": 1 / 16, "8": 1 / 8, "4": 1 / 4, "2": 1 / 2, "full": 1.0}  # of the layers
FLEETING = {"2": 9_045.0, "4": 9_595.0, "8": 9_890.0, "full": 7_800.0, "16": 10_040.0, "none": 10_180.0}


def choices_of(backend: type[TemplateBackend], *keys: str) -> tuple[Choice, ...]:
    """Return knobs of a backend as the search has them."""
    knobs = {knob.key: knob for knob in read_book(backend.book).knobs}
    return tuple(
        Choice(
            key=key,
            values=knob.values,
            memory=knob.memory,
            speed=knob.speed,
            later=knob.later,
            start_s=tuple(map(float, knob.start_s)),
        )
        for key in keys
        for knob in [knobs[key]]
    )


def on_two_h200(short_gib: float, global_batch: int, **fields: Any) -> Trainer:
    """Llama 3.1 8B on two H200 by torchtitan, in tokens/s/GPU as measured by hand in one call; memory by the models.

    Two sequences: selective 9,260, every 8th layer 9,890, 4th 9,595, 2nd 9,045; weights kept (`reshard` never) with
    selective 9,443, 4th 9,735, 8th 8,178, short of memory; three with selective 9,455, with every 6th layer out of
    memory; one without checkpointing 9,305.  A run of 25 steps took 60 to 70 s.
    """
    keys = ("activation_checkpoint", "compile", "reshard", "optimizer_kernel", "env_set")
    choices = choices_of(Torchtitan, *keys)
    steps = RunSteps(warmup=10, full=50, least_full=20, short=13, least_short=7)
    default = Point(batch=2, group=("selective", True, "default", "fused", ""))
    space = Space(default=default, choices=choices, global_batch=global_batch, memory_gib=140.4, steps=steps)

    def memory(point: Point) -> float:
        mode, compiled, reshard, *_ = point.group
        sequence = 37.1 - 31.7 * RECOMPUTED[mode] if mode in RECOMPUTED else 17.6 if mode == "selective" else 19.4
        return 63.4 + sequence * point.batch * (1.0 if compiled else 1.3) + (8.0 if reshard == "never" else 0.0)

    def speed(point: Point) -> float:
        mode, compiled, reshard, *_ = point.group
        measured = {("selective", 2): 9_260.0, ("selective", 3): 9_455.0, ("none", 1): 9_305.0}
        highest = FLEETING.get(mode, 9_260.0) * (COST + 2) / 2
        found = measured.get((mode, point.batch), highest * point.batch / (COST + point.batch))
        found *= (1.0198 if mode == "selective" else 1.0146) if reshard == "never" else 1.0
        return found * (1.0 if compiled else 0.8) * (0.83 if memory(point) > short_gib else 1.0)

    return Trainer(
        space=space,
        speed=speed,
        memory_gib=memory,
        limit_gib=139.0,
        short_gib=short_gib,
        step_s=lambda point: 8192 * point.batch / speed(point),
        known_after=30,
        **fields,
    )


@each_row("run_s", [20.0, 38.0])  # what a run takes beside its steps
@each_row("global_batch", [2, 0])
@each_row(("short_gib", "best"), [(131.0, "8"), (134.5, "16")])
def test_what_a_grid_by_hand_finds_is_found_and_confirmed_within_eight_minutes(short_gib, best, global_batch, run_s):
    """With the global batch kept and without: the fewest layers recomputed that fit, +6.8 % or more over the recipe."""
    for seed in range(examples(10)):
        trainer = on_two_h200(short_gib, global_batch, noise=0.003, seed=seed, run_s=run_s)
        stop = trainer.tune(Budget(seconds=480))
        found = Seen(trainer.space, trainer.trials).best
        assert (found.batch, *found.group[:3]) == (2, best, True, "default"), trainer.trials  # the rest costs nothing
        assert trainer.speed(found) >= 1.06 * trainer.speed(trainer.space.default)
        assert stop.why == "confirmed" and trainer.spent_s <= 485, trainer.trials
        assert sum(one.status == "out_of_memory" or one.short_of_memory for one in trainer.trials) <= 4


def torchtune_on_one_h200(short_at: float, cost: float, **fields: Any) -> Trainer:
    """Llama 3.1 8B LoRA by torchtune on one H200, 8192 tokens, in tokens/s/GPU and GiB as measured.

    10,553 and 23.8 with two sequences; without checkpointing 15,102 and 94.1, and four do not fit.  What compiling
    gains and the fixed cost of a step are assumed.
    """
    tokens, default, start = 8192, (True, True, True), 10_553.0
    choices = choices_of(Torchtune, "activation_checkpointing", "compile", "fused")
    steps = RunSteps(warmup=5, full=25, least_full=15, short=13, least_short=7)
    point = Point(batch=2, group=default)
    space = Space(default=point, choices=choices, memory_gib=140.4, steps=steps)

    def memory(point: Point) -> float:
        recomputed, compiled, *_ = point.group
        return 16.0 + tokens / 8192 * (4.0 if recomputed else 46.0) * point.batch * (0.85 if compiled else 1.0)

    def speed(point: Point) -> float:
        recomputed, compiled, *_ = point.group
        found = start * point.batch / (cost + point.batch) * (cost + 2) / 2 * (1.0 if recomputed else 1.43)
        found /= 1.0 if compiled else 1.12
        return found * (0.8 if memory(point) > short_at else 1.0)

    return Trainer(
        space=space,
        speed=speed,
        memory_gib=memory,
        limit_gib=139.0,
        short_gib=short_at,
        step_s=lambda point: tokens * point.batch / speed(point),
        **fields,
    )


def best_of_grid(trainer: Trainer) -> float:
    """Return the throughput of the best of all micro batches up to 32 with the first two choices."""
    first, second = (choice.values for choice in trainer.space.choices[:2])
    groups = [(one, other, *trainer.space.default.group[2:]) for one in first for other in second]
    offered = filter(trainer.space.offers, range(1, 33))
    grid = [Point(batch=batch, group=group) for batch in offered for group in groups]
    return max(trainer.speed(point) for point in grid if trainer.memory_gib(point) <= trainer.limit_gib)


@each_row(("short_at", "cost"), [(135.0, 0.05), (130.0, 0.3)])
@each_row(("run_s", "minutes"), [(25.0, 8), (45.0, 10)])
def test_lora_on_one_gpu_comes_within_one_percent_of_the_grid_s_best(short_at, cost, run_s, minutes):
    for seed in range(examples(10)):
        trainer = torchtune_on_one_h200(short_at, cost, noise=0.003, seed=seed, run_s=run_s)
        stop = trainer.tune(Budget(seconds=60 * minutes))
        found = trainer.speed(Seen(trainer.space, trainer.trials).best)
        assert found >= 0.99 * best_of_grid(trainer), trainer.trials
        assert stop.why == "confirmed" and trainer.spent_s <= 60 * minutes + 5, trainer.trials


@each_row(("minutes", "why"), [(7, "budget"), (8, "confirmed")])
def test_a_first_run_that_fills_the_caches_does_not_end_the_search(minutes, why):
    """88 s and 15 steps in the first run, 65 s and 15 steps in the next, as on the H200."""
    for seed in range(10):
        trainer = torchtune_on_one_h200(135.0, 0.05, noise=0.003, seed=seed, run_s=65.0, cold_s=23.0)
        trainer.space = replace(trainer.space, steps=RunSteps(5, full=15, least_full=15, short=13, least_short=7))
        stop = trainer.tune(Budget(seconds=60 * minutes))
        assert trainer.trials[1].point == Point(batch=2, group=(False, True, True)), trainer.trials
        assert Seen(trainer.space, trainer.trials).best == trainer.trials[1].point
        assert (stop.why, trainer.spent_s <= 60 * minutes) == (why, True), trainer.trials


def hf_on_one_h200(global_batch: int, **fields: Any) -> Trainer:
    """Llama 3.1 8B LoRA by hf on one H200, 4096 tokens, in tokens/s/GPU and GiB as measured.

    With checkpointing 7,343 with two sequences (31.5 GiB), 7,528 with eight (79.9), 9,224 with six compiled (42.4);
    without 9,882 with one (49.2), 10,306 with two (83.1), four do not fit.  How much compiling gains without
    checkpointing is assumed, and so is three sequences.
    """
    default = Point(batch=2, group=(True, False, ""))
    choices = choices_of(HuggingFace, "gradient_checkpointing", "compile", "compile_mode")
    steps = RunSteps(warmup=5, full=25, least_full=15, short=13, least_short=7)
    space = Space(default=default, choices=choices, global_batch=global_batch, memory_gib=140.4, steps=steps)

    def memory(point: Point) -> float:
        recomputed, compiled, *_ = point.group
        return 15.35 + (8.07 if recomputed else 33.86) * point.batch * (0.56 if compiled else 1.0)

    def speed(point: Point) -> float:
        recomputed, compiled, *_ = point.group
        highest, cost = (7_592.0, 0.068) if recomputed else (10_768.0, 0.0896)
        gain = 1.0 if not compiled else 1.23 if recomputed else 1.1
        return highest * point.batch / (cost + point.batch) * gain

    return Trainer(
        space=space,
        speed=speed,
        memory_gib=memory,
        limit_gib=139.0,
        step_s=lambda point: 4096 * point.batch / speed(point),
        more_s=lambda point: 150.0 if point.group[1] else 0.0,
        refuses=lambda point: "" if point.group[1] or not point.group[2] else "compile_mode without compile",
        **fields,
    )


@each_row("run_s", [20.0, 25.0])
@each_row("minutes", [5, 8])
@each_row("global_batch", [2, 0])
def test_what_compiles_for_minutes_is_not_tried_where_its_confirmation_has_no_room(global_batch, minutes, run_s):
    """No checkpointing is the first guess; of the default's micro batch it is confirmed, or of a larger one."""
    for seed in range(examples(10)):
        trainer = hf_on_one_h200(global_batch, noise=0.005, seed=seed, run_s=run_s)
        stop = trainer.tune(Budget(seconds=60 * minutes))
        assert trainer.trials[1].point == Point(batch=2, group=(False, False, "")), "the first guess"
        assert not any(one.point.group[1] for one in trainer.trials if one.status != "refused"), trainer.trials
        found = Seen(trainer.space, trainer.trials).best
        assert found == Point(batch=2 if global_batch else found.batch, group=(False, False, "")), trainer.trials
        assert trainer.speed(found) >= 10_303 and found.batch in (2, 3)
        assert stop.why == "confirmed" and trainer.spent_s <= 60 * minutes


@each_row("global_batch", [2, 0])
def test_what_compiles_for_minutes_is_found_and_confirmed_where_there_is_time(global_batch):
    for seed in range(examples(10)):
        trainer = hf_on_one_h200(global_batch, noise=0.005, seed=seed, run_s=25.0)
        stop = trainer.tune(Budget(seconds=60 * 20))
        assert trainer.speed(Seen(trainer.space, trainer.trials).best) >= 0.99 * best_of_grid(trainer), trainer.trials
        assert stop.why == "confirmed" and trainer.spent_s <= 60 * 20


LATER = Space(
    default=Point(batch=2, group=("selective", True, "default", 1)),
    choices=(
        CHECKPOINTING,
        COMPILE,
        Choice(key="reshard", values=("default", "never"), speed=(0.97, 1.0), later=True),
        Choice(key="dp_replicate", values=(1, 2), later=True),
    ),
    memory_gib=141.0,
)


@each_row("gain", [1.0, 1.03])
def test_later_knobs_come_once_the_others_are_done_and_leave_the_budget_its_confirmation(gain: float):
    def speed(point: Point) -> float:
        return llama_speed(Point(batch=point.batch, group=point.group[:2])) * (gain if "never" in point.group else 1)

    def memory(point: Point) -> float:
        return llama_memory(Point(batch=point.batch, group=point.group[:2])) + 8.0 * ("never" in point.group)

    for seed in range(examples(20)):
        trainer = Trainer(space=LATER, speed=speed, memory_gib=memory, limit_gib=137.0, noise=0.003, seed=seed)
        stop = trainer.tune(USUAL)
        short = [one.point for one in trainer.trials if not one.full]
        changed = [point.group[2:] != ("default", 1) for point in short]
        assert changed == sorted(changed) and any(changed), "the others come first"
        best = Seen(LATER, trainer.trials).best
        assert speed(best) >= 0.995 * 553 * gain, trainer.trials
        assert stop.why == "confirmed" and trainer.spent_s <= 480


def test_later_knobs_are_left_out_where_no_budget_is_left():
    trainer = Trainer(
        space=LATER,
        speed=lambda point: llama_speed(Point(batch=point.batch, group=point.group[:2])),
        memory_gib=lambda point: llama_memory(Point(batch=point.batch, group=point.group[:2])),
        limit_gib=137.0,
    )
    trainer.tune(Budget(runs=5))
    assert {one.point.group[2:] for one in trainer.trials} == {("default", 1)}


def test_the_runs_after_a_kill_are_those_that_would_have_come():
    whole = llama(noise=0.003, seed=7)
    whole.tune(USUAL)
    for cut in range(len(whole.trials)):
        assert next_run(H200, whole.trials[:cut], USUAL) == NextRun(
            point=whole.trials[cut].point, full=whole.trials[cut].full
        )


def test_a_configuration_that_crashes_is_left_out_with_all_that_have_its_value():
    trainer = llama(fails=lambda point: "no such kernel" if point.group[0] == "none" else "")
    trainer.tune(Budget(runs=20))
    crashed = [one.point for one in trainer.trials if one.status == "failed"]
    assert len(crashed) == 1, "tried once"
    assert Seen(H200, trainer.trials).best.group == ("selective", True)


def test_the_default_that_fails_ends_it_at_once():
    trainer = llama(fails=lambda point: "bug")
    assert trainer.tune(USUAL) == Stop(why="default_failed") and len(trainer.trials) == 1
    none_fits = Trainer(space=H200, speed=llama_speed, memory_gib=lambda point: 999.0, limit_gib=141.0)
    assert none_fits.tune(USUAL) == Stop(why="default_failed") and len(none_fits.trials) == 1


def test_a_default_that_is_best_is_called_so():
    def speed(point: Point) -> float:
        return 500.0 if point == DEFAULT else 400.0

    trainer = Trainer(space=H200, speed=speed, memory_gib=llama_memory, limit_gib=137.0)
    assert trainer.tune(Budget(runs=20)) == Stop(why="default_best")
    assert Seen(H200, trainer.trials).best == DEFAULT


@each_row("most", [1, 2, 3])
def test_a_budget_without_room_for_another_configuration_is_not_a_default_that_is_best(most):
    trainer = llama()
    assert trainer.tune(Budget(runs=most)) == Stop(why="budget") and len(trainer.trials) == 1


def test_a_refused_point_costs_nothing_and_the_next_one_is_tried():
    """A global batch of 8 on two GPUs: micro batches 1, 2 and 4 divide it; 8 is refused when planned."""
    trainer = llama(refuses=lambda point: "" if 8 % (2 * point.batch) == 0 else "no multiple")
    trainer.space = replace(H200, global_batch=8)
    trainer.tune(Budget(runs=20))
    assert {one.point.batch for one in trainer.trials if one.status != "refused"} <= {1, 2, 4}
    assert {one.point.batch for one in trainer.trials} <= {1, 2, 4, 8}
    assert Seen(H200, trainer.trials).best == Point(batch=1, group=("none", True)), "540 is the best of those left"


def test_the_budget_in_runs_leaves_room_for_the_confirmation():
    for most in range(1, 9):
        trainer = llama()
        trainer.tune(Budget(runs=most))
        assert len(trainer.trials) <= most
        if most >= 4:
            full = [one.point for one in trainer.trials if one.full]
            assert len(set(full)) == 2, f"{most} runs: {full}"


LONG_STEPS = RunSteps(warmup=10, full=50, least_full=20, short=13, least_short=7)


def on_two_h100(minutes: float | None = 8) -> tuple[Trainer, Stop]:
    """Tune Llama 3.1 8B with states in bfloat16 as two H100 of 80 GB ran it.

    A run took 37 s and its steps, the default 8551 tokens/s/GPU at 51.9 GiB, micro batch 5 with full checkpointing 8885
    at 64.1 and 6 of it 8906 at 70.2; the other numbers are what follows from the models of these.
    """
    default = Point(batch=1, group=("selective", True))
    space = Space(default=default, choices=(CHECKPOINTING, COMPILE), memory_gib=79.6, steps=LONG_STEPS)

    def speed(point: Point) -> float:
        highest = {"none": 9300.0, "selective": 9200.0, "full": 9010.0}[str(point.group[0])]
        return highest * point.batch / (0.072 + point.batch) * (1.0 if point.group[1] else 0.8)

    def memory(point: Point) -> float:
        return 33.9 + {"none": 40.0, "selective": 18.0, "full": 6.04}[str(point.group[0])] * point.batch

    def step_s(point: Point) -> float:
        return 8192 * point.batch / speed(point)

    trainer = Trainer(
        space=space, speed=speed, memory_gib=memory, limit_gib=78.0, noise=0.002, run_s=37.0, step_s=step_s
    )
    budget = USUAL if minutes is None else Budget(seconds=60 * minutes)
    return trainer, trainer.tune(budget)


@each_row("minutes", [8, 12, None])
def test_long_steps_are_fewer_so_that_the_budget_is_enough_for_the_confirmation(minutes):
    trainer, stop = on_two_h100(minutes)
    best = Seen(trainer.space, trainer.trials).best
    assert trainer.speed(best) >= 1.02 * trainer.speed(trainer.space.default)
    full = [one.point for one in trainer.trials if one.full]
    assert full.count(best) >= 1 and full.count(trainer.space.default) >= 1
    assert trainer.spent_s <= 60 * (minutes or 8) or len(trainer.trials) <= 5
    assert stop.why in ("confirmed", "budget")
    long = [one for one in trainer.trials if not one.full and one.point.batch >= 4]
    assert all(one.steps < LONG_STEPS.short for one in long)


@each_row("minutes", [8, 12])
def test_what_the_confirmation_needs_is_not_spent_on_the_search(minutes):
    """Llama 3.1 8B on two H200, in tokens/s/GPU and GiB as they were measured; the rest by the models."""
    measured = {
        ("selective", 1): 8549.0, ("selective", 2): 9212.0, ("selective", 3): 9555.0, ("none", 1): 9305.0,
        ("none", 2): 6838.0, ("full", 4): 8670.5,
    }  # fmt: skip
    highest = {"none": 10070.0, "selective": 10320.0, "full": 9000.0}

    def speed(point: Point) -> float:
        mode, compiled = str(point.group[0]), point.group[1]
        found = measured.get((mode, point.batch), highest[mode] * point.batch / (0.23 + point.batch))
        return found * (1.0 if compiled else 0.8)

    def memory(point: Point) -> float:
        return 63.4 + {"none": 37.1, "selective": 17.6, "full": 5.4}[str(point.group[0])] * point.batch

    for seed in range(examples(10)):
        trainer = Trainer(
            space=replace(H200, memory_gib=140.4, steps=LONG_STEPS),
            speed=speed,
            memory_gib=memory,
            limit_gib=138.0,
            noise=0.002,
            seed=seed,
            run_s=38.0,
            step_s=lambda point: 8192 * point.batch / speed(point),
        )
        assert trainer.tune(Budget(seconds=60 * minutes)).why == "confirmed", trainer.trials
        assert trainer.spent_s <= 60 * minutes
        assert speed(Seen(trainer.space, trainer.trials).best) >= 0.995 * 9555


@each_row("minutes", [7, 8, 10])
def test_what_is_far_away_is_not_run_before_the_cost_of_a_step_is_known(minutes):
    """Llama 3.1 8B on two H100 of 80 GB, in tokens/s/GPU and GiB as they were measured; the rest by the models."""
    measured = {("selective", 1): 8539.0, ("none", 1): 9285.0, ("selective", 2): 9293.0, ("full", 8): 8395.0}
    highest = {"none": 9840.0, "selective": 9660.0, "full": 8500.0}
    space = Space(
        default=Point(batch=1, group=("selective", True)),
        choices=(CHECKPOINTING, COMPILE),
        memory_gib=79.6,
        steps=LONG_STEPS,
    )

    def speed(point: Point) -> float:
        mode, compiled = str(point.group[0]), point.group[1]
        found = measured.get((mode, point.batch), highest[mode] * point.batch / (0.09 + point.batch))
        return found * (1.0 if compiled else 0.8)

    trainer = Trainer(
        space=space,
        speed=speed,
        memory_gib=lambda point: 33.9 + {"none": 38.5, "selective": 17.9, "full": 5.46}[point.group[0]] * point.batch,
        limit_gib=78.5,
        noise=0.001,
        run_s=37.0,
        step_s=lambda point: 8192 * point.batch / speed(point),
    )
    assert trainer.tune(Budget(seconds=60 * minutes)).why == "confirmed"
    assert trainer.spent_s <= 60 * minutes
    assert {one.point.batch for one in trainer.trials} <= {1, 2, 3}, (
        "not 8 with full checkpointing, the next that promises"
    )
    assert speed(Seen(space, trainer.trials).best) >= 9285


def test_a_start_that_takes_long_is_expected_of_its_own_group_alone():
    compiled, plain = Point(batch=1, group=(True,)), Point(batch=1, group=(False,))
    kinds = Choice(key="compile", values=(False, True))
    space = Space(default=plain, choices=(kinds,), steps=LONG_STEPS)
    trials = [
        Trial(point=plain, status="ok", full=True, speed=100.0, duration_s=90.0, steps=50, step_s=1.0),
        Trial(point=compiled, status="ok", speed=125.0, duration_s=210.4, steps=13, step_s=0.8),
    ]
    costs = Costs(Seen(space, trials), Budget(seconds=300.4 + 260))
    assert costs.full_steps(plain, ()) == 0, "40 s and 50 steps of 1 s"
    assert costs.full_steps(compiled, ()) == 0, "200 s and 50 steps of 0.8 s"
    assert costs.full_steps(compiled, (plain,)) is not None
    assert Costs(Seen(space, trials), Budget(seconds=300.4 + 215)).full_steps(compiled, ()) is None, (
        "200 s and 20 steps"
    )
    assert Costs(Seen(space, trials), Budget(seconds=300.4 + 69)).full_steps(plain, ()) == 29


def test_the_runs_that_follow_have_a_margin_before_this_one_has_more_than_the_least_steps():
    space = Space(default=Point(batch=1), steps=LONG_STEPS)
    trial = Trial(point=Point(batch=1), status="ok", full=True, speed=100.0, duration_s=90.0, steps=50, step_s=1.0)
    one, others = space.default, (space.default,)  # the least of a run: 40 s and 20 steps of 1 s

    def steps_of(left_s: float) -> int | None:
        return Costs(Seen(space, [trial]), Budget(seconds=90.0 + left_s)).full_steps(one, others)

    assert [steps_of(left_s) for left_s in (59, 60, 119, 120, 126, 127, 200)] == [None, 20, 0, 20, 20, 21, 0]


ATTENTION = Choice(key="attention", values=("sdpa", "flex"), acts_on=("attention",))
NORMS = Choice(key="norms", values=("eager", "fused"), acts_on=("other kernels",))
PLAIN = Point(batch=0, group=("sdpa", "eager"))


def first_guess(space: Space, **fields: Any) -> Point | None:
    trial = Trial(point=space.default, status="ok", full=True, speed=100.0, **fields)
    following = next_run(space, [trial], Budget(runs=20))
    return following.point if isinstance(following, NextRun) else None


@each_row(
    ("parts", "most_lost", "guess"),
    [
        ({}, "", ("flex", "eager")),  # without a profile both promise as much
        ({"GEMM": 0.7, "attention": 0.15, "other kernels": 0.15}, "attention", ("flex", "eager")),
        ({"GEMM": 0.7, "attention": 0.15, "other kernels": 0.15}, "other kernels", ("sdpa", "fused")),
        ({"GEMM": 0.9, "attention": 0.02, "other kernels": 0.08}, "GEMM", ("sdpa", "fused")),
        ({"GEMM": 0.997, "attention": 0.002, "other kernels": 0.001}, "GEMM", None),  # neither is worth a run
    ],
)
def test_what_a_profiled_step_could_lose_is_the_first_guess(parts, most_lost, guess):
    """A knob promises no more than the parts that it acts on take; of equals the largest loss comes first."""
    space = Space(default=PLAIN, choices=(ATTENTION, NORMS))
    found = first_guess(space, parts=parts, most_lost=most_lost)
    assert (found.group if found is not None else None) == guess


def test_a_profile_does_not_bound_what_was_measured_nor_larger_micro_batches():
    choices = (replace(CHECKPOINTING, acts_on=("GEMM",)), replace(COMPILE, acts_on=("GEMM",)))
    profiled = {"parts": {"GEMM": 0.0, "attention": 1.0}, "most_lost": "attention", "memory_gib": 60.0}
    found = first_guess(replace(H200, choices=choices), **profiled)
    assert found is not None and found.group == DEFAULT.group and found.batch > DEFAULT.batch
    other = Trial(point=replace(DEFAULT, group=("none", True)), status="ok", speed=130.0, memory_gib=80.0)
    trials = [Trial(point=DEFAULT, status="ok", full=True, speed=100.0, **profiled), other]
    assert Seen(replace(H200, choices=choices), trials).best == other.point


def test_a_full_run_that_fails_twice_ends_the_search():
    fast = Point(batch=3, group=("selective", True))
    trials = [
        Trial(point=DEFAULT, status="ok", full=True, speed=100.0, memory_gib=100.0),
        Trial(point=fast, status="ok", speed=103.0, memory_gib=113.0),
        Trial(point=fast, status="ok", full=True, speed=103.0, memory_gib=113.0),
        Trial(point=fast, status="ok", full=True, speed=103.2, memory_gib=113.0),
        *[Trial(point=DEFAULT, status="failed", full=True, reason="gone") for _ in range(2)],
    ]
    assert next_run(H200, trials, Budget(runs=20)) == Stop(why="undecided")


def test_equally_fast_configurations_are_seldom_confirmed():
    """The interval is looked at up to four times, of the best of five: at most 5 % of the studies call noise a gain."""
    kinds = Choice(key="kind", values=("a", "b", "c", "d", "e"))
    space = Space(default=Point(batch=0, group=("a",)), choices=(kinds,))
    confirmed = 0
    for seed in range(300):
        trainer = Trainer(
            space=space, speed=lambda point: 100.0, memory_gib=lambda point: 1.0, limit_gib=9.0, noise=0.005, seed=seed
        )
        confirmed += trainer.tune(Budget(runs=30)).why == "confirmed"
    assert confirmed <= 0.05 * 300


def test_full_runs_in_turns_go_on_until_the_noise_allows_an_answer():
    fast = Point(batch=3, group=("selective", True))
    other = Trial(point=fast, status="ok", speed=103.0, memory_gib=113.0)
    noisy = [
        Trial(point=point, status="ok", full=True, speed=speed, memory_gib=100.0)
        for point, speed in ((DEFAULT, 100.0), (fast, 104.0), (fast, 99.0), (DEFAULT, 103.0))
    ]
    following = next_run(H200, [noisy[0], other, *noisy[1:]], Budget(runs=20))
    assert isinstance(following, NextRun) and following.full
    calm = [
        Trial(point=point, status="ok", full=True, speed=speed, memory_gib=100.0)
        for point, speed in ((DEFAULT, 100.0), (fast, 103.0), (fast, 103.2), (DEFAULT, 100.2))
    ]
    assert next_run(H200, [calm[0], other, *calm[1:]], Budget(runs=20)) == Stop(why="confirmed")


@given(
    cost=st.floats(0.02, 2.0),  # of the default's work
    states=st.floats(10, 60),
    sequence=st.floats(2, 40),
    limit=st.floats(64, 192),
    modes=st.tuples(st.floats(0.9, 1.3), st.floats(0.6, 1.0)),
    needs=st.tuples(st.floats(1.2, 3.0), st.floats(0.1, 0.9)),
    start=st.integers(1, 6),
    tells_memory=st.booleans(),
)
# what larger micro batches save shows only once a second one ran
@example(cost=1.0, states=10, sequence=6, limit=192, modes=(1.0, 0.6), needs=(3.0, 0.9), start=6, tells_memory=True)
def test_other_optima_and_limits(cost, states, sequence, limit, modes, needs, start, tells_memory):
    """Throughput saturates with the micro batch: with room for the runs nothing of the default's mode is much faster.

    Where no run tells its memory, one in the middle of a gap may not be worth a run.
    """
    mode = Choice(key="ac", values=("none", "selective", "full"), memory=(2.2, 1.0, 0.3), speed=(1.08, 1.0, 0.8))
    speeds = dict(zip(mode.values, (modes[0], 1.0, modes[1]), strict=True))
    slopes = dict(zip(mode.values, (needs[0], 1.0, needs[1]), strict=True))

    def speed(point: Point) -> float:
        return 100 * speeds[point.group[0]] * point.batch / (cost * start + point.batch)

    def memory(point: Point) -> float:
        return states + sequence * slopes[point.group[0]] * point.batch

    default = Point(batch=start, group=("selective",))
    space = Space(default=default, choices=(mode,), memory_gib=limit)
    trainer = Trainer(space, speed, memory, limit_gib=limit, tells_memory=tells_memory)
    stop = trainer.tune(Budget(runs=30))
    if memory(default) > limit:
        assert stop.why == "default_failed"
        return
    grid = [Point(batch=batch, group=("selective",)) for batch in range(1, 200)]
    best = max((speed(point) for point in grid if memory(point) <= 0.92 * limit), default=0.0)  # beyond, it may not fit
    found = max(speed(one.point) for one in trainer.trials if one.status == "ok")
    assert found >= max(speed(default), best * (0.97 if tells_memory else 0.9)), (found, best)
    assert len(trainer.trials) <= 30
