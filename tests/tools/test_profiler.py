"""GPU profilers as tools: what an image has is asked before the model, run around it, and its result brought up."""

from __future__ import annotations

import json

import pytest

from tests.rows import each_row
from tests.tools.scripts import TOOLS, bash, only, program

pytestmark = pytest.mark.host
PROGRAMS = ("bash", "chmod", "cp", "find", "grep", "head", "ls", "mkdir", "mv", "sort", "wc", "cat", "echo")
# writes its options, makes a file where it was told to, and becomes the command
STUB = """printf '%s\\n' "$@" > ../asked
while [ "$1" != -- ]; do
  case $1 in -d) mkdir -p "$2/host/7" && echo trace > "$2/host/7/1_results.db" ;; esac
  shift
done
shift
exec "$@"
"""


@pytest.fixture
def image(tmp_path):
    """An image's programs, and the folder of a model in it."""
    (tmp_path / "run_directory").mkdir()
    return only(tmp_path / "bin", *PROGRAMS)


def profiler(image, *args, **env):
    return bash("profiler.sh", *args, cwd=image.parent / "run_directory", path=image, env=env)


def asked(image):
    return (image.parent / "asked").read_text().splitlines()


@each_row(
    ("name", "words"),
    [
        ("rocprof", "rocprof is not in this image"),
        ("rocprofv3", "rocprofv3 is not in this image"),
        ("rpd", "runTracer.sh is not in this image"),
        ("rocm_trace_lite", "rocm-trace-lite is not in this image"),
        ("nsys", "there is no profiler 'nsys'"),
    ],
)
def test_a_profiler_that_is_missing_is_one_line_and_a_failure(image, name, words):
    for action in ("check", "run"):
        done = profiler(image, action, name, "--", "echo", "trained")
        assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("profiler: error: ") and words in done.stderr


def test_the_old_rocprof_is_no_rocprofv3(image):
    program(image, "rocprof", "true")
    assert profiler(image, "check", "rocprof").returncode == 0
    assert profiler(image, "check", "rocprofv3").returncode == 2


def test_version_1_s_rocprof_is_the_old_one_where_the_image_has_it(image):
    program(image, "rocprofv3", STUB)
    done = profiler(image, "run", "rocprof_v1", "--", "echo", "trained")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert asked(image) == ["--kernel-trace", "-d", "rocprof_output", "--", "echo", "trained"]
    program(image, "rocprof", "printf '%s\\n' \"$@\" > ../asked")
    assert profiler(image, "check", "rocprof_v1").returncode == 0
    assert profiler(image, "run", "rocprof_v1", "--", "echo", "trained").returncode == 0
    assert asked(image) == ["-o", "rocprof_output/results.csv", "echo", "trained"]


def test_rocprofv3_gets_its_options_a_folder_and_the_command(image):
    program(image, "rocprofv3", STUB)
    program(image, "rocprof", "exit 9")
    done = profiler(image, "run", "rocprof", "--runtime-trace", "--", "bash", "-c", "echo trained; exit 7", "--", "a b")
    assert (done.returncode, done.stdout) == (7, "trained\n"), "the command's own exit code"
    command = ["bash", "-c", "echo trained; exit 7", "--", "a b"]
    assert asked(image) == ["--runtime-trace", "-d", "rocprof_output", "--", *command]
    profiler(image, "run", "rocprofv3", "--stats", "-d", "./mine", "--", "echo")
    assert asked(image) == ["--stats", "-d", "./mine", "--", "echo"]
    profiler(image, "run", "rocprof", "--hip-trace", "echo", "-n")  # as older tables have it, without --
    assert asked(image) == ["--hip-trace", "-d", "rocprof_output", "--", "echo", "-n"]
    done = profiler(image, "collect", "rocprof")
    assert done.stdout == "profiler: 1 files in ../rocprof_output/\n"
    assert (image.parent / "rocprof_output/host/7/1_results.db").read_text() == "trace\n"


def test_the_old_rocprof_gets_what_it_knows(image):
    program(image, "rocprof", 'printf "%s\\n" "$@" > ../asked')
    profiler(image, "run", "rocprof", "--runtime-trace", "--stats", "--", "echo", "x")
    assert asked(image) == ["--hip-trace", "--stats", "-o", "rocprof_output/results.csv", "echo", "x"]


def test_tables_have_the_names_that_mads_tooling_reads_and_stray_results_are_found(image):
    model = image.parent / "run_directory"
    for name, text in {
        "host/1_kernel_trace.csv": "small\n",
        "host/2_kernel_trace.csv": "of the busiest process\n",
        "results.csv": "old\n",
        "own/data.csv": "the model's own\n",
    }.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(text)
    assert profiler(image, "collect", "rocprof").returncode == 0
    found = image.parent / "rocprof_output"
    assert (found / "rocprofv3_output_kernel_trace.csv").read_text() == "of the busiest process\n"
    assert {path.name for path in found.rglob("*.csv")} == {
        *("1_kernel_trace.csv", "2_kernel_trace.csv", "results.csv", "rocprofv3_output_kernel_trace.csv")
    }
    assert (model / "own/data.csv").exists()


