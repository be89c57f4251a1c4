"""tools.json and the context's tools → what runs around the model."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from madlite.errors import UsageProblem
from madlite.plan.context import Tool
from madlite.plan.inputs import FOLDER, ScriptCall, find_script, read_tools, stack
from tests.rows import each_row

BUNDLED = Path(__file__).parents[2] / "templates" / "tools"
A, B = Tool(name="test_tools_A"), Tool(name="test_tools_B")
TRACES = ("rocblas_trace", "hipblaslt_trace", "miopen_trace", "tensile_trace", "rccl_trace")
PRESETS = ("compute", "memory", "communication", "full", "lightweight", "agent", "agent_counter", "perfetto")
PRESETS += ("api_overhead", "pc_sampling")
PROFILERS = [
    *[(name, "rocprof") for name in ("rocprof", "rocprof_hip_only", "rocprof_sys")],
    *[(f"rocprofv3_{name}", "rocprofv3") for name in PRESETS],
    *[("rocprofv3", "rocprofv3"), ("rpd", "rpd")],
    *[(name, "rocm_trace_lite") for name in ("rocm_trace_lite", "rocm_trace_lite_default")],
]
OTHERS = ("gpu_info_power_profiler", "gpu_info_vram_profiler", "therock_check", "test_tools_A", "test_tools_B")


def echo(args: str) -> ScriptCall:
    return ScriptCall(path="test_echo.sh", args=args, bundled=True)


@pytest.fixture
def own(tmp_path):
    """Write a checkout's tools.json and return its path."""

    def write(tools: object, prefix: bytes = b"") -> Path:
        file = tmp_path / "scripts/common/tools.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(prefix + (tools.encode() if isinstance(tools, str) else json.dumps({"tools": tools}).encode()))
        return file

    return write


@pytest.fixture
def stacked(tmp_path, own):
    """Stack tools; those of `tools` stand in the checkout's tools.json."""

    def make(*asked: Tool, **tools: object):
        return stack(asked, read_tools(own(tools) if tools else None, BUNDLED), tmp_path, BUNDLED)

    return make


