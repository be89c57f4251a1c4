"""`madlite doctor`: the page, --json, --fix, the exit code, and what it prints of `gpus` and `plugins`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from madlite.cli.main import call
from madlite.doctor import examine as room
from madlite.doctor.check import Answer, Target
from tests.doctor.stand_in import lay_out
from tests.machine.stand_in import Bench
from tests.rows import each_row


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    lay_out(bench)
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MADLITE_GPU_LEASES", str(tmp_path / "leases"))
    monkeypatch.setattr("madlite.doctor.software.stored_token", lambda: None)
    right = {name: _right for name in ("disk", "shared_memory", "memlock")}  # of this machine, whatever it has
    monkeypatch.setattr(room, "FUNCTIONS", {**room.FUNCTIONS, **right})
    return bench


def _right(target: Target, right: str) -> Answer:
    return Answer("enough", True)


def doctor(bench: Bench, *options: str) -> int:
    return call(["doctor", "--quick", "--root", str(bench.root), *options])


def test_a_machine_on_which_all_is_right(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(bench) == 0
    first, second, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("8 x MI300X, Some Linux 12")
    assert second.startswith("to compare: ") and " 0 fail, " in second
    states = [line.split()[0] for line in lines if not line.startswith((" ", "madlite"))]
    assert states == sorted(states, key=["differs", "unknown", "ok"].index)
    assert "GPUs" in {line.split()[1] for line in lines if line.startswith("ok")}
    assert len(lines) < 40


def test_what_fails_comes_first_with_its_source_and_what_mends_it_and_fix_runs_no_command(bench: Bench, capsys) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    assert doctor(bench) == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("FAIL     kernel     numa_balancing 1; right: 0 (AMD system acceptance")
    assert "sudo sysctl kernel.numa_balancing=0" in (line.strip() for line in lines)
    assert doctor(bench, "--fix") == 6
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("# numa_balancing: 1; right: 0")
    assert lines[at + 1] == "sudo sysctl kernel.numa_balancing=0"
    assert (bench.root / "proc/sys/kernel/numa_balancing").read_text() == "1\n"
    assert all(lines[at].startswith("# ") for at in range(0, len(lines), 2))


def test_what_the_purpose_does_not_need_is_no_failure(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    bench.file("proc/cmdline", "quiet\n")
    codes = {purpose: doctor(bench, "--for", purpose) for purpose in ("develop", "compare", "publish")}
    assert codes == {"develop": 0, "compare": 6, "publish": 6}
    out = capsys.readouterr().out
    assert out.count("FAIL     kernel     pci_bfsort") == 1
    assert out.count("differs  kernel     numa_balancing") == 1


def test_the_same_as_json(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.file("proc/sys/kernel/numa_balancing", "1\n")
    assert doctor(bench, "--json") == 6
    found = json.loads(capsys.readouterr().out)
    assert (found["for"], found["machine"]["device"], found["machine"]["gpus"], found["failed"]) == (
        *("compare", "MI300X"),
        *(8, 1),
    )
    (failed,) = [item for item in found["outcomes"] if item["fails"]]
    assert (failed["name"], failed["value"], failed["right"], failed["needed_for"]) == (
        "numa_balancing",
        "1",
        "0",
        "compare",
    )
    assert found["checks"] == len(found["outcomes"])


def test_a_text_of_the_machine_is_no_line_of_the_page(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.file("proc/sys/kernel/osrelease", "5.15\nFAIL     kernel     forged\x1b[2J")
    doctor(bench)
    out = capsys.readouterr().out
    assert "\x1b" not in out and not any(line.startswith("FAIL") for line in out.splitlines())


def test_a_gpu_that_a_run_has_is_a_failure(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from madlite.store.gpu_leases import LeaseHolder, LeaseState

    state = LeaseState(name="gpu-x", locked=True, holder=LeaseHolder(run="20260101T000000-x", user="ann", pid=7))
    monkeypatch.setattr("madlite.batch.gpu_allocator.lease_states", lambda folder, gpus: {3: (state, "")})
    assert doctor(bench) == 6
    assert "FAIL     leases     GPU 3 by run 20260101T000000-x of user ann (pid 7)" in capsys.readouterr().out


def test_gpus_and_plugins_are_what_the_commands_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpus", "plugins"):
        for options in ([], ["--json"]):
            assert call([name, *options]) == 0
            alone = capsys.readouterr().out
            assert call(["doctor", f"--{name}", *options]) == 0
            assert capsys.readouterr().out == alone and alone


def test_a_secret_of_a_variable_is_masked_before_it_is_cut(bench: Bench, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:{'s3cret' * 15}@hub.example")
    monkeypatch.setattr(
        room, "FUNCTIONS", {**room.FUNCTIONS, "token": lambda target, right: Answer(os.environ["HF_ENDPOINT"])}
    )
    doctor(bench)
    assert "s3cret" not in capsys.readouterr().out


def test_a_variable_that_no_check_can_use_is_unknown(bench: Bench, capsys, monkeypatch) -> None:
    def odd(target: Target, right: str) -> Answer:
        raise UnicodeEncodeError("ascii", "hf_\u00fc", 3, 4, "ordinal not in range(128)")

    monkeypatch.setattr(room, "FUNCTIONS", {**room.FUNCTIONS, "token": odd})
    assert doctor(bench) == 0
    assert "token      cannot be read: 'ascii' codec" in capsys.readouterr().out


@each_row(
    ("options", "words"),
    [
        (("--health",), "--health beside --quick: it measures with torch, which --quick leaves out"),
        (("--gpus", "--fix"), "no such option"),
        (("--plugins", "--for", "publish"), "no such option"),
    ],
)
def test_options_that_would_be_ignored_are_refused(bench: Bench, capsys, options, words) -> None:
    assert doctor(bench, *options) == 4
    assert words in capsys.readouterr().err
