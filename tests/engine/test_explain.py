"""A failed run's result says why: from its output, that of its other steps, or what an engine said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from madlite.batch.runner import Batch
from madlite.cli.arguments import COLUMNS
from madlite.cli.format import diagnosis_lines, verdict_line
from madlite.measure.monitor import LogMonitor
from madlite.measure.rules import with_common
from madlite.model import Blocked, Cause, Chunk, Exit, Result, ResultRule, Status
from madlite.perfcsv.rows import CONFIGS, OWN_COLUMNS, build_rows
from madlite.plan.make import make_plan
from madlite.run.state import RunState, disk_space, masked, with_diagnosis
from madlite.store.folder import RunStart
from tests.engine.test_batch import Quiet, planned  # noqa: F401 - a fixture
from tests.plan.conftest import given  # noqa: F401 - a fixture

RULES = with_common(())
MEMORY = "[rank3]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture
def plan(given):  # noqa: F811
    return replace(make_plan(given()), blocked=None)


def account(kind: str = "run", said: str = "", code: int = 1) -> RunState:
    made = RunState(LogMonitor((), RULES), RULES)
    made.begin(kind, 0.0)
    made.feed(Chunk(data=said.encode()))
    made.end(Exit(code=code, duration_s=1.0), lambda node: ())
    return made


def failed(cause: Cause, reason: str = "it failed", evidence: str = "", **more) -> Result:
    return Result(plan_id="r", status=Status.FAILURE, cause=cause, reason=reason, evidence=evidence, **more)


def test_a_run_that_failed_has_cause_line_rank_and_hint(plan):
    result = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=1), account(said=f"x\n{MEMORY}\n"))
    assert result.cause is Cause.GPU_MEMORY and result.code == "gpu_out_of_memory"
    assert result.evidence == MEMORY.removeprefix("[rank3]: ") and result.diagnosis.rank == 3
    assert "micro batch 2 → 1 (--batch-size 1)" in result.diagnosis.hint
    assert result.reason == f"it failed (gpu_out_of_memory); {result.diagnosis.hint}"


def test_the_screen_repeats_nothing(plan):
    result = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=1), account(said=f"x\n{MEMORY}\n"))
    assert verdict_line(plan, result) == "FAILURE tiny [gpu_out_of_memory] it failed"
    line, whose, hint = diagnosis_lines(plan, result)
    assert (line, whose) == (f"> {result.evidence}", "rank 3") and hint == f"try: {result.diagnosis.hint}"
    said = with_diagnosis(plan, failed(Cause.BUILD, "no: boom", "boom"), account("", ""))
    assert list(diagnosis_lines(plan, said)) == []


def test_a_step_before_the_model_says_why_too(plan):
    words = "fatal: unable to access 'https://git.example/a/': Could not resolve host: git.example\n"
    result = with_diagnosis(plan, failed(Cause.PREPARE), account("clone", words, 128))
    assert result.cause is Cause.NETWORK and "git.example" in result.evidence
    result = with_diagnosis(plan, failed(Cause.PREPARE), account("data", "cp: write error: No space left on device\n"))
    assert result.cause is Cause.DISK and f"{plan.workspace} has " in result.diagnosis.hint
    assert with_diagnosis(plan, failed(Cause.PREPARE), account("pre", "hm\n")).diagnosis.cause == "prepare_failed"


def test_what_an_engine_said_is_a_cause(plan):
    built = failed(Cause.BUILD, "Dockerfile does not build: curl: (6) Could not resolve host: a.example")
    result = with_diagnosis(plan, built, account("", ""))
    assert result.cause is Cause.BUILD and result.code == "network", "exit code 2 is by the cause"
    assert with_diagnosis(plan, failed(Cause.BUILD, "boom"), account("", "")).code == "build_failed"
    full = failed(Cause.DISK, "the disk is full while getting image a: no space left on device")
    assert with_diagnosis(plan, full, account("", "")).code == "disk_full"
    inodes = failed(Cause.DISK, "the disk is full while getting image a: not enough inodes")
    assert with_diagnosis(plan, inodes, account("", "")).cause is Cause.INODES
    pulled = account("", "")
    pulled.hint = "docker login"
    result = with_diagnosis(plan, failed(Cause.IMAGE, "image a cannot be pulled: denied"), pulled)
    assert (result.code, result.diagnosis.hint, result.reason) == (
        *("image_missing", "docker login", "image a cannot be pulled: denied"),
    )


def test_what_kept_a_run_from_its_start_says_what_to_do(plan):
    why = Blocked(status=Status.FAILURE, cause=Cause.GPUS, reason="too few", hint="ask for fewer")
    result = with_diagnosis(replace(plan, blocked=why), failed(Cause.GPUS, "too few"), account("", ""))
    assert (result.code, result.diagnosis.hint, result.reason) == ("too_few_gpus", "ask for fewer", "too few")


def test_a_success_and_what_is_explained_stay_as_they_are(plan):
    fine = Result(plan_id="r", status=Status.SUCCESS)
    assert with_diagnosis(plan, fine, account(said=MEMORY)) is fine
    once = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=1), account(said=MEMORY))
    assert with_diagnosis(plan, once, account(said="KeyboardInterrupt")) is once


def test_a_verdict_on_numbers_keeps_its_cause_and_its_row(plan):
    result = with_diagnosis(plan, failed(Cause.NO_METRIC, exit_code=0), account(said=MEMORY, code=0))
    assert result.cause is Cause.NO_METRIC and result.code == "gpu_out_of_memory"
    launcher = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=0), account(said=MEMORY, code=0))
    assert launcher.cause is Cause.EXIT_CODE and launcher.code == "gpu_out_of_memory"


def test_no_secret_is_in_a_diagnosis(plan):
    said = "Traceback (most recent call last):\n  File \"/w/hush.py\", line 1, in f\nKeyError: 'hush'\n"
    result = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=1), account(said=said))
    assert "hush" in result.diagnosis.where
    assert "hush" not in str(masked(result, lambda text: text.replace("hush", "***")))


def test_a_folder_that_cannot_be_asked_has_no_room(tmp_path):
    assert disk_space(tmp_path / "none") is None
    assert disk_space(tmp_path).free_bytes >= 0


def test_columns_of_our_own_come_on_request_alone(plan):
    result = with_diagnosis(plan, failed(Cause.EXIT_CODE, exit_code=1), account(said=MEMORY))
    (row,) = build_rows(plan, result, RunStart())
    assert not {"cause", "reason", "suspect", "run"} & set(row)
    assert set(COLUMNS) == {*OWN_COLUMNS, CONFIGS} and CONFIGS not in row
    (row,) = build_rows(plan, result, RunStart(columns=COLUMNS))
    assert (row["cause"], row["run"], row["suspect"]) == ("gpu_out_of_memory", plan.id, "")
    assert row["reason"] == result.reason


def test_a_whole_run_is_explained(planned):  # noqa: F811
    plans, options, plugins = planned
    (options.workspace / "run.sh").write_text(f"echo '{MEMORY}'\nexit 3\n")
    outcome = Batch(plans, replace(options, columns=("cause",)), plugins, Quiet()).run()
    (result,) = outcome.results
    assert (result.cause, result.diagnosis.rank, result.exit_code) == (Cause.GPU_MEMORY, 3, 3)
    assert options.output.read_text().splitlines()[-1].endswith(",gpu_out_of_memory")


@pytest.mark.host
@pytest.mark.parametrize(
    ("backend", "cause", "named"),
    [
        ("torchtitan", "bad_option", True),
        ("primus", "bad_option", True),  # which trains with torchtitan
        ("hf", "python_error", False),
        ("script", "bad_option", False),  # may train with any framework, and has no settings
    ],
)
def test_a_run_is_explained_by_the_rules_of_its_own_backend(planned, backend, cause, named):  # noqa: F811
    (one,), options, plugins = planned
    said = "Traceback (most recent call last):\n  File \"/w/t.py\", line 1, in f\nKeyError: 'float8'\n"
    (options.workspace / "run.sh").write_text(f'cat << "END"\n{said}END\nexit 1\n')
    if backend != "script":
        rule = ResultRule(kind="steps")
        one = replace(one, plan=replace(one.plan, backend=backend, readers=(backend,), result_rule=rule))
    (result,) = Batch([one], options, plugins, Quiet()).run().results
    assert result.code == cause and ("--set" in result.diagnosis.hint) is named
