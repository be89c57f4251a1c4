"""Checks that use tools: what stand-ins of them print, one that hangs, and NVIDIA's GPUs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from madlite.doctor import examine as room
from madlite.doctor.check import Answer, Outcome, Target
from madlite.doctor.examine import examine
from tests.machine.stand_in import Bench, amd_list, amd_static
from tests.rows import each_row

from .stand_in import GPUS, outcomes, pci, target


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(target: Target, right: str) -> None:
        return None

    monkeypatch.setattr(room, "FUNCTIONS", {**room.FUNCTIONS, "hub": silent, "engine": silent})


def tools_of(bench: Bench, log: str = "") -> None:
    """Stand-ins of the tools of a host on which everything is right."""
    bench.script("systemctl", 'shift; for name; do [ "$name" = chronyd ] && echo active || echo inactive; done; exit 3')
    bench.tool("dmesg", ("", log))
    bench.tool("lspci", ("-vvv", "\tACSCtl:\tSrcValid- TransBlk-\n\tACSCtl:\tSrcValid- TransBlk-\n"))
    bench.tool("srun", ("--mpi=list", "MPI plugin types are...\n\tpmix\n"), ("--help", "  --container-image=[USER@]\n"))
    bench.tool("scontrol", ("--version", "slurm 24.05.1\n"))
    bench.script("spur", "exit 127")
    bench.tool("python3", ("*", f"a warning\ntorch 2.8.0 6.4 {GPUS}\n"))


def test_tools_that_answer_well(bench: Bench) -> None:
    tools_of(bench)
    bench.tool("amd-smi", ("static*", amd_static(list(range(GPUS)))), ("list*", amd_list([*range(1, GPUS + 1)])))
    bench.tool("rocm-smi", ("--version", "ROCM-SMI version: 3.0.0\n"))
    found = outcomes(bench, quick=False)
    used = {"gpu_tools", "rocm_smi", "acs", "kernel_log", "clock_sync", "torch", "scheduler", "mpi", "containers"}
    assert {name: found[name].value for name in used if found[name].state != "ok"} == {}
    assert found["clock_sync"].value == "chronyd" and found["scheduler"].value == "slurm 24.05.1"
    assert found["torch"].value == "2.8.0, built for 6.4, 8 GPUs"


def test_tools_that_find_something_wrong(bench: Bench) -> None:
    tools_of(
        bench,
        "[  10.5] amdgpu 0000:01:00.0: GPU reset begin!\n[9999.5] mce: [Hardware Error]: CPU 3\n[9999.9] usb\n"
        "[9999.9] mce: CPU0: Thermal monitoring enabled (TM1)\n[9999.9] Kernel command line: hung_task_panic=1\n",
    )
    bench.file("proc/uptime", "10100.00 1.0\n")
    bench.script("systemctl", "shift; for name; do echo inactive; done; exit 3")
    bench.tool("lspci", ("-vvv", "\tACSCtl:\tSrcValid+ TransBlk-\n\tACSCtl:\tSrcValid- TransBlk-\n"))
    bench.tool("srun", ("--mpi=list", "none\npmi2\n"), ("--help", "  --nodes=N\n"))
    bench.tool("python3", ("*", "torch 2.8.0 None 0\n"))
    found = outcomes(bench, quick=False)
    expected = {
        "clock_sync": "no service is active",
        "acs": "on at 1 of 2 devices",
        "mpi": "no pmix",
        "containers": "no --container-image",
        "torch": "2.8.0, for CPUs, 0 GPUs",
        "kernel_log": "[9999.5] mce: [Hardware Error]: CPU 3",
    }
    assert {name: (found[name].state, found[name].value) for name in expected} == {
        name: ("differs", text) for name, text in expected.items()
    }
    assert found["torch"].right == "8 GPUs"


def test_a_check_that_hangs_is_left_and_the_others_have_their_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LIMIT_S", 10.0)  # for a dozen programs at once on a busy machine
    tools_of(bench)
    bench.script("rocm-smi", "sleep 600")
    bench.script("amd-smi", "sleep 600")
    found = outcomes(bench, quick=False)
    assert (found["rocm_smi"].state, found["rocm_smi"].fails) == ("differs", True)
    assert found["acs"].state == "ok" and "gpu_tools" in found


def test_without_tools_nothing_of_theirs_is_judged(bench: Bench) -> None:
    for name in ("dmesg", "lspci", "srun", "scontrol", "python3", "systemctl", "amd-smi", "rocm-smi"):
        bench.script(name, "echo none of your business >&2; exit 1")
    found = outcomes(bench, quick=False)
    for name in ("kernel_log", "acs", "torch", "clock_sync", "mpi", "containers"):
        assert found[name].state == "unknown", name
    assert "scheduler" not in found


ANSWERS = {
    "utilization.gpu": "0\n0\n",
    "ecc.errors.uncorrected.volatile.total": "0\n0\n",
    "remapped_rows.pending,remapped_rows.failure": "No, No\nNo, No\n",
    "clocks_event_reasons.active": "0x0000000000000001\n0x0000000000000000\n",
    "power.limit,power.default_limit": "700.00, 700.00\n700.00, 700.00\n",
    "persistence_mode": "Enabled\nEnabled\n",
}
LINKS = "GPU 0: NVIDIA H200 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n\t Link 1: {}\n"


def h200(bench: Bench, answers: dict[str, str], processes: str = "", link: str = "26.562 GB/s") -> None:
    """Two H200 and their tool."""
    for number in (1, 2):
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 7\nGPU UUID: \t GPU-0000000{number}\n"
        bench.file(f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information", text)
        bench.pci(f"0000:0{number}:00.0", "10de", "2335", "030200")
        bench.file(f"dev/nvidia{number - 1}")
    bench.file("dev/nvidiactl")
    bench.file(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release\n"
    )
    queries = [(f"'--query-gpu={fields} '*", text) for fields, text in answers.items()]
    bench.tool(
        "nvidia-smi",
        *queries,
        ("--query-compute-apps*", processes),
        ("nvlink*", LINKS.format(link)),
        ("-L", "No devices\n"),
    )


NVIDIA = {"gpu_count", "driver", "device_nodes", "idle", "other_processes", "uncorrected_errors", "retired_memory"}
NVIDIA |= {"nvlink", "power_limit", "held_clocks", "persistence"}


def test_two_h200_on_which_all_is_right(bare: Bench) -> None:
    h200(bare, ANSWERS)
    found = outcomes(bare, quick=False)
    assert {name: found[name].value for name in NVIDIA if found[name].state != "ok"} == {}
    assert (found["gpu_count"].value, found["driver"].value) == ("2 x H200", "nvidia 570.172.08")
    assert not {"xgmi", "partitions", "pci_bfsort"} & set(found)


def test_two_h200_on_which_nothing_is(bare: Bench) -> None:
    wrong = {
        "utilization.gpu": "0\n35\n",
        "ecc.errors.uncorrected.volatile.total": "0\n3\n",
        "remapped_rows.pending,remapped_rows.failure": "No, No\nYes, No\n",
        "clocks_event_reasons.active": "0x0000000000000001\n0x0000000000000040\n",
        "power.limit,power.default_limit": "500.00, 700.00\n700.00, 700.00\n",
        "persistence_mode": "Disabled\nEnabled\n",
    }
    h200(bare, wrong, "4711, python3\n", "<inactive>")
    found = outcomes(bare, quick=False)
    expected = {
        "idle": "35 %",
        "uncorrected_errors": "GPU 1: 3",
        "retired_memory": "No/No, Yes/No",
        "held_clocks": "0x40",
        "power_limit": "500 W, 700 W",
        "persistence": "Disabled, Enabled",
        "other_processes": "4711, python3",
        "nvlink": "1 of 2 up",
    }
    assert {name: (found[name].state, found[name].value) for name in expected} == {
        name: ("differs", text) for name, text in expected.items()
    }
    assert found["power_limit"].fix == "sudo nvidia-smi -pl 700"


def test_a_field_that_this_gpu_has_not_is_unknown(bare: Bench) -> None:
    fields = {
        **ANSWERS,
        "ecc.errors.uncorrected.volatile.total": "[N/A]\n[N/A]\n",
        "persistence_mode": "[N/A]\n[N/A]\n",
    }
    h200(bare, {**fields, "remapped_rows.pending,remapped_rows.failure": "[N/A], [N/A]\n[N/A], [N/A]\n"})
    found = outcomes(bare, quick=False)
    assert [found[name].state for name in ("uncorrected_errors", "persistence", "retired_memory")] == ["unknown"] * 3


def test_dcgm_s_own_tests(bare: Bench) -> None:
    h200(bare, ANSWERS)
    tests = [{"name": "Denylist", "results": [{"status": "Pass"}]}, {"name": "NVML", "results": [{"status": "Fail"}]}]
    bare.tool("dcgmi", ("diag*", json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": tests}]}})))
    found = outcomes(bare, quick=False)["dcgm"]
    assert (found.state, found.value) == ("differs", "1 of 2 pass")


def test_a_bug_of_a_check_is_no_outcome(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(target: Target, right: str) -> Answer:
        raise ZeroDivisionError

    functions: dict[str, Callable[[Target, str], Answer | None]] = {**room.FUNCTIONS, "acs": broken}
    monkeypatch.setattr(room, "FUNCTIONS", functions)
    with pytest.raises(ZeroDivisionError):
        outcomes(bench, quick=False)


def test_the_summary_counts() -> None:
    outcome = Answer("1", False)
    checks = [room.judge(entry, Target(), outcome, "compare") for entry in room.applicable(Target())]
    assert room.summary(checks).startswith(f"{sum(item.state == 'differs' for item in checks)} of {len(checks)} checks")


def health(bench: Bench, *speeds: str, large: str = "310") -> None:
    """A python3 whose torch has these speeds: of GPU 0, of any other one, of all together."""
    one, other, together = speeds
    bench.script(
        "python3",
        f'case "$*" in *"health.py gemm 0"|*"health.py copy 0") echo {one} ;; *gemm*|*copy*) echo {other} ;;'
        f" *reduce*8192) echo {large} ;; *health.py*reduce*8*) echo warning; echo {together} ;;"
        " *) echo torch 2.8 6.4 8 ;; esac",
    )


def measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """The outcomes of --health alone."""
    fast = [check for check in room.applicable(target(bench)) if check.health]
    monkeypatch.setattr(room, "applicable", lambda target: fast)
    assert examine(target(bench), "compare") == []  # it was not asked for
    return {outcome.name: outcome for outcome in examine(target(bench), "compare", health=True)}


def test_gpus_as_fast_as_published(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    health(bench, "2610", "2700", "180.5")
    found = measured(bench, monkeypatch)
    names = ("gemm", "copy", "all_reduce", "all_reduce_large")
    assert {name: item.state for name, item in found.items()} == dict.fromkeys(names, "ok")
    peak = "206.5 % of the data sheet's 1,307"  # as invented as the figures
    assert found["gemm"].value == f"2,700, of 8 GPUs GPU 0 the least with 2,610 (-3.33 %), {peak}"
    assert found["copy"].value == "2,700, of 8 GPUs GPU 0 the least with 2,610 (-3.33 %)"
    assert (found["all_reduce"].value, found["all_reduce"].right) == ("180.5", "100 at least")
    assert (found["all_reduce_large"].value, found["all_reduce_large"].right) == ("310", "304 at least")


def test_what_is_no_figure_is_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.script("python3", "echo done")
    outcome = measured(bench, monkeypatch)["all_reduce"]
    assert (outcome.value, outcome.fails) == ("8 GPUs: no figure", True)
    assert room.FUNCTIONS["torch"](target(bench), "") == Answer("cannot be read")


def test_a_slow_gpu_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    health(bench, "480.5", "2700", "12")
    found = measured(bench, monkeypatch)
    assert found["gemm"].fails and "GPU 0 the least with 480.5" in found["gemm"].value
    assert found["all_reduce"].fails


def test_a_gpu_that_cannot_be_measured_fails_and_a_missing_torch_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.script("python3", 'case "$*" in *"gemm 5") echo "HIP error: x" >&2; exit 1 ;; esac; echo 900')
    gemm = measured(bench, monkeypatch)["gemm"]
    assert (gemm.value, gemm.fails) == ("GPU 5: exit code 1: HIP error: x", True)
    monkeypatch.undo()
    bench.script("python3", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    assert {item.state for item in measured(bench, monkeypatch).values()} == {"unknown"}


def test_an_amd_gpu_is_compared_with_its_own_figures_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's acceptance test has one bandwidth for four GPUs; the node smoke test's thresholds are an MI300X's."""
    for number in range(1, 9):
        bench.file(f"{pci(number)}/device", "0x75a3\n")
        node = bench.root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        for file, other in (("properties", {0x74A1: 0x75A3}), ("mem_banks/0/properties", {206141652992: 288 << 30})):
            ((old, new),) = other.items()
            (node / file).write_text((node / file).read_text().replace(str(old), str(new)))
    health(bench, "1400", "1500", "90", large="250")
    assert target(bench).device == "MI355X"
    found = measured(bench, monkeypatch)
    assert {name: item.state for name, item in found.items()} == {
        "gemm": "unknown",
        "copy": "unknown",
        "all_reduce": "unknown",
        "all_reduce_large": "differs",
    }
    assert found["gemm"].value.endswith("59.6 % of the data sheet's 2,517") and found["gemm"].right == ""
    assert found["all_reduce_large"].fails and "all_reduce_perf" in found["all_reduce_large"].source


