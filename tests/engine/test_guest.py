"""The log of a card's own script is read by the reader of the framework that knows its lines."""

from __future__ import annotations

import pytest

from madlite.backends.loader import load_plugins
from madlite.measure.monitor import LogMonitor
from madlite.measure.parse_log import AutoDetectReader
from madlite.model import ErrorScan
from tests.measure.checks.runs import LOGS, text_of
from tests.rows import each_row

TITAN = "torchtitan-0.2.2-debugmodel-cpu-1rank.log"


@pytest.fixture(scope="module")
def plugins():
    return load_plugins(only_built_in=True)


def follow(script_reader: AutoDetectReader, text: str, outputs=LOGS / "none", **more) -> LogMonitor:
    log = LogMonitor([], script_reader=script_reader, **more)
    for at in range(0, len(text), 999):
        log.feed(text[at : at + 999].encode())
    log.finish(outputs)
    return log


@each_row(
    ("name", "steps"),
    [
        (TITAN, 20),
        ("torchtune-0.6.1-full-singledevice-cpu-stdoutlogger.log", 8),
        ("megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log", 12),
        ("hf-trainer-peft-transformers5.17-cpu-notqdm.log", 10),
        ("fluxbenchmark-4eae48a-tinyflux-cpu.log", 12),
    ],
)
def test_a_script_s_training_is_known_behind_whatever_it_printed_before(plugins, name, steps):
    before = "".join(f"Collecting package-{n}==1.0\n" for n in range(3000))
    log = follow(AutoDetectReader(plugins, ["script"]), before + text_of(name))
    assert log.steps.count() == steps


def test_what_was_said_before_the_framework_was_known_is_not_lost(plugins):
    log = follow(AutoDetectReader(plugins), text_of("megatron-lm-rocm_dev-gpt-cpu-2ranks-dp2.log"))
    assert (log.config["world_size"], log.config["seq_len"]) == ("2", "512") and log.ended


def test_a_log_that_ends_before_enough_lines_came_together_is_read_at_its_end(plugins):
    line = "Step 3 | loss:6.9 lr:2e-05 tokens_per_second_per_gpu:942.6 \n"
    assert follow(AutoDetectReader(plugins), "nothing\n" * 600 + line).steps.count() == 1


def test_a_log_of_nobody_is_kept_no_longer_than_needed(plugins):
    script_reader = AutoDetectReader(plugins)
    log = follow(script_reader, "nothing known\n" * 25_000 + text_of(TITAN))
    assert log.steps.count() == 0 and script_reader._buffer == []


def test_of_several_who_are_as_sure_nobody_reads_the_log(plugins):
    class Sure:
        name = "sure"

        def detect(self, head):
            return 0.9

    class Two:
        def backends(self):
            return {"a": (Sure(), None), "b": (Sure(), None)}

        query = staticmethod(plugins.query)

    assert follow(AutoDetectReader(Two()), text_of(TITAN)).steps.count() == 0


def test_a_backend_that_has_a_reader_of_its_own_on_the_run_is_no_guest(plugins):
    assert follow(AutoDetectReader(plugins, plugins.backends()), text_of(TITAN)).steps.count() == 0


def test_its_steps_do_not_outdo_an_error_pattern(plugins):
    scan = ErrorScan(patterns=("RuntimeError:",), benign=())
    log = follow(AutoDetectReader(plugins), text_of(TITAN) + "RuntimeError: boom\n", error_scan=scan)
    assert log.steps and list(log.matched_patterns) == ["RuntimeError:"]
