"""`madlite explain`: every value and where it came from, of a checkout and a machine that are not here."""

from __future__ import annotations

import json

import pytest

from madlite.cli.main import call

ON_AMD = ["explain", "a", "--machine", "4xMI300X"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout whose card reads the data set wiki, which is here."""
    for name in ("MODEL_DIR", "MAD_SECRETS_X"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("docker", "scripts/a", "set"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docker/x.Dockerfile").write_text("# CONTEXT {}\nFROM base:1\n")
    (tmp_path / "scripts/a/run.sh").write_text("echo performance: 1 x\n")
    card = {"name": "a", "scripts": "scripts/a/run.sh", "n_gpus": "1", "args": "", "tags": ["t"], "data": "wiki"}
    (tmp_path / "models.json").write_text(json.dumps([{**card, "dockerfile": "docker/x"}]))
    (tmp_path / "data.json").write_text('{"wiki": {"local": {"path": "set"}}}')
    return tmp_path


@pytest.fixture
def explained(checkout, capsys):
    def explain(*args: str) -> dict[str, tuple[str, str]]:
        """Return value and origin by name, as a person reads them."""
        assert call([*ON_AMD, *args]) == 0
        rows = (line.strip().partition("  ") for line in capsys.readouterr().out.splitlines()[1:])
        return {name: tuple(map(str.strip, f"{rest}<-".split("<-")[:2])) for name, _, rest in rows}

    return explain


def test_data_and_mounts_are_named_with_who_asked_for_them(explained, checkout):
    (checkout / "own").mkdir()
    rows = explained("-c", '{"docker_mounts": {"/extra": "own"}}')
    assert rows["data wiki"] == ("local, in /data_dlm_0", "data.json")
    assert rows["mount /data_dlm_0"] == (f"{checkout}/set", "data.json")
    assert rows["mount /extra"] == (f"{checkout}/own", "context")


def test_what_set_decides_is_its_own(explained):
    rows = explained("--set", "image=of/x:1", "--set", "timeout_s=5", "--timeout", "9")
    assert rows["image"] == ("of/x:1", "--set") and rows["timeout_s"] == ("5", "--set")
    assert explained("--set", "timeout_s=0")["timeout_s"] == ("none", "--set")


def test_how_long_a_run_may_be_silent_is_shown_with_who_said_so(explained):
    none = "default: nobody reads steps in its log"
    rows = explained()
    assert rows["silence_s"] == ("none", none) and rows["start_silence_s"] == ("none", none)
    rows = explained("--silence-limit", "60", "-c", '{"settings": {"start_silence_s": 90}}')
    assert rows["silence_s"] == ("60", "--silence-limit")
    assert rows["start_silence_s"] == ("60", "--silence-limit"), "of a script's output the smaller one counts"
    rows = explained("--silence-limit", "95", "-c", '{"settings": {"start_silence_s": 90}}')
    assert rows["start_silence_s"] == ("90", "--additional-context")


def test_limits_and_switches_of_a_plan_stand_in_the_context_as_any_other_value(explained, checkout, capsys):
    (checkout / "own.json").write_text('{"silence_s": 60, "stop_grace_s": "3", "telemetry": false, "probe": "off"}')
    rows = explained("--additional-context-file", "own.json", "-c", '{"start_silence_s": 50, "timeout_s": 4}')
    assert rows["silence_s"] == ("60", "context file own.json")
    assert rows["start_silence_s"] == ("50", "--additional-context")
    assert rows["stop_grace_s"] == ("3", "context file own.json") and rows["probe"][0] == "off"
    assert rows["timeout_s"][0] != "4"
    assert call([*ON_AMD, "-c", '{"silence_s": "soon"}']) == 4
    assert "--additional-context silence_s=soon: silence_s takes a number" in capsys.readouterr().err


def test_a_scan_of_the_log_is_shown_with_its_patterns(explained):
    rows = explained("-c", '{"log_error_pattern_scan": true, "log_error_patterns": ["Oops"]}')
    assert rows["error_scan"][0].startswith("'Oops'; harmless: ")
    assert explained("-c", '{"log_error_pattern_scan": false}').get("error_scan", ("off",))[0] == "off"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--machine", "8xFOO"], "--machine '8xFOO': nobody knows GPU 'FOO'\n hint: known: MI300X"),
        (["--set", "lr=4"], "--set has no key 'lr' to set\n hint: its own script decides that; --backend NAME"),
        (["--image-release", "v25.4"], "--image-release means nothing to this run: it has no 'release' to set"),
        (["-c", '{"tools": [{"name": "nope"}]}'], "nope"),
        (["-c", '{"deployment_config": {"target": "slurm"}}'], "deployment_config"),
        (["--runtime", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_one_sentence(checkout, capsys, args, said):
    assert call([*ON_AMD, *args]) == 4
    err = capsys.readouterr().err
    assert said in err and err.splitlines()[-2].startswith("error: ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("mounts", "said"),
    [
        ('{"/nfs": "/nope"}', "error: mount of /nope at /nfs: it is not on this machine\n"),
        ('{"nfs": "/"}', "error: mount of /: nfs is no absolute path in the container\n"),
    ],
)
def test_a_mount_that_cannot_be_is_told_of_this_machine_alone(checkout, capsys, mounts, said):
    context = ["-c", f'{{"docker_mounts": {mounts}}}']
    assert call(["explain", "a", *context]) == 4
    assert capsys.readouterr().err == said
    assert call([*ON_AMD, *context]) == 0  # whose files nobody can look at from here


def test_context_keys_without_effect_are_named_with_what_may_be_meant(checkout, capsys):
    keys = {
        "pre_script": 1,
        "steps": 4,
        "timeout_s": 9,
        "silences": 1,
        "zzz": 1,
        "vllm": {"a": 1},
        "distributed": {"launcher": "x", "backend": "y"},
    }
    assert call([*ON_AMD, "-c", json.dumps(keys)]) == 0
    warnings = [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines()]
    assert warnings == [
        "context key 'pre_script' has no effect; did you mean pre_scripts?",
        "context key 'steps' has no effect; did you mean settings.steps?",
        "context key 'timeout_s' has no effect; did you mean settings.timeout_s?",
        "context key 'silences' has no effect; did you mean silence_s?",
        "context key 'zzz' has no effect",
        "context key 'vllm' has no effect yet",
        "context key 'distributed' has no effect yet beyond its launcher",
    ]


def test_gpus_that_the_context_keeps_back_are_told(checkout, capsys):
    assert call([*ON_AMD, "-c", '{"docker_gpus": "0,1"}', "--set", "n_gpus=3"]) == 0
    said = capsys.readouterr().out
    assert "would not start: FAILURE card 'a' asks for 3 GPUs, docker_gpus leaves 2" in said
    assert "hint: --set n_gpus=2" in said


def test_tools_of_the_context_come_around_the_script(explained, checkout):
    common = checkout / "scripts/common"
    common.mkdir()
    (common / "tools.json").write_text('{"tools": {"mine": {"cmd": "watcher --all", "env_vars": {"W": "1"}}}}')
    rows = explained("-c", '{"tools": [{"name": "mine"}]}')
    assert rows["env.W"][0] == "1" and "watcher --all" in rows["run"][0]
