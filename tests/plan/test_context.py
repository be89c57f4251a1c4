"""The context: JSON or a Python literal, merged level by level, wrong types named."""

from __future__ import annotations

import json

import pytest

from madlite.errors import UsageProblem
from madlite.plan.context import read_context, unused_keys
from tests.rows import each_row


def test_json_python_literals_and_aliases_are_read():
    assert read_context(None, '{"gpu_vendor": "AMD", "x": true}').values == {"gpu_vendor": "AMD", "x": True}
    assert read_context(None, "{'gpu_vendor': 'AMD', 'x': None}").values == {"gpu_vendor": "AMD", "x": None}
    # the first gpu count alias counts
    assert read_context(None, '{"ngpus": 2, "gpu_count": 4}').n_gpus == 4
    # a launchers counts may be numbers or text
    args = {"NNODES": "2", "MAD_RUNTIME_NGPUS": 8, "MASTER_PORT": "6006", "HOST_LIST": "a,b"}
    assert read_context(None, repr({"multi_node_args": args})).typed.multi_node_args == args


def test_the_option_is_merged_into_the_file_level_by_level(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"docker_env_vars": {"A": "1", "B": "2"}, "docker_cpus": "0-3"}')
    context = read_context(file, '{"docker_env_vars": {"B": "3"}}')
    assert context.typed.docker_env_vars == {"A": "1", "B": "3"}
    assert context.typed.docker_cpus == "0-3"
    assert context.origins == {"docker_env_vars": "--additional-context", "docker_cpus": f"context file {file}"}


@each_row(
    ("text", "key"),
    [
        ('{"docker_env_vars": "A=1"}', "docker_env_vars"),
        ('{"docker_mounts": {"/data": 3}}', "docker_mounts"),
        ('{"docker_gpus": [0, 1]}', "docker_gpus"),
        ('{"MAD_CONTAINER_IMAGE": 3}', "MAD_CONTAINER_IMAGE"),
        ('{"n_gpus": "eight"}', "n_gpus"),
    ],
)
def test_a_wrong_type_names_the_key_and_the_source(text, key):
    with pytest.raises(UsageProblem) as caught:
        read_context(None, text)
    assert f"'{key}" in caught.value.message and "--additional-context" in caught.value.message


def test_a_context_file_that_cannot_be_used_is_one_sentence(tmp_path):
    # a wrong type in the file names the file
    file = tmp_path / "c.json"
    file.write_text('{"docker_cpus": 4}')
    with pytest.raises(UsageProblem, match=r"c\.json"):
        read_context(file, "{}")
    # a missing or binary file is refused
    with pytest.raises(UsageProblem, match="No such file"):
        read_context(tmp_path / "nope.json", "")
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageProblem, match="UTF-8"):
        read_context(binary, "")
    # a context file whose name is too long is one sentence
    with pytest.raises(UsageProblem, match="cannot be read: File name too long"):
        read_context(tmp_path / ("x" * 300), "")
    # bytes that are no text are refused
    with pytest.raises(UsageProblem, match="UTF-8"):
        read_context(None, '{"a": "\udcff"}')


DEEP = ["[" * 5000, '{"a":' * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "{'a':" * 300 + "1"]


@each_row("text", ["{", "[1]", "3", '"x"', "__import__('os')", "{1: 2}", "{'a': open('x')}", *DEEP])
def test_what_is_no_table_or_nested_too_deeply_is_refused(text):
    with pytest.raises(UsageProblem):
        read_context(None, text)


def test_a_value_of_the_plan_below_settings_counts_before_one_at_the_top(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"silence_s": 5, "telemetry": false}')
    context = read_context(file, '{"silence_s": 7, "settings": {"silence_s": 9}}')
    assert context.plan_values == [
        (f"context file {file}", "telemetry", False),
        ("--additional-context", "silence_s", 7),
        ("--additional-context", "silence_s", 9),
    ]


def test_every_value_of_a_file_is_overridden_by_the_option_s(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"start_silence_s": 4, "settings": {"silence_s": 6, "steps": 3}}')
    context = read_context(file, '{"silence_s": 7, "settings": {"start_silence_s": 8}}')
    assert context.plan_values == [
        (f"context file {file}", "start_silence_s", 4),
        (f"context file {file}", "silence_s", 6),
        (f"context file {file}", "steps", 3),
        ("--additional-context", "silence_s", 7),
        ("--additional-context", "start_silence_s", 8),
    ]