def test_scripts_and_commands_run_in_madengine_s_order(stacked):
    tools = stacked(A, B)
    assert tools.pre == (echo("pre_script B"), echo("pre_script A"))
    assert tools.post == (echo("post_script A"), echo("post_script B"))
    said = subprocess.run(["bash", "-c", f"{tools.command} echo model"], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["cmd_B", "cmd_A", "model"]
    # one tool alone
    tools = stacked(A)
    assert (tools.pre, tools.post) == ((echo("pre_script A"),), (echo("post_script A"),))
    assert tools.command == "echo cmd_A &&" and tools.env == {}
    # the same command is put in front once
    tools = stacked(*(Tool(name=name) for name in (*TRACES[:2], "test_tools_A", *TRACES[2:])))
    assert tools.command == f"echo cmd_A && python3 {FOLDER}/library_trace.py"
    assert tools.env == dict.fromkeys((name.upper() for name in TRACES), "1")
    # later variables win
    tools = stacked(
        Tool(name="one"), Tool(name="two"), one={"env_vars": {"X": 1, "Y": "1"}}, two={"env_vars": {"X": True}}
    )
    assert tools.env == {"X": "True", "Y": "1"}


def test_nothing_accumulates_from_model_to_model(tmp_path):
    table = read_tools(None, BUNDLED)
    asked = [A, Tool(name="rocblas_trace", env_vars={"X": "1"})]
    first = stack(asked, table, tmp_path, BUNDLED)
    assert [stack(asked, table, tmp_path, BUNDLED) for _ in range(2)] == [first, first]
    assert len(first.post) == 1 and "X" not in stack([Tool(name="rocblas_trace")], table, tmp_path, BUNDLED).env


def test_the_context_replaces_the_command_and_adds_variables(stacked):
    asked = Tool(name="test_tools_A", cmd="nice", env_vars={"DEVICE": "0", "N": 2})
    tools = stacked(asked)  # the tool itself has no variables
    assert tools.command == "nice" and tools.env == {"DEVICE": "0", "N": "2"} and tools.pre == (echo("pre_script A"),)
    sampling = stacked(Tool(name="gpu_info_power_profiler", env_vars={"POWER_DEVICE": "0"})).env
    assert (sampling["POWER_DEVICE"], sampling["POWER_SAMPLING_RATE"]) == ("0", "0.1")
    assert stacked(Tool(name="test_tools_A", cmd="")).command == ""


def test_the_checkouts_tools_come_before_madlites_one_by_one(stacked):
    tools = stacked(A, B, Tool(name="mine"), test_tools_A={"cmd": "mine_A"}, mine={"unknown": 1, "cmd": " time "})
    assert tools.command == "time echo cmd_B && mine_A"
    assert tools.pre == (echo("pre_script B"),)


def test_a_byte_order_mark_is_no_part_of_the_file(own):
    table = read_tools(own({"mine": {"cmd": "x"}}, prefix=b"\xef\xbb\xbf"), BUNDLED)
    assert table["mine"].cmd == "x"


@each_row("name", [*TRACES, *OTHERS])
def test_every_tool_madlite_brings_has_its_scripts(stacked, name):
    tools = stacked(Tool(name=name))
    for call in (*tools.pre, *tools.post):
        assert call.bundled and (BUNDLED / call.path).is_file()
    assert FOLDER not in tools.command or (BUNDLED / tools.command.split("/")[-1]).is_file()
    assert tools.pre or tools.command


def test_these_are_all_the_tools_madlite_brings():
    assert set(read_tools(None, BUNDLED)) == {*TRACES, *OTHERS, *dict(PROFILERS)}


def test_a_script_of_the_checkout_is_its_own(tmp_path, stacked):
    (tmp_path / "scripts/common").mkdir(parents=True)
    (tmp_path / "scripts/common/test_echo.sh").write_text("echo mine")
    assert stacked(A).pre == (ScriptCall(path="scripts/common/test_echo.sh", args="pre_script A"),)


def test_paths_of_madengines_helpers_lead_to_ours_where_the_checkout_lacks_them(tmp_path, stacked):
    command = "python3 ../scripts/common/tools/get_library_trace.py"
    starts = [{"path": "scripts/common/pre_scripts/gpu_info_pre.sh"}]
    starts += [{"path": "scripts/common/pre_scripts/gpu_info_power_start.sh"}]
    ends = [{"path": "scripts/common/post_scripts/gpu_info_post.sh", "args": "gpu_info_power_profiler"}]
    tool = {"cmd": command, "pre_scripts": starts, "post_scripts": ends}
    tools = stacked(Tool(name="theirs"), Tool(name="rocblas_trace"), theirs=tool)
    assert tools.command == f"python3 {FOLDER}/library_trace.py"
    assert tools.pre == (ScriptCall(path="gpu_info.sh", args="start power", bundled=True),) and tools.post == ()
    helper = tmp_path / "scripts/common/tools/get_library_trace.py"
    helper.parent.mkdir(parents=True)
    helper.touch()
    assert stacked(Tool(name="theirs"), theirs=tool).command == command


def test_only_paths_below_the_folder_of_madengines_helpers_are_looked_at(tmp_path, stacked):
    command = "python3 ../scripts/mine/x.py ../../scripts/common/y.py a../scripts/common/z.py"
    assert stacked(Tool(name="mine"), mine={"cmd": command}).command == command
    with pytest.raises(UsageProblem, match=r"^scripts/mine/test_echo\.sh$"):
        find_script("scripts/mine/test_echo.sh", "", tmp_path, BUNDLED, UsageProblem)


def test_arguments_follow_those_that_stand_for_madengines_script(tmp_path):
    path = "scripts/common/pre_scripts/run_rocenv_tool.sh"
    assert find_script(path, "m_env lite", tmp_path, BUNDLED, UsageProblem) == (
        ScriptCall(path="env_snapshot.sh", args="m_env lite", bundled=True),
    )


@pytest.mark.parametrize(
    "tool",
    [
        {"cmd": "bash ../scripts/common/tools/other_wrapper.sh --"},
        {"post_scripts": [{"path": "scripts/common/post_scripts/other.sh", "args": "rocprof"}]},
        {"pre_scripts": [{"path": "nowhere.sh"}]},
        {"pre_scripts": [{"path": "/etc/hostname"}]},  # of this machine, not of the workspace
        {"pre_scripts": [{"path": "../outside.sh"}]},
        {"pre_scripts": [{"path": "scripts/../../outside.sh"}]},
        {"pre_scripts": [{"path": "scripts/common/../../../outside.sh"}]},
    ],
)
def test_a_helper_that_is_nowhere_is_refused_before_the_run(stacked, tmp_path, tool):
    (tmp_path / "scripts").mkdir()
    (tmp_path.parent / "outside.sh").touch()  # here, but in no container
    with pytest.raises(UsageProblem) as refused:
        stacked(Tool(name="mine"), mine=tool)
    message = refused.value.message
    assert "tool 'mine'" in message and "tools.json" in message and f"not in {tmp_path}" in message


def test_an_unknown_tool_gets_a_suggestion_and_the_list(stacked):
    with pytest.raises(UsageProblem) as refused:
        stacked(Tool(name="rocblas_trac"))
    assert "'rocblas_trac'" in refused.value.message
    assert "did you mean rocblas_trace?" in refused.value.hint and "gpu_info_vram_profiler" in refused.value.hint


def check_and_collect(profiler: str) -> tuple[ScriptCall, ScriptCall]:
    return tuple(
        ScriptCall(path="profiler.sh", args=f"{word} {profiler}", bundled=True) for word in ("check", "collect")
    )


@each_row(("name", "profiler"), PROFILERS)
def test_a_gpu_profiler_is_checked_wrapped_and_collected(stacked, name, profiler):
    tools = stacked(Tool(name=name))
    assert (*tools.pre, *tools.post) == check_and_collect(profiler)
    assert tools.command.startswith(f"bash {FOLDER}/profiler.sh run {profiler} ") and tools.command.endswith(" --")
    for counters in re.findall(rf"{re.escape(FOLDER)}/(counters/\S+)", tools.command):
        lines = [line for line in (BUNDLED / counters).read_text().splitlines() if not line.startswith("#")]
        assert lines and all(re.fullmatch(r"pmc: \w+", line) for line in lines)


def test_rocprof_is_that_of_version_1_under_its_contract():
    assert " run rocprof --runtime-trace " in read_tools(None, BUNDLED, contract=2)["rocprof"].cmd
    table = read_tools(None, BUNDLED, contract=1)
    assert table["rocprof"].cmd.endswith(" run rocprof_v1 --") and set(table) == set(read_tools(None, BUNDLED))


def test_madengines_own_entries_of_profilers_find_our_helpers(stacked):
    common = "../scripts/common/tools"
    mine = {
        "pre_scripts": [{"path": "scripts/common/pre_scripts/trace.sh", "args": "rocprof"}],
        "cmd": f"bash {common}/rocprof_wrapper.sh --hip-trace -i {common}/counters/memory_bound.txt --",
        "post_scripts": [{"path": "scripts/common/post_scripts/trace.sh", "args": "rocprof"}],
    }
    tools = stacked(Tool(name="mine"), mine=mine)
    assert (*tools.pre, *tools.post) == check_and_collect("rocprof")
    options = f"--hip-trace -i {FOLDER}/counters/memory_bound.txt --"
    assert tools.command == f"bash {FOLDER}/profiler.sh run rocprof {options}"


@each_row(
    ("content", "words"),
    [
        ("{", ["line 1, column 2 is not JSON"]),
        ('{"tools": []}', ["'tools'"]),
        ("[]", ["'tools'"]),
        ('{"tools": {"mine": 3}}', ["'mine'", "object"]),
        ('{"tools": {"mine": {"cmd": 3}}}', ["'mine'", "'cmd'"]),
        ('{"tools": {"mine": {"env_vars": {"A": [1]}}}}', ["'mine'", "env_vars"]),
        ('{"tools": {"mine": {"pre_scripts": [{"args": "x"}]}}}', ["'mine'", "'pre_scripts[0]'", "path"]),
        ('{"tools": {"mine": {"post_scripts": "x.sh"}}}', ["'mine'", "'post_scripts'"]),
    ],
)
def test_a_broken_file_is_refused_by_name_tool_and_key(own, content, words):
    file = own(content)
    with pytest.raises(UsageProblem) as refused:
        read_tools(file, BUNDLED)
    assert all(word in refused.value.message for word in [str(file), *words])


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(UsageProblem, match="cannot be read"):
        read_tools(tmp_path, BUNDLED)


@each_row("place", ["file", "context"])
def test_a_name_no_variable_can_have_is_refused(stacked, place):
    variables = {"DUAL-GCD": "false"}
    asked = Tool(name="mine", env_vars=variables if place == "context" else {})
    with pytest.raises(UsageProblem, match="'DUAL-GCD'"):
        stacked(asked, mine={"env_vars": variables if place == "file" else {}})


@pytest.mark.parametrize(
    ("path", "why"), [("x" * 300, "too long"), ("scripts/common/" + "x" * 300, "too long"), ("loop/x.sh", "symbolic")]
)
def test_a_path_that_the_system_refuses_is_one_sentence(stacked, tmp_path, path, why):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageProblem, match=why):
        stacked(Tool(name="mine"), mine={"pre_scripts": [{"path": path}]})


def test_a_commands_helper_with_too_long_a_name_is_one_sentence(stacked):
    with pytest.raises(UsageProblem, match="too long"):
        stacked(Tool(name="mine", cmd=f"../scripts/common/{'x' * 300}"), mine={})


@each_row(
    ("content", "words"),
    [
        (b'{"tools": {"m\xff": {}}}', "is not UTF-8"),
        (b'{"tools":' * 5000, "nested too deep"),
        (b'{"tools": {"m": {"pre_scripts": [{"path": "x\\u0000"}]}}}', r"pre_scripts\[0\].path holds a NUL"),
    ],
)
def test_odd_bytes_are_one_sentence(own, tmp_path, content, words):
    file = own({})
    file.write_bytes(content)
    with pytest.raises(UsageProblem, match=words):
        read_tools(file, BUNDLED)
