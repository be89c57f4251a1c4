from __future__ import annotations

import pytest

from madlite.machine.sources import amd_smi, amdgpu, nvml
from madlite.machine.sources.base import POWER_CAP, THROTTLING, Reading, Sample
from madlite.machine.telemetry import format_throttling, packages, summarise, telemetry_findings
from madlite.model import Gpu, Telemetry
from tests.rows import each_row


def samples(*of_gpus: list[Reading], step_s: float = 1.0) -> list[Sample]:
    """Sample n at n steps, of one list per GPU."""
    return [Sample(t_s=n * step_s, gpus=readings) for n, readings in enumerate(zip(*of_gpus, strict=True))]


def powers(index: int, *watts: float | None) -> list[Reading]:
    return [Reading(index=index, power_w=one) for one in watts]


def test_only_the_window_counts() -> None:
    taken = samples(powers(0, 100, 600, 640, 620, 90))
    summary = summarise(taken, [0], 1.0, 3.0, "NVIDIA")
    assert (summary.over, summary.samples, summary.power_w) == ("window", 3, 620.0)
    assert (summary.gpus[0].power_max_w, summary.throttled) == (640.0, None)


@each_row("window", [(None, None), (10.0, 12.0), (2.0, None), (0.0, 0.5), (0.0, 1.0)])
def test_with_too_few_samples_in_it_the_whole_run_does(window: tuple[float | None, float | None]) -> None:
    summary = summarise(samples(powers(0, 100, 300, 200)), [0], *window, "NVIDIA")
    assert (summary.over, summary.samples, summary.power_w) == ("run", 3, 200.0)


def test_power_that_no_gpu_tells_is_named() -> None:
    silent = [Reading(index=0), Reading(index=0)]
    summary = summarise(samples(silent, silent), [0, 1], None, None, "NVIDIA", source="NVML")
    assert summary.problem == "NVML reports no power"
    assert summarise(samples(powers(0, 5)), [0], None, None, "AMD").problem == ""
    assert summarise([], [0], None, None, "AMD").problem == ""
    summary = summarise([], [0], 1.0, 2.0, "AMD")
    assert (summary.samples, summary.power_w, summary.throttled, summary.throttled_by) == (0, None, None, {})


def test_clocks_and_use_are_means_and_heat_and_memory_the_highest() -> None:
    one = Reading(index=0, clock_mhz=1000, memory_clock_mhz=900, temperature_c=70, memory_used_gib=10)
    other = Reading(index=0, clock_mhz=2000, temperature_c=90, memory_used_gib=40, utilization_percent=50)
    (gpu,) = summarise(samples([one, other]), [0], None, None, "NVIDIA").gpus
    assert (gpu.clock_mhz, gpu.memory_clock_mhz, gpu.temperature_c, gpu.memory_used_gib) == (1500, 900, 90, 40)
    assert gpu.utilization_percent == 50


def test_means_are_over_the_time_and_not_over_the_samples() -> None:
    taken = [
        Sample(t_s=at, gpus=powers(0, watts)) for at, watts in ((0, 100), (1, 100), (2, 100), (10, 700), (20, 700))
    ]
    # 1.5 s, 1 s and 4.5 s of the first three: the gap to the fourth is halved
    by_time = (100 * (1 + 1 + 4.5) + 700 * (9 + 10)) / 25.5
    assert summarise(taken, [0], None, None, "NVIDIA").power_w == pytest.approx(by_time)


def counted(*joules: float, watts: float = 500) -> list[Reading]:
    return [Reading(index=0, power_w=watts, energy_j=one) for one in joules]


@each_row(
    ("joules", "step_s", "watts"),
    [
        ((0, 5_100, 10_400), 10.0, 520.0),  # exact: 10400 J in 20 s
        ((0, 500, 1_040), 1.0, 500.0),  # too short to count by
        ((0, 5, 10), 10.0, 500.0),  # a counter in another unit
        ((900, 400, 100), 10.0, 500.0),  # one that began again
        ((0, 0, 0), 10.0, 500.0),
    ],
)
def test_counted_energy_is_the_mean_power_where_it_can_be_trusted(joules, step_s, watts) -> None:
    summary = summarise(samples(counted(*joules), step_s=step_s), [0], None, None, "NVIDIA")
    assert summary.power_w == watts


def slowed(index: int, *reasons: dict[str, float] | None) -> list[Reading]:
    return [Reading(index=index, slowed=one) for one in reasons]