@each_row(
    "text",
    [
        '{"docker_env_vars": {"HF_TOKEN": "hf_hush_hush"}',
        "{'docker_env_vars': {'HF_TOKEN': 'hf_hush_hush'",
        '["hf_hush_hush"]',
        '"hf_hush_hush"',
        "{1: 'hf_hush_hush'}",
        '{"docker_env_vars": {"HF_TOKEN": ["hf_hush_hush"]}}',
    ],
)
def test_a_mistake_is_told_without_the_contexts_text(text):
    with pytest.raises(UsageProblem) as caught:
        read_context(None, text)
    assert "hush" not in f"{caught.value.message} {caught.value.hint}"


@each_row("key", ["docker_env_vars", "docker_build_arg"])
@each_row(("name", "value", "said"), [("A=B", "x", "'A=B'"), ("1A", "x", "'1A'"), ("", "x", "''")])
def test_a_variable_that_no_process_can_have_is_refused(key, name, value, said):
    with pytest.raises(UsageProblem) as caught:
        read_context(None, repr({key: {name: value}}))
    assert said in caught.value.message and key in caught.value.message
    assert caught.value.message.startswith("--additional-context: ")


@each_row("named", [{}, {"gpu_vendor": ("--gpu-vendor", "amd")}])
def test_vendor_and_system_are_in_capitals_as_dockerfiles_have_them(tmp_path, named):
    file = tmp_path / "c.json"
    file.write_text('{"guest_os": "ubuntu"}')
    context = read_context(file, "" if named else '{"gpu_vendor": " Amd "}', named)
    assert context.values == {"gpu_vendor": "AMD", "guest_os": "UBUNTU"}
    assert (context.typed.gpu_vendor, context.typed.guest_os) == ("AMD", "UBUNTU")


def test_a_launcher_of_no_nodes_is_refused():
    with pytest.raises(UsageProblem, match="at least 1"):
        read_context(None, '{"multi_node_args": {"NNODES": 0}}')


@each_row("key", ["NNODES", "MAD_RUNTIME_NGPUS", "MASTER_PORT"])
@each_row("value", ["two", "", "-1", "1.5", "²", "2\n", -1, 10**12])
def test_counts_of_a_launcher_are_whole_numbers(key, value):
    with pytest.raises(UsageProblem, match=f"multi_node_args.{key} .* is no whole number"):
        read_context(None, repr({"multi_node_args": {key: value}}))


def test_keys_with_an_underscore_are_comments_but_for_names_of_the_users_own():
    given = {
        **{"_comment": "c", "_notes": {"a": 1}, "slurm": {"_why": "w", "nodes": 2, "modules": [{"_a": 1}]}},
        **{
            "docker_env_vars": {"_comment_nccl": "c", "_JAVA_OPTIONS": "-Xmx1g"},
            "env_vars": {"_comment": "c", "A": "1"},
        },
    }
    context = read_context(None, json.dumps(given))
    assert context.values == {
        "slurm": {"nodes": 2, "modules": [{}]},
        "docker_env_vars": {"_JAVA_OPTIONS": "-Xmx1g"},
        "env_vars": {"A": "1"},
    }
    assert unused_keys(read_context(None, '{"_comment": 1, "debug": false}')) == []


@each_row(
    ("given", "target"),
    [
        ("{}", ""),
        ('{"slurm": {"nodes": 1}}', "slurm"),
        ('{"k8s": {}}', "kubernetes"),
        ('{"deploy": "k8s", "slurm": {"nodes": 1}}', "kubernetes"),
        ('{"deploy": " Slurm "}', "slurm"),
        ('{"deploy": {"target": "docker"}, "k8s": {}}', "local"),
        ('{"deployment_config": {"target": "k8s"}}', "kubernetes"),
        ('{"deploy": "moon"}', "moon"),
    ],
)
def test_where_a_context_sends_its_runs(given, target):
    assert read_context(None, given).target == target