@each_row(
    ("words", "asked"),
    [
        (["gemm", "3"], {"set_device 3"}),
        (["copy", "0"], {"set_device 0"}),
        (["reduce", "2"], {"nccl 2 0", "nccl 2 1", "set_device 1", f"elements {32 << 20}"}),
        (["reduce", "8", "8192"], {"nccl 8 7", f"elements {4 << 30}"}),
    ],
)
def test_the_program_asks_torch_for_what_a_build_for_rocm_has(tmp_path: Path, words, asked) -> None:
    """With a stand-in for that torch: no AMD GPU measured anything."""
    shutil.copy(Path(__file__).with_name("stand_in_torch.py"), tmp_path / "torch.py")
    program = Path(room.__file__).with_name("health.py")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, check=True, env=env)
    assert float(done.stdout) > 0 and asked <= set(done.stderr.splitlines())


@pytest.mark.training
def test_the_program_measures_for_real() -> None:
    sizes = (("gemm", 256), ("copy", 1 << 20), ("reduce", 1 << 20))  # one after another: each start imports torch
    measure = "".join(f"    health.main({what!r}, 2, 'cpu', size={size})\n" for what, size in sizes)
    program = f"import sys; sys.path.insert(0, sys.argv[1]); import health\nif __name__ == '__main__':\n{measure}"
    file = Path(room.__file__).parent
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:  # the ranks of an all-reduce import it again
        script.write(program)
        script.flush()
        done = subprocess.run([sys.executable, script.name, str(file)], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 3 and min(map(float, done.stdout.split())) > 0, done.stdout
