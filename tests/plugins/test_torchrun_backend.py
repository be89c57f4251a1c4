"""A script of the user's own under torchrun: how its log is read, its result, what it is given, what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.measure.verdict import Expected, Observation, judge, judge_steps
from madlite.model import Card, Cause, Ended, Exit, Line, Machine, Quantity, RunPlan, Status, Step, Traits
from madlite.testing import Subject
from madlite.testing.subject import Case
from madlite_plugins.torchrun.backend import Torchrun
from tests.csv_rows import perf_rows
from tests.factories import HOST
from tests.monitors import monitored
from tests.plugins.logs import gpu_machine, steps
from tests.plugins.rendered import files
from tests.rows import each_row

STEP = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d,.]+)"
SPEED, TIME, LOSS = Quantity.TOKENS_PER_S_PER_GPU, Quantity.STEP_TIME_S, Quantity.LOSS


def made(tmp_path, machine: Machine | None = None, **recipe: object) -> RunPlan:
    """Return the plan of a card with this recipe table, in a folder that has train.py."""
    (tmp_path / "train.py").touch()
    recipe = {"script": "train.py", **recipe}
    card = Card(name="my_ddp", root=tmp_path, source="a test", backend="torchrun", n_gpus="-1", recipe=recipe)
    case = Case(card=card, machine=machine or Machine(), workspace=tmp_path)
    subject = Subject(Torchrun())
    (spec,) = subject.expand(case)
    return subject.plan(case, spec)


def read(plan: RunPlan | None, *texts: str):
    reader = Torchrun().reader(plan)
    return [event for text in texts for event in reader.feed(Line(text=text))]


def values(plan, *texts):
    return [(step.n, step.values) for step in steps(read(plan, *texts))]


@each_row(
    ("keys", "numbers", "speed"),
    [
        ("", {"tokens_per_s_per_gpu": 100, "tokens_per_second": 300}, 100),
        ("", {"tokens_per_second": 300, "tokens_per_s_per_gpu": 100}, 100),
        ("", {"tokens_per_second": 300}, 150),
        ("tps=tokens_per_s_per_gpu", {"tps": 100, "tokens_per_second": 300}, 100),
        ("tps=tokens_per_s_per_gpu", {"tokens_per_second": 300, "tps": 100}, 100),
        ("tps=tokens_per_s", {"tps": 300, "tokens_per_s_per_gpu": 7}, 150),
        ("tps=tokens_per_s", {"tokens_per_s_per_gpu": 7, "tps": 300}, 150),
        ("tps=tokens_per_s_per_gpu", {"tps": None, "tokens_per_second": 300}, 150),
    ],
)
def test_a_speed_of_the_job_fills_in_what_neither_the_keys_nor_a_speed_of_a_gpu_say(keys, numbers, speed, tmp_path):
    plan = made(tmp_path, gpu_machine(2), json=True, json_keys=keys, headline="tokens_per_s_per_gpu")
    assert values(plan, json.dumps({"step": 1, **numbers})) == [(1, {SPEED: speed})]


def test_a_pattern_reads_numbers_as_scripts_print_them(tmp_path):
    plan = made(tmp_path, step=STEP, end_mark="all done")
    found = read(plan, "step 1 loss 2.5, tps 1,234.5", "step 2 loss nan tps 1e3", "epoch 3", "all done now")
    assert [type(event) for event in found] == [Step, Step, Ended]
    assert found[0].values == {LOSS: 2.5, SPEED: 1234.5}
    assert math.isnan(found[1].values[LOSS])
    # text that is no number is left out and is no nan
    assert values(made(tmp_path, step=STEP), "step 4 loss n/a tps 100") == [(4, {SPEED: 100.0})]
    # a line in ten steps covers ten
    found = steps(read(made(tmp_path, step=STEP), *[f"step {n} loss 1 tps 1" for n in (10, 20, 30)]))
    assert [(step.n, step.span) for step in found[1:]] == [(20, 10), (30, 10)]
    # speeds of the whole job are divided by its ranks
    plan = made(tmp_path, gpu_machine(8), step=STEP, per_gpu=False, nnodes=2, node_rank="0", master_addr="a")
    assert values(plan, "step 1 loss 2 tps 16,000") == [(1, {LOSS: 2.0, SPEED: 1000.0})]
    assert any("divided by the number of ranks" in note for note in plan.notes)
    assert not any("divided" in note for note in made(tmp_path, step=STEP).notes)


def test_json_lines_have_known_keys_and_those_that_are_stated(tmp_path):
    plan = made(tmp_path, json=True, json_keys="it=n, avg=loss, dt=step_time_ms, tps=tokens_per_s_per_gpu")
    line = '{"it": 3, "avg": "2.25", "dt": 250, "tps": 1e3, "step": 99, "loss": 7, "other": [1, {"n": 4}], "ok": true}'
    assert values(plan, line) == [(3, {LOSS: 2.25, TIME: 0.25, SPEED: 1000.0})]
    for name in ("n", "step", "iteration", "global_step"):
        text = f'{{"{name}": 5, "loss": NaN, "step_time_s": 0.5}} trailing'
        ((n, told),) = values(made(tmp_path, json=True), text)
        assert n == 5 and math.isnan(told[LOSS]) and told[TIME] == 0.5
    # a prefix tells which objects count
    plan = made(tmp_path, json_prefix="METRICS ")
    lines = [
        '{"step": 1, "loss": 1}',
        '10:00 METRICS {"step": 2, "loss": 2} METRICS {"step": 3, "loss": 3}',
        "METRICS {",
    ]
    assert [n for n, _ in values(plan, *lines)] == [2, 3]
    # the rank is the line's or the object's
    plan = made(tmp_path, json=True)
    reader = Torchrun().reader(plan)
    (one,) = reader.feed(Line(text='[rank1]:{"step": 1, "loss": 1}', rank=1))
    (other,) = reader.feed(Line(text='{"step": 1, "loss": 1, "rank": 3}'))
    assert (one.rank, other.rank) == (1, 3)


@each_row(
    "line",
    [
        '{"step": 1, "loss": 2.1',
        '{"step": true, "loss": 2.1}',
        '{"step": -4, "loss": 2.1}',
        '{"step": 1e300, "loss": 2.1}',
        '{"step": NaN, "loss": 2.1}',
        '{"step": 3, "other": 1}',
        '{"step": 3, "loss": true}',
        '{"step": "x", "loss": 1}',
        '{"step": 1, "loss": ' + "[" * 60_000,
        "{" * 60_000,
        '{"step": ' + "9" * 6000 + ', "loss": 1}',
    ],
)
def test_what_is_no_step_is_none(tmp_path, line):
    assert read(made(tmp_path, json=True), line) == []


def test_a_script_that_counts_from_0_has_done_a_step_when_it_says_so(tmp_path):
    plan = made(tmp_path, step=STEP)
    for numbers, whole in (
        (range(20), True),
        (range(1, 21), True),
        (range(21), True),
        (range(19), False),
        (range(1, 20), False),
        (range(0, 21, 5), True),
    ):
        log = monitored([Torchrun().reader(plan)], [f"step {n} loss 2.5 tps {100 + n}" for n in numbers])
        verdict = judge_steps(Expected(rule=plan.result_rule, steps=20), log)
        assert [step.n for step in log.steps] == list(numbers), "as it is printed"
        assert (verdict.status is Status.SUCCESS) == whole and verdict.suspect == ()


@each_row(
    ("group", "text", "quantity", "expected"),
    [
        ("tokens_per_s", "16,000", SPEED, 1000.0),
        ("samples_per_s", "32", Quantity.SAMPLES_PER_S_PER_GPU, 2.0),
        ("steps_per_s", "20.0", TIME, 0.05),
        ("elapsed_s", "40.0", TIME, 20.0),
        ("elapsed", "0:00:40", TIME, 20.0),
    ],
)
def test_a_step_s_groups_are_those_that_a_parsed_log_may_have(tmp_path, group, text, quantity, expected):
    pattern = rf"step (?P<n>\d+) of (?P<steps>\d+) (?P<memory_used_mib>\d+) MiB (?P<{group}>\S+)"
    plan = made(tmp_path, gpu_machine(8), step=pattern, nnodes=2, node_rank="0", master_addr="a")
    assert plan.result_rule.headline is quantity
    first = "0:00:00" if ":" in text else "0.0"
    found = values(plan, f"step 1 of 9 2048 MiB {first}", f"step 3 of 9 2048 MiB {text}")
    assert found[-1] == (3, {Quantity.MEMORY_USED_GIB: 2.0, quantity: expected})


@each_row(
    ("sizes", "speed"),
    [
        ({"seq_len": 100, "micro_batch": 4}, 800.0),
        ({"seq_len": 100, "micro_batch": 4, "global_batch": 64}, 1600.0),  # 8 sequences a rank and step
        ({"seq_len": 100}, None),
        ({"micro_batch": 4}, None),
    ],
)
def test_tokens_follow_from_a_step_s_time_only_where_the_sizes_are_stated(tmp_path, sizes, speed):
    pattern = r"it (?P<n>\d+) (?P<step_time_ms>[\d.]+) ms"
    plan = made(tmp_path, gpu_machine(8), step=pattern, **sizes)
    ((_, told),) = values(plan, "it 3 500.0 ms")
    assert told == ({TIME: 0.5, SPEED: speed} if speed else {TIME: 0.5})
    assert plan.result_rule.headline is (SPEED if speed else TIME)
    assert plan.result_rule.headline_metric == ("tokens_per_s_per_gpu" if speed else "step_time_s")


@each_row(
    ("recipe", "headline", "loss"),
    [
        ({"step": STEP}, SPEED, True),
        ({"step": r"(?P<n>.) (?P<step_time_s>.) (?P<images_per_s_per_gpu>.)"}, Quantity.IMAGES_PER_S_PER_GPU, False),
        ({"step": STEP + r" (?P<tflops_per_gpu>\S+)", "headline": "tflops_per_gpu"}, Quantity.TFLOPS_PER_GPU, True),
        ({"json": True}, SPEED, False),
        ({"json_keys": "rate=samples_per_s_per_gpu"}, Quantity.SAMPLES_PER_S_PER_GPU, False),
        ({"json": True, "headline": "step_time_s"}, TIME, False),
    ],
)  # fmt: skip
def test_the_result_is_the_first_speed_of_the_line_or_the_one_asked_for(tmp_path, recipe, headline, loss):
    rule = made(tmp_path, **recipe).result_rule
    assert (rule.headline, rule.headline_metric, rule.loss_expected) == (headline, headline.name, loss)


def test_a_time_s_median_is_the_row_and_a_bad_loss_a_failure(tmp_path):
    plan = made(tmp_path, step=r"it (?P<n>\d+) loss (?P<loss>\S+) (?P<step_time_ms>[\d.]+) ms")
    rows = [f"it {n} loss {3 - n / 10} {100 + n} ms\n" for n in range(1, 11)]

    def judged(text):
        log = monitored([Torchrun().reader(plan)], text)
        return judge_steps(Expected(rule=plan.result_rule, warmup_steps=5), log)

    good = judged("".join(rows))
    assert good.status is Status.SUCCESS and [one.metric for one in good.metrics] == ["step_time_s"]
    assert good.window.median == pytest.approx(0.108)
    assert judged("".join(rows).replace("loss 2.5", "loss nan")).status is Status.FAILURE


REFUSED = [
    ({}, "no pattern is set for the steps of the log", "--set 'step="),
    ({"step": STEP, "json": True}, "step and json are two ways", "leave one"),
    ({"step": "step ("}, "is no regular expression: missing ), unterminated subpattern", "--set 'step="),
    ({"step": "step (?P<loss>.)"}, "no pattern of a step has the group n", r"(?P<n>\d+)"),
    ({"step": r"(?P<n>\d+) (?P<throughput>.)"}, "names no number; names: n, loss, tokens_per_s, ", "--set 'step="),
    ({"step": r"(?P<n>\d+) (?P<tokens_per_s_mean>.)"}, "reads no speed", "give it a group of tokens_per_s_per_gpu"),
    ({"step": r"(?P<n>\d+) (?P<loss>.)"}, "reads no speed", "give it a group of tokens_per_s_per_gpu"),
    ({"step": STEP, "headline": "tflops_per_gpu"}, "reads no tflops_per_gpu", "give it a group"),
    ({"step": STEP, "headline": "loss"}, "headline 'loss' is no speed", "one of tokens_per_s_per_gpu"),
    ({"json_keys": "tps"}, "'tps', which is no key=name", "--set json_keys="),
    ({"json_keys": "tps=speed"}, "json_keys has 'tps' as 'speed', which names no number", "names: n, loss"),
    (
        {"step": r"(?P<n>\d+) (?P<step_time_s>.)", "headline": "tokens_per_s_per_gpu"},
        "a step's time, and not its tokens",
        "--seq-len and --batch-size",
    ),
    ({"script": "", "step": STEP}, "card 'my_ddp' names no script to run", "--set script=train.py"),
]


@each_row(("recipe", "what", "hint"), REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_type(tmp_path, recipe, what, hint):
    with pytest.raises(UsageProblem) as refused:
        made(tmp_path, **recipe)
    assert what in refused.value.message and hint in refused.value.hint


@each_row(
    ("recipe", "machine", "word"),
    [
        ({"script": "other.py"}, Machine(), "script other.py is not there"),
        ({"script": "sub/train.py"}, Machine(), ""),
        ({"script": "inner.py", "cwd": "sub"}, Machine(), "script inner.py is not there"),
        ({"script": "../train.py"}, Machine(), "script ../train.py is not there"),
        ({"script": "sub/../train.py"}, Machine(), "outside of the folder that a container sees"),
        ({"script": "/opt/bench/train.py"}, Machine(), ""),
        ({"script": "-m package.train"}, Machine(), ""),
        ({"script": "-m package"}, Machine(), ""),
        ({"script": "-m package.nothing"}, Machine(), "package package of"),
        ({"script": "-m a;b"}, Machine(), "'a;b' is no module's name"),
        ({"nproc_per_node": 2}, Machine(), ""),
        ({"nproc_per_node": -1}, Machine(), "nproc_per_node is -1"),
        ({"nproc_per_node": 100_000}, Machine(), "nproc_per_node is 100000: more than 1024"),
        ({"nproc_per_node": 100_000}, gpu_machine(8), "nproc_per_node is 100000: more than 1024"),
        ({"nproc_per_node": 2, "log_ranks": "0, 1"}, Machine(), ""),
        (
            {"nproc_per_node": 2, "log_ranks": "7"},
            Machine(),
            "log_ranks '7': 7 is no rank of this run, where ranks are 0 to 1",
        ),
        ({"nproc_per_node": 2, "log_ranks": "0,2,3"}, Machine(), "2, 3 are no ranks of this run"),
        ({"log_ranks": 1}, Machine(), "1 is no rank of this run, where there is rank 0 alone"),
        ({"log_ranks": "8"}, gpu_machine(8), "ranks are 0 to 7"),
        ({"log_ranks": "7"}, gpu_machine(8), ""),
        ({"log_ranks": "a"}, Machine(), "log_ranks 'a' is no list of ranks"),
        ({"log_ranks": "0,,1"}, gpu_machine(8), "log_ranks '0,,1' is no list of ranks"),
        ({"log_ranks": "-1"}, Machine(), "log_ranks '-1' is no list of ranks"),
        ({"script": "../out/train.py"}, Machine(), "script ../out/train.py is not there"),
        ({"nproc_per_node": 2}, gpu_machine(8), "2 ranks on 8 GPUs"),
        ({"nproc_per_node": 8}, gpu_machine(8), ""),
        ({"steps": 4}, Machine(), "4 steps are over before 5 of warm-up are"),
        ({"nnodes": 2, "node_rank": "0"}, gpu_machine(8), "2 nodes cannot meet at 'localhost'"),
    ],
)
def test_what_keeps_a_run_from_starting_is_found(tmp_path, recipe, machine, word):
    for name in ("sub/train.py", "sub/inner.py", "package/__init__.py", "package/train.py", "package/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    fatal = [one.message for one in Torchrun().check(made(tmp_path, machine, step=STEP, **recipe)) if one.fatal]
    assert [word in message for message in fatal] == [True] * bool(word)


@each_row(
    ("text", "changes", "word"),
    [
        ('import os\nos.environ["MADLITE_CHECKPOINT"]', {"steps": 30}, ""),
        ("import os", {"steps": 30}, "checkpoint works with a script that reads MADLITE_CHECKPOINT alone"),
        (
            'import os\nos.environ["MADLITE_CHECKPOINT"]',
            {"steps": 10},
            "checkpoint_interval 10 is not below the 10 steps",
        ),
    ],
)
def test_a_checkpoint_is_for_scripts_that_read_where_it_is_and_for_steps_before_the_last(tmp_path, text, changes, word):
    (tmp_path / "train.py").write_text(text)
    plan = made(tmp_path, step=STEP, script="train.py", checkpoint=True, **changes)
    found = [one.message for one in Torchrun().check(plan) if "checkpoint" in one.message]
    assert [word in message for message in found] == [True] * bool(word), found
    script = files(plan)["run.sh"]
    assert "export MADLITE_CHECKPOINT=$PWD/checkpoint MADLITE_CHECKPOINT_INTERVAL=10\n" in script


def module_findings(tmp_path, module: str, python: str, **env: str):
    plan = made(tmp_path, step=STEP, script=f"-m {module}")
    return list(Torchrun().check(replace(plan, runtime="host", traits=HOST, env={"MADLITE_PYTHON": python, **env})))


@each_row(
    ("module", "word"),
    [
        ("nope.mod", "module nope.mod is not there"),
        ("nope", "module nope is not there"),
        ("timeit", ""),
        ("json.tool", ""),
        ("msgspec.nope", "has no module msgspec.nope that can be run"),
        ("msgspec", "has no module msgspec that can be run"),
    ],
)
def test_a_module_that_the_host_s_python_lacks_is_refused(tmp_path, module, word):
    found = module_findings(tmp_path, module, sys.executable)
    assert [(one.fatal, word in one.message) for one in found] == [(True, True)] * bool(word)


def test_a_module_is_looked_for_where_python_path_says_and_never_imported(tmp_path):
    (tmp_path / "src/package").mkdir(parents=True)
    (tmp_path / "src/package/train.py").write_text("raise SystemExit('imported')")
    (tmp_path / "src/package/__init__.py").write_text("raise SystemExit('imported')")
    assert module_findings(tmp_path, "package.train", sys.executable, PYTHONPATH="src") == []
    assert [one.fatal for one in module_findings(tmp_path, "package.train", sys.executable)] == [True]
    # a module that may be in the image is warned of
    (finding,) = Torchrun().check(made(tmp_path, step=STEP, script="-m elsewhere.train"))
    assert not finding.fatal and "has to be installed where the run happens" in finding.message


def test_another_python_s_packages_are_seen_as_far_as_files_tell(tmp_path):
    site = tmp_path / "env/lib/python3.12/site-packages/elsewhere"
    site.mkdir(parents=True)
    (site / "train.py").touch()
    python = str(tmp_path / "env/bin/python")
    assert module_findings(tmp_path, "elsewhere.train", python) == []
    (finding,) = module_findings(tmp_path, "nope.train", python)
    assert not finding.fatal and "nor seen among the packages" in finding.message


def test_a_missing_script_has_one_hint_and_no_image_on_the_host(tmp_path):
    plan = made(tmp_path, step=STEP, script="other.py")
    (docker,) = Torchrun().check(replace(plan, runtime="docker", traits=Traits()))
    (host,) = Torchrun().check(replace(plan, runtime="host", traits=HOST))
    assert "image" in docker.hint and "image" not in host.hint
    assert "--no-lint" not in docker.hint + host.hint  # which is said of every refusal
    assert host.hint.count("--set script=") == 1


@each_row(("ranks", "cores", "warned"), [(8, 2, False), (9, 2, True), (64, 16, False)])
def test_many_ranks_on_few_cores_are_warned_of(tmp_path, monkeypatch, ranks, cores, warned):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    found = [one for one in Torchrun().check(made(tmp_path, step=STEP, nproc_per_node=ranks))]
    assert [one.fatal for one in found] == [False] * warned
    assert all(f"{ranks} ranks share the {cores} cores" in one.message for one in found)


@each_row(("rank", "told"), [("0", False), ("1", True)])
def test_another_node_is_told_where_the_result_is(tmp_path, rank, told):
    plan = made(tmp_path, gpu_machine(8), step=STEP, nnodes=2, node_rank=rank, master_addr="first")
    found = list(Torchrun().check(plan))
    assert not any(one.fatal for one in found)
    text = " ".join(f"{one.message} {one.hint}" for one in found)
    assert all((word in text) == told for word in ("printed on node 0", "skip_perf_collection"))


def judged_run(plan, *texts: str):
    """Return the verdict of a run whose script ended with exit code 0."""
    log = monitored([Torchrun().reader(plan)], texts, outputs=plan.workspace)
    return judge(plan, Observation(exit=Exit(code=0, duration_s=1e6)), log)


def unread(plan, *texts: str) -> tuple[str, ...]:
    """Return what of a log the reader reports that it could not read."""
    log = monitored([Torchrun().reader(plan)], texts, outputs=plan.workspace)
    return log.unread


LINES = [f"step {n} loss {3 - n / 10} tps {1000 + n}" for n in range(1, 16)]


@each_row(
    ("pattern", "line"),
    [
        (r"step (?P<n>\d+)\b.* tps (?P<tokens_per_s_per_gpu>[\d.]+)", "step {n:,} tps {tps:.1f}"),
        (r"step (?P<n>\d+).*tps=(?P<tokens_per_s_per_gpu>[\d.]+),\d+ms", "step {n:,}/1,200: tps={tps:.1f},12ms"),
        (r"(?P<n>\d+) (?P<tokens_per_s_per_gpu>[\d.]+),", "{n} {tps:.1f},3"),
    ],
)
def test_a_script_s_commas_keep_no_run_from_its_end(tmp_path, pattern, line):
    plan = made(tmp_path, gpu_machine(8), step=pattern, steps=1200)
    verdict = judged_run(plan, *(line.format(n=n, tps=1000 + n / 10) for n in range(1, 1201)))
    assert (verdict.status, verdict.window.last_step) == (Status.SUCCESS, 1200), verdict.reason
    short = judged_run(plan, *(line.format(n=n, tps=1000 + n / 10) for n in range(1, 1100)))
    assert short.cause is Cause.INCOMPLETE and "step 1099 was the last of 1200" in short.reason


def test_a_speed_of_another_language_is_none_wherever_the_pattern_goes_on(tmp_path):
    pattern = r"step (?P<n>\d+).*tps (?P<tokens_per_s_per_gpu>[\d.]+).*"
    plan = made(tmp_path, gpu_machine(8), step=pattern, steps=20)
    verdict = judged_run(plan, *(f"step {n} tps 5.121,{n % 10} loss 2" for n in range(1, 21)))
    assert (verdict.status, verdict.cause) == (Status.FAILURE, Cause.BAD_NUMBER) and "5.121," in verdict.reason


@each_row(
    ("recipe", "lines", "good"),
    [
        ({}, [*LINES, "all done"], True),
        ({}, LINES, False),
        ({}, [*LINES[:9], "all done", *LINES[9:]], False),  # a training after the one that ended
        ({}, [*LINES, "all done", LINES[-1], LINES[-2]], True),  # of other ranks
        ({}, [*LINES[:-1], LINES[-1] + " all done"], True),  # ranks that wrote at once
        ({"steps": 15}, LINES, True),  # the steps decide
        ({"nnodes": 2, "node_rank": "1", "master_addr": "a"}, LINES, True),  # rank 0 prints it elsewhere
    ],
)
def test_without_stated_steps_a_missing_end_mark_is_a_failure(tmp_path, recipe, lines, good):
    verdict = judged_run(made(tmp_path, gpu_machine(8), step=STEP, end_mark="all done", **recipe), *lines)
    assert (verdict.status is Status.SUCCESS) == good
    if not good:
        assert verdict.cause is Cause.INCOMPLETE
        assert verdict.reason == "the end mark 'all done' was not printed after the last step"


def test_a_log_without_steps_shows_the_nearest_line(tmp_path):
    lines = ["loss scaling 1.0", "Step: 3 | Loss: 2.5 | 100 tok/s", "Step: 4 | Loss: 2.4 | 99 tok/s", "done 1"]
    assert judged_run(made(tmp_path, step=STEP), *lines).cause is Cause.NO_METRIC
    (told,) = unread(made(tmp_path, step=STEP), *lines)
    assert f"no line of the log matched step={STEP}" in told and "Step: 3 | Loss: 2.5" in told
    (told,) = unread(made(tmp_path, json_prefix="METRICS "), "hello", '{"step": 3, "loss": 2.0}')
    assert "after 'METRICS '" in told and '{"step": 3' in told
    # a script that failed before its first step is not said to be read wrongly
    assert not unread(made(tmp_path, step=STEP), "Traceback (most recent call last):", "ImportError: line 3")
    assert "nor looks like a step" in unread(made(tmp_path, step=STEP), "hello")[0]


def test_a_group_that_is_never_a_number_is_named(tmp_path):
    (told,) = unread(
        made(tmp_path, step=STEP.replace(r"[\d,.]+", r"\S+")), "step 1 loss 2.0 tps fast", "step 2 loss n/a tps 1x"
    )
    assert "group tokens_per_s_per_gpu of step=" in told and "held 'fast', which is no number" in told
    assert not unread(made(tmp_path, step=STEP), *LINES)
    # a group that is never a number is a finding of a run with a number
    pattern = r"step (?P<n>\d+) loss (?P<loss>\S+) tps (?P<tokens_per_s_per_gpu>[\d.]+) mem (?P<memory_used_gib>\S+)"
    verdict = judged_run(made(tmp_path, step=pattern), *(f"{line} mem few" for line in LINES))
    assert verdict.status is Status.SUCCESS, verdict.reason
    assert any("memory_used_gib" in text and "held 'few', which is no number" in text for text in verdict.findings)


@pytest.fixture
def without_torch(tmp_path_factory, monkeypatch):
    """Have scripts run by a Python that finds no torch: one rank needs no torchrun then, which takes seconds."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("MADLITE_PYTHON", str(python))


