"""Each row of docs/differences.md is held: by a scenario, by an example that is run here, or by a test that is named.

The examples are what the row says, word for word where it names a command.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.golden.held import HELD
from tests.golden.test_documented import ROWS
from tests.rows import each_row

PAGE = Path(__file__).parents[2] / "docs/differences.md"
TESTS = Path(__file__).parents[1]
SCRIPTS = {
    "kilo": "echo 'performance: 12.5k tok/s'",
    "gap": "echo never",
    "apart": "echo 'performance: 1 234 tok/s'",
    "split": "echo 'performance: 5'; echo samples",
    "unnamed": "echo 'performance: 25.6 K tok/s'",
    "dead": "echo 'performance: 7 x'; exit 3",
    "named": "echo model,performance,metric >perf.csv",
}
EXAMPLES: dict[str, str] = {}


def holds(*rows: str):
    """Note which rows a test is an example of."""

    def note(test):
        EXAMPLES.update(dict.fromkeys(rows, test.__name__))
        return test

    return note


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a card for each script, on a machine without GPUs and without an engine."""
    for name in ("MODEL_DIR", "HF_TOKEN", "MADLITE_CONTRACT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    folder = tmp_path / "checkout"
    cards = []
    for name, text in SCRIPTS.items():
        script = folder / f"scripts/{name}/run.sh"
        script.parent.mkdir(parents=True)
        script.write_text(f"{text}\n")
        card = {"name": name, "scripts": f"scripts/{name}/run.sh", "n_gpus": "1", "args": "", "tags": ["all", name]}
        cards.append({**card, "dockerfile": "docker/x", "multiple_results": "perf.csv" if name == "named" else ""})
    cards[0] |= {"timeout": 60}
    cards[1] |= {"url": "https://lab.example/team/scripts"}
    (folder / "docker").mkdir()
    (folder / "docker/x.Dockerfile").write_text("# CONTEXT {}\nFROM base:1\n")
    (folder / "models.json").write_text(json.dumps(cards))
    monkeypatch.chdir(folder)
    return folder


def run(*words: str) -> int:
    return call(["run", "--gpu-vendor", "CPU", "--runtime", "host", *words])


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "perf.csv").open() as file:
        return {row["model"]: row for row in csv.DictReader(file)}


@pytest.mark.host
@holds(
    "`performance: 12.5k tok/s`, `performance: 1 234 tok/s`",
    "metric on the next line",
    "a metric without a name, or `K`",
    "exit code of a failed run",
    "a CPU machine",
    "`multiple_results` with the name of perf.csv",
)
def test_what_a_log_says_and_what_a_script_ends_with(checkout):
    assert run("--tags", "kilo", "apart", "split", "unnamed", "dead") == 3
    found = rows(checkout)
    assert (found["kilo"]["performance"], found["kilo"]["metric"], found["kilo"]["status"]) == (
        "12.5",
        "ktok/s",
        "SUCCESS",
    )
    assert (found["apart"]["performance"], found["apart"]["status"]) == ("", "FAILURE")
    assert (found["split"]["metric"], found["dead"]["status"]) == ("", "FAILURE")
    for name in ("split", "unnamed"):
        assert (found[name]["performance"], found[name]["status"]) == ("", "FAILURE")
    assert {(row["n_gpus"], row["gpu_architecture"]) for row in found.values()} == {("0", "cpu")}
    before = (checkout / "perf.csv").read_bytes()
    assert run("--tags", "named") == 3 and (checkout / "perf.csv").read_bytes().startswith(before)
    assert rows(checkout)["named"]["status"] == "FAILURE"


@holds("usage errors", "`--timeout` below -1", "a host path of `docker_mounts`", "a context with `deploy`")
@each_row(
    ("words", "said"),
    [
        (["--nonsense"], "--nonsense"),
        (["--tags", "nobody"], "nobody"),
        (["--tags", "kilo", "--timeout", "-2"], "-2"),
        (["--tags", "kilo", "-c", '{"docker_mounts": {"/data": "/not/here"}}'], "/not/here"),
        (["--tags", "kilo", "-c", '{"deploy": {"namespace": "a"}}'], "deploy"),
        (["--tags", "kilo", "-c", '{"distributed": {"nnodes": 2}}'], "nnodes"),
    ],
)
def test_what_is_asked_wrongly_ends_with_4_and_runs_nothing(checkout, capsys, words, said):
    assert call(["run", "--gpu-vendor", "CPU", *words]) == 4
    assert said in capsys.readouterr().err
    assert not (checkout / "perf.csv").exists() and not (checkout / "madlite_runs").exists()


@holds("time limit 7200 given explicitly")
def test_a_limit_that_is_given_counts_even_where_it_is_the_usual_one(checkout, capsys):
    limit = re.compile(r"^ *timeout_s +(\d+) ", re.MULTILINE)
    for words, expected in (([], "60"), (["--timeout", "7200"], "7200")):
        assert call(["explain", "kilo", "--machine", "1xMI300X", *words]) == 0
        assert limit.findall(capsys.readouterr().out) == [expected]


