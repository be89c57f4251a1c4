"""The snapshot of a run's environment, parsed as its readers parse it."""

from __future__ import annotations

import csv
import os
import subprocess
from pathlib import Path

import pytest

from tests.rows import each_row
from tests.tools.scripts import TOOLS, bash, only, program

pytestmark = pytest.mark.host

BARE = ("cat", "date", "mkdir", "mv", "rm", "sleep", "timeout", "uname")
SMI = """case "$*" in
*query-gpu*)
  echo 'index, name, memory.total [MiB], driver_version, vbios_version'
  echo '0, Made-Up GPU, 81559 MiB, 1.2.3, 96.0' ;;
*) echo 'a table' ;;
esac"""


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "run_directory"
    folder.mkdir()
    return folder


@pytest.fixture
def facts(model):
    """Return the snapshot as (section, name) → value."""

    def read(name: str = "tiny_env") -> dict[tuple[str, str], str]:
        with (model.parent / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert header == ["section", "name", "value"] and all(len(row) == 3 for row in rows)
        return {(section, name): value for section, name, value in rows}

    return read


def test_facts_of_the_system_need_no_tool(model, facts, tmp_path):
    """Neither python3, nor GPU tools, nor awk and sed: what the smallest images have."""
    done = bash("env_snapshot.sh", "tiny_env", "lite", "UBUNTU", cwd=model, path=only(tmp_path / "bin", *BARE))
    assert done.returncode == 0 and done.stderr == "" and "tiny_env.csv" in done.stdout
    found = facts()
    assert found["run", "mode"] == "lite" and found["run", "guest_os"] == "UBUNTU"
    assert found["system", "kernel"] == os.uname().release
    processors = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("processor")]
    assert found["cpu", "processors"] == str(len(processors))
    assert Path("/proc/meminfo").read_text().split()[1:3] == [found["memory", "MemTotal"], "kB"]
    assert found["env", "PATH"] == str(tmp_path / "bin")
    assert sorted(path.name for path in model.parent.iterdir()) == [".tiny_env", "bin", "run_directory", "tiny_env.csv"]
    assert list(model.iterdir()) == []


def test_what_tools_say_is_kept_and_their_facts_are_rows(model, facts, tmp_path):
    path = only(tmp_path / "bin", *BARE)
    program(path, "nvidia-smi", SMI)
    program(path, "amd-smi", "echo 'no driver' >&2; exit 2")
    assert bash("env_snapshot.sh", "tiny_env", cwd=model, path=path).returncode == 0
    assert facts()["gpu", "nvidia-smi_gpus 2"] == "0, Made-Up GPU, 81559 MiB, 1.2.3, 96.0"
    assert (model.parent / ".tiny_env/nvidia-smi.txt").read_text() == "a table\n"
    assert (model.parent / ".tiny_env/amd-smi_gpus.txt").read_text() == "no driver\n"


def test_versions_of_packages_are_rows_without_importing_one(model, facts, tmp_path):
    site = tmp_path / "site"
    (site / "torch-9.8.7+rocm6.dist-info").mkdir(parents=True)
    (site / "torch-9.8.7+rocm6.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7+rocm6\n"
    )
    (site / "torch.py").write_text("raise SystemExit('imported')")
    path = only(tmp_path / "bin", *BARE)
    path.joinpath("python3").symlink_to(os.path.realpath(os.sys.executable))
    done = bash("env_snapshot.sh", "tiny_env", "full", cwd=model, path=path, env={"PYTHONPATH": str(site)})
    assert done.returncode == 0
    assert facts()["python", "torch"] == "9.8.7+rocm6"
    assert facts()["python", "python_version 1"].startswith("Python 3.")


def test_full_asks_more_tools(model, tmp_path):
    path = only(tmp_path / "bin", *BARE)
    program(path, "rocminfo", "echo agents")
    for mode, there in (("lite", False), ("full", True)):
        assert bash("env_snapshot.sh", "tiny_env", mode, cwd=model, path=path).returncode == 0
        assert (model.parent / ".tiny_env/rocminfo.txt").exists() == there


def test_a_tool_that_hangs_is_left_behind(model, facts, tmp_path):
    path = only(tmp_path / "bin", *BARE)
    program(path, "rocm-smi", "exec sleep 1000")
    assert bash("env_snapshot.sh", "tiny_env", cwd=model, path=path).returncode == 0
    assert "did not answer" in facts()["gpu", "rocm-smi_gpus 1"]


SECRET = "hf_Jk29sLqPz"