def test_a_run_throttles_by_any_of_its_gpus_and_for_a_reason_alone() -> None:
    # any gpu that is slowed down slows all and the power cap is told apart
    taken = samples(
        slowed(0, {"thermal": 1.0}, {}, {"power cap": 1.0}, {}),
        slowed(1, {}, {"power brake": 1.0}, {"power cap": 1.0}, {"power cap": 1.0}),
    )
    summary = summarise(taken, [0, 1], None, None, "NVIDIA")
    assert (summary.throttled, summary.power_cap) == (0.5, 0.5)
    assert summary.throttled_by == {"thermal": 0.25, "power brake": 0.25}
    first, second = summary.gpus
    assert (first.throttled, first.power_cap) == ({"thermal": 0.25}, 0.25)
    assert (second.throttled, second.power_cap) == ({"power brake": 0.25}, 0.5)
    # a throttling without a reason is no throttling of the run
    summary = summarise(samples(slowed(0, {"unspecified": 1.0}, {})), [0], None, None, "AMD")
    assert summary.throttled == 0.0
    assert summary.gpus[0].throttled == {"unspecified": 0.5}
    # one sample of a tool among many of the files says nothing of throttling
    files = [Sample(t_s=float(n), gpus=(Reading(index=0, power_w=700),)) for n in range(9)]
    tool = Sample(t_s=4.5, gpus=(Reading(index=0, slowed={"thermal": 1.0}, counters={"thermal/x.0": 9.0}, ticks=10),))
    summary = summarise([*files[:5], tool, *files[5:]], [0], 0.0, 8.0, "AMD")
    assert (summary.throttled, summary.throttled_by, summary.power_cap) == (None, {}, None)
    assert (summary.gpus[0].throttled, summary.gpus[0].power_cap) == ({}, None)


def ticking(*counts: tuple[float, dict[str, float]]) -> list[Reading]:
    return [Reading(index=0, ticks=ticks, counters=counters, slowed={}) for ticks, counters in counts]


def test_counters_of_the_driver_are_exact() -> None:
    before = {"power cap/ppt.0": 500.0, "thermal/socket_thermal.0": 100.0, "thermal/gfx.1": 900.0, "PROCHOT/p.0": 0.0}
    after = {"power cap/ppt.0": 1400.0, "thermal/socket_thermal.0": 280.0, "thermal/gfx.1": 910.0, "PROCHOT/p.0": 30.0}
    summary = summarise(samples(ticking((1000, before), (2000, after))), [0], None, None, "AMD")
    assert summary.throttled_by == pytest.approx({"thermal": 0.18, "PROCHOT": 0.03})
    assert (summary.throttled, summary.power_cap) == pytest.approx((0.18, 0.9))


def test_counters_that_begin_again_or_tell_one_end_alone_say_nothing() -> None:
    # a counter that is told at one end alone says nothing
    before, after = {"thermal/x.0": 100.0, "PROCHOT/p.0": 9.0}, {"thermal/x.0": 150.0, "memory thermal/h.0": 900.0}
    taken = samples(ticking((1000, before), (1500, {}), (2000, after), (2100, {})))
    assert summarise(taken, [0], None, None, "AMD").throttled_by == {"thermal": 0.05}
    # where nothing is counted throttling is not known
    taken = samples([Reading(index=0, ticks=ticks, counters={"thermal/x.0": ticks}) for ticks in (1000.0, 3000.0)])
    told = summarise(taken, [0], None, None, "AMD")
    assert (told.throttled, told.power_cap, told.throttled_by) == (None, None, {})
    # a counter that began again is no negative part
    taken = samples(ticking((1000, {"thermal/x.0": 50.0}), (2000, {"thermal/x.0": 2.0})))
    assert summarise(taken, [0], None, None, "AMD").throttled == 0.0


@each_row("counts", [[(1000, {})], [(1000, {}), (1000, {"thermal/x.0": 5.0})], [(9, {}), (1, {})]])
def test_counters_that_do_not_go_on_say_nothing(counts) -> None:
    summary = summarise(samples(ticking(*counts)), [0], None, None, "AMD")
    assert (summary.throttled, summary.power_cap) == (0.0, 0.0)


CPX = [Gpu(index=n, unique_id=f"{n // 4:016x}", bus=f"0000:{n // 4:02x}:00.{n % 4}") for n in range(1, 12)]


