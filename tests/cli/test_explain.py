"""`madlite explain`: every value and where it came from, of a checkout and a machine that are not here."""

from __future__ import annotations

import json

import pytest

from madlite.cli.main import call
from madlite.cli.plan import export_rows
from tests.factories import make_plan
from tests.rows import each_row

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
        assert call([*ON_AMD, "--all", *args]) == 0
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
    none = "default: no reader finds steps in its log"
    rows = explained()
    assert rows["silence_s"] == ("none", none) and rows["start_silence_s"] == ("none", none)
    rows = explained("--silence-limit", "60", "-c", '{"settings": {"start_silence_s": 90}}')
    assert rows["silence_s"] == ("60", "--silence-limit")
    assert rows["start_silence_s"] == ("60", "--silence-limit"), "of a script's output that of steps counts"


def test_limits_and_switches_of_a_plan_stand_in_the_context_as_any_other_value(explained, checkout, capsys):
    (checkout / "own.json").write_text('{"silence_s": 60, "stop_grace_s": "3", "telemetry": false, "probe": "off"}')
    rows = explained("--additional-context-file", "own.json", "-c", '{"start_silence_s": 50, "timeout_s": 4}')
    assert rows["silence_s"] == ("60", "context file own.json")
    assert rows["start_silence_s"] == ("60", "context file own.json")
    assert rows["stop_grace_s"] == ("3", "context file own.json") and rows["probe"][0] == "off"
    assert rows["timeout_s"][0] != "4"
    assert call([*ON_AMD, "-c", '{"silence_s": "soon"}']) == 4
    assert "--additional-context silence_s=soon: silence_s takes a number" in capsys.readouterr().err


def test_how_much_of_a_log_is_kept_is_shown_with_who_said_so(explained, checkout, capsys):
    (checkout / "own.json").write_text('{"log_limit": "500M"}')
    assert explained()["log_limit"] == ("2G", "default")
    assert explained("--log-limit", "0")["log_limit"] == ("none", "--log-limit")
    assert explained("-c", '{"log_limit": 65536}')["log_limit"] == ("64K", "--additional-context")
    assert explained("-f", "own.json")["log_limit"] == ("500M", "context file own.json")
    assert explained("-f", "own.json", "--set", "log_limit=1.5 GiB")["log_limit"] == ("1536M", "--set")
    for words in (["--log-limit", "1K"], ["--set", "log_limit=lots"], ["-c", '{"log_limit": true}']):
        assert call([*ON_AMD, *words]) == 4
        assert "log_limit takes a size of at least 16K" in capsys.readouterr().err


def test_a_scan_of_the_log_is_shown_with_its_patterns(explained):
    rows = explained("-c", '{"log_error_pattern_scan": true, "log_error_patterns": ["Oops"]}')
    assert rows["error_scan"][0].startswith("'Oops'; harmless: ")
    assert explained("-c", '{"log_error_pattern_scan": false}').get("error_scan", ("off",))[0] == "off"