VARIABLES = [
    ("HF_TOKEN", SECRET, "***"),
    ("MAD_SECRETS_X", "true", "***"),
    ("DB_PASSWORD", "4321", "***"),
    ("AWS_ACCESS_KEY_ID", "AKIA123", "***"),
    ("COPY", f"Bearer {SECRET}", "Bearer ***"),
    ("A_PASSWORD", SECRET[3:7], "***"),  # a part of the longer one, which is masked as a whole
    ("REMOTE", "https://me:pw@host/x https://a:b@c", "https://me:***@host/x https://a:***@c"),
    ("MIRROR", f"https://{'b' * 30}1@host/x https://git@host/y", "https://***@host/x https://git@host/y"),
    ("CLONE", "ghp_" + "aB3" * 12 + " hf_hub_download", "*** hf_hub_download"),
    (
        "CURL",
        'authorization: Bearer abc.def-1 "Authorization: Basic $X"',
        'authorization: Bearer *** "Authorization: Basic $X"',
    ),
    ("KEY_ID", "AKIAIOSFODNN7EXAMPLE:x", "***"),
    ("PAIR", "AKIAIOSFODNN8EXAMPLE:x xoxb-12345678901-abcdefghijk", "***:x ***"),
    ("MAX_NUM_BATCHED_TOKENS", "8192", "8192"),
    ("TOKENIZERS_PARALLELISM", "false", "false"),
    ("EMPTY", "", ""),
    ("QUOTED", 'a "b", c\nd', 'a "b", c d'),
    ("LC_ALL", "C.UTF-8", "C.UTF-8"),
]


def test_variables_are_rows_and_secrets_are_masked_wherever_they_stand(model, facts):
    env = {name: value for name, value, _ in VARIABLES}
    assert bash("env_snapshot.sh", "tiny_env", cwd=model, env=env).returncode == 0
    found = facts()
    assert {name: found["env", name] for name in env} == {name: shown for name, _, shown in VARIABLES}
    written = [model.parent / "tiny_env.csv", *(model.parent / ".tiny_env").iterdir()]
    assert not any(SECRET in file.read_text() for file in written)


def test_a_second_snapshot_takes_the_place_of_the_first(model, facts, tmp_path):
    path = only(tmp_path / "bin", *BARE)
    bash("env_snapshot.sh", "tiny_env", cwd=model, path=path, env={"FIRST": "1"})
    program(path, "lscpu", "echo cores")
    bash("env_snapshot.sh", "tiny_env", cwd=model, path=path)
    assert ("env", "FIRST") not in facts() and (model.parent / ".tiny_env/lscpu.txt").exists()
    (path / "lscpu").unlink()
    bash("env_snapshot.sh", "tiny_env", cwd=model, path=path)
    assert not (model.parent / ".tiny_env/lscpu.txt").exists()


def test_another_folder_can_be_named(model, facts, tmp_path):
    (tmp_path / "there").mkdir()
    assert bash("env_snapshot.sh", "tiny_env", "lite", "UBUNTU", str(tmp_path / "there"), cwd=model).returncode == 0
    assert (tmp_path / "there/tiny_env.csv").exists() and not (tmp_path / "tiny_env.csv").exists()


@each_row("args", [(), ("../up",), ("tiny_env", "lite", "UBUNTU", "/proc/nowhere")])
def test_what_cannot_be_written_never_fails_a_run(model, args):
    done = bash("env_snapshot.sh", *args, cwd=model)
    assert done.returncode == 0 and "env_snapshot: " in done.stderr


def test_it_runs_where_the_whole_script_is_copied_and_called_by_its_name(model, facts):
    command = 'cp -L -- "$1" . && bash -- "${1##*/}" tiny_env lite UBUNTU'
    subprocess.run(["bash", "-c", command, "pre", str(TOOLS / "env_snapshot.sh")], cwd=model, check=True)
    assert facts()["run", "guest_os"] == "UBUNTU"


