from __future__ import annotations

import json
from pathlib import Path
from threading import Event

from madlite.machine.host import Host
from madlite.machine.sources.amd_smi import AmdSmi, read_gpu
from madlite.machine.sources.base import GpuProcess, Sample
from madlite.machine.telemetry import summarise
from tests.machine.stand_in import Bench
from tests.rows import each_row

from .fakes import metric, printed, value

VIOLATIONS = {
    "accumulation_counter": 40_000,
    "prochot_accumulated": 0,
    "ppt_accumulated": 31_000,
    "socket_thermal_accumulated": 1_200,
    "vr_thermal_accumulated": "N/A",
    "gfx_clk_below_host_limit_thermal_accumulated": {"xcp_0": [7, 9, "N/A"], "xcp_1": [0, "N/A", "N/A"]},
    "total_gfx_clk_below_host_limit_accumulated": {"xcp_0": [39_999]},
    "low_utilization_accumulated": {"xcp_0": [39_999]},
}


def source(bench: Bench, *indexes: int) -> AmdSmi:
    host = Host(root=bench.root, path=str(bench.bin), limit_s=10, env={"PATH": "/usr/bin:/bin"})
    return AmdSmi(host, indexes, Event())


@each_row("wrapped", [True, False])
@each_row("noise", ["", "WARNING: some driver\n"])
def test_both_forms_with_text_around_them(bench: Bench, wrapped: bool, noise: str) -> None:
    bench.tool("amd-smi", ("metric*", printed([metric(0), metric(1, watts=588)], wrapped=wrapped, noise=noise)))
    answer = source(bench, 0, 1).read()
    first, second = answer.readings
    assert (answer.problem, first.power_w, second.power_w) == ("", 612.0, 588.0)
    assert (first.clock_mhz, first.memory_clock_mhz, first.temperature_c) == (1500.0, 1300.0, 83.0)
    assert (first.memory_used_gib, first.utilization_percent, first.energy_j) == (160.0, 96.0, 1234567.5)


def test_a_version_that_does_not_know_the_options_is_asked_without_them(bench: Bench) -> None:
    bench.tool("amd-smi", ("'metric --json'", printed([metric(0)], wrapped=False)))
    asked = source(bench, 0)
    assert asked.read().readings[0].power_w == 612.0
    assert asked.read().problem == ""  # and is not asked with them again


def test_a_tool_that_fails_once_is_asked_the_same_again(bench: Bench) -> None:
    bench.tool("amd-smi", ("'metric -p -c -t -u -m -E -v --json'", printed([metric(0)], wrapped=True)))
    asked = source(bench, 0)
    assert asked.read().readings
    bench.script("amd-smi", "echo busy >&2; exit 1")
    failed = asked.read()
    assert (failed.readings, failed.problem) == ((), "exit code 1: busy")
    bench.tool("amd-smi", ("'metric -p -c -t -u -m -E -v --json'", printed([metric(0)], wrapped=True)))
    assert asked.read().readings


def test_a_gpu_that_is_not_told_of_is_named(bench: Bench) -> None:
    bench.tool("amd-smi", ("metric*", printed([metric(0)], wrapped=True)))
    answer = source(bench, 0, 3).read()
    assert ([one.index for one in answer.readings], answer.problem) == ([0], "it reports nothing of GPU 3")


def test_all_fields_without_a_value() -> None:
    names = ("usage", "power", "clock", "temperature", "energy", "mem_usage", "throttle")
    reading = read_gpu(0, {"gpu": 0, **dict.fromkeys(names, "N/A")})
    assert {name: getattr(reading, name) for name in reading.__struct_fields__ if name != "index"} == dict.fromkeys(
        (name for name in reading.__struct_fields__ if name != "index"), None
    )


@each_row(
    ("power", "watts"),
    [
        ({"socket_power": value(140, "W")}, 140.0),
        ({"current_socket_power": 139, "average_socket_power": "N/A"}, 139.0),
        ({"average_socket_power": "121 W"}, 121.0),
        ({"socket_power": value(65535, "W")}, None),
        ({"socket_power": value("N/A", "W")}, None),
        ({"socket_power": value(0, "W")}, None),  # a GPU that is on takes more
        ({"current_socket_power": value(65535, "W"), "average_socket_power": value(94, "W")}, 94.0),
        ({"current_socket_power": value(0, "W"), "average_socket_power": value(94, "W")}, 94.0),
        ("N/A", None),
    ],
)
def test_power_by_its_names(power: object, watts: float | None) -> None:
    assert read_gpu(0, metric(0, power=power)).power_w == watts


