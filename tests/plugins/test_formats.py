"""Formats of frameworks that madlite does not start: status, number with unit, steps and progress of a log of each.

The logs are written after the frameworks' own format strings, of the versions that stand here; none is from a GPU.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import NamedTuple

import pytest

from madlite.backends.loader import load_plugins
from madlite.backends.log_formats import FormatBackend, read_log_formats
from madlite.backends.step_lines import MEANS
from madlite.cli.main import call
from madlite.errors import UsageProblem
from madlite.measure.parse_log import detect_backend, read_log
from madlite.model import Quantity
from madlite.testing import check_backend
from tests.kit.built_in import FEW, FORMATS, LOGS, owner
from tests.rows import each_row
from tests.tiers import ALL

PLUGINS = load_plugins(only_built_in=True)


class Said(NamedTuple):
    """What a log says: status and cause, its number with the unit, and its first and last step of those asked for."""

    outcome: str
    number: str
    steps: tuple[int, int]
    asked: int | None = None
    count: int | None = None  # of steps that are reported, where not each is


OK, NAN, CUT = "SUCCESS ", "FAILURE nan_loss", "FAILURE incomplete"
LOGS_OF = {
    "maxtext-steps.log": Said(OK, "8192 tokens/s/GPU", (0, 11)),
    # 2026, ROCm's fork: absl's prefix, lm_loss, perplexity, multi-token prediction
    "maxtext-2026-rocm-8gpus.log": Said(OK, "11299.3 tokens/s/GPU", (0, 14), 15),
    "maxtext-primus-prefix-cut.log": Said("FAILURE gpu_out_of_memory", "57000 tokens/s/GPU", (0, 8), 20),
    "nemo-2-steps.log": Said(OK, "300 TFLOP/s/GPU", (0, 11), 12),
    "nemo-2-nan.log": Said(NAN, "6859 tokens/s/GPU", (0, 9), 50),
    # 25.09: an excerpt, max_memory_reserved, numbers with an exponent
    "nemo-25.09-excerpt.log": Said(OK, "1249 TFLOP/s/GPU", (85, 99), 99),
    "nemo-1.23-bar.log": Said(OK, "14.6 s/step", (0, 19), 20),
    # its global_step is rounded to three digits: 1.2e+4
    "nemo-1.23-exponent.log": Said(CUT, "4 s/step", (11990, 12010), 20000),
    # iteration 0/29 in both of two epochs: what is asked for is of one; steps take 4 s, from step 25 on 5 s
    "nemo-2-epochs.log": Said(OK, "5 s/step", (0, 59)),
    "nemo-2-epochs-cut.log": Said(OK, "4 s/step", (0, 44)),
    "nanotron-2024.log": Said(OK, "30600 tokens/s/GPU", (1, 15), 15),
    # 2025: time_per_iteration_ms, eta
    "nanotron-2025.log": Said(CUT, "5190 tokens/s/GPU", (1, 30), 40),
    # 0.14: two lines, samples of the whole job; the configuration's world_size is not the number of GPUs
    "deepspeed-0.14-timer.log": Said(OK, "61.353 samples/s", (10, 200), count=20),
    "deepspeed-0.3-timer.log": Said(OK, "412.5 samples/s, running mean", (10, 150), count=15),
    "composer-batches.log": Said(OK, "8192 tokens/s/GPU", (1, 8), 8),
    # 0.17 with LLM Foundry: batches are counted in each epoch
    "composer-0.17-llmfoundry-epochs.log": Said(OK, "6553.6 tokens/s/GPU", (1, 12)),
    "composer-rocm-one-line.log": Said(OK, "4885 tokens/s/GPU", (1, 20), 20),
    # a duration in tokens or samples
    "composer-tokens.log": Said(OK, "4096 tokens/s/GPU", (0, 9)),
    "composer-tokens-samples.log": Said(OK, "4096 tokens/s/GPU", (0, 9)),
    "llama-factory-trainer_log.jsonl": Said(OK, "1 s/step", (10, 120), 120, 12),
    # 0.9: throughput, total_tokens, lines of evaluations
    "llama-factory-0.9-cut.jsonl": Said(CUT, "24 s/step", (5, 24), 93),
    # 20 s for 10 steps, then 30 s of evaluation, whose line says the same step
    "llama-factory-0.9-eval.jsonl": Said(OK, "2 s/step", (10, 120), 120, 12),
    "mlperf-tracked-stats.log": Said(OK, "2.5 samples/s", (250, 1250), count=5),
    "mlperf-5.0-amd-llama2-lora.log": Said(OK, "4.56 samples/s", (192, 1920), count=10),
    "mlperf-5.0-aborted.log": Said("FAILURE exit_code", "4.56 samples/s", (192, 1920), count=10),
    # 3.1: its samples are tokens
    "mlperf-gpt3-3.1.log": Said(OK, "4.56e+06 tokens/s", (192, 1920), count=10),
    "mlperf-2.1-bert.log": Said(OK, "14214.7 samples/s", (79950, 799500), count=10),
    "nanogpt-steps.log": Said(OK, "0.5 s/step", (0, 11)),
    "nanogpt-loginterval10.log": Said(OK, "0.2505 s/step", (0, 200), count=21),
    "nanochat-2025.log": Said(OK, "4.43108e+06 tokens/s", (0, 29), 30),
    "nanochat-build-nanogpt.log": Said(OK, "193208 tokens/s", (0, 19)),
    "llm.c-train-gpt2cu.log": Said(OK, "2.49203 s/step", (1, 20), 20),
    "llm.c-train-gpt2py.log": Said(OK, "0.08193 s/step", (1, 40), 40),
    # 2024: the first ten steps are not timed, and the clock starts again
    "modded-nanogpt-2024.log": Said(OK, "0.23 s/step", (1, 30), 30),
    "modded-nanogpt-2025.log": Said(CUT, "0.099 s/step", (0, 40), 1750),
    "gpt-neox-lm-loss.log": Said(OK, "95.7 TFLOP/s/GPU", (1, 8), 8),
    "sd-scripts-nan.log": Said(NAN, "1 s/step, running mean", (1, 8), 100),
    "sd-scripts-flux-lora.log": Said(OK, "5 s/step", (1, 100), 100),
    "diffusers-dreambooth-flux.log": Said(OK, "0.5 s/step", (1, 100), 100),
    "lightning-2.4-two-epochs.log": Said(OK, "2 s/step", (1, 200)),
    # 1 s for a step, and 15 s of validation after each ten
    "lightning-2.5-validation.log": Said(OK, "1 s/step", (1, 100)),
    # its bar counts 25 steps of 2 s and 50 batches of validation of 0.8 s in each of 3 epochs
    "lightning-1.9-validation.log": Said(OK, "2 s/step", (1, 75)),
    "lightning-ray-no-total.log": Said(OK, "20 s/step", (1, 30)),
}


def read(path: Path):
    return read_log(path.name, iter([path.read_bytes()]), PLUGINS, None)


@each_row(("name", "said"), LOGS_OF.items())
def test_a_log_is_read_as_its_framework_means_it(name, said):
    reading = read(LOGS / name)
    verdict, window = reading.verdict, reading.verdict.window
    cause = reading.diagnosis.cause if reading.diagnosis else verdict.cause.value
    assert reading.backend == owner(LOGS / name)
    assert f"{verdict.status.value} {cause}" == said.outcome
    assert f"{window.median:.6g} {window.quantity.label}" == said.number
    assert reading.steps.reach() == said.steps and reading.expected_steps == said.asked
    assert reading.steps.count() == (said.count or said.steps[1] - said.steps[0] + 1)
    assert verdict.suspect == ()


def test_every_format_has_a_log_and_each_is_in_the_table():
    assert {owner(LOGS / name) for name in LOGS_OF} == set(FORMATS)
    assert {path.name for path in LOGS.iterdir() if owner(path) in FORMATS} == set(LOGS_OF)


@each_row("path", [path for path in sorted(LOGS.iterdir()) if owner(path) not in FORMATS], ids=str)
def test_no_format_claims_the_log_of_another_framework(path):
    found = detect_backend(path.name, [path.read_bytes()], PLUGINS)
    assert found is None or (found.name not in FORMATS and owner(path) in ("", found.name))


@pytest.mark.host
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_conforms(name):
    logs = {LOGS / log: said.count or said.steps[1] - said.steps[0] + 1 for log, said in LOGS_OF.items()}
    own = {path: count for path, count in logs.items() if owner(path) == name}
    checks = ("detection", "reading", "finish", "fuzz")
    backend, most = PLUGINS.backends()[name][0], None if ALL else FEW
    assert list(map(str, check_backend(backend, (), own, only=checks, installed=False, most=most))) == []


def test_a_clock_in_whole_seconds_is_asked_when_it_went_on_far_enough(tmp_path):
    bar = "steps: {0}%|#| {0}/100 [00:{1:02}<00:10,  9.00it/s, avr_loss=0.1]\n"
    (tmp_path / "x.log").write_text("".join(bar.format(n, n // 3) for n in range(1, 101)))
    (step,) = [one for one in read(tmp_path / "x.log").steps if Quantity.STEP_TIME_S in one.values]
    assert step.values[Quantity.STEP_TIME_S] == pytest.approx(1 / 3, rel=0.05)


@each_row(("first", "kept"), [(10, 12), (500, 0)])
def test_the_mean_throughput_of_a_resumed_training_is_dropped(first, kept, tmp_path):
    text = '{{"current_steps": {}, "total_steps": 900, "elapsed_time": "0:00:{:02}", "throughput": "9541.22"}}\n'
    (tmp_path / "x.jsonl").write_text("".join(text.format(first + 10 * n, n + 1) for n in range(13)))
    means = [values for values in (step.values for step in read(tmp_path / "x.jsonl").steps) if MEANS[0] in values]
    assert len(means) == kept  # the first line cannot tell


# Readers of one's own.

PAGE = (Path(__file__).parents[2] / "docs/readers.md").read_text()
TEN_LINES = PAGE.partition("```toml\n")[2].partition("```")[0]


def own_log(end="all done\n", ranks=""):
    lines = (f"it {n} of 20: loss {4 - n / 10:.2f} speed 25.6 Ktok/s\n" for n in range(1, 21))
    return ranks + "".join(lines) + end


@each_row("place", ["readers.toml", "config/madlite/readers.toml"])
def test_a_reader_of_ones_own_is_found_and_used(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(TEN_LINES)
    (tmp_path / "x.log").write_text(own_log())
    assert call(["parse", "x.log"]) == 0
    out = capsys.readouterr().out
    assert "backend mine" in out and "25600 tokens_per_s (median" in out and "1 to 20 of 20" in out
    (tmp_path / "x.log").write_text(own_log(ranks="ranks 8\n"))
    assert call(["parse", "x.log"]) == 0 and "3200 tokens_per_s_per_gpu" in capsys.readouterr().out
    assert call(["parse", "x.log", "--no-plugins"]) == 4


@each_row(
    ("text", "words", "hint"),
    [
        ("[mine]\nstp = 'x'", "readers.toml, reader 'mine': key 'stp' is unknown", "did you mean step?"),
        ("step = 'x'", "key 'step' stands in no reader's table", "[step] begins"),
        ("[mine]\nstep = 'x (?P<n>.) (?P<los>.)'", "group 'los', which names no number; did you mean loss?", ""),
        ("[mine]\nstep = 'x (?P<loss>.)'", "no pattern of a step has the group n", "(?P<n>"),
        ("[mine]\nstep = 'x ('", "'x (' is no regular expression", ""),
        ("[mine]\nstep = '(?P<n>.)'\nend = ''", "'' matches any line", ""),
        ("[mine]\nstep = '(?P<n>.)'\nfirst = 'a'", "Expected `int`", ""),
        ("[mine", "is no file of readers", ""),
    ],
)
def test_what_is_wrong_with_a_file_of_readers_is_one_sentence(text, words, hint, tmp_path):
    (tmp_path / "readers.toml").write_text(text)
    with pytest.raises(UsageProblem) as raised:
        read_log_formats(tmp_path / "readers.toml")
    assert words in raised.value.message and hint in raised.value.hint


def test_a_reader_with_the_name_of_a_backend_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readers.toml").write_text(TEN_LINES.replace("mine", "maxtext"))
    (tmp_path / "x.log").write_text(own_log())
    assert call(["parse", "x.log"]) == 4
    assert "a backend named 'maxtext': madlite and readers.toml" in capsys.readouterr().err


def test_the_page_lists_every_format():
    assert [name for name in FORMATS if f"`{name}`" not in PAGE] == []


def test_a_format_runs_nothing():
    backend = PLUGINS.backends()["maxtext"][0]
    card = types.SimpleNamespace(name="c", backend="")
    with pytest.raises(UsageProblem, match="reads logs and runs nothing"):
        backend.expand(types.SimpleNamespace(card=card), None)
    assert isinstance(backend, FormatBackend) and backend.claim(card, None) == 0