@pytest.mark.host
@pytest.mark.usefixtures("without_torch")
def test_the_log_of_a_run_is_parsed_by_the_expression_of_its_plan(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    lines = "for n in range(20): print(f'step {n} loss 2.5 tps {100 + n}')"
    (tmp_path / "train.py").write_text(lines)
    words = ["run", "--tags", "torchrun_script", "--runtime", "host", "--set", "script=train.py"]
    assert call([*words, "--set", f"step={STEP}", "--set", "nproc_per_node=1"]) == 0
    capfd.readouterr()
    assert call(["parse", "last"]) == 0
    assert "SUCCESS   112 tokens_per_s_per_gpu (median of 15 steps, 5 to 19" in capfd.readouterr().out  # of 105 to 119
    (file,) = tmp_path.glob("madlite_runs/*/record.json")
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert json.loads(file.read_text())["provenance"]["files"] == {"train.py": digest}
    assert call(["reproduce", "last"]) == 0 and "train.py" not in capfd.readouterr().out.partition("madlite run")[0]
    (tmp_path / "train.py").write_text(lines + "  # again")
    assert call(["reproduce", "last"]) == 0
    assert "# train.py has changed since: another script would run" in capfd.readouterr().out


@pytest.mark.host
@pytest.mark.usefixtures("without_torch")
def test_what_a_wrong_pattern_lets_by_is_the_hint_of_the_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("for n in range(20): print(f'Step: {n} | Loss: 2.5 | 100 tok/s')")
    words = ["run", "--tags", "torchrun_script", "--runtime", "host", "--set", "script=train.py"]
    assert call([*words, "--set", f"step={STEP}", "--set", "nproc_per_node=1"]) == 3
    said = capfd.readouterr()
    hint = f"no line of the log matched step={STEP}; the line nearest to a step: Step: 0 | Loss: 2.5 | 100 tok/s"
    assert f"try: {hint}" in said.out and "no line of the log matched" not in said.err
    (file,) = tmp_path.glob("madlite_runs/*/record.json")
    assert json.loads(file.read_text())["diagnosis"]["hint"] == hint
    assert call(["show", "last"]) == 0
    assert " ".join(hint.split()) in " ".join(capfd.readouterr().out.split())


@each_row(
    ("recipe", "key", "meant"),
    [
        ({"script": "", "scrip": "train.py", "step": STEP}, "scrip", "script"),
        ({"stp": STEP}, "stp", "step"),
        ({"json_key": "tps=tokens_per_s_per_gpu"}, "json_key", "json_keys"),
    ],
)
def test_what_is_missing_and_there_by_a_misspelt_name_is_told_first(tmp_path, recipe, key, meant):
    with pytest.raises(UsageProblem) as refused:
        made(tmp_path, **recipe)
    assert refused.value.message == f"card 'my_ddp' has no key '{key}' to set"
    assert f"did you mean {meant}?" in refused.value.hint


def test_a_misspelt_word_of_the_command_is_told_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--tags", "torchrun_script", "--set", "scrip=train.py"]) == 4
    assert "this run has no key 'scrip' to set" in capsys.readouterr().err


def test_the_hint_names_a_script_that_lies_in_cwd(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/inner.py").touch()
    (finding,) = Torchrun().check(made(tmp_path, step=STEP, script="inner.py", cwd="sub"))
    assert "--set script=sub/inner.py" in finding.hint


def test_it_is_unsure_of_json_lines_and_knows_no_others():
    backend = Torchrun()
    assert backend.detect(["hello", '{"step": 3, "loss": 2.0}']) == 0.2
    assert (
        backend.detect(['{"step": 3}', '{"a": 1}', "{", "step 3 loss 2", 'madlite-step {"n": 3, "loss": 2.0}']) == 0.0
    )
    assert [step.n for step in steps(read(None, '{"step": 3, "loss": 2.0}'))] == [3]


@given(
    st.lists(
        st.text(max_size=30) | st.sampled_from(['{"step": 1, "loss": 2}', '{"n"', "step 1 loss 2 tps 3", "}", "{"])
    )
)
def test_no_text_upsets_the_readers(tmp_path_factory, texts):
    folder = tmp_path_factory.getbasetemp()
    for plan in (made(folder, step=STEP), made(folder, json=True), None):
        for text in ("".join(texts), *texts):
            for event in read(plan, text):
                assert event.n >= 0 and all(isinstance(value, float) for value in event.values.values())


SCRIPT = r"""
import json, os, re, sys
rank = int(os.environ["RANK"])
if rank == 0:
    told = {name: os.environ[name] for name in os.environ if re.match("MADLITE_(?!PYTHON|RUN_|TEST_)", name)}
    print("TOLD", json.dumps([sys.argv[1:], os.getcwd(), told, os.environ["WORLD_SIZE"]]), flush=True)
    for n in range(20):
        print(f"it {n} loss {3 - n / 10} speed {1000 + n}", flush=True)
"""


def run(folder, *words: str, **more):
    command = [sys.executable, "-m", "madlite", "run", "--runtime", "host", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, **more)


@pytest.mark.training
@pytest.mark.full
def test_a_card_of_one_s_own_runs_with_its_words_and_gives_its_row(tmp_path):
    work = tmp_path / "a folder with 'quotes' and $HOME"
    (work / "sub dir").mkdir(parents=True)
    (work / "my train.py").write_text(SCRIPT)
    odd = ["--lr", "1e-3", "two words", "$(touch canary)", 'q"q', "-x"]
    recipe = {
        "script": "my train.py", "cwd": "sub dir", "nproc_per_node": 2, "steps": 20, "seq_len": 64, "micro_batch": 3,
        "precision": "bf16", "strategy": "own; touch canary", "mode": "pretrain", "per_gpu": False,
        "step": r"it (?P<n>\d+) loss (?P<loss>\S+) speed (?P<samples_per_s_per_gpu>\S+)",
    }  # fmt: skip
    args = " ".join("'" + word + "'" for word in odd)
    card = {"name": "my_ddp", "backend": "torchrun", "n_gpus": "-1", "args": args, "recipe": recipe}
    (work / "models.json").write_text(json.dumps([card]))
    done = run(work, "--tags", "my_ddp")
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = work.glob("madlite_runs/*/run.log")
    words, cwd, told, world = json.loads(re.search(r"TOLD (.*)", log.read_text())[1])
    assert (words, cwd, world) == (odd, str(work / "sub dir"), "2")
    callers = {name for name in os.environ if name.startswith("MADLITE_")}
    assert {name: value for name, value in told.items() if name not in callers} == {
        "MADLITE_MODE": "pretrain", "MADLITE_PRECISION": "BF16", "MADLITE_SEQ_LEN": "64", "MADLITE_MICRO_BATCH": "3",
        "MADLITE_STEPS": "20", "MADLITE_WARMUP_STEPS": "5", "MADLITE_STRATEGY": "own; touch canary",
    }  # fmt: skip
    (row,) = perf_rows(work)
    assert (row["metric"], row["status"], row["mode"]) == ("samples_per_s_per_gpu", "SUCCESS", "pretrain")
    assert float(row["performance"]) == statistics.median(range(1005, 1020)) / 2
    assert "divided by the number of ranks" in done.stdout
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.training
@pytest.mark.full
def test_a_module_is_run_and_a_script_of_no_card_too(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/train.py").write_text(SCRIPT)
    pattern = r"step=it (?P<n>\d+) loss (?P<loss>\S+) speed (?P<tokens_per_s_per_gpu>\S+)"
    done = run(tmp_path, "--tags", "torchrun_script", "--set", "script=-m package.train", "--set", pattern)
    assert done.returncode == 0, done.stdout + done.stderr
    assert perf_rows(tmp_path)[0]["performance"] == "1012"


@pytest.mark.training
@pytest.mark.full
@pytest.mark.timeout(240)
def test_the_sample_trains_with_ddp_and_with_fsdp_on_two_ranks(tmp_path):
    losses = {}
    for strategy in ("ddp", "fsdp"):
        done = run(
            tmp_path, "--tags", f"torchrun_ddp_tiny:strategy={strategy}", "--set", "steps=14", "--precision", "FP32"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        log = max(tmp_path.glob("madlite_runs/*/run.log"), key=lambda path: path.stat().st_mtime_ns)
        told = [json.loads(text) for text in re.findall(r"^step (\{.*\})", log.read_text(), re.MULTILINE)]
        assert [one["step"] for one in told] == list(range(1, 15)) and "--nproc_per_node 2" in (
            log.parent / "run.sh"
        ).read_text()
        losses[strategy] = [one["loss"] for one in told]
        row = perf_rows(tmp_path)[-1]
        median = statistics.median(one["tokens_per_s_per_gpu"] for one in told[5:])
        assert float(row["performance"]) == pytest.approx(median, rel=1e-5) and row["precision"] == "FP32"
    assert losses["ddp"][-1] < losses["ddp"][0]
    # in FP32 both do the same sums: the gradients of all ranks, whoever holds the weights
    assert losses["fsdp"] == pytest.approx(losses["ddp"], rel=1e-3)


@each_row(
    ("words", "told"),
    [
        (["--set", "script=train.py"], "no pattern is set for the steps of the log"),
        (["--set", "script=nothing.py", "--set", f"step={STEP}"], "script nothing.py is not there"),
        (["--runtime", "host", "--set", "script=-m nope.mod", "--set", f"step={STEP}"], "module nope.mod is not there"),
        (["--set", "script=train.py", "--set", "step=("], "is no regular expression"),
    ],
)
def test_the_command_ends_with_code_4_and_no_row(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert call(["run", "--tags", "torchrun_script", *words]) == 4
    said = "".join(capsys.readouterr())
    assert told in said and " hint: " in said and "Traceback" not in said
    assert not (tmp_path / "perf.csv").exists()


@pytest.mark.host
def test_what_is_wrong_in_the_card_alone_is_a_row_and_names_no_runtime(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    card = {"name": "my_ddp", "backend": "torchrun", "n_gpus": "-1", "recipe": {"scrip": "train.py", "step": STEP}}
    (tmp_path / "models.json").write_text(json.dumps([card]))
    assert call(["run", "--tags", "torchrun_script", "my_ddp"]) == 3
    said = capfd.readouterr().out
    assert "card 'torchrun_script' names no script to run" in said and "card 'my_ddp' has no key 'scrip'" in said
    assert "[1/2] torchrun_script · torchrun · " in said and "· docker" not in said
    assert [row["status"] for row in perf_rows(tmp_path)] == ["FAILURE", "FAILURE"]