def test_power_of_a_package_is_shared_among_its_partitions() -> None:
    # a power that every partition tells is that of the whole package
    taken = samples(*(powers(n, 700, 720) for n in range(4, 8)), *(powers(n, 300, 300) for n in (8, 9)))
    summary = summarise(taken, range(4, 10), None, None, "AMD", packages(CPX))
    assert summary.power_w == pytest.approx((710 + 300) / 6)
    assert summary.problem == (
        "GPU 4, 5, 6, 7, 8, 9 tell the power of their whole package: it is shared among its parts"
    )
    taken = samples(powers(0, 700, 720), powers(1, None, None), powers(2, None, None), powers(3, None, None))
    summary = summarise(taken, [0, 1, 2, 3], None, None, "AMD")
    assert summary.power_w == 177.5
    assert "GPU 1, 2, 3 has no power of its own" in summary.problem
    # partitions none of which tells a power
    taken = samples(powers(5, None, None), powers(6, None, None))
    summary = summarise(taken, [5, 6], None, None, "AMD", packages(CPX))
    assert summary.power_w is None and summary.problem.startswith(" reports no power")


def test_packages_are_known_by_address_where_there_is_no_unique_id() -> None:
    gpus = [Gpu(index=0, bus="0000:0c:00.0"), Gpu(index=1, bus="0000:0c:00.1"), Gpu(index=2, bus="0000:22:00.0")]
    named = packages([*gpus, Gpu(index=3), Gpu(index=4)])
    assert named[0] == named[1] and len(set(named.values())) == 4


def working(index: int, percent: float | None, watts: float | None) -> list[Reading]:
    return [Reading(index=index, power_w=watts, utilization_percent=percent)] * 3


def test_gpus_that_are_granted_and_not_used_are_no_part_of_the_mean() -> None:
    taken = samples(working(0, 99, 700), working(1, 97, 680), working(2, 0, 75), working(3, 1, 75))
    summary = summarise(taken, range(4), None, None, "NVIDIA")
    assert (summary.power_w, summary.problem) == (690.0, "GPU 2, 3 did nothing: left out of the mean power")
    assert summary.gpus[2].power_w == 75
    # an idle part tells the power of a package of which another part works
    cards = [Gpu(index=n, bus=f"0000:{n // 2:02x}:00.{n % 2}") for n in range(4)]
    taken = samples(working(0, 0, 500), working(1, 99, None), working(2, 0, 90), working(3, 0, None))
    told = summarise(taken, range(4), None, None, "AMD", packages(cards))
    assert told.power_w == 500.0, "and not the card that did nothing"
    assert told.problem.endswith("GPU 0, 2, 3 did nothing: left out of the mean power")


@each_row("other", [5.0, 0.0, None])
def test_where_no_gpu_is_surely_at_work_none_is_left_out(other: float | None) -> None:
    summary = summarise(samples(working(0, 0, 100), working(1, other, 200)), [0, 1], None, None, "NVIDIA")
    assert (summary.power_w, summary.problem) == (150.0, "")


def test_power_is_not_known_where_a_gpu_does_not_tell_it() -> None:
    # power of nvidia gpus is not known where one does not tell it
    summary = summarise(samples(powers(0, 700), powers(1, None)), [0, 1], None, None, "NVIDIA")
    assert (summary.power_w, summary.problem) == (None, "GPU 1 reports no power")
    # an amd gpu that told its power and tells it no more is no partition
    first = powers(1, 500, 500, None, None, None)
    taken = samples(powers(0, 500, 500, 700, 700, 700), first)
    summary = summarise(taken, [0, 1], 2.0, 4.0, "AMD")
    assert (summary.over, summary.power_w, summary.problem) == ("window", None, "GPU 1 reports no power")


def told(part: float | None, samples: int = 3, **by: float) -> Telemetry:
    return Telemetry(samples=samples, over="window", throttled=part, throttled_by=by)


def test_words() -> None:
    assert format_throttling(told(0.18, thermal=0.18)) == "throttled 18 % of the window (thermal)"
    assert format_throttling(told(0.3, thermal=0.1, PROCHOT=0.2)) == "throttled 30 % of the window (PROCHOT, thermal)"
    assert format_throttling(told(0.004, thermal=0.004)) == format_throttling(told(None)) == ""


@each_row(("part", "count"), [(None, 0), (0.0, 0), (0.049, 0), (0.05, 1), (1.0, 1)])
def test_a_finding_from_five_percent_on(part: float | None, count: int) -> None:
    assert len(telemetry_findings(told(part, thermal=part or 0.0))) == count
    assert telemetry_findings(told(1.0, samples=2, thermal=1.0)) == ()


def test_every_word_of_the_sources_is_one_that_the_summary_knows() -> None:
    words = {*amd_smi.REASONS.values(), *nvml.REASONS.values(), *(one.partition("/")[0] for one in amdgpu.REASONS)}
    assert words <= {POWER_CAP, *THROTTLING}