@each_row(
    ("args", "said"),
    [
        (["--machine", "8xFOO"], "--machine '8xFOO': unknown GPU 'FOO'\n hint: known: MI300X"),
        (["--set", "lr=4"], "--set has no key 'lr' to set\n hint: its own script decides that; --backend NAME"),
        (["--image-release", "v25.4"], "--image-release v25.4 means nothing to this run: it has no 'release' to set"),
        (["-c", '{"tools": [{"name": "nope"}]}'], "nope"),
        (["-c", '{"deployment_config": {"target": "slurm"}}'], "deployment_config"),
        (["--runtime", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_one_sentence(checkout, capsys, args, said):
    assert call([*ON_AMD, *args]) == 4
    err = capsys.readouterr().err
    assert said in err and err.splitlines()[-2].startswith("error: ") and "Traceback" not in err


@each_row(
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


def test_a_count_in_place_of_ids_is_refused(checkout, capsys):
    assert call([*ON_AMD, "--gpus", "8"]) == 4
    assert "it takes ids; 8 GPUs are 0-7" in capsys.readouterr().err


def test_tools_of_the_context_come_around_the_script(explained, checkout):
    common = checkout / "scripts/common"
    common.mkdir()
    (common / "tools.json").write_text('{"tools": {"mine": {"cmd": "watcher --all", "env_vars": {"W": "1"}}}}')
    rows = explained("-c", '{"tools": [{"name": "mine"}]}')
    assert rows["env.W"][0] == "1" and "watcher --all" in rows["run"][0]


@each_row("words", [["explain", "a"], ["run", "--tags", "a", "--dry-run"], ["discover", "--tags", "a"]])
def test_a_card_that_is_written_down_runs_no_program_that_lists_others(checkout, capsys, words):
    (checkout / "scripts/evil").mkdir(exist_ok=True)
    (checkout / "scripts/evil/get_models_json.py").write_text("open('ran', 'w')\ndef list_models(): return []\n")
    machine = [] if words[0] == "discover" else ["--machine", "1xMI300X"]
    assert call([*words, *machine]) == 0 and not (checkout / "ran").exists()
    assert call(["discover"]) == 0 and (checkout / "ran").exists()
    (checkout / "ran").unlink()


@each_row("words", [["explain", "a"], ["run", "--tags", "a", "--dry-run"]])
def test_what_a_card_opens_of_the_machine_is_one_line(checkout, capsys, words):
    assert call(ON_AMD) == 0 and "opens this machine" not in capsys.readouterr().out
    before = (checkout / "models.json").read_text()
    (card,) = json.loads(before)
    card |= {"additional_docker_run_options": "--privileged -v /etc:/host --pid=host", "dockercontext": ".."}
    (checkout / "models.json").write_text(json.dumps([card]))
    assert call([*words, "--machine", "1xMI300X"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "opens this machine" in line]
    assert len(lines) == 1 and lines[0].endswith(
        f"to its container: mount of /etc at /host, --pid=host, --privileged, build context {checkout.parent}"
    )
    (checkout / "models.json").write_text(before)


def two_runs(*args: str) -> list[str]:
    return ["explain", "pyt_train_llama-3.1-8b", "--machine", "8xMI300X", "--set", "env.HF_HUB_OFFLINE=1", *args]


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A folder without a checkout."""
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_DIR", "HF_TOKEN", "MAD_SECRETS_HFTOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_card_s_runs_are_told_once_and_then_what_differs(nowhere, capsys):
    assert call(two_runs()) == 0
    shorts = capsys.readouterr().out.strip().split("\n\n")
    assert call(two_runs("--all")) == 0
    pages = capsys.readouterr().out.strip().split("\n\n")
    assert len(shorts) == 3 < len(pages), "one for each backend of the card"
    for short in shorts:
        lines = short.splitlines()
        of_backend = [dict(rows_of(page)) for page in pages if page.split(",")[0] == lines[0].split(",")[0]]
        runs = [line for line in lines if line.startswith("  run ")]
        assert len(of_backend) == max(1, len(runs)) and len({*runs}) == len(runs)
        named = [line.split()[0] for line in lines if line.startswith("  ")]
        assert named.count("machine") == named.count("image") == named.count("env.HF_HUB_OFFLINE") == 1
        assert "--set" in next(line for line in lines if "env.HF_HUB_OFFLINE" in line)
        differing = {name for page in of_backend for name in page if len({one.get(name) for one in of_backend}) > 1}
        assert differing <= {*named} and ("variant.precision" in differing) == bool(runs)
        shared = {name for name, value in of_backend[0].items() if name not in differing}
        assert len(shared - {*named}) > len(shared & {*named}) and lines[-1].strip().endswith("values more: --all")


def rows_of(page: str):
    for line in page.splitlines()[1:]:
        name, _, rest = line.strip().partition("  ")
        if not name.startswith(("note:", "would ")):
            yield name, rest.partition("   <-")[0].strip()


def test_what_somebody_set_is_shown_whatever_it_is(checkout, capsys):
    words = ["--set", "stop_grace_s=3", "--log-limit", "500M", "-c", '{"docker_env_vars": {"A": "1"}}']
    assert call([*ON_AMD, *words]) == 0
    rows = dict(rows_of(capsys.readouterr().out))
    assert (rows["stop_grace_s"], rows["log_limit"], rows["env.A"]) == ("3", "500M", "1")
    assert "telemetry_s" not in rows and "run" in rows and "data wiki" in rows and "mount /data_dlm_0" in rows


def test_one_card_under_two_tags_tells_its_arguments_apart(checkout, capsys):
    assert call(["explain", "a:lr=1", "a:lr=2", "--machine", "1xMI300X"]) == 0
    text = capsys.readouterr().out
    assert "2 runs)" in text and "--lr 1" in text and "--lr 2" in text and text.count("  machine ") == 1


@each_row("words", [["explain", "a"], ["run", "--tags", "a", "--dry-run"]])
@each_row(
    ("change", "code", "said"),
    [([], 0, ""), (["-o", "folder"], 4, "folder"), (["--set", "n_gpus=9"], 3, "would not start: FAILURE")],
)
def test_a_check_ends_as_the_run_would(checkout, capsys, words, change, code, said):
    (checkout / "folder").mkdir(exist_ok=True)
    command = [*words, "--machine", "4xMI300X", *change]
    assert call(command) == 0, "without --check it only shows"
    capsys.readouterr()
    before = sorted(checkout.rglob("*"))
    assert call([*command, "--check"]) == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err and sorted(checkout.rglob("*")) == before


@each_row("words", [["explain"], ["explain", "--json"], ["run", "--dry-run"]])
def test_a_check_ends_with_3_where_a_run_would_not_start(nowhere, capsys, words):
    gated = [*words, "--tags", "pyt_train_llama-3.1-8b", "--precision", "BF16", "--mode", "pretrain"]
    gated += ["--machine", "8xMI300X"]
    assert call(gated) == 0
    capsys.readouterr()
    assert call([*gated, "--check"]) == 3
    shown = capsys.readouterr()
    assert "is a gated repository, and there is no Hugging Face token" in shown.out + shown.err
    assert call([*gated, "--check", "--no-lint"]) == 0


def test_check_without_a_dry_run_is_refused(checkout, capsys):
    assert call(["run", "--tags", "a", "--check"]) == 4 and "--dry-run" in capsys.readouterr().err
    assert not (checkout / "madlite_runs").exists()


SCRIPT = """
export A=1 # why
export B=${B:-x y}
export C=2 D=three
export E
export F=$(mktemp -d) H=1
[ -d /x ] || export G=g
  if true; then export I=i; fi
export HERE=1
echo export J=1
export -f function
"""


def test_what_a_script_exports_is_shown_as_it_stands_there(tmp_path):
    assert list(export_rows(make_plan(tmp_path, env={"HERE": "1"}), SCRIPT)) == [
        ("export.A", "1", "run.sh: why"),
        ("export.B", "x y, unless it is set", "run.sh"),
        ("export.C", "2", "run.sh"),
        ("export.D", "three", "run.sh"),
        ("export.E", "made where it runs", "run.sh"),
        ("export.F", "$(mktemp -d) H=1", "run.sh"),
        ("export.G", "g", "run.sh"),
        ("export.I", "i", "run.sh"),
    ]


def test_what_the_script_of_a_rendered_run_exports_is_among_all_values(checkout, capsys):
    told = ["explain", "demo_torchtitan_llama_debug", "--machine", "2xMI300X"]
    (checkout / "models.json").unlink()
    assert call([*told, "--all"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  export.PYTHONUNBUFFERED ")]
    assert line.endswith("  1   <- run.sh: a step has to reach the log when it is printed")
    assert call(told) == 0
    assert "export." not in capsys.readouterr().out


@each_row(("words", "origin"), [(["--machine", "8xMI300X"], "--machine"), (["--gpu-vendor", "CPU"], "--gpu-vendor")])
def test_the_machine_s_origin_is_what_the_user_typed(checkout, capsys, words, origin):
    assert call(["explain", "a", *words]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  machine ")]
    assert line.endswith(f"<- {origin}")