@holds("a card that several tags select")
def test_a_card_that_is_selected_twice_runs_once(checkout, capsys):
    assert call(["run", "--tags", "kilo", "kilo", "--dry-run", "--machine", "1xMI300X"]) == 0
    told = capsys.readouterr()
    assert told.out.count("# kilo ·") == 1 and "kilo is selected 2 times" in told.err


@holds("what a container sees of `madlite_runs`", "HF_TOKEN, HUGGING_FACE_HUB_TOKEN of the caller")
def test_a_container_has_a_run_s_own_folder_and_the_caller_s_token(checkout, capsys, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.setenv(name, "hf_OfTheCaller")
    assert call(["run", "--tags", "kilo", "--dry-run", "--machine", "1xMI300X"]) == 0
    told = capsys.readouterr().out
    assert ".view:/myworkspace/madlite_runs:ro" in told and "/work:/myworkspace/madlite_runs/" in told
    assert '"HF_TOKEN=***"' in told and '"HUGGING_FACE_HUB_TOKEN=***"' in told and "OfTheCaller" not in told


@pytest.mark.host
@holds("`url` whose name is a folder of the checkout")
def test_a_clone_takes_the_place_of_no_folder_of_the_user_s(checkout):
    assert run("--tags", "gap") == 3
    assert rows(checkout)["gap"]["status"] == "FAILURE" and (checkout / "scripts/gap/run.sh").is_file()
    (log,) = checkout.glob("madlite_runs/*/run.log")
    assert "was not made by madlite" in log.read_text()


@holds("`report`, `report to-email`", "reports of numbers", "reports that cannot be made")
def test_reports_show_text_as_it_is_or_say_in_a_sentence_why_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["report"]) == 4 and "to-html" in "".join(capsys.readouterr())
    assert call(["report", "to-email"]) == 4
    assert call(["report", "to-html", "nothing.csv"]) == 4
    assert len(capsys.readouterr().err.strip().splitlines()) <= 4
    (tmp_path / "perf.csv").write_text("model,performance,git_commit\nm,0012,1234567e8\nn,,\n")
    assert call(["report", "to-html", "perf.csv"]) == 0
    page = (tmp_path / "perf.html").read_text()
    assert ">0012<" in page and ">1234567e8<" in page and "NaN" not in page


@holds("image without git")
def test_git_is_asked_of_the_image_for_a_card_with_a_url_alone(checkout, capsys):
    for name, clones in (("kilo", False), ("gap", True)):
        assert call(["run", "--tags", name, "--dry-run", "--machine", "1xMI300X"]) == 0
        commands = capsys.readouterr().out.partition("# --- commands")[2]
        assert "bash run.sh" in commands and ("git " in commands) == clones


@holds("MAD_CONTAINER_IMAGE for a card")
def test_an_image_of_the_context_leaves_the_card_whole(checkout, capsys):
    words = ["--machine", "1xMI300X", "-c", '{"MAD_CONTAINER_IMAGE": "lab/image:1"}']
    for name, has in (("gap", "clone https://lab.example/team/scripts"), ("named", "perf.csv")):
        call(["run", "--tags", name, "--dry-run", *words])
        told = capsys.readouterr()
        assert has in told.out + told.err and "lab/image:1" in told.out + told.err


@pytest.mark.host
@holds("variables with `$(…)`")
def test_a_variable_is_no_command(checkout):
    odd = "$(touch planted); touch planted '\"`touch planted`"
    assert run("--tags", "kilo", "-c", json.dumps({"docker_env_vars": {"ODD": odd}})) == 0
    assert not list(checkout.rglob("planted")) and rows(checkout)["kilo"]["status"] == "SUCCESS"


@holds("an integer `PORT` in `NAS_NODES`")
def test_a_port_that_is_a_number_is_a_port(checkout, capsys):
    node = {"NAME": "attic", "HOST": "127.0.0.1", "PORT": 2222, "USERNAME": "reader", "PASSWORD": "hush-hush"}
    (checkout / "credential.json").write_text(json.dumps({"NAS_NODES": [node]}))
    (checkout / "data.json").write_text('{"wiki": {"nas": {"path": "/sets/wiki"}}}')
    cards = json.loads((checkout / "models.json").read_text())
    (checkout / "models.json").write_text(json.dumps([{**cards[0], "data": "wiki"}]))
    assert call(["run", "--tags", "kilo", "--dry-run", "--machine", "1xMI300X"]) == 0
    told = capsys.readouterr()
    assert "reader@127.0.0.1:/sets/wiki 2222" in told.out and "hush-hush" not in told.out + told.err


def table() -> list[str]:
    """Return the rows of the page's first table."""
    part = PAGE.read_text().partition("| what | madengine | madlite | why |")[2].partition("\n## ")[0]
    return [line[2:] for line in part.splitlines() if line.startswith("| ")]


def test_every_row_of_the_page_is_held_and_nothing_else_is():
    held = {*ROWS, *HELD, *EXAMPLES}
    assert len(table()) > 90
    assert [row for row in table() if not row.startswith(tuple(held))] == []
    assert [one for one in held if not any(row.startswith(one) for row in table())] == []


@each_row("test", sorted(set(HELD.values())))
def test_a_test_that_is_named_is_there(test):
    file, _, name = test.partition("::")
    assert f"def {name}(" in (TESTS / file).read_text()