ROCMINFO = """cat <<'END'
*** Agent 1
  Name:                    Made-Up CPU
  Uuid:                    CPU-XX
  Marketing Name:          Made-Up CPU
  Vendor Name:             CPU
  Device Type:             CPU
*** Agent 2
  Name:                    gfx942
  Uuid:                    GPU-0123
  Marketing Name:          AMD Instinct Made-Up
  Vendor Name:             AMD
  Device Type:             GPU
  ISA Info:
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
*** Agent 3
  Name:                    gfx942
  Device Type:             GPU
END"""
AMD_TOOLS = {
    "rocminfo": ROCMINFO,
    "rocm-smi": """case "$*" in *-i*) printf 'GPU[0]\\t\\t: Device ID: 0x74a1\\n' ;; *) echo table ;; esac""",
    "lscpu": "printf 'Architecture:   x86_64\\nCPU(s):  8\\n'",
    "lsmem": "printf 'RANGE SIZE\\nMemory block size:       128M\\nTotal online memory:     24G\\n'",
    "dpkg-query": "printf 'bash\\t5.2\\nrocm-core\\t7.0.0\\nhip-dev\\t7.0\\n'",
    "modinfo": "printf 'filename:  /lib/amdgpu.ko\\nversion: 6.12\\n'",
    "dmesg": "printf '[1] usb stick\\n[2] amdgpu: fine\\n'",
    "lshw": "printf '  product: Board\\n  noise: x\\n'",
}
NVIDIA_TOOLS = {
    "nvidia-smi": """[ "$*" != -L ] || printf 'GPU %s: NVIDIA Made-Up (UUID: GPU-%s)\n' 0 1 1 2""",
    "nvcc": "echo 'Build cuda_12.8.r12.8/compiler.1'",
    "dpkg-query": "printf 'libnccl2\\t2.27\\nbash\\t5\\n'",
}


def sections_of(model: Path, path: Path, mode: str, **env: str) -> dict[str, dict[str, str]]:
    """Return what a reader of madengine's format finds: section → key → value."""
    done = bash("env_snapshot.sh", "tiny_env", mode, "UBUNTU", "..", "sections", cwd=model, path=path, env=env)
    assert done.returncode == 0 and done.stderr == ""
    head, *lines = (model.parent / "tiny_env.csv").read_text().splitlines()
    assert head == "sep=|"
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if line.startswith("------- Section: "):
            found[line.split()[2]] = {}
        else:
            key, _, value = line.partition("|")
            found[[*found][-1]][key] = value
    return found


@pytest.mark.parametrize("mode", ["lite", "full"])
def test_the_sections_of_madengine_on_amd(model, tmp_path, mode):
    path = only(tmp_path / "bin", *BARE)
    for name, text in AMD_TOOLS.items():
        program(path, name, text)
    secret = "hf_" + "a1" * 20
    found = sections_of(model, path, mode, HIP_LAUNCH="1", HSA_API_TOKEN="much-secret", MIOPEN_LOG=f"a {secret}")
    assert found["os_information"]["Distribution"] == "Linux"
    assert found["os_information"]["Kernel version"] == os.uname().release
    assert found["cpu_information"] == {"Architecture": "x86_64", "CPU(s)": "8"}
    assert found["memory_information"] == {"Memory block size": "128M", "Total online memory": "24G"}
    assert found["gpu_information"] == {
        **{"Name": "gfx942", "Uuid": "GPU-0123", "Marketing Name": "AMD Instinct Made-Up", "Vendor Name": "AMD"},
        "Num GPU": "2",
    }
    assert found["rocm_smi_gpudeviceid"] == {"GPU Device ID": "0x74a1"}
    assert found["rocm_packages_installed"] == {"rocm-core": "7.0.0", "hip-dev": "7.0"}
    variables = found["rocm_env_variables"]
    assert (variables["HIP_LAUNCH"], variables["HSA_API_TOKEN"], variables["MIOPEN_LOG"]) == ("1", "***", "a ***")
    more = {"hardware_information", "dmsg_gpu_drm_atom_logs", "amdgpu_modinfo"}
    assert more & set(found) == (more if mode == "full" else set()) and not {name for name in found if "cuda" in name}
    if mode == "full":
        assert found["hardware_information"] == {"product": "Board"}
        assert found["dmsg_gpu_drm_atom_logs"] == {"Log": "[2] amdgpu: fine"}
        assert found["amdgpu_modinfo"] == {"filename": "/lib/amdgpu.ko", "version": "6.12"}


def test_the_sections_of_madengine_on_nvidia(model, tmp_path):
    path = only(tmp_path / "bin", *BARE)
    for name, text in NVIDIA_TOOLS.items():
        program(path, name, text)
    found = sections_of(model, path, "lite", NVIDIA_DRIVER="x")
    assert found["gpu_information"] == {"Name": "NVIDIA Made-Up", "Uuid": "GPU-2", "Num GPU": "2"}
    assert found["cuda_information"] == {"CUDA Version": "cuda_12.8.r12.8/compiler.1"}
    assert found["cuda_packages_installed"] == {"libnccl2": "2.27"}
    assert found["cuda_env_variables"]["NVIDIA_DRIVER"] == "x"
    assert not {name for name in found if "rocm" in name}


def test_sections_need_no_tool(model, tmp_path):
    found = sections_of(model, only(tmp_path / "bin", *BARE), "lite")
    assert {"os_information"} <= set(found) <= {"os_information", "numa_balancing"}