def test_counters_of_every_die_and_nothing_of_idle_clocks() -> None:
    reading = read_gpu(0, metric(0, throttle=VIOLATIONS))
    assert reading.ticks == 40_000
    assert reading.counters == {
        "PROCHOT/prochot.0": 0.0,
        "power cap/ppt.0": 31_000.0,
        "thermal/socket_thermal.0": 1_200.0,
        "thermal/gfx_clk_below_host_limit_thermal.0": 7.0,
        "thermal/gfx_clk_below_host_limit_thermal.1": 9.0,
        "thermal/gfx_clk_below_host_limit_thermal.3": 0.0,
    }


def test_counters_with_the_unit_outside_and_under_the_host_tool_s_names() -> None:
    throttle = {
        "accumulation_counter": value(4000, ""),
        "ppt_violation_accumulated": 100,
        "gfx_clk_below_host_limit_power_accumulated": {"value": {"xcp_0": [5, "N/A"]}, "unit": ""},
    }
    reading = read_gpu(0, metric(0, throttle=throttle))
    assert reading.ticks == 4000
    assert reading.counters == {"power cap/ppt.0": 100.0, "power cap/gfx_clk_below_host_limit_power.0": 5.0}


def test_what_held_at_every_tick_since_the_driver_was_loaded_was_not_counted() -> None:
    def sample(ticks: int, **counts: int) -> Sample:
        counted = {f"{name}_accumulated": count for name, count in counts.items()}
        return Sample(t_s=ticks, gpus=(read_gpu(0, metric(0, throttle={"accumulation_counter": ticks, **counted})),))

    samples = [sample(80, socket_thermal=80, hbm_thermal=80, prochot=3)]
    samples += [sample(100, socket_thermal=80, hbm_thermal=100, prochot=8)]
    told = summarise(samples, [0], None, None, "AMD")
    assert told.throttled_by == {"PROCHOT": 0.25}, "HBM is not counted, the socket was held before and not since"


@each_row(
    ("throttle", "slowed"),
    [
        ({"ppt_violation_activity": value(80, "%"), "hbm_thermal_violation_activity": 0}, {"power cap": 0.8}),
        ({"gfx_clk_below_host_limit_thermal_violation_activity": {"xcp_0": ["12 %", "N/A"]}}, {"thermal": 0.12}),
        (
            {"gfx_clk_below_host_limit_power_violation_activity": {"value": {"xcp_0": [40, "N/A"]}, "unit": "%"}},
            {"power cap": 0.4},
        ),
        ({"prochot_violation_status": "ACTIVE", "ppt_violation_status": "NOT ACTIVE"}, {"PROCHOT": 1.0}),
        ({"vr_thermal_violation_status": "NOT ACTIVE"}, {}),
        ({"vr_thermal_violation_status": "N/A"}, None),
        ({}, None),
    ],
)
def test_what_holds_now(throttle: dict[str, object], slowed: dict[str, float] | None) -> None:
    assert read_gpu(0, metric(0, throttle=throttle)).slowed == slowed


@each_row(("state", "slowed"), [("THROTTLED", {"unspecified": 1.0}), ("UNTHROTTLED", {})])
def test_an_old_driver_s_state_has_no_reason(state: str, slowed: dict[str, float]) -> None:
    assert read_gpu(0, metric(0, power={"throttle_status": state})).slowed == slowed


@each_row(
    "listed",
    [
        [{"gpu": 0, "process_list": [{"process_info": {"pid": 42, "memory_usage": {"vram_mem": value(2, "GB")}}}]}],
        {"gpu_data": [{"gpu": 0, "process_list": [{"process_info": {"pid": 42, "mem_usage": value(2048, "MB")}}]}]},
    ],
)
def test_processes(bench: Bench, listed: object) -> None:
    bench.tool("amd-smi", ("'process --json'", json.dumps(listed)))
    assert source(bench, 0).processes() == (GpuProcess(pid=42, gpu=0, memory_bytes=2 << 30),)


def test_no_process_no_answer_and_a_memory_that_no_gpu_has(bench: Bench) -> None:
    # no process and no answer are told apart
    none = [{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]
    bench.tool("amd-smi", ("'process --json'", json.dumps(none)))
    assert source(bench, 0).processes() == ()
    bench.tool("amd-smi", ("'process --json'", "amdgpu is busy\n"))
    assert source(bench, 0).processes() is None
    # a memory that no gpu has is not known
    listed = [{"gpu": 0, "process_list": [{"process_info": {"pid": 42, "mem_usage": value("1e308", "GB")}}]}]
    bench.tool("amd-smi", ("'process --json'", json.dumps(listed)))
    assert source(bench, 0).processes() == (GpuProcess(pid=42, gpu=0),)


def test_a_question_is_called_off(bench: Bench, tmp_path: Path) -> None:
    bench.script("amd-smi", "sleep 30")
    asked = source(bench, 0)
    asked._cancelled.set()
    assert asked.read().readings == ()
