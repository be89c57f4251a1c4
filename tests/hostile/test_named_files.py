"""Files that are none: one sentence each, and no command waits; exit 4, or 3 where it is one card's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from madlite.cli.main import call
from tests.test_files import plant

SECRET = "root:x:0:0:of the host"
KINDS = ["pipe", "zero", "sparse", "folder"]


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch) -> Path:
    for name in ("MODEL_DIR", "MAD_SECRETS_X"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr("madlite.files._WRITER_S", 0.05)
    home = tmp_path / "mad"
    for folder in ("docker", "scripts/a", "scripts/common", "templates"):
        (home / folder).mkdir(parents=True)
    (tmp_path / "outside").write_text(SECRET)
    (home / "docker/x.Dockerfile").write_text("# CONTEXT {}\nFROM base:1\n")
    (home / "scripts/a/run.sh").write_text("echo performance: 1 x\n")
    write_card(home)
    monkeypatch.chdir(home)
    return home


def write_card(home: Path, **fields: object) -> None:
    card = {
        "name": "a",
        "scripts": "scripts/a/run.sh",
        "n_gpus": "1",
        "args": "",
        "tags": ["t"],
        "dockerfile": "docker/x",
    }
    (home / "models.json").write_text(json.dumps([{**card, **fields}]))


def explain(capsys, *words: str) -> tuple[int, str]:
    code = call(["explain", "a", "--machine", "1xMI300X", *words])
    return code, "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["models.json", "credential.json", "data.json", "ctx_test", "scripts/b/models.json", "scripts/common/tools.json"],
)
def test_a_settings_file_that_is_none_is_one_sentence(checkout, capsys, name, kind):
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).unlink(missing_ok=True)
    plant(checkout / name, kind)
    code, told = explain(capsys, "-c", '{"tools": [{"name": "rccl_trace"}]}')
    assert code == 4 and "Traceback" not in told
    assert f"{name} cannot be read: it is " in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_dockerfile_that_is_none_is_one_sentence_unless_it_is_a_folder(checkout, capsys, kind):
    plant(checkout / "docker/x.other.Dockerfile", kind)
    code, told = explain(capsys, "--check")
    assert code == (0 if kind == "folder" else 3)
    assert ("docker/x.other.Dockerfile cannot be read: it is " in told) == (kind != "folder")


@pytest.mark.parametrize("link", ["docker/x.Dockerfile", "docker"])
def test_a_dockerfile_that_a_link_leads_out_to_is_refused_and_shows_nothing(checkout, capsys, tmp_path, link):
    (checkout / "docker/x.Dockerfile").unlink()
    if link == "docker":
        (checkout / "docker").rmdir()
        (tmp_path / "x.Dockerfile").write_text(SECRET)
        (checkout / "docker").symlink_to(tmp_path)
    else:
        (checkout / link).symlink_to(tmp_path / "outside")
    code, told = explain(capsys, "--check")
    assert code == 3 and SECRET not in told
    assert "x.Dockerfile cannot be read: " in told and f"outside of {checkout}" in told


def test_a_dockerfile_that_the_card_spells_elsewhere_is_the_cards(checkout, capsys, tmp_path):
    (tmp_path / "y.Dockerfile").write_text("# CONTEXT {}\nARG BASE_DOCKER=other:1\nFROM $BASE_DOCKER\n")
    for named in (f"{tmp_path}/y", "../y"):
        write_card(checkout, dockerfile=named)
        code, told = explain(capsys)
        assert code == 0 and "other:1" in told


@pytest.mark.parametrize("option", ["--additional-context-file", "--data-config", "--tools-config", "--manifest-file"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_the_command_line_that_is_none_is_one_sentence(checkout, capsys, option, kind):
    plant(checkout / "given", kind)
    words = ["run", "--dry-run", "--tags", "a", option, "given", "--machine", "1xMI300X"]
    code = call([*words, "-c", '{"tools": [{"name": "rccl_trace"}]}'])
    told = "".join(capsys.readouterr())
    assert code == 4 and "Traceback" not in told and "given cannot be read: it is " in told


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_manifest_that_is_none_is_one_sentence(checkout, capsys, kind):
    plant(checkout / "given", kind)
    assert call(["build", "--batch-manifest", "given"]) == 4
    assert "given cannot be read: it is " in "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [["parse"], ["report", "to-html", "--csv-file-path"]])
def test_a_log_or_table_that_is_none_is_one_sentence(checkout, capsys, words, kind):
    if words == ["parse"] and kind == "sparse":
        pytest.skip("a log of NUL bytes is a log")
    plant(checkout / "given.csv", kind)
    assert call([*words, "given.csv"]) == 4
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_of_the_working_folder_that_is_none_is_one_sentence(checkout, capsys, kind):
    (checkout / "templates/torchtitan").mkdir()
    plant(checkout / "templates/torchtitan/run.sh.j2", kind)
    code = call(["explain", "demo_torchtitan_llama_debug", "--runtime", "host", "--check"])
    assert code == 3 and "torchtitan/run.sh.j2 cannot be read: it is " in "".join(capsys.readouterr())


@pytest.mark.parametrize("options", ["--env-file {}", "--security-opt seccomp={}"])
@pytest.mark.parametrize("kind", [*KINDS, "link"])
def test_a_file_of_docker_options_that_is_none_is_one_sentence(checkout, capsys, tmp_path, options, kind):
    if kind == "link":
        (checkout / "f").symlink_to(tmp_path / "outside")
    plant(checkout / "f", kind)
    write_card(checkout, additional_docker_run_options=options.format("f"))
    words = ["run", "--dry-run", "--check", "--tags", "a", "--machine", "1xMI300X"]
    code = call(words)
    told = "".join(capsys.readouterr())
    assert code == 3 and SECRET not in told and "cannot be read: it is " in told
    if kind == "link":
        assert f"a link to {tmp_path}/outside, outside of {checkout}" in told


def test_a_context_from_a_pipe_is_read_once_and_for_all(checkout, capfd, tmp_path):
    """The manifest that a run leaves has the context too."""
    reader, writer = os.pipe()
    os.write(writer, b'{"docker_env_vars": {"FROM_PIPE": "yes"}}')
    os.close(writer)
    words = ["run", "--tags", "a", "--runtime", "host", "--additional-context-file", f"/dev/fd/{reader}"]
    assert call([*words, "-c", '{"gpu_vendor": "CPU", "n_gpus": 0}']) == 0
    told = capfd.readouterr()
    assert "build_manifest.json" not in told.err
    os.close(reader)
