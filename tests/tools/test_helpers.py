"""The small helpers."""

from __future__ import annotations

import json

import pytest

from tests.tools.scripts import bash, only, program

PROGRAMS = ("sed", "head", "grep")


def test_echo_prints_its_words(tmp_path):
    done = bash("test_echo.sh", "pre_script", "A", "-n", "\\n", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "pre_script A -n \\n\n")


@pytest.fixture
def rocm(tmp_path):
    """A folder that TheRock built."""
    manifest = tmp_path / "rocm/share/therock/therock_manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"the_rock_commit": "0a1b2c3", "submodules": []}, indent=2))
    return tmp_path / "rocm"


def test_therock_is_found_by_a_variable_and_told_once(rocm, tmp_path):
    env = {"ROCM_HOME": str(rocm), "HIP_PATH": f"{rocm}/", "HOME": str(tmp_path)}
    done = bash("therock_check.sh", cwd=tmp_path, path=only(tmp_path / "bin", *PROGRAMS), env=env)
    assert done.returncode == 0
    assert done.stdout == f"therock_check: TheRock ROCm in {rocm} ($ROCM_HOME), commit 0a1b2c3\n"


def test_therock_is_found_by_its_command(rocm, tmp_path):
    path = only(tmp_path / "bin", *PROGRAMS)
    program(path, "rocm-sdk", f'[ "$*" = "path --root" ] && echo {rocm}')
    done = bash("therock_check.sh", cwd=tmp_path, path=path, env={"HOME": "/nonexistent"})
    assert (done.returncode, done.stdout) == (0, f"therock_check: TheRock ROCm in {rocm} (rocm-sdk), commit 0a1b2c3\n")


def test_a_rocm_of_another_build_is_none(tmp_path):
    (tmp_path / "rocm/.info").mkdir(parents=True)
    done = bash("therock_check.sh", cwd=tmp_path, path=only(tmp_path / "bin", *PROGRAMS), env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "therock_check: no TheRock ROCm is installed here\n")


def test_miopen_is_built_from_the_branch_that_is_named(tmp_path):
    # By stand-ins for git and cmake, which note what they are called with: the real build takes many cores
    path = only(tmp_path / "bin", "mktemp", "rm", "nproc", "mkdir")
    program(
        path, "git", f'echo "git $*" >> {tmp_path}/calls; case $* in clone*) mkdir -p "$8" ;; *) echo 0a1b2c3 ;; esac'
    )
    program(path, "cmake", f'echo "cmake $*" >> {tmp_path}/calls')
    done = bash("pre_scripts/miopen_build_latest.sh", "release/rocm-rel-7.0", cwd=tmp_path, path=path)
    assert (done.returncode, done.stdout) == (0, "miopen_build_latest: release/rocm-rel-7.0 is at 0a1b2c3\n"), (
        done.stderr
    )
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith(
        "git clone --quiet --depth 1 --branch release/rocm-rel-7.0 https://github.com/ROCm/MIOpen"
    )
    assert [call.split()[1] for call in calls[2:]] == ["-P", "-S", "--build", "--install"]
    assert "-DCMAKE_INSTALL_PREFIX=/nonexistent" in calls[3].split()


def test_miopen_is_not_built_without_cmake(tmp_path):
    path = only(tmp_path / "bin", "mktemp", "git")
    done = bash("pre_scripts/miopen_build_latest.sh", cwd=tmp_path, path=path)
    assert (done.returncode, done.stderr) == (1, "miopen_build_latest: cmake is not installed here\n")