def test_what_is_the_model_s_own_stays_where_it_is(image):
    model = image.parent / "run_directory"
    own = ("results.csv", "out/all_results.json", "out/memory_trace.csv", "out/weights.bin")
    for name in (*own, "host/17_results.db"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("x")
    assert profiler(image, "collect", "rocprof", MAD_OUTPUT_CSV="results.csv").returncode == 0
    assert all((model / name).is_file() for name in own)
    assert [path.name for path in (image.parent / "rocprof_output").rglob("*.*")] == ["17_results.db"]


def test_what_a_rendered_run_records_stays_in_its_folder(image):
    folder = image.parent / "madlite_runs/one"
    (folder / "rpd_output").mkdir(parents=True)
    (folder / "rpd_output/trace.rpd").write_text("x")
    program(image, "rpd2tracing.py", 'cp "$1" "$2"')
    done = bash("profiler.sh", "collect", "rpd", cwd=folder, path=image)
    assert done.stdout == "profiler: 2 files in rpd_output/\n" and (folder / "rpd_output/trace.json").exists()
    assert not (folder.parent / "rpd_output").exists()


def test_nothing_recorded_is_said_and_fails_nothing(image):
    done = profiler(image, "collect", "rocm_trace_lite")
    assert (done.returncode, done.stdout) == (0, "profiler: nothing was recorded in rocm_trace_lite_output/\n")


def test_rpd_writes_to_one_file_wherever_the_ranks_are(image):
    program(image, "runTracer.sh", 'printf "%s\\n" "$@" > ../asked')
    assert profiler(image, "run", "rpd", "--", "echo", "x").returncode == 0
    place = image.parent.resolve() / "run_directory/rpd_output/trace.rpd"
    assert asked(image) == ["-o", str(place), "echo", "x"]


def test_an_rpd_whose_module_is_missing_is_found_before_it_swallows_the_command(image):
    program(image, "runTracer.sh", "python3 -m rocpd.schema --create x || exit 0")
    program(image, "python3", "exit 1")
    done = profiler(image, "check", "rpd")
    assert done.returncode == 2 and "Python's module rocpd is not in this image" in done.stderr
    program(image, "python3", "exit 0")
    assert profiler(image, "check", "rpd").returncode == 0


def test_rocm_trace_lite_gets_its_mode_where_it_knows_modes(image):
    program(image, "rtl", '[ "$2" = --help ] && echo "usage: [--mode MODE]" || printf "%s\\n" "$@" > ../asked')
    profiler(image, "run", "rocm_trace_lite", "--", "echo", "x", RTL_MODE="lite")
    trace = str(image.parent.resolve() / "run_directory/rocm_trace_lite_output/trace.db")
    assert asked(image) == ["trace", "--mode", "lite", "-o", trace, "echo", "x"]
    program(image, "rtl", '[ "$2" = --help ] || printf "%s\\n" "$@" > ../asked')
    done = profiler(image, "run", "rocm_trace_lite", "--", "echo", "x", RTL_MODE="lite")
    assert asked(image) == ["trace", "-o", trace, "echo", "x"] and "RTL_MODE=lite has no effect" in done.stderr


def test_a_wheel_that_is_named_is_installed_and_its_address_said_nowhere(image):
    url = "https://me:pass-word-1@wheels.example/rtl.whl"
    program(image, "python3", f'[ "$1" = -m ] && echo "$*" > ../asked && ln -s /bin/true {image}/rtl; exit 1')
    (image / "ln").symlink_to("/bin/ln")
    done = profiler(image, "check", "rocm_trace_lite", ROCM_TRACE_LITE_WHEEL_URL=url)
    assert done.returncode == 0 and "pass-word" not in done.stdout + done.stderr
    assert asked(image) == [f"-m pip install --quiet -- {url}"]
    (image / "rtl").unlink()
    (image / "ln").unlink()
    done = profiler(image, "check", "rocm_trace_lite", ROCM_TRACE_LITE_WHEEL_URL=url)
    assert done.returncode == 2 and "pass-word" not in done.stderr and "could not be installed" in done.stderr


def test_presets_need_what_they_name():
    table = json.loads((TOOLS / "tools.json").read_text())["tools"]
    preset = {name: entry["cmd"] for name, entry in table.items() if name.startswith("rocprofv3_")}
    assert len(preset) == 10 and all(" -d ./rocprof_output" in command for command in preset.values())
    assert "--pc-sampling-method host_trap" in preset["rocprofv3_pc_sampling"], "stochastic counts cycles, not time"
