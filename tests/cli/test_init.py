"""`madlite init` for a script of one's own, and `madlite plugin new`."""

from __future__ import annotations

import json
import time
import venv
from pathlib import Path

import pytest

from madlite.cli.init import _renamed
from madlite.cli.main import call
from tests.csv_rows import csv_rows
from tests.install.packages import type_off
from tests.rows import each_row

PLUGINS = Path(__file__).parents[2] / "docs/plugins.md"
SCRIPT = """for n in range(1, 31):
    print(f"[epoch 0] step {n}/30 | loss: {5 / n:.3f} | 12,{300 + n} tok/s | 20.1 ms", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    log = "".join(f"[epoch 0] step {n}/30 | loss: {5 / n:.3f} | 12,{300 + n} tok/s | 20.1 ms\n" for n in range(1, 31))
    (tmp_path / "train.log").write_text(f"loading\n{log}done\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_DIR", raising=False)
    return tmp_path


def test_a_log_gives_the_pattern_and_the_card_keeps_those_that_are_there(folder: Path, capfd) -> None:
    (folder / "models.json").write_text('[{"name": "other", "backend": "torchrun", "recipe": {"script": "a.py"}}]')
    assert call(["init", "train.py", "--log", "train.log", "--args", "--lr 1"]) == 0
    printed = capfd.readouterr().out
    assert "12318 tokens_per_s" in printed and "madlite run --tags train" in printed, "the median of steps 6 to 30"
    other, card = json.loads((folder / "models.json").read_text())
    assert other["name"] == "other"
    assert (card["name"], card["backend"], card["args"]) == ("train", "torchrun", "--lr 1")
    assert card["recipe"]["script"] == "train.py" and "(?P<tokens_per_s>" in card["recipe"]["step"]
    assert call(["explain", "train"]) == 0


def test_a_pattern_that_the_log_is_read_by_is_the_card_s(folder: Path, capfd) -> None:
    (folder / "its.log").write_text("".join(f"it {n} {20 + n % 2}.1 it/s loss 1.{n}\n" for n in range(1, 31)))
    assert call(["init", "train.py", "--log", "its.log"]) == 0
    assert "step_time_s" in capfd.readouterr().out
    (card,) = json.loads((folder / "models.json").read_text())
    assert "(?P<steps_per_s>" in card["recipe"]["step"]
    assert call(["explain", "train"]) == 0


def test_a_log_of_json_objects_gives_a_card_that_reads_them(folder: Path, capfd) -> None:
    steps = "".join(json.dumps({"step": n, "loss": 2, "step_time_s": 0.2}) + "\n" for n in range(1, 31))
    (folder / "json.log").write_text(f"step 1 is next\n{steps}")
    assert call(["init", "train.py", "--log", "json.log"]) == 0
    assert "reads its steps by the JSON objects of its log" in capfd.readouterr().out
    (card,) = json.loads((folder / "models.json").read_text())
    assert card["recipe"] == {"script": "train.py", "json": True, "headline": "step_time_s"}
    assert call(["explain", "train"]) == 0
    (folder / "json.log").write_text(steps.replace("step_time_s", "throughput"))
    given = ["init", "train.py", "--log", "json.log", "--name", "other"]
    assert call(given) == 4 and call([*given, "--keys", "throughput=nothing"]) == 4
    told = capfd.readouterr().err
    assert "Which of step, loss, throughput is the speed" in told
    assert "madlite init train.py --log json.log --keys throughput=tokens_per_s" in told
    assert "by the keys of its JSON objects: step, loss, throughput" in told
    assert call([*given, "--keys", "throughput=tokens_per_s"]) == 0
    card = json.loads((folder / "models.json").read_text())[1]
    keys = {"json_keys": "throughput=tokens_per_s", "headline": "tokens_per_s_per_gpu"}
    assert card["recipe"] == {"script": "train.py", "json": True, **keys}
    assert call(["explain", "other"]) == 0


def test_keys_without_json_objects_to_read_them_in_are_refused(folder: Path, capfd) -> None:
    (folder / "json.log").write_text('{"step": 1}\n')
    for more in ((), ("--log", "json.log")):
        assert call(["init", "train.py", "--step", r"step (?P<n>\d+)", "--keys", "x=loss", *more]) == 4
        assert "--keys x=loss: it names keys of a log's JSON objects" in capfd.readouterr().err
    assert not (folder / "models.json").exists()


@each_row(
    ("keys", "word"),
    [
        (r"throughput=\1", "has no steady steps, or no speed"),
        ("throughput=tokens_per_s,x=", "--keys has 'x=', which is no KEY=NAME"),
        ("throughput", "--keys has 'throughput', which is no KEY=NAME"),
        ("=tokens_per_s", "--keys has '=tokens_per_s', which is no KEY=NAME"),
    ],
)
def test_keys_that_are_no_names_are_refused(keys, word, folder: Path, capfd) -> None:
    steps = (json.dumps({"step": n, "loss": 2, "throughput": 7 + n}) + "\n" for n in range(1, 31))
    (folder / "json.log").write_text("".join(steps))
    assert call(["init", "train.py", "--log", "json.log", "--keys", keys]) == 4
    assert word in capfd.readouterr().err and not (folder / "models.json").exists()


@pytest.mark.host
def test_a_key_spelt_as_usual_is_read_and_a_speed_of_the_job_is_divided_by_its_ranks(folder: Path, capfd) -> None:
    line = 'os.environ["RANK"] == "0" and print(json.dumps(dict(step=n, loss=1 + 1 / n, tokens_per_second=1000 + n)))'
    (folder / "train.py").write_text(f"import json, os\nfor n in range(1, 31):\n    {line}\n")
    lines = (json.dumps({"step": n, "loss": 1 + 1 / n, "tokens_per_second": 1000 + n}) for n in range(1, 31))
    (folder / "json.log").write_text("".join(f"{text}\n" for text in lines))
    assert call(["init", "train.py", "--log", "json.log"]) == 0
    assert "1018 tokens_per_s (median" in capfd.readouterr().out, "of how many GPUs a log does not say"
    assert call(["run", "--tags", "train", "--set", "nproc_per_node=2"]) == 0, capfd.readouterr()
    assert csv_rows(folder / "perf.csv")[-1]["performance"] == "509"


def test_a_pattern_goes_before_json_objects_that_are_no_steps(folder: Path) -> None:
    text = (folder / "train.log").read_text()
    (folder / "mixed.log").write_text(f'config {{"lr": 0.1, "layers": 3}}\n{text}')
    assert call(["init", "train.py", "--log", "mixed.log"]) == 0
    (card,) = json.loads((folder / "models.json").read_text())
    assert "(?P<tokens_per_s>" in card["recipe"]["step"]


@pytest.mark.host
def test_its_card_runs_also_where_there_is_no_torch_and_reads_its_steps(folder: Path, capfd) -> None:
    venv.create(folder / "bare", with_pip=False)
    script = folder / "train.py"
    script.write_text(
        f"{SCRIPT}\nimport os, sys\nprint('torch' in sys.modules, os.environ['WORLD_SIZE'], sys.argv[1:])\n"
    )
    assert call(["init", "train.py", "--log", "train.log", "--args=--lr '1 e'"]) == 0
    python = f"env.MADLITE_PYTHON={folder}/bare/bin/python"
    assert call(["run", "--tags", "train", "--set", python]) == 0, capfd.readouterr()
    assert "False 1 ['--lr', '1 e']" in next(folder.glob("madlite_runs/*/run.log")).read_text()
    (row,) = csv_rows(folder / "perf.csv")
    assert (row["model"], row["performance"], row["metric"]) == ("train", "12318", "tokens_per_s_per_gpu")
    beside = [*folder.glob("perf_*"), *folder.glob("common_info*")]
    assert beside == [], "a folder with a script of one's own is no checkout of MAD, whose tooling would read them"


@each_row(
    ("words", "message"),
    [
        (["train.py"], "A log of it, or Enter to give the pattern of a step: not given"),
        ([], "Training script of this folder: not given"),
        (["nosuch.py", "--log", "train.log"], "nosuch.py: no such file"),
        (["../train.py", "--log", "train.log"], "../train.py is not below this folder"),
        (["train.py", "--log", "nosuch.log"], "nosuch.log"),
        (["train.py", "--log", "train.py", "--step", r"stop (?P<n>\d+)"], "no steady steps"),
        (["train.py", "--step", r"step (\d+)"], "no pattern of a step has the group n"),
        (["train.py", "--log", "train.log", "--name", "a b"], "--name 'a b' is no name"),
    ],
)
def test_what_is_missing_or_wrong_is_one_sentence_and_writes_nothing(folder: Path, capfd, words, message) -> None:
    assert call(["init", *words]) == 4
    assert message in capfd.readouterr().err and not (folder / "models.json").exists()


def test_a_card_of_the_same_name_stays(folder: Path, capfd) -> None:
    before = '[{"name": "train"}]'
    (folder / "models.json").write_text(before)
    assert call(["init", "train.py", "--log", "train.log"]) == 4
    assert "models.json has a card train" in capfd.readouterr().err
    assert (folder / "models.json").read_text() == before


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_new_plugin_is_the_one_of_the_page_with_its_own_name(folder: Path) -> None:
    assert call(["plugin", "new", "tiny"]) == 0
    (folder / "page").mkdir()
    type_off(PLUGINS, folder / "page")
    assert files_of(folder / "tiny-backend") == files_of(folder / "page")
    assert call(["plugin", "new", "my_trainer"]) == 0
    made = files_of(folder / "my_trainer-backend")
    assert "class MyTrainer(TemplateBackend)" in made["my_trainer_backend/__init__.py"]
    assert not [name for name, text in made.items() if "tiny" in f"{name}{text}".lower()]
    for name in ("my_trainer", "My-Trainer", "../x"):
        assert call(["plugin", "new", name]) == 4, "there already, or no name of a package"


@each_row("names", [{}, {"throughput": "tokens_per_s"}])
def test_a_log_with_a_long_line_is_read_in_a_time_that_grows_with_its_length(names) -> None:
    line = b'{"throughput": 1}\n'
    pieces = [line[:7], line[7:] + b"x", *[b"y" * (1 << 16)] * 2000, b"\n" + line]
    begun, kept, longest = time.process_time(), b"", 0
    for piece in _renamed(iter(pieces), names):
        kept, longest = (kept + piece)[-100:], max(longest, len(piece))
    assert longest <= 5 << 20 and time.process_time() - begun < 60, "joined again for each piece it would take minutes"
    assert kept.endswith(line.replace(b"throughput", names.get("throughput", "throughput").encode()))
    whole = b"".join(_renamed(iter(pieces[:2]), names))
    assert whole == line.replace(b"throughput", names.get("throughput", "throughput").encode()) + b"x"
